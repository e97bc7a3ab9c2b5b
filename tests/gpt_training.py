"""A training run that is written twice, with minigrad and with PyTorch: same weights, same batches, same recipe.

A GPT of 2 layers and 32 channels is trained for 100 steps on random positions of 100 random tokens, which it learns by
heart: AdamW with decay for matrices only, clipping, warmup and cosine. Weights and data come from minigrad's Philox
generator, so both sides, and every machine, make the same ones.
"""

import math

import numpy as np

import minigrad as mg
from minigrad import distributed
from minigrad.cpu_kernels import random
from minigrad.optim import AdamW, CosineAnnealing, decay_groups

CONFIG = mg.models.GPT2Config(vocab_size=65, block_size=16, n_layer=2, n_head=2, n_embd=32)
STEPS, BATCH, SEED = 100, 8, 1234
SCHEDULE = CosineAnnealing(base_lr=1e-2, min_lr=1e-3, warmup_steps=10, total_steps=STEPS)
BETAS, EPS, WEIGHT_DECAY, MAX_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0

Curves = dict[str, list[float]]


def initial_weights() -> dict[str, np.ndarray]:
    """float64, by name: normal with deviation 0.08 around 0, or around 1 for the weights of norms."""
    shapes = {name: p.shape for name, p in mg.models.GPT2(CONFIG).named_parameters()}
    return {
        name: 0.08 * random.normal(shape, np.float64, SEED, i) + (".ln_" in f".{name}" and name.endswith("weight"))
        for i, (name, shape) in enumerate(shapes.items())
    }


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """(tokens, targets), each (BATCH, T) int64, for every step."""
    T = CONFIG.block_size
    corpus = random.integers(0, CONFIG.vocab_size, (100,), SEED, 1000)
    starts = random.integers(0, len(corpus) - T, (STEPS, BATCH), SEED, 1001)
    windows = corpus[starts[:, :, None] + np.arange(T + 1)]  # (STEPS, BATCH, T + 1)
    return [(np.ascontiguousarray(w[:, :-1]), np.ascontiguousarray(w[:, 1:])) for w in windows]


def train_minigrad(dtype: str) -> Curves:
    """Losses and gradient norms (before clipping) of every step."""
    model = mg.models.GPT2(CONFIG)
    model.to(dtype)
    model.load_state_dict(initial_weights())
    optimizer = AdamW(decay_groups(model.named_parameters(), WEIGHT_DECAY), lr=SCHEDULE.base_lr, betas=BETAS, eps=EPS)
    trainer = distributed.SimpleTrainer(distributed.TrainingConfig(max_grad_norm=MAX_NORM), optimizer, SCHEDULE)
    losses, norms = [], []
    for tokens, targets in batches():
        loss = model.loss(mg.from_numpy(tokens), mg.from_numpy(targets))
        metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item())
        assert metrics is not None and metrics.grad_norm is not None
        losses.append(metrics.loss)
        norms.append(metrics.grad_norm)
    return {"losses": losses, "grad_norms": norms}


def train_torch(dtype: str) -> Curves:
    """The same in PyTorch, written out with its functions."""
    import torch
    import torch.nn.functional as F

    w = {n: torch.tensor(v, dtype=getattr(torch, dtype)).requires_grad_() for n, v in initial_weights().items()}
    C, nh = CONFIG.n_embd, CONFIG.n_head

    def norm(x, name: str):
        return F.layer_norm(x, (C,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def linear(x, name: str):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def loss_of(tokens, targets):
        B, T = tokens.shape
        x = F.embedding(tokens, w["wte.weight"]) + w["wpe.weight"][:T]
        for i in range(CONFIG.n_layer):
            q, k, v = linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(C, dim=2)
            q, k, v = (t.view(B, T, nh, C // nh).transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
            x = x + linear(y, f"h.{i}.attn.c_proj")
            y = F.gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
            x = x + linear(y, f"h.{i}.mlp.c_proj")
        logits = norm(x, "ln_f") @ w["wte.weight"].T
        return F.cross_entropy(logits.view(-1, CONFIG.vocab_size), targets.view(-1))

    groups = [
        {"params": [p for p in w.values() if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in w.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=SCHEDULE.base_lr, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step, (tokens, targets) in enumerate(batches()):
        optimizer.zero_grad()
        loss = loss_of(torch.from_numpy(tokens), torch.from_numpy(targets))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(w.values()), MAX_NORM).item())
        progress = max(step - SCHEDULE.warmup_steps, 0) / (STEPS - SCHEDULE.warmup_steps)
        cosine = SCHEDULE.min_lr + (SCHEDULE.base_lr - SCHEDULE.min_lr) * (1 + math.cos(math.pi * progress)) / 2
        for group in optimizer.param_groups:
            group["lr"] = SCHEDULE.base_lr * (step + 1) / 10 if step < SCHEDULE.warmup_steps else cosine
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "grad_norms": norms}
