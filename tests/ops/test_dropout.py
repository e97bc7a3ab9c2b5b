"""Dropout: the same mask forward and backward, of the right rate, from the generator alone."""

import numpy as np
import pytest
from harness import every_check, host, simulated, unary
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F


def kept(shape):
    """Where the draw of ``dropped`` keeps an element of an input of that shape."""
    return host(dropped(mg.ones(shape))) != 0


def dropped(x):
    return F.dropout(x, 0.4, generator=mg.Generator(5))


OPS = [unary("dropout", dropped, lambda x: np.where(kept(x.shape), x / 0.6, 0))]  # PyTorch draws other masks


test_op = every_check(OPS)


def drop(x, p, seed=3):
    return F.dropout(x, p, generator=mg.Generator(seed))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_rate_and_the_mean(p, device):
    n = 10_000 if simulated(device) else 200_000
    y = host(drop(mg.ones(n, device=device), p))
    dropped = (y == 0).mean()
    assert abs(dropped - p) < 5 * np.sqrt(p * (1 - p) / n)  # five standard deviations
    assert abs(y.mean(dtype=np.float64) - 1) < 5 * np.sqrt(p / (1 - p) / n)


def test_draws(device):
    """Every call draws another mask; the same seed and offset draw the same; the layout does not matter."""
    x = mg.ones(8, 50, device=device)
    generator = mg.Generator(5)
    first, second = F.dropout(x, 0.5, generator=generator), F.dropout(x, 0.5, generator=generator)
    assert (host(first) != host(second)).any()
    assert generator.offset == 2
    assert (drop(x, 0.5, seed=5) == first).all()
    assert (drop(mg.ones(50, 8, device=device).T, 0.5, seed=5) == first).all()
    mg.manual_seed(5)
    assert (F.dropout(x, 0.5) == first).all()
    rows = host(first) != 0
    assert len({row.tobytes() for row in rows}) == 8


def test_evaluation_and_p_0_are_the_identity(device):
    x = mg.ones(3, device=device)
    generator = mg.Generator()
    assert F.dropout(x, 0.5, training=False, generator=generator) is x
    assert F.dropout(x, 0.0, generator=generator) is x
    assert generator.offset == 0


def test_p_1_drops_all(device):
    x = mg.ones(3, device=device, requires_grad=True)
    y = drop(x, 1.0)
    assert y.tolist() == [0, 0, 0]
    assert y.sum().backward()[x].tolist() == [0, 0, 0]
    assert drop(mg.full((50,), float("nan"), device=device), 0.5).isnan().all()  # dropped or not


def test_a_probability_above_1():
    raises(ValueError, "dropout: p=1.5; expected a probability, 0 to 1", F.dropout, mg.ones(2), 1.5)
