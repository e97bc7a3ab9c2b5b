"""GPT-2: sizes, initialisation, causality, the cache, generation, learning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from language_models import assert_causal, assert_learns_by_heart, randomised, tokens
from refusals import raises

import minigrad as mg
from minigrad import Generator, Tensor, nn
from minigrad.models import GPT2, GPT2Config
from minigrad.models.generation import sample

SMALL = GPT2Config(vocab_size=19, block_size=8, n_layer=2, n_head=2, n_embd=16)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return randomised(GPT2(SMALL))


# ---------------------------------------------------------------------- size and start


def test_the_124m_model_has_124_439_808_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are allocated but never drawn, so the memory is never touched."""
    for name in ("normal_", "uniform_", "kaiming_uniform_", "zeros_"):
        monkeypatch.setattr(nn.init, name, lambda x, *args, **kwargs: x)
    model = GPT2(GPT2Config())
    assert model.num_parameters() == 124_439_808
    names = [name for name, _ in model.named_parameters()]
    assert len(names) == 2 + 12 * 12 + 2
    assert names[:3] == ["wte.weight", "wpe.weight", "h.0.ln_1.weight"] and names[-1] == "ln_f.bias"
    assert model.wte.weight.shape == (50257, 768) and model.h[11].attn.c_attn.weight.shape == (2304, 768)


def test_the_head_is_the_token_embedding() -> None:
    model, ids = GPT2(SMALL), tokens(1, 4)
    grads = model.loss(ids, ids).backward()
    assert len(grads) == len(list(model.parameters()))
    unused = sorted(set(range(SMALL.vocab_size)) - set(ids.tolist()[0]))
    assert grads[model.wte.weight].numpy()[unused].any()  # through the head alone


def test_without_bias() -> None:
    model = GPT2(GPT2Config(vocab_size=5, block_size=4, n_layer=1, n_head=1, n_embd=4, bias=False))
    assert not [n for n, _ in model.named_parameters() if n.endswith("bias")]
    assert model(mg.tensor([[1, 2]])).shape == (1, 2, 5)


def test_initial_weights() -> None:
    mg.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=300, block_size=100, n_layer=8, n_head=2, n_embd=64))
    for name, p in model.named_parameters():
        v = p.detach().numpy()
        if name.endswith("bias"):
            assert not v.any()
        elif p.ndim == 1:
            assert (v == 1).all()
        else:
            std = 0.02 / math.sqrt(16) if name.endswith("c_proj.weight") else 0.02
            assert abs(v.mean()) < 4 * std / math.sqrt(v.size) and abs(v.std() / std - 1) < 4 / math.sqrt(2 * v.size), (
                name
            )
    mg.manual_seed(0)
    again = GPT2(model.config)
    assert all(np.array_equal(p.data, q.data) for p, q in zip(model.parameters(), again.parameters(), strict=True))


def test_an_untrained_model_is_close_to_uniform() -> None:
    mg.manual_seed(0)
    loss = GPT2(SMALL).loss(tokens(4, 8), tokens(4, 8, seed=1))
    assert loss.shape == () and loss.item() == pytest.approx(math.log(19), abs=0.1)


# ---------------------------------------------------------------------- forward


