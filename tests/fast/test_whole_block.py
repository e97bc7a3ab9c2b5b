"""A whole block as one operation: the bits of its operations one by one, and when it is not one."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from harness import Op, every_check, host, torch, uniform
from refusals import raises

import minigrad as mg
from minigrad import nn
from minigrad.cpu_kernels.stages import transformer_block as kernel
from minigrad.fast.gpt2 import TransformerBlock
from minigrad.plain_kernels import attention, layer_norm, linear

pytestmark = pytest.mark.usefixtures("on_one_thread")  # tests that compute on several threads say so
EPS = 1e-3  # large enough to be seen
MATRICES = (2, 4, 8, 10)  # among the weights


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = mg.get_num_threads()
    mg.set_num_threads(count)
    try:
        yield
    finally:
        mg.set_num_threads(before)


def block_of(tensors: list[Any], heads: int, causal: bool, approximate: str) -> nn.Block:
    """A block that computes with these tensors themselves: assigned to a module, they would have to be Parameters."""
    block = nn.Block(len(tensors[0]), heads, is_causal=causal, eps=EPS, hidden=len(tensors[8]))
    for layer, weight, bias in zip(layers(block), tensors[::2], tensors[1::2], strict=True):
        vars(layer).update(weight=weight, bias=bias)
    block.mlp.gelu.approximate = approximate
    return block


def layers(block: nn.Block) -> list[Any]:
    return [block.ln_1, block.attn.c_attn, block.attn.c_proj, block.ln_2, block.mlp.c_fc, block.mlp.c_proj]


def weights_of(block: nn.Block) -> list[mg.Tensor]:
    return [tensor for layer in layers(block) for tensor in (layer.weight, layer.bias) if tensor is not None]


def one_by_one() -> Any:
    return mg.unfused("whole block")


def as_one(y: mg.Tensor) -> bool:
    return type(y.node) is TransformerBlock


# The harness ----------------------------------------------------------------------------------------------------------


def block_op(name: str, heads: int, causal: bool, approximate: str, bias: bool) -> Op:
    def all_of(given: tuple[Any, ...], missing: Any) -> list[Any]:
        """Twelve weights and biases, of which the given ones may be the weights alone."""
        return list(given) if bias else [z for weight in given for z in (weight, missing)]

    def reference(x: np.ndarray, *given: np.ndarray) -> np.ndarray:
        n1, b1, wqkv, bqkv, wo, bo, n2, b2, w, b, v, c = all_of(given, None)
        B, T, C = x.shape
        rows = x.reshape(-1, C)
        qkv = linear.forward(layer_norm.forward(rows, n1, b1, EPS)[0], wqkv, bqkv).reshape(B, T, 3, heads, -1)
        options = causal, math.sqrt(heads / C), 0.0, 0, 0
        y, _ = attention.forward(*(qkv[:, :, i].swapaxes(1, 2) for i in range(3)), options)
        rows = linear.forward(y.swapaxes(1, 2).reshape(-1, C), wo, bo, rows)
        activation, _ = linear.forward_gelu(layer_norm.forward(rows, n2, b2, EPS)[0], w, b, approximate)
        return linear.forward(activation, v, c, rows).reshape(x.shape)

    def run_torch(x: Any, *given: Any) -> Any:
        f, (B, T, C) = torch.nn.functional, x.shape
        n1, b1, wqkv, bqkv, wo, bo, n2, b2, w, b, v, c = all_of(given, None)
        q, k, z = (
            f.linear(f.layer_norm(x, (C,), n1, b1, EPS), wqkv, bqkv).view(B, T, 3, heads, -1).permute(2, 0, 3, 1, 4)
        )
        a = f.scaled_dot_product_attention(q, k, z, is_causal=causal).transpose(1, 2).reshape(B, T, C)
        x = x + f.linear(a, wo, bo)
        return x + f.linear(f.gelu(f.linear(f.layer_norm(x, (C,), n2, b2, EPS), w, b), approximate=approximate), v, c)

    def shapes(B: int, T: int, C: int, inner: int) -> tuple[tuple[int, ...], ...]:
        pairs = (
            ((C,), (C,)),
            ((3 * C, C), (3 * C,)),
            ((C, C), (C,)),
            ((C,), (C,)),
            ((inner, C), (inner,)),
            ((C, inner), (C,)),
        )
        return ((B, T, C), *(shape for pair in pairs for shape in (pair if bias else pair[:1])))

    matrix, number = uniform(-0.5, 0.5), uniform(-1, 1)
    pairs = (uniform(0.5, 2), number), (matrix, number), (matrix, number)
    domains = (uniform(-2, 2), *(domain for pair in 2 * pairs for domain in (pair if bias else pair[:1])))
    return Op(
        name,
        lambda x, *given: block_of(all_of(given, None), heads, causal, approximate)(x),
        reference,
        run_torch,
        [shapes(1, 4, 6, 9), shapes(2, 17, heads * 5, heads * 5)],
        domains,
        rounding=1024,
        half_rounding=32,  # one by one, each rounded
        small_shapes=[shapes(1, 4, 6, 9)],
    )


OPS = [
    block_op("gpt2", heads=2, causal=True, approximate="tanh", bias=True),
    block_op("seeing_all", heads=3, causal=False, approximate="none", bias=False),
]


test_op = every_check(OPS)


def test_the_harness_runs_one_operation_on_the_cpu():
    for op in OPS:
        for shapes in op.shapes:
            for dtype in ("float32", "float64"):
                tensors = [mg.tensor(x.astype(dtype), requires_grad=True) for x in op.inputs(shapes)]
                assert as_one(op.run(*tensors))


# The bits -------------------------------------------------------------------------------------------------------------


def drawn(
    C: int, heads: int, *, bias: bool = True, hidden: int | None = None, causal: bool = True, dtype: str = "float32"
) -> nn.Block:
    """A block with weights of all sizes."""
    block = nn.Block(C, heads, bias=bias, is_causal=causal, hidden=hidden, eps=EPS).to(dtype)
    rng = np.random.default_rng(zlib.crc32(repr((C, heads, bias, hidden)).encode()))
    for p in block.parameters():
        size = 1 if p.ndim == 1 else p.shape[1] ** -0.5
        p.data[...] = rng.standard_normal(p.shape) * size + (p.ndim == 1)
    return block


def input_for(block: nn.Block, B: int, T: int, seed: int = 0, requires_grad: bool = True) -> mg.Tensor:
    C, dtype = block.attn.c_proj.in_features, block.ln_1.weight.dtype
    x = np.random.default_rng(seed).standard_normal((B, T, C)).astype(dtype)
    return mg.tensor(x, requires_grad=requires_grad)


Results = tuple[np.ndarray, list[np.ndarray | None]]


def results(block: nn.Block, x: mg.Tensor, run: Callable[..., mg.Tensor] | None = None, one: bool = True) -> Results:
    """y and the gradients of x and the weights for a random dy, of a block that is ``one`` operation or is not."""
    y = (run or block)(x)
    assert as_one(y) == one or run is not None
    leaves = [x, *weights_of(block)]
    if not y.requires_grad:
        return host(y), [None] * len(leaves)
    dy = np.random.default_rng(5).standard_normal(y.shape).astype(y.dtype)
    grads = y.backward(mg.tensor(dy))
    assert set(grads.keys()) <= {leaf.id for leaf in leaves}
    return host(y), [None if (g := grads.get(leaf)) is None else host(g) for leaf in leaves]


def assert_same(one: Results, other: Results) -> None:
    for i, (a, b) in enumerate(zip([one[0], *one[1]], [other[0], *other[1]], strict=True)):
        assert (a is None) == (b is None), f"result {i}"
        np.testing.assert_array_equal(a, b, err_msg=f"result {i}")


def assert_close_to(one: Results, other: Results) -> None:
    for a, b in zip([one[0], *one[1]], [other[0], *other[1]], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def compare(block: nn.Block, x: mg.Tensor, run: Callable[..., mg.Tensor] | None = None, counts: Any = (1,)) -> Results:
    """The results, after a comparison with those of the single operations, on each number of threads."""
    with one_by_one():
        apart = results(block, x, run, one=False)
    for count in counts:
        with threads(count):
            assert_same(results(block, x, run), apart)
    return apart


SIZES = [  # B, T, C, heads, hidden, and the most threads that share the sequences
    (1, 3, 3, 1, None, 1),
    (2, 16, 12, 2, None, 2),
    (32, 17, 15, 3, 31, 2),  # heads of 5, no multiple of any vector
    (3, 40, 66, 2, 66, 1),
    (5, 29, 40, 8, 41, 1),
    (8, 32, 64, 4, None, 2),  # preset X of the benchmark
    (2, 128, 72, 9, None, 2),
    (4, 200, 33, 11, 77, 1),
    (16, 64, 12, 2, None, 2),  # on one thread two chunks of sequences
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_all_bits_are_those_of_the_single_operations(size, dtype):
    B, T, C, heads, hidden, most = size
    for bias, causal, approximate in ((True, True, "tanh"), (False, False, "none")):
        block = drawn(C, heads, bias=bias, hidden=hidden, causal=causal, dtype=dtype)
        block.mlp.gelu.approximate = approximate
        found = compare(block, input_for(block, B, T), counts=range(1, min(most, pool()) + 1))
        assert all(np.isfinite(a).all() and a.any() for a in (found[0], *found[1]) if a is not None)


def pool() -> int:
    import numba

    return int(numba.config.NUMBA_NUM_THREADS)


def test_threads_share_no_chunk_of_the_norms_sums_and_no_sequence():
    """Where they would, or where some would have much more to do than others, the operations run one by one."""
    shapes = {(2, 16): True, (2, 12): False, (3, 16): False, (1, 16): False, (32, 17): True, (12, 100): False}
    for (B, T), wanted in shapes.items():
        block = drawn(8, 2)
        x = input_for(block, B, T)
        if pool() > 1:
            with threads(2):
                assert as_one(block(x)) == wanted, (B, T)
                compare(block, x, run=lambda x, block=block: block(x), counts=(2,))
        assert as_one(block(x))


def test_backward_on_another_number_of_threads():
    block = drawn(12, 2)
    x = input_for(block, 6, 20)  # on two threads, neither has whole chunks
    apart = compare(block, x)
    y = block(x)
    dy = np.random.default_rng(5).standard_normal(y.shape).astype(y.dtype)
    with threads(min(2, pool())):
        grads = y.backward(mg.tensor(dy))
    assert_same((host(y), [host(grads[leaf]) for leaf in (x, *weights_of(block))]), apart)


# What is wanted -------------------------------------------------------------------------------------------------------


def whether_one(wanted: list[bool]) -> bool:
    """Whether a block is one operation for these wanted gradients, of x and twelve weights: none; or that of x or of
    the first norm's weight, and those of matrices wherever of their biases."""
    x, *weights = wanted
    if not (x or weights[0]):
        return not any(weights)
    return all(weights[i] or not weights[i + 1] for i in MATRICES)


