"""The disk cache of compiled kernels: keyed by the sources, private, indifferent to damage, bounded."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from in_threads import good, outcomes
from processes import python

from minigrad.cpu_kernels.toolbox import jit

SCRIPT = """
import numpy as np
from minigrad.cpu_kernels.toolbox import jit
from minigrad.cpu_kernels.grad_norm import sum_of_squares
print(jit.CACHE_DIRECTORY)
print(sum_of_squares([np.full(3, 2.0)]))
"""


def run(root: Path, **environment: str):
    """With one thread, so that no helper compiles what is not asked for."""
    variables = {"MINIGRAD_CACHE_DIR": str(root), "NUMBA_NUM_THREADS": "1", **environment}
    return python("-c", SCRIPT, env=variables, returncode=0)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kernels")
    run(root)
    return root


def entries(root: Path) -> dict[Path, int]:
    """The files of compiled kernels with their times of change."""
    return {path: path.stat().st_mtime_ns for path in root.rglob("*.nb[ci]") if path.is_file()}


def test_kernels_are_kept_in_a_private_folder_and_found_again(warm: Path) -> None:
    before = entries(warm)
    assert before
    (folder,) = warm.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert run(warm).stdout.splitlines()[1] == "12.0"
    assert entries(warm) == before


DAMAGES = {
    "empty": lambda content: b"",
    "cut off": lambda content: content[: len(content) // 2],
    "garbage": lambda content: b"no pickle at all",
    "a page of zeros": lambda content: content[:8192] + bytes(len(content[8192:12288])) + content[12288:],
    "one bit": lambda content: content[:-200] + bytes(byte ^ 1 for byte in content[-200:-199]) + content[-199:],
    "a named pipe": os.mkfifo,
    "a folder": lambda path: (path / "within").mkdir(parents=True),
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_entries_are_compiled_again(warm: Path, damage) -> None:
    for path in [*entries(warm), *warm.rglob("locks")]:
        content = path.read_bytes()
        if damage in (DAMAGES["a named pipe"], DAMAGES["a folder"]):
            path.unlink()
            damage(path)
        else:
            path.write_bytes(damage(content))
    result = run(warm)
    assert result.stdout.splitlines()[1] == "12.0"
    assert any(path.stat().st_size > 1000 for path in entries(warm))


def give_away(folder: Path) -> None:
    if not hasattr(os, "getuid") or os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(folder, 12345, -1)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("change", [lambda folder: folder.chmod(0o777), give_away], ids=["writable", "another's"])
def test_a_folder_that_others_may_change_is_not_used(warm: Path, change) -> None:
    (folder,) = warm.iterdir()
    owner = folder.stat().st_uid
    change(folder)
    try:
        result = run(warm)
    finally:
        if folder.stat().st_uid != owner:
            os.chown(folder, owner, -1)
        folder.chmod(0o700)
    assert result.stdout.splitlines()[1] == "12.0"
    assert str(folder) not in result.stdout
    assert "owned or writable by somebody else" in result.stderr


@pytest.mark.long
def test_a_root_in_which_others_may_rename_is_not_used(warm: Path) -> None:
    try:
        warm.chmod(0o777)
        assert f"everybody may rename what is in {warm}" in run(warm).stderr
        warm.chmod(0o1777)  # as /tmp is
        assert run(warm).stderr == ""
    finally:
        warm.chmod(0o700)


@pytest.mark.long
def test_an_empty_variable_is_as_none(tmp_path: Path) -> None:
    result = run(Path(), MINIGRAD_CACHE_DIR="", XDG_CACHE_HOME=str(tmp_path))
    assert result.stdout.splitlines()[0].startswith(str(tmp_path / "minigrad"))


@pytest.mark.long
def test_a_root_that_is_no_folder_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    result = run(file / "below")
    temporary, value = result.stdout.splitlines()
    assert value == "12.0"
    assert "the kernel cache cannot be used" in result.stderr
    assert "minigrad-kernels-" in temporary
    assert not Path(temporary).exists()


def test_folders_of_old_versions_are_removed_after_a_month(tmp_path: Path) -> None:
    for name, days in (("cpu-old", 40), ("cpu-recent", 5), ("other", 90)):
        (tmp_path / name).mkdir()
        then = time.time() - days * 86400
        os.utime(tmp_path / name, (then, then))
    jit._remove_old(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpu-recent", "other"]


@pytest.mark.long
def test_processes_that_start_together_with_an_empty_cache(tmp_path: Path) -> None:
    """Each compiles or finds a kernel that another has written; none fails, warns or leaves parts of files."""
    for result in good([*outcomes(range(4), lambda _: run(tmp_path)).values()]):
        assert result.stderr == ""
        assert result.stdout.splitlines()[1] == "12.0"
    (folder,) = tmp_path.iterdir()
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    assert [name for name in names if not name.endswith((".nbi", ".nbc"))] == ["locks"]
    before = entries(tmp_path)
    assert before and run(tmp_path).stdout.splitlines()[1] == "12.0"
    assert entries(tmp_path) == before  # whole: nothing compiled again


@jit.kernel
def first_times(x, factor):
    return x[0] * factor


@jit.kernel
def with_constants(x, factor):
    return first_times(x, 2) + first_times(x, factor=3) + first_times(x, factor)


def test_a_kernel_that_others_call_with_constants_is_compiled_once() -> None:
    assert with_constants(np.ones(1), 4) == 9
    assert len(first_times.signatures) <= 1  # none where the cache has its caller