def test_logits_and_loss(model: GPT2) -> None:
    ids, targets = tokens(3, 6), tokens(3, 6, seed=1)
    logits = model(ids)
    assert logits.shape == (3, 6, 19)
    v = logits.detach().numpy()
    log_p = v - v.max(-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    want = -np.take_along_axis(log_p, targets.numpy()[..., None], -1).mean()
    assert model.loss(ids, targets).item() == pytest.approx(want, rel=1e-12)


def test_causality(model: GPT2) -> None:
    assert_causal(model, 8)
    ids = tokens(2, 8)
    first = model(ids[:, :3]).detach().numpy()
    np.testing.assert_allclose(first, model(ids).detach().numpy()[:, :3], rtol=1e-12, atol=1e-12)


def test_sequences_of_a_batch_do_not_mix(model: GPT2) -> None:
    ids = tokens(3, 8)
    alone = [model(ids[i : i + 1]).detach().numpy()[0] for i in range(3)]
    np.testing.assert_allclose(model(ids).detach().numpy(), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prompt", [1, 5, 8])
def test_logits_with_a_cache_are_those_without(model: GPT2, prompt: int) -> None:
    ids = tokens(2, 8)
    want = model(ids).detach().numpy()
    with mg.no_grad():
        caches = model.new_caches(2)
        assert len(caches) == 2
        parts = [model(ids[:, :prompt], caches)] + [model(ids[:, t : t + 1], caches) for t in range(prompt, 8)]
        np.testing.assert_allclose(mg.cat(parts, dim=1).numpy(), want, rtol=1e-11, atol=1e-11)
        raises(ValueError, "9 tokens, but block_size is 8", lambda: model(ids[:, :1], caches))


def test_what_forward_refuses(model: GPT2) -> None:
    raises(ValueError, r"tokens of shape \(4,\); expected \(B, T\)", lambda: model(mg.arange(4)))
    raises(ValueError, "9 tokens, but block_size is 8", lambda: model(tokens(1, 9)))
    raises(IndexError, "index 19 at position 1 is out of range for 19 rows", lambda: model(mg.tensor([[0, 19]])))
    raises(TypeError, "integers", lambda: model(mg.ones(1, 2)))
    raises(RuntimeError, "no_grad", lambda: model(tokens(1, 2), model.new_caches(1)))
    with pytest.raises(ValueError):
        model.loss(tokens(1, 3), tokens(1, 4))


@pytest.mark.parametrize(
    "sizes",
    [{"n_layer": 0}, {"vocab_size": -1}, {"block_size": 2.0}, {"n_head": True}, {"n_embd": 15}, {"n_head": 3}]
    + [{"dropout": 1.0}, {"dropout": -0.1}],
)
def test_configurations_that_make_no_sense(sizes: dict[str, Any]) -> None:
    raises(ValueError, "GPT2Config: ", lambda: GPT2Config(**{**SMALL.__dict__, **sizes}))


# ---------------------------------------------------------------------- generation


def recomputed(model: GPT2, ids: Tensor, n: int, **options: Any) -> Tensor:
    """Generation without a cache: the whole window again for every token."""
    generator = Generator(options.pop("seed", 0))
    settings = (options.get("temperature", 1.0), options.get("top_k"), options.get("top_p"), generator)
    with mg.no_grad():
        for _ in range(n):
            logits = model(ids[:, -model.config.block_size :])[:, -1]
            ids = mg.cat([ids, sample(logits, *settings)], dim=1)
    return ids


@pytest.mark.parametrize("T", [1, 5, 8, 11])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"seed": 3}, {"seed": 3, "top_k": 4, "temperature": 2.0}])
def test_generation_is_recomputation_also_beyond_the_window(model: GPT2, T: int, options: dict[str, Any]) -> None:
    ids = tokens(3, T)
    found = model.generate(ids, 14, **options)
    assert found.shape == (3, T + 14) and found.dtype == mg.int64
    assert found[:, :T].tolist() == ids.tolist()
    assert found.tolist() == recomputed(model, ids, 14, **options).tolist()


def test_the_same_seed_gives_the_same_text(model: GPT2) -> None:
    ids = tokens(2, 3)
    first = model.generate(ids, 20, seed=1).tolist()
    assert model.generate(ids, 20, seed=1).tolist() == first != model.generate(ids, 20, seed=2).tolist()
    mg.manual_seed(5)
    a, b = model.generate(ids, 20).tolist(), model.generate(ids, 20).tolist()
    mg.manual_seed(5)
    assert a != b and model.generate(ids, 20).tolist() == a


def test_temperature_zero_is_greedy(model: GPT2) -> None:
    ids = tokens(2, 3)
    greedy = model.generate(ids, 10, temperature=0.0)
    with mg.no_grad():
        for t in range(3, 13):
            best = model(greedy[:, max(0, t - 8) : t])[:, -1].argmax(-1)
            assert best.tolist() == greedy[:, t].tolist()
    assert model.generate(ids, 10, temperature=1e-6, seed=1).tolist() == greedy.tolist()
    assert model.generate(ids, 10, top_k=1, seed=1).tolist() == greedy.tolist()
    assert model.generate(ids, 10, top_p=1e-9, seed=1).tolist() == greedy.tolist()


