"""Mixed precision gives the CPU's dtypes and numbers on the device "cuda", overflows included."""

import dataclasses

import numpy as np
import pytest
from harness import host
from replica_models import Normed

import minigrad
from minigrad import Tensor, autocast, bfloat16, float32, nn
from minigrad.cuda_kernels import layer_norm, rms_norm
from minigrad.models import GPT2, GPT2Config, Llama, LlamaConfig


def batch(device: str) -> tuple[Tensor, Tensor]:
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    return Tensor(x, device=device), Tensor(np.arange(4) % 3, device=device)


def test_dtypes_and_gradients_are_the_cpus() -> None:
    found = []
    for device in ("cpu", "cuda"):
        minigrad.manual_seed(0)
        net = Normed(6, 4, 3).to(device)
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


def count_passes(monkeypatch: pytest.MonkeyPatch, family) -> list[int]:
    """A list that grows by one with each pass that adds and normalises."""
    fused, calls = family.add_forward, []
    monkeypatch.setattr(family, "add_forward", lambda *arguments: calls.append(1) or fused(*arguments))
    return calls


def bits(parameters, x: Tensor, y: Tensor) -> list[np.ndarray]:
    grads = y.float().square().sum().backward()
    return [host(t) for t in (y.detach(), *(grads[t] for t in (x, *parameters) if t.requires_grad))]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_adds_and_normalises_in_one_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both additions of each block. The bits are those of blocks that are called, by a hook or to be recomputed, whose
    last addition is apart, and those of norms that are called, so that all are."""
    minigrad.manual_seed(0)
    sizes = {"vocab_size": 5, "block_size": 4, "n_layer": 2, "n_head": 1, "n_embd": 4, "n_inner": 4}
    model = GPT2(GPT2Config(**sizes)) if kind == "gpt2" else Llama(LlamaConfig(**sizes, n_kv_head=1))
    blocks, norm = (model.h, model.ln_f) if kind == "gpt2" else (model.layers, model.norm)
    model.to(device="cuda")
    x = minigrad.randn(1, 2, 4).to("cuda").requires_grad_()
    calls = count_passes(monkeypatch, layer_norm if kind == "gpt2" else rms_norm)

    def run() -> list[np.ndarray]:
        calls.clear()
        with autocast("cuda", bfloat16):
            y = model._through(x, None)
        return bits([*blocks.parameters(), *norm.parameters()], x, y) if minigrad.is_grad_enabled() else [host(y)]

    together = run()
    assert len(calls) == 4 and all(array.any() for array in together)
    found = []
    if kind == "gpt2":
        model.config = dataclasses.replace(model.config, checkpoint_blocks=True)
        found.append(run())
        assert len(calls) == 4  # two forward, two in backward
        model.config = dataclasses.replace(model.config, checkpoint_blocks=False)
    blocks[1].register_forward_hook(lambda *_: None)
    with minigrad.no_grad():
        found.append(run())
    assert len(calls) == 2
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.register_forward_hook(lambda *_: None)
    found.append(run())
    assert not calls
    for other in found:
        for one, two in zip(together, other):
            np.testing.assert_array_equal(one, two)


def test_a_cache_under_autocast_gives_the_same_logits() -> None:
    minigrad.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=5, block_size=4, n_layer=2, n_head=1, n_embd=4, n_inner=4)).to(device="cuda")
    tokens = minigrad.tensor([[1, 3, 2]], device="cuda")
    with minigrad.no_grad(), autocast("cuda", bfloat16):
        whole, caches = host(model(tokens)), model.new_caches(1)
        first, last = model(tokens[:, :2], caches), model(tokens[:, 2:], caches)
    found = np.concatenate([host(first), host(last)], 1)
    np.testing.assert_allclose(found.astype(np.float32), whole.astype(np.float32), atol=2.0**-7)
