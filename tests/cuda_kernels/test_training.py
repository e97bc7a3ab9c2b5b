"""Whole training runs and generated text are the CPU's on the device "cuda"."""

import numpy as np
import pytest
from harness import host

import minigrad as mg
from minigrad import nn
from minigrad.cuda_kernels.platform import memory
from minigrad.models import GPT2, GPT2Config, Llama, LlamaConfig, generation, gpt2_memory
from minigrad.tools.step_memory import memory_report


def gpt2():
    return GPT2(GPT2Config(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8, dropout=0.1))


def llama():
    return Llama(LlamaConfig(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_kv_head=1, n_embd=8, n_inner=12))


def train(make, device: str, steps: int) -> tuple[list[float], list[float], dict[str, np.ndarray]]:
    """Losses, gradient norms, and the weights at the end."""
    mg.manual_seed(1)
    model = make().to(device=device)
    optimizer = mg.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)  # a gradient that is only rounding moves nothing
    mg.manual_seed(2)  # the same dropout masks on both devices
    losses, norms = [], []
    window = np.random.default_rng(5).integers(0, 11, (2, 9))  # learnt by heart
    for _ in range(steps):
        x, y = (mg.tensor(w.copy(), device=device) for w in (window[:, :-1], window[:, 1:]))
        loss = model.loss(x, y)
        grads = loss.backward()
        norms.append(float(mg.optim.clip_grad_norm(grads, 0.5)))
        optimizer.step(grads)
        losses.append(loss.item())
    return losses, norms, {name: host(p.detach()) for name, p in model.named_parameters()}


@pytest.mark.parametrize(("make", "steps"), [(gpt2, 10), (llama, 3)], ids=["GPT-2", "Llama"])
def test_training_follows_the_cpu(make, steps: int) -> None:
    losses, norms, weights = train(make, "cuda", steps)
    expected_losses, expected_norms, expected_weights = train(make, "cpu", steps)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-5)
    np.testing.assert_allclose(norms, expected_norms, rtol=2e-4)
    for name, weight in expected_weights.items():
        np.testing.assert_allclose(weights[name], weight, rtol=1e-3, atol=1e-5, err_msg=name)
    assert losses[-1] < losses[0]


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
def test_tokens_are_sampled_on_the_device_and_are_those_of_the_cpu(temperature, top_k, top_p, monkeypatch) -> None:
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


def test_saving_and_loading_pass_through_the_host(tmp_path) -> None:
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
    text = str(mg.explain(model, mg.tensor([[1, 5, 0, 3]], device="cuda")))
    assert "forward runs as 'sums in products'" in text


def test_a_step_of_gpt2_in_bfloat16_keeps_what_is_predicted() -> None:
    """On a device with tensor cores, and as its allocator says."""
    config = GPT2Config(128, 8, 1, 1, 8)
    model = GPT2(config)
    model.to("cuda")
    x, y = (mg.tensor(t, device="cuda") for t in np.random.default_rng(0).integers(0, 128, (2, 1, 8)))

    def loss() -> mg.Tensor:
        with mg.autocast("cuda", mg.bfloat16):
            return model.loss(x, y)

    report, expected = memory_report(model, loss), gpt2_memory(config, 1, dtype=mg.bfloat16, moments=0)
    assert report.activations == expected.activations
    for kind in ("weights", "gradients", "weight_copies", "optimizer"):
        assert getattr(report, kind) == getattr(expected, kind), kind
    assert 0.5 * expected.temporary < report.temporary < 2 * expected.temporary  # an estimate
