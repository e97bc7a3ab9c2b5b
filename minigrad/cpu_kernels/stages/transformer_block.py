"""A whole block of GPT-2 on rows that stay with one core: x (B, T, C) -> y (B, T, C).

    n1 = norm(x)       qkv = n1 Wqkv^T + b       a = attention(qkv)       x2 = x + a Wo^T + b
    n2 = norm(x2)      h = n2 W^T + b            g = gelu(h)              y = x2 + g V^T + b

Sequences do not see each other, so forward is one launch in which each task takes its share of the sequences through
all stages, and waits for nobody. Backward has two kinds of work, and the second waits for the first:

    rows       dh = (dy V) gelu'(h), g = gelu(h), dn2 = dh W, dx2 = dy + norm'(dn2), da = dx2 Wo,
               dqkv = attention'(da), dn1 = dqkv Wqkv, dx = dx2 + norm'(dn1)
    weights    dV = dy^T g, dW = dh^T n2, dWo = dx2^T a, dWqkv = dqkv^T n1, and their biases'; those of the norms

Each task computes a part of each dW, and for that reads the rows of all tasks. Small models have more of these than of
weights, and cores exchange them slowly. There each half of the tasks sums over its half of the rows, and a last step
adds the two; a half that is a single task need not wait before.

Each stage calls the kernel that ``linear``, ``attention`` and ``layer_norm`` launch, at its address, with the rows of
the task as its arrays: it is the same machine code, and no sum is divided in another way, so all bits are those of the
six operations. dweight of a norm is summed in chunks of rows; tasks take whole chunks.

float32 or float64; all arrays C-contiguous. What forward keeps is what the six operations keep.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import attention, layer_norm, linear
from ..linear import _PAIRS, _product_rows, _weight_gradient
from ..matmul import FLOATS, NO_BIAS
from ..toolbox import bfloat16_product
from ..toolbox.jit import inline, kernel
from ..toolbox.product_epilogue import ADD
from ..toolbox.product_loops import THIN_ROWS, grid_of
from ..toolbox.register_tile import TILE_BYTES
from ..toolbox.threads import call_at, get_num_threads, step_of, task_kernel

_norm, _norm_gradient, _add_chunks = layer_norm._forward_rows, layer_norm._backward_rows, layer_norm._add_chunks
_attend, _attend_gradient = attention._forward.kernel, attention._backward.kernel
CHUNK_ROWS = 512  # about so many rows go through all stages of a step together: each stage finds them in the L2 cache
UNEVEN = 1.05  # the share of the task that has the most sequences, divided by the mean one, at most


# ---------------------------------------------------------------- kernels


@inline
def _activations(kept, N, T, C, inner, heads):
    """What forward keeps of N rows, in one block of memory: n1, a, x2, n2 (N, C), qkv (N, 3 C), h (N, I), ``stats`` (4,
    N), means and 1 / deviations of both norms, and lse (N / T, heads, T).
    """
    n = N * C
    end = 7 * n + N * inner
    return (
        kept[:n].reshape((N, C)), kept[n : 2 * n].reshape((N, C)), kept[2 * n : 3 * n].reshape((N, C)),
        kept[3 * n : 4 * n].reshape((N, C)), kept[4 * n : 7 * n].reshape((N, 3 * C)),
        kept[7 * n : end].reshape((N, inner)), kept[end : end + 4 * N].reshape((4, N)),
        kept[end + 4 * N :].reshape((N // T, heads, T)),
    )  # fmt: skip


@inline
def _second_half(memory, C, inner):
    """Places for the gradients of the matrices, from the last to the first, and of their biases."""
    n, m = C * inner, C * C
    end = 2 * n + 4 * m
    return (
        memory[:n].reshape((C, inner)), memory[n : 2 * n].reshape((inner, C)),
        memory[2 * n : 2 * n + m].reshape((C, C)), memory[2 * n + m : end].reshape((3 * C, C)),
    ), (
        memory[end : end + C], memory[end + C : end + C + inner], memory[end + C + inner : end + 2 * C + inner],
        memory[end + 2 * C + inner : end + 5 * C + inner],
    )  # fmt: skip


@kernel
def _add(x, y):
    """y += x, for matrices."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] += x[i, j]