def wanted_gradients() -> list[list[bool]]:
    alone = [[i == j for j in range(13)] for i in range(13)]
    without = [[i != j for j in range(13)] for i in range(13)]
    rng = np.random.default_rng(1)
    return [*alone, *without, [False] * 13, *(list(map(bool, rng.integers(0, 2, 13))) for _ in range(30))]


@pytest.mark.parametrize("T", [16, 64])  # tasks share the weights' gradients, or the rows that these are sums of
def test_whatever_is_frozen_the_gradients_are_those_of_the_single_operations(T):
    block = drawn(10, 2)
    whole = None
    outcomes = set()
    for wanted in wanted_gradients():
        x = input_for(block, 2, T, requires_grad=wanted[0])
        for weight, want in zip(weights_of(block), wanted[1:], strict=True):
            weight.requires_grad_(want)
        one = whether_one(wanted)
        outcomes.add(one)
        assert as_one(block(x)) == (one and any(wanted)), wanted
        found = compare(block, x, run=block, counts=(1, min(2, pool())))
        assert [g is not None for g in found[1]] == wanted
        whole = found if whole is None else whole
        np.testing.assert_array_equal(found[0], whole[0])
    assert outcomes == {False, True}


def test_without_gradients_nothing_is_kept(monkeypatch):
    """Under no_grad, and where nothing requires a gradient, a chunk of sequences at a time."""
    launched = []
    forward = kernel.forward

    def counted(*args: Any) -> Any:
        y, kept = forward(*args)
        launched.append(kept)
        return y, kept

    monkeypatch.setattr(kernel, "forward", counted)
    for B, T in ((2, 16), (7, 40), (14, 40), (12, 300)):  # more and fewer than 256 rows in a task
        block = drawn(9, 3)
        x = input_for(block, B, T)
        y, _ = compare(block, x)
        for count in (1, 2):
            with threads(min(count, pool())), mg.no_grad():
                np.testing.assert_array_equal(host(block(x)), y)
        block.requires_grad_(False)
        z = block(x.detach())
        assert not z.requires_grad
        np.testing.assert_array_equal(host(z), y)
    quiet = [kept is None for kept in launched]
    assert sum(quiet) >= 2 * (len(quiet) - sum(quiet)) > 0


