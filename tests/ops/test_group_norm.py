"""Group normalisation."""

import numpy as np
import pytest
from harness import NORMAL, every_check, functional, per_channel, uniform
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F

EPS = 1e-3  # large enough to be seen


def normalise(x, weight=1.0, bias=0.0, groups=2):
    rows = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    axes = tuple(range(2, rows.ndim))
    centred = rows - rows.mean(axes, keepdims=True)
    xhat = (centred / np.sqrt((centred**2).mean(axes, keepdims=True) + EPS)).reshape(x.shape)
    return xhat * per_channel(x, weight) + per_channel(x, bias)


SMALL = {(5, 6, 700): (2, 4, 300), (40, 3, 5): (9, 3, 5)}  # rows of several warps; several blocks of rows


def case(name, shapes, groups, affine):
    def with_parameters(shapes):
        return [(s, s[1:2], s[1:2]) if affine else (s,) for s in shapes]

    return functional(
        name,
        # PyTorch refuses one value for each group, and an empty batch
        lambda f, x, *p: f.group_norm(x, groups, *p, eps=EPS),
        lambda x, *p: normalise(x, *p, groups=groups),
        with_parameters(shapes),
        (NORMAL, uniform(0.5, 2), NORMAL) if affine else NORMAL,
        rounding=64,
        small_shapes=with_parameters([SMALL.get(s, s) for s in shapes]),
    )


OPS = [
    case("plain", [(3, 4), (2, 4, 3), (2, 4, 3, 2), (5, 6, 700)], 2, False),
    case("affine", [(3, 4), (2, 4, 3), (2, 4, 3, 2), (5, 6, 700)], 2, True),
    case("one_group", [(3, 4), (2, 3, 5)], 1, True), case("instances", [(2, 3, 5), (40, 3, 5)], 3, True),
]  # fmt: skip


test_op = every_check(OPS)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0), (2, 0, 3)])
def test_nothing_to_normalise(shape, device):
    x = mg.ones(*shape, device=device, requires_grad=True)
    w = mg.ones(shape[1], device=device, requires_grad=True)
    y = F.group_norm(x, 2, w)
    assert y.shape == shape
    grads = y.sum().backward()
    assert grads[x].shape == shape and grads[w].tolist() == [0] * shape[1]


def test_errors(device):
    raises(TypeError, "expects a floating tensor, not int64", F.group_norm, mg.ones(2, 3, device=device).long(), 3)
