"""What torch itself warns of in its workers is not what is under test."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "torch":
            for warning in (
                "ignore:.*fork.*:DeprecationWarning",
                "ignore:.*number of workers.*:UserWarning",
                "ignore:.*max number of worker.*:UserWarning",
                "ignore:.*no accelerator is found.*:UserWarning",
                "ignore:.*set_vital.*:UserWarning",
            ):
                item.add_marker(pytest.mark.filterwarnings(warning))
