"""The side-by-side benchmark on tiny data: dload and the bound, all rows, and what guards its figures."""

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.side_by_side import children, environments  # noqa: E402
from benchmarks.side_by_side.children import Child, FailedError, RefusedError  # noqa: E402
from benchmarks.side_by_side.peers.samples import Seen, Spec, expected, write_corpus  # noqa: E402
from benchmarks.side_by_side.plots import write_plots  # noqa: E402
from benchmarks.side_by_side.runner import LABELS, OURS, Result, run  # noqa: E402
from benchmarks.side_by_side.selection import FULL, TINY, rows  # noqa: E402
from benchmarks.side_by_side.stage import Stage, check  # noqa: E402
from benchmarks.side_by_side.table import table  # noqa: E402

SPEC = Spec(100, 64)
DISTANT = (0.001, 0.0, 0.0)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A row of each kind by dload and the bare loop, without a DataLoader's worker processes."""
    folder = tmp_path_factory.mktemp("side-by-side")
    kinds = (
        "read-1kb", "shuffled-1kb", "loader-1kb-0", "access", "resume", "memory", "cold-distant", "second", "insert",
        "mix-2", "packing", "commit",
    )  # fmt: skip
    chosen = [row for row in rows(TINY, folder) if row.name.startswith(kinds)]
    said: list[str] = []
    with Stage(folder, folder / "none", ["bare", OURS, "litdata"], DISTANT).opened() as stage:
        assert stage.missing == ["litdata"]
        found = [result for each in run(stage, chosen, 1, said.append) for result in each]
    return found, said


def test_every_row_has_a_figure_of_ours(results):
    found, said = results
    assert not [(result.row, result.failed) for result in found if result.failed]
    assert {result.row for result in found if OURS in result.values} == {result.row for result in found}
    assert all(value >= 0 for result in found for values in result.values.values() for value in values)
    assert any("MB/s" in line for line in said)


def test_what_the_bound_cannot_do_is_said_with_a_reason(results):
    refused = {result.row: result.refused.get("bare") for result in results[0]}
    assert refused["resume"] and refused["packing"] and refused["second-epoch"]
    assert refused["shuffled-1kb"] is None


def test_requests_and_bytes_are_counted_at_the_proxy(results):
    counted = {result.figure.name: result.values for result in results[0] if result.row == "cold-distant"}
    assert counted["requests"][OURS][0] >= 1
    assert 1.0 <= counted["bytes"][OURS][0] < 1.2
    insert = next(result for result in results[0] if result.row == "insert" and result.figure.name == "bytes")
    assert 0 < insert.values[OURS][0] < 1.2


def test_results_are_json_and_pictures(results, tmp_path):
    record = {"labels": LABELS, "ours": OURS, "results": [result.as_json() for result in results[0]]}
    record = json.loads(json.dumps(record))
    written = write_plots(record, tmp_path)
    assert {path.name for path in written} == {"reading.svg", "loaders.svg", "stores.svg", "access.svg"}
    for path in written:
        texts = "".join(ET.parse(path).getroot().itertext())
        assert "dload" in texts and "bare" in texts


def test_the_table_has_a_line_for_each_figure_and_ours_bold_where_nobody_is_ahead():
    found = [
        Result("read-1kb", "Warm", rows_figure(), {OURS: [2.0], "bare": [9.0], "litdata": [1.0], "grain": [1.5]}),
        Result("shuffled-1kb", "Shuffled", rows_figure(), {OURS: [1234.0], "grain": [1500.0]}),
        Result("cold", "Cold", replace(rows_figure(), name="cpu"), {OURS: [2.0]}),
        Result("other", "Nobody's", rows_figure(), {"grain": [1.0]}),
    ]
    record = {"labels": LABELS, "ours": OURS, "results": [result.as_json() for result in found]}
    head, _, warm, shuffled = table(record).splitlines()
    assert head.startswith("|  | dload | bound | dload-ml") and head.count("|") == warm.count("|")
    assert warm.startswith("| Warm, samples/s | **2** | 9 |  | 1 |") and warm.endswith("| 1.5 |")
    assert shuffled.startswith("| Shuffled, samples/s | 1,234 |  |") and shuffled.endswith("| 1,500 |")


def test_ratios_are_of_rounds_and_above_one_where_ours_is_better():
    less = replace(rows_figure(), more_is_better=False)
    result = Result("row", "title", rows_figure(), {OURS: [4.0, 9.0, 2.0], "grain": [2.0, 3.0, 4.0]})
    assert result.ahead("grain") == 2.0
    assert Result("row", "title", less, result.values).ahead("grain") == 0.5
    assert result.ahead("litdata") is None


def rows_figure():
    return rows(replace(FULL, photos=0, texts=0), Path("unused"))[0].figures[0]


