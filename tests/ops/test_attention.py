"""Scaled dot-product attention: plain, causal, grouped heads, masks, dropout; fused and composite agree."""

import math

import numpy as np
import pytest
from harness import NORMAL, Op, booleans, every_check, functional, host, simulated, torch
from refusals import raises

import minigrad as mg
import minigrad.nn.functional as F


def reference(q, k, v, mask=None, causal=False, scale=None):
    """The T x T matrix and all."""
    repeat = q.shape[1] // max(k.shape[1], 1)
    k, v = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
    scores = (1 / math.sqrt(q.shape[-1]) if scale is None else scale) * (q @ np.swapaxes(k, -1, -2))
    if causal:
        mask = np.tri(*scores.shape[-2:], dtype=bool)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    top = scores.max(-1, keepdims=True, initial=-1e30)
    p = np.exp(scores - top)
    total = p.sum(-1, keepdims=True)
    return np.divide(p, total, out=np.zeros_like(p), where=total > 0) @ v


def heads(*sizes):
    """(B, H, Hkv, Tq, Tk, D) -> the shapes of q, k, v."""
    return [((B, H, Tq, D), (B, Hkv, Tk, D), (B, Hkv, Tk, D)) for B, H, Hkv, Tq, Tk, D in sizes]


SIZES = heads((1, 1, 1, 1, 1, 1), (2, 2, 2, 5, 5, 4), (1, 2, 2, 3, 7, 4), (1, 1, 1, 7, 3, 4), (1, 2, 2, 70, 70, 16))
GROUPED = heads((2, 4, 2, 5, 5, 4), (1, 6, 1, 3, 4, 2))
OTHER_VALUES = [((2, 2, 5, 4), (2, 2, 3, 4), (2, 2, 3, size)) for size in (2, 7)]  # not of the keys' size
NONE = heads((0, 2, 2, 3, 3, 4), (1, 2, 2, 0, 3, 4))
LONG, SHORTER = heads((1, 2, 2, 70, 70, 16), (1, 2, 2, 17, 17, 16))  # of the latter too, not all rows fit one block


def case(name, shapes, domains=NORMAL, **options):
    return functional(
        name,
        lambda f, *x: f.scaled_dot_product_attention(*x, **options),
        lambda *x: reference(*x, causal=options.get("is_causal", False), scale=options.get("scale")),
        shapes,
        domains,
        rounding=128,
        refuses=("int64",) if domains is NORMAL else (),
        small_shapes=[SHORTER if s == LONG else s for s in shapes],
    )


MASKED = [(*heads((2, 2, 2, 3, 5, 4))[0], mask) for mask in ((3, 5), (2, 2, 3, 5), (2, 1, 1, 5))]
MASK, ADDED = ((NORMAL, NORMAL, NORMAL, domain) for domain in (booleans, NORMAL))
GROUPED_MASKED = [(*GROUPED[0], (5, 5))]


def packed(name, **options):
    return Op(
        name,
        lambda qkv: F.packed_attention(qkv, **options),
        lambda qkv: reference(*np.moveaxis(qkv, 2, 0).swapaxes(2, 3), causal=options["is_causal"]).swapaxes(1, 2),
        lambda qkv: torch.nn.functional.scaled_dot_product_attention(
            *qkv.permute(2, 0, 3, 1, 4), is_causal=options["is_causal"]
        ).transpose(1, 2),
        [((2, 5, 3, 2, 4),), ((1, 70, 3, 2, 16),), ((0, 3, 3, 2, 4),), ((2, 0, 3, 2, 4),)],
        rounding=128,
        small_shapes=[((2, 5, 3, 2, 4),), ((1, 17, 3, 2, 16),), ((0, 3, 3, 2, 4),), ((2, 0, 3, 2, 4),)],
        refuses=("int64", "int32", "uint8", "bool"),
    )


OPS = [
    packed("packed", is_causal=False), packed("packed_causal", is_causal=True), case("attention", [*SIZES, *NONE]),
    case("causal", [*SIZES, *NONE], is_causal=True), case("scale", SIZES[1:3], scale=0.3),
    case("other_values", OTHER_VALUES, is_causal=True), case("grouped", GROUPED, enable_gqa=True),
    case("grouped_causal", GROUPED, enable_gqa=True, is_causal=True), case("bool_mask", MASKED, MASK),
    case("added_mask", MASKED, ADDED), case("grouped_bool_mask", GROUPED_MASKED, MASK, enable_gqa=True),
]  # fmt: skip


test_op = every_check(OPS)


def random_heads(device, B=2, H=2, Hkv=2, Tq=5, Tk=5, D=4, requires_grad=True, dtype="float64"):
    rng = np.random.default_rng(0)
    shapes = heads((B, H, Hkv, Tq, Tk, D))[0]
    return [mg.tensor(rng.standard_normal(s).astype(dtype), device=device, requires_grad=requires_grad) for s in shapes]


