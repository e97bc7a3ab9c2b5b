"""What ``help(Tensor.softmax)`` says below the method's own sentence: formula, derivative, kernels and an example."""

import functools
import inspect
from pathlib import Path
from types import FunctionType, ModuleType

from .autograd import Function


def describe(function: FunctionType, owner: str = "") -> None:
    """Add to the docstring of a function, or of a method of ``owner``, what the operation behind it says."""
    if owner:
        function.__qualname__ = f"{owner}.{function.__name__}"  # what Python's own errors and help() call it
    names = function.__globals__
    words = list(function.__code__.co_names)
    for helper in filter(inspect.isfunction, [names.get(word) for word in words]):
        words += helper.__code__.co_names
    modules = [module for module in map(names.get, words) if isinstance(module, ModuleType)]
    found = [getattr(module, word, None) for module in modules for word in words]  # as in softmax.Softmax
    used = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Function)]
    text = inspect.getdoc(function) or ""
    if used and text:
        place = used[0].__module__.removeprefix("minigrad.ops.").partition(".")[0]
        text += f"\n\n{used[0].__name__}: {inspect.getdoc(used[0])}\n\n"
        text += f"The operation is in ops/{place}, its kernels are in cpu_kernels/{place} and cuda_kernels/{place}."
    if text and function.__name__ in examples():
        text += f"\n\n>>> {examples()[function.__name__]}"
    function.__doc__ = text or None


@functools.cache
def examples() -> dict[str, str]:
    """By the name of a function an expression, and in the next line what it gives."""
    lines = Path(__file__).with_name("method_examples.txt").read_text(encoding="utf-8").splitlines()
    return {line.partition(": ")[0]: line.partition(": ")[2].replace(" -> ", "\n") for line in lines}
