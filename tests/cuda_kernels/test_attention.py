"""Attention on tiles and by rows equals the plain kernels', forward and backward, mask for mask."""

import numpy as np
import pytest
from simulated import ordered

from minigrad.cuda_kernels import attention
from minigrad.cuda_kernels.flash import flash
from minigrad.cuda_kernels.platform import array
from minigrad.ops.attention import Options
from minigrad.plain_kernels import attention as plain

DROPOUT = (0.3, 12345678901234, 7)


def heads(rng, B, H, T, D, dtype):
    """(B, H, T, D) as a view of (B, T, H, D), as projections give it."""
    return rng.standard_normal((B, T, H, D)).astype(dtype).swapaxes(1, 2)


def on_device(x):
    return array.from_host(np.ascontiguousarray(x.swapaxes(1, 2))).swapaxes(1, 2)


def check(dtype, sizes, causal, dropout=(0.0, 0, 0), place=on_device):
    rng = np.random.default_rng(0)
    B, Hq, H, Tq, Tk, D = sizes
    q, k, v, dy = (heads(rng, B, h, T, D, dtype) for h, T in ((Hq, Tq), (H, Tk), (H, Tk), (Hq, Tq)))
    options = Options(causal, 0.5, *dropout)
    y, lse = plain.forward(q, k, v, options)
    expected = (y, lse, *plain.backward(dy, q, k, v, y, lse, options))
    device_q, device_k, device_v, device_dy = map(place, (q, k, v, dy))
    y, lse = attention.forward(device_q, device_k, device_v, options)
    found = (y, lse, *attention.backward(device_dy, device_q, device_k, device_v, y, lse, options))
    tolerance = 1e-4 if dtype == "f4" else 1e-12
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(array.to_host(one), two, rtol=tolerance, atol=tolerance)
    return found


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("sizes", [(1, 2, 2, 5, 4, 0), (2, 4, 2, 300, 3, 277), (1, 3, 1, 4, 2, 3)])
def test_a_token_extends_a_cache(dtype, sizes):
    rng, (B, Hq, H, room, D, n) = np.random.default_rng(1), sizes
    q, k, v = (heads(rng, B, h, 1, D, dtype) for h in (Hq, H, H))
    expected = rng.standard_normal((2, B, H, room, D)).astype(dtype)
    cache, length = array.from_host(expected.copy()), np.array([n])
    found = attention.extend(*map(on_device, (q, k, v)), cache, array.from_host(length))
    want = plain.extend(q, k, v, expected, length)
    np.testing.assert_array_equal(array.to_host(cache), expected)
    np.testing.assert_allclose(array.to_host(found), want, rtol=1e-4 if dtype == "f4" else 1e-12, atol=1e-6)


def test_without_keys():
    y, lse, *_ = check("f8", (1, 2, 2, 3, 0, 4), False)
    assert (array.to_host(y) == 0).all()
    assert (array.to_host(lse) == -np.inf).all()


def test_rows_with_more_keys_than_a_block_has_threads():
    check("f8", (1, 4, 2, 3, 300, 2), False, DROPOUT)  # later keys have the largest score, too
    check("f8", (1, 1, 1, 130, 150, 2), True, DROPOUT)


TILES = [
    ("f8", (1, 2, 1, 34, 3, 4), True, DROPOUT, None),  # two tiles of queries, grouped heads
    ("f8", (1, 1, 1, 3, 50, 5), False, DROPOUT[:1] + (3, 4), 1),  # two tiles of keys, rows that no vector reads
    ("f8", (1, 1, 1, 34, 34, 4), True, (0.0, 0, 0), None),  # a pair of tiles above the diagonal
    ("f4", (1, 1, 1, 5, 6, 4), True, DROPOUT, None),  # the largest tiles
    ("f4", (1, 1, 1, 3, 2, 66), False, (0.0, 0, 0), None),  # wide heads
]


@pytest.mark.parametrize(("dtype", "sizes", "causal", "dropout", "seed"), TILES)
def test_tiles(dtype, sizes, causal, dropout, seed, monkeypatch):
    monkeypatch.setattr(attention, "SMALL", 0)
    with ordered(seed):
        check(dtype, sizes, causal, dropout)


def test_heads_larger_than_a_tile_are_computed_by_rows(monkeypatch):
    monkeypatch.setattr(attention, "SMALL", 0)
    check("f4", (1, 1, 1, 3, 2, 130), True)


def test_rows_that_are_not_contiguous_are_copied():
    check("f8", (1, 2, 2, 3, 4, 5), True, place=lambda x: array.from_host(np.asfortranarray(x).T.copy()).T)


def test_scores_of_minus_infinity_have_no_weight(monkeypatch):
    """As on the CPU: beside a finite score, a weight of 0; a row of nothing else is NaN."""
    for small in (1 << 18, 0):
        monkeypatch.setattr(attention, "SMALL", small)
        q, v = np.ones((1, 1, 2, 4)), np.ones((1, 1, 2, 4))
        k = np.ones((1, 1, 2, 4))
        k[0, 0, 0] = -np.inf
        y, lse = attention.forward(on_device(q), on_device(k), on_device(v), Options(True, 1.0))
        with np.errstate(all="ignore"):
            expected = plain.forward(q, k, v, Options(True, 1.0))
        np.testing.assert_array_equal(array.to_host(y), expected[0])
        np.testing.assert_allclose(array.to_host(lse), expected[1])


def test_head_sizes_choose_their_tiles():
    shapes = [(np.float32, 64, 64), (np.float32, 65, 128), (np.float64, 9, 64)]
    for real, D, largest in shapes:
        tiles = flash._choose(array.empty((1, 1, 1, D), real))[0]
        assert (tiles.real, tiles.DMAX) == (real, largest)
