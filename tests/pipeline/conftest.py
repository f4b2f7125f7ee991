"""Both ways through what NumPy makes faster."""

from __future__ import annotations

import pytest

from dload import randomness


@pytest.fixture(params=[True, False], ids=["numpy", "plain"])
def numpy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether NumPy is used."""
    if request.param:
        pytest.importorskip("numpy")
    monkeypatch.setattr(randomness, "HAVE_NUMPY", request.param)
    return bool(request.param)
