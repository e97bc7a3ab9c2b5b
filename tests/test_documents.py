"""The documents are true: their code runs, their links lead somewhere, and no file names a path of one machine."""

import ast
import fnmatch
import json
import pkgutil
import re
import subprocess
from pathlib import Path

import code_blocks
import house
import pytest
import seed_systems
from processes import python
from refusals import raises

ROOT = Path(__file__).resolve().parents[1]


def documents() -> list[Path]:
    """The Markdown files. README.md is in the list whether it exists or not: without it the tests fail."""
    top = {ROOT / "README.md", *ROOT.glob("*.md")}
    folders = ("docs", "examples", "benchmarks", "minigrad/learn/chapters")
    return sorted(top) + sorted(path for folder in folders for path in (ROOT / folder).rglob("*.md"))


def python_blocks() -> list[tuple[Path, code_blocks.Block]]:
    """Those of the course are run by tests/learn, a chapter's together."""
    alone = [path for path in documents() if path.is_file() and path.parent.name != "chapters"]
    return [(path, block) for path in alone for block in code_blocks.python_blocks(path)]


def test_readme_shows_code_that_runs():
    assert code_blocks.python_blocks(ROOT / "README.md"), "README.md has no block marked python"


def test_the_first_screen_of_the_readme_has_all_and_names_no_system_without_a_word_on_it():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    screen = "\n".join(page.splitlines()[:60])
    for part in ("for people who", "](docs/terminal.svg)", "```python", "| PyTorch 2.13 eager |", "What it is not"):
        assert part in screen, part
    assert not re.findall("Mistral|Qwen|SmolLM|TensorFlow|JAX|tinygrad|nanoGPT|transformers'", page)


@pytest.mark.long(but=2)
@pytest.mark.parametrize(
    ("path", "block"), [pytest.param(p, b, id=f"{p.relative_to(ROOT)}:{b.line}") for p, b in python_blocks()]
)
def test_documented_code_runs(path, block, tmp_path):
    name = f"{path.relative_to(ROOT)}:{block.line}"
    python(ROOT / "tests/code_blocks.py", name, input=block.source, cwd=tmp_path, returncode=0)


def quoted(block: code_blocks.Block) -> str | None:
    """The file that a block quotes, if its info string ends with ``source=PATH``."""
    found = re.search(r"(?:^|\s)source=(\S+)$", block.info)
    return found[1] if found else None


def misquoted(source: str, text: str) -> list[str]:
    """The parts of a quotation that do not stand in the text in this order. A line ``...`` parts them."""
    wrong, end = [], 0
    for part in re.split(r"(?m)^ *\.\.\. *\n", source):
        place = text.find(part, end)
        if place < 0 or not part.strip():
            wrong.append(part)
        else:
            end = place + len(part)
    return wrong


def test_quoted_code_is_the_code():
    quotations = [(path, block) for path in documents() for block in code_blocks.blocks(path) if quoted(block)]
    assert {path.name for path, _ in quotations} >= {"architecture.md"}
    wrong = []
    for path, block in quotations:
        file = ROOT / str(quoted(block))
        parts = misquoted(block.source, file.read_text(encoding="utf-8")) if file.is_file() else ["no such file\n"]
        wrong += [f"{path.relative_to(ROOT)}:{block.line}: not in {quoted(block)}:\n{part}" for part in parts]
    assert not wrong, "\n".join(wrong)


def test_an_injected_misquotation_is_caught():
    text = "def f(x):\n    y = 2 * x\n    return y\n"
    assert misquoted("    return y\n", text) == []
    assert misquoted("def f(x):\n    ...\n    return y\n", text) == []
    for source in ("    return z\n", "return y\n    y = 2\n", "    return y\n...\ndef f(x):\n", "...\n"):
        assert misquoted(source, text), source
    assert quoted(code_blocks.Block(1, "python source=a/b.py", "")) == "a/b.py"
    assert quoted(code_blocks.Block(1, "python", "")) is None


SPEED = {preset: ROOT / f"benchmarks/results/train_step_cpu_{preset}_captured_zen5.json" for preset in "XSMG"}


