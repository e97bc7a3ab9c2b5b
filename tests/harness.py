"""One way to test an operation: describe it once (``Op``), and every check of ``CHECKS`` runs on it, on every device.

    OPS = [Op("exp", lambda x: x.exp(), np.exp, lambda x: x.exp())]

    test_op = every_check(OPS)

The checks are the properties that every operation has: values against NumPy in float64, values, dtypes and gradients
against PyTorch where it is installed, gradients against finite differences, any memory layout, any shape, any dtype.
Zero sizes, 0-d tensors and broadcasting are among the shapes. An operation's own semantics are tested beside it.
"""

import functools
import inspect
import math
import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import strategies as st
from refusals import raises

import minigrad as mg
from minigrad import cuda_kernels
from minigrad.cuda_kernels import simulated as simulator_runs

try:
    import torch
except ImportError:
    torch = None

NO_TORCH = "PyTorch is not installed: nothing to compare with"
needs_torch = pytest.mark.skipif(torch is None, reason=NO_TORCH)

Shape = tuple[int, ...]
Domain = Callable[[np.random.Generator, Shape], np.ndarray]

UNARY: tuple[tuple[Shape, ...], ...] = tuple((s,) for s in [(), (1,), (7,), (3, 4), (2, 3, 4), (0,), (2, 0, 3)])
BINARY: tuple[tuple[Shape, ...], ...] = (
    *((s, s) for s in [(), (5,), (3, 4), (2, 0)]),
    *(((3, 4), (4,)), ((3, 1), (4,)), ((4,), (2, 3, 1)), ((2, 3), ()), ((1,), (0,))),
)
DTYPES = ("int64", "int32", "uint8", "bool", "float16", "bfloat16")


# Devices --------------------------------------------------------------------------------------------------------------


def devices() -> tuple[list[str], str]:
    """The devices to test, and why those that are not among them are missing."""
    try:
        kernels = mg.Device("cuda").kernels
        kernels.elementwise.add  # noqa: B018  # the import is the question
    except (mg.DeviceError, cuda_kernels.MissingKernelError, AttributeError) as error:
        return ["cpu"], f"not tested on cuda: {error}"
    return ["cpu", "cuda"], ""


def simulated(device: str) -> bool:
    """Whether ``device`` is in the simulator, where each element costs microseconds: sizes should be small."""
    return device.startswith("cuda") and simulator_runs()


def host(x: mg.Tensor) -> np.ndarray:
    """A tensor's values as a NumPy array, wherever it is."""
    return np.asarray(x.device.kernels.to_host(x.data))


# Inputs ---------------------------------------------------------------------------------------------------------------


def uniform(low: float, high: float) -> Domain:
    """Floating values between low and high."""
    return lambda rng, shape: rng.uniform(low, high, shape)


def dyadic(low: float, high: float, odd: bool = True) -> Domain:
    """Odd (or even) multiples of 1/64: odd ones are not near an integer, and no odd one is near an even one."""
    return lambda rng, shape: (2 * rng.integers(round(low * 32), round(high * 32), shape) + odd) / 64


