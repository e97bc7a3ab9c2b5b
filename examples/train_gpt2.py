"""Train GPT-2, 124M parameters or another size, on one GPU, on several, or tiny on a CPU.

    python examples/train_gpt2.py                                      tiny: seconds on a CPU, nothing to download
    python examples/train_gpt2.py --device cuda --data text/           GPT-2 124M on a GPU, in bfloat16
    python -m minigrad.distributed.launch -n 8 examples/train_gpt2.py --device cuda --data tokens
    python examples/train_gpt2.py --device cuda --init-from gpt2/      goes on with published weights (a local folder)
    python examples/train_gpt2.py --device cuda --resume               goes on where the last run stopped, bit for bit
    python examples/generate.py --prompt "The "                        writes with the trained model

--data takes text, which is tokenized into shards in the run's folder, or a folder of shards (token_shards.py). Weights,
gradients and moments are float32; products and activations bfloat16. The progress shows the share of the device's peak
that the model's own operations make up (MFU). Ctrl-C finishes the step, saves, and says how to resume.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import loading  # noqa: F401  # first
import numpy as np
from char_run import Run, folder_to_resume, new_folder, run_of
from command_line import Parser, UsageError, describe, run_cli
from estimate import check_memory, flops_per_token
from gpt2_run import GPT2Settings, build, from_flags, initial, peak_flops
from text_tokenizers import choose_tokenizer, end_of_text
from token_shards import TOKENIZER_HELP, Shards, is_shards, make_shards, open_shards
from train_char_gpt import PROFILE_HELP
from train_char_gpt_ddp import SHARD_HELP, SHARD_STAGES, TIMEOUT, Training, bucketed, dealt, goes_on, on_rank_0

import minigrad
from minigrad import Tensor
from minigrad.data import DataError
from minigrad.device import Device, DeviceError
from minigrad.distributed import (
    AmpTrainer,
    Communicator,
    MixedPrecisionConfig,
    RendezvousError,
    SimpleTrainer,
    agree_on_settings,
    all_gather_bytes,
    init_process_group,
    load_distributed_checkpoint,
)
from minigrad.serialization import CheckpointError

COMMUNICATORS = ("auto", "nccl", "mpi", "none")
SHARDS = "tokens"  # folder of the shards that a run made, within its own


def main() -> int:
    """Parse the flags, meet the other ranks, train."""
    parser = Parser(__doc__)
    parser.add_argument(
        "--data",
        nargs="+",
        default=None,
        metavar="PATH",
        help="text files, folders, a folder of shards, or: shakespeare",
    )
    parser.add_argument("--tokenizer", default=None, metavar="NAME", help=f"{TOKENIZER_HELP} (default bytes)")
    parser.add_argument("--init-from", default=None, metavar="FOLDER", help="begin with a published GPT-2's weights")
    parser.add_argument("--out", default=None, metavar="FOLDER", help="folder of the run (default runs/gpt2...)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out, or the one saved last")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    parser.add_argument(
        "--communicator", default="auto", choices=COMMUNICATORS,
        help="what connects several ranks: nccl for GPUs, mpi for CPUs; auto chooses (default)",
    )  # fmt: skip
    parser.add_argument(
        "--graph", action=argparse.BooleanOptionalAction, default=None,
        help="launch a step as one graph (default: in one process, unless blocks are checkpointed)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=None, metavar="int", help="CPU threads (default all cores)")
    parser.add_argument(
        "--peak", type=float, default=None, metavar="TFLOPS", help="peak for MFU (default: known cards)"
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="S", help=f"seconds that a rank waits (default {TIMEOUT:g})"
    )
    parser.add_argument("--shard", type=int, default=0, choices=SHARD_STAGES, help=SHARD_HELP)
    parser.add_argument("--profile", action="store_true", help=PROFILE_HELP)
    parser.add_settings(GPT2Settings)
    flags = vars(parser.parse())
    names = [
        "data",
        "tokenizer",
        "init_from",
        "out",
        "resume",
        "device",
        "communicator",
        "graph",
        "threads",
        "peak",
        "timeout",
        "shard",
    ]
    data, tokenizer, init, out, resume, device, communicator, graph, threads, peak, timeout, shard = map(
        flags.pop, names
    )
    profiling = flags.pop("profile")
    for name, value in (("--timeout", timeout), ("--peak", peak)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} is {value:g}, expected a number above 0")
    try:
        if threads is not None:
            minigrad.set_num_threads(threads)
    except ValueError as error:
        raise UsageError(error) from error
    if resume and (init is not None or tokenizer is not None):
        raise UsageError(
            "--resume goes on with the run's own weights and tokens; leave out --init-from and --tokenizer"
        )
    with connected(communicator, device, timeout) as comm:
        if goes_on(comm, out, resume):
            given = data if resume or is_shards(data) else None  # of a text the run has shards
            run, shards = prepare_resumed(comm, comm.device, given, out, flags, shard)
        else:
            run, shards = prepare_new(comm, comm.device, Source(data, tokenizer, init), out, flags, shard)
        agree_on_settings(comm, {"the tokens": shards.sha256, "the settings": run.settings})
        with contextlib.closing(GPT2Training(comm, run, shards, peak, graph)) as training:
            training.profiling = profiling
            return training.train_or_explain()


def connected(name: str, device: str, timeout: float) -> Communicator:
    """What connects the ranks; UsageError for one that does not go with the device or the launcher."""
    try:
        return init_process_group({"auto": None, "none": "noop"}.get(name, name), device=device, timeout=timeout)
    except (RendezvousError, DeviceError) as error:
        raise UsageError(describe(error)) from error


@dataclasses.dataclass(frozen=True)
class Source:
    """What a new run begins with, as the command line says it."""

    data: list[str] | None
    tokenizer: str | None
    init: str | None

    def shards(self) -> Path | None:
        """The folder of shards that was given, None if it was text."""
        return Path(self.data[0]) if self.data and is_shards(self.data) else None


def trainer_of(dtype: str, comm: Communicator, shard: int) -> Any:
    """What makes the trainer: mixed precision for bfloat16, and an all-reduce that overlaps with backward."""
    if shard and dtype == "bfloat16":
        return functools.partial(bucketed, comm, shard, precision=MixedPrecisionConfig.bf16())
    if shard or dtype != "bfloat16":
        return functools.partial(bucketed, comm, shard)
    return lambda config, **options: AmpTrainer(dealt(comm, config), communicator=comm, **options)


def prepare_new(
    comm: Communicator, device: Device, source: Source, out: str | None, flags: dict[str, Any], shard: int = 0
) -> tuple[Run, Shards]:
    """A new run; rank 0 tokenizes, if there is text to tokenize."""
    given = source.shards()
    try:
        start = None
        if source.init is not None:
            flags, start = initial(source.init, flags)
        if device.type == "cpu" and start is None and "preset" not in flags:
            flags = {"preset": "tiny", **flags}
            if comm.rank == 0:
                print("on a CPU: --preset tiny (--preset gpt2 is for a GPU: --device cuda)", flush=True)
        settings = from_flags(flags)
        if given is None:
            tokenizer = choose_tokenizer(source.tokenizer or source.init or "bytes")
        elif source.tokenizer is None:
            tokenizer = open_shards(given).tokenizer
        else:
            raise UsageError("--tokenizer is for text; the shards in --data have their own")
        rows = settings.vocab_size or tokenizer.vocab_size
        on_rank_0(comm, lambda: check_memory(settings, rows, device, comm.world_size))
        model, made = build(settings, tokenizer.vocab_size, device, trainer_of(settings.dtype, comm, shard), start)
    except (ValueError, CheckpointError) as error:  # alike on all ranks
        raise UsageError(error) from error

    def prepare() -> Path:
        folder = new_folder(out, settings.family)
        if given is None:
            try:
                make_shards(source.data, folder / SHARDS, tokenizer, settings.val_fraction)
            except (DataError, OSError) as error:
                raise UsageError(describe(error)) from error
        return folder

    prepared = on_rank_0(comm, prepare)
    folder = Path(all_gather_bytes(comm, str(prepared).encode())[0].decode())
    shards = open_shards(given or folder / SHARDS)
    origin = {"data": None if given is None else str(given), "name": shards.name, "sha256": shards.sha256}
    return Run(folder, settings, origin, tokenizer, model, made), shards


def prepare_resumed(
    comm: Communicator, device: Device, data: list[str] | None, out: str | None, flags: dict[str, Any], shard: int = 0
) -> tuple[Run, Shards]:
    """The run of rank 0's checkpoint, on the same tokens."""
    folder = on_rank_0(comm, lambda: folder_to_resume(out))
    checkpoint = load_distributed_checkpoint(comm, folder or "")
    settings = checkpoint.state.get("settings")
    dtype = settings.get("dtype", "") if isinstance(settings, dict) else ""
    run = run_of(checkpoint, device, flags, GPT2Settings, trainer_of(dtype, comm, shard))
    shards = open_shards(Path(data[0] if data else run.origin["data"] or run.folder / SHARDS))
    if shards.sha256 != run.origin["sha256"]:
        raise UsageError(
            f"the tokens in {shards.folder}, of {shards.name}, are not those that the run in {run.folder} was trained "
            f"on: {run.origin.get('name')}"
        )
    return run, shards