def speed_cells(report) -> list[str]:
    """What a row of the tables of speed says: times, speed with its middle half, the other speed, memory."""
    ours, eager = report["contenders"]["minigrad-captured"], report["contenders"]["torch-eager"]
    against = report["speed_of_minigrad_against"]
    low, high = against["torch-eager"]["middle_half"]
    times = [float(f"{x['median_milliseconds']:.3g}") for x in (ours, eager)]
    return [
        *(f"{t:.0f} ms" if t >= 100 else f"{t:.3g} ms" for t in times),
        f"**{against['torch-eager']['median']:.2f}** ({low:.2f} to {high:.2f})",
        f"{against['torch-compile']['median']:.2f}",
        f"{ours['peak_megabytes']:.0f} MB, PyTorch {eager['peak_megabytes']:.0f} MB",
    ]


@pytest.mark.parametrize("preset", SPEED)
def test_tables_of_speed_are_those_of_the_reports(preset):
    cells = speed_cells(json.loads(SPEED[preset].read_text(encoding="utf-8")))
    for page, count in ((ROOT / "README.md", 3), (ROOT / "docs/performance.md", 5)):
        rows = re.findall(rf"^\| {preset} \| \d.*\|$", page.read_text(encoding="utf-8"), re.MULTILINE)
        shown = [cell.strip() for cell in rows[0].strip("|").split("|")][3:]
        assert shown == cells[:count], page.name


def test_tables_of_the_seed_systems_are_up_to_date():
    page = seed_systems.PAGE.read_text(encoding="utf-8")
    assert page == seed_systems.with_tables(page), "run python tests/seed_systems.py"


def test_every_row_of_the_seed_systems_names_what_there_is():
    rows = seed_systems.read_rows()
    assert len(rows) == 223
    for row in rows:
        assert row.tests and (row.here or row.difference), row
        for name in row.here:
            try:
                pkgutil.resolve_name(f"minigrad.distributed.{name}")
            except (AttributeError, ImportError):
                pkgutil.resolve_name(f"minigrad.{name}")
        for file, tests in row.tests.items():
            body = house.parse(house.text(ROOT / "tests" / file)).body
            known = [node.name for node in body if isinstance(node, ast.FunctionDef)]
            for test in tests:
                assert test.startswith("test_") and fnmatch.filter(known, test), f"{file}::{test}"


def test_what_people_type_who_know_pytorch_ends_as_the_page_says(tmp_path):
    python(ROOT / "docs/idioms.py", cwd=tmp_path, returncode=0)
    python(ROOT / "docs/torch_table.py", cwd=tmp_path, returncode=0)
    counts = re.search(r"^Of (\d+) idioms (\d+) work", (ROOT / "docs/from_pytorch.md").read_text(), re.MULTILINE)
    assert counts and int(counts[1]) >= 150 and int(counts[2]) >= 115


def test_a_block_that_fails_or_lies_is_caught():
    for source in [
        "raise ValueError",
        "1 + 1  # -> 3",
        "x = [1, 2]  # -> [1, 3]",
        "print('a', 1)  # -> a 2",
        "for i in range(2):\n    print(i)  # -> 0",
        "import math  # -> something",
        "# -> nothing gives this\nx = 1",
    ]:
        raises((AssertionError, ValueError), "", code_blocks.run, source)


def test_a_true_block_passes(tmp_path):
    code_blocks.run("x = [1,\n     2]  # -> [1, 2]\nprint('a', *x)  # -> a 1 2\nx  # -> [1, 2]\nlen(x)  # free comment")
    file = tmp_path / "doc.md"
    file.write_text(
        "text\n\n```python\nx = 1\n```\n\n- item\n  ```python\n  y = 2\n  ```\n"
        "```python no-run\nz\n```\n```sh\nls\n```\n"
    )
    assert code_blocks.python_blocks(file) == [(4, "python", "x = 1\n"), (9, "python", "y = 2\n")]


