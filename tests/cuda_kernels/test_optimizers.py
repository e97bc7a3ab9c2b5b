"""Optimizers, clipping and unscaling on a GPU: the CPU's results, whatever the sizes, alignment and order of threads.

The elementwise optimizers round as the CPU's kernels do, so their bits are equal; LAMB's ratio of two norms, and the
global norm, are sums in another order.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from harness import host
from optimizer_cases import CASES, FAMILIES
from refusals import raises

import minigrad
from minigrad import Device, Tensor, cuda_kernels, grad_store, plain_kernels
from minigrad.cuda_kernels import from_host, to_host
from minigrad.cuda_kernels.optimizers import multi_tensor
from minigrad.cuda_kernels.platform.upload import Upload
from minigrad.optim import clip_grad_norm, clip_grad_norm_async
from minigrad.optim.clip import NonFiniteGradientError

CHUNK = 96  # elements, so that small arrays have several chunks
SHAPES = [(0, 2), (), (3,), (4, 24), (97,), (5, 41), (2, 96)]
MATRICES = [(4, 5), (7, 3), (1, 1)]
REALS = ["float32", "float64"]

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_tensor, "CHUNK", CHUNK)
    monkeypatch.setattr(cuda_kernels.grad_norm, "NORM_CHUNK", CHUNK)


def draw(shapes: list[tuple[int, ...]], dtype: str, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(s) * 10.0 ** rng.integers(-6, 2, s), dtype) for s in shapes]


def on(device: str, arrays: list[np.ndarray]) -> list[Tensor]:
    return [Tensor(x, device=Device(device), requires_grad=True) for x in arrays]


def store(params: list[Tensor], grads: list[np.ndarray]) -> grad_store.GradStore:
    return grad_store.GradStore({p._id: Tensor(g, device=p.device) for p, g in zip(params, grads, strict=True)})


def compare(found: np.ndarray, expected: np.ndarray, exact: bool) -> None:
    """Equal bits; or off by what a ratio of norms that differs in its last bits does to the largest value."""
    if exact:
        np.testing.assert_array_equal(found, expected)
    else:
        eps = np.finfo(expected.dtype).eps
        np.testing.assert_allclose(found, expected, rtol=0, atol=8 * eps * np.max(np.abs(expected), initial=0))


def stepped(name: str, first: list[np.ndarray], steps: list[list[np.ndarray]], **options):
    """Pairs (GPU's, CPU's) of the parameters after the ``steps``, whose gradients are the last ones', and of the state.

    Each step has a learning rate of its own.
    """
    results: list[list[np.ndarray]] = []
    for device in ("cpu", "cuda"):
        params = on(device, [x.copy() for x in first])
        optimizer = CASES[name].make(params, **options)
        for i, grads in enumerate(steps):
            optimizer.step(store(params[len(params) - len(grads) :], grads))
            optimizer.set_lr(0.01 * (i + 2))
        results.append([*map(host, params), *optimizer.state_dict()[0].values()])
    for expected, found in zip(*results, strict=True):
        assert found.dtype == expected.dtype
        yield found, expected


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("name", [name for name in CASES if name != "Muon"])
def test_steps_are_the_cpus(name: str, dtype: str) -> None:
    steps = [draw(SHAPES, dtype, 1 + step)[step % 2 :] for step in range(3)]
    for found, expected in stepped(name, draw(SHAPES, dtype, 0), steps):
        compare(found, expected, exact=name not in ("Lamb", "LARS"))


def test_muon_is_the_cpus_up_to_rounding() -> None:
    for found, expected in stepped(
        "Muon", draw(MATRICES, "float32", 0), [draw(MATRICES, "float32", i) for i in (1, 2)]
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["AdamW", "SGD momentum"])
@pytest.mark.parametrize("dtype", [minigrad.float16, minigrad.bfloat16], ids=str)
def test_half_parameters_are_the_cpus(dtype, name: str) -> None:
    first, *steps = ([x.astype(dtype) for x in draw(SHAPES, "float32", seed)] for seed in range(3))
    for found, expected in stepped(name, first, steps):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("family", FAMILIES)
def test_views_that_16_byte_accesses_cannot_reach(family: str, dtype: str) -> None:
    """Every array begins ``shift`` elements after an aligned address; neighbours must stay as they are."""
    states, rows = FAMILIES[family]
    n = 150
    for shifts in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 3, 0), (0, 0, 0, 2), (2, 2, 2, 2)):
        results = []
        for kernels, move in ((plain_kernels, np.copy), (cuda_kernels, from_host)):
            columns = [[move(np.abs(x)) for x in draw([(n + 8,), (n + 8,)], dtype, c)] for c in range(2 + states)]
            views = [
                [x[shift : shift + n + i] for i, x in enumerate(column)]
                for shift, column in zip(shifts, columns, strict=False)
            ]
            used = getattr(kernels, family)
            used.step(used.Table(views[0], *views[2:]), views[1], np.array(rows))
            results.append([np.asarray(kernels.to_host(x)) for column in columns for x in column])
        for found, expected in zip(results[1], results[0], strict=True):
            compare(found, expected, exact=family != "lamb")


def test_special_values_are_the_cpus() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38], np.float32)
    first = [np.ones(7, np.float32), values, np.full(3, 3e38, np.float32), np.zeros(4, np.float32)]
    grads = [values, np.ones(7, np.float32), np.zeros(3, np.float32), np.ones(4, np.float32)]
    for name in ("AdamW", "SGD momentum", "AdaGrad", "LARS", "Lamb"):
        for found, expected in stepped(name, first, [grads, grads]):
            np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)


def test_what_a_table_refuses() -> None:
    x = [from_host(np.zeros((4, 6), np.float32)) for _ in range(4)]
    adamw, sgd, row = cuda_kernels.adamw, cuda_kernels.sgd, np.zeros((1, 7))
    table = adamw.Table(x[:1], x[1:2], x[2:3])
    fixed = x[0].view(x[0].shape, x[0].strides, writeable=False)
    there, turned = from_host(np.zeros((4, 6), np.float32), 1), from_host(np.zeros((6, 4), np.float32)).T
    for error, words, call in (
        (ValueError, "1 parameters, 0 and 1 state", lambda: adamw.Table(x[:1], [], x[:1])),
        (ValueError, "1 parameters, 2 state", lambda: sgd.Table(x[:1], x[:2])),
        (TypeError, "int32", lambda: sgd.Table([from_host(np.zeros(3, np.int32))])),
        (ValueError, "array 1 .*read-only", lambda: sgd.Table([x[0], fixed])),
        (ValueError, r"array 0 .*not C-contiguous", lambda: sgd.Table([x[0].T])),
        (ValueError, "array 0 .*12 elements", lambda: sgd.Table(x[:1], [x[1][:2]])),
        (ValueError, "array 1 is on cuda:1", lambda: sgd.Table([x[0], there])),
        (ValueError, "0 gradients and scalars", lambda: adamw.step(table, [], row)),
        (ValueError, r"shape \(1, 7\)", lambda: adamw.step(table, x[3:], np.zeros((1, 5)))),
        (TypeError, "float64", lambda: adamw.step(table, [from_host(np.zeros((4, 6)))], row)),
        (ValueError, "array 0 .*not C-contiguous", lambda: adamw.step(table, [turned], row)),
    ):
        raises(error, words, call)
    sgd.step(sgd.Table([]), [], np.zeros((0, 6)))  # no parameters, nothing to do


# The norm, clipping, unscaling ----------------------------------------------------------------------------------------


def arrays(dtypes: tuple[str, ...]) -> list[np.ndarray]:
    sizes = [0, 1, 3, CHUNK, CHUNK + 1, 3 * CHUNK - 1, 17]
    return [draw([(n,)], dtypes[i % len(dtypes)], i)[0] for i, n in enumerate(sizes)]


@pytest.mark.usefixtures("order")
def test_sum_of_squares() -> None:
    grad_norm = cuda_kernels.grad_norm
    for dtypes in (("float32",), ("float64",), ("float32", "float64")):
        xs = arrays(dtypes)
        expected = sum((x.astype(np.float64) ** 2).sum() for x in xs)
        found = grad_norm.sum_of_squares(iter(map(from_host, xs)))
        assert isinstance(found, float)
        assert found == pytest.approx(expected, rel=1e-13, abs=0)
    assert grad_norm.sum_of_squares([]) == 0.0
    assert grad_norm.sum_of_squares([from_host(np.zeros(0, np.float32))]) == 0.0


def test_the_sum_does_not_depend_on_addresses() -> None:
    grad_norm, x = cuda_kernels.grad_norm, draw([(250,)], "float32", 0)[0]
    alone = grad_norm.sum_of_squares([from_host(x)])
    for shift in (1, 2, 3):
        longer = from_host(np.concatenate([np.full(shift, np.nan, np.float32), x]))
        assert grad_norm.sum_of_squares([longer[shift:]]) == alone
    longer = grad_norm.sum_of_squares([from_host(np.zeros(700, np.float32)), from_host(x)])
    assert longer == pytest.approx(alone, rel=1e-15, abs=0)


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-30, 1e-13, 1e-12, 1.0, 1e18, 1e20, 3e38])
def test_squares_beyond_float32(value: float) -> None:
    x = np.full(2 * CHUNK, value, np.float32)
    expected = (x.astype(np.float64) ** 2).sum()
    assert cuda_kernels.grad_norm.sum_of_squares([from_host(x)]) == pytest.approx(expected, rel=1e-13, abs=0)


def test_nan_infinity_other_layouts_and_dtypes() -> None:
    grad_norm, x = cuda_kernels.grad_norm, draw([(9, 14)], "float32", 0)[0]
    there = from_host(x)
    assert np.isnan(grad_norm.sum_of_squares([there, from_host(np.array([1, np.nan], np.float32))]))
    assert grad_norm.sum_of_squares([from_host(np.array([1, -np.inf], np.float32))]) == np.inf
    half = x.astype(np.float16)
    for found, expected in ((there[:, ::3], x[:, ::3]), (there.T, x.T), (from_host(half), half)):
        sum_ = (expected.astype(np.float64) ** 2).sum()
        assert grad_norm.sum_of_squares([found]) == pytest.approx(sum_, rel=1e-13, abs=0)


def both(run, xs: list[np.ndarray]):
    """``run(grad_norm, arrays)`` on both backends: the GPU's arrays, which are the CPU's, and both results."""
    there, here = [from_host(x) for x in xs], [x.copy() for x in xs]
    found, expected = run(cuda_kernels.grad_norm, there), run(plain_kernels.grad_norm, here)
    back = [np.asarray(to_host(x)) for x in there]
    for x, y in zip(back, here, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6 if x.dtype != np.float16 else 1e-3)
    return back, found, expected


@pytest.mark.usefixtures("order")
def test_scale() -> None:
    xs = [*arrays(("float32", "float64")), np.array([1, 6e4, np.inf], np.float16)]
    back, _, _ = both(lambda family, a: family.scale_([*a[:-1], a[-1][::2]], 2.3), xs)
    for found, x in zip(back[:-1], xs, strict=False):
        np.testing.assert_array_equal(found, x * x.dtype.type(2.3))  # one product, whatever the path
    np.testing.assert_array_equal(back[-1], np.array([2.3, 6e4, np.inf], np.float16))
    cuda_kernels.grad_norm.scale_([], 0.5)


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("dtypes", [("float32",), ("float64",), ("float32", "float64"), ("float32", "float16")])
def test_clip(dtypes: tuple[str, ...]) -> None:
    xs = [x / np.max(np.abs(x), initial=1) for x in arrays(dtypes)]
    norm = float(np.sqrt(sum((x.astype(np.float64) ** 2).sum() for x in xs)))
    for limit in (norm / 3, norm * 1.01):
        back, found, expected = both(lambda family, a, limit=limit: family.clip_(a, limit, 1e-6), xs)
        assert (found.shape, found.dtype) == ((), np.float64)
        assert float(to_host(found)) == pytest.approx(float(expected), rel=1e-6)
        if limit > norm:
            for x, y in zip(back, xs, strict=True):
                np.testing.assert_array_equal(x, y)
        else:
            clipped = np.sqrt(sum((x.astype(np.float64) ** 2).sum() for x in back))
            assert clipped == pytest.approx(limit, rel=1e-5 if "float16" not in dtypes else 1e-3)


def test_clip_of_arrays_of_two_dtypes_and_the_same_sizes() -> None:
    xs = [np.full(5, 3, np.float32), np.full(5, 4, np.float64)]
    both(lambda family, a: family.clip_(a, 1.0, 1e-6), xs)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_clip_leaves_what_is_not_finite(bad: float) -> None:
    xs = [np.ones(5, np.float32), np.array([1, bad, 3], np.float32)]
    back, norm, _ = both(lambda family, a: family.clip_(a, 0.1, 1e-6), xs)
    assert not np.isfinite(to_host(norm))
    for x, y in zip(back, xs, strict=True):
        np.testing.assert_array_equal(x, y)


def test_an_array_given_twice_counts_twice_and_is_changed_once() -> None:
    def run(family, a):
        return family.clip_([a[0], a[1], a[0]], 1.0, 0.0)

    back, norm, expected = both(run, [np.full(4, 2, np.float32), np.full(1, 2, np.float32)])
    assert float(to_host(norm)) == float(expected) == 6.0
    np.testing.assert_allclose(back[0], 1 / 3, rtol=1e-6)


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf])
def test_unscale_and_finite_check(bad: float | None) -> None:
    for dtype in ("float32", "float64", "float16"):
        for place in (0, 1, 2, 3, 196):  # each lane of an access, and the tail
            xs = [np.ones(3, np.float32), *draw([(197,), (0,)], dtype, 0)]
            if bad is not None:
                xs[1][place] = bad
            back, found, expected = both(lambda family, a: family.unscale_(a, 0.25), xs)
            assert (found.shape, found.dtype, expected.dtype) == ((), np.int32, np.int32)
            assert int(to_host(found)) == int(expected) == int(bad is not None)
            np.testing.assert_array_equal(back[1], xs[1] * xs[1].dtype.type(0.25))
            for kernels, move in ((plain_kernels, np.copy), (cuda_kernels, from_host)):
                assert kernels.grad_norm.all_finite(map(move, xs)) is (bad is None)
    assert cuda_kernels.grad_norm.all_finite([])


def test_read_only_arrays_are_refused_before_anything_changes() -> None:
    x, y = (from_host(np.ones(3, np.float32)) for _ in range(2))
    fixed = y.view(y.shape, y.strides, writeable=False)
    grad_norm = cuda_kernels.grad_norm
    for call in (
        lambda: grad_norm.scale_([x, fixed], 2.0),
        lambda: grad_norm.clip_([x, fixed], 0.1, 1e-6),
        lambda: grad_norm.unscale_([x, fixed], 2.0),
    ):
        raises(ValueError, "array 1 .*read-only", call)
    np.testing.assert_array_equal(to_host(x), 1)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_clipping_gradients_with_and_without_waiting(device: str) -> None:
    grads = [np.full((2, 3), 2, np.float32), np.full(3, -2, np.float32)]  # a norm of 6
    for clip in (clip_grad_norm, clip_grad_norm_async):
        for limit, factor in ((3.0, 0.5), (7.0, 1.0)):
            params = on(device, [np.zeros_like(g) for g in grads])
            found = store(params, grads)
            norm = clip(found, limit)
            if isinstance(norm, Tensor):
                assert (norm.shape, norm.dtype, norm.device) == ((), np.float64, Device(device))
                norm = norm.item()
            assert norm == pytest.approx(6.0, rel=1e-7)
            for p, g in zip(params, grads, strict=True):
                np.testing.assert_allclose(host(found.get(p)), g * factor, rtol=1e-6)
    params = on(device, [np.zeros(3, np.float32)])
    bad = np.array([1, np.inf, 2], np.float32)
    found = store(params, [bad])
    raises(NonFiniteGradientError, "nothing was changed", lambda: clip_grad_norm(found, 0.1))
    assert clip_grad_norm(found, 0.1, error_if_nonfinite=False) == np.inf
    assert clip_grad_norm_async(found, 0.1).item() == np.inf
    np.testing.assert_array_equal(host(found.get(params[0])), bad)


def test_clipping_without_waiting_needs_one_device() -> None:
    params = [*on("cpu", [np.ones(2, np.float32)]), *on("cuda", [np.ones(2, np.float32)])]
    found = store(params, [np.ones(2, np.float32)] * 2)
    raises(ValueError, "are on cpu, cuda:0; clip_grad_norm adds", lambda: clip_grad_norm_async(found, 1.0))
    assert clip_grad_norm(found, 1.0) == pytest.approx(2.0)
    np.testing.assert_allclose([host(found[p]) for p in params], 0.5, rtol=1e-5)
    assert clip_grad_norm_async(grad_store.GradStore(), 1.0).item() == 0.0
    raises(ValueError, "max_norm", lambda: clip_grad_norm_async(found, 0.0))


def test_threads_have_their_own_way_to_the_device() -> None:
    plans = []

    def run(value: float) -> float:
        cuda_kernels.grad_norm.sum_of_squares([from_host(np.full(3, value, np.float32))])
        plans.append(cuda_kernels.grad_norm._plans.of)
        return value

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        one.submit(run, 1.0).result()
        two.submit(run, 2.0).result()
    assert plans[0] is not plans[1]


def test_a_buffer_is_written_again_only_after_its_copy() -> None:
    upload = Upload(8, 0)
    log: list[tuple[str, int]] = []

    class Event:
        """Of the copy from one of the buffers; what the buffer held when the host waited for it."""

        def __init__(self, buffer: np.ndarray) -> None:
            self.buffer = buffer

        def record(self) -> None:
            log.append(("copied", int(self.buffer.view(np.int64)[0])))

        def synchronize(self) -> None:
            log.append(("waited", int(self.buffer.view(np.int64)[0])))

    upload._events = [Event(buffer) for buffer in upload._buffers]
    for step in range(6):
        (arrived,) = upload.send(np.array([step], np.int64))
        assert to_host(arrived)[0] == step
    expected = [("copied", step) for step in range(4)]
    expected += [("waited", 0), ("copied", 4), ("waited", 1), ("copied", 5)]
    assert log == expected


def test_what_is_sent_is_aligned() -> None:
    upload = Upload(32, 0)
    parts = np.array([1, 2, 3], np.float32), np.array([4], np.int64)
    arrived = upload.send(*parts)
    assert [x.pointer % 8 for x in arrived] == [0, 0]
    for found, sent in zip(arrived, parts, strict=True):
        np.testing.assert_array_equal(to_host(found), sent)


@pytest.mark.parametrize("name", ["float32", "float64", "uint16", "uint64"])
def test_an_address_is_a_pointer_to_elements_of_its_type(name: str) -> None:
    """A kernel reads and writes the second of three words by the addresses of two arrays."""
    from minigrad.cuda_kernels.platform.language import cuda
    from minigrad.cuda_kernels.platform.launch import kernel
    from minigrad.cuda_kernels.ptx import ptx

    pointer = getattr(ptx, f"pointer_{name}")

    @kernel("int64*", threads=32, registers=32, name=f"second_of_{name}")
    def second(addresses) -> None:
        if cuda.threadIdx.x == 0:
            pointer(addresses[1])[1] = pointer(addresses[0])[1]

    x = np.arange(1, 4 * 8 * 3 + 1, dtype=np.uint8)[: 3 * np.dtype(name).itemsize].view(name)
    source, target = from_host(x), from_host(np.zeros(3, name))
    second.launch(1, from_host(np.array([source.pointer, target.pointer], np.int64)))
    assert to_host(target).tobytes() == np.array([0, x[1], 0], name).tobytes()


@pytest.mark.skipif(not cuda_kernels.simulated(), reason="a GPU does not check addresses")
def test_the_simulator_knows_which_addresses_are_in_use() -> None:
    from minigrad.cuda_kernels.ptx import ptx
    from minigrad.cuda_kernels.simulator import simulated_memory

    x = from_host(np.arange(6, dtype=np.float64))
    p = ptx.pointer_float64(x.pointer + 16)
    assert (p[0], p[3]) == (2.0, 5.0)
    with pytest.raises(simulated_memory.SimulationError, match="outside the memory"):
        p[4]
    raises(simulated_memory.SimulationError, "not aligned", ptx.pointer_float64, x.pointer + 4)
    address = x.pointer
    del x, p
    for nowhere in (address, 4096):
        raises(simulated_memory.SimulationError, "no device memory", ptx.pointer_float32, nowhere)
