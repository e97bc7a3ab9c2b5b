"""Transformer blocks: against the plain formula. (That a cache changes nothing is tested with the models.)"""

import math

import numpy as np
import pytest
from language_models import randomised
from refusals import raises

import minigrad as mg
from minigrad import Tensor, nn
from minigrad.nn import Block, CausalSelfAttention, GroupedQueryAttention, KVCache, SwiGLU

B, T, C, NH = 2, 7, 12, 3


def inputs() -> Tensor:
    return Tensor(np.random.default_rng(1).standard_normal((B, T, C)))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """What all heads read, (B, T, C), by the formula; the mask (True: seen, or added) broadcasts to (B, NH, T, T)."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray((p / p.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(B, -1, C))


CAUSAL = np.tri(T, dtype=bool)
RNG = np.random.default_rng(0)
MASKS = {
    "none": None, "padding": (np.arange(T) < np.array([[T], [3]]))[:, None, None, :],
    "bool": (RNG.random((B, 1, T, T)) < 0.6) | np.eye(T, dtype=bool), "added": RNG.standard_normal((NH, T, T)),
}  # fmt: skip


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("kind", MASKS)
def test_attention_and_the_block_are_their_formulas(kind: str, is_causal: bool) -> None:
    mask, x = MASKS[kind], inputs()
    block = randomised(Block(C, NH, bias=kind != "bool", is_causal=is_causal))
    given = None if mask is None else mg.tensor(mask)
    h = block.ln_1(x)
    y = block.attn(h, attn_mask=given)
    seen = CAUSAL if is_causal else np.ones_like(CAUSAL)
    if mask is not None:
        seen = seen & mask if mask.dtype == bool else np.where(seen, mask, -np.inf)
    w = {n: p.detach().numpy() for n, p in block.attn.named_parameters()}
    qkv = h.detach().numpy() @ w["c_attn.weight"].T + w.get("c_attn.bias", 0)
    q, k, v = (t.reshape(B, T, NH, -1).swapaxes(1, 2) for t in np.split(qkv, 3, -1))
    want = attend(q, k, v, seen) @ w["c_proj.weight"].T + w.get("c_proj.bias", 0)
    np.testing.assert_allclose(y.detach().numpy(), want, rtol=1e-10, atol=1e-10)
    x1 = x + y
    np.testing.assert_array_equal(block.attn(h, attn_mask=given, residual=x).detach().numpy(), x1.detach().numpy())
    want = block.mlp(block.ln_2(x1), residual=x1).detach().numpy()
    np.testing.assert_array_equal(want, (x1 + block.mlp(block.ln_2(x1))).detach().numpy())
    np.testing.assert_allclose(block(x, attn_mask=given).detach().numpy(), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_gradient_flows_to_the_tokens_that_are_seen(is_causal: bool) -> None:
    block, x = randomised(Block(C, NH, is_causal=is_causal)), inputs().requires_grad_()
    grad = np.abs(block(x)[:, 3].sum().backward()[x].numpy()).sum(-1)  # of the fourth token alone
    assert (grad[:, :4] > 1e-6).all() and (grad[:, 4:] > 1e-6).all() == (not is_causal) == grad[:, 4:].any()


def test_parameters_are_gpt2s() -> None:
    names = [n for n, _ in Block(C, NH).named_parameters()]
    layers = ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
    assert names == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    assert Block(C, NH).num_parameters() == 12 * C * C + 13 * C
    assert not [n for n, _ in Block(C, NH, bias=False).named_parameters() if n.endswith("bias")]


# ---------------------------------------------------------------------- the cache


def test_misuse_of_the_cache() -> None:
    attention, x = randomised(CausalSelfAttention(C, NH)), inputs()
    cache = KVCache(B, NH, 4, C // NH, like=x)
    raises(RuntimeError, r"wrap the call in no_grad\(\)", lambda: attention(x[:, :2], cache))
    with mg.no_grad():
        raises(ValueError, "KVCache holds 4 tokens; 0 are in it and 7 more came", lambda: attention(x, cache))
        assert cache.length == 0
        attention(x[:, :3], cache)
        raises(ValueError, "2 tokens for a cache that holds 3; pass one at a time", lambda: attention(x[:, 3:5], cache))
        attention(x[:, 3:4], cache)
        raises(ValueError, "4 are in it and 1 more", lambda: attention(x[:, 4:5], cache))
        fresh = KVCache(B, NH, 4, C // NH, like=x)
        raises(ValueError, r"keys \(1, 3, 1, 4\).*expects \(2, 3, T, 4\)", lambda: attention(x[:1, :1], fresh))
    assert cache.length == 4


def test_heads_must_divide_the_channels() -> None:
    for heads in (0, 5, 24):
        raises(ValueError, "not a multiple of n_head", CausalSelfAttention, C, heads)


# ---------------------------------------------------------------------- dropout


def test_dropout_acts_in_training_only() -> None:
    block, x = randomised(Block(C, NH, dropout=0.5)), inputs()
    quiet = block(x).detach().numpy()
    np.testing.assert_array_equal(block(x).detach().numpy(), quiet)
    block.train()
    mg.manual_seed(1)
    first = block(x).detach().numpy()
    assert not np.array_equal(first, quiet) and not np.array_equal(block(x).detach().numpy(), first)
    mg.manual_seed(1)
    np.testing.assert_array_equal(block(x).detach().numpy(), first)


# ---------------------------------------------------------------------- Llama's pieces


def rotated(t: np.ndarray, base: float) -> np.ndarray:
    half = t.shape[-1] // 2
    angles = np.arange(t.shape[-2])[:, None] * base ** (-np.arange(half) / half)
    z = (t[..., :half] + 1j * t[..., half:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], -1)


@pytest.mark.parametrize(("n_kv_head", "bias"), [(None, False), (3, True), (1, False)])
def test_grouped_query_attention_is_the_formula(n_kv_head: int | None, bias: bool) -> None:
    module, x = randomised(GroupedQueryAttention(C, NH, n_kv_head, bias=bias, rope_base=50.0)), inputs()
    assert module.k_proj.weight.shape == ((n_kv_head or NH) * C // NH, C)
    w = {n: p.detach().numpy() for n, p in module.named_parameters()}
    q, k, v = (
        (x.numpy() @ w[f"{n}_proj.weight"].T + w.get(f"{n}_proj.bias", 0)).reshape(B, T, -1, C // NH).swapaxes(1, 2)
        for n in "qkv"
    )
    k, v = (np.repeat(t, NH // t.shape[1], axis=1) for t in (rotated(k, 50.0), v))
    want = attend(rotated(q, 50.0), k, v, CAUSAL) @ w["o_proj.weight"].T + w.get("o_proj.bias", 0)
    np.testing.assert_allclose(module(x).detach().numpy(), want, rtol=1e-10, atol=1e-10)
    assert mg.gradcheck(lambda x, *_: module(x), [Tensor(x.numpy()[:1, :3], requires_grad=True), *module.parameters()])


def test_grouped_query_attention_refuses_other_heads() -> None:
    for n_embd, n_head in ((12, 0), (12, 5), (15, 5)):
        raises(ValueError, f"n_embd={n_embd} is not an even multiple of", GroupedQueryAttention, n_embd, n_head)
    for n_kv_head in (0, 2, 4):
        raises(ValueError, "n_head=3 is not a multiple of", GroupedQueryAttention, C, 3, n_kv_head)
    for head_size in (0, 3, -2):
        with pytest.raises(ValueError, match=f"head_size={head_size}; rotation needs an even number of channels"):
            GroupedQueryAttention(C, 3, head_size=head_size)


@pytest.mark.parametrize("bias", [False, True])
def test_swiglu(bias: bool) -> None:
    module, x = randomised(SwiGLU(C, bias=bias)), inputs()
    w = {n: p.detach().numpy() for n, p in module.named_parameters()}
    assert list(w) == [f"{n}_proj.{k}" for n in ("gate", "up", "down") for k in ("weight", "bias")[: 1 + bias]]
    assert w["gate_proj.weight"].shape == (32, C) and SwiGLU(C, 7, bias=True).num_parameters() == 3 * 7 * C + 2 * 7 + C

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0))

    g = linear(x.numpy(), "gate_proj")
    want = linear(g / (1 + np.exp(-g)) * linear(x.numpy(), "up_proj"), "down_proj")
    np.testing.assert_allclose(module(x).detach().numpy(), want, rtol=1e-10, atol=1e-10)


@mg.no_grad()
def test_a_cache_is_for_causal_attention_without_a_mask_and_repr_says_what_attention_it_is():
    block, x, cache = nn.Block(8, 2, dropout=0.1), mg.ones(1, 2, 8), nn.KVCache(1, 2, 4, 4, mg.ones(1))
    raises(ValueError, "a KV cache or an attn_mask, not both", lambda: block(x, cache, mg.ones(2, 2)))
    raises(ValueError, "a KV cache is for causal attention", lambda: nn.Block(8, 2, is_causal=False)(x, cache))
    assert "SelfAttention(\n    n_head=2, is_causal=True, dropout=0.1\n" in repr(block)
    assert "is_causal=False" in repr(nn.SelfAttention(8, 2))
    assert "n_head=4, n_kv_head=2, is_causal=True" in repr(nn.GroupedQueryAttention(16, 4, 2))