def test_large_scores_do_not_overflow(device):
    q, k, v = random_heads(device, dtype="float32")
    y = F.scaled_dot_product_attention(q * 1000, k, v, is_causal=True)
    assert np.isfinite(host(y)).all()
    assert all(np.isfinite(host(g)).all() for g in y.sum().backward().values())


@pytest.mark.parametrize("kind", ["bool", "added"])
def test_a_query_that_sees_nothing_gives_0(kind, device):
    """Not NaN, in value and gradient, as in PyTorch."""
    q, k, v = random_heads(device)
    mask = mg.ones(5, 5, device=device).tril(-1).bool()
    if kind == "added":
        mask = mg.zeros(5, 5, device=device).masked_fill(~mask, float("-inf"))
    y = F.scaled_dot_product_attention(q, k, v, mask)
    assert (host(y)[:, :, 0] == 0).all()
    assert (host(y)[:, :, 1:] != 0).all()
    grads = y.sum().backward()
    assert all(np.isfinite(host(grads[x])).all() for x in (q, k, v))
    assert (host(grads[q])[:, :, 0] == 0).all()


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"enable_gqa": True}], ids=str)
def test_dropout_is_a_mask_on_the_probabilities(options, device):
    """With v the identity the result is P m / (1 - p): read the mask off it, then check value and gradients with it."""
    B, H, T, p = 2, 2, 16, 0.3
    q, k, v = random_heads(device, B, H, 1 if options.get("enable_gqa") else H, T, T, T)

    def run(q, k, v, rate=p):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=rate, generator=mg.Generator(4), **options)

    identity = mg.eye(T, dtype="float64", device=device).expand(*k.shape).contiguous()
    p_full, p_dropped = host(run(q, k, identity, 0.0)), host(run(q, k, identity))
    kept = p_dropped != 0
    np.testing.assert_allclose(p_dropped, p_full * kept / (1 - p), atol=1e-14)
    possible = p_full != 0
    assert abs(kept[possible].mean() - (1 - p)) < 0.1
    assert len({row.tobytes() for row in kept.reshape(-1, T)}) > B * H  # heads and rows have masks of their own

    def composite(q, k, v):
        repeat = H // k.shape[1]
        k, v = (mg.cat([x] * repeat, 1) if repeat > 1 else x for x in (k, v))
        scores = q @ k.mT / math.sqrt(T)
        if options.get("is_causal"):
            scores = scores.masked_fill(~mg.ones(T, T, device=device).tril().bool(), float("-inf"))
        return (scores.softmax(-1) * mg.tensor(kept / (1 - p), device=device)) @ v

    one, two = run(q, k, v), composite(q, k, v)
    np.testing.assert_allclose(host(one), host(two), atol=1e-13)
    w = mg.tensor(np.random.default_rng(1).standard_normal(one.shape), device=device)
    first, second = one.backward(w), two.backward(w)
    for x in (q, k, v):
        np.testing.assert_allclose(host(first[x]), host(second[x]), atol=1e-12)


def test_dropout_with_a_mask(device):
    q, k, v = random_heads(device)
    mask = mg.ones(5, 5, device=device).tril().bool()
    generator = mg.Generator(1)
    y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.5, generator=generator)
    assert generator.offset == 1
    assert (host(y) != host(F.scaled_dot_product_attention(q, k, v, mask))).any()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_packed_attention_is_attention_of_its_parts_to_the_bit(device, dropout):
    T = 9 if simulated(device) else 37
    mg.manual_seed(5)
    qkv = mg.randn(2, T, 3, 4, 8, device=device, requires_grad=True)
    weight = mg.randn(2, T, 4, 8, device=device)
    mg.manual_seed(6)
    y = F.packed_attention(qkv, dropout, is_causal=True)
    mg.manual_seed(6)
    q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
    expected = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True).transpose(1, 2)
    np.testing.assert_array_equal(host(y), host(expected))
    found, wanted = ((z * weight).sum().backward()[qkv] for z in (y, expected))
    np.testing.assert_array_equal(host(found), host(wanted))
    mg.manual_seed(6)
    flat = F.packed_attention(qkv.reshape(2, T, 96), dropout, is_causal=True, n_head=4)  # as the projection gives it
    np.testing.assert_array_equal(host(flat), host(expected).reshape(2, T, 32))
    found = (flat * weight.reshape(2, T, 32)).sum().backward()[qkv]
    np.testing.assert_array_equal(host(found), host(wanted))


def test_errors(device):
    q, k, v = random_heads(device, H=4, Hkv=4, requires_grad=False)
    raises(ValueError, "batch, key and value sizes must agree", F.scaled_dot_product_attention, q, k[:1], v[:1])
