"""What to say about a name that is not there: what takes the place of PyTorch's, or which name was meant.

``hints.txt`` has the sentences. Modules of PyTorch's whose contents are elsewhere here exist, empty, and give them.
"""

import difflib
import functools
import importlib
import inspect
import opcode
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

from . import method_help
from .errors import located, without_ours
from .modes import F


def _read() -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            table = tables[line[1:-1]] = {}
        elif line and not line.startswith("#"):
            names, _, sentence = line.partition(":")
            table.update(dict.fromkeys(names.split(", "), sentence.strip()))
    return tables


HINTS = _read()
"""By the name of a class, or of a module (``answer_for``): what takes the place of names that are not there."""
_searched: list[str] = []
"""The modules in which a name that another module lacks may be, in the order in which they were loaded."""


def missing(kind: str, name: str, names: list[str], owner: str | None = None) -> AttributeError:
    """The error for a name that ``owner`` (default: ``kind``, a key of HINTS) has not; ``names`` are those it has."""
    message = f"{owner or kind} has no attribute {name!r}"
    kinds = [kind, *HINTS["also in"].get(kind, "").split()]
    said = [HINTS[k][name] for k in kinds if name in HINTS.get(k, {})]
    hint = said[0] if said else HINTS["modules"].get(f"{kind}.{name}")
    if hint is None and not name.startswith("_"):
        places = [place for place in _searched if place != kind] if kind in sys.modules else []
        found = next((place for place in places if callable(vars(sys.modules[place]).get(name))), None)
        lower = {n.lower(): n for n in names if not n.startswith("_")}
        near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.8)
        hint = f"it is {found}.{name}" if found else f"did you mean {lower[near[0]]!r}?" if near else None
    # With a name, and None as the object, Python adds no second suggestion where it prints the error.
    error = AttributeError(f"{message}; {hint}" if hint else message, name=name)
    return error if name.startswith("_") else located(error)  # protocols ask for such names all the time