def distinct(low: float, high: float) -> Domain:
    """Evenly spaced values in random order, so that no two are near each other."""

    def draw(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        size = int(np.prod(shape))
        return low + (high - low) * (rng.permutation(size).reshape(shape) + 0.5) / max(size, 1)

    return draw


def integers(low: int, high: int) -> Domain:
    """int64 values in [low, high); not differentiated."""
    return lambda rng, shape: rng.integers(low, high, shape)


def booleans(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Masks; not differentiated."""
    return rng.random(shape) < 0.5


NORMAL = uniform(-2, 2)
POSITIVE = uniform(0.25, 4)


@dataclass(frozen=True)
class Op:
    """An operation to check. ``run`` takes tensors, ``reference`` float64 NumPy arrays, ``torch`` PyTorch tensors."""

    name: str
    run: Callable[..., mg.Tensor]
    reference: Callable[..., Any]
    torch: Callable[..., Any] | None = None
    shapes: Sequence[tuple[Shape, ...]] = UNARY
    domains: Domain | tuple[Domain, ...] = NORMAL
    rounding: float = 16  # a result may be off by this many units in the last place of the largest one
    half_rounding: float = 1  # the same in float16 and bfloat16: results are computed in float32 and rounded once
    differentiable: bool | tuple[bool, ...] = True
    equal_rows: bool = True  # False: where all rows are equal, the gradient is a matter of rounding
    torch_differentiates: bool = True  # PyTorch has a derivative
    refuses: tuple[str, ...] = ()  # dtypes of DTYPES that PyTorch takes and minigrad declines with a TypeError
    random_shapes: st.SearchStrategy[tuple[Shape, ...]] | None = None
    small_shapes: Sequence[tuple[Shape, ...]] = ()  # in the simulator instead of ``shapes``: the same paths, less to do

    def __str__(self) -> str:
        return self.name

    def inputs(self, shapes: tuple[Shape, ...]) -> list[np.ndarray]:
        """The same float64 (or integer) inputs at each call; all are float32 numbers, so casting changes nothing."""
        rng = np.random.default_rng(zlib.crc32(f"{self.name}{shapes}".encode()))
        domains = self.domains if isinstance(self.domains, tuple) else (self.domains,) * len(shapes)
        found = [np.asarray(domain(rng, shape)) for domain, shape in zip(domains, shapes, strict=True)]
        return [x.astype(np.float32).astype(np.float64) if x.dtype.kind == "f" else x for x in found]

    def shapes_on(self, device: str) -> Sequence[tuple[Shape, ...]]:
        """The shapes to check on ``device``."""
        return self.small_shapes if self.small_shapes and simulated(device) else self.shapes

    def needs(self, arrays: Sequence[np.ndarray]) -> list[bool]:
        """Which inputs have a gradient."""
        flags = self.differentiable if isinstance(self.differentiable, tuple) else (self.differentiable,) * len(arrays)
        return [flag and x.dtype.kind == "f" for flag, x in zip(flags, arrays, strict=True)]


def unary(name: str, run: Any = None, reference: Any = None, torch_run: Any = None, **options: Any) -> Op:
    """An elementwise Op of one input; without ``run`` the method of that name, and NumPy's function."""
    if run is None:
        run = torch_run = operator.methodcaller(name)
    random = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5).map(lambda s: (s,))
    return Op(name, run, reference or getattr(np, name), torch_run, UNARY, random_shapes=random, **options)


def binary(name: str, run: Any, reference: Any, torch_run: Any = None, **options: Any) -> Op:
    """An elementwise Op of two inputs that broadcast."""
    random = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, min_side=0, max_side=4)
    return Op(name, run, reference, torch_run, BINARY, random_shapes=random.map(lambda s: s.input_shapes), **options)


def alike(name: str, run: Any, reference: Any, **options: Any) -> Op:
    """An elementwise Op of one input or two that PyTorch writes like we do."""
    made = unary if len(inspect.signature(run).parameters) == 1 else binary
    return made(name, run, reference, run, **options)


def activation(name: str, reference: Any, domains: Any = NORMAL, refuses: tuple[str, ...] = (), **params: Any) -> Op:
    """An elementwise function of ``nn.functional`` that has the same name and parameters in PyTorch."""
    ours, theirs = (
        lambda x, f=f: getattr(f, name)(x, **params) for f in (mg.nn.functional, torch and torch.nn.functional)
    )
    return unary(
        "-".join([name, *map(str, params.values())]), ours, reference, theirs, domains=domains, refuses=refuses
    )


def gelu(x: np.ndarray, approximate: str = "none") -> np.ndarray:
    if approximate == "tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2


def same(
    name: str, run: Any, reference: Any, shapes: Sequence[tuple[Shape, ...]], domains: Any = NORMAL, **options: Any
) -> Op:
    """An Op that PyTorch writes like we do."""
    return Op(name, run, reference, run, shapes, domains, **options)


def per_channel(x: Any, p: Any) -> Any:
    """A parameter of x's channels, dimension 1, in a shape that broadcasts with x; a number as it is."""
    return p if isinstance(p, float) else p.reshape(-1, *(1,) * (x.ndim - 2))


def functional(
    name: str, call: Any, reference: Any, shapes: Sequence[tuple[Shape, ...]], domains: Any = NORMAL, **options: Any
) -> Op:
    """An Op of ``call(F, *inputs)``, where F is ``nn.functional``, of minigrad and of PyTorch."""

    def run_torch(*inputs: Any) -> Any:
        return call(torch.nn.functional, *inputs)

    return Op(name, functools.partial(call, mg.nn.functional), reference, run_torch, shapes, domains, **options)


