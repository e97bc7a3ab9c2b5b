"""The cases of ``ops_cpu.py``: each public operation on tensors, the same source for minigrad and PyTorch.

A case's work is about that of a pass over an array of the given shape, except for products, whose rows are at most 512.
``tests/test_cpu_benchmarks.py`` checks that each public name is in a case or in ``NOT_MEASURED``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

Cases = dict[str, tuple[Any, ...]]

# Reasons, and the public names that have no case.
NOT_MEASURED = {
    "a view, which moves no data": "broadcast_to chunk detach diagonal expand expand_as flatten meshgrid movedim "
    "narrow permute ravel reshape reshape_as select split squeeze swapaxes t unbind unflatten unsqueeze view "
    "view_as",
    "filled from a shape": "arange empty empty_like eye full full_like linspace logspace new_empty new_full new_ones "
    "new_zeros ones ones_like tril_indices triu_indices zeros zeros_like",
    "Python's or NumPy's data": "as_tensor from_dlpack from_numpy item new_tensor numpy tensor tolist",
    "asks about no element": "dim element_size finfo iinfo is_contiguous is_floating_point is_pinned is_tensor numel "
    "promote_types result_type size stride",
    "another name of a case": "bfloat16 bool cpu double float half int long rand_like randint_like randn_like "
    "true_divide type_as",
    "PyTorch has none": "draw explain feed_forward fresh_seed kernels memory_report memory_stats packed_attention "
    "plain_families release_memory rope to_device unfused",
    "the engine, settings, files": "backward checkpoint default_dtype detect_anomaly get_autocast_dtype "
    "get_float32_matmul_precision get_num_threads gradcheck is_autocast_enabled is_grad_enabled load manual_seed "
    "requires_grad_ save set_default_dtype set_float32_matmul_precision set_num_threads set_printoptions",
}


def operations(library: Any, F: Any, shape: tuple[int, int], dtype: str) -> Cases:
    """By name a function and its tensors; gradients are taken where they are floating, for functions that have one."""
    t = inputs(library, shape, dtype)
    found = {name: (function, t.x) for name, function in unary(library, F, t).items()}
    found |= {name: (function, t.x, t.y) for name, function in binary(library, t).items()}
    if t.floating:
        found |= real(library, F, t)
        found["bce"] = (lambda p: F.binary_cross_entropy(p, t.bounded), t.bounded)
    else:
        found |= whole(t)
    return found | products(library, F, t) | randoms(library, t) | in_place(library, t)


def unaccounted() -> set[str]:
    """minigrad's public names that neither a case uses nor NOT_MEASURED has, and those there that are not public."""
    minigrad, help_of = (importlib.import_module(name) for name in ("minigrad", "minigrad.method_help"))
    functions = [getattr(minigrad, name) for name in minigrad.__all__]
    public = {f.__name__ for f in functions if isinstance(f, FunctionType)} | set(help_of.read()[1])
    left_out = set(" ".join(NOT_MEASURED.values()).split())
    measured = set()
    for dtype in ("float32", "int64"):
        for name, (function, *_) in operations(minigrad, minigrad.nn.functional, (16, 64), dtype).items():
            code = getattr(function, "__code__", None)
            measured |= {name, function.__name__, *(code.co_names if code else ())}
    return (public - measured) ^ (left_out - measured) | (left_out - public)


