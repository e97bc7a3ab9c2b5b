"""AdamW with float32 masters of half parameters: a cast, the float32 step and a cast back, and nothing is lost."""

import numpy as np
import pytest
from refusals import raises

import minigrad as mg
from minigrad import nn

HALVES = [mg.bfloat16, mg.float16]
SHAPES = [(3, 5), (7,), (16,)]


def drawn(half, seed: int) -> list[mg.Tensor]:
    rng = np.random.default_rng(seed)
    return [mg.tensor(rng.standard_normal(shape).astype(np.float32)).to(half) for shape in SHAPES]


def store(params, grads: list[mg.Tensor]) -> mg.GradStore:
    return mg.GradStore({p._id: g for p, g in zip(params, grads, strict=True)})


def bits(tensors) -> list[bytes]:
    return [t.detach().numpy().tobytes() for t in tensors]


@pytest.mark.parametrize("half", HALVES)
def test_a_step_is_the_float32_step_of_the_master_rounded_once(half) -> None:
    params = [nn.Parameter(x) for x in drawn(half, 0)]
    wide = [nn.Parameter(p.detach().float()) for p in params]
    optimizer = mg.optim.AdamW(params, lr=1e-3, weight_decay=0.1, master_weights=True)
    reference = mg.optim.AdamW(wide, lr=1e-3, weight_decay=0.1)
    for step in range(5):
        grads = drawn(half, 1 + step)
        optimizer.step(store(params, grads))
        reference.step(store(wide, [g.float() for g in grads]))
    assert bits(params) == bits(p.detach().to(half) for p in wide)
    for p, q in zip(params, wide, strict=True):
        state, expected = optimizer.state[p._id].arrays, reference.state[q._id].arrays
        assert state["master"].tobytes() == q.detach().numpy().tobytes()
        for kind in ("exp_avg", "exp_avg_sq"):
            assert state[kind].dtype == np.float32 and state[kind].tobytes() == expected[kind].tobytes()


@pytest.mark.parametrize("dtype", [mg.float32, mg.float64])
def test_wide_parameters_are_their_own_masters(dtype) -> None:
    """The option changes neither weights nor state of a model without half parameters."""
    found = []
    for master in (False, True):
        params = [nn.Parameter(x) for x in drawn(dtype, 0)]
        optimizer = mg.optim.AdamW(params, lr=1e-2, master_weights=master)
        for step in range(2):
            optimizer.step(store(params, drawn(dtype, 1 + step)))
        found.append((bits(params), {k: a.tobytes() for k, a in optimizer.state_dict()[0].items()}))
    assert found[0] == found[1]


def test_a_resumed_run_equals_the_uninterrupted_one_and_states_without_masters_are_refused() -> None:
    params = [nn.Parameter(x) for x in drawn(mg.bfloat16, 0)]
    optimizer = mg.optim.AdamW(params, lr=1e-3, master_weights=True)
    for step in range(2):
        optimizer.step(store(params, drawn(mg.bfloat16, 1 + step)))
    arrays, meta = optimizer.state_dict()
    assert {a.dtype for a in arrays.values()} == {np.dtype(np.float32)} and "master.0" in arrays
    others = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = mg.optim.AdamW(others, lr=1.0, master_weights=True)
    with pytest.raises(ValueError, match=r"'master.0' is missing"):
        resumed.load_state_dict({k: v for k, v in arrays.items() if k != "master.0"}, meta)
    raises(ValueError, r"'master.0' belongs to no parameter", mg.optim.AdamW(others).load_state_dict, arrays, meta)
    resumed.load_state_dict(arrays, meta)
    for step in range(2):
        grads = drawn(mg.bfloat16, 9 + step)
        optimizer.step(store(params, grads))
        resumed.step(store(others, grads))
    assert bits(params) == bits(others)


def test_a_parameter_that_the_program_changes_is_its_own_master_again() -> None:
    p = nn.Parameter(mg.zeros(4).to(mg.bfloat16))
    optimizer = mg.optim.AdamW([p], lr=0.0, weight_decay=0.0, master_weights=True)
    grad = mg.ones(4).to(mg.bfloat16)
    optimizer.step(store([p], [grad]))
    p.detach().copy_(mg.full((4,), 3.0).to(mg.bfloat16))
    optimizer.step(store([p], [grad]))
    assert p.detach().float().tolist() == [3.0] * 4
    assert optimizer.state[p._id].arrays["master"].tolist() == [3.0] * 4
