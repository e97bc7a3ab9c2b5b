"""The contenders of ``train_step_cpu.py``: the same GPT-2 and the same step in each library.

As a script it is the worker: ``train_step_contenders.py NAME PRESET PRODUCTS THREADS`` prints a JSON line when it is
warm. For each line with a number of steps on its input it then prints one with the seconds per step. PRODUCTS are in
float32 or bfloat16.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

LR, BETAS, WEIGHT_DECAY, MAX_NORM = 1e-3, (0.9, 0.99), 0.1, 1.0
WARM_STEPS = 3


@dataclass(frozen=True)
class Preset:
    """Sizes of a GPT-2 and its batch."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    batch_size: int
    vocab_size: int

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch_size * self.block_size

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Random tokens and targets (B, T), the same in every process."""
        data = np.random.default_rng(0).integers(0, self.vocab_size, (self.batch_size, self.block_size + 1))
        return np.ascontiguousarray(data[:, :-1]), np.ascontiguousarray(data[:, 1:])

    def weights(self) -> dict[str, np.ndarray]:
        """Initial weights by GPT-2's names, matrices (out, in), the same in every process."""
        C, random = self.n_embd, np.random.default_rng(1)
        shapes: dict[str, tuple[int, ...]] = {"wte.weight": (self.vocab_size, C), "wpe.weight": (self.block_size, C)}
        linears = {"attn.c_attn": (3 * C, C), "attn.c_proj": (C, C), "mlp.c_fc": (4 * C, C), "mlp.c_proj": (C, 4 * C)}
        for i in range(self.n_layer):
            for name, (out, in_) in linears.items():
                shapes[f"h.{i}.{name}.weight"], shapes[f"h.{i}.{name}.bias"] = (out, in_), (out,)
        weights = {
            name: 0.02 * random.standard_normal(shape, np.float32) if len(shape) == 2 else np.zeros(shape, np.float32)
            for name, shape in shapes.items()
        }
        for norm in [f"h.{i}.ln_{j}" for i in range(self.n_layer) for j in (1, 2)] + ["ln_f"]:
            weights[f"{norm}.weight"], weights[f"{norm}.bias"] = np.ones(C, np.float32), np.zeros(C, np.float32)
        return weights


# S is nanoGPT's CPU preset, M its GPU preset with a smaller batch, G a slice of GPT-2 124M; X is mostly overhead.
PRESETS = {
    "X": Preset(n_layer=2, n_head=2, n_embd=64, block_size=32, batch_size=8, vocab_size=65),
    "S": Preset(n_layer=4, n_head=4, n_embd=128, block_size=64, batch_size=12, vocab_size=65),
    "M": Preset(n_layer=6, n_head=6, n_embd=384, block_size=256, batch_size=16, vocab_size=65),
    "G": Preset(n_layer=2, n_head=12, n_embd=768, block_size=512, batch_size=2, vocab_size=50257),
}

Step = Callable[[], float]


def written_gpt(library: Any, preset: Preset) -> Any:
    """The GPT-2 as written by a user of torch or minigrad, the ``library``; of tokens and targets it gives the loss."""
    nn, F = library.nn, library.nn.functional
    C, heads = preset.n_embd, preset.n_head

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(C, 3 * C), nn.Linear(C, C)

        def forward(self, x: Any) -> Any:
            B, T, _ = x.shape
            q, k, v = (t.view(B, T, heads, C // heads).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C))

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_fc, self.c_proj = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

        def forward(self, x: Any) -> Any:
            return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(C), Attention(), nn.LayerNorm(C), MLP()

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(preset.vocab_size, C), nn.Embedding(preset.block_size, C)
            self.h = nn.ModuleList([Block() for _ in range(preset.n_layer)])
            self.ln_f = nn.LayerNorm(C)

        def forward(self, tokens: Any, targets: Any) -> Any:
            x = self.wte(tokens) + self.wpe(library.arange(tokens.shape[1], device=tokens.device))
            for block in self.h:
                x = block(x)
            logits = F.linear(self.ln_f(x), self.wte.weight)
            return F.cross_entropy(logits.view(-1, preset.vocab_size), targets.view(-1))

    return GPT()


def torch_gpt(preset: Preset) -> Any:
    """PyTorch's, with the preset's weights."""
    import torch

    model = written_gpt(torch, preset)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in preset.weights().items()})
    return model


