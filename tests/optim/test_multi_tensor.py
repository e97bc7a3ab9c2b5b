"""Steps that find other parameters, memory, states, options or gradients than the one before: what was kept of it must
not be used for them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from optimizer_cases import CASES, bits, make_grads, make_params

from minigrad.grad_store import GradStore
from minigrad.optim.multi_tensor import MultiTensorOptimizer
from minigrad.tensor import Tensor

Change = Callable[[MultiTensorOptimizer, list[Tensor]], Any]


def option(name: str, value: float) -> Change:
    return lambda optimizer, params: optimizer.param_groups[0].update({name: value})


def replace(dtype: Any, count: int) -> Change:
    def change(optimizer: MultiTensorOptimizer, params: list[Tensor]) -> None:
        for p in params[:count]:
            p.data = np.array(p.data, dtype)

    return change


def move(optimizer: MultiTensorOptimizer, params: list[Tensor]) -> None:
    optimizer.param_groups[1]["params"].append(optimizer.param_groups[0]["params"].pop())


CHANGES: dict[str, Change] = {
    "learning rate": option("lr", 0.5),
    "weight decay": option("weight_decay", 0.7),
    "momentum": option("momentum", 0.0),
    "other memory": replace(np.float32, 4),
    "float64": replace(np.float64, 4),
    "one in float64": replace(np.float64, 1),
    "another group": move,
    "a parameter less": lambda optimizer, params: optimizer.param_groups[0]["params"].pop(0),
    "a group more": lambda optimizer, params: optimizer.add_param_group({"params": params[4:], "lr": 0.5}),
    "a group less": lambda optimizer, params: optimizer.param_groups.pop(),
    "another state": lambda optimizer, params: optimizer.load_state_dict(*optimizer.state_dict()),
    "no state of one": lambda optimizer, params: optimizer.state.pop(params[1].id),
    "no state": lambda optimizer, params: optimizer.reset(),
}
WITHOUT_EFFECT = "other memory", "another state"


def run(kind: str, change: Change | None, forgetful: bool) -> list[bytes]:
    """Five steps with a change after the second; ``forgetful``: nothing is kept from one step to the next."""
    params = make_params(shapes=[(3,), (4, 5), (2, 2), (33, 70), (5,)])
    optimizer = CASES[kind].make([{"params": params[:3]}, {"params": params[3:4], "lr": 0.1}])
    assert isinstance(optimizer, MultiTensorOptimizer)
    for step in range(5):
        if step == 2 and change is not None:
            change(optimizer, params)
        if forgetful:
            optimizer._batches.clear()
        optimizer.step(make_grads(params, step))
    return bits(optimizer, params)


KINDS = "SGD momentum", "AdamW"


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in KINDS for n in CHANGES if (k, n) != ("AdamW", "momentum")])
def test_a_change_between_two_steps_counts(kind: str, name: str) -> None:
    changed = run(kind, CHANGES[name], forgetful=False)
    assert changed == run(kind, CHANGES[name], forgetful=True)
    assert (changed == run(kind, None, forgetful=True)) == (name in WITHOUT_EFFECT)


def test_strided_gradients_are_taken_as_what_they_show() -> None:
    ours, theirs = make_params(shapes=[(4, 5)]), make_params(shapes=[(4, 5)])
    optimizer, reference = CASES["AdamW"].make(ours), CASES["AdamW"].make(theirs)
    for step in range(4):
        grad = np.random.default_rng(step).standard_normal((8, 5)).astype(np.float32)[::2]
        optimizer.step(GradStore({ours[0]._id: Tensor.wrap(grad.copy() if step == 1 else grad)}))
        reference.step(GradStore({theirs[0]._id: Tensor.wrap(grad.copy())}))
    assert bits(optimizer, ours) == bits(reference, theirs)
