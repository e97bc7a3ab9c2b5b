"""The settings of train_gpt2.py: GPT-2's sizes and the usual recipe, and what its speed is compared with."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from char_run import Settings, setting
from command_line import UsageError
from text_tokenizers import tokenizer_of

import minigrad
from minigrad.device import Device
from minigrad.distributed import SimpleTrainer
from minigrad.models import GPT2, CausalLM, GPT2Config, from_pretrained

SIZES = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
PRESETS: dict[str, dict[str, Any]] = {
    "gpt2": {},  # the defaults below: 124M
    "gpt2-medium": {"n_layer": 24, "n_head": 16, "n_embd": 1024, "lr": 3e-4, "min_lr": 3e-5},  # 350M
    "tiny": {
        "n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 64, "batch_size": 8, "grad_accum": 2, "steps": 200,
        "warmup": 20, "lr": 3e-3, "min_lr": 3e-4, "eval_every": 50, "eval_batches": 4, "sample_every": 100,
        "save_every": 100,
    },
}  # fmt: skip
DTYPES = ("bfloat16", "float32")


@dataclasses.dataclass
class GPT2Settings(Settings):
    """Everything that decides the training run of a GPT-2. The defaults are those of 124M parameters, and 10 billion
    tokens in steps of half a million, as llm.c trains it."""

    family: ClassVar[str] = "gpt2"
    label: ClassVar[str] = "GPT-2"
    script: ClassVar[str] = "train_gpt2.py"
    sampler: ClassVar[str] = "generate.py"
    unit: ClassVar[str] = "token"

    steps: int = setting(19_000, "optimizer steps")
    batch_size: int = setting(64, "sequences per micro-batch, of all ranks together", fixed=True)
    block_size: int = setting(1024, "tokens per sequence, the longest context", fixed=True)
    grad_accum: int = setting(8, "micro-batches per step", fixed=True)
    n_layer: int = setting(12, "transformer blocks", fixed=True)
    n_head: int = setting(12, "attention heads", fixed=True)
    n_embd: int = setting(768, "channels", fixed=True)
    lr: float = setting(6e-4, "highest learning rate (cosine schedule)", fixed=True)
    min_lr: float = setting(6e-5, "last learning rate", fixed=True)
    warmup: int = setting(700, "steps over which the learning rate rises (not more than --steps)", fixed=True)
    beta2: float = setting(0.95, "AdamW's decay of squared gradients", fixed=True)
    val_fraction: float = setting(0.05, "part of a text held back for validation (shards have theirs)", fixed=True)
    eval_every: int = setting(250, "steps between validations")
    sample_chars: int = setting(100, "tokens per sample")
    preset: str = setting("gpt2", f"sizes and recipe to begin with: {', '.join(PRESETS)}", fixed=True)
    vocab_size: int = setting(0, "rows of the embedding; 0: the tokenizer's, rounded up to 128", fixed=True)
    dtype: str = setting(
        "bfloat16", "of products and activations, bfloat16 or float32; weights are float32", fixed=True
    )
    checkpoint_blocks: bool = setting(False, "compute activations again in backward: less memory, a third more work")

    def check(self) -> None:
        """Raise UsageError for values that no part of the training would refuse more clearly."""
        super().check()
        if self.preset not in PRESETS:
            raise UsageError(f"--preset {self.preset}: expected one of {', '.join(PRESETS)}")
        if self.dtype not in DTYPES:
            raise UsageError(f"--dtype {self.dtype}: expected {' or '.join(DTYPES)}")
        if self.vocab_size < 0:
            raise UsageError(f"--vocab-size is {self.vocab_size}, expected 0 or the number of rows")

    @staticmethod
    def tokenizer_of(state: Any) -> Any:
        """The tokenizer of a checkpoint; raises ValueError for a state that is none."""
        return tokenizer_of(state)

    def model(self, vocab_size: int) -> CausalLM:
        """A new model. Its embedding has at least ``vocab_size`` rows; raises ValueError for fewer."""
        rows = self.vocab_size or -(-vocab_size // 128) * 128  # tensor cores like whole tiles; 50257 becomes 50304
        if rows < vocab_size:
            raise UsageError(f"--vocab-size is {rows}, but the tokenizer has {vocab_size:,} tokens")
        sizes = (self.block_size, self.n_layer, self.n_head, self.n_embd)
        return GPT2(GPT2Config(rows, *sizes, dropout=self.dropout, checkpoint_blocks=self.checkpoint_blocks))


def from_flags(flags: dict[str, Any]) -> GPT2Settings:
    """The preset's settings with those of the command line; raises UsageError for values out of range."""
    preset = flags.get("preset", "gpt2")
    settings = GPT2Settings(**{**PRESETS.get(preset, {}), **flags})
    settings.check()
    return settings


