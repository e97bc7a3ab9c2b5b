"""The line of the user's program in the messages of errors.

A traceback through a library ends far from the mistake. ``raise bad_value(...)`` and ``raise located(error)`` add the
place of the call that led into minigrad: the first frame outside of the package. The stack is read only when there is
something to raise. The checks of numbers and options that many arguments share stand here too.
"""

import functools
import importlib
import linecache
import math
import numbers
import os
import sys
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

E = TypeVar("E", bound=Exception)
OURS = (__name__.partition(".")[0], "functools", "contextlib", "threading", "concurrent")
"""The latter four call us back: between our own frames, or in a thread that has no line of the user's."""


def of_extra(extra: str, module: str, need: str) -> Any:
    """The module of an optional package. ModuleNotFoundError: ``need``, which is a sentence, and what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = f'install the extra `{extra}`: pip install "minigrad-cuda[{extra}]"'
        raise ModuleNotFoundError(f"{need}; {install}") from error


def user_line(hide: bool = False) -> str | None:
    """``file:line: source`` of the call that led into minigrad, or None where there is none.

    ``hide``: IPython and pytest leave the frames up to that call out when they show the error that is raised now.
    """
    frame = sys._getframe(1)
    while _is_ours(frame):
        if hide:
            frame.f_locals["__tracebackhide__"] = True
        if frame.f_back is None:
            return None
        frame = frame.f_back
    name, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(name, line, frame.f_globals).strip()
    inside = name.startswith(os.getcwd() + os.sep)
    return f"{os.path.relpath(name) if inside else name}:{line}" + (f": {source}" if source else "")


def layer() -> str:
    """``in h.3.mlp of GPT2``: the innermost module that is being called, by its path in the outermost; or nothing."""
    frame, called = sys._getframe(1), []
    while frame.f_back is not None:
        if frame.f_code.co_name == "__call__" and frame.f_globals.get("__name__") == "minigrad.nn.module":
            called.append(frame.f_locals["self"])
        frame = frame.f_back
    paths = [path for path, module in called[-1].named_modules() if module is called[0]] if called else []
    return f"\n  in {paths[0]} of {type(called[-1]).__name__}" if paths and paths[0] else ""


def operation() -> str:
    """``name: `` of the public function or method that asked for a check, or nothing where there is none."""
    frame = sys._getframe(1)
    module = frame.f_globals["__name__"]  # of the check itself
    while _is_ours(frame) and frame.f_back is not None:
        name = frame.f_code.co_name
        if frame.f_globals["__name__"] != module and not name.startswith(("_", "<", "forward", "apply", "combine")):
            return f"{name}: "
        frame = frame.f_back
    return ""


def located(error: E) -> E:
    """The error, its message followed by the line of the user's call."""
    if isinstance(error, LocatedError):
        return error
    line = user_line(hide=True)
    if line is not None and error.args and isinstance(error.args[0], str):
        place = f"\n  at {line}"
        message = error.args[0].replace(place, "")  # it may quote an error that has its place
        within = "" if "\n  in " in message else layer()
        error.args = (message + within + place, *error.args[1:])
    return error


def without_ours(error: BaseException) -> None:
    """Cut hidden frames off the end of the tracebacks of an error and of those that led to it."""
    last = step = error.__traceback__
    while step is not None:
        if "__tracebackhide__" not in step.tb_frame.f_locals:
            last = step
        step = step.tb_next
    if last is not None:
        last.tb_next = None
    if before := error.__cause__ or error.__context__:
        without_ours(before)