class GPT2Training(Training):
    """The training loop of train_char_gpt.py and train_char_gpt_ddp.py, on shards of tokens, in the run's dtype."""

    script = "train_gpt2.py"
    settings: GPT2Settings

    def __init__(
        self, comm: Communicator, run: Run, shards: Shards, peak: float | None = None, graph: bool | None = None
    ) -> None:
        blocks = run.settings.checkpoint_blocks  # whose second run is compared with the first by the host
        eager = blocks or run.settings.reproducible
        if graph and blocks:
            raise UsageError(
                "--graph: a CUDA graph works without the host, by which --checkpoint-blocks compares results"
            )
        if graph and run.settings.reproducible:
            raise UsageError("--graph: --reproducible numbers random draws before each step, which a graph cannot hold")
        if graph and comm.world_size > 1 and not comm.captures:
            raise UsageError(f"--graph: on several ranks a CUDA graph needs NCCL, not {type(comm).__name__}")
        if graph and run.settings.batch_size % comm.world_size:
            raise UsageError(f"--graph: the ranks need equal parts, but {comm.world_size} do not divide --batch-size")
        self.graph: bool = comm.world_size == 1 and not eager if graph is None else graph
        super().__init__(comm, run, shards)
        self.flops: int = flops_per_token(run.settings, run.model.num_parameters())
        found = (1e12 * peak, "--peak") if peak else peak_flops(run.model.device, self.settings.dtype)
        self.peak: float = found[0] * comm.world_size
        self.peak_from: str = found[1]

    def tokens(self) -> tuple[Any, Any]:
        """The shards to train on, and those for validation."""
        return self.corpus.train, self.corpus.val

    def text_in_words(self) -> str:
        """What it is trained on, and what it is measured by."""
        text: str = self.corpus.in_words()
        return (
            f"{text}\na token takes {self.flops / 1e6:,.1f} million operations, in {self.settings.dtype};\n"
            f"MFU is their share of {self.peak / 1e12:.3g} TFLOP/s ({self.peak_from})"
        )

    def utilisation(self, tokens_per_second: float) -> float:
        """The model's operations a second over the peak of all ranks' devices."""
        return tokens_per_second * self.flops / self.peak

    def speed(self, tokens_per_second: float) -> dict[str, Any]:
        """What metrics.jsonl says of the speed."""
        return {**super().speed(tokens_per_second), "mfu": round(self.utilisation(tokens_per_second), 4)}

    def speed_in_words(self, tokens_per_second: float) -> str:
        """What the bar says of it."""
        return f"{super().speed_in_words(tokens_per_second)}, MFU {100 * self.utilisation(tokens_per_second):.1f} %"

    def workers(self) -> str:
        """Who computes, in words."""
        device, world = self.model.device, self.comm.world_size
        return super().workers() if device.type == "cpu" else f"on {world} x {minigrad.cuda.get_device_name(device)}"

    def how_to_resume(self) -> str:
        """The command that goes on with this run."""
        device = self.model.device.type
        return super().how_to_resume() + (f" --device {device}" if device != "cpu" else "")

    def captures(self) -> bool:
        """Whether a step is captured."""
        return self.graph

    def loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of a batch, in the run's dtype."""
        trainer: SimpleTrainer = self.trainer
        with trainer.autocast() if isinstance(trainer, AmpTrainer) else contextlib.nullcontext():
            return self.model.loss(x, y)

    def prompt(self) -> np.ndarray:
        """Samples begin a new text, or go on with the training's first token."""
        first = end_of_text(self.run.tokenizer)
        return np.array([self.corpus.train[0][0] if first is None else first], np.int64)

    def sample(self) -> str:
        """Some text of the model's own, of tokens that the tokenizer knows."""
        tokenizer, s = self.run.tokenizer, self.settings
        prompt = minigrad.tensor(self.prompt()[None], device=self.model.device)
        out = self.model.generate(prompt, s.sample_chars, top_k=40, seed=s.seed).cpu().numpy()[0, 1:]
        return str(tokenizer.decode(out[out < tokenizer.vocab_size]))


if __name__ == "__main__":
    run_cli(main)