def initial(folder: str, flags: dict[str, Any]) -> tuple[dict[str, Any], GPT2]:
    """A published GPT-2 to begin with, and ``flags`` with its sizes.

    Raises UsageError for a flag that says another size, and for a model that differs from GPT-2 in more than sizes;
    CheckpointError for a folder that does not hold one.
    """
    model = from_pretrained(Path(folder))
    if not isinstance(model, GPT2):
        raise UsageError(f"--init-from {folder} is a {type(model).__name__}; train_gpt2.py trains GPT-2")
    config = model.config
    sizes = {name: getattr(config, name) for name in SIZES}
    for name, size in sizes.items():
        if flags.get(name, size) != size:
            raise UsageError(f"--init-from {folder} has {name} {size}; leave the flag out, or begin without it")
    plain = GPT2Config(**sizes)
    for name in ("bias", "tied", "n_inner", "eps"):
        if getattr(config, name) != getattr(plain, name):
            found, expected = getattr(config, name), getattr(plain, name)
            raise UsageError(f"--init-from {folder}: {name} is {found}, GPT-2's is {expected}")
    return {**flags, **sizes}, model


# ---------------------------------------------------------------------- model FLOP/s utilisation

# Dense products of bfloat16 with float32 sums, TFLOP/s, from NVIDIA's data sheets; the first name that fits counts.
TENSOR_CORES = (
    ("H100 PCIe", 756), ("H100 NVL", 835), ("H100", 989), ("H200", 989), ("GH200", 989), ("B200", 2250), ("A100", 312),
    ("A40", 150), ("RTX A6000", 155), ("A10G", 70), ("A10", 125), ("L40S", 362), ("L4", 121), ("RTX 4090", 165),
    ("RTX 3090", 71),
)  # fmt: skip


def peak_flops(device: Device, dtype: str) -> tuple[float, str]:
    """The operations a second that the device could make, and where the number is from.

    A known card's data sheet for bfloat16; else what a large product reaches here.
    """
    if device.type == "cuda":
        name = minigrad.cuda.get_device_name(device)
        known = next((rate for part, rate in TENSOR_CORES if part in name), None)
        if dtype == "bfloat16" and known is not None:
            return known * 1e12, f"{name}'s data sheet"
        return product_rate(device, dtype, 4096), f"a product of {dtype} here"
    return product_rate(device, "float32", 1024), "a product of float32 here"  # which bfloat16 is computed as


def product_rate(device: Device, dtype: str, side: int) -> float:
    """Operations a second of a product of square matrices, the best of five."""
    x = minigrad.ones(side, side, dtype=getattr(minigrad, dtype), device=device)
    wait: Callable[[], object] = minigrad.cuda.synchronize if device.type == "cuda" else lambda: None
    best = float("inf")
    with minigrad.no_grad():
        for _ in range(6):  # the first one may compile
            wait()
            before = time.perf_counter()
            x @ x
            wait()
            best = min(best, time.perf_counter() - before)
    return 2 * side**3 / best


def build(
    settings: GPT2Settings, vocab_size: int, device: Device, trainer: Callable[..., SimpleTrainer], start: GPT2 | None
) -> tuple[CausalLM, SimpleTrainer]:
    """A new model and its trainer, with the weights of ``start``."""
    model, made = settings.build(vocab_size, device, trainer)
    if start is not None:
        model.load_state_dict(start.state_dict())
    return model, made
