"""The functions that are methods of Tensor, too: each is PyTorch's of that name, and does what the method does."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from harness import needs_torch, torch
from refusals import raises

import minigrad as mg
from minigrad import functions

FUNCTIONS = {name: getattr(functions, name) for name in functions.__all__ if hasattr(mg.Tensor, name)}
INDEX = np.array([[0, 1], [1, 0], [1, 1]])
VECTOR = np.array([0.5, -1.5, 2.0])
ARGUMENTS: dict[str, tuple[Any, ...]] = {  # after the (3, 2) matrix, where there are any
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "remainder", "fmod", "atan2", "maximum", "minimum", "pow"), (np.full((3, 2), 2.0),)
    ),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), (np.ones((3, 2)),)),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), (np.eye(3, 2),)),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), (INDEX,)),
    **dict.fromkeys(("cumsum", "cumprod", "softmax", "log_softmax", "logsumexp", "unsqueeze"), (1,)),
    **dict.fromkeys(("sum", "mean", "nansum", "nanmean", "amax", "amin", "any", "all", "prod", "argmax"), (1, True)),
    **dict.fromkeys(("var", "std", "max", "min", "argmin", "median"), (0,)),
    **dict.fromkeys(("transpose", "swapaxes", "movedim"), (0, 1)),
    "norm": (2, 1),
    "clamp": (0.5, 1.0),
    "masked_fill": (INDEX > 0, 7.0),
    "reshape": ((2, 3),),
    "permute": ((1, 0),),
    "broadcast_to": ((4, 3, 2),),
    "flip": ((0,),),
    "roll": (1, 0),
    "tile": ((2, 2),),
    "repeat_interleave": (2, 1),
    "split": (2,),
    "chunk": (2,),
    "gather": (1, INDEX),
    "take_along_dim": (INDEX, 1),
    "index_select": (0, np.array([2, 0])),
    "scatter": (0, INDEX[:1], np.ones((1, 2))),
    "scatter_add": (0, INDEX, np.ones((3, 2))),
    "topk": (1,),
    "matmul": (np.ones((2, 3)),),
    "mm": (np.ones((2, 3)),),
    "bmm": (np.ones((3, 2, 2)),),
    "mv": (np.ones(2),),
    "dot": (VECTOR,),
    "outer": (VECTOR,),
    **dict.fromkeys(("subtract", "multiply", "divide", "true_divide", "floor_divide"), (np.full((3, 2), 2.0),)),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), (INDEX,)),
    **dict.fromkeys(("moveaxis", "swapdims", "select"), (0, 1)),
    **dict.fromkeys(("isclose", "allclose", "equal"), (np.eye(3, 2),)),
    "clip": (0.5, 1.0),
    "clamp_min": (1.0,),
    "clamp_max": (1.0,),
    "unflatten": (0, (3, 1)),
    "narrow": (0, 1, 2),
    "count_nonzero": (1,),
    "masked_select": (INDEX > 0,),
    "masked_scatter": (INDEX > 0, np.arange(9.0)),
    "index_add": (0, np.array([2, 0]), np.ones((2, 2))),
    "index_copy": (0, np.array([2, 0]), np.ones((2, 2))),
    "index_fill": (0, np.array([2, -3]), 7.0),
    "index_put": ((np.array([2, 0]), np.array([1, 0])), np.array([7.0, 8.0])),
    "scatter_reduce": (0, INDEX, np.ones((3, 2)), "amax"),
    "lerp": (np.ones((3, 2)), 0.25),
    "addmm": (np.ones((3, 4)), np.ones((4, 2))),
    "addmv": (np.ones((2, 3)), np.ones(3)),
    "baddbmm": (np.ones((1, 3, 4)), np.ones((1, 4, 2))),
    "logaddexp": (np.eye(3, 2),),
    **dict.fromkeys(("cummax", "cummin"), (0,)),
}
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")
FIRST: dict[str, np.ndarray] = {
    **dict.fromkeys(("asin", "acos", "atanh"), np.array([[0.5, -0.25]])),
    "acosh": np.array([[1.5, 2.0]]),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", *SHIFTS), np.arange(6).reshape(3, 2)),
    "bmm": np.ones((3, 1, 2)),
    "addmv": np.ones(2),
    "bincount": np.array([1, 5, 1]),
    "dot": VECTOR,
    "outer": VECTOR,
}
MATRIX = np.array([[0.5, 2.0], [1.0, 0.25], [3.5, 1.75]])


def convert(tensor: Any, x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(convert(tensor, part) for part in x)
    return tensor(x) if isinstance(x, np.ndarray) else x


def flat(y: Any) -> list[Any]:
    return [x.tolist() for x in y] if isinstance(y, tuple) else [y if isinstance(y, bool | int) else y.tolist()]


@needs_torch
@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"bernoulli", "multinomial"}))  # these draw
def test_function_is_pytorchs(name):
    arguments = (FIRST.get(name, MATRIX), *ARGUMENTS.get(name, ()))
    ours = [convert(mg.tensor, x) for x in arguments]
    theirs = [convert(torch.tensor, x) for x in arguments]
    for x, y in zip(flat(getattr(mg, name)(*ours)), flat(getattr(torch, name)(*theirs)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


def test_functions_are_the_methods():
    """Those that are not have one argument where the method accepts several, or PyTorch's other names."""
    others = {name for name, f in FUNCTIONS.items() if getattr(f, "__wrapped__", None) is not getattr(mg.Tensor, name)}
    assert others == {"reshape", "broadcast_to", "permute", "flip", "tile", "swapaxes", "bernoulli", "multinomial"}
    assert list(inspect.signature(mg.swapaxes).parameters) == ["x", "axis0", "axis1"]
    x = mg.arange(6).reshape(2, 3)
    assert mg.reshape(x, shape=(3, 2)).tolist() == x.reshape(3, 2).tolist()
    assert mg.swapaxes(x, axis0=0, axis1=1).tolist() == mg.permute(x, dims=(1, 0)).tolist() == x.T.tolist()
    assert mg.flip(x, dims=(0, 1)).tolist() == x.flip(0, 1).tolist()
    assert mg.tile(x, dims=(2, 2)).tolist() == x.tile(2, 2).tolist()
    assert mg.broadcast_to(x, shape=(4, 2, 3)).tolist() == x.expand(4, 2, 3).tolist()


def test_every_function_is_exported():
    assert set(functions.__all__) <= set(mg.__all__)


def test_names_in_all_are_there_once_and_hide_no_type_of_pythons():
    assert len(mg.__all__) == len(set(mg.__all__))
    assert all(hasattr(mg, name) for name in mg.__all__)
    assert not {"bool", "float", "int"} & set(mg.__all__)


@pytest.mark.parametrize("name", ["exp", "softmax", "add", "sum", "matmul", "numel"])
def test_a_function_of_no_tensor_says_what_to_pass(name):
    message = rf"^{name} of a list: expected a tensor; make one with minigrad.tensor\(...\)"
    raises(TypeError, message, lambda: getattr(mg, name)([1.0, 2.0]))


def test_probabilities_and_weights_have_their_names():
    assert mg.bernoulli(p=mg.ones(3)).tolist() == [1.0] * 3
    assert mg.multinomial(weights=mg.tensor([0.0, 1.0]), num_samples=1).tolist() == [1]
