"""The documentation site: `sphinx-build -c docs . build/site`, after `pip install -e ".[docs]"`.

The sources are the Markdown pages where they lie, README.md first, so that a link is the same in the repository and
here. Beside them are the reference, from docstrings (docs/reference/), and the notebooks, from scripts
(docs/notebooks/), which a Jupyter kernel runs. A link to a file or folder that is no page leads to a page made of it.
"""

import ast
import html
import importlib.metadata
import inspect
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
CONTENTS = {
    "Begin": [
        "docs/installation", "docs/examples", "docs/from_pytorch", "docs/torch_names", "docs/features",
        "docs/notebooks/index",
    ],
    "Course": ["minigrad/learn/chapters/*"],
    "Use": [
        "docs/training", "docs/models", "docs/watch", "docs/profiler", "docs/cpu", "docs/distributed", "docs/planning",
    ],
    "Understand": [
        "docs/reading", "docs/architecture", "docs/add_an_op", "docs/change_the_model", "docs/matmul_cpu",
        "docs/kernels", "docs/simulator", "docs/tensor_cores", "docs/hopper_product",
    ],
    "Trust": [
        "docs/guarantees", "docs/errors_and_limits", "docs/testing", "docs/performance", "docs/lab/README",
        "docs/libraries", "docs/seed_systems", "CONTRIBUTING", "CHANGELOG",
    ],
    "Reference": ["docs/reference/*"],
}  # fmt: skip

project = "minigrad"
version = release = importlib.metadata.version("minigrad-cuda")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.linkcode"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "docs/notebooks/*.nb.py", "minigrad/learn/chapters/*.md"]
exclude_patterns = [
    ".*",
    "**/.*",
    "**/__pycache__",
    "build",
    "dist",
    "venv*",
    "runs",
    "tests",
    "minigrad_cuda.egg-info",
]

html_theme = "furo"
html_title = f"minigrad {release}"
html_copy_source = False
pygments_style, pygments_dark_style = "friendly", "monokai"

myst_heading_anchors = 6
myst_enable_extensions = ["deflist"]
nb_custom_formats = {".nb.py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 60
nb_output_stderr = "remove"  # the bar while kernels compile

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True


# Contents -------------------------------------------------------------------------------------------------------------


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """The table of contents, below README.md; elsewhere it would be noise. Pages of a folder likewise."""
    if docname == root_doc:
        for caption, pages in CONTENTS.items():
            source[0] += (
                "\n\n```{toctree}\n:hidden:\n:glob:\n" + f":caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
            )
    elif docname in ("docs/lab/README", "docs/notebooks/index"):
        source[0] += "\n\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    elif docname.startswith("docs/notebooks/"):
        source[0] += f"\n# %% [markdown]\n# {{nb-download}}`{Path(docname).name}.ipynb`: this page as a notebook.\n"


# Docstrings -----------------------------------------------------------------------------------------------------------


def as_written(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Formulas are text: ``|x|`` and ``*`` mark nothing up, and an indented paragraph keeps its lines.

    A paragraph of lines ``name: what it is`` becomes a list of fields.
    """
    paragraphs: list[list[str]] = []
    for blank, group in itertools.groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            paragraphs.append(list(group))
    lines.clear()
    above, literal = "", False
    for paragraph in paragraphs:
        indented = paragraph[0].startswith("    ")
        if indented and not literal and above and not above.startswith((" ", "..")):
            lines += [] if above.strip() == "::" else ["::", ""]
            literal = True
        elif not indented:
            literal = False
        if not literal:
            paragraph = [MARKS.sub(lambda found: found[1] or "\\" + found[0], line) for line in paragraph]
            if all(line.startswith(" ") or FIELD.match(line) for line in paragraph):
                paragraph = [line if line.startswith(" ") else f":{line}" for line in paragraph]
        lines += [*paragraph, ""]
        above = paragraph[-1]


MARKS = re.compile(r"(``.*?``)|[|*]")
FIELD = re.compile(r"[\w, ]+: +\S")


# Files that are no pages ----------------------------------------------------------------------------------------------


def source_page(path: Path) -> str:
    return f"source/{path.relative_to(ROOT).as_posix()}"


def link_files(app: Sphinx, doctree: nodes.document) -> None:
    """Links to files and folders lead to the pages that ``file_pages`` makes of them."""
    here = (ROOT / app.env.docname).parent
    files, others = doctree.findall(addnodes.download_reference), doctree.findall(addnodes.pending_xref)
    for node in [*files, *(node for node in others if not node.get("refdomain"))]:
        path = Path(os.path.normpath(here / node["reftarget"]))
        if node.get("reftype") != "myst" or not node["reftarget"] or not path.exists():
            continue
        uri = app.builder.get_relative_uri(app.env.docname, source_page(path))
        node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=uri))
        linked.add(path)


linked: set[Path] = set()


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Where the page of the source has the line at which a name of the reference is defined."""
    thing: Any = sys.modules.get(info["module"])
    for name in info["fullname"].split("."):
        thing = getattr(thing, name, None)
    thing = inspect.unwrap(thing.fget if isinstance(thing, property) else thing)
    try:
        path, line = Path(inspect.getsourcefile(thing) or ""), inspect.getsourcelines(thing)[1]
    except (TypeError, OSError):  # constants, and what is defined in C
        return None
    if ROOT not in path.parents:
        return None
    linked.add(path)
    return f"../../{source_page(path)}.html#L-{line}"  # from a page of docs/reference


def file_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The linked files with colours and numbered lines, the linked folders with what their files begin with."""
    for path in sorted(linked):
        body = folder(app, path) if path.is_dir() else coloured(path)
        name = path.relative_to(ROOT).as_posix()
        context = {"title": name, "body": f"<h1>{html.escape(name)}</h1>{body}"}
        context["toctree"] = lambda **options: ""  # the contents beside each would double the time of the build
        yield source_page(path), context, "page.html"


def coloured(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(text, lexer, HtmlFormatter(linenos="inline", anchorlinenos=True, lineanchors="L"))


def folder(app: Sphinx, path: Path) -> str:
    rows = []
    for entry in sorted(path.iterdir()):
        if entry.name.startswith((".", "__pycache__")) or entry.suffix in (".pyc",):
            continue
        name = html.escape(entry.name + "/" * entry.is_dir())
        if entry in linked:
            uri = app.builder.get_relative_uri(source_page(path), source_page(entry))
            name = f'<a href="{html.escape(uri)}">{name}</a>'
        code = entry / "__init__.py" if entry.is_dir() else entry
        said = ast.get_docstring(ast.parse(code.read_text("utf-8"))) if code.suffix == ".py" and code.is_file() else ""
        rows.append(f"<tr><td><code>{name}</code></td><td>{html.escape((said or '').partition(chr(10))[0])}</td></tr>")
    return f'<div class="table-wrapper"><table class="docutils">{"".join(rows)}</table></div>'


def also_as_index(app: Sphinx, exception: Exception | None) -> None:
    """The first page, too, where web servers look for it."""
    if exception is None and app.builder.name == "html":
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", as_written, priority=400)  # before napoleon
    app.connect("doctree-read", link_files, priority=400)  # before files of links are collected as downloads
    app.connect("html-collect-pages", file_pages)
    app.connect("build-finished", also_as_index)
