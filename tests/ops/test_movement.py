"""Shapes and order: reshape, permute, expand as views; cat, stack, flip, triangles, split, chunk, unbind."""

import numpy as np
import pytest
from harness import UNARY, Op, assert_like_torch, every_check, functional, same, torch
from refusals import raises

import minigrad as mg

CUBES = [((2, 3, 4),), ((1, 3, 1),), ((2, 0, 4),)]
MATRICES = [((3, 4),), ((4, 3),), ((2, 3, 3),), ((1, 1),), ((0, 2),)]


OPS = [
    same("reshape", lambda x: x.reshape(-1), np.ravel, UNARY),
    same("reshape_3", lambda x: x.reshape(4, -1, 1), lambda x: x.reshape(4, -1, 1), [((2, 3, 4),), ((4, 0),)]),
    same("flatten", lambda x: x.flatten(), np.ravel, UNARY),
    same("flatten_part", lambda x: x.flatten(1, 2), lambda x: x.reshape(x.shape[0], x.shape[1] * x.shape[2]), CUBES),
    same("squeeze", lambda x: x.squeeze(), np.squeeze, [*UNARY, *CUBES]),
    same("squeeze_dims", lambda x: x.squeeze((0, 2)), lambda x: x.squeeze((0, 2)), [((1, 3, 1),), ((1, 0, 1),)]),
    same("unsqueeze", lambda x: x.unsqueeze(-1), lambda x: np.expand_dims(x, -1), UNARY),
    same("unsqueeze_0", lambda x: x.unsqueeze(0), lambda x: x[None], UNARY),
    same("transpose", lambda x: x.transpose(0, -1), lambda x: np.swapaxes(x, 0, -1), CUBES),
    same("permute", lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1), CUBES),
    same("permute_negative", lambda x: x.permute((-1, 0, 1)), lambda x: x.transpose(2, 0, 1), CUBES),
    same("T", lambda x: x.T, np.transpose, [((3, 4),), ((0, 2),)]),
    same("mT", lambda x: x.mT, lambda x: np.swapaxes(x, -1, -2), MATRICES),
    same("expand", lambda x: x.expand(2, -1, 4), lambda x: np.broadcast_to(x, (2, *x.shape[:-1], 4)), [((3, 1),)]),
    same("expand_0d", lambda x: x.expand(2, 3), lambda x: np.broadcast_to(x, (2, 3)), [((),), ((1,),), ((1, 3),)]),
    same("expand_to_none", lambda x: x.expand(0, 3), lambda x: np.broadcast_to(x, (0, 3)), [((1, 3),), ((1,),)]),
    same("broadcast_to", lambda x: x.broadcast_to((2, 3)), lambda x: np.broadcast_to(x, (2, 3)), [((2, 1),), ((3,),)]),
    same("flip", lambda x: x.flip(0, -1), lambda x: np.flip(x, (0, -1)), CUBES),
    same("flip_1", lambda x: x.flip(0), lambda x: np.flip(x, 0) if x.ndim else x, UNARY),
    same("tril", lambda x: x.tril(), np.tril, MATRICES),
    same("tril_1", lambda x: x.tril(1), lambda x: np.tril(x, 1), MATRICES),
    same("triu", lambda x: x.triu(), np.triu, MATRICES),
    same("triu_-1", lambda x: x.triu(-1), lambda x: np.triu(x, -1), MATRICES),
    same("swapaxes", lambda x: x.swapaxes(0, 1), lambda x: np.swapaxes(x, 0, 1), CUBES),
    same("movedim", lambda x: x.movedim(0, -1), lambda x: np.moveaxis(x, 0, -1), CUBES),
    same("movedim_two", lambda x: x.movedim((0, 2), (1, 0)), lambda x: np.moveaxis(x, (0, 2), (1, 0)), CUBES),
    same("roll", lambda x: x.roll(2), lambda x: np.roll(x, 2), UNARY),
    same("roll_dims", lambda x: x.roll((1, -2, 5), (0, -1, 0)), lambda x: np.roll(x, (6, -2), (0, -1)), CUBES),
    same("tile", lambda x: x.tile(2, 3), lambda x: np.tile(x, (2, 3)), UNARY),
    same("tile_none", lambda x: x.tile((0,)), lambda x: np.tile(x, (0,)), UNARY),
    same("repeat", lambda x: x.repeat(2, 1, 1, 3), lambda x: np.tile(x, (2, 1, 1, 3)), CUBES),
    same("repeat_once", lambda x: x.repeat((1, 1, 1)), np.copy, CUBES),
    same("repeat_interleave", lambda x: x.repeat_interleave(3), lambda x: np.repeat(x, 3), UNARY),
    same("repeat_interleave_dim", lambda x: x.repeat_interleave(2, dim=1), lambda x: np.repeat(x, 2, 1), CUBES),
    Op(
        "repeat_interleave_each",
        lambda x: x.repeat_interleave(mg.tensor([2, 0, 3]), 0),
        lambda x: np.repeat(x, [2, 0, 3], 0),
        lambda x: x.repeat_interleave(torch.tensor([2, 0, 3]), 0),
        [((3,),), ((3, 2),), ((3, 0),)],
    ),
    *(
        functional(
            f"pad{pad}",
            lambda f, x, pad=pad: f.pad(x, pad, value=1.5),
            lambda x, widths=widths: np.pad(x, [(0, 0)] * (x.ndim - len(widths)) + widths, constant_values=1.5),
            CUBES,
        )
        for pad, widths in (((1, 2), [(1, 2)]), ((1, 0, 0, 3), [(0, 3), (1, 0)]), ((0, 0, 2, 1), [(2, 1), (0, 0)]))
    ),
    functional(
        "crop",
        lambda f, x: f.pad(x, (-1, 1, 0, -1)),
        lambda x: np.pad(x[:, :-1, 1:], [(0, 0)] * 2 + [(0, 1)]),
        [((2, 3, 4),), ((2, 1, 4),)],
    ),
    same("diagonal", lambda x: x.diagonal(), lambda x: np.diagonal(x), [*MATRICES, *CUBES]),
    same("diagonal_1", lambda x: x.diagonal(1), lambda x: np.diagonal(x, 1), MATRICES),
    same("diagonal_dims", lambda x: x.diagonal(-1, -1, 0), lambda x: np.diagonal(x, -1, -1, 0), CUBES),
    *(
        Op(
            f"{name}_{dim}",
            lambda *x, name=name, dim=dim: getattr(mg, name)(x, dim=dim),
            lambda *x, name=name, dim=dim: {"cat": np.concatenate, "stack": np.stack}[name](x, dim),
            lambda *x, name=name, dim=dim: getattr(torch, name)(x, dim),
            shapes,
        )
        for name, dim, shapes in (
            ("cat", 0, [((2, 3), (4, 3)), ((2,), (0,)), ((1, 0), (2, 0))]),
            ("cat", -1, [((2, 3), (2, 1)), ((5,), (2,)), ((2, 0), (2, 1))]),
            ("stack", 0, [((), ()), ((3,), (3,)), ((2, 0), (2, 0))]),
            ("stack", -1, [((), ()), ((2, 3), (2, 3))]),
        )
    ),
    same("split", lambda x: x.split(2, 1)[1] * 2, lambda x: 2 * x[:, 2:4], [((2, 5),), ((3, 3),)]),
    same("split_sizes", lambda x: x.split([1, 0, 2], -1)[2] * 2, lambda x: 2 * x[..., 1:], [((2, 3),), ((3,),)]),
    same("chunk", lambda x: x.chunk(2)[1], lambda x: x[(len(x) + 1) // 2 :], [((5,),), ((4, 2),)]),
    same("unbind", lambda x: x.unbind(1)[2], lambda x: x[:, 2], [((2, 3),), ((2, 4, 3),)]),
]

test_op = every_check(OPS)


# Views ----------------------------------------------------------------------------------------------------------------


def test_views_share_memory(device):
    x = mg.tensor(np.arange(6.0).reshape(2, 3), device=device)
    views = [x.reshape(3, 2), x.view(-1), x.T, x.unsqueeze(0), x[0], x[:, 1:], x.expand(2, 2, 3), x.split(1)[0]]
    x.fill_(7)
    for view in views:
        assert view.version == x.version == 1
        assert (view == 7).all()


def test_reshape_copies_where_it_must(device):
    x = mg.tensor(np.arange(6.0).reshape(2, 3), device=device)
    assert x.T.reshape(6).tolist() == [0, 3, 1, 4, 2, 5]
    assert mg.ones(0, 3, device=device).T.view(0).shape == (0,)


# Pieces ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5, 6])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_pieces_are_pytorchs(size, n, device):
    def pieces(m, x):
        return [*x.split(n, 1), *x.chunk(n, 1), *x.unbind()]

    assert_like_torch(pieces, np.arange(2.0 * size).reshape(2, size), rtol=0, device=device)


def test_all_pieces_return_their_gradient(device):
    x = mg.tensor(np.arange(6.0).reshape(2, 3), device=device, requires_grad=True)
    a, b, c = x.unbind(1)
    assert (a + 2 * b + 3 * c).sum().backward()[x].tolist() == [[1, 2, 3], [1, 2, 3]]
    a, b = x.split([1, 2], 1)
    assert (a.sum() * 5 + b.sum()).backward()[x].tolist() == [[5, 1, 1], [5, 1, 1]]
    first, _ = x.chunk(2)
    assert first.sum().backward()[x].tolist() == [[1, 1, 1], [0, 0, 0]]


# Cat and stack --------------------------------------------------------------------------------------------------------


def test_cat_and_stack_promote(device):
    x, y = mg.tensor([1], device=device), mg.tensor([1.5], device=device, requires_grad=True)
    assert mg.cat([x, y]).dtype == mg.float32
    assert mg.stack([x, y]).dtype == mg.float32
    assert mg.cat([x, y, y * 2]).sum().backward()[y].tolist() == [3]
    assert mg.cat([mg.tensor([True], device=device), x]).dtype == mg.int64


def test_the_same_tensor_twice(device):
    x = mg.tensor([1.0, 2.0], device=device, requires_grad=True)
    w = mg.tensor([1.0, 2.0, 3.0, 4.0], device=device)
    none = mg.tensor([], device=device, requires_grad=True)  # what is collected begins so
    y = mg.cat([none, w.reshape(2, 2).long()], 1)
    assert (y.shape, y.dtype, y.sum().backward()[none].shape) == ((2, 2), mg.float32, (0,))
    assert (mg.cat([x, x]) * w).sum().backward()[x].tolist() == [4, 6]


# Errors ---------------------------------------------------------------------------------------------------------------


def test_diagonal_is_a_view(device):
    x = mg.zeros(2, 3, device=device)
    x.diagonal(1).fill_(5.0)
    assert x.tolist() == [[0, 5, 0], [0, 0, 5]]
    assert x.diagonal(7).shape == (0,)


def test_a_rolled_or_repeated_tensor_owns_its_memory(device):
    x = mg.zeros(2, 3, device=device)
    repeated = x.repeat(1, 1), x.tile(1), x.repeat_interleave(1, 0), x[:1, :1].repeat_interleave(2, 0)
    for y in (x.roll(0), *repeated, x.pad((0, 0))):
        y.fill_(1.0)
    assert not x.any()


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("widths", [(1, 2), (0, 2, 2, 1), (2, 0)])
def test_borders_from_the_inside_are_pytorchs(mode, widths, device):
    array = np.arange(2 * 3 * 4 * 3).reshape(2, 3, 4, 3)[:, :, :, : 3 if len(widths) == 4 else 4].astype(np.float64)
    array = array if len(widths) == 4 else array[0]

    def run(m, x):
        return m.nn.functional.pad(x, widths, mode=mode)

    assert_like_torch(run, array, rtol=0, differentiate=True, device=device)


def test_errors_say_what_was_passed(device):
    x = mg.ones(2, 3, device=device)
    raises(ValueError, "cannot expand", lambda: x.expand(3))
    raises(ValueError, "expected counts >= 0", lambda: x.repeat_interleave([1, -1], 0))
