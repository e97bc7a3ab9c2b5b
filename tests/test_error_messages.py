"""What the errors of common mistakes say, compared with ``golden/errors.txt``.

There are the lines of code of each mistake, below its name, and what they raise; of a subject several mistakes, one
after the other. To add one, write name and code, then ``python tests/test_error_messages.py --write``, which fills in
the messages; read the difference before you keep it.
"""

import contextlib
import linecache
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from processes import python
from refusals import raises

import minigrad as mg
from minigrad import hints, nn
from minigrad.nn import functional as F

GOLDEN = Path(__file__).with_name("golden") / "errors.txt"
BEFORE = "before each of them"  # code that raises nothing
Steps = list[tuple[str, str]]  # code, and the message that it ends with
STEP = re.compile(r"((?:>>> ?.*\n)+)((?:(?!>>>).*\n)*)")


def messages_of(steps: Steps, folder: Path) -> Steps:
    """The same steps with type and message of what they raise, without what differs from run to run."""
    names = {"folder": folder}
    exec(MISTAKES[BEFORE][0][0], names)
    found = []
    for i, (code, _) in enumerate(steps):
        linecache.cache[f"<typed {i}>"] = len(code), None, code.splitlines(keepends=True), f"<typed {i}>"
        try:
            exec(compile(code, f"<typed {i}>", "exec"), names)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        else:
            raise AssertionError(f"nothing was raised by\n{code}")
        text = re.sub(r"at <typed \d+>:\d+", "at FILE:LINE", text.replace(str(folder), "FOLDER"))
        found.append((code, re.sub("0{40,}", "0...", re.sub(r"\b(tensor|at) (0x\w+|\d+)\b", r"\1 ID", text))))
    return found


def read() -> dict[str, Steps]:
    """The golden file: by the name of a subject, its mistakes."""
    found = {}
    for entry in re.split(r"\n\n(?=\S)", GOLDEN.read_text(encoding="utf-8").rstrip("\n")):
        name, _, lines = entry.replace("\n    ", "\n").partition("\n")
        steps = STEP.findall(lines + "\n")
        found[name] = [(re.sub("(?m)^>>> ?", "", code), text.rstrip("\n")) for code, text in steps]
    return found


def render(mistakes: dict[str, Steps]) -> str:
    entries = []
    for name, steps in mistakes.items():
        lines = [line for code, text in steps for line in [*typed(code), *text.splitlines()]]
        entries.append("\n    ".join([name, *lines]) + "\n")
    return "\n".join(entries)


def typed(code: str) -> list[str]:
    return [f">>> {line}".rstrip() for line in code.splitlines()]


MISTAKES = read()


@pytest.mark.parametrize("name", [*MISTAKES][1:])
def test_message(name: str, tmp_path: Path) -> None:
    assert messages_of(MISTAKES[name], tmp_path) == MISTAKES[name]


def test_the_golden_file_is_read_as_it_is_written() -> None:
    assert render(MISTAKES) == GOLDEN.read_text(encoding="utf-8") and len(MISTAKES) >= 50


def test_the_line_is_that_of_the_users_call() -> None:
    x = mg.ones(2, 3)
    for wrong in (lambda: x @ x, lambda: nn.Linear(4, 2)(x), lambda: x.reshape(5)):
        caught = raises(ValueError, "", wrong)
        code = wrong.__code__
        assert f"\n  at {Path(code.co_filename).name}:{code.co_firstlineno}: for wrong in (lambda" in re.sub(
            r"at \S*/", "at ", str(caught)
        )
    deep = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match="in 1.0 of Sequential") as shown:
        deep(mg.ones(1, 2))
    # Of our frames, pytest shows but the last, in which it is raised.
    assert len(shown.traceback) > 6 and [entry.name for entry in shown.traceback.filter(shown)][1:] == []


def test_a_shell_says_what_to_use_in_an_error_of_pythons_own() -> None:
    wrong = "minigrad.zeros(2).data.zero_()"
    said = "no attribute 'zero_'; p.data is the NumPy array; use with minigrad.no_grad(): p.zero_(...)"
    assert said in python("-c", f"import minigrad; {wrong}").stderr
    shown = python("-c", "import minigrad; minigrad.ones(2, 2).view(shape=(4,))").stderr
    assert "'shape'; give the sizes by position\n" in shown
    cells = ["import minigrad; x = minigrad.ones(2, 3)", wrong, "x @ x", "minigrad.nn.Linear(2, 3, 4, 5)"]
    cells.append("try: x @ x\nexcept ValueError as e: raise KeyError from e")
    shell = "from IPython.core import interactiveshell as i; shell = i.InteractiveShell.instance(colors='NoColor')"
    run = python("-c", f"{shell}\nfor cell in {cells}: shell.run_cell(cell); print('CELL')")
    assert run.stderr == "" and said in run.stdout
    assert "File " not in run.stdout and "hidden" not in run.stdout  # of the frames, the cell's are shown alone
    parts = run.stdout.split("CELL")
    assert [part.count("Traceback") for part in parts] == [0, 1, 1, 1, 2, 0] and "inner dimensions" in parts[2]


def test_code_without_source_has_a_line_too() -> None:
    namespace = {"x": mg.ones(2, 3), "__name__": "__main__"}
    with pytest.raises(ValueError, match=r"\n  at <made up>:2$"):
        exec(compile("y = x\nx @ y", "<made up>", "exec"), namespace)


def test_anomaly_mode_ends_with_its_block() -> None:
    x = mg.zeros(2, requires_grad=True)
    with contextlib.suppress(KeyError), mg.detect_anomaly():
        raise KeyError
    loss = (x / x).sum()
    assert np.isnan(loss.backward(retain_graph=True)[x].numpy()).all()
    with mg.detect_anomaly(), pytest.raises(RuntimeError, match="Div.backward returned NaN in the gradient of input"):
        loss.backward()


def write() -> None:
    written = {BEFORE: MISTAKES[BEFORE]}
    for name in [*MISTAKES][1:]:
        with tempfile.TemporaryDirectory() as folder:
            written[name] = messages_of(MISTAKES[name], Path(folder))
    GOLDEN.write_text(render(written), encoding="utf-8")


DIMS = {
    "amax": lambda x: x.amax(5),
    "transpose": lambda x: x.transpose(0, 5),
    "unsqueeze": lambda x: mg.unsqueeze(x, 5),
    "stack": lambda x: mg.stack([x], 5),
    "softmax": lambda x: nn.Softmax(5)(x),
    "glu": lambda x: F.glu(x, 5),
    "cummax": lambda x: x.cummax(5),
}


@pytest.mark.parametrize("name", DIMS)
def test_a_wrong_dim_names_the_operation(name: str) -> None:
    raises(IndexError, rf"^{name}: dim 5 is out of range for a tensor of ", DIMS[name], mg.ones(2, 3))
    # Within the library's own frames, too.
    raises(IndexError, rf"^{name}: dim 5 ", lambda: mg.checkpoint(DIMS[name], mg.ones(2, 3)))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    write()


def test_numpy_writes_into_no_tensor_and_a_function_of_the_programs_own_gets_no_hint():
    def where(cond, a): ...

    x = mg.ones(2)
    assert np.ones(2).sum(where=x > 0) == 2 and type(np.add(x, x)) is np.ndarray
    for call in (lambda: np.add(np.ones(2), 1, out=x), lambda: np.add.at(x, 0, 1)):
        raises(TypeError, "write into the array", call)
    with pytest.raises(TypeError) as told:
        where(1)
    hints.answer(told.value)
    assert str(told.value).endswith("argument: 'a'")
