"""Mixed precision gives the CPU's dtypes and numbers on the device "cuda", overflows included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import host

import minigrad
from minigrad import Tensor, autocast, bfloat16, float16, float32, nn
from minigrad.cuda_kernels import layer_norm
from minigrad.distributed import AmpTrainer, MixedPrecisionConfig, TrainingConfig
from minigrad.optim import SGD


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.norm = nn.LayerNorm(4)
        self.last = nn.Linear(4, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.last(self.norm(self.first(x)).relu()), y)


def batch(device: str) -> tuple[Tensor, Tensor]:
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    return Tensor(x, device=device), Tensor(np.arange(4) % 3, device=device)


def test_dtypes_and_gradients_are_the_cpus() -> None:
    found = []
    for device in ("cpu", "cuda"):
        minigrad.manual_seed(0)
        net = Net().to(device)
        x, y = batch(device)
        with autocast(device, bfloat16):
            assert net.first(x).dtype == bfloat16 and net.norm(net.first(x)).dtype == float32
            loss = net.loss(x, y)
        with autocast("cpu" if device == "cuda" else "cuda", bfloat16):
            assert net.first(x).dtype == float32
        grads = loss.backward()
        assert {grads[p].dtype for p in net.parameters()} == {float32}
        found.append([np.float32(loss.item()), *(host(grads[p]) for p in net.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=2.0**-7)  # two roundings


def test_the_trainer_leaves_out_steps_that_overflow() -> None:
    minigrad.manual_seed(0)
    net = Net().to("cuda")
    trainer = AmpTrainer(
        TrainingConfig(max_grad_norm=None), MixedPrecisionConfig.fp16(), optimizer=SGD(net.named_parameters(), lr=0.1)
    )
    made = []
    for factor in (1.0, 1e3, 1.0):  # 1e3 * 65536 is more than float16 holds
        with trainer.autocast("cuda"):
            loss = net.loss(*batch("cuda")) * factor
        before = host(net.last.weight).copy()
        made.append(trainer.backward_and_step(loss, net.named_parameters()) is not None)
        assert made[-1] is not bool((host(net.last.weight) == before).all())
    assert (made, trainer.loss_scale, trainer.global_step) == ([True, False, True], 32768.0, 2)


@pytest.mark.parametrize("dtype", [bfloat16, float16])
def test_a_block_adds_and_normalises_in_one_pass(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits are those of a block whose norm has a hook, and is called apart."""
    minigrad.manual_seed(0)
    block = nn.Block(4, 1, hidden=4).to(device="cuda")
    x = minigrad.randn(1, 2, 4).to("cuda").requires_grad_()
    fused, calls = layer_norm.add_forward, []
    monkeypatch.setattr(layer_norm, "add_forward", lambda *arguments: calls.append(1) or fused(*arguments))

    def run() -> list[np.ndarray]:
        with autocast("cuda", dtype):
            y = block(x)
        grads = y.float().square().sum().backward()
        return [host(t) for t in (y.detach(), grads[x], *(grads[p] for p in block.parameters()))]

    together = run()
    assert calls == [1]
    block.ln_2.register_forward_hook(lambda *_: None)
    apart = run()
    assert calls == [1]
    for one, two in zip(together, apart, strict=True):
        np.testing.assert_array_equal(one, two)
