"""An exercise, and the comparisons with which its check speaks to the learner."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Check: TypeAlias = Callable[[Any], None]


class Wrong(Exception):  # noqa: N818
    """What a check found: an answer, and no error of ours. The text is for the learner."""


@dataclass(frozen=True)
class Exercise:
    """A part of a chapter's file that the learner writes.

    Attributes:
        number: ``"2.3"``, chapter and place.
        names: the functions and methods whose bodies the learner writes, such as ``"Mul.backward"``.
        cases: calls and what they give, the smallest input first: ``"f(2) -> 4"``, or an error's type, and a note
            behind ``  #``. A list of numbers may be given as an array.
        check: what no case can say: takes the learner's module, and raises ``Wrong`` with the smallest input that shows
            a mistake.
        library: where the library has the same thing, as ``"minigrad.ops.reduce:Sum"``, and a note behind ``  #``.
        hints: each says more than the one before.
        wrong: typical mistakes, as edits of the solution: the old text, the new text, words that the answer must hold.
            Words that begin with ``this is`` are added to the answer where the check says the same of a learner's file.
    """

    number: str
    names: Sequence[str]
    cases: Sequence[str]
    check: Check
    library: str
    hints: Sequence[str]
    wrong: Sequence[tuple[str, str, str]]

    def examine(self, module: Any) -> None:
        """Check what a module has under the names of the exercise. Raises ``Wrong``."""
        for name in self.names:
            found = module
            for word in name.split("."):
                found = getattr(found, word, None)
            require(found, f"the file has no `{name}`: was it renamed, or deleted?")
        for case in self.cases:
            meet({**vars(module)}, *case.split(" -> "))
        self.check(module)


def read(text: str, checks: ModuleType) -> list[Exercise]:
    """The exercises that ``NN_exercises.txt`` declares, with the functions of ``check_NN.py``."""
    found = []
    for block in re.split(r"^exercise ", text, flags=re.MULTILINE)[1:]:
        (number, names), *fields = [line.split(": ", 1) for line in block.splitlines() if line]
        of = {kind: [value for name, value in fields if name == kind] for kind in ("library", "case", "hint", "wrong")}
        check = getattr(checks, f"exercise_{number.partition('.')[2]}", lambda module: None)
        edits = [tuple(text.replace("\\n", "\n").split(" => ")) for text in of["wrong"]]
        found.append(Exercise(number, names.split(", "), of["case"], check, "".join(of["library"]), of["hint"], edits))
    return found


def show(value: Any, digits: int = 4) -> str:
    """A value as the learner sees it in an answer, on one line if it is small."""
    if isinstance(value, np.ndarray) and value.size > 40:
        return f"an array of shape {value.shape}: {show(value.ravel()[:6], digits)[:-1]} ...]"
    if isinstance(value, (np.ndarray, np.generic, float)):
        return np.array2string(np.asarray(value), precision=digits, separator=", ", suppress_small=True).replace(
            "\n", ""
        )
    return repr(value)


def agree(got: Any, want: Any, tolerance: float) -> bool:
    """Whether two values are equal: arrays and floats within the tolerance, relative to the largest number wanted."""
    if not isinstance(want, (np.ndarray, np.generic, float)):
        return bool(type(got) is type(want) and got == want)
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape or got.dtype.kind not in "fiub" or narrower(got, want):
        return False
    scale = float(np.max(np.abs(want), initial=1.0, where=np.isfinite(want)))
    return bool(np.allclose(got, want, rtol=0, atol=tolerance * scale))


def narrower(got: Array, want: Array) -> bool:
    """Whether floats have fewer bytes than are wanted: float32 in place of float64."""
    return bool(got.dtype.kind == want.dtype.kind == "f" and got.dtype.itemsize < want.dtype.itemsize)


def same(what: str, got: Any, want: Any, tolerance: float = 1e-6) -> None:
    """Raise ``Wrong`` unless ``got`` is ``want``."""
    if agree(got, want, tolerance):
        return
    digits = 4 if show(want) != show(got) else 10
    lines = [what, f"expected {show(want, digits)}", f"got      {show(got, digits)}"]
    if got is None:
        lines.append("is there a `return`?")
    elif isinstance(want, np.ndarray) and not isinstance(got, str) and getattr(got, "shape", ()) != want.shape:
        lines.append(f"the shape is {getattr(got, 'shape', ())}, expected {want.shape}")
    elif isinstance(want, np.ndarray) and narrower(np.asarray(got), want):
        lines.append(f"the dtype is {got.dtype}, expected {want.dtype}")
    elif type(got) is not type(want) and np.array_equal(got, want):
        lines.append(f"the type is {type(got).__name__}, expected {type(want).__name__}")
    raise Wrong("\n".join(lines))


def require(good: Any, message: str) -> None:
    """Raise ``Wrong`` with the message unless ``good``."""
    if not good:
        raise Wrong(message)


def meet(names: dict[str, Any], call: str, want: str) -> None:
    """Raise ``Wrong`` unless a case is met: what the call gives, with the learner's names."""
    want, _, note = want.partition("  # ")
    what, wanted = f"{call}: {note}" if note else call, eval(want)
    if isinstance(wanted, type):
        refuses(what, wanted, eval, call, names)
    else:
        got = attempt(eval, call, names, caught=(ValueError, ZeroDivisionError))
        if isinstance(wanted, list) and not isinstance(wanted[0], list):
            wanted, got = np.array(wanted), np.array(got) if isinstance(got, (list, tuple)) else got
        same(what, got, wanted)


