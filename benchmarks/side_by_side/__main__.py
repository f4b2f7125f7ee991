"""The command line: see the package's text."""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import __doc__ as text
from .environments import ENVIRONMENTS, HERE, default_folder, make
from .plots import write_plots
from .runner import LABELS, OURS, machine, run
from .selection import FULL, QUICK, rows
from .stage import Stage
from .table import table

RESULTS = Path(__file__).resolve().parents[1] / "results"
DISTANT = (0.010, 90e6, 350e6)
DISTANT_SAID = "10 ms one way, 90 MB/s a connection, 350 MB/s in all"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.side_by_side", description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", required=True)
    envs = verbs.add_parser("environments", help="make the environments that aren't there: a gigabyte each")
    envs.add_argument("--only", nargs="+", choices=list(ENVIRONMENTS), default=list(ENVIRONMENTS), metavar="SYSTEM")
    running = verbs.add_parser("run", help="measure, print, write results and plots")
    running.add_argument("--quick", action="store_true", help="less data, two rounds")
    running.add_argument("--rounds", type=int, help="of each row; default 5")
    running.add_argument(
        "--rows", nargs="+", metavar="ROW", help="only those whose names begin so; other results are kept"
    )
    systems = [*HERE, *ENVIRONMENTS]
    running.add_argument("--systems", nargs="+", choices=systems, default=systems, metavar="SYSTEM")
    running.add_argument("--output", type=Path, default=RESULTS / "side_by_side.json")
    running.add_argument("--scratch", type=Path, help="where data sets are written: 8 GB; default the temporary folder")
    for verb in (envs, running):
        verb.add_argument("--folder", type=Path, default=default_folder(), help="of the environments")
    verbs.add_parser("rows", help="the names of all rows")
    plots = verbs.add_parser("plots", help="draw the results again")
    tables = verbs.add_parser("table", help="print the results as a Markdown table")
    for verb in (plots, tables):
        verb.add_argument("--results", type=Path, default=RESULTS / "side_by_side.json")
    given = parser.parse_args()
    {"environments": _environments, "run": _run, "rows": _rows, "plots": _plots, "table": _table}[given.verb](given)


def _environments(given: argparse.Namespace) -> None:
    make(given.folder, given.only)


def _rows(_: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(FULL, Path(folder)):
            print(f"{row.name:18} {row.title}")


def _plots(given: argparse.Namespace) -> None:
    write_plots(json.loads(given.results.read_text()), given.results.parent)


def _table(given: argparse.Namespace) -> None:
    print(table(json.loads(given.results.read_text())))


def _run(given: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # children and server end with it
    rounds, begin = given.rounds or (2 if given.quick else 5), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dload-side-by-side-", dir=given.scratch) as name:
        folder = Path(name)
        chosen = [
            row for row in rows(QUICK if given.quick else FULL, folder)
            if given.rows is None or row.name.startswith(tuple(given.rows))
        ]  # fmt: skip
        record = {
            "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), "machine": machine(), "rounds": rounds,
            "quick": given.quick, "distant": DISTANT_SAID, "labels": LABELS, "ours": OURS,
            "versions": {}, "results": _kept(given) if given.rows else [],
        }  # fmt: skip
        print(", ".join(f"{key} {value}" for key, value in record["machine"].items()), flush=True)
        with Stage(folder, given.folder, [one for one in LABELS if one in given.systems], DISTANT).opened() as stage:
            for system in stage.missing:
                print(f"{LABELS[system]}: left out, no environment in {given.folder}")
            for found in run(stage, chosen, rounds, lambda line: print(line, flush=True)):
                record["results"] = _replaced(record["results"], [result.as_json() for result in found])
                record["versions"] = {system: child.versions for system, child in stage.children.items()}
                given.output.parent.mkdir(parents=True, exist_ok=True)
                given.output.write_text(json.dumps(record, indent=1) + "\n")  # what there is, should it be cut off
    write_plots(record, given.output.parent)
    print(f"written to {given.output} after {(time.monotonic() - begin) / 60:.0f} minutes")


def _kept(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The results of a run of the same sizes, of which some rows are run again."""
    if not given.output.exists():
        return []
    before = json.loads(given.output.read_text())
    found: list[dict[str, Any]] = before["results"] if before["quick"] == given.quick else []
    return found


def _replaced(results: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`new` where the same row was, else behind the others."""
    names = {one["row"] for one in new}
    at = next((number for number, one in enumerate(results) if one["row"] in names), len(results))
    others = [one for one in results if one["row"] not in names]
    return [*others[:at], *new, *others[at:]]


if __name__ == "__main__":
    main()
