"""Scaled dot-product attention and its gradient on the register tile, without ever storing the Tq x Tk matrix.

    s_ij = scale q_i . k_j        p_ij = exp(s_ij - lse_i),  lse_i = log sum_j exp s_ij        y_i = sum_j p_ij v_j
    causal: key j is seen by the queries i >= j.  dropout: y_i = sum_j p_ij m_ij v_j with m_ij = 0 or 1 / (1 - p).

    dv_j = sum_i p_ij m_ij dy_i        ds_ij = p_ij (m_ij dy_i . v_j - dy_i . y_i)
    dq_i = scale sum_j ds_ij k_j       dk_j = scale sum_i ds_ij q_i

Scores exist for TILE_ROWS queries (backward: QUERY_BLOCK) and KEY_BLOCK keys at a time, in the L1 (L2) cache. With
more than one block of keys the softmax is the running one: when a row's maximum grows, what was summed before is scaled
down. The backward pass recomputes the probabilities from lse. Tiles above the causal diagonal are skipped.

k and v of a head are packed once into panels, padded with zeros. So there are no other edge cases than the last rows
of q and dy. Query heads that share a key-value head (grouped-query attention) share its panels.

Sources: Dao et al., "FlashAttention" (2022); Dao, "FlashAttention-2" (2023); Ainslie et al., "GQA" (2023).
"""

import math
from collections.abc import Callable

import numpy as np

from ..plain_kernels import attention as plain
from .random import fill_dropout
from .softmax import row_max
from .toolbox.jit import inline, kernel
from .toolbox.product_loops import PARALLEL_WORK, THIN_COLUMN_BLOCK, multiply_thin
from .toolbox.register_tile import (
    TILE_PANELS,
    TILE_ROWS,
    advance,
    aligned_empty,
    first_element,
    keep_alive,
    multiply_tile,
    not_inlined,
    pack_panels,
    pack_row_tiles,
    pointer,
    round_up,
    row_maximum,
    tile_columns,
    whole_vectors,
)
from .toolbox.threads import get_num_threads, shares, task_kernel
from .toolbox.vector_math import exp_nonpositive