def frequencies(temperature: float, top_k: int | None, top_p: float | None, p: list[float]) -> np.ndarray:
    rows = 20_000
    logits = mg.tensor(np.log(np.tile(p, (rows, 1))))
    ids = sample(logits, temperature, top_k, top_p, Generator(9))
    assert ids.shape == (rows, 1)
    return np.bincount(ids.numpy()[:, 0], minlength=len(p)) / rows


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "kept"),
    [
        (1.0, None, None, [0.1, 0.4, 0.05, 0.3, 0.15]),
        (1.0, 2, None, [0, 0.4, 0, 0.3, 0]),
        (1.0, 5, None, [0.1, 0.4, 0.05, 0.3, 0.15]),
        (1.0, 50, 1.0, [0.1, 0.4, 0.05, 0.3, 0.15]),
        (1.0, None, 0.5, [0, 0.4, 0, 0.3, 0]),  # 0.4 alone does not reach 0.5
        (1.0, None, 0.39, [0, 0.4, 0, 0, 0]),
        (1.0, None, 0.84, [0, 0.4, 0, 0.3, 0.15]),
        (1.0, 4, 0.8, [0, 0.4, 0, 0.3, 0.15]),  # top_p of what top_k left
        (0.5, None, None, [0.1**2, 0.4**2, 0.05**2, 0.3**2, 0.15**2]),
        (2.0, 2, None, [0, 0.4**0.5, 0, 0.3**0.5, 0]),
    ],
)
def test_sampling_follows_the_distribution(
    temperature: float, top_k: int | None, top_p: float | None, kept: list[float]
) -> None:
    found = frequencies(temperature, top_k, top_p, [0.1, 0.4, 0.05, 0.3, 0.15])
    want = np.array(kept) / sum(kept)
    assert (found[want == 0] == 0).all()
    np.testing.assert_allclose(found, want, atol=0.014)  # four deviations of the widest


def test_generation_leaves_the_model_as_it_was() -> None:
    model = GPT2(GPT2Config(**{**SMALL.__dict__, "dropout": 0.5}))
    model.train()
    model.h[0].eval()
    modes = [m.training for m in model.modules()]
    state = {n: t.numpy().copy() for n, t in model.state_dict().items()}
    a = model.generate(tokens(1, 3), 6, temperature=0.0).tolist()
    assert a == model.generate(tokens(1, 3), 6, temperature=0.0).tolist()  # dropout is off
    with pytest.raises(IndexError):
        model.generate(mg.tensor([[99]]), 1)
    assert [m.training for m in model.modules()] == modes and mg.is_grad_enabled()
    assert all(np.array_equal(t.numpy(), state[n]) for n, t in model.state_dict().items())


def test_no_new_tokens(model: GPT2) -> None:
    ids = tokens(2, 3)
    assert model.generate(ids, 0).tolist() == ids.tolist()


def test_generate_takes_the_numbers_of_numpy(model: GPT2) -> None:
    ids = mg.tensor([[1, 2, 3]])
    ours = model.generate(ids, 4, temperature=0.5, top_k=3, top_p=0.75, seed=1)
    numpys = model.generate(
        ids, np.int64(4), temperature=np.float32(0.5), top_k=np.int32(3), top_p=np.float32(0.75), seed=1
    )
    assert ours.tolist() == numpys.tolist()


def test_targets_of_another_shape_than_the_tokens_are_refused(model: GPT2) -> None:
    tokens = mg.zeros(2, 4, dtype="int64")
    raises(ValueError, r"targets \(2, 3\) for tokens \(2, 4\)", lambda: model.loss(tokens, tokens[:, 1:]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": "1"}, "temperature='1'"),
        ({"max_new_tokens": 2.5}, "max_new_tokens=2.5"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"seed": -1}, "seed -1"),
        ({"tokens": mg.zeros(2, 0, dtype="int64")}, "T >= 1"),
        ({"tokens": mg.zeros(3, dtype="int64")}, r"expected \(B, T\)"),
    ],
)
def test_what_generate_refuses(model: GPT2, options: dict[str, Any], message: str) -> None:
    raises(ValueError, message, lambda: model.generate(**{"tokens": tokens(1, 2), "max_new_tokens": 2, **options}))