def _is_ours(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in OURS


def bad_value(message: str) -> ValueError:
    """A ValueError with the line of the user's call."""
    return located(ValueError(message))


def bad_type(message: str) -> TypeError:
    """A TypeError with the line of the user's call."""
    return located(TypeError(message))


def bad_index(message: str) -> IndexError:
    """An IndexError with the line of the user's call."""
    return located(IndexError(message))


def bad_state(message: str) -> RuntimeError:
    """A RuntimeError with the line of the user's call."""
    return located(RuntimeError(message))


def check_int(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """``value`` as an int. ValueError unless it is an integer from ``least`` to ``most``; True and False are none."""
    integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not integer or (least is not None and value < least) or (most is not None and value > most):
        bounds = "" if least is None else f" >= {least}" if most is None else f" from {least} to {most}"
        raise bad_value(f"{name} is {value!r}, expected an integer{bounds}")
    return int(value)


def check_float(name: str, value: Any, least: float = 0.0, below: float = math.inf) -> float:
    """``value`` as a float. ValueError unless it is a number with least <= value < below; infinity and NaN are none."""
    floats = isinstance(value, numbers.Real) and not isinstance(value, bool)
    real = abs(value) < 2**1023 if type(value) is int else floats  # larger integers are no floats
    if not real or not -math.inf < float(value) or not least <= float(value) < below:
        wanted = "a finite number" if below == math.inf else f"a number below {below:g} and"
        bound = "" if least == -math.inf else f" >= {least:g}"
        raise bad_value(f"{name} is {value!r}, expected {wanted}{bound}")
    return float(value)


NonNegativeInt: TypeAlias = Annotated[int, functools.partial(check_int, least=0)]
PositiveInt: TypeAlias = Annotated[int, functools.partial(check_int, least=1)]
NonNegative: TypeAlias = Annotated[float, check_float]  # and finite


def check_fields(record: Any, prefix: str = "") -> None:
    """Check a dataclass by what the types of its fields are annotated with, such as ``PositiveInt``. A field whose type
    is a class of ours is checked by that class. None passes where a type allows it; ``prefix`` begins the fields' names
    in errors.
    """
    for name, optional, checks in _annotated(record.__class__):
        value = getattr(record, name)
        if value is not None or not optional:
            for check in checks:
                check(prefix + name, value)


@functools.cache
def _annotated(kind: type) -> list[tuple[str, bool, list[Callable[[str, Any], Any]]]]:
    """Each field's name, whether it may be None, and its checks."""
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        checks = [check for part in parts for check in getattr(part, "__metadata__", ())]
        kinds = [part for part in parts if part is not type(None)]
        if len(kinds) == 1 and isinstance(kinds[0], type) and kinds[0].__module__.startswith(OURS[0]):
            checks.append(functools.partial(check_instance, kind=kinds[0]))
        found.append((name, type(None) in parts, checks))
    return found


def check_instance(name: str, value: Any, kind: type) -> None:
    """TypeError unless ``value`` is an object of this class. Its ``example`` is shown, if it has one."""
    if not isinstance(value, kind):
        wanted = f"one such as {kind.example}" if hasattr(kind, "example") else f"a {kind.__name__}"
        raise bad_type(f"{name} is {value!r}, expected {wanted}")


def check_bool(name: str, value: Any) -> bool:
    """``value``. ValueError unless it is True or False."""
    if not isinstance(value, bool):
        raise bad_value(f"{name} is {value!r}, expected True or False")
    return value


def check_option(name: str, value: Any, options: Iterable[Any]) -> None:
    """ValueError, with a list of the options, unless ``value`` is one of them."""
    options = list(options)
    if value not in options:
        raise bad_value(f"{name} is {value!r}, expected one of {', '.join(map(repr, options))}")


def check_choice(name: str, option: str, value: Any, known: tuple[Any, ...]) -> None:
    """ValueError unless ``value`` is one of ``known``."""
    expect(value in known, f"{name}: {option}", value, f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}")


def expect(good: bool, name: str, value: Any, wanted: str) -> None:
    """ValueError, with the name of an argument, its value and what was expected, unless ``good``."""
    if not good:
        shown = repr(value)
        raise bad_value(f"{name}={shown if len(shown) < 300 else shown[:300] + ' ...'}; expected {wanted}")


class LocatedError(ValueError):
    """A ValueError whose text ends with the line of the user's call, wherever in minigrad it is raised.

    Attributes:
        args: the message alone.
        place: what follows it in the text: a new line, and ``at file:line: source``; or nothing.
    """

    def __init__(self, message: str) -> None:
        line = user_line(hide=True)
        self.place: str = f"\n  at {line}" if line else ""
        super().__init__(message.replace(self.place, "") if line else message)  # it may quote an error of this line

    def __str__(self) -> str:
        return super().__str__() + self.place
