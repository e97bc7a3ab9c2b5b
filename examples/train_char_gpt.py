"""Train a character-level GPT on the CPU, in about two minutes, with nothing to download.

    python examples/train_char_gpt.py                        Python's own documentation
    python examples/train_char_gpt.py --data notes.txt docs/ any UTF-8 text
    python examples/train_char_gpt.py --data shakespeare     downloads 1.1 MB, once
    python examples/train_char_gpt.py --resume               goes on where the last run stopped, bit for bit
    python examples/sample.py --prompt "The "                writes with the trained model

Ctrl-C finishes the step, saves, and says how to resume.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from char_gpt_run import (
    Parser,
    Settings,
    UsageError,
    choose_device,
    complain,
    latest_folder,
    load_run,
    new_folder,
    run_cli,
    save_run,
)
from tqdm import tqdm

import minigrad
from minigrad.data import CharTokenizer, Corpus, FixedBatches, RandomBatches, load_corpus, min_tokens, train_val_split
from minigrad.distributed import NonFiniteLossError, SimpleTrainer, TrainingMetrics
from minigrad.metrics_log import JsonLinesLog, read_json_lines
from minigrad.models import GPT2
from minigrad.optim import NonFiniteGradientError
from minigrad.serialization import CheckpointError, list_checkpoints

LOG_EVERY = 10  # steps between lines in metrics.jsonl


def main() -> int:
    """Parse the flags, prepare the run, train it."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=None, metavar="PATH", help="text files, folders, or: shakespeare")
    parser.add_argument("--out", default=None, metavar="FOLDER", help="folder of the run (default runs/char-gpt...)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out, or the one saved last")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument("--threads", type=int, default=None, metavar="int", help="CPU threads (default all cores)")
    parser.add_settings()
    args = vars(parser.parse())
    data, out, resume = args.pop("data"), args.pop("out"), args.pop("resume")
    choose_device(args.pop("device"))
    threads = args.pop("threads")
    try:
        if threads is not None:
            minigrad.set_num_threads(threads)
        run = prepare_resumed(data, out, args) if resume else prepare_new(data, out, args)
    except ValueError as error:  # settings out of range, and every kind of bad input
        raise error if isinstance(error, CheckpointError) else UsageError(error) from error
    with run:
        return run.train()


def load_text(data: list[str] | None, settings: Settings) -> Corpus:
    """The corpus, checked to be long enough for a training and a validation window."""
    source: Any = "pydoc" if data is None else data[0] if data == ["shakespeare"] else data
    return load_corpus(source, min_characters=min_tokens(settings.block_size, settings.val_fraction))


def prepare_new(data: list[str] | None, out: str | None, flags: dict[str, Any]) -> TrainingRun:
    """A run from the start, in a folder of its own."""
    settings = Settings(**flags)
    settings.check()
    corpus = load_text(data, settings)
    tokenizer = CharTokenizer.from_text(corpus.text)
    model, trainer = settings.build(tokenizer.vocab_size)
    origin = {**corpus.metadata, "data": data}
    return TrainingRun(new_folder(out), settings, corpus, origin, tokenizer, model, trainer)


def prepare_resumed(data: list[str] | None, out: str | None, flags: dict[str, Any]) -> TrainingRun:
    """The run of a checkpoint, on the same text."""
    folder = latest_folder(out)
    run = load_run(folder, changes=flags)
    origin = run.checkpoint.state["corpus"]
    corpus = load_text(origin["data"] if data is None else data, run.settings)
    if corpus.metadata["sha256"] != origin["sha256"]:
        raise UsageError(f"the text is not the one that the run in {folder} was trained on; give the same --data")
    return TrainingRun(folder, run.settings, corpus, origin, run.tokenizer, run.model, run.trainer)


