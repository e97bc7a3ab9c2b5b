"""The contenders of ``generate_cpu.py``: the same GPT-2 with a key-value cache, and the same sampling.

As a script it is the worker, as ``train_step_contenders.py``: ``generate_contenders.py NAME PRESET BATCH THREADS``. A
unit of work is one text: a prompt of one token, continued until the context is full.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from train_step_contenders import PRESETS, Minigrad, Preset, TorchEager, answer, minigrad_gpt, torch_gpt

TEMPERATURE, TOP_K = 0.8, 20

Generate = Callable[[float], np.ndarray]  # temperature (0: always the most likely token) -> tokens (B, block_size)


def prompt(preset: Preset, batch: int) -> np.ndarray:
    """One token for each text (B, 1)."""
    return np.resize(preset.batch()[0][:, :1], (batch, 1))


class MinigradGeneration(Minigrad):
    """This library's ``generate``."""

    @staticmethod
    def build(preset: Preset, batch: int, threads: int) -> tuple[str, Generate]:
        """The version, and a function that generates texts."""
        import minigrad

        minigrad.set_num_threads(threads)
        model, tokens = minigrad_gpt(preset), minigrad.from_numpy(prompt(preset, batch))
        new = preset.block_size - 1
        return minigrad.__version__, lambda temperature: model.generate(
            tokens, new, temperature=temperature, top_k=TOP_K
        ).numpy()


class TorchGeneration(TorchEager):
    """PyTorch, eager: nanoGPT's loop with a cache, into which each layer writes its keys and values in place."""

    @staticmethod
    def build(preset: Preset, batch: int, threads: int) -> tuple[str, Generate]:
        """The version, and a function that generates texts."""
        import torch
        from torch.nn import functional as F

        torch.set_num_threads(threads)
        model = torch_gpt(preset).eval()
        C, heads, length = preset.n_embd, preset.n_head, preset.block_size
        shape = (batch, heads, length, C // heads)
        start = torch.from_numpy(prompt(preset, batch))
        positions = torch.arange(length)

        def next_logits(token: torch.Tensor, t: int, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
            """Tokens (B, 1) at position t -> logits (B, vocab)."""
            x = model.wte(token) + model.wpe(positions[t : t + 1])
            for block, (keys, values) in zip(model.h, caches, strict=True):
                q, k, v = block.attn.c_attn(block.ln_1(x)).view(batch, 1, 3, heads, C // heads).unbind(2)
                keys[:, :, t], values[:, :, t] = k[:, 0], v[:, 0]
                q = q.transpose(1, 2)
                y = F.scaled_dot_product_attention(q, keys[:, :, : t + 1], values[:, :, : t + 1])
                x = x + block.attn.c_proj(y.transpose(1, 2).reshape(batch, 1, C))
                x = x + block.mlp(block.ln_2(x))
            return F.linear(model.ln_f(x), model.wte.weight)[:, -1]

        @torch.inference_mode()
        def generate(temperature: float) -> np.ndarray:
            caches = [(torch.empty(shape), torch.empty(shape)) for _ in model.h]
            tokens = start
            for t in range(length - 1):
                logits = next_logits(tokens[:, -1:], t, caches)
                if temperature == 0:
                    chosen = logits.argmax(-1, keepdim=True)
                else:
                    logits = logits / temperature
                    smallest = logits.topk(min(TOP_K, logits.shape[-1])).values[:, -1:]
                    logits = logits.masked_fill(logits < smallest, -float("inf"))
                    chosen = torch.multinomial(logits.softmax(-1), 1)
                tokens = torch.cat([tokens, chosen], dim=1)
            return np.asarray(tokens)

        return torch.__version__, generate


CONTENDERS: dict[str, Any] = {"minigrad": MinigradGeneration, "torch-eager": TorchGeneration}


def work(name: str, preset: Preset, batch: int, threads: int) -> None:
    """Serve the benchmark on standard input and output."""
    started = time.perf_counter()
    version, generate = CONTENDERS[name].build(preset, batch, threads)
    greedy = generate(0.0)  # the same in each library
    first = time.perf_counter() - started
    generate(TEMPERATURE)
    begin = time.perf_counter()
    generate(TEMPERATURE)
    seconds = time.perf_counter() - begin
    record = {"version": version, "first_text_seconds": first, "seconds": seconds}
    answer({**record, "greedy": greedy.tolist()})
    for line in sys.stdin:
        generate(TEMPERATURE)  # the first after a pause finds cold caches
        begin = time.perf_counter()
        for _ in range(int(line)):
            generate(TEMPERATURE)
        seconds = (time.perf_counter() - begin) / int(line)
        answer({"seconds": seconds, "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})


if __name__ == "__main__":
    work(sys.argv[1], PRESETS[sys.argv[2]], int(sys.argv[3]), int(sys.argv[4]))
