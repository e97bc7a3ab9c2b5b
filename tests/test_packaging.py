"""The wheel installs one import name, `minigrad`, and so lives beside Dask's `distributed`."""

import shutil
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from processes import python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = {
    "minigrad": "minigrad",
    "cuda_kernels": "minigrad/cuda_kernels",
    "distributed": "minigrad/distributed",
    "examples": "minigrad/examples",
}
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc")


def pip(*arguments: str):
    return python("-m", "pip", "--disable-pip-version-check", "--no-input", *arguments)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy: setuptools leaves a build folder behind, from which a later wheel takes deleted modules."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=IGNORED)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    built = pip("wheel", str(source), "--no-deps", "--no-build-isolation", "--wheel-dir", str(output))
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = output.glob("minigrad_cuda-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("site")
    result = pip("install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    assert result.returncode == 0, result.stdout + result.stderr
    return target


def import_from(folder: Path, code: str) -> list[str]:
    """Run code that sees the folder and the base dependencies, but not this checkout: -P and -S, then their folder."""
    numpy_home = Path(__import__("numpy").__file__).parents[1]
    program = f"import sys; sys.path[:0] = [{str(folder)!r}]; sys.path.append({str(numpy_home)!r})\n{code}"
    run = python("-S", "-c", program, cwd=folder, env={"PYTHONPATH": ""}, returncode=0)
    return run.stdout.split()


def test_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    found = [(name, path, ROOT / folder) for folder, name in FOLDERS.items() for path in (ROOT / folder).rglob("*")]
    files = [row for row in found if row[1].is_file() and "__pycache__" not in row[1].parts]
    assert names == {f"{name}/{path.relative_to(folder).as_posix()}" for name, path, folder in files}
    assert {"minigrad/py.typed", "minigrad/distributed/__init__.py", "minigrad/cuda_kernels/__init__.py"} <= names
    assert {name.split("/")[0] for name in names} == {"minigrad"}
    packages = {name.rpartition("/")[0] for name in names if name.endswith(".py")}
    assert [package for package in packages if f"{package}/__init__.py" not in names] == []


def test_wheel_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(path).decode())
        licences = [name for name in archive.namelist() if name.endswith("LICENSE")]
    assert metadata["Name"] == "minigrad-cuda"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.10"
    assert licences
    base = {text.split(">")[0] for text in metadata.get_all("Requires-Dist") if "extra ==" not in text}
    assert base == {"ml_dtypes", "numpy", "numba", "tqdm"}
    assert set(metadata.get_all("Provides-Extra")) == {
        "bpe", "browser", "cuda12", "cuda13", "docs", "inspect", "learn", "mpi", "plot", "tensorboard", "test", "yaml",
    }  # fmt: skip
    assert metadata.get_payload().strip(), "the README is the long description"


def test_version_is_stated_once():
    import minigrad

    assert minigrad.__version__ == PYPROJECT["project"]["version"]


@pytest.mark.long
def test_a_checkout_finds_its_folders_though_nothing_tells_where_they_are():
    """As after ``pip install .``: Python finds the checkout's folder first, and no editable installation helps."""
    code = (
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "import minigrad.distributed.launch, minigrad.cuda_kernels; print(minigrad.distributed.launch.__file__)"
    )
    run = python("-c", code, cwd=ROOT)
    assert run.returncode == 0 and run.stdout.strip() == str(ROOT / "distributed/launch.py"), run.stderr


def test_installed_wheel_imports(installed):
    code = (
        "import minigrad, minigrad.distributed, minigrad.cuda_kernels, importlib.util\n"
        "print(minigrad.distributed.__file__, minigrad.cuda_kernels.__file__, importlib.util.find_spec('distributed'))"
    )
    within = [installed / f"minigrad/{name}/__init__.py" for name in ("distributed", "cuda_kernels")]
    assert import_from(installed, code) == [*map(str, within), "None"]
    rows = "(env.Status('mpi', False, '', 'pip install \"minigrad-cuda[mpi]\"'),)"
    code = f"import os; from minigrad import env; rows = {{'': {rows}}}; print(env.format_report(rows).split()[-1])\n"
    code += f"os.chdir({str(ROOT)!r}); print(env.format_report(rows).split()[-1])"
    assert import_from(installed, code) == ['"minigrad-cuda[mpi]"', '".[mpi]"']


@pytest.mark.long
def test_installed_wheel_brings_the_command_and_its_scripts(wheel, installed):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        assert {*archive.read(path).split()[1:]} == {b"minigrad", b"minigrad-cuda", b"=", b"minigrad.__main__:main"}
    for command in ("train", "sample"):
        code = f"import minigrad.__main__\nsys.argv = ['minigrad', '{command}', '--help']\nminigrad.__main__.main()"
        assert import_from(installed, code)[:3] == ["usage:", "minigrad", command]