class NotInMinigrad:
    """Stands in a class for an attribute that PyTorch's has: to read or to set it is an error that says what to use.

    A ``__getattr__`` could say more, of every name. But up to Python 3.11 a class that has one reads each attribute
    four times as slowly, also those that are there. And a small operation reads ten of its tensors.
    """

    __slots__ = ("kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.kind: str = kind
        self.name: str = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        raise missing(self.kind, self.name, [], owner.__name__.removeprefix("Unread"))

    def __set__(self, instance: object, value: Any) -> None:
        raise missing(self.kind, self.name, [], type(instance).__name__)


def defined_in(module: str) -> list[str]:
    """The public functions and classes that a module defines itself: its ``__all__``."""
    found = vars(sys.modules[module]).items()
    return [name for name, value in found if name[0] != "_" and getattr(value, "__module__", None) == module]


def list_names(module: str) -> None:
    """Give a module the ``__all__`` of what it defines itself; to type checkers, that are all names anyway."""
    vars(sys.modules[module])["__all__"] = defined_in(module)


def answer_for(module: str, *, searched: bool = False) -> None:
    """Give a module a ``__getattr__``, which is called for names that it has not, and of which type checkers need not
    know. With ``searched``, other modules look here for a name that they lack. The classes of the module's answer for
    arguments, too.
    """
    if searched:
        _searched.append(module)
    for kind in vars(sys.modules[module]).values() if module != "minigrad" else ():
        with_hints(kind, module)

    def named(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        for place in HINTS["also in"].get(module, "").split():
            if hasattr(found := importlib.import_module(place), name):
                return getattr(found, name)
        found = sys.modules[module]
        error = missing(module, name, getattr(found, "__all__", [*vars(found)]), f"module {module!r}")
        frame = sys._getframe(1)
        if frame.f_code.co_code[frame.f_lasti] == opcode.opmap["IMPORT_FROM"]:
            # Which passes over an AttributeError, and then says only that the name cannot be imported.
            said = str(error).replace(f"module {module!r} has no attribute", f"{module} has no")
            raise ImportError(said, name=module)
        raise error

    vars(sys.modules[module])["__getattr__"] = named


def with_hints(value: Any, module: str) -> Any:
    """The value; if it is a class of the module's, it answers for the arguments of its constructor."""
    if isinstance(value, type) and "__init__" in vars(value) and value.__module__.startswith(module):
        value.__init__ = answering(value.__init__)  # type: ignore[misc]  # to type checkers it is the same
    return value


def make_modules() -> None:
    """Make the modules that have a line in ``[also in]`` and no file; let imports of others say what to use."""
    for name in HINTS["also in"]:
        if name not in sys.modules:
            module = sys.modules[name] = ModuleType(name, "Names that PyTorch has here; see hints.txt.")
            module.__path__ = []
            parent, _, child = name.rpartition(".")
            setattr(sys.modules[parent], child, module)
        answer_for(name)
    sys.modules["minigrad.device"].__class__ = _DeviceModule
    sys.meta_path.append(SimpleNamespace(find_spec=_find_spec))
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        answer(error)
        previous(kind, error, trace)

    sys.excepthook = hook
    if (shell := getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()) and not shell.custom_exceptions:
        shell.set_custom_exc((Exception,), _show)  # IPython asks no excepthook


def _show(shell: Any, kind: type, error: BaseException, trace: TracebackType, tb_offset: int | None = None) -> None:
    """Let IPython show an error, which hides all of our frames but the last, without that one."""
    answer(error)
    without_ours(error)
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


class _DeviceModule(ModuleType):
    """``minigrad.device``, which can be called as ``torch.device`` can."""

    def __call__(self, name: Any, index: int | None = None) -> Any:
        return self.Device(name if index is None else f"{name}:{index}")


def _find_spec(name: str, path: Any = None, target: Any = None) -> None:
    """What Python asks where it has found no module of this name."""
    if name in HINTS["modules"]:
        raise ModuleNotFoundError(f"No module named {name!r}; {HINTS['modules'][name]}", name=name)


OFTEN = re.compile(
    "_.*|embedding|check_.*|linear|feed_forward|(layer|rms)_norm|gelu|silu|rope|dropout|.*(attention|entropy)|"
    "arange|randint|numel|to|detach|numpy|item|backward|transpose|reshape|view|unbind"
)
"""What every step of a transformer calls: an error about their arguments says what to use only where it is shown."""


def complete(owner: type | str, described: str | None = None) -> None:
    """Let the functions of a class, or those that a module defines, answer for arguments, and describe them for
    ``help``, as methods of the class ``described``, or "" for functions."""
    place = sys.modules[owner] if isinstance(owner, str) else owner
    names: dict[Any, list[str]] = {}  # some functions have several
    for name, function in vars(place).items():
        if inspect.isfunction(function) and (place is owner or function.__module__ == owner):
            names.setdefault(function, []).append(name)
    for function, its in names.items():
        if described is not None:
            method_help.describe(function, described)
        if not any(map(OFTEN.fullmatch, its)):
            made = answering(function)
            for name in its:
                setattr(place, name, made)


def answering(function: F) -> F:
    """The function, whose error about its arguments says what to use, whoever catches it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # IPython and pytest look for it
        try:  # without an empty dict, which costs a tenth of a call
            return function(*args, **kwargs) if kwargs else function(*args)
        except (TypeError, AttributeError) as error:
            answer(error, function)
            raise

    call.__code__ = call.__code__.replace(co_name=function.__name__)  # what tracebacks and captures call it
    return functools.wraps(function)(call)  # type: ignore[return-value]  # which keeps the signature


def answer(error: BaseException, function: Any = None) -> None:
    """Add to an error of Python's own what to use; or how the function is called, which was not entered."""
    ours = function and error.__traceback__ and error.__traceback__.tb_next is None
    text = explained(error, ours) or (f"it is {signature(function)}" if ours else "")
    if text and isinstance(error, Exception) and text not in str(error):  # said already
        error.args = (f"{error}; {text}",)
        located(error)


def signature(function: Any) -> str:
    """The name of a function or method, and its arguments with their defaults."""
    shown = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    name = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[2]
    return name + str(inspect.Signature([p for p in shown if p.name != "self"]))


def explained(error: BaseException | None, ours: Any = False) -> str | None:
    """What to say of an error of Python's own: about an argument under PyTorch's name, of a function that is ``ours``
    or of which no other has the name, or an attribute that an array or an object of ours has not, or no tensor."""
    if isinstance(error, AttributeError) and (error.obj is not None or str(error).startswith("'NoneType'")):
        raised_in = [f.f_globals.get("__name__", "") for f, _ in traceback.walk_tb(error.__traceback__)][-1:]
        of_tensors = hasattr(sys.modules["minigrad.tensor"].Tensor, str(error.name))
        if of_tensors and "".join(raised_in).startswith("minigrad."):
            return f"expected a tensor, not {type(error.obj).__name__}; make one with minigrad.tensor(...)"
        kinds = [kind.__name__ for kind in (error.obj if isinstance(error.obj, type) else type(error.obj)).__mro__]
        if kinds[0] == "ndarray" and of_tensors:
            return f"p.data is the NumPy array; use with minigrad.no_grad(): p.{error.name}(...)"
        kinds += ["Tensor"] * (kinds[0] == "ndarray")
        return next((HINTS[kind][error.name] for kind in kinds if error.name in HINTS.get(kind, {})), None)
    if isinstance(error, KeyError) and hasattr(next(iter(error.args), None), "requires_grad"):
        return "its keys are the ids of tensors: optimizer.state[p.id]"
    if isinstance(error, TypeError) and str(error) == "'int' object is not callable":
        line = traceback.extract_tb(error.__traceback__)[-1].line or ""
        return "p.data is the NumPy array; use p.size(...)" if ".data.size(" in line else None
    said = re.match(r"(.+?)\(\) (?:got an unexpected keyword argument '(\w+)'$|takes |missing )", str(error))
    if said is None or not isinstance(error, TypeError):
        return None
    found = [] if ours else _named(said[1], error.__traceback__)
    if not all(x.__module__.startswith("minigrad") for x in found):
        return None
    known, called, argument = HINTS["arguments"], said[1], said[2] or ""
    hint = known.get(f"{called}({argument})") or known.get(argument)
    kind = next((x for x in found if not x.__module__.startswith("minigrad.ops.")), None)  # as those of nn
    if hint or kind is None or called[0] == "_" or "." not in called:
        return hint
    return f"it is {signature(getattr(kind, called.rpartition('.')[2]))}"


def _named(called: str, trace: TracebackType | None) -> list[Any]:
    """The functions of this name, or the classes of this method, in loaded modules and the frames of a trace."""
    owner, _, name = called.rpartition(".")
    places = [getattr(module, "__dict__", {}) for module in [*sys.modules.values()]]
    places += [f.f_globals | f.f_locals for f, _ in traceback.walk_tb(trace)]
    kinds = (place.get(owner or name) for place in places)
    return [x for x in kinds if (isinstance(x, type) and hasattr(x, name)) or (not owner and inspect.isfunction(x))]
