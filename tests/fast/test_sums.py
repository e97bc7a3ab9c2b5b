"""A block's sums and GELU within its products: which operations run, and that no changed module is bypassed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, nn
from minigrad.nn import Block

B, T, C, NH = 2, 7, 12, 3


def randomised(module: Any) -> Any:
    """Every parameter normal (norm weights too), in float64, evaluating."""
    rng = np.random.default_rng(0)
    module.to(mg.float64).eval()
    module.load_state_dict({n: rng.standard_normal(t.shape) * 0.5 for n, t in module.state_dict().items()})
    return module


def inputs() -> Tensor:
    return Tensor(np.random.default_rng(1).standard_normal((B, T, C)))


def values(x: Tensor) -> np.ndarray:
    return x.detach().numpy()


def operations_of(y: Tensor) -> list[str]:
    """The names of the operations that computed ``y``, newest first."""
    nodes = [y.node]
    for node in nodes:
        nodes += [x for x in node.edges if isinstance(x, mg.Function) and x not in nodes]
    return [type(node).__name__ for node in nodes]


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "where", ["attn", "attn.c_proj", "attn.resid_dropout", "mlp", "mlp.c_fc", "mlp.gelu", "mlp.c_proj"]
)
def test_a_fused_block_bypasses_no_module_that_was_changed(where: str) -> None:
    """A hook is called, a module of another class and an assigned forward are used; as built, it is the same."""
    block, x = randomised(Block(C, NH)), inputs()
    with mg.unfused("whole block"):
        fused = block(x)
    assert {"FeedForward", "Linear"} < set(operations_of(fused))
    assert "Gelu" not in operations_of(fused)
    assert "Add" not in operations_of(fused)
    parent, _, name = where.rpartition(".")
    owner = getattr(block, parent) if parent else block
    module = getattr(owner, name)
    seen: list[Tensor] = []
    with module.register_forward_hook(lambda module, args, y: seen.append(y)):
        apart = block(x)
    assert len(seen) == 1
    assert seen[0].node is not None
    assert set(operations_of(apart)) - set(operations_of(fused)) <= {"Gelu", "Add"}
    np.testing.assert_allclose(values(apart), values(fused), rtol=1e-12)
    with module.register_forward_pre_hook(lambda module, args: (args[0] * 0, *args[1:])):
        assert np.abs(values(block(x)) - values(fused)).max() > 1e-3
    module.forward = lambda *args: 3 * type(module).forward(module, *args)
    assert np.abs(values(block(x)) - values(fused)).max() > 1e-3
    del module.forward
    np.testing.assert_array_equal(values(block(x)), values(fused))
    if isinstance(module, nn.Linear):
        other = Doubled(module.in_features, module.out_features, dtype=mg.float64)
        other.load_state_dict(module.state_dict())
        setattr(owner, name, other)
        assert np.abs(values(block(x)) - values(fused)).max() > 1e-3


def test_a_block_with_dropout_fuses_what_comes_before_it() -> None:
    block, x = randomised(Block(C, NH, dropout=0.5)), inputs()
    assert "Dropout" not in operations_of(block(x))
    block.train()
    trained = operations_of(block(x))
    assert trained.count("Dropout") == trained.count("Add") == 2
    assert "FeedForward" in trained


def test_gradients_of_a_fused_block_are_those_of_its_modules() -> None:
    block, x = randomised(Block(C, NH)), inputs().requires_grad_()
    fused = block(x).square().sum().backward()
    checked = mg.checkpoint(block, x).square().sum().backward()
    with block.mlp.gelu.register_forward_hook(lambda *_: None), block.attn.register_forward_hook(lambda *_: None):
        apart = block(x).square().sum().backward()
    for t in (x, *block.parameters()):
        np.testing.assert_allclose(fused[t].numpy(), apart[t].numpy(), rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(fused[t].numpy(), checked[t].numpy())