def broken_links(path: Path, root: Path) -> list[str]:
    """Relative links of a Markdown file to a file, or to a heading, that does not exist."""
    text = code_blocks.FENCE.sub("", path.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`\n]*`", "`code`", text)
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", text)
    targets += re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    targets += re.findall(r"(?:href|src)=\"([^\"]+)\"", text)
    broken = []
    for target in targets:
        if re.match(r"[a-z][a-z0-9+.-]*:", target, re.IGNORECASE):
            continue
        name, _, anchor = target.partition("#")
        file = (root / name.lstrip("/") if name.startswith("/") else path.parent / name) if name else path
        if not file.exists() or not file.resolve().is_relative_to(root.resolve()):
            broken.append(f"{path.name}: {target} does not exist")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            broken.append(f"{path.name}: {target} names no heading")
    return broken


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes of a file's headings."""
    found: set[str] = set()
    text = code_blocks.FENCE.sub("", path.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = base = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = 0
        while slug in found:
            count += 1
            slug = f"{base}-{count}"
        found.add(slug)
    return found


def test_relative_links_lead_somewhere():
    broken = [line for path in documents() for line in broken_links(path, ROOT)]
    assert not broken, "\n".join(broken)


def test_an_injected_broken_link_is_caught(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` title\n[a](page.md#a-b-title) [b](https://example.org/x) ![c](sub/)\n```\n[no](link)\n```\n"
    )
    (tmp_path / "sub").mkdir()
    assert broken_links(page, tmp_path) == []
    for link in ("[x](missing.md)", "[x](#no-such)", "[x]: missing.md", '<img src="no.png">', "[x](../../etc/passwd)"):
        page.write_text(f"# Title\n{link}\n")
        assert broken_links(page, tmp_path), link


EXAMPLE_FILES = {"train", "script", "program", "mine", "isru", "test_isru", "chapter_NN", "check_NN", "_tensor_str"}


def test_sources_and_pages_name_files_that_there_are():
    """A file that was moved or renamed is renamed in the docstrings, comments and pages that name it, too."""
    there = {path.stem for path in tree() if path.suffix == ".py"} | EXAMPLE_FILES
    for path in [*house.files(*house.SOURCES, "examples", "benchmarks"), *documents()]:
        named = set(re.findall(r"[\s`/(](\w+)\.py\b", path.read_text(encoding="utf-8")))
        assert path.name == "CHANGELOG.md" or named <= there, f"{path.relative_to(ROOT)}: {named - there}"


def test_ci_runs_the_commands_of_the_readme():
    shell = "\n".join(block.source for block in code_blocks.blocks(ROOT / "README.md") if block.info in ("bash", "sh"))
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert re.search(r'^pip install -e "\.\[test\]" && pytest$', shell, re.MULTILINE)
    assert re.search(r"^pip install -e \. && python examples/train_char_gpt.py$", shell, re.MULTILINE)
    assert re.search(r'^pip install .*-e "\.\[test\b.*\]"$', script, re.MULTILINE)
    assert re.search(r"^check pytest\b(?! tests)", script, re.MULTILINE)
    assert "bash .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")


# Paths of one machine -------------------------------------------------------------------------------------------------

HOME_OR_WORKPLACE = re.compile(r"(?<![\w./:-])(/[h]ome/\w|/[U]sers/\w|/[r]oot/|/[w]ork/|/[t]mp/\w/|[A-Z]:\\[U]sers)")
SKIPPED_FOLDERS = {".git", "build", "dist"}


def tree():
    """The files of the project: those that git does not ignore, or all where git is not at hand."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        paths = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.SubprocessError):
        folders = [path for path in ROOT.iterdir() if path.name not in SKIPPED_FOLDERS and "venv" not in path.name]
        paths = [path for folder in folders for path in (folder, *folder.rglob("*")) if "__pycache__" not in path.parts]
    yield from filter(Path.is_file, paths)


def machine_paths(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if HOME_OR_WORKPLACE.search(line)]


def test_no_file_names_a_path_of_somebodys_machine():
    found = []
    for path in tree():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {line[:150]}" for line in machine_paths(text)]
    assert not found, "\n".join(found)


def test_an_injected_machine_path_is_caught():
    for name in ("home", "Users", "root", "work"):
        assert machine_paths(f"data = '/{name}/ann/data'")
    assert not machine_paths("see https://example.org/home/x, docs/work/x, ~/.cache/minigrad and /proc/cpuinfo")
