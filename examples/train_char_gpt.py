"""Train a character-level GPT on the CPU, in about two minutes, with nothing to download.

    python examples/train_char_gpt.py                         Python's own documentation
    python examples/train_char_gpt.py --data notes.txt docs/  any UTF-8 text
    python examples/train_char_gpt.py --data shakespeare      downloads 1.1 MB, once
    python examples/train_char_gpt.py --resume                goes on where the last run stopped, bit for bit
    python examples/sample.py --prompt "The "                 writes with the trained model

Steps are captured: the third and all later ones are one list of kernel launches that compiled code walks. Ctrl-C
finishes the step, saves, and says how to resume.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import loading  # noqa: F401  # first
import numpy as np
from char_run import Run, Settings, folder_to_resume, load_run, new_folder, save_run
from command_line import BAR, Parser, RunError, UsageError, as_typed, choose_device, describe, how_to_run, run_cli
from estimate import check_memory, duration, in_words, step_bytes, time_of
from tqdm.auto import tqdm

import minigrad
from minigrad import Tensor
from minigrad.data import CharTokenizer, Corpus, FixedBatches, RandomBatches, load_corpus, min_tokens, train_val_split
from minigrad.device import Device
from minigrad.distributed import (
    CommError,
    NonFiniteLossError,
    ReplicaMismatchError,
    SimpleTrainer,
    TrainingMetrics,
    restarts,
)
from minigrad.distributed.train.captured_step import CapturedStep
from minigrad.distributed.train.signals import interrupts, what_is_lost
from minigrad.metrics_log import JsonLinesLog, TensorBoardWriter, about_run, moment, read_json_lines
from minigrad.models import CausalLM
from minigrad.optim import NonFiniteGradientError
from minigrad.profiler import Profile, profile
from minigrad.serialization import CheckpointError, list_checkpoints

BEGAN = time.time()
LOG_EVERY = 10  # steps between lines in metrics.jsonl
SAYS_EVERY = 20.0  # seconds between lines that say how far it is, where there is no bar
FAILURES = (NonFiniteLossError, NonFiniteGradientError, ReplicaMismatchError, CheckpointError, CommError, OSError)
WARM, PROFILED = 3, 10  # steps of --profile: those before it, and those that are looked at
PROFILE_HELP = f"show where the time of {PROFILED} steps goes, and write a trace, profile.json"
COMPILES_AFTER = 3.0  # seconds after which a first step is taken to compile kernels


def main(kind: type[Settings] = Settings, description: str | None = __doc__) -> int:
    """Parse the flags, prepare the run, train it. ``kind`` is the kind of model, and what its settings are."""
    parser = Parser(description)
    parser.add_argument("--data", nargs="+", default=None, metavar="PATH", help="text files, folders, or: shakespeare")
    parser.add_argument(
        "--out", default=None, metavar="FOLDER", help=f"folder of the run (default runs/char-{kind.family}...)"
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in --out, or the one saved last")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument("--threads", type=int, default=None, metavar="int", help="CPU threads (default all cores)")
    parser.add_argument("--profile", action="store_true", help=PROFILE_HELP)
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard's files into the folder, too")
    parser.add_settings(kind)
    flags = vars(parser.parse())
    names = ("data", "out", "resume", "threads", "profile", "tensorboard")
    data, out, resume, threads, profiling, tensorboard = (flags.pop(name) for name in names)
    device = choose_device(flags.pop("device"))
    try:
        if threads is not None:
            minigrad.set_num_threads(threads)
        prepare = prepare_resumed if resume else prepare_new
        run = prepare(kind, data, out, device, flags)
        if run.settings.reproducible:
            raise UsageError("--reproducible is for several ranks: train_char_gpt_ddp.py and train_gpt2.py have it")
    except CheckpointError:
        raise
    except ValueError as error:  # settings out of range, and every kind of bad input
        raise UsageError(error) from error
    except OSError as error:
        raise UsageError(describe(error)) from error
    run.profiling = profiling
    with contextlib.closing(run):
        if tensorboard and run.log is not None:
            run.log.callbacks.append(TensorBoardWriter(run.run.folder))
        return run.train_or_explain()


def load_text(data: list[str] | None, settings: Settings) -> Corpus:
    """The corpus, checked to be long enough for a training and a validation window."""
    source: Any = "pydoc" if data is None else data[0] if data == ["shakespeare"] else data
    return load_corpus(source, min_characters=min_tokens(settings.block_size, settings.val_fraction))


def prepare_new(
    kind: type[Settings], data: list[str] | None, out: str | None, device: Device, flags: dict[str, Any]
) -> TrainingRun:
    """A new run, in a folder of its own."""
    settings = kind(**flags)
    settings.check()
    corpus = load_text(data, settings)
    tokenizer = CharTokenizer.from_text(corpus.text)
    check_memory(settings, tokenizer.vocab_size, device)
    model, trainer = settings.build(tokenizer.vocab_size, device)
    origin = {**corpus.metadata, "name": corpus.name, "data": data}
    return TrainingRun(Run(new_folder(out, kind.family), settings, origin, tokenizer, model, trainer), corpus)


def prepare_resumed(
    kind: type[Settings], data: list[str] | None, out: str | None, device: Device, flags: dict[str, Any]
) -> TrainingRun:
    """The run of a checkpoint, on the same text."""
    run = load_run(folder_to_resume(out), device, changes=flags, kind=kind)
    corpus = load_text(run.origin["data"] if data is None else data, run.settings)
    check_text(run, corpus)
    return TrainingRun(run, corpus)


def check_text(run: Run, corpus: Corpus) -> None:
    """Raise UsageError for another text than that of the run."""
    if corpus.metadata["sha256"] != run.origin["sha256"]:
        trained = run.origin.get("name", "another one")
        raise UsageError(
            f"{corpus.name} is not the text that the run in {run.folder} was trained on: that was {trained}"
        )


class TrainingRun:
    """The training loop of a run, and what it shows and writes; on several processes, rank 0 does that for all."""

    script: str = ""  # that goes on with it, if it is not the settings' own

    def __init__(self, run: Run, corpus: Any, rank: int = 0, world_size: int = 1) -> None:
        self.run = run
        self.corpus = corpus  # a Corpus; train_gpt2.py has shards of tokens
        self.rank: int = rank
        self.world_size: int = world_size
        self.settings: Settings = run.settings
        self.model: CausalLM = run.model
        self.trainer: SimpleTrainer = run.trainer
        s = run.settings
        train, val = self.tokens()
        part = (0, 1) if s.reproducible else (rank, world_size)
        self.batches: RandomBatches = RandomBatches(train, s.batch_size, s.block_size, s.seed, *part)
        self.val_batches: FixedBatches = FixedBatches(val, s.batch_size, s.block_size, s.eval_batches)
        self.tokens_per_step: int = s.batch_size * s.block_size * s.grad_accum
        self.saved_step: int | None = run.trainer.global_step or None
        self.profiling: bool = False
        self.captured: CapturedStep | None = None
        if self.captures():
            self.captured = self.trainer.capture(self.loss_of, self.model.named_parameters())
        self.log: JsonLinesLog | None = self.open_log()
        self.started: float = time.perf_counter()
        """Of this process's steps; the run may have others, which took ``seconds_before``."""
        records = read_json_lines(self.log.path) if self.log is not None else []
        self.seconds_before: float = next((r["seconds"] for r in reversed(records) if "seconds" in r), 0.0)

    def tokens(self) -> tuple[Any, Any]:
        """The tokens to train on, and those for validation."""
        s = self.settings
        return train_val_split(self.run.tokenizer.encode(self.corpus.text), s.val_fraction, s.block_size)

    def captures(self) -> bool:
        """Whether a step is captured: from the third on it is a list of launches, without Python between them."""
        return self.world_size == 1 and not self.settings.reproducible

    def open_log(self) -> JsonLinesLog | None:
        """metrics.jsonl, up to the run's step. Raises UsageError if nothing can be written into the folder."""
        try:
            log = JsonLinesLog(self.run.folder / "metrics.jsonl")
        except OSError as error:
            raise UsageError(f"cannot write into {self.run.folder}: {error.strerror}") from error
        # Only now, with its lock, is the folder ours: another run may have ended in it since it was chosen.
        step, saved = self.trainer.global_step, list_checkpoints(self.run.folder)
        new = any(c.step > step and c.path.stat().st_ctime > BEGAN for c in saved)
        if new or (not step and log.path.stat().st_size and not restarts()):
            log.close()
            raise UsageError(f"another process has trained in {self.run.folder} meanwhile; --resume continues that run")
        log.truncate_after(step)
        return log

    def write(self, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        if self.log is not None:
            self.log.write({**record, **moment(self.model.device)})

    def say(self, text: str) -> None:
        """Print, on rank 0."""
        if self.rank == 0:
            tqdm.write(text)  # above the bar, if there is one

    def train_or_explain(self) -> int:
        """``train``; raises RunError, or KeyboardInterrupt, that says what is saved."""
        try:
            return self.train()
        except FAILURES as error:
            raise RunError(f"{describe(error)}; {self.rescue(error)}") from error

    def rescue(self, error: Exception) -> str:
        """Save what can be saved after a failure; says what is."""
        saved = list_checkpoints(self.run.folder)
        return f"the last good checkpoint is {saved[-1].path}" if saved else "no checkpoint was saved yet"

    def what_is_lost(self) -> str:
        """Of a run that was stopped without saving."""
        command = self.launched(as_typed()) if self.saved_step is None else self.how_to_resume()
        return what_is_lost(self.trainer.global_step, self.saved_step, command)

    def train(self) -> int:
        """Train to the last step; returns the exit code."""
        s, trainer, folder = self.settings, self.trainer, self.run.folder
        self.say(
            f"{self.text_in_words()}\n"
            f"{s.label}: {self.model.num_parameters():,} parameters, {s.n_layer} layers, {s.n_head} heads, "
            f"{s.n_embd} channels, {self.tokens_per_step:,} tokens a step, {self.workers()}"
        )
        if trainer.global_step >= s.steps:
            self.say(f"nothing to do: {folder} has {trainer.global_step} steps (a larger --steps goes on)")
            return 0
        origin = ""
        if self.rank == 0 and trainer.global_step:
            saved = next(entry.path for entry in list_checkpoints(folder)[::-1] if entry.step == trainer.global_step)
            origin = f", from {saved.name} of {time.strftime('%Y-%m-%d %H:%M', time.localtime(saved.stat().st_mtime))}"
        self.say(f"run: {folder}, steps {trainer.global_step + 1} to {s.steps}{origin}\n{self.needs()}")
        about = {"settings": dataclasses.asdict(s), "parameters": self.model.num_parameters(), "ranks": self.world_size}
        self.write(about_run(s.steps, self.tokens_per_step, **about))
        self.started = time.perf_counter()
        # To the end of save: another rank's signal may end the loop before this one's.
        with interrupts(self.what_is_lost) as received:
            signal_number = self.profile_steps(received) if self.profiling else 0
            signal_number = signal_number or self.make_steps(received)
            self.save()
        if trainer.global_step < s.steps:
            self.say(f"stopped after step {trainer.global_step}, saved. To go on:\n  {self.how_to_resume()}")
            return 128 + signal_number
        self.finish()
        return 0

    def needs(self) -> str:
        """The memory and the time that the run takes; a resumed one knows its speed."""
        s = self.settings
        parts = 1 if s.reproducible else self.world_size
        memory = step_bytes(s, self.run.tokenizer.vocab_size, -(-s.batch_size // parts), self.model.device)
        if self.model.device.type != "cpu":
            return f"about {in_words(memory)} of memory"
        step = self.trainer.global_step
        if step and self.seconds_before:
            left = self.seconds_before / (step // LOG_EVERY * LOG_EVERY or 1) * (s.steps - step)
            return f"about {in_words(memory)} of memory, about {duration(left)} at the speed so far"
        return f"about {in_words(memory)} of memory, {time_of(s, self.model.num_parameters())}"

    def profile_steps(self, received: list[int]) -> int:
        """The first steps, without a capture; says where their time goes. Returns as ``make_steps``."""
        captured, self.captured = self.captured, None
        first, comm = self.trainer.global_step + WARM, getattr(self, "comm", None)
        signal_number = self.make_steps(received, first)
        with profile(self.model, comm) as seen:
            signal_number = signal_number or self.make_steps(received, first + PROFILED)
        self.captured = captured
        traces, file = self.gather_traces(seen), self.run.folder / "profile.json"
        if self.rank == 0:
            seen.save(file, *traces)
        self.say(f"{seen}\ntrace of steps {first + 1} to {first + PROFILED}, for ui.perfetto.dev: {file}")
        return signal_number

    def gather_traces(self, seen: Profile) -> list[Any]:
        """The trace of each rank."""
        return [seen.trace()]

    def make_steps(self, received: list[int], last: int | None = None) -> int:
        """Train to the last step, or to the first one after which a signal was ``received``: it is returned, or 0."""
        trainer, steps = self.trainer, self.settings.steps
        last = steps if last is None else min(last, steps)
        seconds: deque[float] = deque(maxlen=20)  # of the last steps; the first one of all also compiles
        began, first, signal_number = time.monotonic(), trainer.global_step, 0
        said = began
        shape: dict[str, Any] = {"dynamic_ncols": True, "disable": None}  # None: unless this is a terminal
        if self.world_size > 1:  # whose lines a launcher passes on, each whole
            columns = min(100, shutil.get_terminal_size().columns - 5)
            shape = {"file": Lines(), "disable": self.rank > 0, "ncols": columns}
            shape |= {"mininterval": 0.2} if Lines.moves else {"mininterval": 10, "delay": 10}
        with tqdm(initial=trainer.global_step, total=steps, bar_format=BAR, smoothing=0, **shape) as bar:
            while trainer.global_step < last and not (signal_number := self.interrupted(received)):
                before = time.perf_counter()
                with contextlib.nullcontext() if seconds or self.model.device.type == "cpu" else self.compile_hint():
                    metrics = self.step()
                seconds.append(time.perf_counter() - before)
                rate = self.tokens_per_step * len(seconds) / sum(seconds)
                shown = f"loss {metrics.loss:.3f}, lr {metrics.lr:.1e}, {self.speed_in_words(rate)}"
                bar.set_postfix_str(shown, refresh=False)
                bar.update()
                if metrics.step % LOG_EVERY == 0 or metrics.step == 1:
                    self.write({**vars(metrics), **self.speed(rate)})
                if bar.disable and time.monotonic() - said > SAYS_EVERY:  # into a file, or a pipe
                    left = duration((time.monotonic() - began) / (metrics.step - first) * (steps - metrics.step))
                    self.say(f"step {metrics.step:5d} of {steps}  {shown}  about {left} left")
                    said = time.monotonic()
                self.after_step(metrics)
        return signal_number

    @contextlib.contextmanager
    def compile_hint(self) -> Iterator[None]:
        """Around the first step: says why, if it takes long."""
        text = "the first step also compiles the kernels that are not in the cache yet; later runs load them"
        timer = threading.Timer(COMPILES_AFTER, self.say, [text])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def text_in_words(self) -> str:
        """What it is trained on."""
        return f"{self.corpus.name}: {len(self.corpus.text):,} characters, {self.run.tokenizer.vocab_size} different"

    def speed(self, tokens_per_second: float) -> dict[str, Any]:
        """What metrics.jsonl says of the speed."""
        return {"tokens_per_second": round(tokens_per_second), "seconds": round(self.seconds(), 1)}

    def seconds(self) -> float:
        """What the whole run has taken so far."""
        return self.seconds_before + time.perf_counter() - self.started

    def speed_in_words(self, tokens_per_second: float) -> str:
        """What the bar says of it."""
        return f"{tokens_per_second:,.0f} tokens/s"

    def workers(self) -> str:
        """Who computes, in words."""
        threads = minigrad.get_num_threads()
        return f"{threads} thread{'s' * (threads > 1)}"

    def interrupted(self, received: list[int]) -> int:
        """The signal that ends the training after this step, or 0."""
        return received[0] if received else 0

    def how_to_resume(self) -> str:
        """The command that goes on with this run, on as many ranks."""
        return self.launched(how_to_run(self.script or self.settings.script, "--resume", "--out", self.run.folder))

    def launched(self, command: str) -> str:
        """The command for as many ranks."""
        launcher = f"python -m minigrad.distributed.launch -n {self.world_size} "
        return command if self.world_size == 1 else launcher + command.removeprefix("python ")

    def finish(self) -> None:
        """Say what the finished run has left, and draw it."""
        folder, seconds = self.run.folder, self.seconds()
        parts = f", {seconds - self.seconds_before:.0f} s of them since it was resumed" if self.seconds_before else ""
        self.say(f"done in {seconds:.0f} s{parts}; weights and metrics are in {folder}")
        if self.rank == 0:
            plot_losses(folder, self.settings.unit)
        self.say(f"next: {how_to_run(self.settings.sampler, folder)}")

    def step(self) -> TrainingMetrics:
        """One optimizer step, of ``grad_accum`` micro-batches. Batches depend on nothing but seed and step."""
        self.model.train()
        batches = self.own_batches()
        if self.captured is not None:
            x, y = (np.stack(each) if len(batches) > 1 else each[0] for each in zip(*batches))
            metrics = self.captured(minigrad.from_numpy(x), minigrad.from_numpy(y)).result()
        else:
            for x, y in batches:
                metrics = self.micro_batch(x, y)
        assert metrics is not None  # the window is full, and no loss scale leaves a step out
        return metrics

    def own_batches(self) -> list[Any]:
        """The micro-batches of this step, tokens and targets each."""
        count = self.settings.grad_accum
        first = self.trainer.global_step * count
        return [self.batches.batch(first + i) for i in range(count)]

    def micro_batch(self, x: np.ndarray, y: np.ndarray) -> TrainingMetrics | None:
        """Forward and backward, and the optimizer's step where the window is full."""
        loss = self.loss(x, y)
        return self.trainer.step(self.model.named_parameters(), loss.backward(), loss.item())

    def loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of a batch, (B, T) tokens and (B, T) targets."""
        return self.model.loss(x, y)

    def loss(self, x: np.ndarray, y: np.ndarray) -> Tensor:
        """The same for tokens on the host."""
        device = self.model.device
        return self.loss_of(minigrad.from_numpy(x).to(device=device), minigrad.from_numpy(y).to(device=device))

    def after_step(self, metrics: TrainingMetrics) -> None:
        """Validate, show a sample, save: each when it is its turn."""
        s, step = self.settings, metrics.step
        if step % s.eval_every == 0 or step == s.steps:
            val_loss = self.validate()
            self.write({"step": step, "val_loss": val_loss})
            self.say(f"step {step:5d}  train loss {metrics.loss:.4f}  validation loss {val_loss:.4f}")
        if s.sample_every and (step % s.sample_every == 0 or step == s.steps):
            self.show_sample(step)
        if step % s.save_every == 0:
            self.save()

    @minigrad.no_grad()
    def validate(self, batches: int | None = None) -> float:
        """Mean loss (nats per character) over the fixed validation batches, or the first few of them.

        Raises NonFiniteLossError if it is not finite.
        """
        self.model.eval()
        total, count = 0.0, 0
        for x, y in itertools.islice(self.val_batches, batches):
            total += self.loss(x, y).item() * y.size
            count += y.size
        if not math.isfinite(total):
            step = self.trainer.global_step
            raise NonFiniteLossError(f"the validation loss after step {step} is {total / count}", step)
        return total / count

    def show_sample(self, step: int) -> None:
        """Log a sample and print it."""
        text = self.sample()
        self.write({"step": step, "sample": text})
        self.say(f"{'-' * 30} sample\n{text}\n{'-' * 37}")

    def sample(self) -> str:
        """Some text of the model's own. Its random numbers are apart from the training's."""
        tokenizer = self.run.tokenizer
        prompt = minigrad.tensor(self.prompt()[None], device=self.model.device)
        out = self.model.generate(prompt, self.settings.sample_chars, top_k=40, seed=self.settings.seed)
        return tokenizer.decode(out.cpu().numpy()[0])

    def prompt(self) -> np.ndarray:
        """The tokens that samples begin with."""
        tokens: np.ndarray = self.run.tokenizer.encode(self.corpus.text[:1])
        return tokens

    def save(self) -> None:
        """Save a checkpoint, unless this step has one; one of a broken model never replaces a good one."""
        if self.saved_step != self.trainer.global_step:
            self.validate(1)
            if self.log is not None:
                self.log.sync()
            self.write_checkpoint()
            self.saved_step = self.trainer.global_step

    def write_checkpoint(self) -> None:
        """Write a checkpoint, with all that an exact resume needs."""
        save_run(self.run)

    def close(self) -> None:
        """Close metrics.jsonl."""
        if self.log is not None:
            self.log.close()


class Lines:
    """A file for a progress bar that writes each of its states in a line of its own, to stderr.

    Those of a launcher in a terminal begin with a return: it shows them in one line, above which others are printed.
    """

    moves: bool = os.environ.get("MINIGRAD_LAUNCH") == "terminal"
    last: str = ""

    def write(self, text: str) -> None:
        """What tqdm writes; at its end the last state stays."""
        if state := text.strip("\r\n "):
            print("\r" * self.moves + state, file=sys.stderr, flush=True)
            self.last = state
        elif text == "\n" and self.last and self.moves:
            print("\r\n" + self.last, file=sys.stderr, flush=True)
            self.last = ""

    def flush(self) -> None:
        """All is written."""


def curve(points: list[tuple[int, float]], columns: int = 60, rows: int = 10) -> str:
    """Losses by step as text: in each column the mean of those that fall there."""
    last, sums = points[-1][0], np.zeros((2, columns))
    for step, loss in points:
        sums[:, min(step * columns // (last + 1), columns - 1)] += loss, 1
    means = [total / count if count else math.nan for total, count in sums.T]
    low, high = np.nanmin(means), np.nanmax(means)
    heights = [-1 if math.isnan(mean) else int((mean - low) / (high - low or 1.0) * (rows - 1) + 0.5) for mean in means]
    lines = ["".join("*" if height == row else " " for height in heights).rstrip() for row in reversed(range(rows))]
    labels = [f"{high:7.3f} ", *[" " * 8] * (rows - 2), f"{low:7.3f} "]
    return (
        "\n".join(f"{label}|{line}" for label, line in zip(labels, lines)) + f"\n        +{f'step {last}':->{columns}}"
    )


def plot_losses(folder: Path, unit: str) -> None:
    """Draw loss.png from metrics.jsonl, or the training loss as text where matplotlib is not installed."""
    records = read_json_lines(folder / "metrics.jsonl")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        points = [(r["step"], r["loss"]) for r in records if "loss" in r]
        if len(points) > 1:
            print(f"loss (nats per {unit}; pip install matplotlib for a picture)\n{curve(points)}")
        return
    figure = Figure(figsize=(7, 4), layout="tight")
    axes = figure.subplots()
    for key, label, width in (("loss", "training", 1), ("val_loss", "validation", 2)):
        points = [(r["step"], r[key]) for r in records if key in r]
        axes.plot([step for step, _ in points], [loss for _, loss in points], label=label, linewidth=width)
    axes.set(xlabel="step", ylabel=f"loss (nats per {unit})")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(folder / "loss.png", dpi=150)
    print(f"loss curve: {folder / 'loss.png'}")


if __name__ == "__main__":
    run_cli(main)
