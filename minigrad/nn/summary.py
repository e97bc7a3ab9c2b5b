"""What a module holds, as a table of text."""

from __future__ import annotations

from ..tensor import Tensor


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
    lines = [
        "  ".join(align(cell, width) for align, cell, width in zip(ALIGN, row, widths, strict=True)) for row in rows
    ]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


ALIGN = (str.ljust, str.ljust, str.ljust, str.rjust, str.rjust)


def _memory(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
