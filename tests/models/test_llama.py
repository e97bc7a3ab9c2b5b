"""Llama: sizes, the formula, rotary scaling, causality, the cache, generation, learning. (transformers' numbers are
compared in test_pretrained.py.)"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from language_models import assert_causal, assert_learns_by_heart, randomised, tokens
from refusals import raises

import minigrad as mg
from minigrad import nn
from minigrad.models import GPT2, CausalLM, GPT2Config, Llama, LlamaConfig, RopeScaling
from minigrad.models.generation import stream

SCALING = RopeScaling("llama3", 4.0, 1.0, 2.0, 8)
SMALL = LlamaConfig(
    vocab_size=19, block_size=10, n_layer=2, n_head=4, n_kv_head=2, n_embd=16, n_inner=12, head_dim=6, rope_base=20.0,
    rope_scaling=SCALING, attention_bias=True, mlp_bias=True, tied=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Llama:
    return randomised(Llama(SMALL))


# ---------------------------------------------------------------------- size and start


def test_smollm2_135m_has_134_515_008_parameters() -> None:
    with nn.init.skip_init():  # the memory is never touched
        model = Llama(LlamaConfig())
    assert model.num_parameters() == 134_515_008
    names = [name for name, _ in model.named_parameters()]
    layer = [
        "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    ]  # fmt: skip
    assert names[0] == "embed_tokens.weight" and names[-1] == "norm.weight"
    assert names[1:10] == [f"layers.0.{part}.weight" for part in layer] and len(names) == 2 + 30 * 9
    with nn.init.skip_init():
        assert Llama(LlamaConfig(tied=False)).num_parameters() == 134_515_008 + 49152 * 576


def test_initial_weights() -> None:
    mg.manual_seed(0)
    model = Llama(LlamaConfig(300, 100, 8, 4, 2, 64, 96, attention_bias=True, mlp_bias=True, tied=False))
    for name, p in model.named_parameters():
        v = p.detach().numpy()
        if name.endswith("bias"):
            assert not v.any()
        elif p.ndim == 1:
            assert (v == 1).all()
        else:
            std = 0.02 / 4 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            assert abs(v.std() / std - 1) < 4 / math.sqrt(2 * v.size), name
    loss = model.loss(mg.randint(0, 300, (2, 9)), mg.randint(0, 300, (2, 9)))
    assert loss.item() == pytest.approx(math.log(300), abs=0.1)


def test_weights_that_are_not_drawn_use_no_random_numbers() -> None:
    mg.manual_seed(1)
    before = mg.default_generator.state_dict()
    with nn.init.skip_init():
        Llama(SMALL)
    assert mg.default_generator.state_dict() == before
    Llama(SMALL)
    assert mg.default_generator.state_dict() != before


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_layer": 0}, "n_layer=0"),
        ({"n_inner": 2.0}, "n_inner=2.0"),
        ({"head_dim": 0}, "head_dim=0"),
        ({"head_dim": 3}, "heads of 3 channels"),
        ({"head_dim": None, "n_embd": 18}, "n_embd=18 is not a multiple of n_head=4"),
        ({"n_kv_head": 3}, "n_head=4 is not a multiple of n_kv_head=3"),
        ({"rope_base": 0.0}, "rope_base=0.0"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_configurations_that_make_no_sense(sizes: dict[str, Any], message: str) -> None:
    raises(ValueError, f"LlamaConfig: .*{message}", lambda: LlamaConfig(**{**SMALL.__dict__, **sizes}))


@pytest.mark.parametrize("sizes", [{"kind": "yarn"}, {"factor": 0.5}, {"high_freq_factor": 1.0}, {"factor": math.nan}])
def test_scalings_that_make_no_sense(sizes: dict[str, Any]) -> None:
    raises(ValueError, "RopeScaling: ", lambda: RopeScaling(**{"kind": "llama3", "factor": 2.0, **sizes}))


# ---------------------------------------------------------------------- forward


def test_rope_frequencies() -> None:
    """Llama 3.1's rule, written as in its paper's code: by wavelength."""
    config = LlamaConfig(head_dim=64, rope_base=5e5, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 8192))
    want, cases = [], set()
    for j in range(32):
        f = 5e5 ** (-2 * j / 64)
        wavelength = 2 * math.pi / f
        if wavelength < 8192 / 4:
            cases.add("kept")
        elif wavelength > 8192 / 1:
            f, _ = f / 8, cases.add("lowered")
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            f, _ = (1 - smooth) * f / 8 + smooth * f, cases.add("blended")
        want.append(f)
    assert cases == {"kept", "lowered", "blended"}
    np.testing.assert_allclose(config.rope_frequencies, want, rtol=1e-12)
    plain = LlamaConfig(head_dim=64, rope_base=5e5).rope_frequencies
    linear = LlamaConfig(head_dim=64, rope_base=5e5, rope_scaling=RopeScaling("linear", 4.0)).rope_frequencies
    np.testing.assert_allclose(linear, np.array(plain) / 4, rtol=1e-15)


def plain_llama(model: Llama, ids: np.ndarray) -> np.ndarray:
    """Logits by NumPy, one head at a time."""
    c = model.config
    w = {n: p.detach().numpy() for n, p in model.named_parameters()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + c.eps) * w[f"{name}.weight"])

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])

    def rotated(t: np.ndarray) -> np.ndarray:
        half = c.head_size // 2
        turn = np.exp(1j * np.arange(t.shape[1])[:, None] * np.array(c.rope_frequencies))
        z = (t[..., :half] + 1j * t[..., half:]) * turn
        return np.concatenate([z.real, z.imag], -1)

    x = w["embed_tokens.weight"][ids]
    for i in range(c.n_layer):
        here, h = f"layers.{i}", norm(x, f"layers.{i}.input_layernorm")
        q, k, v = (linear(h, f"{here}.self_attn.{n}_proj") for n in "qkv")
        heads = []
        for head in range(c.n_head):
            of = slice(head * c.head_size, (head + 1) * c.head_size)
            kv = head // (c.n_head // c.n_kv_head)
            kv_of = slice(kv * c.head_size, (kv + 1) * c.head_size)
            scores = rotated(q[..., of]) @ rotated(k[..., kv_of]).swapaxes(1, 2) / math.sqrt(c.head_size)
            p = np.exp(np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf))
            heads.append(p / p.sum(-1, keepdims=True) @ v[..., kv_of])
        x = x + linear(np.concatenate(heads, -1), f"{here}.self_attn.o_proj")
        h = norm(x, f"{here}.post_attention_layernorm")
        gate = linear(h, f"{here}.mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, f"{here}.mlp.up_proj"), f"{here}.mlp.down_proj")
    return np.asarray(norm(x, "norm") @ w["lm_head.weight"].T)


def test_logits_are_the_formula(model: Llama) -> None:
    ids = tokens(3, 10)
    np.testing.assert_allclose(model(ids).detach().numpy(), plain_llama(model, ids.numpy()), rtol=1e-10, atol=1e-10)


def test_the_head_is_the_embedding_if_tied() -> None:
    ids = tokens(1, 4)
    for tied in (True, False):
        model = Llama(LlamaConfig(19, 8, 1, 2, 1, 8, 8, tied=tied))
        grads = model.loss(ids, ids).backward()
        assert len(grads) == len(list(model.parameters()))
        unused = sorted(set(range(19)) - set(ids.tolist()[0]))
        assert grads[model.embed_tokens.weight].numpy()[unused].any() == tied  # through the head alone


def test_causality(model: Llama) -> None:
    assert_causal(model, 10)


@pytest.mark.parametrize("prompt", [1, 4, 10])
def test_logits_with_a_cache_are_those_without(model: Llama, prompt: int) -> None:
    ids = tokens(2, 10)
    want = model(ids).detach().numpy()
    with mg.no_grad():
        caches = model.new_caches(2)
        parts = [model(ids[:, :prompt], caches)] + [model(ids[:, t : t + 1], caches) for t in range(prompt, 10)]
        np.testing.assert_allclose(mg.cat(parts, dim=1).numpy(), want, rtol=1e-11, atol=1e-11)
        raises(ValueError, "Llama: 11 tokens, but block_size is 10", lambda: model(ids[:, :1], caches))


def test_a_cache_has_the_heads_of_the_keys_and_the_room_that_is_asked_for(model: Llama) -> None:
    with mg.no_grad():
        small = model.new_caches(1, 3)
        model(tokens(1, 3), small)
        raises(ValueError, "KVCache holds 3 tokens", lambda: model(tokens(1, 1), small))
    k = mg.zeros(1, 2, 1, 6, dtype="float64")
    assert small[0].extend(k[:, :, :0], k[:, :, :0])[0].shape == (1, 2, 3, 6)


def test_gradients_of_the_whole_model() -> None:
    config = {**SMALL.__dict__, "vocab_size": 5, "n_layer": 1, "n_head": 2, "n_kv_head": 1, "n_embd": 4, "n_inner": 3}
    model = randomised(Llama(LlamaConfig(**{**config, "head_dim": 2})))
    ids, targets = mg.tensor([[1, 4, 1], [0, 2, 2]]), mg.tensor([[4, 1, 3], [2, 2, 0]])
    assert mg.gradcheck(lambda *_: model.loss(ids, targets), list(model.parameters()))


# ---------------------------------------------------------------------- generation, for every family


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def any_model(request: pytest.FixtureRequest) -> CausalLM:
    small = GPT2Config(19, 10, 2, 2, 16, tied=False)
    made: CausalLM = randomised(GPT2(small) if request.param == "gpt2" else Llama(SMALL))
    return made


def test_greedy_text_is_recomputation_also_beyond_the_window(any_model: CausalLM) -> None:
    ids = tokens(2, 3)
    found = any_model.generate(ids, 15, temperature=0)
    with mg.no_grad():
        for t in range(3, 18):
            best = any_model(found[:, max(0, t - 10) : t])[:, -1].argmax(-1)
            assert best.tolist() == found[:, t].tolist()


def test_a_stream_is_the_same_tokens(any_model: CausalLM) -> None:
    ids = tokens(2, 3)
    pieces = list(stream(any_model, ids, 9, seed=4, top_k=7))
    assert [p.shape for p in pieces] == [(2, 1)] * 9
    assert mg.cat([ids, *pieces], dim=1).tolist() == any_model.generate(ids, 9, seed=4, top_k=7).tolist()
    any_model.train()
    tokens_left_over = stream(any_model, ids, 9, seed=4)
    next(tokens_left_over)
    tokens_left_over.close()  # type: ignore[attr-defined]  # a generator
    assert all(module.training for module in any_model.modules())  # as it was
    any_model.eval()


def test_sequences_end_with_the_end_token(any_model: CausalLM) -> None:
    ids = tokens(3, 3, seed=2)
    free = any_model.generate(ids, 40, seed=6).numpy()

    def lengths(ends: list[int]) -> list[int]:
        """Up to and with the first end token; the whole text without one."""
        places = [np.flatnonzero(np.isin(row[3:], ends)) for row in free]
        return [3 + int(p[0]) + 1 if len(p) else 43 for p in places]

    ends = next(e for e in ([a, b] for a in range(19) for b in range(a)) if len(set(lengths(e))) == 3)
    found = any_model.generate(ids, 40, seed=6, eos_token_id=ends).numpy()
    assert found.shape[1] == max(lengths(ends))
    for row, want, n in zip(found, free, lengths(ends), strict=True):
        assert row[:n].tolist() == want[:n].tolist()
        assert (row[n:] == row[n - 1]).all()  # filled up with the token that ended it
    alone = any_model.generate(ids[:1], 40, temperature=0)
    one = int(alone[0, 5])
    end = 3 + alone.tolist()[0][3:].index(one)
    assert any_model.generate(ids[:1], 40, temperature=0, eos_token_id=one).tolist() == alone[:, : end + 1].tolist()


@pytest.mark.parametrize("eos", [-1, 1.5, [1, "x"], True])
def test_end_tokens_that_make_no_sense(any_model: CausalLM, eos: Any) -> None:
    raises(ValueError, "eos_token_id=", lambda: any_model.generate(tokens(1, 2), 3, eos_token_id=eos))


# ---------------------------------------------------------------------- learning


def test_it_learns_a_batch_by_heart() -> None:
    mg.manual_seed(0)
    model = Llama(LlamaConfig(19, 8, 2, 2, 1, 32, 48))
    ids = tokens(4, 9)
    # Beginnings differ, and none repeats its first token: with relative positions, one token twice looks as once.
    ids[:, 0], ids[:, 1] = mg.arange(4), mg.arange(4) + 4
    assert_learns_by_heart(model, ids)
