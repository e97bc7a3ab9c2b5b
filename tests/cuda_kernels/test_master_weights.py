"""The one launch of half weights with float32 masters gives the CPU's bits, in a graph too."""

import numpy as np
import pytest
from harness import host
from refusals import raises

import minigrad as mg
from minigrad import nn

SHAPES = [(3, 5), (7,), (16,), (4100,)]  # the last is more than one chunk


def run(device: str, half, shapes: list[tuple[int, ...]], graphed: bool = False):
    rng = np.random.default_rng(0)
    params = [nn.Parameter(mg.tensor(rng.standard_normal(s).astype(np.float32)).to(half)) for s in shapes]
    params = [nn.Parameter(p.detach().to(device=device)) for p in params]
    optimizer = mg.optim.AdamW(params, lr=1e-3, weight_decay=0.1, master_weights=True)

    def step(*grads: mg.Tensor) -> None:
        optimizer.step(mg.GradStore({p._id: g for p, g in zip(params, grads, strict=True)}))

    call = mg.cuda.graphed(step) if graphed else step
    for _ in range(3):
        call(*(mg.tensor(rng.standard_normal(s).astype(np.float32)).to(half).to(device=device) for s in shapes))
    arrays, meta = optimizer.state_dict()
    return [host(p.detach()).tobytes() for p in params], arrays, meta


@pytest.mark.parametrize(("half", "shapes"), [(mg.bfloat16, SHAPES), (mg.float16, SHAPES[:3])])
def test_the_bits_are_the_cpus(half, shapes: list[tuple[int, ...]]) -> None:
    expected, found = run("cpu", half, shapes), run("cuda", half, shapes)
    launched = run("cuda", half, shapes, graphed=True)
    for other in (found, launched):
        assert other[0] == expected[0] and other[2] == expected[2]
        assert {k: v.tobytes() for k, v in other[1].items()} == {k: v.tobytes() for k, v in expected[1].items()}


def test_a_step_of_all_weights_is_one_launch(launched: list[str]) -> None:
    params = [nn.Parameter(mg.ones(shape, dtype=mg.bfloat16, device="cuda")) for shape in SHAPES]
    optimizer = mg.optim.AdamW(params, master_weights=True)
    grads = mg.GradStore({p._id: p.detach().clone() for p in params})
    optimizer.step(grads)  # makes the masters
    launched.clear()
    optimizer.step(grads)
    assert launched == ["multi_tensor.adamw_bfloat16"]


def test_weights_must_fit_their_masters() -> None:
    kernels = mg.Device("cuda").kernels
    x, half = kernels.zeros((3,), np.float32), kernels.zeros((3,), mg.bfloat16)
    raises(TypeError, "1 masters of float32 and 1 weights of float32", kernels.adamw.Table, [x], [x], [x], weights=[x])
    with pytest.raises(TypeError, match="array 0 has dtype float32, the table has bfloat16"):
        kernels.adamw.step(kernels.adamw.Table([x], [x], [x], weights=[half]), [x], np.zeros((1, 7)))