def torch_adamw(model: Any) -> Any:
    """The fused AdamW, with weight decay for matrices only."""
    import torch

    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, fused=True)


def minigrad_gpt(preset: Preset) -> Any:
    """The GPT-2 of this library, with the preset's weights."""
    from minigrad.models import GPT2, GPT2Config

    model = GPT2(GPT2Config(preset.vocab_size, preset.block_size, preset.n_layer, preset.n_head, preset.n_embd))
    model.load_state_dict(preset.weights())
    return model


class Minigrad:
    """This library: its GPT-2, or the one that PyTorch's user writes too; the step in Python, or captured."""

    written = False
    captured = False

    @staticmethod
    def missing() -> str | None:
        """Why it cannot run, or None."""
        return None if importlib.util.find_spec("minigrad") else "pip install -e ."

    @classmethod
    def build(cls, preset: Preset, threads: int, device: str = "cpu") -> tuple[str, Step]:
        """The version, and a function that makes one step and returns its loss."""
        import minigrad
        from minigrad.distributed import SimpleTrainer, TrainingConfig
        from minigrad.optim import AdamW, decay_groups

        minigrad.set_num_threads(threads)
        model = (written_gpt(minigrad, preset) if cls.written else minigrad_gpt(preset)).to(device)
        model.load_state_dict(preset.weights())
        loss_of = model if cls.written else model.loss
        optimizer = AdamW(decay_groups(model.named_parameters(), WEIGHT_DECAY), lr=LR, betas=BETAS)
        trainer = SimpleTrainer.with_optimizer(TrainingConfig(max_grad_norm=MAX_NORM), optimizer)
        tokens, targets = (minigrad.from_numpy(array).to(device) for array in preset.batch())

        launch = trainer.capture(loss_of, model.named_parameters()) if cls.captured else None

        def step() -> float:
            if launch is not None:
                metrics = launch(tokens, targets).result()
            else:
                loss = loss_of(tokens, targets)
                metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item())
            assert metrics is not None
            return metrics.loss

        return minigrad.__version__, step


class MinigradCaptured(Minigrad):
    """The step captured."""

    captured = True


class MinigradWritten(Minigrad):
    """The model written by hand."""

    written = True


class MinigradWrittenCaptured(Minigrad):
    """Both."""

    written = captured = True


class MinigradBfloat16(Minigrad):
    """The same with the operands of products rounded to bfloat16."""

    @staticmethod
    def missing() -> str | None:
        """Why it cannot run, or None."""
        if (reason := Minigrad.missing()) is not None:
            return reason
        from minigrad.cpu_kernels.toolbox import bfloat16_product

        return None if bfloat16_product.AVAILABLE else "this CPU has no avx512_bf16"

    @classmethod
    def build(cls, preset: Preset, threads: int, device: str = "cpu") -> tuple[str, Step]:
        """The version, and a function that makes one step and returns its loss."""
        import minigrad

        minigrad.set_float32_matmul_precision("medium")
        return super().build(preset, threads, device)


