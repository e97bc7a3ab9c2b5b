"""minigrad.compat.torch: the names and numbers of PyTorch's state dicts, both ways; with PyTorch where it is."""

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.compat import torch as bridge
from minigrad.optim import SGD, Adam, AdamW

load = bridge.load_state_dict


def net(nn=nn):
    made = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 7, bias=False))
    made[3].weight = made[0].weight  # tied
    return made


def test_names_shapes_and_ties_without_pytorch() -> None:
    random = np.random.default_rng(0)
    own = net().state_dict()
    theirs = {f"net.{name}": random.normal(size=t.shape).astype(str(t.dtype)) for name, t in own.items()}
    theirs["net.lm_head.weight"] = theirs["net.0.weight"]
    theirs["net.1.weight"] = theirs["net.1.weight"].T  # stored (in, out)
    found, options = net(), {"names": {"net": "", "net.lm_head": "3"}, "transposed": ["1.w*"]}
    load(found, theirs, **options)
    for name, t in found.state_dict().items():
        want = theirs[f"net.{name}"]
        np.testing.assert_array_equal(t.numpy(), want.T if name == "1.weight" else want)


KINDS = [
    ("AdamW", AdamW, {"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.3, "eps": 1e-3}),
    ("Adam", Adam, {"lr": 0.02, "eps": 1e-3}),
    ("SGD", SGD, {"lr": 0.1, "momentum": 0.9}),
]


@pytest.mark.parametrize(("name", "kind", "options"), KINDS)
def test_training_goes_on_in_the_other_library(name: str, kind, options) -> None:
    """Three steps in PyTorch, three here with its state, three there with ours: as nine in PyTorch, within rounding.

    ``eps`` is large because the first bias, before a norm, has a gradient of rounding errors."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    torch.manual_seed(0)
    theirs, alone = net(torch.nn).double(), net(torch.nn).double()
    alone.load_state_dict(theirs.state_dict())
    ids, targets = np.arange(6) % 7, (np.arange(6) * 3) % 7

    def train_there(model, optimizer, steps: int = 3) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(torch.tensor(ids)), torch.tensor(targets)).backward()
            optimizer.step()

    make = getattr(torch.optim, name)
    train_there(alone, make(alone.parameters(), **options), 9)
    there = make(theirs.parameters(), **options)
    train_there(theirs, there)
    here = net().double()
    load(here, theirs.state_dict())
    optimizer = kind(here.parameters(), lr=1.0)
    bridge.load_optimizer_state_dict(optimizer, there.state_dict())
    for _ in range(3):
        optimizer.step(nn.functional.cross_entropy(here(mg.tensor(ids)), mg.tensor(targets)).backward())
    theirs.load_state_dict(bridge.state_dict(here))
    there.load_state_dict(bridge.optimizer_state_dict(optimizer))
    train_there(theirs, there)
    for key, value in alone.state_dict().items():
        np.testing.assert_allclose(theirs.state_dict()[key], value, rtol=1e-9, atol=1e-12)
    assert theirs[2].num_batches_tracked == 9


def test_dtypes_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    theirs = net(torch.nn).bfloat16()
    load(here := net().bfloat16(), theirs.state_dict())
    back = bridge.state_dict(here, names={"net": ""}, transposed=["1.weight"])
    for key, value in theirs.state_dict().items():
        found = back[f"net.{key}"]
        assert found.dtype == value.dtype and torch.equal(found.T if key == "1.weight" else found, value)
    assert back["net.3.weight"].equal(back["net.0.weight"]) and len(back) == 9


def test_options_that_pytorch_does_not_give_stay() -> None:
    p, q = nn.Parameter([1.0]), nn.Parameter([1.0])
    group = {"params": [0, 1], "lr": 1.0, "foreach": True, "amsgrad": False, "decoupled_weight_decay": True}
    bridge.load_optimizer_state_dict(optimizer := AdamW([p, q]), {"state": {}, "param_groups": [group]})
    assert optimizer.param_groups[0]["lr"] == 1.0 and optimizer.param_groups[0]["eps"] == 1e-8