# Comparing ------------------------------------------------------------------------------------------------------------


def assert_close(
    actual: np.ndarray, expected: np.ndarray, rounding: float, what: str = "", terms: Sequence[np.ndarray] = ()
) -> None:
    """Equal up to ``rounding`` units of the precision of ``actual``, relative to the largest expected value or term.

    That is the error bound of sums of such terms: every one is rounded at most once, at its own size, also where they
    cancel. NaN and infinities must be in the same places.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    if not mg.dtypes.is_floating(actual.dtype):
        np.testing.assert_array_equal(actual, expected, err_msg=what)
        return
    exact = expected.astype(np.float64)
    size = max(np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in (exact, *terms))
    bound = rounding * float(mg.dtypes.finfo(actual.dtype).eps) * size
    np.testing.assert_allclose(actual.astype(np.float64), exact, rtol=0, atol=bound, err_msg=what)


def assert_same_bits(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """The same arrays by name: dtypes, shapes and bits, so NaN payloads and signed zeros too."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name


def to_torch(x: np.ndarray) -> Any:
    """A PyTorch tensor of the same dtype; NumPy's bfloat16 is one that PyTorch does not know, so by its bits."""
    if x.dtype == mg.bfloat16:
        return torch.tensor(np.ascontiguousarray(x).view(np.int16).reshape(x.shape)).view(torch.bfloat16)
    return torch.tensor(x)


def from_torch(x: Any) -> np.ndarray:
    """The values of a PyTorch tensor, bfloat16 as float32."""
    x = x.detach()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


def tensors(arrays: Sequence[np.ndarray], dtype: str, device: str, needs: Sequence[bool]) -> list[mg.Tensor]:
    """Floating arrays in ``dtype``, others as they are; leaves that require grad where needed."""
    return [
        mg.tensor(x.astype(mg.dtypes.as_dtype(dtype)) if x.dtype.kind == "f" else x, device=device, requires_grad=need)
        for x, need in zip(arrays, needs, strict=True)
    ]


def draw(device: str, *shapes: Shape, dtype: Any = np.float64) -> list[mg.Tensor]:
    """Leaves of normal numbers, the same at each call."""
    rng = np.random.default_rng(0)
    return [mg.tensor(rng.standard_normal(s).astype(dtype), device=device, requires_grad=True) for s in shapes]


def weights_like(y: np.ndarray) -> np.ndarray:
    """The gradient that checks send into backward: normal, and the same for the same shape."""
    return np.random.default_rng(7).standard_normal(y.shape).astype(np.float32).astype(np.float64)


def send_back(y: mg.Tensor, inputs: Sequence[mg.Tensor], gradient: mg.Tensor | None = None) -> list[np.ndarray | None]:
    """Gradients of the inputs (None where there is none) for ``gradient`` or ``weights_like``."""
    if not y.requires_grad:
        return [None] * len(inputs)
    if gradient is None:
        gradient = mg.tensor(weights_like(host(y)).astype(y.dtype), device=y.device)
    grads = y.backward(gradient)
    assert set(grads.keys()) <= {x.id for x in inputs}
    return [None if (g := grads.get(x)) is None else host(g) for x in inputs]


def assert_like_torch(
    call: Callable[..., Any],
    *arrays: Any,
    rtol: float = 1e-6,
    atol: float = 0.0,
    differentiate: bool = False,
    device: str = "cpu",
) -> None:
    """``call(m, *tensors)`` of minigrad for ``m`` gives the dtypes, shapes and values that it gives of PyTorch.

    Of several results all; NaN and infinities too. With ``differentiate`` the gradients of the first one as well, for
    ``weights_like``. Without PyTorch the test is skipped.
    """
    if torch is None:
        pytest.skip(NO_TORCH)
    ours = [mg.tensor(x, requires_grad=differentiate, device=device) for x in arrays]
    theirs = [torch.tensor(x, requires_grad=differentiate) for x in arrays]
    with np.errstate(all="ignore"):
        found, expected = call(mg, *ours), call(torch, *theirs)
    pairs = [(found, expected)] if isinstance(found, mg.Tensor) else list(zip(found, expected, strict=True))
    for y, z in pairs:
        assert f"torch.{y.dtype}" == str(z.dtype) and y.shape == tuple(z.shape), (y, z)
        np.testing.assert_allclose(host(y), z.detach().numpy(), rtol=rtol, atol=atol)
    if differentiate:
        y, z = pairs[0]
        z.backward(torch.tensor(weights_like(host(y)).astype(y.dtype)))
        for g, x in zip(send_back(y, ours), theirs, strict=True):
            np.testing.assert_allclose(np.zeros(x.shape) if g is None else g, x.grad.numpy(), rtol=rtol, atol=atol)