def test_a_graph_is_used_twice_and_a_block_too():
    block = drawn(12, 2)
    x = input_for(block, 2, 16)
    compare(block, x, run=lambda x: block(block(x)), counts=(1, min(2, pool())))
    with one_by_one():
        apart = results(block, x, run=lambda x: block(x) + block(x * 2))
    assert_close_to(results(block, x, run=lambda x: block(x) + block(x * 2)), apart)  # x gets a sum in another order
    y = block(x)
    dy = mg.tensor(np.ones(y.shape, np.float32))
    first, second = y.backward(dy, retain_graph=True), y.backward(dy)
    for leaf in (x, *weights_of(block)):
        np.testing.assert_array_equal(host(first[leaf]), host(second[leaf]))
    raises(RuntimeError, "backward through TransformerBlock a second time", lambda: y.backward(dy))
    raises(NotImplementedError, "create_graph", lambda: block(x).backward(dy, create_graph=True))


def test_tied_weights_get_the_sum_of_their_gradients():
    block = drawn(12, 2)
    block.ln_2.weight, block.ln_2.bias = block.ln_1.weight, block.ln_1.bias
    block.attn.c_proj.bias = block.mlp.c_proj.bias
    compare(block, input_for(block, 2, 16))
    assert len(list(block.parameters())) == 9