def test_the_overview_names_who_is_ahead_of_us(tmp_path):
    result = Result("read-1kb", "Warm", rows_figure(), {OURS: [1.0], "grain": [2.0], "litdata": [0.1]})
    record = {"labels": LABELS, "ours": OURS, "results": [result.as_json()]}
    assert tmp_path / "overview.svg" in write_plots(record, tmp_path)
    assert "Grain 0.50" in (tmp_path / "overview.svg").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"count": 99, "distinct": 99}, "99 samples of 100"),
        ({"distinct": 99}, "of which 99 are different"),
        ({"digest": 1}, "other bytes"),
    ],
)
def test_a_system_that_skips_repeats_or_alters_is_found_out(change, said):
    seen = asdict(Seen.of(SPEC.samples()))
    child = Child("bare", Path(sys.executable), {}, Path())
    check(child, seen, SPEC, whole=True)
    with pytest.raises(FailedError, match=said):
        check(child, {**seen, **change}, SPEC, whole=True)


def test_samples_are_all_different_and_of_their_size():
    seen = expected(Spec(5000, 100))
    assert seen.distinct == seen.count == 5000
    assert len({a for _, a, _ in Spec(5000, 100).samples()}) == 5000
    assert all(len(a) + len(b) == SPEC.size for _, a, b in SPEC.samples())
    assert Seen.of(reversed(list(SPEC.samples()))).digest == expected(SPEC).digest


def test_a_corpus_gives_its_items_again_and_again(tmp_path):
    write_corpus(tmp_path / "corpus", [b"one", b"two"])
    spec = Spec(3, 0, corpus=str(tmp_path / "corpus"))
    assert [a for _, a, _ in spec.samples()] == [b"one", b"two", b"one"]
    assert spec.bytes == 3 * (3 + 8)


def test_a_child_that_stands_still_is_killed_and_starts_anew(tmp_path, monkeypatch):
    stub = tmp_path / "python"
    stub.write_text("#!/bin/sh\nif [ -e again ]; then exit 3; fi\ntouch again\nsleep 1000 & sleep 1000\n")
    stub.chmod(0o755)
    monkeypatch.setattr(children, "START_SECONDS", 0.5)
    child = Child("bare", stub, {}, tmp_path)
    with pytest.raises(FailedError, match="no answer within"):
        child.ask("start", 1.0)
    monkeypatch.setattr(children, "START_SECONDS", 60.0)
    with pytest.raises(FailedError, match=r"ended|Broken pipe"):
        child.ask("start", 60.0)


def test_who_works_ahead_is_waited_for_before_the_next_is_measured(tmp_path, monkeypatch):
    used = iter([0.0, 0.1, 0.2, 0.21, 99.0])
    monkeypatch.setattr(children, "_processor_seconds", lambda _: next(used))
    child = Child("bare", Path(sys.executable), {}, tmp_path)
    child.settle()  # there is none yet
    child._process = SimpleNamespace(pid=1)
    child.settle()
    assert next(used) == 99.0


def test_processor_seconds_are_of_all_processes_of_a_group():
    code = "import os, time\nos.fork()\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.read(4) == b"1\n1\n"
        assert children._processor_seconds(process.pid) >= 0.55
        os.killpg(process.pid, signal.SIGKILL)


def test_what_a_child_cannot_do_is_its_own_words(tmp_path):
    child = Child("bare", Path(sys.executable), {}, tmp_path)
    try:
        with pytest.raises(RefusedError, match="nothing but bytes"):
            child.ask("insert_first", 60.0, place={"folder": "", "cache": ""}, spec=asdict(SPEC))
        with pytest.raises(FailedError, match="no_such"):
            child.ask("no_such", 60.0)
    finally:
        child.kill()


def test_environments_are_found_by_their_interpreter(tmp_path, capsys):
    assert environments.interpreter(tmp_path, "dload_now") == Path(sys.executable)
    assert environments.interpreter(tmp_path, "litdata") is None
    python = tmp_path / "litdata" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    environments.make(tmp_path, ["litdata"])
    assert "is there" in capsys.readouterr().out


def test_what_gpus_need_is_computed_from_a_run(tmp_path):
    found = [
        {"row": row, "figure": "cpu", "medians": {OURS: seconds}}
        for row, seconds in (("shuffled-1kb", 2.0), ("shuffled-100kb", 20.0), ("decode", 2000.0))
    ]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"ours": OURS, "results": found}))
    command = [sys.executable, "benchmarks/gpu_demand.py", "--results", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    line = next(line for line in done.stdout.splitlines() if line.startswith("ResNet-50"))
    assert "14,286" in line  # 8 x 400 / 0.224
    assert "29 to decode" in line  # at 500 a second of a core
