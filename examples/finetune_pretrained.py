"""Train a published model further, on any text: GPT-2, Llama or SmolLM2 from a local folder.

    python examples/finetune_pretrained.py FOLDER                    on Python's own documentation
    python examples/finetune_pretrained.py FOLDER --text notes.txt docs/
    python examples/generate.py finetuned/NAME --prompt "The "       writes with the result

FOLDER holds config.json, model.safetensors (or shards) and a tokenizer.json (needs the extra `bpe`). The result has
the same form: generate.py and Hugging Face's transformers load it. Training ends after --steps or --minutes, whichever
comes first; Ctrl-C ends it too, and what was learned so far is saved.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loading  # noqa: F401  # first
import numpy as np
from command_line import BAR, Parser, RunError, UsageError, as_typed, choose_device, how_to_run, run_cli
from estimate import announced
from pretrained_folder import copy_companions, is_pretrained, load_pretrained
from tqdm.auto import tqdm

import minigrad
from minigrad import Tensor
from minigrad.data import FixedBatches, RandomBatches, load_corpus, train_val_split
from minigrad.distributed import NonFiniteLossError, SimpleTrainer, TrainingConfig
from minigrad.distributed.train.signals import interrupts, what_is_lost
from minigrad.models import CausalLM, GPT2Config
from minigrad.optim import AdamW, LinearWarmup, NonFiniteGradientError, decay_groups


def main() -> int:
    """Parse the flags, load, train, save."""
    parser = Parser(__doc__)
    add_flags(parser, lr=5e-5)

    def save(model: CausalLM, source: Path, out: Path) -> None:
        model.save_pretrained(out)
        copy_companions(source, out)

    return finetune(parser.parse(), lambda model: None, save)


def add_flags(parser: Parser, lr: float) -> None:
    """The flags of every script that trains a model further."""
    parser.add_argument("folder", help="of the model to start from")
    parser.add_argument("--text", nargs="+", default=None, metavar="PATH", help="text files, folders, or: shakespeare")
    parser.add_argument("--out", default=None, metavar="FOLDER", help="where to save (default finetuned/NAME)")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps at most (default 100)")
    parser.add_argument("--minutes", type=float, default=2.0, help="minutes of training at most (default 2)")
    parser.add_argument("--batch-size", type=int, default=4, help="sequences per step (default 4)")
    parser.add_argument("--block-size", type=int, default=128, help="tokens per sequence (default 128)")
    parser.add_argument("--lr", type=float, default=lr, help=f"learning rate after the warmup (default {lr:g})")
    parser.add_argument("--warmup", type=int, default=10, help="steps over which it rises (default 10)")
    parser.add_argument("--weight-decay", type=float, default=0.01, help="of matrices (default 0.01)")
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout probability (default 0)")
    parser.add_argument("--eval-batches", type=int, default=4, help="batches per validation (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="of batches and dropout (default 0)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")


def finetune(
    args: argparse.Namespace,
    prepare: Callable[[CausalLM], None],
    save: Callable[[CausalLM, Path, Path], None],
) -> int:
    """Load, prepare the model, train what is not frozen, and save the model of a folder into another."""
    device = choose_device(args.device)
    for name in ("steps", "batch_size", "block_size", "eval_batches"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(args, name)}, expected at least 1")
    if not args.minutes > 0:
        raise UsageError(f"--minutes is {args.minutes}, expected a number above 0")
    source, out = Path(args.folder), new_folder(args.out, Path(args.folder))
    try:
        model, tokenizer = load_pretrained(source, device, args.dropout)
        prepare(model)
        optimizer = AdamW(decay_groups(trained(model), args.weight_decay), lr=args.lr)
        schedule = LinearWarmup(args.lr, args.warmup)
        text: Any = "pydoc" if args.text is None else args.text[0] if args.text == ["shakespeare"] else args.text
        corpus = load_corpus(text)
        T = min(args.block_size, model.config.block_size)
        # As plain text: what looks like a special token in it is none.
        tokens = tokenizer.encode(corpus.text, special_tokens=False)
        train, val = train_val_split(tokens, block_size=T)
        batches = RandomBatches(train, args.batch_size, T, args.seed)
        val_batches = FixedBatches(val, args.batch_size, T, args.eval_batches)
        minigrad.manual_seed(args.seed)
        sizes = GPT2Config(model.config.vocab_size, T, model.config.n_layer, 1, model.config.n_embd)
        needs = announced(sizes, model.num_parameters(), args.batch_size, args.steps, device, ["block_size"])
    except ValueError as error:
        raise UsageError(error) from error
    parameters = f"{model.num_parameters():,} parameters"
    text_size = f"{corpus.name}: {len(tokens):,} tokens, {args.batch_size * T:,} a step"
    print(f"{source}: {type(model).__name__}, {parameters}; {text_size}; {needs}")
    trainer = SimpleTrainer.with_optimizer(TrainingConfig(max_grad_norm=1.0), optimizer).with_lr_schedule(schedule)
    started = time.perf_counter()
    try:
        with interrupts(lambda: what_is_lost(trainer.global_step, None, as_typed())) as received:
            before = validate(model, val_batches)
            train_model(model, trainer, batches, args.steps, 60 * args.minutes, received)
            after = validate(model, val_batches)
            save(model, source, out)
    except (NonFiniteLossError, NonFiniteGradientError) as error:
        raise RunError(f"{error}; nothing was saved (a smaller --lr may help)") from error
    print(
        f"validation loss {before:.4f} -> {after:.4f} nats per token, {trainer.global_step} steps in "
        f"{time.perf_counter() - started:.0f} s; saved in {out}"
    )
    if is_pretrained(out):
        if left := args.steps - trainer.global_step:
            print(f"to go on: {how_to_run(Path(sys.argv[0]).name, out, '--steps', left)}")
        print(f"next: {how_to_run('generate.py', out)}")
    return 0


def trained(model: CausalLM) -> list[tuple[str, Tensor]]:
    """The parameters that are not frozen, by name."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def train_model(
    model: CausalLM, trainer: SimpleTrainer, batches: RandomBatches, steps: int, seconds: float, received: list[int]
) -> None:
    """Train until the steps are made, the time is over or a signal was ``received``; at least one step."""
    started = time.perf_counter()
    bar = tqdm(total=steps, bar_format=BAR, smoothing=0, dynamic_ncols=True, disable=None)
    with bar:
        model.train()
        while trainer.global_step < steps:
            loss = batch_loss(model, *batches.batch(trainer.global_step))
            metrics = trainer.step(trained(model), loss.backward(), loss.item())
            assert metrics is not None  # every batch is a step
            bar.set_postfix_str(f"loss {metrics.loss:.3f}, lr {metrics.lr:.1e}", refresh=False)
            bar.update()
            if received or time.perf_counter() - started > seconds:
                break