# The checks -----------------------------------------------------------------------------------------------------------


def check_values(op: Op, device: str) -> None:
    """In float64 and float32 the result is NumPy's, and of the input's dtype where floating; inputs do not change."""
    for shapes in op.shapes_on(device):
        arrays = op.inputs(shapes)
        with np.errstate(all="ignore"):
            expected = np.asarray(op.reference(*arrays))
        for dtype in ("float64", "float32"):
            inputs = tensors(arrays, dtype, device, [False] * len(arrays))
            y = op.run(*inputs)
            assert y.dtype == (dtype if expected.dtype.kind == "f" else expected.dtype), (shapes, y.dtype)
            assert not y.requires_grad
            assert_close(host(y), expected, op.rounding, f"{op} of {shapes} in {dtype}", arrays)
            for x, array in zip(inputs, arrays, strict=True):
                np.testing.assert_array_equal(host(x), array, err_msg=f"{op} changed an input")


def torch_call(op: Op) -> Callable[..., Any]:
    """``op.torch``, or the test is skipped."""
    if torch is None or op.torch is None:
        pytest.skip(NO_TORCH if torch is None else f"PyTorch has no {op}")
    return op.torch


def check_torch(op: Op, device: str) -> None:
    """Results and gradients are PyTorch's in value, shape and dtype."""
    call = torch_call(op)
    for shapes in op.shapes_on(device):
        arrays = op.inputs(shapes)
        needs = op.needs(arrays)
        for dtype in ("float64", "float32"):
            inputs = tensors(arrays, dtype, device, needs)
            theirs = [
                torch.tensor(x.astype(dtype) if x.dtype.kind == "f" else x, requires_grad=need)
                for x, need in zip(arrays, needs, strict=True)
            ]
            y, z = op.run(*inputs), call(*theirs)
            what = f"{op} of {shapes} in {dtype}"
            assert str(y.dtype) == str(z.dtype).removeprefix("torch."), what
            assert_close(host(y), z.detach().numpy(), 2 * op.rounding, what, arrays)
            assert y.requires_grad == z.requires_grad, what
            w = weights_like(host(y))
            if z.requires_grad and op.torch_differentiates:
                z.backward(torch.tensor(w).to(z.dtype))
            for i, (found, x) in enumerate(zip(send_back(y, inputs), theirs, strict=True)):
                if x.grad is not None:
                    assert found is not None, f"{what}: input {i} has no gradient"
                    assert_close(found, x.grad.numpy(), 4 * op.rounding, f"{what}: gradient of input {i}", [*arrays, w])


def check_gradients(op: Op, device: str) -> None:
    """In float64 each input's gradient agrees with finite differences along a random direction: ``_differentiate``.

    In the simulator it is the CPU's, of which this was found, but for rounding: a difference takes four more runs.
    """
    for shapes in op.shapes_on(device):
        _differentiate(op, device, shapes)


