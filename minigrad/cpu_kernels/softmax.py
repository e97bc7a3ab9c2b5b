"""Softmax and log-softmax along one axis:

    y = exp(x - m) / s,   log y = x - m - log s,   m = max(x),  s = sum(exp(x - m))
    softmax:      dx = y (dy - sum(dy y))
    log_softmax:  dx = dy - exp(y) sum(dy)

Along the last axis kernels take rows (N, C): three passes over a row that stays in cache. Along another one they take
x as (outer, C, inner) and go down strips of neighbouring columns, all columns of a strip at once.
As in PyTorch a row that holds NaN or +inf, or only -inf, gives NaN (log_softmax keeps -inf beside finite values).
"""

import math
from typing import Any

import numpy as np

from .toolbox.jit import kernel
from .toolbox.register_tile import pointer, row_maximum, tile_columns, whole_vectors
from .toolbox.threads import TaskKernel, get_num_threads, task_kernel, tasks_of_rows
from .toolbox.vector_math import SUM_BLOCK, bits_of, exp_nonpositive, maxnum, numbers, rounded, widened

TASK_ELEMENTS = 16384  # rows of about this many elements are one task
STRIP = 128  # columns; a strip of 1000 float32 rows stays in the L2 cache


@kernel
def row_max(x: np.ndarray) -> Any:
    """The largest element of x (n,), contiguous, NaN aside; -inf if there is none."""
    m = x.dtype.type(-np.inf)
    n = tile_columns(pointer(x))
    whole = x.shape[0] // n * n
    if whole > 0:
        m = row_maximum(pointer(x), whole, m)
    for j in range(whole, x.shape[0]):
        m = maxnum(m, x[j])
    return m


