"""One token of each sequence through a language model with a key-value cache: token ids (B,) -> logits (B, vocab).

A model with few rows reads each weight once for a handful of multiply-adds, so what counts is how fast weights stream
through the core, and everything between the products (launches, temporary arrays, Python) is overhead. Here the whole
model is one call. A table holds the addresses of all weights; the kernel goes through these steps, of which each layer
has five:

    embed       x = embedding[token] (+ positions[t])
    project     q, k, v = norm(x) W^T + b
    attend      rotate q and k (Llama), write k and v into the cache, y = softmax(q k^T / sqrt D) v
    merge       x += y W^T + b
    expand      h = act(norm(x) W^T + b), or silu(norm(x) W_gate^T) * (norm(x) W_up^T)
    contract    x += h W^T + b
    head        logits = norm(x) W^T

A step divides rows of its weights (heads, in ``attend``) among tasks, and the next one waits for all of them. Each sum
is one task's, in an order that does not depend on the number of tasks. Steps with little work are one task.

float32 or float64; all arrays C-contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np

from ...plain_kernels.elementwise import GELU_CUBIC, GELU_SLOPE
from ..toolbox.jit import inline, kernel
from ..toolbox.multi_tensor import address_of, pointer_at
from ..toolbox.register_tile import advance, bound, not_inlined, pointer
from ..toolbox.threads import BoundKernel, Launches, get_num_threads, step_of, task_kernel
from ..toolbox.vector_math import exp_fast, maxnum, normal_cdf, sigmoid_fast

SMALLEST = -87.0  # beside the largest exponential, 1, smaller ones than e^-87 are nothing; they would be subnormal
ACTIVATIONS = {"tanh": 0, "none": 1, "silu": 2}  # GELU's forms, and SwiGLU
STEPS = 5  # of a layer
UNIT = 16  # rows of weights that are not divided between tasks: a cache line of results
# Below this many multiply-adds a step is one task: another launch on the pool takes as long.
PARALLEL_WORK = 125_000


Pair = tuple[Any, Any]


class Layer(NamedTuple):
    """A block: weight and bias (or None) of each part, and the keys and values of its cache (B, G, max_tokens, D).

    Matrices are (out, in): q (H D, C), k and v (G D, C), out (C, H D), gate and up (F, C), down (C, F). gate is (None,
    None) where the activation is GELU.
    """

    norm_1: Pair
    q: Pair
    k: Pair
    v: Pair
    out: Pair
    norm_2: Pair
    gate: Pair
    up: Pair
    down: Pair
    cache: Pair


class Model(NamedTuple):
    """A language model. ``eps`` (2 layers + 1) is that of each norm, which is RMSNorm if ``rms``.

    ``positions`` (tokens, C) is added to the embedding (vocab, C), or None. ``rotation``: cosine and sine (max_tokens,
    D / 2) that rotate queries and keys, or (None, None). ``activation``: "tanh" or "none" (GELU's forms), or "silu".
    """

    embedding: Any
    positions: Any
    layers: Sequence[Layer]
    norm: Pair
    head: Any
    rotation: Pair
    eps: Sequence[float]
    rms: bool
    activation: str


(
    NORM_1, NORM_1_BIAS, Q, Q_BIAS, K, K_BIAS, V, V_BIAS, OUT, OUT_BIAS, NORM_2, NORM_2_BIAS,
    GATE, GATE_BIAS, UP, UP_BIAS, DOWN, DOWN_BIAS, KEYS, VALUES,
) = range(2 * len(Layer._fields))  # fmt: skip
EMBEDDING, POSITIONS, NORM, NORM_BIAS, HEAD, COS, SIN = range(7)


# ---------------------------------------------------------------- kernels


@kernel
def _product(x, x_row, rows, depth, weight, bias, like, first, last, y, y_row, add):
    """y[:rows, first:last] (+)= x[:rows, :depth] @ weight[first:last].T + bias; strides in elements."""
    not_inlined()
    zero = like.dtype.type(0)
    w, b = pointer_at(weight, like), pointer_at(bias, like)
    j = first
    while j + 4 <= last:
        w0 = advance(w, j * depth)
        w1, w2, w3 = advance(w0, depth), advance(w0, 2 * depth), advance(w0, 3 * depth)
        b0 = b1 = b2 = b3 = zero
        if bias != 0:
            b0, b1, b2, b3 = b[j], b[j + 1], b[j + 2], b[j + 3]
        i = 0
        while i + 2 <= rows:  # each weight that is loaded is used twice
            x0, x1 = advance(x, i * x_row), advance(x, (i + 1) * x_row)
            s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = zero
            for k in range(depth):
                s00 += x0[k] * w0[k]
                s01 += x0[k] * w1[k]
                s02 += x0[k] * w2[k]
                s03 += x0[k] * w3[k]
                s10 += x1[k] * w0[k]
                s11 += x1[k] * w1[k]
                s12 += x1[k] * w2[k]
                s13 += x1[k] * w3[k]
            _store(advance(y, i * y_row + j), s00 + b0, s01 + b1, s02 + b2, s03 + b3, add)
            _store(advance(y, (i + 1) * y_row + j), s10 + b0, s11 + b1, s12 + b2, s13 + b3, add)
            i += 2
        if i < rows:
            x0 = advance(x, i * x_row)
            s0 = s1 = s2 = s3 = zero
            for k in range(depth):
                s0 += x0[k] * w0[k]
                s1 += x0[k] * w1[k]
                s2 += x0[k] * w2[k]
                s3 += x0[k] * w3[k]
            _store(advance(y, i * y_row + j), s0 + b0, s1 + b1, s2 + b2, s3 + b3, add)
        j += 4
    while j < last:
        w0 = advance(w, j * depth)
        for i in range(rows):
            x0, target = advance(x, i * x_row), advance(y, i * y_row + j)
            s0 = b[j] if bias != 0 else zero
            for k in range(depth):
                s0 += x0[k] * w0[k]
            target[0] = target[0] + s0 if add else s0
        j += 1


@inline
def _store(y, s0, s1, s2, s3, add):
    y[0] = y[0] + s0 if add else s0
    y[1] = y[1] + s1 if add else s1
    y[2] = y[2] + s2 if add else s2
    y[3] = y[3] + s3 if add else s3


@kernel
def _normalise(x, rows, C, weight, bias, eps, rms, like, y):
    """y = the layer norm (RMSNorm if ``rms``) of the rows of x (rows, C)."""
    not_inlined()
    real = like.dtype.type
    zero, scale = real(0), real(1) / real(C)
    w, b = pointer_at(weight, like), pointer_at(bias, like)
    for i in range(rows):
        xi, yi = advance(x, i * C), advance(y, i * C)
        mean = zero
        if not rms:
            for j in range(C):
                mean += xi[j]
            mean *= scale
        squares = zero
        for j in range(C):
            centred = xi[j] - mean
            squares += centred * centred
        r = real(1.0 / math.sqrt(np.float64(squares * scale) + eps))
        if bias != 0:
            for j in range(C):
                yi[j] = (xi[j] - mean) * r * w[j] + b[j]
        else:
            for j in range(C):
                yi[j] = (xi[j] - mean) * r * w[j]


@inline
def _rotate(x, heads, D, cos, sin):
    """Rotate the pairs (x[c], x[c + D / 2]) of each head in place."""
    half = D // 2
    for h in range(heads):
        first, second = advance(x, h * D), advance(x, h * D + half)
        for c in range(half):
            a, b = first[c], second[c]
            first[c] = a * cos[c] - b * sin[c]
            second[c] = a * sin[c] + b * cos[c]


@kernel
def _attend(q, keys, values, like, tokens, D, p, y):
    """y (D,) = softmax(q keys^T / sqrt D) values, for one head: q (D,), keys and values (tokens, D), p (tokens,)."""
    not_inlined()
    real = like.dtype.type
    zero, scale, smallest = real(0), real(1.0 / math.sqrt(D)), real(SMALLEST)
    _product(q, D, 1, D, keys, 0, like, 0, tokens, p, tokens, False)
    maximum = p[0]
    for j in range(tokens):
        maximum = maxnum(maximum, p[j])
    total = zero
    for j in range(tokens):
        s = (p[j] - maximum) * scale
        e = exp_fast(smallest if s < smallest else s)
        p[j] = e
        total += e
    for c in range(D):
        y[c] = zero
    v = pointer_at(values, like)
    j = 0
    while j + 4 <= tokens:
        v0 = advance(v, j * D)
        v1, v2, v3 = advance(v0, D), advance(v0, 2 * D), advance(v0, 3 * D)
        p0, p1, p2, p3 = p[j], p[j + 1], p[j + 2], p[j + 3]
        for c in range(D):
            y[c] += (p0 * v0[c] + p1 * v1[c]) + (p2 * v2[c] + p3 * v3[c])
        j += 4
    while j < tokens:
        v0, p0 = advance(v, j * D), p[j]
        for c in range(D):
            y[c] += p0 * v0[c]
        j += 1
    inverse = real(1) / total
    for c in range(D):
        y[c] *= inverse


@kernel
def _activate(h, gate, activation, count, like):
    """h = gelu(h), or silu(gate) h, in place."""
    not_inlined()
    real = like.dtype.type
    half, one, slope, cubic = real(0.5), real(1), real(GELU_SLOPE), real(GELU_CUBIC)
    if activation == 2:
        for j in range(count):
            h[j] = gate[j] * sigmoid_fast(gate[j]) * h[j]
    elif activation == 1:
        for j in range(count):
            h[j] = h[j] * normal_cdf(h[j], exp_fast(-half * h[j] * h[j]))
    else:
        for j in range(count):
            h[j] = h[j] * sigmoid_fast(slope * h[j] * (one + cubic * h[j] * h[j]))


@task_kernel
def _step(task, tasks, state, table, ends, eps, sizes, options, x, qkv, attended, hidden, scratch, scores):
    """One task's share of a step. ``state``: position, address of the logits, tokens. ``x`` (B, C), ``qkv`` (B, (H + 2
    G) D), ``attended`` (B, H D), ``hidden`` (2, B, F); each task has its own ``scratch`` (B C) and ``scores``."""
    B, C, H, G, D, F, vocab, room, layers = sizes
    rms, activation = options
    step, task = step_of(task)
    t = state[0]
    like, stream, rows = x, pointer(x), advance(pointer(scratch), task * B * C)
    if step == 0:
        for b in range(B):
            xb, row = advance(stream, b * C), advance(pointer_at(ends[EMBEDDING], like), state[2 + b] * C)
            if ends[POSITIONS] != 0:
                position = advance(pointer_at(ends[POSITIONS], like), t * C)
                for c in range(C):
                    xb[c] = row[c] + position[c]
            else:
                for c in range(C):
                    xb[c] = row[c]
        return
    layer, part, width = (step - 1) // STEPS, (step - 1) % STEPS, (H + 2 * G) * D
    total = vocab if layer == layers else F if part == 3 else C
    first, last = bound(task, tasks, total, UNIT), bound(task + 1, tasks, total, UNIT)  # rows of weights
    if layer == layers:
        _normalise(stream, B, C, ends[NORM], ends[NORM_BIAS], eps[2 * layers], rms, like, rows)
        _product(rows, C, B, C, ends[HEAD], 0, like, first, last, pointer_at(state[1], like), vocab, False)
        return
    w = table[layer]
    if part == 0:
        _normalise(stream, B, C, w[NORM_1], w[NORM_1_BIAS], eps[2 * layer], rms, like, rows)
        start = 0
        for i in range(3):
            count = (H if i == 0 else G) * D
            low, high = bound(task, tasks, count, UNIT), bound(task + 1, tasks, count, UNIT)
            y = advance(pointer(qkv), start)
            _product(rows, C, B, C, w[Q + 2 * i], w[Q_BIAS + 2 * i], like, low, high, y, width, False)
            start += count
    elif part == 1:
        p, group = advance(pointer(scores), task * room), H // G
        for cell in range(task * B * G // tasks, (task + 1) * B * G // tasks):
            b, g = cell // G, cell % G
            q = advance(pointer(qkv), b * width + g * group * D)
            k = advance(pointer(qkv), b * width + (H + g) * D)
            v = advance(k, G * D)
            if ends[COS] != 0:
                cos, sin = (
                    advance(pointer_at(ends[COS], like), t * (D // 2)),
                    advance(pointer_at(ends[SIN], like), t * (D // 2)),
                )
                _rotate(q, group, D, cos, sin)
                _rotate(k, 1, D, cos, sin)
            begin = cell * room * D
            new_key = advance(pointer_at(w[KEYS], like), begin + t * D)
            new_value = advance(pointer_at(w[VALUES], like), begin + t * D)
            for c in range(D):
                new_key[c] = k[c]
                new_value[c] = v[c]
            keys, values = w[KEYS] + begin * like.itemsize, w[VALUES] + begin * like.itemsize
            for h in range(group):
                y = advance(pointer(attended), (b * H + g * group + h) * D)
                _attend(advance(q, h * D), keys, values, like, t + 1, D, p, y)
    elif part == 2:
        _product(pointer(attended), H * D, B, H * D, w[OUT], w[OUT_BIAS], like, first, last, stream, C, True)
    elif part == 3:
        _normalise(stream, B, C, w[NORM_2], w[NORM_2_BIAS], eps[2 * layer + 1], rms, like, rows)
        h, gate = pointer(hidden), advance(pointer(hidden), B * F)
        if activation == 2:
            _product(rows, C, B, C, w[GATE], w[GATE_BIAS], like, first, last, gate, F, False)
        _product(rows, C, B, C, w[UP], w[UP_BIAS], like, first, last, h, F, False)
        for b in range(B):
            begin = b * F + first
            _activate(advance(h, begin), advance(gate, begin), activation, last - first, like)
    else:
        _product(pointer(hidden), F, B, F, w[DOWN], w[DOWN_BIAS], like, first, last, stream, C, True)


# ---------------------------------------------------------------- launchers


class DecodePlan:
    """A model made ready: the table of addresses, the workspace, and how many tasks each step has."""

    batch: int
    room: int  # max_tokens of the cache
    shape: tuple[int, ...]  # of the logits
    dtype: np.dtype[Any]
    state: np.ndarray  # position, address of the logits, tokens

    def __init__(self, model: Model) -> None:
        first = model.layers[0]
        B, G, room, D = first.cache[0].shape
        (vocab, C), dtype = model.head.shape, model.head.dtype
        H, F, layers = len(first.q[0]) // D, len(first.up[0]), len(model.layers)
        workers = int(numba.config.NUMBA_NUM_THREADS)
        ends = (model.embedding, model.positions, *model.norm, model.head, *model.rotation)
        self._model = model  # whose memory the tables refer to
        self.batch, self.room, self.shape, self.dtype = B, room, (B, 1, vocab), dtype
        self.state = np.zeros(2 + B, np.int64)
        self._kernel: BoundKernel = _step.bind(
            dtype,
            self.state,
            np.array([_addresses(array for pair in layer for array in pair) for layer in model.layers]),
            _addresses(ends),
            np.array(model.eps, np.float64),
            (B, C, H, G, D, F, vocab, room, layers),
            (int(model.rms), ACTIVATIONS[model.activation]),
            np.empty((B, C), dtype),
            np.empty((B, (H + 2 * G) * D), dtype),
            np.empty((B, H * D), dtype),
            np.empty((2, B, F), dtype),
            np.empty((workers, B * C), dtype),
            np.empty((workers, room), dtype),
        )
        wide = F if first.gate[0] is None else 2 * F
        of_layer = [(H + 2 * G) * D * C, H * room * D, H * D * C, wide * C, F * C]
        self._work = B * np.array([0, *of_layer * layers, vocab * C])
        self._steps: dict[int, Launches] = {}

    def run(self) -> None:
        """All steps, with the position, the logits and the tokens that are in ``state``."""
        count = get_num_threads()
        if count not in self._steps:
            self._steps[count] = self._kernel.steps(np.where(self._work >= PARALLEL_WORK, count, 1).tolist())
        self._steps[count].run()


def _addresses(arrays: Iterable[np.ndarray | None]) -> np.ndarray:
    return np.array([0 if array is None else address_of(array) for array in arrays], np.int64)


def fits(model: Model) -> bool:
    """Whether all arrays are contiguous, of one dtype, float32 or float64, of the shapes that `DecodePlan` expects."""
    if not model.layers or model.embedding.ndim != 2 or len(model.eps) != 2 * len(model.layers) + 1:
        return False
    C, dtype, first = model.embedding.shape[1], model.embedding.dtype, model.layers[0]
    keys, gated = first.cache[0], model.activation == "silu"
    if dtype not in (np.float32, np.float64) or keys.ndim != 4 or 0 in keys.shape or None in model.eps:
        return False
    _, G, room, D = keys.shape
    H, F = len(first.q[0]) // D, len(first.up[0])
    if H == 0 or H % G:
        return False
    matrices = {"q": (H * D, C), "k": (G * D, C), "v": (G * D, C), "out": (C, H * D), "up": (F, C), "down": (C, F)}
    shapes: dict[str, tuple[int, ...]] = {**matrices, "norm_1": (C,), "norm_2": (C,), "gate": (F, C)}
    needed = [(model.embedding, (len(model.embedding), C)), (model.norm[0], (C,)), (model.head, (len(model.head), C))]
    optional = [(model.norm[1], (C,)), *((table, (room, D // 2)) for table in model.rotation)]
    if model.positions is not None:
        optional.append((model.positions, (max(room, len(model.positions)), C)))
    for layer in model.layers:
        needed += [(array, keys.shape) for array in layer.cache]
        for name, shape in shapes.items():
            weight, bias = getattr(layer, name)
            if gated or name != "gate":
                needed.append((weight, shape))
            optional.append((bias, shape[:1]))
    needed += [(array, shape) for array, shape in optional if array is not None]
    return all(
        array is not None and array.dtype == dtype and array.shape == shape and array.flags.carray
        for array, shape in needed
    )


def prepare(model: Model) -> DecodePlan | None:
    """What `step` needs of the model, or None if it is none that `step` can compute (see `fits`).

    It holds for as long as the model's arrays are the same; their values may change.
    """
    return DecodePlan(model) if fits(model) else None


def step(plan: DecodePlan, tokens: np.ndarray, position: int) -> np.ndarray:
    """Append tokens (B, 1), each below the number of rows of the embedding, at ``position`` to the cache, which holds
    as many -> logits of the next (B, 1, vocab)."""
    state, logits = plan.state, np.empty(plan.shape, plan.dtype)
    state[0], state[1] = position, address_of(logits)
    state[2:] = tokens[:, 0]
    plan.run()
    return logits