def refuses(what: str, error: type[Exception], call: Callable[..., Any], *arguments: Any) -> None:
    """Raise ``Wrong`` unless the call raises the error."""
    got = attempt(call, *arguments)
    require(str(got).startswith(error.__name__), f"{what}\nexpected {error.__name__}\ngot      {show(got)}")


ERRORS = (IndexError, TypeError, ValueError, ZeroDivisionError)


def attempt(call: Callable[..., Any], *arguments: Any, caught: tuple[type[Exception], ...] = ERRORS) -> Any:
    """What a call returns, or the error as text: to be compared with what is wanted."""
    try:
        return call(*arguments)
    except caught as error:
        return f"{type(error).__name__}: {error}"


def slopes(function: Callable[..., Array], inputs: Sequence[Array], dz: Array, step: float = 1e-6) -> list[Array]:
    """The gradients of ``sum(function(*inputs) * dz)`` by finite differences: what a correct backward returns."""
    found = []
    for k, x in enumerate(inputs):
        slope = np.zeros(x.shape)
        for place in np.ndindex(*x.shape):
            ends = []
            for h in (step, -step):
                moved = x.astype(np.float64)
                moved[place] += h
                ends.append(np.sum(function(*inputs[:k], moved, *inputs[k + 1 :]) * dz))
            slope[place] = (ends[0] - ends[1]) / (2 * step)
        found.append(slope)
    return found


def check_backward(what: str, make: Callable[[], Any], inputs: Sequence[Array]) -> None:
    """Compare an operation's ``backward`` with finite differences of its ``forward``."""
    op = make()
    kept = [x.copy() for x in inputs]
    z = np.array(op.forward(*inputs))
    dz = np.cos(np.arange(1.0, z.size + 1)).reshape(z.shape)
    given = dz.copy()
    got = op.backward(given)
    unchanged = all(np.array_equal(a, b) for a, b in zip([given, *inputs], [dz, *kept]))
    require(unchanged, f"{what}\nforward or backward changed an array that it was given; others use it, too")
    got, again = (tuple(x) if isinstance(x, (tuple, list)) else (x,) for x in (got, op.backward(given)))
    changed = f"{what}\nbackward called a second time gives other gradients: it changed what forward had kept"
    require(all(map(np.array_equal, got, again)), changed)
    require(len(got) == len(inputs), f"{what}\nbackward returned {len(got)} gradients for {len(inputs)} inputs")
    wanted = slopes(lambda *arrays: make().forward(*arrays), inputs, dz)
    for k, (mine, want) in enumerate(zip(got, wanted)):
        name = f"{what}\ngradient of input {k + 1} of {len(inputs)}, for a gradient of the result of {show(dz)}"
        same(name, mine, want, tolerance=1e-5)