class TorchEager:
    """PyTorch, eager, with what it recommends: fused AdamW and scaled_dot_product_attention."""

    compiled = False
    autocast = False  # to bfloat16

    @staticmethod
    def missing() -> str | None:
        """Why it cannot run, or None."""
        return None if importlib.util.find_spec("torch") else "pip install torch"

    @classmethod
    def build(cls, preset: Preset, threads: int, device: str = "cpu") -> tuple[str, Step]:
        """The version, and a function that makes one step and returns its loss."""
        import torch

        torch.set_num_threads(threads)
        model = torch_gpt(preset).to(device)
        optimizer = torch_adamw(model)
        tokens, targets = (torch.from_numpy(array).to(device) for array in preset.batch())
        forward = torch.compile(model) if cls.compiled else model

        def step() -> float:
            with torch.autocast(tokens.device.type, torch.bfloat16, enabled=cls.autocast):
                loss = forward(tokens, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            return float(loss.item())

        return torch.__version__, step


class TorchCompiled(TorchEager):
    """The same through torch.compile, which needs a C++ compiler."""

    compiled = True

    @staticmethod
    def missing() -> str | None:
        """Why it cannot run, or None."""
        return TorchEager.missing() or (None if shutil.which("c++") else "torch.compile needs a C++ compiler")


class TorchAutocast(TorchEager):
    """PyTorch, eager, within autocast to bfloat16."""

    autocast = True


class Jax:
    """JAX: the whole step as one ``jax.jit``, AdamW written out, its arguments donated."""

    @staticmethod
    def missing() -> str | None:
        """Why it cannot run, or None."""
        return None if importlib.util.find_spec("jax") else "pip install jax"

    @staticmethod
    def build(preset: Preset, threads: int, device: str = "cpu") -> tuple[str, Step]:
        """The version, and a function that makes one step and returns its loss. Threads are set before the start."""
        import jax
        import jax.numpy as jnp

        C, heads, T = preset.n_embd, preset.n_head, preset.block_size

        def linear(w: Any, name: str, x: Any) -> Any:
            return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

        def norm(w: Any, name: str, x: Any) -> Any:
            mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
            return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

        def loss_of(w: Any, tokens: Any, targets: Any) -> Any:
            B = tokens.shape[0]
            x = w["wte.weight"][tokens] + w["wpe.weight"]
            for i in range(preset.n_layer):
                qkv = linear(w, f"h.{i}.attn.c_attn", norm(w, f"h.{i}.ln_1", x))
                q, k, v = (part.reshape(B, T, heads, C // heads) for part in jnp.split(qkv, 3, -1))
                y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(B, T, C)
                x = x + linear(w, f"h.{i}.attn.c_proj", y)
                y = jax.nn.gelu(linear(w, f"h.{i}.mlp.c_fc", norm(w, f"h.{i}.ln_2", x)), approximate=True)
                x = x + linear(w, f"h.{i}.mlp.c_proj", y)
            logits = norm(w, "ln_f", x) @ w["wte.weight"].T
            chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
            return (jax.nn.logsumexp(logits, -1) - chosen).mean()

        def update(w: Any, m: Any, v: Any, t: Any, tokens: Any, targets: Any) -> Any:
            loss, g = jax.value_and_grad(loss_of)(w, tokens, targets)
            total = jnp.sqrt(sum((x * x).sum() for x in g.values()))
            g = {name: x * jnp.minimum(1.0, MAX_NORM / (total + 1e-6)) for name, x in g.items()}
            m = {name: BETAS[0] * m[name] + (1 - BETAS[0]) * x for name, x in g.items()}
            v = {name: BETAS[1] * v[name] + (1 - BETAS[1]) * x * x for name, x in g.items()}
            after = {}
            for name, x in w.items():
                decay = 1 - LR * WEIGHT_DECAY if x.ndim >= 2 else 1.0
                mean, square = m[name] / (1 - BETAS[0] ** t), v[name] / (1 - BETAS[1] ** t)
                after[name] = decay * x - LR * mean / (jnp.sqrt(square) + 1e-8)
            return after, m, v, t + 1, loss

        compiled = jax.jit(update, donate_argnums=(0, 1, 2))
        w = {name: jnp.asarray(array) for name, array in preset.weights().items()}
        m, v = ({name: jnp.zeros_like(x) for name, x in w.items()} for _ in range(2))
        state = [w, m, v, jnp.float32(1)]
        tokens, targets = (jnp.asarray(array.astype(np.int32)) for array in preset.batch())

        def step() -> float:
            *state[:], loss = compiled(*state, tokens, targets)
            return float(loss)

        return jax.__version__, step


class Tinygrad:
    """tinygrad: the whole step under ``TinyJit``, with its AdamW."""

    @staticmethod
    def missing() -> str | None:
        """Why it cannot run, or None."""
        if importlib.util.find_spec("tinygrad") is None:
            return "pip install tinygrad"
        return None if shutil.which("clang") else "tinygrad needs clang"

    @staticmethod
    def build(preset: Preset, threads: int, device: str = "cpu") -> tuple[str, Step]:
        """The version, and a function that makes one step and returns its loss."""
        import importlib.metadata

        os.environ["DEV"] = "CPU"  # read at the import
        from tinygrad import Tensor, TinyJit
        from tinygrad.helpers import Context
        from tinygrad.nn.optim import AdamW, OptimizerGroup

        C, heads, T = preset.n_embd, preset.n_head, preset.block_size
        w = {name: Tensor(array).contiguous().realize() for name, array in preset.weights().items()}
        tokens, targets = (Tensor(array.astype(np.int32)).realize() for array in preset.batch())
        options = {"lr": LR, "b1": BETAS[0], "b2": BETAS[1]}
        optimizer = OptimizerGroup(
            AdamW([x for x in w.values() if x.ndim >= 2], weight_decay=WEIGHT_DECAY, **options),
            AdamW([x for x in w.values() if x.ndim < 2], weight_decay=0.0, **options),
        )

        def linear(name: str, x: Any) -> Any:
            return x.linear(w[f"{name}.weight"].transpose(), w[f"{name}.bias"])

        def norm(name: str, x: Any) -> Any:
            return x.layernorm(-1, 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

        @TinyJit
        def compiled() -> Any:
            with Context(TRAINING=1):
                optimizer.zero_grad()
                B = preset.batch_size
                x = w["wte.weight"][tokens] + w["wpe.weight"]
                for i in range(preset.n_layer):
                    qkv = linear(f"h.{i}.attn.c_attn", norm(f"h.{i}.ln_1", x))
                    q, k, v = (p.reshape(B, T, heads, C // heads).transpose(1, 2) for p in qkv.chunk(3, -1))
                    y = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
                    x = x + linear(f"h.{i}.attn.c_proj", y)
                    x = x + linear(f"h.{i}.mlp.c_proj", linear(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x)).gelu())
                logits = norm("ln_f", x) @ w["wte.weight"].transpose()
                loss = logits.reshape(-1, preset.vocab_size).sparse_categorical_crossentropy(targets.reshape(-1))
                loss.backward()
                gradients = [p for p in optimizer.params if p.grad is not None]
                total = sum((p.grad.square().sum() for p in gradients), Tensor(0.0)).sqrt()
                for p in gradients:
                    p.grad = p.grad * (MAX_NORM / (total + 1e-6)).minimum(1.0)
                return loss.realize(*optimizer.schedule_step())

        return importlib.metadata.version("tinygrad"), lambda: float(compiled().item())


CONTENDERS: dict[str, Any] = {
    "minigrad": Minigrad,
    "minigrad-captured": MinigradCaptured,
    "minigrad-user": MinigradWritten,
    "minigrad-user-captured": MinigradWrittenCaptured,
    "torch-eager": TorchEager,
    "torch-compile": TorchCompiled,
    "jax": Jax,
    "tinygrad": Tinygrad,
}
BFLOAT16_CONTENDERS: dict[str, Any] = {"minigrad": MinigradBfloat16, "torch-eager": TorchAutocast}


def work(name: str, preset: Preset, products: str, threads: int) -> None:
    """Serve the benchmark on standard input and output."""
    started = time.perf_counter()
    contenders = CONTENDERS if products == "float32" else BFLOAT16_CONTENDERS
    version, step = contenders[name].build(preset, threads)
    losses = [step()]
    first = time.perf_counter() - started
    losses += [step() for _ in range(WARM_STEPS - 1)]
    begin = time.perf_counter()
    losses.append(step())
    seconds = time.perf_counter() - begin
    answer({"version": version, "first_step_seconds": first, "seconds": seconds, "losses": losses})
    for line in sys.stdin:
        step()  # the first after a pause finds cold caches
        begin = time.perf_counter()
        for _ in range(int(line)):
            step()
        seconds = (time.perf_counter() - begin) / int(line)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer({"seconds": seconds, "peak_megabytes": peak})


def answer(record: dict[str, object]) -> None:
    """One JSON line to the benchmark."""
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    work(sys.argv[1], PRESETS[sys.argv[2]], sys.argv[3], int(sys.argv[4]))