def _differentiate(op: Op, device: str, shapes: tuple[Shape, ...]) -> None:
    """<gradient, v> is the derivative along v: the four-point difference with step h = 1e-4 is off by h^4 and by
    rounding / h, both well below 1e-10 of the terms, so 1e-7 leaves only wrong formulas outside.

    Also: a gradient has its input's shape and dtype, an input that needs none gets none, and what another input needs
    does not matter.
    """
    arrays = op.inputs(shapes)
    needs = op.needs(arrays)
    inputs = tensors(arrays, "float64", device, needs)
    y = op.run(*inputs)
    if not any(needs):
        assert not y.requires_grad, f"{op} of {shapes} has no gradient, but its result requires one"
        return
    assert y.requires_grad
    w = weights_like(host(y))
    found, expected = send_back(y, inputs), None
    if simulated(device):
        there = tensors(arrays, "float64", "cpu", needs)
        expected = send_back(op.run(*there), there)
    for i, (x, need) in enumerate(zip(arrays, needs, strict=True)):
        if not need:
            assert found[i] is None
            continue
        grad = found[i]
        assert grad is not None, f"input {i} has no gradient"
        assert grad.shape == x.shape
        assert grad.dtype == x.dtype
        if expected is None:
            _compare_with_differences(op, arrays, i, grad, w, device)
        else:
            assert_close(grad, expected[i], 4 * op.rounding, f"{op} of {shapes}: gradient of input {i}", [*arrays, w])
        alone = tensors(arrays, "float64", device, [j == i for j in range(len(arrays))])
        alone_found = send_back(op.run(*alone), alone)
        assert [g is not None for g in alone_found] == [j == i for j in range(len(arrays))]
        np.testing.assert_array_equal(alone_found[i], grad, err_msg=f"{op} of {shapes}: input {i} by itself")


def _compare_with_differences(
    op: Op, arrays: list[np.ndarray], i: int, grad: np.ndarray, w: np.ndarray, device: str
) -> None:
    v = np.random.default_rng(i).standard_normal(arrays[i].shape)

    def along(t: float) -> float:
        moved = [a + t * v if j == i else a for j, a in enumerate(arrays)]
        return float((host(op.run(*tensors(moved, "float64", device, [False] * len(moved)))) * w).sum())

    h = 1e-4
    difference = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    y = host(op.run(*tensors(arrays, "float64", device, [False] * len(arrays))))
    tolerance = 1e-7 * np.abs(grad * v).sum() + 1e-11 * np.abs(y * w).sum()
    assert abs((grad * v).sum() - difference) <= tolerance, (
        f"{op} of {[a.shape for a in arrays]}: along a direction of input {i} backward gives "
        f"{(grad * v).sum():.12g}, finite differences {difference:.12g}"
    )


def layouts(x: np.ndarray, device: str) -> dict[str, mg.Tensor]:
    """Tensors of the same values whose memory is transposed, strided, reversed, or (where rows are equal) expanded."""
    wide = np.full((*x.shape, 2), 99, x.dtype)
    wide[..., 0] = x
    found = {"strided": mg.tensor(wide, device=device)[..., 0]}
    if x.ndim >= 2:
        found["transposed"] = mg.tensor(np.ascontiguousarray(x.swapaxes(-1, -2)), device=device).transpose(-1, -2)
        order = tuple(range(x.ndim))[::-1]
        found["permuted"] = mg.tensor(np.ascontiguousarray(x.transpose(order)), device=device).permute(*order)
    if x.ndim:
        found["reversed"] = mg.tensor(np.ascontiguousarray(x[::-1]), device=device)[::-1]
        if x.size and (x == x[:1]).all():
            found["expanded"] = mg.tensor(np.ascontiguousarray(x[:1]), device=device).expand(*x.shape)
    return found


def check_layouts(op: Op, device: str) -> None:
    """Neither the layout of an input nor that of the incoming gradient changes values or gradients.

    In the simulator at small shapes, and but for elementwise operations at the one of the most dimensions and values,
    in two layouts: on a GPU other kernels read a copy of what is not contiguous, whatever its shape and strides.
    """
    several = op.shapes_on(device)
    if simulated(device):
        several = [shapes for shapes in several if sum(map(math.prod, shapes)) < 400] or several[:1]
        if op.shapes not in (UNARY, BINARY):
            several = [max(several, key=lambda shapes: (sum(map(len, shapes)), sum(map(math.prod, shapes))))]
    for shapes in several:
        arrays = op.inputs(shapes)
        if not any(x.ndim for x in arrays):
            continue
        for i, x in enumerate(arrays):
            if x.ndim and x.size and x.dtype.kind == "f" and op.equal_rows:
                equal_rows = [np.repeat(x[:1], x.shape[0], 0) if j == i else a for j, a in enumerate(arrays)]
                _compare_layouts(op, device, equal_rows, i, expanded=True)
            _compare_layouts(op, device, arrays, i)


