"""Rotary position embedding, both layouts of the pairs."""

import numpy as np
import pytest
from harness import NORMAL, Op, every_check, host, integers
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F


def reference(x, positions, base=10000.0, interleaved=False):
    """Pairs as complex numbers."""
    half = x.shape[-1] // 2
    angles = positions[..., None] * base ** (-np.arange(half) / max(half, 1))
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    z = (a + 1j * b) * np.exp(1j * angles)
    return np.stack([z.real, z.imag], -1).reshape(x.shape) if interleaved else np.concatenate([z.real, z.imag], -1)


SHAPES = [
    *[((3, 4), (3,)), ((2, 3, 5, 6), (5,)), ((2, 3, 5, 6), (2, 1, 5)), ((2, 5, 3, 6), (5, 1))],
    *[((2,), ()), ((0, 4), (0,)), ((3, 0), (3,)), ((2, 40, 256), (40,))],
]

OPS = [
    Op(
        "interleaved" if interleaved else "halves",
        lambda x, p, i=interleaved: F.rope(x, p, base=100.0, interleaved=i),
        lambda x, p, i=interleaved: reference(x, p, 100.0, i),
        None,
        SHAPES,
        (NORMAL, integers(0, 50)),
        rounding=32,
        small_shapes=[*SHAPES[:-1], ((2, 5, 128), (5,))],  # two blocks that read 128 bits at once
    )
    for interleaved in (False, True)
]


test_op = every_check(OPS)


def test_position_zero_and_lengths(device):
    x = mg.tensor(np.random.default_rng(0).standard_normal((4, 6)).astype("f4"), device=device)
    y = F.rope(x, mg.tensor([0, 1, 1000, 1_000_000], device=device))
    np.testing.assert_array_equal(host(y)[0], host(x)[0])
    np.testing.assert_allclose(np.linalg.norm(host(y), axis=1), np.linalg.norm(host(x), axis=1), rtol=1e-6)
    np.testing.assert_allclose(host(y), reference(host(x).astype("f8"), np.array([0, 1, 1000, 1_000_000])), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("of_positions", ["float64", "float32", "int64", "int32", "uint8"])
def test_positions_of_any_dtype(of_positions, dtype, device):
    rows, positions = np.random.default_rng(0).standard_normal((3, 6)).astype(dtype), np.array([0, 7, 200])
    if of_positions.startswith("float"):
        positions = positions + 0.25
    y = F.rope(mg.tensor(rows, device=device), mg.tensor(positions, dtype=of_positions, device=device))
    assert y.dtype == dtype
    rtol = 1e-6 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(host(y), reference(rows.astype("f8"), positions), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("interleaved", [False, True])
def test_frequencies_of_ones_own(interleaved, device):
    """They replace those of the base, pair by pair; the gradient is the rotation back."""
    rng = np.random.default_rng(0)
    x = mg.tensor(rng.standard_normal((5, 6)), device=device, requires_grad=True)
    positions, frequencies = mg.arange(5, device=device), (0.3, 0.0, 2.0)
    y = F.rope(x, positions, interleaved=interleaved, frequencies=frequencies)
    for j, frequency in enumerate(frequencies):
        pair = [2 * j, 2 * j + 1] if interleaved else [j, j + 3]
        z = host(x.detach())[:, pair] @ [1, 1j] * np.exp(1j * frequency * np.arange(5))
        np.testing.assert_allclose(host(y.detach())[:, pair], np.stack([z.real, z.imag], -1), rtol=1e-12, atol=1e-12)
    same = F.rope(x, positions, 100.0, interleaved)
    again = F.rope(x, positions, 7.0, interleaved, [100.0 ** (-2 * j / 6) for j in range(3)])
    np.testing.assert_allclose(host(again.detach()), host(same.detach()), rtol=1e-12, atol=1e-12)
    assert mg.gradcheck(lambda x: F.rope(x, positions, interleaved=interleaved, frequencies=frequencies), [x])


def test_errors(device):
    x, places = mg.ones(2, 3, 4, device=device), mg.arange(3, device=device)
    for bad in (mg.arange(2), mg.zeros(1, 2, 3), mg.zeros(3, 1, dtype="int64")):
        words = r"rope: positions of shape .* do not broadcast to \(2, 3\)"
        raises(ValueError, words, lambda bad=bad: F.rope(x, bad.to(device)))
    words = r"rope: x of shape \(2, 3, 3\); expected \(..., D\) with an even D"
    raises(ValueError, words, lambda: F.rope(x[..., :3], places))
    words = r"rope: frequencies of shape \(3,\) .* expected D / 2 of them"
    raises(ValueError, words, lambda: F.rope(x, places, frequencies=[1.0, 2.0, 3.0]))
    raises(TypeError, "positions are numbers, not bool", lambda: F.rope(x, places > 0))
    raises(TypeError, "rope expects a floating tensor, not int64", lambda: F.rope(x.long(), places))
