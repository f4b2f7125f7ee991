"""A short run of the stress program. A long one, after changes of the cache:

python -m dload.testing.cache_stress --seconds 600
"""

from __future__ import annotations

from pathlib import Path

from dload.testing.cache_stress import Stress

SECONDS = 15


def test_case_c42_nothing_that_must_not_happen_does(tmp_path: Path) -> None:
    stress = Stress(tmp_path, SECONDS, processes=2)
    assert stress.run() == []
    print(stress.summary)