def _compare_layouts(op: Op, device: str, arrays: list[np.ndarray], i: int, expanded: bool = False) -> None:
    """Of input i each layout, or ``expanded`` rows alone."""
    dtype = "float32"
    arrays = [x.astype(dtype) if x.dtype.kind == "f" else x for x in arrays]
    needs = op.needs(arrays)
    plain = tensors(arrays, dtype, device, needs)
    expected = op.run(*plain)
    expected_grads = send_back(expected, plain)
    w = weights_like(host(expected)).astype(expected.dtype)
    left_out = ("transposed", "permuted", "reversed")[: 3 * (simulated(device) and op.shapes not in (UNARY, BINARY))]
    for name, view in layouts(arrays[i], device).items():
        if name in left_out or (expanded and name != "expanded"):
            continue
        inputs = tensors(arrays, dtype, device, needs)
        inputs[i] = view.detach()
        assert inputs[i].shape == arrays[i].shape
        if needs[i]:
            inputs[i].requires_grad_()
        y = op.run(*inputs)
        what = f"{op} of {[x.shape for x in arrays]}, input {i} {name}"
        assert_close(host(y), host(expected), op.rounding, what, arrays)
        np.testing.assert_array_equal(host(inputs[i]), arrays[i], err_msg=f"{what} changed it")
        for g, h in zip(send_back(y, inputs), expected_grads, strict=True):
            assert (g is None) == (h is None)
            if g is not None:
                assert_close(g, h, 4 * op.rounding, f"{what}: gradients", [*arrays, w])
    if expected.requires_grad and i == 0 and not expanded:
        for name, gradient in layouts(w, device).items():
            if name in left_out:
                continue
            again = tensors(arrays, dtype, device, needs)
            for g, h in zip(send_back(op.run(*again), again, gradient), expected_grads, strict=True):
                if g is not None:
                    assert_close(g, h, 4 * op.rounding, f"{op}, incoming gradient {name}", [*arrays, w])


def check_shapes(op: Op, device: str) -> None:
    """Any shapes that fit together: values and gradients, drawn by Hypothesis."""
    if op.random_shapes is None:
        return

    @hypothesis.settings(max_examples=6 if simulated(device) else 12, derandomize=True, deadline=None, database=None)
    @hypothesis.given(op.random_shapes)
    def run(shapes: tuple[Shape, ...]) -> None:
        arrays = op.inputs(shapes)
        with np.errstate(all="ignore"):
            expected = np.asarray(op.reference(*arrays))
        y = op.run(*tensors(arrays, "float32", device, [False] * len(arrays)))
        assert_close(host(y), expected, op.rounding, f"{op} of {shapes}", arrays)
        _differentiate(op, device, shapes)

    run()


def check_dtypes(op: Op, device: str) -> None:
    """For integers, bool, float16 and bfloat16 the result has PyTorch's dtype and values, wherever PyTorch has one."""
    call = torch_call(op)
    shapes = max(op.shapes_on(device), key=lambda s: sum(int(np.prod(x)) for x in s) < 40 and sum(len(x) for x in s))
    for dtype in DTYPES:
        rng = np.random.default_rng(0)
        low, high = (0, 2) if dtype == "bool" else (1, 5)
        arrays = [
            rng.integers(low, high, x.shape).astype(mg.dtypes.as_dtype(dtype)) if x.dtype.kind == "f" else x
            for x in op.inputs(shapes)
        ]
        if dtype in op.refuses:
            raises(TypeError, "", op.run, *(mg.tensor(x, device=device) for x in arrays))
            continue
        try:
            z = call(*map(to_torch, arrays))
        except (RuntimeError, TypeError, NotImplementedError, ValueError):
            continue
        y = op.run(*(mg.tensor(x, device=device) for x in arrays))
        assert str(y.dtype) == str(z.dtype).removeprefix("torch."), f"{op} of {dtype}"
        assert_close(host(y), from_torch(z), op.rounding, f"{op} of {dtype}")


