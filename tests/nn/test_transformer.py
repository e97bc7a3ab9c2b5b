"""Transformer blocks: against the plain formula, causal, and the same with a cache as without."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from refusals import raises

import minigrad as mg
from minigrad import Generator, Tensor, nn
from minigrad.nn import Block, CausalSelfAttention, GroupedQueryAttention, KVCache, SelfAttention, SwiGLU

B, T, C, NH = 2, 7, 12, 3


def randomised(module: Any, seed: int = 0) -> Any:
    """Every parameter normal (norm weights too), in float64, evaluating."""
    rng = np.random.default_rng(seed)
    module.to(mg.float64).eval()
    module.load_state_dict({n: rng.standard_normal(t.shape) * 0.5 for n, t in module.state_dict().items()})
    return module


def inputs(seed: int = 1, T: int = T) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal((B, T, C)))


def plain_attention(module: SelfAttention, x: np.ndarray, causal: bool = True) -> np.ndarray:
    w = {n: p.detach().numpy() for n, p in module.named_parameters()}
    qkv = x @ w["c_attn.weight"].T + w.get("c_attn.bias", 0)
    q, k, v = (p.reshape(*x.shape[:2], NH, C // NH).swapaxes(1, 2) for p in np.split(qkv, 3, -1))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(C // NH)
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True)) @ v
    y = y.swapaxes(1, 2).reshape(x.shape) @ w["c_proj.weight"].T + w.get("c_proj.bias", 0)
    return np.asarray(y)


@pytest.mark.parametrize("bias", [True, False])
def test_attention_is_the_formula(bias: bool) -> None:
    module, x = randomised(CausalSelfAttention(C, NH, bias=bias)), inputs()
    np.testing.assert_allclose(module(x).detach().numpy(), plain_attention(module, x.numpy()), rtol=1e-10, atol=1e-10)


def test_attention_that_is_not_causal_sees_all() -> None:
    module, x = randomised(SelfAttention(C, NH)), inputs()
    want = plain_attention(module, x.numpy(), causal=False)
    np.testing.assert_allclose(module(x).detach().numpy(), want, rtol=1e-10, atol=1e-10)
    block, x = randomised(Block(C, NH, is_causal=False)), inputs().requires_grad_()
    gradient = block(x)[:, 0].sum().backward()[x].numpy()  # of the first token alone
    assert (np.abs(gradient).sum(-1) > 1e-6).all()


def test_a_cache_is_for_causal_attention() -> None:
    cache = KVCache(B, NH, T, C // NH, like=inputs())
    with mg.no_grad(), pytest.raises(ValueError, match="causal"):
        randomised(Block(C, NH, is_causal=False))(inputs(), cache)


def test_parameters_are_gpt2s() -> None:
    names = [n for n, _ in Block(C, NH).named_parameters()]
    layers = ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
    assert names == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    assert Block(C, NH).num_parameters() == 12 * C * C + 13 * C
    assert not [n for n, _ in Block(C, NH, bias=False).named_parameters() if n.endswith("bias")]


@pytest.mark.parametrize("place", [1, 4, T - 1])
def test_later_tokens_change_nothing_earlier(place: int) -> None:
    block, x = randomised(Block(C, NH)), inputs()
    changed = x.clone()
    changed[:, place:] = inputs(seed=9)[:, place:]
    y, z = block(x).detach().numpy(), block(changed).detach().numpy()
    np.testing.assert_array_equal(y[:, :place], z[:, :place])
    assert (y[:, place:] != z[:, place:]).any(-1).all()


def test_no_gradient_flows_to_later_tokens() -> None:
    block, x = randomised(Block(C, NH)), inputs().requires_grad_()
    grad = block(x)[:, 3].sum().backward()[x].numpy()
    assert not grad[:, 4:].any() and grad[:, :4].any(-1).all()


# ---------------------------------------------------------------------- the cache


@pytest.mark.parametrize("prompt", [1, 3, T - 1, T])
def test_with_a_cache_the_same_as_without(prompt: int) -> None:
    block, x = randomised(Block(C, NH)), inputs()
    want = block(x).detach().numpy()
    cache = KVCache(B, NH, T, C // NH, like=x)
    with mg.no_grad():
        parts = [block(x[:, :prompt], cache)]
        assert cache.length == prompt
        for t in range(prompt, T):
            parts.append(block(x[:, t : t + 1], cache))
    assert cache.length == T
    np.testing.assert_allclose(mg.cat(parts, dim=1).numpy(), want, rtol=1e-12, atol=1e-12)


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
        with pytest.raises(ValueError, match=r"qkv \(1, 1, 36\).*expects \(2, T, 36\)"):
            attention(x[:1, :1], KVCache(B, NH, 4, C // NH, like=x))
        with pytest.raises(ValueError, match="of float32; this cache expects .* of float64"):
            KVCache(B, NH, 4, C // NH, like=x).attend(mg.ones(B, 1, 3 * C))
        k = mg.ones(1, NH, 1, 4)
        with pytest.raises(ValueError, match=r"keys \(1, 3, 1, 4\).*expects \(2, 3, T, 4\)"):
            KVCache(B, NH, 4, C // NH, like=x).extend(k, k)
    assert cache.length == 4


def test_heads_must_divide_the_channels() -> None:
    for heads in (0, 5, 24):
        with pytest.raises(ValueError, match="not a multiple of n_head"):
            CausalSelfAttention(C, heads)


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


def test_attention_dropout_keeps_the_mean() -> None:
    q, k = (mg.randn(1, 1, 2, 4, generator=Generator(i)) for i in (1, 2))
    v = mg.ones(1, 1, 2, 4)
    generator = Generator(3)
    total = sum(
        nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5, generator=generator).numpy()
        for _ in range(4000)
    )
    np.testing.assert_allclose(total / 4000, 1, atol=0.06)


# ---------------------------------------------------------------------- Llama's pieces


def plain_grouped_attention(module: GroupedQueryAttention, x: np.ndarray, base: float) -> np.ndarray:
    w = {n: p.detach().numpy() for n, p in module.named_parameters()}
    hs, half = C // NH, C // NH // 2
    angles = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)

    def rotated(t: np.ndarray) -> np.ndarray:
        z = (t[..., :half] + 1j * t[..., half:]) * np.exp(1j * angles)
        return np.concatenate([z.real, z.imag], -1)

    q, k, v = (
        (x @ w[f"{n}_proj.weight"].T + w.get(f"{n}_proj.bias", 0)).reshape(*x.shape[:2], -1, hs).swapaxes(1, 2)
        for n in "qkv"
    )
    q, k = rotated(q), rotated(k)
    k, v = (np.repeat(t, NH // t.shape[1], axis=1) for t in (k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(hs)
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y = ((p / p.sum(-1, keepdims=True)) @ v).swapaxes(1, 2).reshape(x.shape)
    return np.asarray(y @ w["o_proj.weight"].T + w.get("o_proj.bias", 0))


@pytest.mark.parametrize(("n_kv_head", "bias"), [(None, False), (3, True), (1, False)])
def test_grouped_query_attention_is_the_formula(n_kv_head: int | None, bias: bool) -> None:
    module = randomised(GroupedQueryAttention(C, NH, n_kv_head, bias=bias, rope_base=50.0))
    x = inputs()
    assert module.k_proj.weight.shape == ((n_kv_head or NH) * C // NH, C)
    np.testing.assert_allclose(
        module(x).detach().numpy(), plain_grouped_attention(module, x.numpy(), 50.0), rtol=1e-10, atol=1e-10
    )
    assert mg.gradcheck(lambda x, *_: module(x), [Tensor(x.numpy()[:1, :3], requires_grad=True), *module.parameters()])


@pytest.mark.parametrize("prompt", [1, 4])
def test_grouped_query_attention_with_a_cache(prompt: int) -> None:
    module, x = randomised(GroupedQueryAttention(C, NH, 1)), inputs()
    cache = KVCache(B, 1, T, C // NH, like=x)
    with mg.no_grad():
        parts = [module(x[:, :prompt], cache)] + [module(x[:, t : t + 1], cache) for t in range(prompt, T)]
        np.testing.assert_allclose(mg.cat(parts, 1).numpy(), module(x).numpy(), rtol=1e-10, atol=1e-10)


def test_grouped_query_attention_refuses_other_heads() -> None:
    for n_embd, n_head in ((12, 0), (12, 5), (15, 5)):
        with pytest.raises(ValueError, match=f"n_embd={n_embd} is not an even multiple of n_head={n_head}"):
            GroupedQueryAttention(n_embd, n_head)
    for n_kv_head in (0, 2, 4):
        with pytest.raises(ValueError, match=f"n_head=3 is not a multiple of n_kv_head={n_kv_head}"):
            GroupedQueryAttention(C, 3, n_kv_head)
    for head_size in (0, 3, -2):
        with pytest.raises(ValueError, match=f"head_size={head_size}; rotation needs an even number of channels"):
            GroupedQueryAttention(C, 3, head_size=head_size)


def test_swiglu() -> None:
    module, x = randomised(SwiGLU(C)), inputs()
    gate, up, down = (p.detach().numpy() for p in module.parameters())
    assert [n for n, _ in module.named_parameters()] == [f"{n}_proj.weight" for n in ("gate", "up", "down")]
    assert gate.shape == (32, C) and SwiGLU(C, 7, bias=True).num_parameters() == 3 * 7 * C + 2 * 7 + C
    g = x.numpy() @ gate.T
    want = (g / (1 + np.exp(-g)) * (x.numpy() @ up.T)) @ down.T
    np.testing.assert_allclose(module(x).detach().numpy(), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["padding", "bool", "float"])
def test_attn_mask_as_in_torch(is_causal, kind):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    B, T, C, nh = 2, 5, 8, 2
    rng = np.random.default_rng(0)
    if kind == "padding":
        mask = (np.arange(T) < np.array([[5], [3]]))[:, None, None, :]
    elif kind == "bool":
        mask = (rng.random((B, 1, T, T)) < 0.6) | np.eye(T, dtype=bool)
    else:
        mask = rng.standard_normal((nh, T, T)).astype(np.float32)
    block = nn.Block(C, nh, is_causal=is_causal)
    x = mg.randn(B, T, C, requires_grad=True)
    dy = rng.standard_normal((B, T, C)).astype(np.float32)
    y = block(x, attn_mask=mg.tensor(mask))
    grads = y.backward(mg.tensor(dy))

    layer = torch.nn.TransformerEncoderLayer(
        C, nh, 4 * C, 0.0, torch.nn.GELU("tanh"), batch_first=True, norm_first=True
    )
    named = dict(block.named_parameters())
    names = {
        "self_attn.in_proj_": "attn.c_attn.",
        "self_attn.out_proj.": "attn.c_proj.",
        "linear1.": "mlp.c_fc.",
        "linear2.": "mlp.c_proj.",
        "norm1.": "ln_1.",
        "norm2.": "ln_2.",
    }
    ours = {t + w: named[o + w] for t, o in names.items() for w in ("weight", "bias")}
    layer.load_state_dict({name: torch.tensor(p.detach().numpy()) for name, p in ours.items()})
    full = np.broadcast_to(mask, (B, nh, T, T))
    added = np.where(full, np.float32(0), -np.inf).astype(np.float32) if full.dtype == bool else full
    if is_causal:
        added = np.where(np.tril(np.ones((T, T), bool)), added, np.float32(-np.inf))
    tx = torch.tensor(x.detach().numpy(), requires_grad=True)
    ty = layer(tx, src_mask=torch.tensor(added.reshape(B * nh, T, T)))
    ty.backward(torch.tensor(dy))
    np.testing.assert_allclose(y.detach().numpy(), ty.detach().numpy(), atol=2e-6)
    np.testing.assert_allclose(grads[x].numpy(), tx.grad.numpy(), atol=5e-6)
    for name, p in layer.named_parameters():
        np.testing.assert_allclose(grads[ours[name]].numpy(), p.grad.numpy(), atol=2e-5)


def test_a_mask_goes_with_no_cache_and_repr_says_what_attention_it_is():
    block = nn.Block(8, 2, dropout=0.1)
    with mg.no_grad(), pytest.raises(ValueError, match="a KV cache or an attn_mask, not both"):
        block(mg.ones(1, 2, 8), nn.KVCache(1, 2, 4, 4, mg.ones(1)), mg.ones(2, 2))
    assert "SelfAttention(\n    n_head=2, is_causal=True, dropout=0.1\n" in repr(block)
    assert "is_causal=False" in repr(nn.SelfAttention(8, 2))
    assert "n_head=4, n_kv_head=2, is_causal=True" in repr(nn.GroupedQueryAttention(16, 4, 2))