@task_kernel
def _forward(
    task, tasks, addresses, sizes, options, eps, has_bias, x, norm_1, bias_1, wqkv, bqkv, wo, bo, norm_2, bias_2, w, b,
    v, c, kept, g, y, none, no_bias, pairs,
):  # fmt: skip
    """``sizes``: B, T, heads, sequences in a chunk, and those for which ``kept`` has places: all, or, as g has in any
    case, each task's chunk.
    """
    norm, product, attend = addresses
    products = product, none, no_bias, pairs
    B, T, H, chunk, places = sizes
    epilogue, causal, scale, no_seed = options
    C, failed = x.shape[1], 0
    n1, a, x2, n2, qkv, h, stats, lse = _activations(kept, places * T, T, C, w.shape[0], H)
    D, end = C // H, (task + 1) * B // tasks
    for first in range(task * B // tasks, end, chunk):
        count = min(chunk, end - first)
        here = first if places == B else task * chunk  # the place of the first sequence in what is kept, and in scratch
        i, j, r, t = first * T, (first + count) * T, here * T, (here + count) * T
        failed += call_at(norm, _norm, (x[i:j], norm_1, bias_1, eps[0], n1[r:t], stats[0][r:t], stats[1][r:t]))
        rows = qkv[r:t]
        failed += _product_rows(products, n1[r:t], wqkv, True, bqkv, has_bias[0], rows, rows, rows, 0)
        q = rows.reshape(count * T * 3 * C)
        steps = (T * 3 * C, D, 3 * C)
        failed += call_at(
            attend, _attend,
            (0, 1, q, q[C:], q[2 * C :], a[r:t].reshape((count, T, H, D)), lse[here : here + count], steps, steps,
             steps, H, T, causal, scale, 0.0, no_seed, no_seed, 1),
        )  # fmt: skip
        rows = x2[r:t]
        failed += _product_rows(products, a[r:t], wo, True, bo, has_bias[1], rows, x[i:j], rows, ADD)
        failed += call_at(norm, _norm, (rows, norm_2, bias_2, eps[1], n2[r:t], stats[2][r:t], stats[3][r:t]))
        act = g[task * chunk * T : (task * chunk + count) * T]
        failed += _product_rows(products, n2[r:t], w, True, b, has_bias[2], act, h[r:t], act, epilogue)
        failed += _product_rows(products, act, v, True, c, has_bias[3], y[i:j], rows, rows, ADD)
    if failed:
        raise MemoryError("no memory for the kernel's workspace")


@task_kernel
def _backward(
    task, tasks, addresses, sizes, options, wanted, longest, grids, dy, x, kept, norm_1, wqkv, wo, norm_2, w, v,
    scratch, dx, dnorm_1, dbias_1, dwqkv, dbqkv, dwo, dbo, dnorm_2, dbias_2, dw, db, dv, dc, none, no_bias, pairs,
):  # fmt: skip
    """``sizes``: B, T, heads, sequences in a chunk, rows of a chunk of the norms' sums, the step of the weights and
    that of the last sums, which is another one if each half of the tasks has its half of the rows. ``wanted`` (of the
    matrices, then of their biases), ``longest`` and ``grids`` are from the last matrix to the first.

    ``scratch`` holds the norms' sums, ``partial``: norm, weight or bias, such a chunk, channel; what the step of the
    weights reads; a place for each task's dn1; and the second half's gradients.
    """
    product, attend, norm, add_chunks = addresses
    products = product, none, no_bias, pairs
    B, T, H, chunk, chunk_rows, weights_step, sums_step = sizes
    epilogue, causal, scale, no_seed = options
    (N, C), I, failed = x.shape, w.shape[0], 0
    n1, a, x2, n2, qkv, h, stats, lse = _activations(kept, N, T, C, I, H)
    step, task = step_of(task)
    chunks, n = (N + chunk_rows - 1) // chunk_rows, N * C
    partial = scratch[: 4 * chunks * C].reshape((2, 2, chunks, C))
    rest = scratch[4 * chunks * C :]
    dqkv, dx2 = rest[: 3 * n].reshape((N, 3 * C)), rest[3 * n : 4 * n].reshape((N, C))
    rest = rest[4 * n :]
    g, dh, rest = rest[: N * I].reshape((N, I)), rest[N * I : 2 * N * I].reshape((N, I)), rest[2 * N * I :]
    dn1, rest = rest[: tasks * chunk * T * C], rest[tasks * chunk * T * C :]
    if step == 0:
        D, end = C // H, (task + 1) * B // tasks
        for first in range(task * B // tasks, end, chunk):
            count = min(chunk, end - first)
            r, t = first * T, (first + count) * T
            failed += _product_rows(products, dy[r:t], v, False, no_bias, False, dh[r:t], h[r:t], g[r:t], epilogue)
            dn, rows = dx[r:t], dx2[r:t]
            failed += _product_rows(products, dh[r:t], w, False, no_bias, False, dn, dn, dn, 0)
            for i in range(r, t, chunk_rows):
                j = min(t, i + chunk_rows)
                failed += call_at(
                    norm, _norm_gradient,
                    (dx[i:j], x2[i:j], norm_2, stats[2][i:j], stats[3][i:j], dx2[i:j], partial[1, 0, i // chunk_rows],
                     partial[1, 1, i // chunk_rows]),
                )  # fmt: skip
            _add(dy[r:t], rows)
            failed += _product_rows(products, rows, wo, False, no_bias, False, dn, dn, dn, 0)
            q, dq = qkv[r:t].reshape(count * T * 3 * C), dqkv[r:t].reshape(count * T * 3 * C)
            of_qkv, of_y = (T * 3 * C, D, 3 * C), (T * C, D, C)
            failed += call_at(
                attend, _attend_gradient,
                (0, 1, dn.reshape(count * T * C), q, q[C:], q[2 * C :], a[r:t].reshape(count * T * C),
                 lse[first : first + count], dq, dq[C:], dq[2 * C :], of_y, of_qkv, of_qkv, of_qkv, of_y,
                 (1, count, T, H, D, T, H), 3 * C, 3 * C, causal, scale, 0.0, no_seed, no_seed),
            )  # fmt: skip
            dn = dn1[task * chunk * T * C : (task * chunk + count) * T * C].reshape((count * T, C))
            failed += _product_rows(products, dqkv[r:t], wqkv, False, no_bias, False, dn, dn, dn, 0)
            for i in range(r, t, chunk_rows):
                j = min(t, i + chunk_rows)
                failed += call_at(
                    norm, _norm_gradient,
                    (dn[i - r : j - r], x[i:j], norm_1, stats[0][i:j], stats[1][i:j], dx[i:j],
                     partial[0, 0, i // chunk_rows], partial[0, 1, i // chunk_rows]),
                )  # fmt: skip
            _add(rows, dx[r:t])
    halves = sums_step > weights_step
    totals, bias_totals = (dv, dw, dwo, dwqkv), (dc, db, dbo, dbqkv)
    if step == weights_step:
        gradients, inputs = (dy, dh, dx2, dqkv), (g, n2, a, n1)
        part, parts, half, r, t = task, tasks, 0, 0, N
        if halves:
            parts = tasks // 2
            half, part = task // parts, task % parts
            r, t = half * (N // 2), (half + 1) * (N // 2)
        for m in range(4):
            if wanted[m]:
                total, bias_total = totals[m], bias_totals[m]
                if half == 1:
                    seconds, bias_seconds = _second_half(rest, C, I)
                    total, bias_total = seconds[m], bias_seconds[m]
                failed += _weight_gradient(
                    products,
                    part,
                    parts,
                    gradients[m][r:t],
                    inputs[m][r:t],
                    total,
                    bias_total,
                    wanted[4 + m],
                    longest[m],
                    grids[m],
                )
    if step == sums_step:
        if task == 0:
            failed += call_at(add_chunks, _add_chunks, (partial[0], dnorm_1, dbias_1))
        if task == tasks - 1:
            failed += call_at(add_chunks, _add_chunks, (partial[1], dnorm_2, dbias_2))
        if halves:
            seconds, bias_seconds = _second_half(rest, C, I)
            for m in range(4):
                if wanted[m]:
                    rows = totals[m].shape[0]
                    r, t = task * rows // tasks, (task + 1) * rows // tasks
                    _add(seconds[m][r:t], totals[m][r:t])
                if wanted[4 + m] and task == 0:
                    for j in range(bias_totals[m].shape[0]):
                        bias_totals[m][j] += bias_seconds[m][j]
    if failed:
        raise MemoryError("no memory for the kernel's workspace")


# ---------------------------------------------------------------- launchers


_NO_SEED = np.uint64(0)


Options = tuple[int, tuple[float, float], bool, str, float]
"""What is no array: heads, the norms' eps, whether attention is causal, GELU's form, the scale of the scores."""


def _chunk_rows(rows: int) -> int:
    """Rows in a chunk of the sums in a norm's gradient, as `layer_norm.backward` has them."""
    if rows <= layer_norm.BACKWARD_ROWS:
        return rows
    return max(layer_norm.BACKWARD_ROWS, -(-rows // layer_norm.BACKWARD_CHUNKS))


def _whole_chunks(B: int, T: int, tasks: int) -> bool:
    """Whether every task, with its share of the sequences, has whole chunks of rows."""
    rows = _chunk_rows(B * T)
    return all(task * B // tasks * T % rows == 0 for task in range(1, tasks))


@functools.lru_cache(maxsize=256)
def _why_not(B: int, T: int, C: int, heads: int, inner: int, tasks: int) -> str:
    """Why a block of these sizes is not computed as one, or nothing."""
    if heads < 1 or C % heads or min(T, C) <= THIN_ROWS or inner < C or B < 1:
        return "products and attention of these sizes are of another kind"
    if -(-B // tasks) * tasks > UNEVEN * B or not _whole_chunks(B, T, tasks):
        return f"{tasks} threads cannot share {B} sequences of {T} tokens evenly"
    if attention._parts(B, heads, heads, T) != 1:
        return "so few sequences have more threads in the attention by itself"
    return ""


def reasons(x: np.ndarray, weights: Sequence[Any], heads: int) -> Iterator[str]:
    """Why `forward` cannot compute this block with the bits of the single operations, or is not faster than they are.

    x (B, T, C), and as in `forward` its ``weights``, on any device.
    """
    dtype, w = x.dtype, weights[8]
    if dtype not in FLOATS or (bfloat16_product.precision == "medium" and dtype.itemsize == 4):
        yield "x is neither float32 nor float64, or products round to bfloat16"
    if x.ndim != 3 or w is None or w.ndim != 2 or not x.flags.carray:
        yield "x is not a contiguous (B, T, C)"
        return
    (B, T, C), inner = x.shape, w.shape[0]
    if why := _why_not(B, T, C, heads, inner, get_num_threads()):
        yield why
    shapes = (C,), (C,), (3 * C, C), (3 * C,), (C, C), (C,), (C,), (C,), (inner, C), (inner,), (C, inner), (C,)
    for i, (weight, shape) in enumerate(zip(weights, shapes, strict=True)):
        if (
            i % 2 == 0
            if weight is None
            else not isinstance(weight, np.ndarray)
            or weight.shape != shape
            or weight.dtype != dtype
            or not weight.flags.carray
        ):
            yield "a weight is missing, or has another shape, dtype or device than x asks for"
            return


class BlockPlan(NamedTuple):
    """How threads share `backward` for blocks of some sizes."""

    chunk: int
    """Sequences that go through all stages of a step together."""
    chunk_rows: int
    scratch: int
    """Elements."""
    longest: tuple[int, ...]
    """For the gradients of the matrices, from the last to the first, how many rows are summed before they are added."""
    grids: tuple[tuple[int, int], ...]
    """How the tasks, or half of them, share each of these."""
    steps: np.ndarray
    """The tasks of each step."""
    weights_step: int
    sums_step: int


@functools.lru_cache(maxsize=64)
def _plan(B: int, T: int, C: int, inner: int, itemsize: int, tasks: int) -> BlockPlan:
    if not _whole_chunks(B, T, tasks):  # other threads than in forward
        tasks = 1
    N, chunk, rows = B * T, -(-CHUNK_ROWS // T), _chunk_rows(B * T)
    chunk = min(chunk if chunk * T % rows == 0 else B, -(-B // tasks))
    scratch = 4 * -(-N // rows) * C + N * (4 * C + 2 * inner) + tasks * chunk * T * C
    shapes = (C, inner), (inner, C), (C, C), (3 * C, C)
    longest = tuple(linear._depth_block(N, *shape) for shape in shapes)
    halves = B % 2 == 0 and tasks % 2 == 0 and all(n * 2 == N for n in longest)
    sharing = tasks // 2 if halves else tasks
    grids = tuple((1, 1) if sharing == 1 else grid_of(1, *shape, TILE_BYTES // itemsize, sharing) for shape in shapes)
    if not halves:
        return BlockPlan(chunk, rows, scratch, longest, grids, np.full(2, tasks), 1, 1)
    scratch += sum(outputs * (inputs + 1) for outputs, inputs in shapes)
    weights_step = 0 if tasks == 2 else 1  # a task that is half of them needs the rows of nobody else
    return BlockPlan(
        chunk, rows, scratch, longest, grids, np.full(weights_step + 2, tasks), weights_step, weights_step + 1
    )


def forward(
    x: np.ndarray, weights: Sequence[Any], options: Options, keep: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """x (B, T, C) -> y (B, T, C), and if ``keep`` what `backward` needs besides x and the weights.

    ``weights`` are those of norm_1 (C,), qkv (3 C, C), output (C, C), norm_2 (C,), MLP (I, C) and (C, I), each followed
    by its bias or None. I >= C.
    """
    (B, T, C), dtype = x.shape, x.dtype
    norm_1, bias_1, wqkv, bqkv, wo, bo, norm_2, bias_2, w, b, v, c = weights
    heads, eps, causal, approximate, scale = options
    N, inner, count = B * T, w.shape[0], min(B, get_num_threads())
    chunk = min(-(-CHUNK_ROWS // T), -(-B // count))
    places = B if keep else count * chunk
    no_bias, none = NO_BIAS[dtype.char], linear.EMPTY[dtype.char]
    kept, y = np.empty(places * T * (7 * C + inner + 4 + heads), dtype), np.empty((B, T, C), dtype)
    zeros = None if bias_1 is not None and bias_2 is not None else np.zeros(C, dtype)
    stages = layer_norm.FORWARD_ROWS, linear.PRODUCTS, attention.FORWARD
    _forward.launch(
        dtype, count, tuple(stage.address(dtype) for stage in stages), (B, T, heads, chunk, places),
        (linear.GELU[approximate], causal, scale, _NO_SEED), eps,
        (bqkv is not None, bo is not None, b is not None, c is not None), x.reshape(N, C),
        norm_1, zeros if bias_1 is None else bias_1, wqkv, no_bias if bqkv is None else bqkv,
        wo, no_bias if bo is None else bo, norm_2, zeros if bias_2 is None else bias_2,
        w, no_bias if b is None else b, v, no_bias if c is None else c,
        kept, np.empty((count * chunk * T, inner), dtype), y.reshape(N, C), none, no_bias, _PAIRS,
    )  # fmt: skip
    return y, kept if keep else None


def backward(
    dy: np.ndarray,
    x: np.ndarray,
    weights: Sequence[np.ndarray],
    kept: np.ndarray,
    options: Options,
    needs: Sequence[bool],
) -> tuple[np.ndarray | None, ...]:
    """dy and x (B, T, C), weights without biases, what `forward` ``kept`` -> the gradients of x, weights and biases.

    Those that ``needs`` does not ask for are None; a bias's goes with its weight's. All but those of matrices are
    computed in any case.
    """
    (B, T, C), dtype, empty = x.shape, x.dtype, np.empty
    heads, _, causal, approximate, scale = options
    N, inner = B * T, len(weights[4])
    plan = _plan(B, T, C, inner, dtype.itemsize, min(B, get_num_threads()))
    no_bias, none = NO_BIAS[dtype.char], linear.EMPTY[dtype.char]
    dy = (dy if dy.flags.carray else np.array(dy, order="C")).reshape(N, C)
    _, _, _, of_wqkv, of_bqkv, of_wo, of_bo, _, _, of_w, of_b, of_v, of_c = needs
    dx = empty((B, T, C), dtype)
    grads = (
        empty(C, dtype), empty(C, dtype),
        empty((3 * C, C), dtype) if of_wqkv else none, empty(3 * C, dtype) if of_bqkv else no_bias,
        empty((C, C), dtype) if of_wo else none, empty(C, dtype) if of_bo else no_bias,
        empty(C, dtype), empty(C, dtype),
        empty((inner, C), dtype) if of_w else none, empty(inner, dtype) if of_b else no_bias,
        empty((C, inner), dtype) if of_v else none, empty(C, dtype) if of_c else no_bias,
    )  # fmt: skip
    stages = linear.PRODUCTS, attention.BACKWARD, layer_norm.GRADIENT_ROWS, layer_norm.ADD_CHUNKS
    bound = _backward.bind(
        dtype, tuple(stage.address(dtype) for stage in stages),
        (B, T, heads, plan.chunk, plan.chunk_rows, plan.weights_step, plan.sums_step),
        (linear.SLOPE[approximate], causal, scale, _NO_SEED),
        (of_v, of_w, of_wo, of_wqkv, of_c, of_b, of_bo, of_bqkv), plan.longest, plan.grids, dy, x.reshape(N, C), kept,
        *weights, empty(plan.scratch, dtype), dx.reshape(N, C), *grads, none, no_bias, _PAIRS,
    )  # fmt: skip
    bound.steps(plan.steps.tolist()).run()
    found = (dx, *grads)
    return found if False not in needs else tuple(grad if needs[i] else None for i, grad in enumerate(found))