def check_half(op: Op, device: str) -> None:
    """In float16 and bfloat16 results and gradients are float64's of the same inputs, rounded once; PyTorch's dtype.

    Near 0, where differences cancel, float32's are float64's, too.
    """
    shapes = max(op.shapes_on(device), key=lambda s: sum(int(np.prod(x)) for x in s) < 40 and sum(len(x) for x in s))
    for dtype, scale, unit in (
        (mg.float16, 1.0, op.half_rounding),
        (mg.bfloat16, 1.0, op.half_rounding),
        (mg.float32, 1e-4, op.rounding),
    ):
        arrays = [(scale * x).astype(dtype).astype(np.float64) if x.dtype.kind == "f" else x for x in op.inputs(shapes)]
        needs = op.needs(arrays)
        if not any(x.dtype.kind == "f" for x in arrays):
            continue
        there = "cpu" if simulated(device) else device
        exact, inputs = tensors(arrays, "float64", there, needs), tensors(arrays, str(dtype), device, needs)
        y, z = op.run(*inputs), op.run(*exact)
        assert y.dtype == (dtype if z.is_floating_point() else z.dtype), f"{op} of {dtype} is {y.dtype}"
        assert_close(host(y), host(z), unit, f"{op} of {shapes} in {dtype}", arrays)
        assert y.requires_grad == z.requires_grad
        if not y.requires_grad:
            continue
        w = weights_like(host(z)).astype(dtype)
        pairs = zip(
            send_back(y, inputs, mg.tensor(w, device=device)),
            send_back(z, exact, mg.tensor(w.astype(np.float64), device=there)),
            strict=True,
        )
        for i, (g, h) in enumerate(pairs):
            assert (g is None) == (h is None)
            if g is not None:
                assert g.dtype == dtype
                terms = [*arrays, w.astype(np.float64)]
                assert_close(g, h, 2 * unit, f"{op} of {shapes} in {dtype}: gradient of input {i}", terms)


def check_capture(op: Op, device: str) -> None:
    """A launch of a graph of the operation and its derivative gives the bits that the calls give for other inputs."""
    if device == "cpu" and mg.device.CPU.kernels is not mg.device.CPU.native:
        pytest.skip("plain kernels are called, and make no graph")
    for shapes in op.shapes_on(device)[:: 1 if device == "cpu" else 4]:
        for turned in (False, True):
            _capture(op, device, op.inputs(shapes), turned)


def _capture(op: Op, device: str, arrays: list[np.ndarray], turned: bool) -> None:
    """``turned``: inputs and the gradient are transposed views, whose rows no kernel finds contiguous."""

    def turn(x: Any) -> Any:
        return x.transpose(*range(x.ndim)[::-1]) if isinstance(x, np.ndarray) else x.permute(*range(x.ndim)[::-1])

    if turned:
        if all(array.ndim < 2 for array in arrays):
            return
        arrays = [np.array(turn(array), order="C") for array in arrays]
    inputs = tensors(arrays, "float32", device, op.needs(arrays))
    y, given = op.run(*(map(turn, inputs) if turned else inputs)), None
    if y.requires_grad:
        given = weights_like(host(y)).astype(y.dtype)
        given = mg.tensor(np.array(turn(given), order="C") if turned else given, device=device)

    def results() -> list[mg.Tensor]:
        y = op.run(*(map(turn, inputs) if turned else inputs))
        grads = {} if given is None else y.backward(turn(given) if turned else given)
        return [y, *(grads[x] for x in inputs if x in grads)]

    graph = mg.cuda.Graph(device)
    try:
        with graph.capture():
            found = results()
    except mg.cuda.CaptureError as error:  # it says what to do instead
        assert "during capture" in str(error)  # noqa: PT017
        return
    for x, array in zip(inputs, arrays, strict=True):
        other = array.reshape(-1)[::-1].reshape(array.shape).copy()
        x.detach().copy_(mg.tensor(other.astype(x.dtype), device=device))
    graph.replay()
    launched = [host(x.detach()).copy() for x in found]
    for i, (one, other) in enumerate(zip(launched, results(), strict=True)):
        assert one.tobytes() == host(other.detach()).tobytes(), f"{op}: result {i}{', turned' if turned else ''}"


CHECKS = tuple(check for name, check in list(globals().items()) if name.startswith("check_"))


def every_check(ops: Sequence[Op], long: str = "") -> Callable[..., None]:
    """The test of a file: each check on each operation, on each device; the short set leaves out the one ``long``."""
    marked = [pytest.param(x, id=x.__name__[6:], marks=[pytest.mark.long] * (x.__name__[6:] == long)) for x in CHECKS]

    @pytest.mark.parametrize("check", marked)
    @pytest.mark.parametrize("op", ops, ids=str)
    def test_op(op: Op, check: Callable[[Op, str], None], device: str) -> None:
        check(op, device)

    return test_op