def test_recomputed_activations_give_the_same_bits():
    block = drawn(12, 2)
    x = input_for(block, 2, 16)
    plain = compare(block, x)
    again = results(block, x, run=lambda x: mg.checkpoint(block, x))
    assert_same(again, plain)
    y = mg.checkpoint(block, x)
    with mg.detect_anomaly():
        y.sum().backward()
    with mg.detect_anomaly():
        y = mg.checkpoint(block, x)
    y.sum().backward()


def test_options_may_be_numbers_of_any_type():
    """They reach compiled code, which knows one type of each."""
    block = drawn(8, 2)
    x = input_for(block, 2, 16)
    compare(block, x, counts=(1, min(2, pool())))
    block.ln_1.eps, block.ln_2.eps = 1, np.float32(0.5)  # type: ignore[assignment]
    block.attn.n_head, block.attn.is_causal = np.int32(2), 1  # type: ignore[assignment]
    compare(block, x, counts=(1, min(2, pool())))


def test_nan_and_infinities_stay_in_their_sequence():
    for value in (np.nan, np.inf, -np.inf):
        block = drawn(12, 2)
        x = input_for(block, 4, 16)
        x.data[1, 5, 3] = value
        y, grads = compare(block, x, counts=(1, min(2, pool())))
        assert np.isnan(y[1, 5:]).all() and np.isfinite(y[[0, 2, 3]]).all()
        assert np.isnan(grads[0][1]).any() and np.isfinite(grads[0][[0, 2, 3]]).all()
        for gradient in grads[1:-1]:  # the last bias's is the sum of dy
            assert np.isnan(gradient).any()


# What is noticed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["x", "ln_1.weight", "attn.c_attn.weight", "attn.c_proj.weight", "ln_2.weight",
                                   "mlp.c_fc.weight", "mlp.c_proj.weight"])  # fmt: skip
def test_a_change_in_place_before_backward_is_noticed(which):
    block = drawn(8, 2)
    x = input_for(block, 2, 8, requires_grad=False)
    y = block(x)
    assert as_one(y)
    with mg.no_grad():
        changed = x if which == "x" else dict(block.named_parameters())[which]
        changed.add_(1)
    with pytest.raises(
        RuntimeError, match="a tensor that TransformerBlock needs for its gradient was changed in place"
    ):
        y.sum().backward()


def test_a_bias_is_not_needed_again():
    block = drawn(8, 2)
    x = input_for(block, 2, 8)
    expected = block(x).sum().backward()
    y = block(x)
    with mg.no_grad():
        for layer in layers(block):
            layer.bias.add_(1)
    found = y.sum().backward()
    for leaf in (x, *weights_of(block)):
        np.testing.assert_array_equal(host(found[leaf]), host(expected[leaf]))


INNER = ["ln_1", "attn", "attn.c_attn", "attn.c_proj", "attn.resid_dropout", "ln_2", "mlp", "mlp.c_fc", "mlp.gelu",
         "mlp.c_proj", "mlp.dropout"]  # fmt: skip


def owner_of(block: nn.Block, where: str) -> tuple[Any, str]:
    parent, _, name = where.rpartition(".")
    return (getattr(block, parent) if parent else block), name