def new_folder(chosen: str | None, source: Path) -> Path:
    """Where the result goes: the folder that was asked for, new or empty, else finetuned/NAME, NAME-2, ..."""
    if chosen is not None:
        folder = Path(chosen)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"--out {folder} exists and is not an empty folder (nothing is overwritten)")
        return folder
    name = source.resolve().name
    number, folder = 1, Path("finetuned") / name
    while folder.exists():
        number += 1
        folder = Path("finetuned") / f"{name}-{number}"
    return folder


def batch_loss(model: CausalLM, x: np.ndarray, y: np.ndarray) -> Tensor:
    """Mean cross-entropy of a batch, (B, T) tokens and (B, T) targets."""
    return model.loss(*(minigrad.from_numpy(t).to(device=model.device) for t in (x, y)))


@minigrad.no_grad()
def validate(model: CausalLM, batches: FixedBatches) -> float:
    """Mean loss over the validation batches, nats per token. Raises NonFiniteLossError if it is not finite."""
    model.eval()
    losses = [(batch_loss(model, x, y).item(), y.size) for x, y in batches]
    mean = sum(loss * size for loss, size in losses) / sum(size for _, size in losses)
    if not math.isfinite(mean):
        raise NonFiniteLossError(f"the validation loss is {mean}", 0)
    return mean


if __name__ == "__main__":
    run_cli(main)
