"""Matrix products: every kernel of the family, at sizes that its tiles do not divide, against NumPy in float64."""

from pathlib import Path

import house
import numpy as np
import pytest
from product_cases import RNG, check_epilogues, draw, product, stored
from refusals import raises
from simulated import ordered

from minigrad.cuda_kernels import matmul
from minigrad.cuda_kernels.ladders import ladder_matmul
from minigrad.cuda_kernels.platform import array, choices, launch, memory
from minigrad.cuda_kernels.products import hopper, simt, tensor_core, tiles
from minigrad.dtypes import as_dtype

LAYOUTS = {"k": "rows", "o": "columns", "-": "neither", "odd": "odd"}  # by along what kernels read the left operand
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-13}


@pytest.fixture
def launched(launched, monkeypatch):
    """The names of the kernels that ran; every product is too large for the small kernel."""
    monkeypatch.setattr(simt, "SMALL", 0)
    return launched


def use_tiles(monkeypatch, T, splits=1):
    monkeypatch.setattr(simt, "plan", lambda *_: (16 * T, splits))


def check_value(y, expected):
    np.testing.assert_allclose(array.to_host(y), expected, rtol=TOLERANCE[y.dtype], atol=TOLERANCE[y.dtype])


def check(y, a, b, bias=0):
    check_value(y, product(a, b) + bias)


@pytest.mark.parametrize(
    ("layout_a", "layout_b", "seed"),
    [("k", "o", None), ("k", "k", 1), ("o", "k", None), ("o", "o", None), ("odd", "k", 2), ("-", "o", None)],
)
def test_large_tiles_in_all_layouts(layout_a, layout_b, seed, launched, monkeypatch):
    """The wide kernels read a and b along k or along rows and columns; what they cannot read the plain kernel does."""
    use_tiles(monkeypatch, 8)
    a, b, bias = draw(132, 12), draw(12, 76), draw(76)
    with ordered(seed):
        y = matmul.matmul(stored(a, LAYOUTS[layout_a]), stored(b, LAYOUTS[layout_b]), array.from_host(bias))
    check(y, a, b, bias)
    kinds = {"odd": None, "-": "k"}.get(layout_a, layout_a), "ok"[layout_b == "o"]
    name = "simt_tiles.tiled_float32_128"
    assert launched[-1] == (name if kinds[0] is None else f"{name}_{''.join(kinds)}")


@pytest.mark.parametrize(("dtype", "T"), [("f4", 8), ("f4", 4), ("f4", 2), ("f8", 4), ("f8", 2)])
def test_tiles_of_odd_sizes_and_batches(dtype, T, launched, monkeypatch):
    use_tiles(monkeypatch, T)
    a, b = draw(16 * T + 3, 9, dtype=dtype), draw(9, 5, dtype=dtype)
    check(matmul.matmul(stored(a, "columns"), stored(b)), a, b)
    a, b = draw(2, 1, 5, 3, dtype=dtype), draw(2, 3, 16 * T + 1, dtype=dtype)
    check(matmul.matmul(stored(a), stored(b, "columns")), a, b)
    assert {name.rpartition("_")[0] for name in launched if "tiled" in name} == {f"simt_tiles.tiled_{a.dtype}"}


def test_rows_that_end_within_a_vector_are_read_one_by_one(launched, monkeypatch):
    use_tiles(monkeypatch, 8)
    a, b = draw(5, 8), draw(6, 8)
    y = matmul.matmul(array.from_host(a)[:, :7], array.from_host(b)[:, :7].T)
    check(y, a[:, :7], b[:, :7].T)
    assert launched == ["simt_tiles.tiled_float32_128"]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_divided_sums(dtype, launched, monkeypatch):
    """The gradient of a weight: the sums are divided, with the same bits at each run."""
    use_tiles(monkeypatch, 2, 3)
    a, b, bias = draw(150, 6, dtype=dtype), draw(150, 5, dtype=dtype), draw(5, dtype=dtype)
    device = stored(a).T, stored(b), array.from_host(bias)
    y = matmul.matmul(*device)
    check(y, a.T, b, bias)
    assert launched[-1] == f"epilogue.sum_parts_{y.dtype}"
    with ordered(3):
        np.testing.assert_array_equal(array.to_host(matmul.matmul(*device)), array.to_host(y))


@pytest.mark.parametrize(
    ("dtype", "K", "name"), [("f4", 136, "dot_float32_wide"), ("f4", 37, "dot_float32"), ("f8", 40, "dot_float64")]
)
def test_few_rows(dtype, K, name, launched):
    """Decoding: a row or two times the rows of a weight."""
    for M, N in ((1, 5), (2, 3), (5, 1)):
        a, b, bias = draw(M, K, dtype=dtype), draw(K, N, dtype=dtype), draw(N, dtype=dtype)
        check(matmul.matmul(stored(a), stored(b, "columns"), array.from_host(bias)), a, b, bias)
        assert launched[-1] == f"simt.{name}"


@pytest.mark.parametrize(
    ("sizes", "T", "splits"),
    [((4, 3, 5), None, 1), ((2, 40, 3), None, 1), ((9, 8, 33), 8, 1), ((9, 7, 33), 8, 1), ((9, 130, 5), 2, 2)],
)
def test_epilogues_are_the_composite(sizes, T, splits, monkeypatch):
    """matmul_gelu is the product, its bias and GELU; others add, or multiply by GELU's derivative; in each kernel."""
    if T is None:
        monkeypatch.setattr(simt, "SMALL", 1000 if sizes[0] == 4 else 0)
    else:
        use_tiles(monkeypatch, T, splits)
    M, K, N = sizes
    check_epilogues(check_value, draw(M, K) / 4, draw(K, N), draw(N), draw(M, N), ("rows", "columns"))