def inputs(library: Any, shape: tuple[int, int], dtype: str) -> SimpleNamespace:
    """Tensors of normal numbers or integers, and places in them."""
    rng = np.random.default_rng(0)
    rows, columns = shape
    floating = dtype != "int64"
    kind = getattr(library, dtype)

    def tensor(array: np.ndarray) -> Any:
        return library.tensor(array.astype(np.float32) if floating else array).to(kind)

    values = rng.normal(0, 2, shape) if floating else rng.integers(-9, 9, shape)
    x, y = tensor(values), tensor(np.where(values[::-1] == 0, 1, values[::-1]))
    t = SimpleNamespace(shape=shape, kind=kind, floating=floating, x=x, y=y)
    t.part = x[: rows // 8, : columns // 8].clone()
    t.positive, t.row, t.condition = tensor(np.abs(values) + 1), tensor(values[0]), library.tensor(values > 0)
    t.places = library.tensor(rng.integers(0, rows, rows))
    t.along = library.tensor(rng.integers(0, columns, shape))
    t.classes = library.tensor(rng.integers(0, 64, rows * 4))
    t.order = library.tensor(rng.permutation(rows))
    t.ascending, t.same = tensor(np.sort(values[0])), x.clone()
    t.zeros, t.ones, t.own, t.even = (tensor(np.full(shape, number)) for number in (0, 1, 1, 1))
    t.bounded = x.sigmoid() if floating else x
    return t


def unary(library: Any, F: Any, t: SimpleNamespace) -> dict[str, Callable[[Any], Any]]:
    """Functions of a tensor of any dtype."""
    row, condition, places, along, order = t.row, t.condition, t.places, t.along, t.order
    y, part = t.y, t.part
    return {
        "abs": lambda x: x.abs(), "neg": lambda x: -x, "square": lambda x: x.square(), "sign": lambda x: x.sign(),
        "clamp": lambda x: x.clamp(-1, 1), "relu": F.relu, "sum": lambda x: x.sum(), "sum rows": lambda x: x.sum(-1),
        "sum columns": lambda x: x.sum(0), "max": lambda x: x.max(), "max rows": lambda x: x.max(-1),
        "argmax": lambda x: x.argmax(-1), "prod": lambda x: x.prod(-1), "cumsum": lambda x: x.cumsum(-1),
        "sort": lambda x: x.sort(-1), "topk": lambda x: x.topk(5, -1), "median": lambda x: x.median(),
        "contiguous of T": lambda x: x.transpose(0, 1).contiguous(), "clone": lambda x: x.clone(),
        "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(3, 0), "tile": lambda x: x.tile(2, 1),
        "tril": lambda x: x.tril(), "slice": lambda x: x[1:, ::2].contiguous(), "any": lambda x: x.any(),
        "unique": lambda x: x.unique(), "nonzero": lambda x: x.nonzero(), "isnan": lambda x: x.isnan(),
        "to bfloat16": lambda x: x.to(library.bfloat16), "to float64": lambda x: x.to(library.float64),
        "to int64": lambda x: x.to(library.int64), "gather": lambda x: x.gather(1, along),
        "index_select": lambda x: x.index_select(0, places), "masked_fill": lambda x: x.masked_fill(condition, 0),
        "index by mask": lambda x: x[condition], "cat": lambda x: library.cat([x, x], 0),
        "stack": lambda x: library.stack([x, x]), "logical_not": lambda x: x.logical_not(),
        "x + 2": lambda x: x + 2, "x * 2": lambda x: x * 2, "x + row": lambda x: x + row,
        "2 - x": lambda x: 2 - x, "x / 2": lambda x: x / 2, "x * column": lambda x: x * y[:, :1],
        "x < 2": lambda x: x < 2, "one_hot": lambda x: F.one_hot(t.classes, 64),
        "clamp_min": lambda x: x.clamp_min(0), "clamp_max": lambda x: x.clamp_max(0), "pow 2": lambda x: x.pow(2),
        "isinf": lambda x: x.isinf(), "isfinite": lambda x: x.isfinite(), "isposinf": lambda x: x.isposinf(),
        "isneginf": lambda x: x.isneginf(), "where number": lambda x: x.where(condition, 0),
        "min": lambda x: x.min(), "min rows": lambda x: x.min(-1), "max columns": lambda x: x.max(0),
        "amax": lambda x: x.amax(-1), "amin": lambda x: x.amin(0), "argmin": lambda x: x.argmin(-1),
        "argmax columns": lambda x: x.argmax(0), "argmax of all": lambda x: x.argmax(), "all": lambda x: x.all(),
        "all rows": lambda x: x.all(-1), "count_nonzero": lambda x: x.count_nonzero(), "trace": lambda x: x.trace(),
        "prod of all": lambda x: x.prod(), "nansum": lambda x: x.nansum(), "cumsum columns": lambda x: x.cumsum(0),
        "cumprod": lambda x: x.cumprod(-1), "cummax": lambda x: x.cummax(-1), "cummin": lambda x: x.cummin(-1),
        "diff": lambda x: x.diff(), "median rows": lambda x: x.median(-1), "sort columns": lambda x: x.sort(0),
        "argsort": lambda x: x.argsort(-1), "topk 50": lambda x: x.topk(50, -1), "flip rows": lambda x: x.flip(1),
        "roll of all": lambda x: x.roll(3), "roll rows": lambda x: x.roll(3, 1), "repeat": lambda x: x.repeat(2, 1),
        "repeat_interleave": lambda x: x.repeat_interleave(2, 1), "triu": lambda x: x.triu(),
        "diag": lambda x: row.diag(), "outer": lambda x: library.outer(row, row),
        "diag of matrix": lambda x: x.diag(), "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
        "pad reflect": lambda x: F.pad(x, (3, 3), mode="reflect"), "hstack": lambda x: library.hstack([x, x]),
        "pad replicate": lambda x: F.pad(x, (3, 3), mode="replicate"), "vstack": lambda x: library.vstack([x, x]),
        "pad circular": lambda x: F.pad(x, (3, 3), mode="circular"), "to int32": lambda x: x.to(library.int32),
        "to float32": lambda x: x.to(library.float32), "to float16": lambda x: x.to(library.float16),
        "to bool": lambda x: x.to(library.bool), "take_along_dim": lambda x: x.take_along_dim(along, 1),
        "gather rows": lambda x: x.gather(0, order[:, None].expand(x.shape)),
        "index_select columns": lambda x: x.index_select(1, along[0]), "index by places": lambda x: x[places],
        "index by pairs": lambda x: x[places[:, None], along], "masked_select": lambda x: x.masked_select(condition),
        "masked_scatter": lambda x: x.masked_scatter(condition, y), "scatter number": lambda x: x.scatter(1, along, 1),
        "scatter": lambda x: x.scatter(1, along, y), "scatter_add": lambda x: x.scatter_add(1, along, y),
        "scatter_add rows": lambda x: x.scatter_add(0, places[:, None].expand(x.shape), y),
        "scatter_reduce": lambda x: x.scatter_reduce(1, along, y, "amax"),
        "index_add": lambda x: x.index_add(0, places, y), "index_copy": lambda x: x.index_copy(0, order, y),
        "index_fill": lambda x: x.index_fill(0, places, 0), "index_put": lambda x: x.index_put((order,), y),
        "index_put add": lambda x: x.index_put((places,), y, accumulate=True),
        "searchsorted": lambda x: library.searchsorted(t.ascending, x), "equal": lambda x: x.equal(t.same),
        "bucketize": lambda x: library.bucketize(x, t.ascending), "allclose": lambda x: x.allclose(t.same),
        "kron": lambda x: library.kron(part, y[:8, :8]), "cat of many": lambda x: library.cat([part] * 64, 1),
        "bincount": lambda x: along.flatten().bincount(),
    }  # fmt: skip


def binary(library: Any, t: SimpleNamespace) -> dict[str, Callable[[Any, Any], Any]]:
    """Functions of two tensors of any dtype."""
    condition = t.condition
    return {
        "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
        "floor_div": lambda x, y: x.floor_divide(y), "remainder": lambda x, y: x % y, "maximum": library.maximum,
        "lt": lambda x, y: x < y, "eq": lambda x, y: x == y, "where": lambda x, y: library.where(condition, x, y),
        "minimum": library.minimum, "fmod": library.fmod,
        "ne": lambda x, y: x != y, "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
        "clamp by tensors": lambda x, y: x.clamp(y, t.positive), "isclose": lambda x, y: x.isclose(y),
        "logical_and": lambda x, y: x.logical_and(y), "logical_or": lambda x, y: x.logical_or(y),
        "logical_xor": lambda x, y: x.logical_xor(y), "add alpha": lambda x, y: library.add(x, y, alpha=2),
        "add of T": lambda x, y: x.transpose(0, 1) + y.transpose(0, 1),
    }  # fmt: skip


def whole(t: SimpleNamespace) -> Cases:
    """Functions of integers."""
    bits = {
        "bitwise_and": lambda x, y: x & y, "bitwise_or": lambda x, y: x | y, "bitwise_xor": lambda x, y: x ^ y,
        "bitwise_left_shift": lambda x, y: x << y, "bitwise_right_shift": lambda x, y: x >> y,
        "bitwise_and_": lambda x, y: t.own.bitwise_and_(x), "bitwise_or_": lambda x, y: t.own.bitwise_or_(x),
        "bitwise_xor_": lambda x, y: t.own.bitwise_xor_(x),
        "bitwise_left_shift_": lambda x, y: t.own.bitwise_left_shift_(y),
        "bitwise_right_shift_": lambda x, y: t.own.bitwise_right_shift_(y),
    }  # fmt: skip
    cases: Cases = {name: (function, t.x, t.positive) for name, function in bits.items()}
    return cases | {"bitwise_not": (lambda x: ~x, t.x), "pow": (lambda x, y: x.pow(y), t.x, t.positive)}


def real(library: Any, F: Any, t: SimpleNamespace) -> Cases:
    """Functions of floating numbers."""
    rows, columns = t.shape
    row, targets, blocks = t.row, t.along[:, 0].contiguous(), (rows // 8, 8, columns)
    functions = {
        "exp": lambda x: x.exp(), "tanh": lambda x: x.tanh(), "sin": lambda x: x.sin(), "erf": lambda x: x.erf(),
        "sigmoid": lambda x: x.sigmoid(), "silu": F.silu, "gelu": F.gelu, "leaky_relu": F.leaky_relu, "elu": F.elu,
        "selu": F.selu, "softplus": F.softplus, "hardswish": F.hardswish, "mish": F.mish, "floor": lambda x: x.floor(),
        "round": lambda x: x.round(), "mean rows": lambda x: x.mean(-1), "var rows": lambda x: x.var(-1),
        "logsumexp": lambda x: x.logsumexp(-1), "softmax": lambda x: x.softmax(-1), "norm": lambda x: x.norm(),
        "log_softmax": lambda x: x.log_softmax(-1), "layer_norm": lambda x: F.layer_norm(x, (columns,)),
        "dropout": lambda x: F.dropout(x, 0.1), "linear": lambda x: F.linear(x, t.y),
        "cos": lambda x: x.cos(), "tan": lambda x: x.tan(), "sinh": lambda x: x.sinh(), "cosh": lambda x: x.cosh(),
        "ceil": lambda x: x.ceil(), "asinh": lambda x: x.asinh(), "atan": lambda x: x.atan(),
        "exp2": lambda x: x.exp2(), "expm1": lambda x: x.expm1(), "trunc": lambda x: x.trunc(),
        "nan_to_num": lambda x: x.nan_to_num(),
        "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "glu": F.glu, "hardsigmoid": F.hardsigmoid,
        "hardtanh": F.hardtanh, "logsigmoid": F.logsigmoid, "relu6": F.relu6, "softsign": F.softsign,
        "tanhshrink": F.tanhshrink, "softmin": lambda x: F.softmin(x, -1), "softmax columns": lambda x: x.softmax(0),
        "log_softmax columns": lambda x: x.log_softmax(0), "logsumexp columns": lambda x: x.logsumexp(0),
        "mean": lambda x: x.mean(), "mean columns": lambda x: x.mean(0), "nanmean": lambda x: x.nanmean(),
        "var": lambda x: x.var(), "std": lambda x: x.std(), "std rows": lambda x: x.std(-1),
        "var columns": lambda x: x.var(0), "std_mean": lambda x: library.std_mean(x, -1),
        "var_mean": lambda x: library.var_mean(x, 0), "norm rows": lambda x: x.norm(dim=-1),
        "norm 1": lambda x: x.norm(1), "quantile": lambda x: x.quantile(0.25, -1), "normalize": F.normalize,
        "rms_norm": lambda x: F.rms_norm(x, (columns,)), "rms_norm weight": lambda x: F.rms_norm(x, (columns,), row),
        "layer_norm weight": lambda x: F.layer_norm(x, (columns,), row, row),
        "group_norm": lambda x: F.group_norm(x.reshape(blocks), 4),
        "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
        "batch_norm of channels": lambda x: F.batch_norm(x.reshape(blocks), None, None, training=True),
        "embedding": lambda x: F.embedding(t.places, x), "lerp": lambda x: x.lerp(t.y, 0.3),
        "cross_entropy": lambda x: F.cross_entropy(x, targets), "nll_loss": lambda x: F.nll_loss(x, targets),
        "cross_entropy smooth": lambda x: F.cross_entropy(x, targets, label_smoothing=0.1),
    }  # fmt: skip
    above_zero = {
        "log": lambda x: x.log(), "log1p": lambda x: x.log1p(), "sqrt": lambda x: x.sqrt(),
        "rsqrt": lambda x: x.rsqrt(), "reciprocal": lambda x: x.reciprocal(), "pow 3": lambda x: x**3,
        "pow 2.5": lambda x: x**2.5, "2 ** x": lambda x: 2**x, "pow": lambda x: x.pow(t.y), "log2": lambda x: x.log2(),
        "log10": lambda x: x.log10(), "acosh": lambda x: x.acosh(),
    }  # fmt: skip
    pairs = {
        "mse_loss": F.mse_loss, "smooth_l1": F.smooth_l1_loss, "l1_loss": F.l1_loss, "huber_loss": F.huber_loss,
        "kl_div": lambda x, y: F.kl_div(x, t.bounded), "cosine_similarity": lambda x, y: F.cosine_similarity(x, y, -1),
        "bce logits": lambda x, y: F.binary_cross_entropy_with_logits(x, t.bounded), "atan2": lambda x, y: x.atan2(y),
        "logaddexp": lambda x, y: x.logaddexp(y), "lerp by tensor": lambda x, y: x.lerp(y, t.bounded),
    }  # fmt: skip
    below_one = {"asin": lambda x: x.asin(), "acos": lambda x: x.acos(), "atanh": lambda x: x.atanh()}
    found: Cases = {name: (function, t.x, t.y) for name, function in pairs.items()}
    found |= {name: (function, t.x) for name, function in functions.items()}
    found |= {name: (function, t.positive) for name, function in above_zero.items()}
    return found | {name: (function, t.bounded) for name, function in below_one.items()}


def products(library: Any, F: Any, t: SimpleNamespace) -> Cases:
    """Products of at most 512 rows, forms of one."""
    row, x, y, n = t.row, t.x, t.y, min(t.shape[0], 512)
    a, b, square, column = x[:n].clone(), y[:n].clone(), (x[:n, :1] * y[:n, 0]).clone(), x[:, 0].clone()
    a3, b3, square3 = (z.reshape(8, n // 8, -1) for z in (a, b, square[:, : n // 8]))
    found: Cases = {
        "matmul": (lambda a, b: a @ b.transpose(0, 1), a, b), "mm": (lambda a, b: a.mm(b.transpose(0, 1)), a, b),
        "bmm": (lambda a, b: a.bmm(b.transpose(1, 2)), a3, b3), "mv": (lambda x: x.mv(row), x),
        "dot": (lambda x, y: x.dot(y), x.flatten(), y.flatten()), "addmv": (lambda x: column.addmv(x, row), x),
        "addmm": (lambda a, b: square.addmm(a, b.transpose(0, 1)), a, b),
        "baddbmm": (lambda a, b: square3.baddbmm(a, b.transpose(1, 2)), a3, b3),
        "einsum": (lambda a, b: library.einsum("ij,kj->ik", a, b), a, b),
        "einsum of rows": (lambda x, y: library.einsum("ij,ij->i", x, y), x, y),
        "tensordot": (lambda a, b: library.tensordot(a, b, ([1], [1])), a, b),
    }  # fmt: skip
    if t.floating:
        classes = t.along[:n, 0] % n
        q, k = (z.reshape(1, n, -1, 64).transpose(1, 2).contiguous() for z in (a, b))
        attention = F.scaled_dot_product_attention
        found["linear_cross_entropy"] = (lambda a, b: F.linear_cross_entropy(a, b, classes), a, b)
        found["scaled_dot_product_attention"] = (lambda q, k: attention(q, k, k), q, k)
        found["attention causal"] = (lambda q, k: attention(q, k, k, is_causal=True), q, k)
    return found


def randoms(library: Any, t: SimpleNamespace) -> Cases:
    """Random numbers."""
    shape, kind = t.shape, t.kind
    found: Cases = {
        "randint": (lambda: library.randint(0, 9, shape, dtype=kind),),
        "randperm": (lambda: library.randperm(shape[0] * shape[1]),),
    }
    if t.floating:
        draws = {
            "rand": lambda: library.rand(shape, dtype=kind), "randn": lambda: library.randn(shape, dtype=kind),
            "bernoulli": lambda: library.bernoulli(t.bounded), "uniform_": lambda: t.own.uniform_(),
            "multinomial": lambda: library.multinomial(t.positive, 4, True), "normal_": lambda: t.own.normal_(),
        }  # fmt: skip
        found |= {name: (function,) for name, function in draws.items()}
    return found


def in_place(library: Any, t: SimpleNamespace) -> Cases:
    """Methods that write to their tensor. Without arguments no gradients are asked for."""
    own, ones, zeros, y, condition, along = t.own, t.ones, t.zeros, t.y, t.condition, t.along
    found = {
        "add_": lambda: own.add_(zeros), "sub_": lambda: own.sub_(zeros), "mul_": lambda: own.mul_(ones),
        "remainder_": lambda: own.remainder_(y), "floor_divide_": lambda: own.floor_divide_(ones),
        "copy_": lambda: own.copy_(y), "copy_ of T": lambda: own.transpose(0, 1).copy_(y.transpose(0, 1)),
        "clamp_": lambda: own.clamp_(-1, 1), "fill_": lambda: own.fill_(1), "pow_": lambda: own.pow_(2),
        "masked_fill_": lambda: own.masked_fill_(condition, 1), "scatter_": lambda: own.scatter_(1, along, y),
        "masked_scatter_": lambda: own.masked_scatter_(condition, y), "mul_ number": lambda: own.mul_(1),
        "index_put_": lambda: own.index_put_((t.order,), y), "scatter_add_": lambda: own.scatter_add_(1, along, zeros),
        "setitem mask": lambda: own.__setitem__(condition, 1), "setitem places": lambda: own.__setitem__(t.order, y),
        "setitem slice": lambda: own.__setitem__(slice(1, None), y[1:]),
    }  # fmt: skip
    if t.floating:
        found |= {"div_": lambda: own.div_(ones), "lerp_": lambda: own.lerp_(y, 0.3)}
        names = "neg abs ceil floor round trunc relu reciprocal rsqrt sqrt square sigmoid tanh exp log zero"
        found |= {f"{name}_": getattr(t.even, f"{name}_") for name in names.split()}
    return {name: (function,) for name, function in found.items()}