@pytest.mark.parametrize("where", INNER)
def test_a_changed_module_is_called(where):
    block = drawn(8, 2)
    x = input_for(block, 2, 8)
    plain = results(block, x)
    owner, name = owner_of(block, where)
    module = getattr(owner, name)
    seen: list[Any] = []

    def note(*args: Any) -> None:
        seen.append(args)

    for register in (module.register_forward_hook, module.register_forward_pre_hook):
        with register(note):
            np.testing.assert_allclose(results(block, x, one=False)[0], plain[0], rtol=1e-5, atol=1e-5)
    assert len(seen) == 2
    assert_same(results(block, x), plain)

    vars(module)["forward"] = lambda *args: 3 * type(module).forward(module, *args)
    assert np.abs(results(block, x, one=False)[0] - plain[0]).max() > 1e-3
    del vars(module)["forward"]
    assert_same(results(block, x), plain)

    kind = type(module)
    heir = type("Heir", (kind,), {"forward": lambda self, *args: 3 * kind.forward(self, *args)})
    object.__setattr__(module, "__class__", heir)  # plain assignment would make an attribute
    assert np.abs(results(block, x, one=False)[0] - plain[0]).max() > 1e-3


def test_a_forward_that_a_class_was_given_is_called(monkeypatch):
    block = drawn(8, 2)
    x = input_for(block, 2, 8)
    plain = results(block, x)
    forward = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 2 * forward(self, x))
    assert np.abs(results(block, x, one=False)[0] - plain[0]).max() > 1e-3


def test_hooks_of_the_block_itself_do_not_divide_it():
    block = drawn(8, 2)
    x = input_for(block, 2, 8)
    seen = []
    with block.register_forward_hook(lambda module, args, y: seen.append(y)):
        assert as_one(block(x))
    assert len(seen) == 1


@pytest.mark.parametrize("where", ["attention", "attn.resid_dropout", "mlp.dropout"])
def test_what_drops_in_training_is_one_operation_in_evaluation(where):
    block = drawn(8, 2)
    x = input_for(block, 2, 8)
    plain = results(block, x)
    if where == "attention":
        block.attn.dropout = 0.5
    else:
        owner, name = owner_of(block, where)
        getattr(owner, name).p = 0.5
    assert not as_one(block(x))
    assert np.abs(host(block(x)) - plain[0]).max() > 1e-3
    block.eval()
    assert_same(results(block, x), plain)


def test_modes_that_tell_operations_apart():
    block = drawn(8, 2)
    x = input_for(block, 2, 8)
    plain = results(block, x)
    with mg.autocast("cpu", dtype=mg.bfloat16):
        assert not as_one(block(x))
    with mg.detect_anomaly():
        assert_same(results(block, x, one=False), plain)
    with one_by_one():
        assert_same(results(block, x, one=False), plain)
        with one_by_one():
            assert not as_one(block(x))
        assert not as_one(block(x))
    before = mg.get_float32_matmul_precision()
    with contextlib.suppress(RuntimeError, ValueError):  # of a CPU that has no such products
        mg.set_float32_matmul_precision("medium")
        try:
            assert not as_one(block(x))
            assert as_one(block.to(mg.float64)(x.to(mg.float64)))
        finally:
            mg.set_float32_matmul_precision(before)


def test_other_arguments_and_inputs_run_one_by_one():
    block = drawn(8, 2)
    x = input_for(block, 2, 8)
    plain = results(block, x)
    mask = mg.ones(8, 8, dtype=mg.bool_)
    np.testing.assert_allclose(results(block, x, lambda x: block(x, attn_mask=mask), one=False)[0], plain[0], atol=1e-5)
    with mg.no_grad():
        cached = block(x, nn.KVCache(2, 2, 8, 4, x))
    np.testing.assert_allclose(host(cached), plain[0], atol=1e-5)
    for other in (
        mg.tensor(np.ascontiguousarray(x.data.swapaxes(0, 1))).swapaxes(0, 1),
        mg.tensor(np.repeat(x.data, 2, axis=2))[..., ::2],
    ):
        y = block(other)
        assert not as_one(y)
        np.testing.assert_array_equal(host(y), plain[0])
    assert not as_one(block(x[:, :2]))  # so few rows are a product of another kind
    assert block(x[:0]).shape == (0, 8, 8)
    raises(ValueError, "shape", lambda: block(mg.ones(2, 8, 7)))
    half = nn.Block(8, 2).to(mg.bfloat16)
    assert not as_one(half(x.to(mg.bfloat16)))
    assert not as_one(block.to(mg.float64)(x))  # of two dtypes


def test_weights_on_another_device_are_refused(device):
    if device == "cpu":
        pytest.skip("there must be a second device")
    block = drawn(8, 2)
    x = input_for(block, 2, 8)
    raises(RuntimeError, "on different devices", lambda: block.to(device=device)(x))
