"""What it costs to check that the keys of a commit are unique.

python benchmarks/key_check.py [KEYS]
"""

from __future__ import annotations

import resource
import sys
import time

from dload.repo.uniqueness import KeyCheck


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with KeyCheck() as check:
        started = time.perf_counter()
        for ordinal in range(count):
            check.add(f"train/class/img_{ordinal:08d}", ordinal)
        added = time.perf_counter()
        assert not list(check.finish())
        finished = time.perf_counter()
    unit = 1e6 if sys.platform == "darwin" else 1e3
    print(f"add     {(added - started) / count * 1e6:8.2f} us a key, making the key included")
    print(f"finish  {(finished - added) / count * 1e6:8.2f} us a key")
    print(f"memory  {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / unit:8.1f} MB")


if __name__ == "__main__":
    main()
