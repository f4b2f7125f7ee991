"""No data is ever run: dload unpickles nothing that comes from a store, a file or a network, evaluates no text, and
starts no shell. Read off the source."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import dload

ROOT = Path(dload.__file__).parent
# What a process hands to the workers that it has started itself, and to nobody else; and tests of what pickles.
TO_OWN_WORKERS = {
    "run/spread.py", "torch/slots.py", "torch/workers.py", "providers/huggingface.py", "testing/store_contract.py",
}  # fmt: skip
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "commands"}
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.execl", "os.execlp", "os.spawnl",
    "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell", "pty.spawn",
    "builtins.eval", "builtins.exec", "torch.load", "numpy.load", "np.load", "code.interact", "pandas.read_pickle",
}  # fmt: skip


@functools.cache
def sources() -> list[tuple[str, ast.Module]]:
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())) for path in sorted(ROOT.rglob("*.py"))]


def dangers(tree: ast.Module) -> Iterator[str]:
    """What could run data, and where."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {name.name}" for name in node.names if name.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if (node.module or "").partition(".")[0] in MODULES:
                yield f"from {node.module}"
            yield from (
                f"from {node.module} import {name.name}" for name in node.names if f"{node.module}.{name.name}" in CALLS
            )
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    given = {word.arg: word.value for word in node.keywords}
    if name in CALLS and not _is(given.get("allow_pickle"), False):
        yield f"line {node.lineno}: {name}()"
    if "shell" in given and not _is(given["shell"], False):
        yield f"line {node.lineno}: {name}(shell=...)"
    if "allow_pickle" in given and not _is(given["allow_pickle"], False):
        yield f"line {node.lineno}: {name}(allow_pickle=...)"


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_nothing_that_is_read_is_run() -> None:
    found = {
        name: bad
        for name, tree in sources()
        if (bad := [each for each in dangers(tree) if not (each == "import pickle" and name in TO_OWN_WORKERS)])
    }
    assert found == {}


def test_own_workers_are_where_they_are_said_to_be() -> None:
    assert {name for name, tree in sources() if "import pickle" in dangers(tree)} >= TO_OWN_WORKERS


def test_the_rules_find_what_they_are_for() -> None:
    for text in (
        "import pickle", "from pickle import loads", "import yaml", "eval(x)", "os.system(x)", "np.load(file)",
        "np.load(file, allow_pickle=True)", "subprocess.run(x, shell=True)", "subprocess.run(x, shell=y)",
        "from os import system", "import pickle as p", "def f():\n  exec(x)", "__import__(name)",
    ):  # fmt: skip
        assert list(dangers(ast.parse(text))), text
    for text in ("np.load(file, allow_pickle=False)", "re.compile(x)", "subprocess.run(x)", "model.eval()"):
        assert not list(dangers(ast.parse(text))), text
