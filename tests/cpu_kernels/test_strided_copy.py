"""Copies by all threads have NumPy's values, whatever the layout, the size of an element and the number of threads."""

from collections.abc import Callable

import numpy as np
import pytest
from refusals import raises

import minigrad
from minigrad import cpu_kernels, plain_kernels
from minigrad.cpu_kernels.toolbox.strided_copy import copied, copy_into

RNG = np.random.default_rng(0)
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "transposed": lambda x: x.T, "rows left out": lambda x: x[1:, ::2], "reversed": lambda x: x[::-1, ::-1],
    "a column": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "a row, repeated": lambda x: np.broadcast_to(x[:, None], (len(x), 3, x.shape[1])),
    "heads": lambda x: x[:512, :768].reshape(8, 64, 16, 48).transpose(0, 2, 1, 3),
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "complex128", "bool"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, dtype: str, threads: int, set_threads: Callable[[int], None]) -> None:
    set_threads(threads)
    x = LAYOUTS[layout](RNG.integers(0, 100, (517, 771)).astype(dtype))
    y = copied(x, 0)
    assert y.flags.c_contiguous and y.flags.owndata
    np.testing.assert_array_equal(y, x)
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype)
    copy_into(wide[..., ::-2], x)
    np.testing.assert_array_equal(wide[..., ::-2], x)
    assert not wide[..., ::2].any()


def test_arrays_that_no_kernel_copies() -> None:
    unaligned = np.zeros(8 * 10_001, np.uint8)[1 : 8 * 10_000 + 1].view(np.float64)
    for x in (np.full(100_000, "a", object), unaligned + 1, np.ones((0, 5)), np.array(3.0)):
        y = np.empty_like(x)
        copy_into(y, x)
        np.testing.assert_array_equal(y, x)
    raises(ValueError, r"no copy of one float32 \(5, 1\)", copy_into, np.ones((5, 1), "f"), np.ones((5, 2), "f"))


@pytest.mark.parametrize("shape", [(3, 5), (517, 771), (0, 4)])
def test_movement_is_the_plain_one(shape: tuple[int, int]) -> None:
    x = RNG.integers(0, 100, shape).astype(np.float32)
    calls = [("tril", (x, 2)), ("triu", (x, -2)), ("cat", ((x, x[:2], x), 0)), ("cat", ((x, x[:, ::2]), 1))]
    calls += [("cat", ((x, x[:, ::2]), -1)), ("cat", ((x, x), -2)), ("cat", ((x, x.astype(np.float64)), 1))]
    for name, arguments in calls:
        found, expected = (getattr(kernels.movement, name)(*arguments) for kernels in (cpu_kernels, plain_kernels))
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    for move in (lambda x: x.flip(0, 1), lambda x: x.roll((2, -3, 1), (0, 1, 0)), lambda x: x.tile(2, 1, 3)):
        found = move(minigrad.tensor(x)).numpy()
        with minigrad.kernels("plain"):
            np.testing.assert_array_equal(found, move(minigrad.tensor(x)).numpy())