# Multiples of TILE_ROWS; KEY_BLOCK of tile_columns too (TILE_ROWS is 8 or 6, tile_columns a power of 2 up to 32).
QUERY_BLOCK = -(-64 // TILE_ROWS) * TILE_ROWS
KEY_BLOCK = 64 * TILE_ROWS
# The loops over a row of scores cover whole groups of 2 tiles: LLVM takes 4 vectors at a time and the rest one by one.
ROW_TILES = 2
# With fewer cells than these (per thread in the forward pass, in total in the backward pass) heads are divided further.
FORWARD_CELLS, BACKWARD_CELLS = 4, 32
PARALLEL_CACHE = 250_000  # elements; for fewer another launch on the pool takes as long as reading them


# ---------------------------------------------------------------- kernels


@kernel
def _drop(row, keep, start, seed, offset, p):
    """Multiply a row by its part of the dropout mask, which begins at ``start``; ``keep`` is that part from now on."""
    not_inlined()
    fill_dropout(keep, start, seed, offset, p)
    for j in range(len(keep)):
        row[j] *= keep[j]


@kernel
def _multiply_row_tile(depth, a, a_row, a_column, panels, panel_size, accumulate, zeros, y, y_row, width):
    """y[:TILE_ROWS, :width] (+)= a[:TILE_ROWS, :depth] @ b, one panel of b after the other; width is whole panels."""
    not_inlined()
    n = tile_columns(y)
    for j in range(0, width, TILE_PANELS * n):
        target = advance(y, j)
        start, start_row = (target, y_row) if accumulate else (zeros, 0)
        panel, count = advance(panels, j // n * panel_size), min(TILE_PANELS, (width - j) // n)
        multiply_tile(count, depth, a, a_row, a_column, panel, panel_size, start, start_row, target, y_row)


@kernel
def _write_rows(rows, x, x_row, width, factor, y, y_row):
    """y[:rows, :width] = factor x[:rows, :width]."""
    not_inlined()
    for r in range(rows):
        source, target = advance(x, r * x_row), advance(y, r * y_row)
        for c in range(width):
            target[c] = source[c] * factor


@inline
def _row_tile(x, x_row, i, rows, last):
    """Rows i to i + TILE_ROWS of x as (pointer, row stride, column stride): in place, or the padded copy ``last``."""
    if i + TILE_ROWS <= rows:
        return advance(x, i * x_row), x_row, 1
    return last, 1, TILE_ROWS


@inline
def _head(x, strides, b, h):
    """Where the rows of a head begin."""
    return advance(pointer(x), b * strides[0] + h * strides[1])


@inline
def _visible(i, k, width, Tk, causal):
    """How many of the keys k to k + width the query i sees."""
    return max(0, min(width, min(Tk, i + 1 if causal else Tk) - k))


@kernel
def _column_numbers(count, like):
    """0, 1, ... in ``like``'s dtype: comparing them selects in vectors of scores, which integers do not fit."""
    columns = aligned_empty(count, like)
    for j in range(count):
        columns[j] = j
    return columns


@task_kernel
def _forward(
    task, tasks, q, k, v, out, lse, q_strides, k_strides, v_strides, H, Tk,
    causal, scale, dropout_p, seed, offset, splits,
):  # fmt: skip
    """Cells: (batch, key-value head, split); a split takes every ``splits``-th block of queries of its head group."""
    whole_vectors()
    B, Tq, Hq, D = out.shape
    group = Hq // H
    n = tile_columns(pointer(q))
    width = round_up(D, n)
    block = min(KEY_BLOCK, round_up(Tk, ROW_TILES * n))
    k_panels, v_panels = aligned_empty(round_up(Tk, n) * D, q), aligned_empty(width * Tk, q)
    scores, sums = aligned_empty(TILE_ROWS * block, q), aligned_empty(QUERY_BLOCK * width, q)
    maxima, totals = np.empty(QUERY_BLOCK, q.dtype), np.empty(QUERY_BLOCK, q.dtype)
    shifts, decays = np.empty(TILE_ROWS, q.dtype), np.empty(TILE_ROWS, q.dtype)
    last, zeros, keep = aligned_empty(TILE_ROWS * D, q), aligned_empty(TILE_PANELS * n, q), aligned_empty(block, q)
    columns = _column_numbers(block, q)
    zeros[:] = 0
    zero, lowest = q.dtype.type(0), -q.dtype.type(np.inf)
    real_scale = q.dtype.type(scale)
    query_blocks = (Tq + QUERY_BLOCK - 1) // QUERY_BLOCK

    cells = B * H * splits
    for cell in range(task * cells // tasks, (task + 1) * cells // tasks):
        b, kv_head, split = cell // (H * splits), cell // splits % H, cell % splits
        pack_panels(_head(k, k_strides, b, kv_head), 1, k_strides[2], D, Tk, pointer(k_panels))
        pack_panels(_head(v, v_strides, b, kv_head), v_strides[2], 1, Tk, D, pointer(v_panels))
        for unit in range(split, group * query_blocks, splits):
            h, i_block = kv_head * group + unit // query_blocks, unit % query_blocks * QUERY_BLOCK
            queries, results = _head(q, q_strides, b, h), advance(pointer(out), (b * Tq * Hq + h) * D)
            i_end = min(Tq, i_block + QUERY_BLOCK)
            if i_end == Tq:
                rest = Tq % TILE_ROWS
                pack_row_tiles(advance(queries, (Tq - rest) * q_strides[2]), q_strides[2], 1, rest, D, pointer(last))
            maxima[:] = lowest
            for j_block in range(0, _visible(i_end - 1, 0, Tk, Tk, causal), KEY_BLOCK):
                for i in range(i_block, i_end, TILE_ROWS):
                    i_last = min(i + TILE_ROWS, Tq) - 1
                    depth = _visible(i_last, j_block, KEY_BLOCK, Tk, causal)
                    if depth == 0:
                        continue
                    a, a_row, a_column = _row_tile(queries, q_strides[2], i, Tq, pointer(last))
                    _multiply_row_tile(
                        D, a, a_row, a_column, advance(pointer(k_panels), j_block * D), n * D,
                        False, pointer(zeros), pointer(scores), block, round_up(depth, n),
                    )  # fmt: skip
                    # One short loop per step for all rows: the steps of different rows overlap in the core.
                    row_width = round_up(depth, ROW_TILES * n)
                    for e in range(i, i_last + 1):
                        row = advance(pointer(scores), (e - i) * block)
                        visible = q.dtype.type(_visible(e, j_block, KEY_BLOCK, Tk, causal))
                        for j in range(row_width):
                            row[j] = row[j] * real_scale if columns[j] < visible else lowest
                    for e in range(i, i_last + 1):
                        row = advance(pointer(scores), (e - i) * block)
                        maximum = row_maximum(row, row_width, maxima[e - i_block])
                        shift = maximum if maximum > lowest else zero  # -inf - -inf would be NaN
                        shifts[e - i] = shift
                        if j_block > 0:
                            decays[e - i] = exp_nonpositive(maxima[e - i_block] - shift)
                        maxima[e - i_block] = maximum
                    for e in range(i, i_last + 1):
                        row, shift, total = advance(pointer(scores), (e - i) * block), shifts[e - i], zero
                        for j in range(row_width):
                            probability = exp_nonpositive(row[j] - shift)
                            row[j] = probability
                            total += probability
                        totals[e - i_block] = totals[e - i_block] * decays[e - i] + total if j_block > 0 else total
                    if j_block > 0:
                        for e in range(i, i_last + 1):
                            row_sums, decay = advance(pointer(sums), (e - i_block) * width), decays[e - i]
                            for c in range(width):
                                row_sums[c] *= decay
                    if dropout_p > 0:
                        for e in range(i, i_last + 1):
                            row = advance(pointer(scores), (e - i) * block)
                            start = ((b * Hq + h) * Tq + e) * Tk + j_block
                            _drop(row, keep[:row_width], start, seed, offset, dropout_p)
                    _multiply_row_tile(
                        depth, pointer(scores), block, 1, advance(pointer(v_panels), j_block * n), n * Tk,
                        j_block > 0, pointer(zeros), advance(pointer(sums), (i - i_block) * width), width, width,
                    )  # fmt: skip
                    # All that these queries see. Stores of few rows at a time wait for memory behind the next tiles.
                    if _visible(i_last, 0, Tk, Tk, causal) <= j_block + KEY_BLOCK:
                        for e in range(i, i_last + 1):
                            total = totals[e - i_block]
                            lse[b, h, e] = maxima[e - i_block] + math.log(total)
                            inverse = 1 / total
                            y = advance(results, e * Hq * D)
                            row_sums = advance(pointer(sums), (e - i_block) * width)
                            for c in range(D):
                                y[c] = row_sums[c] * inverse
    keep_alive((k_panels, v_panels, scores, sums, last, zeros))


@task_kernel
def _backward(
    task, tasks, dy, q, k, v, out, lse, dq, dk, dv, dy_strides, q_strides, k_strides, v_strides, out_strides,
    sizes, dq_row_step, dk_row_step, causal, scale, dropout_p, seed, offset,
):  # fmt: skip
    """Cells: (part, batch, key-value head); part p of P takes every P-th block of the queries of its head group.

    dq is (B, Tq, Hq, D), dk and dv are (P, B, Tk, H, D): each part has its own sums, which the launcher adds in order.
    They are given by their first elements; tokens are ``dq_row_step`` and ``dk_row_step`` elements apart.
    """
    whole_vectors()
    parts, B, Tk, H, D, Tq, Hq = sizes
    group = Hq // H
    n = tile_columns(pointer(q))
    width = round_up(D, n)
    block = min(KEY_BLOCK, round_up(Tk, ROW_TILES * n)) + n  # the last key tile of a block may read past its end
    kt_panels, vt_panels = aligned_empty(round_up(Tk, n) * D, q), aligned_empty(round_up(Tk, n) * D, q)
    k_panels = aligned_empty(width * Tk, q)
    q_panels, dy_panels = aligned_empty(width * QUERY_BLOCK, q), aligned_empty(width * QUERY_BLOCK, q)
    p, ds = aligned_empty(QUERY_BLOCK * block, q), aligned_empty(QUERY_BLOCK * block, q)
    dq_sums = aligned_empty(QUERY_BLOCK * width, q)
    padded_Tk = round_up(Tk, TILE_ROWS)
    dk_sums, dv_sums = aligned_empty(padded_Tk * width, q), aligned_empty(padded_Tk * width, q)
    last_q, last_dy = aligned_empty(TILE_ROWS * D, q), aligned_empty(TILE_ROWS * D, q)
    zeros, keep, deltas = aligned_empty(TILE_PANELS * n, q), aligned_empty(block, q), aligned_empty(QUERY_BLOCK, q)
    columns = _column_numbers(block, q)
    zeros[:] = 0
    zero, one, real_scale = q.dtype.type(0), q.dtype.type(1), q.dtype.type(scale)
    query_blocks = (Tq + QUERY_BLOCK - 1) // QUERY_BLOCK

    cells = parts * B * H
    for cell in range(task * cells // tasks, (task + 1) * cells // tasks):
        part, b, kv_head = cell // (B * H), cell // H % B, cell % H
        keys, values = _head(k, k_strides, b, kv_head), _head(v, v_strides, b, kv_head)
        pack_panels(keys, 1, k_strides[2], D, Tk, pointer(kt_panels))
        pack_panels(values, 1, v_strides[2], D, Tk, pointer(vt_panels))
        pack_panels(keys, k_strides[2], 1, Tk, D, pointer(k_panels))
        dk_start = (part * B + b) * Tk * dk_row_step + kv_head * D
        dk_rows, dv_rows = advance(pointer(dk), dk_start), advance(pointer(dv), dk_start)
        summed = 0  # the keys before this one have sums
        for unit in range(part, group * query_blocks, parts):
            h, i_block = kv_head * group + unit // query_blocks, unit % query_blocks * QUERY_BLOCK
            i_end = min(Tq, i_block + QUERY_BLOCK)
            queries, dys, ys = _head(q, q_strides, b, h), _head(dy, dy_strides, b, h), _head(out, out_strides, b, h)
            dq_rows = advance(pointer(dq), (b * Tq + i_block) * dq_row_step + h * D)
            rows = i_end - i_block
            pack_panels(advance(queries, i_block * q_strides[2]), q_strides[2], 1, rows, D, pointer(q_panels))
            pack_panels(advance(dys, i_block * dy_strides[2]), dy_strides[2], 1, rows, D, pointer(dy_panels))
            if i_end == Tq:
                rest = Tq % TILE_ROWS
                pack_row_tiles(advance(queries, (Tq - rest) * q_strides[2]), q_strides[2], 1, rest, D, pointer(last_q))
                pack_row_tiles(advance(dys, (Tq - rest) * dy_strides[2]), dy_strides[2], 1, rest, D, pointer(last_dy))
            for e in range(i_block, i_end):
                dy_row, y_row = advance(dys, e * dy_strides[2]), advance(ys, e * out_strides[2])
                delta = zero
                for c in range(D):
                    delta += dy_row[c] * y_row[c]
                deltas[e - i_block] = delta
            for j_block in range(0, _visible(i_end - 1, 0, Tk, Tk, causal), KEY_BLOCK):
                block_depth = _visible(i_end - 1, j_block, KEY_BLOCK, Tk, causal)
                for i in range(i_block, i_end, TILE_ROWS):
                    i_last = min(i + TILE_ROWS, Tq) - 1
                    depth = _visible(i_last, j_block, KEY_BLOCK, Tk, causal)
                    p_tile = advance(pointer(p), (i - i_block) * block)
                    ds_tile = advance(pointer(ds), (i - i_block) * block)
                    dq_sum = advance(pointer(dq_sums), (i - i_block) * width)
                    a, a_row, a_column = _row_tile(queries, q_strides[2], i, Tq, pointer(last_q))
                    _multiply_row_tile(
                        D, a, a_row, a_column, advance(pointer(kt_panels), j_block * D), n * D,
                        False, pointer(zeros), p_tile, block, round_up(depth, n),
                    )  # fmt: skip
                    a, a_row, a_column = _row_tile(dys, dy_strides[2], i, Tq, pointer(last_dy))
                    _multiply_row_tile(
                        D, a, a_row, a_column, advance(pointer(vt_panels), j_block * D), n * D,
                        False, pointer(zeros), ds_tile, block, round_up(depth, n),
                    )  # fmt: skip
                    # Rows end in zeros where the key tiles below read them; row_width may exceed what was computed.
                    row_width = round_up(depth, ROW_TILES * n)
                    end = max(row_width, round_up(block_depth, n))
                    for e in range(i, i_last + 1):
                        p_row, ds_row = advance(p_tile, (e - i) * block), advance(ds_tile, (e - i) * block)
                        visible = q.dtype.type(_visible(e, j_block, KEY_BLOCK, Tk, causal))
                        row_lse, delta = lse[b, h, e], deltas[e - i_block]
                        if dropout_p > 0:
                            start = ((b * Hq + h) * Tq + e) * Tk + j_block
                            _drop(ds_row, keep[:row_width], start, seed, offset, dropout_p)
                        for j in range(row_width):
                            exponent = p_row[j] * real_scale - row_lse
                            # Rounding may leave it above 0.
                            probability = exp_nonpositive(zero if exponent > zero else exponent)
                            p_row[j] = probability if columns[j] < visible else zero
                            ds_row[j] = probability * (ds_row[j] - delta) if columns[j] < visible else zero
                        if dropout_p > 0:
                            for j in range(row_width):
                                p_row[j] *= keep[j]
                        for j in range(row_width, end):
                            p_row[j] = ds_row[j] = 0
                    _multiply_row_tile(
                        depth, ds_tile, block, 1, advance(pointer(k_panels), j_block * n), n * Tk,
                        j_block > 0, pointer(zeros), dq_sum, width, width,
                    )  # fmt: skip
                    if _visible(i_last, 0, Tk, Tk, causal) <= j_block + KEY_BLOCK:
                        target = advance(dq_rows, (i - i_block) * dq_row_step)
                        _write_rows(i_last + 1 - i, dq_sum, width, D, real_scale, target, dq_row_step)
                for j in range(0, block_depth, TILE_ROWS):
                    # Queries before the first row tile that sees key j contribute zeros.
                    first = max(0, j_block + j - i_block) // TILE_ROWS * TILE_ROWS if causal else 0
                    corner, sums = first * block + j, (j_block + j) * width
                    _multiply_row_tile(
                        rows - first, advance(pointer(p), corner), 1, block,
                        advance(pointer(dy_panels), first * n), n * rows,
                        j_block + j < summed, pointer(zeros), advance(pointer(dv_sums), sums), width, width,
                    )  # fmt: skip
                    _multiply_row_tile(
                        rows - first, advance(pointer(ds), corner), 1, block,
                        advance(pointer(q_panels), first * n), n * rows,
                        j_block + j < summed, pointer(zeros), advance(pointer(dk_sums), sums), width, width,
                    )  # fmt: skip
            summed = max(summed, round_up(_visible(i_end - 1, 0, Tk, Tk, causal), TILE_ROWS))
        dk_sums[summed * width :] = 0
        dv_sums[summed * width :] = 0
        _write_rows(Tk, pointer(dk_sums), width, D, real_scale, dk_rows, dk_row_step)
        _write_rows(Tk, pointer(dv_sums), width, D, one, dv_rows, dk_row_step)
    keep_alive((kt_panels, vt_panels, k_panels, q_panels, dy_panels, last_q, last_dy))
    keep_alive((p, ds, dq_sums, dk_sums, dv_sums, zeros))


@task_kernel
def _extend(task, tasks, q, k, v, cache, length, y, q_strides, k_strides, v_strides, scale):
    """A task has a share of the heads of the cache, and the queries of each, whose scores it holds at once."""
    whole_vectors()
    real = q.dtype.type
    _, B, H, _, D = cache.shape
    group, tokens = y.shape[2] // H, length[0] + 1
    scores, sums = aligned_empty(group * tokens, q), aligned_empty(THIN_COLUMN_BLOCK, q)
    none = pointer(sums)
    for cell in range(task * B * H // tasks, (task + 1) * B * H // tasks):
        b, h = cell // H, cell % H
        keys, values = cache[0, b, h], cache[1, b, h]
        new_key, new_value = _head(k, k_strides, b, h), _head(v, v_strides, b, h)
        for c in range(D):
            keys[tokens - 1, c] = new_key[c]
            values[tokens - 1, c] = new_value[c]
        queries = _head(q, q_strides, b, h * group)
        multiply_thin(
            queries, q_strides[1], pointer(keys), 1, D, none, False, pointer(scores), tokens, 1, group, tokens, D, sums
        )
        target = advance(pointer(y), (b * H + h) * group * D)
        for i in range(group):
            row, total = scores[i * tokens : (i + 1) * tokens], real(0)
            largest = row_max(row)
            for j in range(tokens):
                row[j] = exp_nonpositive((row[j] - largest) * real(scale))
            for j in range(tokens):
                total += row[j]
            inverse = real(1) / total
            for j in range(tokens):
                row[j] *= inverse
        multiply_thin(pointer(scores), tokens, pointer(values), D, 1, none, False, target, D, 1, group, D, tokens, sums)
    keep_alive((scores, sums))


# ---------------------------------------------------------------- launchers


def _operand(x: np.ndarray) -> tuple[np.ndarray, tuple[int, int, int]]:
    """The first element of x (B, H, T, D) and its strides in elements; copied if the rows are not contiguous."""
    b, h, t, d = x.strides
    size = x.itemsize
    if (d != size and x.shape[-1] > 1) or not x.flags.aligned:
        x = np.array(x, order="C")
        b, h, t, d = x.strides
    return first_element(x), (b // size, h // size, t // size)


Options = tuple[bool, float, float, int, int]  # those of ``minigrad.ops.attention``


def _typed(options: Options) -> tuple[bool, float, float, np.uint64, np.uint64]:
    """The options in the types that the kernels are compiled for."""
    causal, scale, dropout_p, seed, offset = options
    if dropout_p == 0:
        return causal, float(scale), 0.0, _NO_SEED, _NO_SEED
    return causal, float(scale), float(dropout_p), np.uint64(seed), np.uint64(offset)


_NO_SEED = np.uint64(0)


def _tasks(work: int) -> int:
    """Of so many multiply-adds; at least one for each thread."""
    return max(get_num_threads(), shares(work, PARALLEL_WORK))


supports_half: Callable[[np.ndarray], bool] = plain.supports_half


def forward(q: np.ndarray, k: np.ndarray, v: np.ndarray, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """softmax(scale q k^T) v, with dropout on the probabilities.

    Args:
        q: (B, H, Tq, D); k, v: (B, Hkv, Tk, D) with H a multiple of Hkv; float32 or float64, any strides (copied only
            if the last dimension is not contiguous).
        options: causal, scale, dropout_p, seed, offset. With ``causal`` query i sees the keys j <= i, as in PyTorch
            also where Tq and Tk differ. Dropout: a probability is zeroed or divided by 1 - p; element (b,
            h, i, j) of the (B, H, Tq, Tk) mask is drawn by ``random.fill_dropout``.

    Returns: y (B, H, Tq, D) and lse (B, H, Tq). y is laid out in memory as (B, Tq, H, D), as the output projection
    reads it, and is 0 without keys. lse is the logarithm of each row's softmax denominator, for ``backward``.
    """
    B, Hq, Tq, D = q.shape
    H, Tk = k.shape[1:3]
    out = np.empty((B, Tq, Hq, D), q.dtype)
    lse = np.empty((B, Hq, Tq), q.dtype)
    if q.size == 0 or k.size == 0:
        out[...] = 0
        with np.errstate(divide="ignore"):
            causal, *_ = options
            lse[...] = np.log(np.minimum(np.arange(Tq) + 1, Tk) if causal else Tk)
        return out.swapaxes(1, 2), lse
    thread_count = get_num_threads()
    units = Hq // H * -(-Tq // QUERY_BLOCK)
    splits = max(1, min(units, FORWARD_CELLS * thread_count // (B * H)))
    (q, q_strides), (k, k_strides), (v, v_strides) = _operand(q), _operand(k), _operand(v)
    _forward.launch(
        q.dtype, min(_tasks(B * Hq * Tq * Tk * D), B * H * splits), q, k, v, out, lse, q_strides, k_strides, v_strides,
        H, Tk, *_typed(options), splits,
    )  # fmt: skip
    return out.swapaxes(1, 2), lse


def backward(
    dy: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray, lse: np.ndarray, options: Options
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients (dq, dk, dv) of sum(dy * y), shaped like q, k, v and laid out as (B, T, heads, D).

    Arguments as given to and returned by ``forward``; the dropout mask is drawn again. The head group of a key-value
    head is summed in one fixed order, so the result does not depend on the number of threads.
    """
    B, Hq, Tq, D = q.shape
    H, Tk = k.shape[1:3]
    dq = np.empty((B, Tq, Hq, D), q.dtype)
    if q.size == 0 or k.size == 0:
        dq[...] = 0
        dk, dv = np.zeros((2, B, Tk, H, D), q.dtype)
        return dq.swapaxes(1, 2), dk.swapaxes(1, 2), dv.swapaxes(1, 2)
    parts = _parts(B, Hq, H, Tq)
    dk, dv = np.empty((parts, B, Tk, H, D), q.dtype), np.empty((parts, B, Tk, H, D), q.dtype)
    grads = dq.reshape(-1), dk.reshape(-1), dv.reshape(-1)
    operands = _operand(q), _operand(k), _operand(v)
    _launch_backward((parts, B, Tk, H, D, Tq, Hq), dy, operands, out, lse, grads, (Hq * D, H * D), _typed(options))
    dk, dv = (x[0] if parts == 1 else x.sum(axis=0) for x in (dk, dv))
    return dq.swapaxes(1, 2), dk.swapaxes(1, 2), dv.swapaxes(1, 2)


def backward_packed(dy: np.ndarray, qkv: np.ndarray, out: np.ndarray, lse: np.ndarray, options: Options) -> np.ndarray:
    """``backward`` where one array qkv (B, T, 3, H, D) holds q, k and v: their gradients as one array like it."""
    B, T, _, H, D = qkv.shape
    dqkv = np.empty((B, T, 3, H, D), qkv.dtype)
    if qkv.size and _parts(B, H, H, T) == 1:  # else dk and dv are sums of parts
        row = 3 * H * D
        steps = T * row, D, row
        first_q, first_k, first_v = _thirds(qkv if qkv.flags.carray else np.array(qkv, order="C"), H * D)
        operands = (first_q, steps), (first_k, steps), (first_v, steps)
        _launch_backward(
            (1, B, T, H, D, T, H), dy, operands, out, lse, _thirds(dqkv, H * D), (row, row), _typed(options)
        )
    else:
        q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
        for i, grad in enumerate(backward(dy, q, k, v, out, lse, options)):
            dqkv[:, :, i] = grad.swapaxes(1, 2)
    return dqkv


def _thirds(x: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where q, k and v, ``size`` elements each, begin in the first row of a contiguous array."""
    flat = x.reshape(-1)
    return flat, flat[size:], flat[2 * size :]


def _parts(B: int, Hq: int, H: int, Tq: int) -> int:
    """Into how many parts the queries of a head group are divided; depends on the shapes only."""
    return max(1, min(Hq // H * -(-Tq // QUERY_BLOCK), BACKWARD_CELLS // (B * H)))


def _launch_backward(
    sizes: tuple[int, ...], dy: np.ndarray, operands: tuple[tuple[np.ndarray, tuple[int, int, int]], ...],
    out: np.ndarray, lse: np.ndarray, grads: tuple[np.ndarray, np.ndarray, np.ndarray], row_steps: tuple[int, int],
    options: tuple[bool, float, float, np.uint64, np.uint64],
) -> None:  # fmt: skip
    """Run ``_backward``; ``operands`` are q, k and v, ``grads`` and ``row_steps`` its dq, dk, dv and their steps."""
    parts, B, Tk, H, D, Tq, Hq = sizes
    (q, q_strides), (k, k_strides), (v, v_strides) = operands
    (dy, dy_strides), (out, out_strides) = _operand(dy), _operand(out)
    _backward.launch(
        q.dtype, min(_tasks(B * Hq * Tq * Tk * D), parts * B * H), dy, q, k, v, out, np.ascontiguousarray(lse), *grads,
        dy_strides, q_strides, k_strides, v_strides, out_strides, sizes, *row_steps, *options,
    )  # fmt: skip


def extend(q: np.ndarray, k: np.ndarray, v: np.ndarray, cache: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Attention of one more token to those in a cache and itself, which it is added to.

    Args:
        q: (B, H, 1, D), k and v (B, Hkv, 1, D) as in ``forward``.
        cache: keys and values (2, B, Hkv, max_tokens, D), contiguous, of q's dtype, which get k and v.
        length: int64 (1,), how many tokens are in it, fewer than max_tokens. Only the kernel reads it, so that a
            launch of a graph may find another number there.

    Returns: y (B, H, 1, D), laid out in memory as (B, 1, H, D).
    """
    B, H, T, D = q.shape
    y = np.empty((B, T, H, D), q.dtype)
    (q, q_strides), (k, k_strides), (v, v_strides) = _operand(q), _operand(k), _operand(v)
    tasks = shares(cache.size, PARALLEL_CACHE)
    _extend.launch(q.dtype, tasks, q, k, v, cache, length, y, q_strides, k_strides, v_strides, 1 / math.sqrt(D))
    return y.swapaxes(1, 2)
