"""Pipelines at random, side by side: see dload.testing.pipeline_stress, which can run for as long as one likes:

python -m dload.testing.pipeline_stress --seconds 600
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dload.testing.pipeline_stress import stress


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_pipelines_at_random_in_caches_with_hardly_any_room(tmp_path: Path, seed: int) -> None:
    done, _ = stress(tmp_path, 3, seed)
    assert done > 0
