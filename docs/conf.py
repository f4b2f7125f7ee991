"""The site: these documents, and the reference out of the docstrings. Made, from the root of the repository, by

    python -m sphinx -W --keep-going -c docs . site

Markdown files are read where they lie, so their links are the same here, in a checkout and on a forge. No network.
"""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from dload.cli.main import run
from dload.cli.verbs import SECTIONS

CONTENTS = {
    "Begin": ["TUTORIAL", "examples/README", "examples/training/README"],
    "Reference": [f"docs/reference/{page}" for page in (
        "repository", "pipeline", "loaders", "frameworks", "data", "settings-and-errors", "command-line",
    )],
    "Coming from elsewhere": [f"docs/migrating/from-{tool}" for tool in (
        "dload-ml", "mosaicml-streaming", "litdata", "webdataset", "dvc",
    )],
    "How it works": ["DESIGN", "BENCHMARKS", "CONTRIBUTING", "CHANGELOG"],
}  # fmt: skip

project = "dload"
html_title = "dload"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/reference/*.rst", "docs/migrating/*.md", "examples/README.md", "examples/*/README.md"]
exclude_patterns = [".*", "site", "tests", "dload", "benchmarks"]

myst_heading_anchors = 4  # those that a forge gives to headings
default_role = "py:obj"  # `name` in a docstring is a link where it is one of ours, else code
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # as they are written
# Large, and nothing of theirs is described here.
autodoc_mock_imports = ["array_record", "datasets", "grain", "pyarrow", "pytest", "ray", "torch"]

html_theme = "furo"
html_extra_path = ["index.html"]
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_copyright = False


def complete(_: Any, page: str, source: list[str]) -> None:
    """What a page has here and not in the checkout: the front page a table of contents, that of the command line what
    each verb says of itself."""
    if page == root_doc:
        for title, pages in CONTENTS.items():
            listed = "\n".join(f"/{page}" for page in pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{listed}\n```\n"
    if page == "docs/reference/command-line":
        source[0] += _section("dload", "=", [])
        for title, verbs in SECTIONS.items():
            source[0] += f"{title}\n{'=' * len(title)}\n\n" + "".join(_section(f"dload {v}", "-", [v]) for v in verbs)


def _section(title: str, line: str, words: list[str]) -> str:
    with redirect_stdout(StringIO()) as out:
        run([*words, "--help"])
    indented = "".join(f"   {text}".rstrip() + "\n" for text in out.getvalue().splitlines())
    return f"{title}\n{line * len(title)}\n\n.. code-block:: text\n\n{indented}\n"


def setup(app: Any) -> None:
    app.connect("source-read", complete)