@task_kernel
def _forward_rows(task, tasks, x, y, log):
    whole_vectors()
    N, C = x.shape
    buffers = np.empty((2, C), np.float32)
    for i in range(task * N // tasks, (task + 1) * N // tasks):
        xi, yi = numbers(x[i], buffers[0], True), numbers(y[i], buffers[1], False)
        m, real = row_max(xi), xi.dtype.type
        s = real(0)
        for start in range(0, C, SUM_BLOCK):
            xb, yb, part = xi[start : start + SUM_BLOCK], yi[start : start + SUM_BLOCK], real(0)
            # Loops that write do not add up: whether they run by vectors depends on where x and y lie, and on that the
            # order of a sum.
            for j in range(xb.shape[0]):
                yb[j] = xb[j] - m if log else exp_nonpositive(xb[j] - m)
            for j in range(yb.shape[0]):
                part += exp_nonpositive(yb[j]) if log else yb[j]
            s += part
        last = real(math.log(s)) if log else real(1) / s
        for j in range(C):  # by way of memory: in one expression fastmath would round m + last first
            y[i, j] = rounded(yi[j] - last if log else yi[j] * last, y)


@task_kernel
def _backward_rows(task, tasks, dy, y, dx, log):
    N, C = y.shape
    buffers = np.empty((2, C), np.float32)
    for i in range(task * N // tasks, (task + 1) * N // tasks):
        dyi, yi = numbers(dy[i], buffers[0], True), numbers(y[i], buffers[1], True)
        dxi, total = dx[i], yi.dtype.type(0)
        for j in range(C):
            total += dyi[j] if log else dyi[j] * yi[j]
        for j in range(C):
            dxi[j] = rounded(dyi[j] - exp_nonpositive(yi[j]) * total if log else yi[j] * (dyi[j] - total), dx)


@task_kernel
def _forward_columns(task, tasks, x, y, log, like):
    real = like.dtype.type
    outer, C, inner = x.shape
    strips = (inner + STRIP - 1) // STRIP
    m, s = np.empty(STRIP, like.dtype), np.empty(STRIP, like.dtype)
    for unit in range(task * outer * strips // tasks, (task + 1) * outer * strips // tasks):
        i, a = unit // strips, unit % strips * STRIP
        b = min(a + STRIP, inner)
        m[:] = real(-np.inf)
        s[:] = real(0)
        for c in range(C):
            xc = x[i, c, a:b]
            for j in range(b - a):
                m[j] = maxnum(m[j], widened(xc[j], like))
        for c in range(C):
            xc = x[i, c, a:b]
            for j in range(b - a):
                s[j] += exp_nonpositive(widened(xc[j], like) - m[j])
        for j in range(b - a):
            s[j] = real(math.log(s[j])) if log else real(1) / s[j]
        for c in range(C):
            xc, yc = x[i, c, a:b], y[i, c, a:b]
            for j in range(b - a):
                centred = widened(xc[j], like) - m[j]
                yc[j] = rounded(centred - s[j] if log else exp_nonpositive(centred) * s[j], y)


@task_kernel
def _backward_columns(task, tasks, dy, y, dx, log, like):
    outer, C, inner = y.shape
    strips = (inner + STRIP - 1) // STRIP
    total = np.empty(STRIP, like.dtype)
    for unit in range(task * outer * strips // tasks, (task + 1) * outer * strips // tasks):
        i, a = unit // strips, unit % strips * STRIP
        b = min(a + STRIP, inner)
        total[:] = like.dtype.type(0)
        for c in range(C):
            dyc, yc = dy[i, c, a:b], y[i, c, a:b]
            for j in range(b - a if log else 0):  # one loop for both would not become vectors
                total[j] += widened(dyc[j], like)
            for j in range(0 if log else b - a):
                total[j] += widened(dyc[j], like) * widened(yc[j], like)
        for c in range(C):
            dyc, yc, dxc = dy[i, c, a:b], y[i, c, a:b], dx[i, c, a:b]
            for j in range(b - a if log else 0):
                dxc[j] = rounded(widened(dyc[j], like) - exp_nonpositive(widened(yc[j], like)) * total[j], dx)
            for j in range(0 if log else b - a):
                dxc[j] = rounded(widened(yc[j], like) * (widened(dyc[j], like) - total[j]), dx)


def _along(rows: TaskKernel, columns: TaskKernel, inputs: tuple[np.ndarray, ...], axis: int, log: bool) -> np.ndarray:
    """Run a kernel along ``axis`` of equally shaped inputs -> a new contiguous array."""
    shape = inputs[0].shape or (1,)  # 0-d: one row of one element, as in PyTorch
    axis %= len(shape)
    out = np.empty(inputs[0].shape, inputs[0].dtype)
    if not out.size:
        return out
    C, inner = shape[axis], math.prod(shape[axis + 1 :])
    contiguous, like = (bits_of, np.float32) if out.dtype.itemsize == 2 else (np.ascontiguousarray, out.dtype)
    arrays = [contiguous(x).reshape((-1, C) if inner == 1 else (-1, C, inner)) for x in (*inputs, out)]
    key = tuple([x.dtype for x in arrays])
    if inner == 1:
        rows.launch(key, tasks_of_rows(out.size // C, C, TASK_ELEMENTS), *arrays, log)
    else:
        columns.launch(key, get_num_threads() if out.size > TASK_ELEMENTS else 1, *arrays, log, np.empty(0, like))
    return out


def forward(x: np.ndarray, axis: int) -> np.ndarray:
    """softmax(x) along ``axis``; x of floats, any shape and strides. Half floats are computed in float32."""
    return _along(_forward_rows, _forward_columns, (x,), axis, False)


def backward(dy: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
    """dx from dy and the result y of ``forward``."""
    return _along(_backward_rows, _backward_columns, (dy, y), axis, False)


def log_forward(x: np.ndarray, axis: int) -> np.ndarray:
    """log(softmax(x)) along ``axis``."""
    return _along(_forward_rows, _forward_columns, (x,), axis, True)


def log_backward(dy: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
    """dx from dy and the result y of ``log_forward``."""
    return _along(_backward_rows, _backward_columns, (dy, y), axis, True)
