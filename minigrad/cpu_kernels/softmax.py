"""Softmax and log-softmax along one axis:

    y = exp(x - m) / s,   log y = x - m - log s,   m = max(x),  s = sum(exp(x - m))
    softmax:      dx = y (dy - sum(dy y))
    log_softmax:  dx = dy - exp(y) sum(dy)

Kernels take rows (N, C): three passes over a row that stays in cache. Another axis is moved last, which copies.
As in PyTorch a row that holds NaN or +inf, or only -inf, gives NaN (log_softmax keeps -inf beside finite values).
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from .jit import kernel, parallel_kernel
from .vector_math import exp_fast, maxnum

TASK_ELEMENTS = 16384  # rows of about this many elements are one task


@kernel
def row_max(x):
    """The largest element of x (n,), NaN aside; -inf if there is none."""
    m = x.dtype.type(-np.inf)
    for j in range(x.shape[0]):
        m = maxnum(m, x[j])
    return m


@kernel
def _forward_rows(x, y, log):
    real = x.dtype.type
    N, C = x.shape
    for i in range(N):
        xi, yi = x[i], y[i]
        m = row_max(xi)
        s = real(0)
        for j in range(C):
            centred = xi[j] - m
            e = exp_fast(centred)
            yi[j] = centred if log else e
            s += e
        if log:
            log_s = real(math.log(s))
            for j in range(C):  # by way of memory: in one expression fastmath would round m + log_s first
                yi[j] -= log_s
        else:
            scale = real(1) / s
            for j in range(C):
                yi[j] *= scale


@kernel
def _backward_rows(dy, y, dx, log):
    real = y.dtype.type
    N, C = y.shape
    for i in range(N):
        dyi, yi, dxi = dy[i], y[i], dx[i]
        total = real(0)
        if log:
            for j in range(C):
                total += dyi[j]
            for j in range(C):
                dxi[j] = dyi[j] - exp_fast(yi[j]) * total
        else:
            for j in range(C):
                total += dyi[j] * yi[j]
            for j in range(C):
                dxi[j] = yi[j] * (dyi[j] - total)


@parallel_kernel
def _forward_parallel(x, y, log, rows):
    for task in numba.prange((x.shape[0] + rows - 1) // rows):
        _forward_rows(x[task * rows : (task + 1) * rows], y[task * rows : (task + 1) * rows], log)


@parallel_kernel
def _backward_parallel(dy, y, dx, log, rows):
    for task in numba.prange((y.shape[0] + rows - 1) // rows):
        a, b = task * rows, (task + 1) * rows
        _backward_rows(dy[a:b], y[a:b], dx[a:b], log)


def _along(serial: Any, parallel: Any, inputs: tuple[np.ndarray, ...], axis: int, log: bool) -> np.ndarray:
    """Run a kernel over the rows along ``axis`` of equally shaped inputs -> a new contiguous array."""
    if inputs[0].ndim == 0:  # one row of one element, as in PyTorch
        return _along(serial, parallel, tuple(x.reshape(1) for x in inputs), 0, log).reshape(())
    last = axis in (-1, inputs[0].ndim - 1)
    moved = inputs if last else tuple(np.moveaxis(x, axis, -1) for x in inputs)
    out = np.empty(moved[0].shape, moved[0].dtype)
    if out.size:
        C = out.shape[-1]
        rows = [np.ascontiguousarray(x).reshape(-1, C) for x in (*moved, out)]
        if out.size <= TASK_ELEMENTS:
            serial(*rows, log)
        else:
            parallel(*rows, log, max(1, TASK_ELEMENTS // C))
    return out if last else np.ascontiguousarray(np.moveaxis(out, -1, axis))


def forward(x: np.ndarray, axis: int) -> np.ndarray:
    """softmax(x) along ``axis``; x float32 or float64, any shape and strides."""
    return _along(_forward_rows, _forward_parallel, (x,), axis, False)


def backward(dy: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
    """dx from dy and the result y of ``forward``."""
    return _along(_backward_rows, _backward_parallel, (dy, y), axis, False)


def log_forward(x: np.ndarray, axis: int) -> np.ndarray:
    """log(softmax(x)) along ``axis``."""
    return _along(_forward_rows, _forward_parallel, (x,), axis, True)


def log_backward(dy: np.ndarray, y: np.ndarray, axis: int) -> np.ndarray:
    """dx from dy and the result y of ``log_forward``."""
    return _along(_backward_rows, _backward_parallel, (dy, y), axis, True)
