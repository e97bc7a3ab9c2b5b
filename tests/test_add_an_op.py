"""docs/add_an_op.md, followed to the letter in a copy of the tree, ends with green tests on the CPU and on CUDA."""

import re
import shutil
from pathlib import Path

import code_blocks
import pytest
from processes import python

ROOT = Path(__file__).resolve().parents[1]


def follow(page: Path, tree: Path) -> list[Path]:
    """Write the blocks marked ``new=PATH`` and ``end=PATH``, and change what those marked ``diff PATH`` show."""
    changed = []
    for block in code_blocks.blocks(page):
        if found := re.fullmatch(r"python no-run (new|end)=(\S+)", block.info):
            path = tree / found[2]
            before = path.read_text(encoding="utf-8") + "\n\n" if found[1] == "end" else ""
            assert found[1] == "end" or not path.exists()
            path.write_text(before + block.source, encoding="utf-8")
        elif found := re.fullmatch(r"diff (\S+)", block.info):
            path = tree / found[1]
            text, lines = path.read_text(encoding="utf-8"), block.source.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
            assert text.count(old) == 1, f"{page.name}:{block.line}: {path.name} has not once:\n{old}"
            path.write_text(text.replace(old, new), encoding="utf-8")
        else:
            continue
        changed.append(path)
    return changed


@pytest.mark.long
def test_an_operation_that_is_added_by_the_page_passes_all_contracts(tmp_path):
    for folder in ("minigrad", "cuda_kernels", "distributed", "tests", "examples", "benchmarks", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    changed = follow(ROOT / "docs/add_an_op.md", tmp_path)
    assert len(changed) == 10
    for part in ("cuda_kernels", "distributed"):  # where the names of the packages say that they are
        (tmp_path / "minigrad" / part).symlink_to(tmp_path / part)
    places = {"PYTHONPATH": str(tmp_path), "MINIGRAD_CACHE_DIR": str(tmp_path / "cache")}
    tests = "tests/test_contracts.py", "tests/test_typing.py", "tests/ops/test_isru.py"
    for command in (
        ["-c", "import minigrad; print(minigrad.nn.functional.isru(minigrad.tensor([0.75])).item())"],
        ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests],
        ["-m", "ruff", "check", *changed],
    ):
        done = python(*command, cwd=tmp_path, env={**places, "NUMBA_ENABLE_CUDASIM": "1"}, timeout=500, returncode=0)
        if "-c" in command:
            assert float(done.stdout) == 0.6000000238418579
