"""Modules, and whole training runs, give the CPU's numbers on the device "cuda"."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import host

import minigrad as mg
from minigrad import nn
from minigrad.cuda_kernels.platform import memory
from minigrad.distributed import SimpleTrainer, TrainingConfig
from minigrad.models import GPT2, GPT2Config, Llama, LlamaConfig, generation
from minigrad.optim import AdamW, clip_grad_norm

DRAWN = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return DRAWN.standard_normal(shape).astype(np.float32)


def tokens(*shape: int) -> np.ndarray:
    return DRAWN.integers(0, 7, shape)


def block(**options: Any) -> nn.Module:
    return nn.Block(8, 2, dropout=0.0, bias=True, **options)


MODULES: dict[str, tuple[Callable[[], Any], tuple[np.ndarray, ...]]] = {
    "Linear": (lambda: nn.Linear(6, 5), (numbers(3, 6),)),
    "Embedding": (lambda: nn.Embedding(7, 4), (tokens(3, 5),)),
    "LayerNorm": (lambda: nn.LayerNorm(6), (numbers(4, 6),)),
    "RMSNorm": (lambda: nn.RMSNorm(6), (numbers(4, 6),)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 6), (numbers(3, 6, 5),)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), (numbers(8, 6),)),
    "Dropout": (lambda: nn.Dropout(0.4), (numbers(9, 11),)),
    "activations": (
        lambda: nn.Sequential(
            nn.GELU(), nn.ReLU(), nn.Tanh(), nn.LeakyReLU(), nn.SiLU(), nn.Sigmoid(), nn.ELU(), nn.Softplus()
        ),
        (numbers(5, 6),),
    ),
    "softmaxes": (lambda: nn.Sequential(nn.Softmax(-1), nn.LogSoftmax(0), nn.Flatten()), (numbers(3, 4, 5),)),
    "SelfAttention": (lambda: nn.SelfAttention(8, 2), (numbers(2, 5, 8),)),
    "CausalSelfAttention": (lambda: nn.CausalSelfAttention(8, 2), (numbers(2, 5, 8),)),
    "GroupedQueryAttention": (lambda: nn.GroupedQueryAttention(16, 4, 2), (numbers(2, 5, 16),)),
    "MLP": (lambda: nn.MLP(8), (numbers(2, 3, 8),)),
    "SwiGLU": (lambda: nn.SwiGLU(8, 12), (numbers(2, 3, 8),)),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, (numbers(6, 7), tokens(6))),
    "MSELoss": (nn.MSELoss, (numbers(6, 7), numbers(6, 7))),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, (numbers(6, 7), (numbers(6, 7) > 0).astype(np.float32))),
}


def forward_and_backward(module: Any, inputs: tuple[np.ndarray, ...], device: str) -> dict[str, np.ndarray]:
    """The output, and the gradients of parameters and floating inputs, by name."""
    mg.manual_seed(3)
    x = [mg.tensor(a, device=device, requires_grad=a.dtype.kind == "f") for a in inputs]
    y = module(*x)
    assert y.device == mg.Device(device)
    grads = (
        (y * mg.tensor(np.cos(np.arange(y.numel())).reshape(y.shape), dtype=y.dtype, device=device)).sum().backward()
    )
    named = {**dict(module.named_parameters()), **{f"input {i}": t for i, t in enumerate(x) if t.requires_grad}}
    found = {name: host(grads[t]) for name, t in named.items() if t in grads}
    assert all(grads[t].device == t.device for t in named.values() if t in grads)
    return {"output": host(y.detach()), **found, **{name: host(b) for name, b in module.named_buffers()}}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_gives_the_cpus_numbers(name: str) -> None:
    make, inputs = MODULES[name]
    mg.manual_seed(0)
    module = make()
    elsewhere = copy.deepcopy(module).to(device="cuda")
    expected = forward_and_backward(module, inputs, "cpu")
    found = forward_and_backward(elsewhere, inputs, "cuda")
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=2e-5, atol=2e-6, err_msg=f"{name}: {key}")


def gpt2() -> Any:
    return GPT2(GPT2Config(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8, dropout=0.1))


def llama() -> Any:
    return Llama(LlamaConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_kv_head=1, n_embd=8, n_inner=12))


def train(make: Callable[[], Any], device: str, steps: int) -> tuple[list[float], list[float], dict[str, np.ndarray]]:
    """Losses, gradient norms, and the weights at the end."""
    mg.manual_seed(1)
    model = make().to(device=device)
    optimizer = AdamW(model.parameters(), lr=1e-2, eps=1e-3)  # a gradient that is only rounding moves nothing
    mg.manual_seed(2)  # the same dropout masks on both devices
    losses, norms = [], []
    window = np.random.default_rng(5).integers(0, 11, (2, 9))  # learnt by heart
    for _ in range(steps):
        x, y = (mg.tensor(w.copy(), device=device) for w in (window[:, :-1], window[:, 1:]))
        loss = model.loss(x, y)
        grads = loss.backward()
        norms.append(float(clip_grad_norm(grads, 0.5)))
        optimizer.step(grads)
        losses.append(loss.item())
    return losses, norms, {name: host(p.detach()) for name, p in model.named_parameters()}


@pytest.mark.parametrize(("make", "steps"), [(gpt2, 10), (llama, 3)], ids=["GPT-2", "Llama"])
def test_training_follows_the_cpu(make: Callable[[], Any], steps: int) -> None:
    losses, norms, weights = train(make, "cuda", steps)
    expected_losses, expected_norms, expected_weights = train(make, "cpu", steps)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-5)
    np.testing.assert_allclose(norms, expected_norms, rtol=2e-4)
    for name, weight in expected_weights.items():
        np.testing.assert_allclose(weights[name], weight, rtol=1e-3, atol=1e-5, err_msg=name)
    assert losses[-1] < losses[0]


def test_the_trainer_accumulates_and_steps_on_the_device() -> None:
    finals = []
    for device in ("cpu", "cuda"):
        mg.manual_seed(4)
        layer = nn.Linear(3, 2).to(device=device)
        trainer = SimpleTrainer(TrainingConfig(learning_rate=0.1, grad_accum_steps=2))
        rng = np.random.default_rng(6)
        for step in range(4):
            x = mg.tensor(rng.standard_normal((5, 3)), dtype=mg.float32, device=device)
            loss = (layer(x) ** 2).mean()
            metrics = trainer.step(layer.parameters(), loss.backward(), loss.item())
            assert (metrics is None) == (step % 2 == 0)
        finals.append(host(layer.weight.detach()))
    np.testing.assert_allclose(finals[1], finals[0], rtol=1e-5, atol=1e-6)


def test_generation_writes_what_the_cpu_writes() -> None:
    mg.manual_seed(7)
    model = gpt2().eval()
    written = model.generate(mg.tensor([[1, 2, 3]]), 8, temperature=0.0)
    model.to(device="cuda")
    elsewhere = model.generate(mg.tensor([[1, 2, 3]], device="cuda"), 8, temperature=0.0)
    assert elsewhere.device == mg.Device("cuda") and host(elsewhere).tolist() == written.tolist()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, None), (0.7, 9, 1.0), (1.3, 40, None), (1.0, None, 0.6), (1.1, 5, 0.8), (2.0, 1, 0.1)],
)
def test_tokens_are_sampled_on_the_device_and_are_those_of_the_cpu(
    temperature: float, top_k: int | None, top_p: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = np.random.default_rng(0).integers(-8, 8, (60, 1, 40)).astype(np.float32) / 4  # many are equal
    drawn, copied, copy_out = [], [], memory.copy_out

    def count(target: np.ndarray, source: int, wait: bool = True) -> None:
        copied.append(target.nbytes)
        copy_out(target, source, wait)

    for device in ("cpu", "cuda"):
        given, generator = mg.tensor(logits, device=device), mg.Generator(3)
        monkeypatch.setattr(memory, "copy_out", count)
        drawn += [generation.sample(given, temperature, top_k, top_p, generator) for _ in range(2)]
        monkeypatch.undo()
    assert drawn[2].device.type == "cuda" and copied == [1, 1]  # whether the logits are finite, for each sample
    found = [host(tokens) for tokens in drawn]
    np.testing.assert_array_equal(found[2:], found[:2])
    assert found[0].shape == (60, 1) and (found[0] != found[1]).any() == (top_k != 1)


@pytest.mark.parametrize("bad", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (1, None), (None, 0.5)])
def test_logits_that_are_not_finite_are_refused(bad: list[float], top_k: int | None, top_p: float | None) -> None:
    logits = mg.tensor([[0.0, 1.0], bad], device="cuda")
    with pytest.raises(ValueError, match="logits are NaN, inf, or -inf for all tokens"):
        generation.sample(logits, 1.0, top_k, top_p, None)


def test_saving_and_loading_pass_through_the_host(tmp_path: Any) -> None:
    from minigrad.serialization import load_safetensors, save_safetensors

    mg.manual_seed(8)
    model = nn.Linear(4, 3).to(device="cuda")
    save_safetensors(tmp_path / "weights.safetensors", model.state_dict())
    other = nn.Linear(4, 3).to(device="cuda")
    other.load_state_dict(load_safetensors(tmp_path / "weights.safetensors"))
    np.testing.assert_array_equal(host(other.weight.detach()), host(model.weight.detach()))
    assert other.weight.device == mg.Device("cuda")


def test_explain_tells_which_plans_run():
    model = GPT2(GPT2Config(vocab_size=7, block_size=8, n_layer=1, n_head=2, n_embd=8)).to("cuda")
    text = str(mg.explain(model, mg.tensor(tokens(1, 4), device="cuda")))
    assert "forward runs as 'sums in products'" in text
    assert "forward not as 'whole block': these kernels have no stages" in text