class TrainingRun:
    """One run: the training loop, and what it shows and writes. A context manager: it closes the log."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        corpus: Corpus,
        origin: dict[str, Any],
        tokenizer: CharTokenizer,
        model: GPT2,
        trainer: SimpleTrainer,
    ) -> None:
        self.folder, self.settings, self.corpus, self.origin = folder, settings, corpus, origin
        self.tokenizer, self.model, self.trainer = tokenizer, model, trainer
        tokens = tokenizer.encode(corpus.text)
        train, val = train_val_split(tokens, settings.val_fraction, settings.block_size)
        self.batches = RandomBatches(train, settings.batch_size, settings.block_size, settings.seed)
        self.val_batches = FixedBatches(val, settings.batch_size, settings.block_size, settings.eval_batches)
        try:
            self.log = JsonLinesLog(folder / "metrics.jsonl")
        except OSError as error:
            raise UsageError(f"cannot write into {folder}: {error.strerror}") from error
        self.log.truncate_after(trainer.global_step)
        self.saved_step = trainer.global_step if list_checkpoints(folder) else None

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.log.close()

    def train(self) -> int:
        """Train to the last step; returns the exit code."""
        s, trainer = self.settings, self.trainer
        tokens_per_step = s.batch_size * s.block_size * s.grad_accum
        print(
            f"{self.corpus.name}: {len(self.corpus.text):,} characters, {self.tokenizer.vocab_size} different\n"
            f"GPT: {self.model.num_parameters():,} parameters, {s.n_layer} layers, {s.n_head} heads, {s.n_embd} channels, "
            f"{tokens_per_step:,} characters a step, {minigrad.get_num_threads()} threads\n"
            f"run: {self.folder}, steps {trainer.global_step + 1} to {s.steps}",
            flush=True,
        )
        if trainer.global_step >= s.steps:
            print(f"nothing to do: {trainer.global_step} steps are done (a larger --steps goes on)")
            return 0
        started, seen = time.perf_counter(), 0
        bar = tqdm(
            initial=trainer.global_step, total=s.steps, unit="step", dynamic_ncols=True, disable=None, smoothing=0.05
        )
        with bar, interrupts() as interrupt:
            while trainer.global_step < s.steps and not interrupt:
                metrics = self.step()
                seen += tokens_per_step
                rate = seen / (time.perf_counter() - started)
                bar.update()
                bar.set_postfix_str(f"loss {metrics.loss:.3f}, lr {metrics.lr:.1e}, {rate:,.0f} chars/s", refresh=False)
                if metrics.step % LOG_EVERY == 0 or metrics.step == 1:
                    self.log.write({**vars(metrics), "tokens_per_second": round(rate)})
                self.after_step(metrics, bar)
        if interrupt and trainer.global_step < s.steps:
            self.save()
            print(f"stopped after step {trainer.global_step}, saved. To go on:\n  {resume_command(self.folder)}")
            return 128 + interrupt[0]
        self.save()
        print(f"done in {time.perf_counter() - started:.0f} s; weights and metrics are in {self.folder}")
        plot_losses(self.folder)
        print(f'next: python examples/sample.py {self.folder} --prompt "The "')
        return 0

    def step(self) -> TrainingMetrics:
        """One optimizer step, of ``grad_accum`` micro-batches. Batches depend on nothing but seed and step."""
        self.model.train()
        first = self.trainer.global_step * self.settings.grad_accum
        for i in range(self.settings.grad_accum):
            x, y = (minigrad.from_numpy(tokens) for tokens in self.batches.batch(first + i))
            loss = self.model.loss(x, y)
            try:
                metrics = self.trainer.step(self.model.named_parameters(), loss.backward(), loss.item())
            except (NonFiniteLossError, NonFiniteGradientError) as error:
                saved = list_checkpoints(self.folder)
                kept = f"the last good checkpoint is {saved[-1].path}" if saved else "no checkpoint was saved yet"
                error.args = (f"step {self.trainer.global_step + 1}: {error}; {kept}",)
                raise
        assert metrics is not None  # the window is full after grad_accum micro-batches
        return metrics

    def after_step(self, metrics: TrainingMetrics, bar: Any) -> None:
        """Validate, show a sample, save: each when it is its turn."""
        s, step = self.settings, metrics.step
        if step % s.eval_every == 0 or step == s.steps:
            val_loss = self.validate()
            self.log.write({"step": step, "val_loss": val_loss})
            bar.write(f"step {step:5d}  train loss {metrics.loss:.4f}  validation loss {val_loss:.4f}")
        if s.sample_every and (step % s.sample_every == 0 or step == s.steps):
            bar.write(f"{'-' * 30} sample\n{self.sample()}\n{'-' * 37}")
        if step % s.save_every == 0:
            self.save()

    @minigrad.no_grad()
    def validate(self) -> float:
        """Mean loss (nats per character) over the fixed validation windows."""
        self.model.eval()
        total, count = 0.0, 0
        for x, y in self.val_batches:
            total += self.model.loss(minigrad.from_numpy(x), minigrad.from_numpy(y)).item() * y.size
            count += y.size
        return total / count

    def sample(self) -> str:
        """Some text of the model's own. Its random numbers are apart from the training's."""
        prompt = minigrad.tensor(self.tokenizer.encode(self.corpus.text[:1])[None])
        out = self.model.generate(prompt, self.settings.sample_chars, top_k=40, seed=self.settings.seed)
        return self.tokenizer.decode(out.numpy()[0])

    def save(self) -> None:
        """Save a checkpoint, unless this step has one."""
        if self.saved_step != self.trainer.global_step:
            self.log.sync()
            save_run(self.folder, self.model, self.trainer, self.settings, self.tokenizer, self.origin)
            self.saved_step = self.trainer.global_step


@contextlib.contextmanager
def interrupts() -> Iterator[list[int]]:
    """A list that Ctrl-C or SIGTERM adds its number to, instead of raising; a second one raises at once."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        print("\nfinishing this step, then saving (again: stop at once)", file=sys.stderr, flush=True)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def resume_command(folder: Path) -> str:
    """What to type to go on."""
    return f"python {os.path.relpath(sys.argv[0])} --resume --out {folder}"


def plot_losses(folder: Path) -> None:
    """Draw loss.png from metrics.jsonl where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        print("no loss curve: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    records = read_json_lines(folder / "metrics.jsonl")
    figure, axes = plt.subplots(figsize=(7, 4))
    for key, label in (("loss", "training"), ("val_loss", "validation")):
        points = [(float(r["step"]), float(r[key])) for r in records if key in r]
        axes.plot(*zip(*points), label=label, linewidth=1 if key == "loss" else 2)
    axes.set(xlabel="step", ylabel="loss (nats per character)")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(folder / "loss.png", dpi=150)
    plt.close(figure)
    print(f"loss curve: {folder / 'loss.png'}")


if __name__ == "__main__":
    run_cli(main)
