"""The models that the real code is tested against hold by themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.models.lanes import check_grid
from tests.models.order import check_mix, check_order, check_parts


@pytest.mark.parametrize("check", [check_grid, check_order, check_mix, check_parts])
def test_model(check: Callable[[], None]) -> None:
    check()
