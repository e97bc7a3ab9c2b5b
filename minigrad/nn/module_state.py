"""The tensors of a module, converted, loaded and listed: what ``Module.to``, ``load_state_dict`` and ``summary`` do."""

import html
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..autograd import no_grad
from ..dtypes import is_floating
from ..errors import LocatedError, bad_type
from ..tensor import Tensor


def convert(module: Any, *args: Any, **options: Any) -> None:
    """``Module.to``."""
    tensors = [*module.parameters(), *module.buffers()]
    with no_grad():
        converted = [tensor.detach().to(*args, **options) for tensor in tensors]
    for i, (tensor, new) in enumerate(zip(tensors, converted, strict=True)):
        if tensor.is_floating_point() and not new.is_floating_point():
            raise bad_type(f"{type(module).__name__}.to: weights are floating tensors, {new.dtype} is no such dtype")
        if not tensor.is_floating_point():
            converted[i] = tensor.detach().to(device=new.device)
    for tensor, new in zip(tensors, converted, strict=True):
        tensor.data, tensor.device = new.data, new.device
        tensor.bump_version()


class IncompatibleKeys(NamedTuple):
    """Names that ``load_state_dict`` passed over: of the module, and of the state; none with ``strict``."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class StateDictError(LocatedError, RuntimeError):
    """A state does not fit its module: a ValueError, and a RuntimeError as PyTorch's."""


def load(module: Any, state: Mapping[str, Any], strict: bool) -> IncompatibleKeys:
    """``Module.load_state_dict``."""
    if not isinstance(state, Mapping):
        remedy = "minigrad.serialization.load_safetensors(path) reads one"
        raise bad_type(f"load_state_dict takes a mapping from names to arrays, not {type(state).__name__}; {remedy}")
    own: dict[str, Tensor] = {}
    names: dict[int, list[str]] = {}  # of one tensor
    for table in ("_parameters", "_buffers"):
        for name, tensor, _ in module._named_tensors(table, "", saved_only=True):
            own[name] = tensor
            names.setdefault(id(tensor), []).append(name)
    missing = [found[0] for found in names.values() if not any(n in state for n in found)]
    unexpected = [name for name in state if name not in own]
    problems = [f"missing: {name}" for name in missing if strict]
    problems += [f"unexpected: {name}" for name in unexpected if strict]
    taken = [(name, tensor, state[name]) for name, tensor in own.items() if name in state]
    for name, tensor, value in taken:
        if tuple(value.shape) != tensor.shape:
            problems.append(f"shape: {name} is {tuple(value.shape)} in the state, {tensor.shape} in the module")
        elif is_floating(value.dtype) != tensor.is_floating_point():
            problems.append(f"dtype: {name} is {value.dtype} in the state, {tensor.dtype} in the module")
    for all_names in names.values():
        given = [n for n in all_names if n in state]
        if len(given) > 1 and not all(_equal(state[given[0]], state[n]) for n in given[1:]):
            problems.append(f"shared: {' and '.join(given)} are one parameter but have different values")
    if problems:
        listing = "\n  ".join(problems)
        raise StateDictError(f"{type(module).__name__}: the state does not fit the module:\n  {listing}")
    with no_grad():
        for _, tensor, value in taken:
            tensor.copy_(value)
    return IncompatibleKeys(missing, unexpected)


def _equal(a: Any, b: Any) -> bool:
    a, b = (np.asarray(t.data if isinstance(t, Tensor) else t) for t in (a, b))
    return bool(np.array_equal(a, b, equal_nan=is_floating(a.dtype) and is_floating(b.dtype)))


class Summary(str):
    """A text that notebooks and interpreters show as it is, line below line."""

    __repr__ = str.__str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


def table(title: str, parameters: list[tuple[str, Tensor]], buffers: list[tuple[str, Tensor]]) -> str:
    """A line for each parameter and buffer: name, shape, dtype, number of elements, memory; then the totals."""
    rows = [("name", "shape", "dtype", "parameters", "memory")]
    total = size = 0
    for name, tensor in (*parameters, *buffers):
        count, used = tensor.numel(), tensor.numel() * tensor.element_size()
        is_parameter = len(rows) <= len(parameters)
        note = f"{count:,}" if is_parameter else "buffer"
        if is_parameter and not tensor.requires_grad:
            note += " (frozen)"
        rows.append((name, str(tensor.shape), str(tensor.dtype), note, _memory(used)))
        total += count if is_parameter else 0
        size += used
    rows.append((f"total of {title}", "", "", f"{total:,}", _memory(size)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(align(cell, width) for align, cell, width in zip(ALIGN, row, widths)) for row in rows]
    rule = "-" * max(map(len, lines))
    return Summary("\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]]))


ALIGN = (str.ljust, str.ljust, str.ljust, str.rjust, str.rjust)


def _memory(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
