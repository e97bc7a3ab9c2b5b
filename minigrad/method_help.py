"""What ``help(Tensor.softmax)`` says below the method's own sentence: arguments, formula, derivative, kernels, example.

``method_examples.txt`` has what a docstring does not say: of each method a line ``name [parts]: expression -> result``,
and what arguments mean that many methods have. The parts are the operations that the expression runs, such as
``softmax.Softmax``, and the families of other kernels, such as ``random``.
"""

import functools
import inspect
import re
import sys
from pathlib import Path
from types import FunctionType

from . import plain_kernels

FILE = Path(__file__).with_name("method_examples.txt")
ON_CPU = {path.stem for path in FILE.parent.glob("cpu_kernels/*.py")}


def describe(function: FunctionType, owner: str = "") -> None:
    """Add to the docstring of a function, or of a method of ``owner``, what the file says of it."""
    if owner:
        function.__qualname__ = f"{owner}.{function.__name__}"  # what Python's own errors and help() call it
    text = inspect.getdoc(function)
    if text is None or function.__name__ not in (examples := read()[1]):
        return
    parts, example = examples[function.__name__]
    code, words, meanings = inspect.unwrap(function).__code__, set(re.findall(r"\w+", text)), read()[0]
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    said = "\n".join(f"  {name}: {meanings[name]}" for name in names if name in meanings and name not in words)
    function.__doc__ = "\n\n".join(filter(None, (text, said, made_of(parts), f">>> {example}")))


@functools.cache
def made_of(parts: str) -> str:
    """The formula of an operation, or the names of several, and where their kernels are."""
    operations = [part.partition(".")[2] for part in parts.split() if "." in part]
    names = dict.fromkeys(part.partition(".")[0] for part in parts.split())
    families = [name for name in names if hasattr(plain_kernels, name)]
    places = (f"cpu_kernels/{name}" if name in ON_CPU else f"plain_kernels ({name})" for name in families)
    kernels = f"Kernels: {', '.join(places)}; for CUDA {', '.join(families)} in cuda_kernels."
    if len(operations) != 1:
        return f"Made of {', '.join(operations)}. {kernels}" if operations else kernels * bool(families)
    kind = getattr(sys.modules[f"{__package__}.ops.{next(iter(names))}"], operations[0])
    return f"{operations[0]}: {inspect.getdoc(kind)}\n\nThe operation is in ops/{next(iter(names))}. {kernels}"


@functools.cache
def read() -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """The meanings of arguments; and of methods the parts, with an expression and in the next line its result."""
    lines = [line.partition(": ")[::2] for line in FILE.read_text(encoding="utf-8").splitlines()]
    marked = [(*name.rstrip("]").split(" ["), rest.replace(" -> ", "\n")) for name, rest in lines if "[" in name]
    return dict(lines), {name: (parts, example) for name, parts, example in marked}
