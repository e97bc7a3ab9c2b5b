"""How tensors are shown: PyTorch's strings (by the rules of ``torch/_tensor_str.py``), and tables for notebooks."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import dtypes
from .errors import check_choice
from .op_inputs import no_array


@dataclass
class PrintOptions:
    """What ``set_printoptions`` sets."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


options: PrintOptions = PrintOptions()
PROFILES = {"default": PrintOptions(), "short": PrintOptions(2, edgeitems=2), "full": PrintOptions(threshold=math.inf)}


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """How tensors are printed, with PyTorch's arguments; None leaves an option as it is, save ``sci_mode``.

    ``precision``: digits after the point. ``threshold``: a tensor of more elements is shown by the ``edgeitems`` first
    and last ones of each dimension. ``linewidth``: characters. ``sci_mode``: whether in scientific notation; None
    decides by the values. ``profile``: "default", "short" or "full", whose options the others change.
    Raises ValueError for another profile.
    """
    if profile is not None:
        check_choice("set_printoptions", "profile", profile, tuple(PROFILES))
        vars(options).update(vars(PROFILES[profile]))
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    vars(options).update({name: value for name, value in given.items() if value is not None})
    options.sci_mode = sci_mode


def represent(x: Any) -> str:
    """``tensor([1., 2.], requires_grad=True)``: the values, then what is not the default."""
    array = _host(x)
    notes = []
    if x.device.type != "cpu":
        notes.append(f"device='{x.device}'")
    if array.ndim != 1 if array.size == 0 else not options.edgeitems:
        notes.append(f"size={array.shape}")
    usual = (dtypes.default_dtype(), dtypes.int64, dtypes.bool_) if array.size else (dtypes.default_dtype(),)
    if array.dtype not in usual:
        notes.append(f"dtype={array.dtype}")
    if x.node is not None:
        notes.append(f"grad_fn=<{type(x.node).__name__}>")
    elif x.requires_grad:
        notes.append("requires_grad=True")
    prefix = "tensor("
    return _with_notes(prefix + _values(array, len(prefix)), notes, len(prefix))


def _host(x: Any) -> np.ndarray:
    if not isinstance(x.data, x.device.kernels.Array):
        raise no_array("print", x)
    return x.device.kernels.to_host(x.data)


def _with_notes(text: str, notes: list[str], indent: int) -> str:
    """The notes after the values, each on a new line where the last one is full."""
    used = len(text) - text.rfind("\n") + 1
    for note in notes:
        if used + len(note) + 2 > options.linewidth:
            text += ",\n" + " " * indent + note
            used = indent + len(note)
        else:
            text += ", " + note
            used += len(note) + 2
    return text + ")"


def _values(array: np.ndarray, indent: int) -> str:
    if array.size == 0:
        return "[]"
    summarize = array.size > options.threshold
    return _nested(array, indent, summarize, _formatter(_edges(array) if summarize else array))


def _edges(array: np.ndarray) -> np.ndarray:
    """Only the elements that a summary shows."""
    n = options.edgeitems
    for axis, size in enumerate(array.shape):
        if size > 2 * n:
            array = np.take(array, [*range(n), *range(size - n, size)], axis)
    return array


def _formatter(array: np.ndarray) -> Callable[[Any], str]:
    """Turns a Python number into text as wide as the widest of the array."""
    if not dtypes.is_floating(array.dtype):
        widest = max((len(str(value)) for value in array.reshape(-1).tolist()), default=1)
        return lambda value: str(value).rjust(widest)
    values = array.astype(np.float64).reshape(-1)
    values = values[np.isfinite(values) & (values != 0)]
    if not values.size:
        return lambda value: _whole(value).rjust(1)
    sizes = np.abs(values)
    scientific = options.sci_mode
    if scientific is None:
        low, high = float(sizes.min()), float(sizes.max())
        scientific = high > 1000 * low or high > 1e8 or low < 1e-4
    if scientific:
        text: Callable[[float], str] = f"{{:.{options.precision}e}}".format
    else:
        text = _whole if (values == np.ceil(values)).all() else f"{{:.{options.precision}f}}".format
    widest = max(len(text(value)) for value in values.tolist())
    return lambda value: text(value).rjust(widest)


def _whole(value: float) -> str:
    return f"{value:.0f}" + ("." if math.isfinite(value) else "")


def _nested(array: np.ndarray, indent: int, summarize: bool, text: Callable[[Any], str]) -> str:
    if array.ndim == 0:
        return text(array.item())
    places = _shortened(range(len(array)), summarize)
    if array.ndim == 1:
        gap = " ..." if options.edgeitems else "..."
        parts = [gap if i is None else text(array[i].item()) for i in places]
        width = len(text(0)) + 2
        in_line = max(1, (options.linewidth - indent) // width)
        lines = [", ".join(parts[i : i + in_line]) for i in range(0, len(parts), in_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    parts = ["..." if i is None else _nested(array[i], indent + 1, summarize, text) for i in places]
    return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


def represent_html(x: Any) -> str:
    """For notebooks: a table of one or two dimensions (summarised as ``repr`` is), else the text of ``repr``; below
    it shape, dtype, device, and how it was made.
    """
    array = _host(x)
    facts = [f"shape {array.shape}", str(array.dtype), str(x.device)]
    if x.node is not None:
        facts.append(f"grad_fn {type(x.node).__name__}")
    elif x.requires_grad:
        facts.append("requires grad")
    caption = html.escape(", ".join(facts))
    if array.ndim not in (1, 2) or not array.size or not options.edgeitems:
        return f"<pre>{html.escape(represent(x))}</pre><small>{caption}</small>"
    summarize = array.size > options.threshold
    text = _formatter(_edges(array) if summarize else array)
    first, *others = _shortened([*np.atleast_2d(array)], summarize)
    cells = _cells(first, summarize, text)
    gap = "<td>...</td>" * cells.count("<td>")
    rows = [cells, *(gap if row is None else _cells(row, summarize, text) for row in others)]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table><small>{caption}</small>"


def _cells(row: np.ndarray, summarize: bool, text: Callable[[Any], str]) -> str:
    values = _shortened(row.tolist(), summarize)
    texts = ["..." if value is None else html.escape(text(value).strip()) for value in values]
    return "".join(f"<td>{cell}</td>" for cell in texts)


def _shortened(items: Sequence[Any], summarize: bool) -> list[Any]:
    """The first and last items with None between, if there are too many."""
    n = options.edgeitems
    return [*items[:n], None, *items[len(items) - n :]] if summarize and len(items) > 2 * n else [*items]