def test_epilogues_refuse_what_they_cannot_do(monkeypatch):
    a = array.from_host(draw(3, 3))
    with pytest.raises(ValueError, match=r"add_matmul .* expected a C-contiguous array \(3, 3\), all float32"):
        matmul.add_matmul(array.from_host(draw(3, 2)), a, a)
    raises(ValueError, "add_matmul", lambda: matmul.add_matmul(array.from_host(draw(3, 3)).T, a, a))
    with pytest.raises(TypeError, match="no kernel for float16"), monkeypatch.context() as old_card:
        old_card.setattr(memory, "capability", lambda _: (7, 5))
        matmul.matmul(*[array.from_host(np.ones((2, 2), np.float16))] * 2)


@pytest.mark.parametrize("dtype", ["i8", "i4", "u1", "?"])
def test_integers_wrap_as_numpys(dtype):
    a, b = (RNG.integers(0, 200, shape).astype(dtype) for shape in ((2, 1, 3, 4), (3, 4, 2)))
    y = array.to_host(matmul.matmul(array.from_host(a), array.from_host(b)))
    np.testing.assert_array_equal(y, np.matmul(a, b))
    assert y.dtype == np.matmul(a, b).dtype


def test_leading_dimensions_in_any_order():
    """Three that do not merge."""
    a, b = draw(2, 3, 2, 2, 4), draw(2, 1, 2, 4, 3)
    left = array.from_host(np.ascontiguousarray(a.transpose(2, 1, 0, 3, 4))).transpose(2, 1, 0, 3, 4)
    right = array.from_host(b.swapaxes(0, 2)).swapaxes(0, 2)
    check(matmul.matmul(left, right), a, b)


STRAIGHT_DOWN = [
    ("f4", "numba", ["simt", "epilogue"]), ("f4 thin", "numba", ["simt", "tiles", "epilogue"]),
    ("f4 divided", "numba", ["simt", "tiles", "epilogue"]),
    ("bfloat16", "numba", ["tensor_core", "tiles", "epilogue"]),
    ("bfloat16 divided", "numba", ["tensor_core", "tiles", "epilogue"]),
    ("bfloat16", "hopper", ["hopper", "tiles", "epilogue"]),
    ("bfloat16 elsewhere", "hopper", ["hopper", "tensor_core", "tiles", "epilogue"]),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "engine", "files"), STRAIGHT_DOWN)
def test_a_product_goes_straight_down(dtype, engine, files, monkeypatch):
    """From the family to the launch no file is entered again that was left: record, choice, engine, tiles, epilogue."""
    monkeypatch.setattr(choices, "_gemm", engine)
    monkeypatch.setattr(launch.Kernel, "launch", lambda *_, **__: None)
    word, _, case = dtype.partition(" ")
    M, N, K = {"thin": (2, 64, 2048), "divided": (64, 64, 8192)}.get(case, (64, 64, 64))
    if case == "elsewhere":
        monkeypatch.setattr(hopper, "CAPABILITY", (10, 0))
    weight, x, bias = (array.zeros(shape, as_dtype(word)) for shape in ((N, K), (M, K), (N,)))
    matmul.matmul_gelu(x, weight.T, bias)
    entered = []
    for frame in house.calls_of(lambda: matmul.matmul_gelu(x, weight.T, bias)):
        file = Path(house.ours(frame))
        if file.parts[:2] != ("cuda_kernels", "platform") and entered[-1:] != [file.stem]:
            entered.append(file.stem)
    assert entered == ["matmul", "record", "choose", *files]


def test_more_elements_than_a_launch_takes(monkeypatch):
    monkeypatch.setattr(simt, "MOST_ELEMENTS", 20)
    for sa, sb in (((3, 2, 5), (5, 4)), ((7, 3), (3, 9)), ((3, 2, 3), (3, 3, 4))):
        a, b = draw(*sa), draw(*sb)
        check(matmul.matmul(array.from_host(a), array.from_host(b)), a, b)


def test_plans_fill_a_gpu():
    for sizes, without, on_tensor_cores in [
        *[((65536, 3072, 768, 1), (128, 1), (128, 1)), ((768, 768, 65536, 1), (128, 7), (128, 7))],
        *[((128, 128, 128, 1), (32, 1), (64, 1)), ((16, 16, 100_000, 1), (32, 264), (64, 264))],
        *[((64, 64, 64, 128), (64, 1), (64, 1)), ((1, 3072, 768, 1), (32, 2), (64, 3))],
    ]:
        assert tiles.plan(*sizes, (128, 64, 32)) == without
        assert tiles.plan(*sizes, tensor_core.SIDES) == on_tensor_cores


@pytest.mark.parametrize("step", ladder_matmul.STEPS)
def test_a_step_of_the_ladder_is_the_product(step):
    a, b = RNG.standard_normal((19, 20), np.float32), RNG.standard_normal((20, 24), np.float32)
    with ordered(1):
        check(ladder_matmul.multiply(step, array.from_host(a), array.from_host(b)), a, b)