def test_generate_takes_a_tensor(model: GPT2) -> None:
    with pytest.raises(TypeError, match=r"generate: tokens are a list; expected a tensor of integers \(B, T\)"):
        model.generate([[1, 2]], 2)  # type: ignore[arg-type]  # the error is the test


# ---------------------------------------------------------------------- learning


def test_it_learns_a_batch_by_heart() -> None:
    mg.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=19, block_size=8, n_layer=2, n_head=2, n_embd=32))
    ids = tokens(4, 9)
    ids[:, 0] = mg.arange(4)  # otherwise two sequences may begin alike
    assert_learns_by_heart(model, ids)


def test_gradients_of_the_whole_model() -> None:
    model = GPT2(GPT2Config(vocab_size=5, block_size=3, n_layer=1, n_head=2, n_embd=4))
    model.to(mg.float64)
    rng = np.random.default_rng(0)
    model.load_state_dict({n: rng.standard_normal(t.shape) * 0.5 for n, t in model.state_dict().items()})
    ids, targets = mg.tensor([[1, 4, 1], [0, 2, 2]]), mg.tensor([[4, 1, 3], [2, 2, 0]])
    assert mg.gradcheck(lambda *_: model.loss(ids, targets), list(model.parameters()))


def test_gradients_do_not_depend_on_the_number_of_threads(set_threads: Any) -> None:
    model = GPT2(GPT2Config(vocab_size=1000, block_size=64, n_layer=1, n_head=4, n_embd=64, dropout=0.1))
    ids = mg.randint(0, 1000, (4, 65), generator=Generator(1))
    most = mg.get_num_threads()
    found = []
    for count in (most, 1, most):
        set_threads(count)
        mg.manual_seed(7)
        loss = model.loss(ids[:, :-1], ids[:, 1:])
        grads = loss.backward()
        found.append([loss.item()] + [grads[p].numpy().tobytes() for p in model.parameters()])
    assert found[0] == found[1] == found[2]


def test_extreme_temperatures_sample() -> None:
    model = GPT2(SMALL)
    tokens = mg.tensor([[1, 2]])
    coldest = model.generate(tokens, 3, temperature=1e-45, seed=1)
    np.testing.assert_array_equal(coldest.numpy(), model.generate(tokens, 3, temperature=0).numpy())
    assert model.generate(tokens, 3, temperature=1e30, seed=1).shape == (1, 5)
    raises(ValueError, r"top_k=1.5; expected an integer", lambda: model.generate(tokens, 1, top_k=1.5))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_not_sampled(bad: float) -> None:
    with pytest.raises(ValueError, match="the model's logits are NaN, inf"):
        sample(mg.tensor([[0.0, 1.0], [bad, 1.0]]), 1.0, None, None, None)
    assert sample(mg.tensor([[-np.inf, 1.0]]), 1.0, None, None, None).tolist() == [[1]]


def test_the_loss_bypasses_neither_hooks_nor_another_forward(model: GPT2) -> None:
    rng = np.random.default_rng(0)
    tokens, targets = (mg.tensor(rng.integers(0, model.config.vocab_size, (2, 5))) for _ in range(2))
    fused = model.loss(tokens, targets)
    grads = fused.backward()
    seen = []
    with model.register_forward_hook(lambda module, args, logits: seen.append(logits.shape)):
        plain = model.loss(tokens, targets)
    assert seen == [(2, 5, model.config.vocab_size)]
    assert fused.item() == pytest.approx(plain.item(), rel=1e-5)
    expected = plain.backward()
    for parameter in model.parameters():
        np.testing.assert_allclose(grads[parameter].numpy(), expected[parameter].numpy(), rtol=1e-3, atol=1e-5)
    model.forward = lambda tokens: 0 * type(model).forward(model, tokens)
    assert model.loss(tokens, targets).item() == pytest.approx(math.log(model.config.vocab_size), rel=1e-5)
