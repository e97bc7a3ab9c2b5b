"""Plan a training on many ranks before they are there: ``python -m minigrad.distributed.plan --model gpt2-xl --gpus 8``.

Memory, bytes and time of a step follow from sizes and from the rates that a machine reaches, for every mesh (data x
tensor x pipeline), stage of ZeRO, micro-batch, and with and without recomputing activations. docs/planning.md has the
formulas, and compares them with published runs and with steps on CPUs.

Sources: Rajbhandari et al., "ZeRO" (2020), for memory and bytes of sharded states; Narayanan et al., "Efficient
large-scale language model training on GPU clusters using Megatron-LM" (2021), for tensors, pipelines and their bubble.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import minigrad
from minigrad.dtypes import is_half
from minigrad.models import GPT2Config, gpt2_memory

from ..train.buckets import DEFAULT_BUCKET_BYTES

MODELS = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024), "gpt2-large": (36, 20, 1280), "gpt2-xl": (48, 25, 1600)}


class PlanError(ValueError):
    """What cannot be planned, in one line."""


@dataclass(frozen=True)
class Machine:
    """What a rank has, and reaches: ``flops`` of large products a second, ``memory`` in bytes, ``bandwidth`` of it in
    bytes a second, and what it can send: ``near`` bytes a second to the ``node`` ranks beside it, ``far`` to others,
    ``latency`` seconds for a message. ``overlap`` is the share of computing beside which a rank also communicates."""

    flops: float
    memory: float
    bandwidth: float
    near: float
    far: float
    node: int
    latency: float
    overlap: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or not 0 <= value < math.inf or (not value and name != "overlap"):
                raise ValueError(f"{name} is {value!r}, expected a number > 0")

    @classmethod
    def of_sheet(cls, peak: float, bandwidth: float, near: float, far: float) -> Machine:
        """A GPU with 80 GB by its data sheet. The shares of it that are reached are those of docs/planning.md."""
        return cls(0.7 * peak, 80e9, 0.85 * bandwidth, 0.7 * near, 0.7 * far, 8, 1e-5, 0.65)


@dataclass(frozen=True)
class Job:
    """A GPT-2 to train with ``batch`` sequences of ``config.block_size`` tokens a step, on all ranks together. With a
    half ``dtype`` AdamW keeps float32 masters. ``scores``: attention computes and keeps all scores."""

    config: GPT2Config
    batch: int
    dtype: Any = minigrad.bfloat16
    scores: bool = False

    @cached_property
    def bytes_a_weight(self) -> tuple[int, int, int]:
        """Of a weight, its gradient, and the optimizer's states (ZeRO, section 3.1)."""
        return (2, 2, 12) if is_half(self.dtype) else (4, 4, 8)

    @cached_property
    def weights(self) -> tuple[float, float]:
        """The weights of a layer, and those of the rest."""
        one, two = (gpt2_memory(replace(self.config, n_layer=n), 1, dtype=minigrad.float32).weights / 4 for n in (1, 2))
        return two - one, 2 * one - two

    def kept(self, sequences: int) -> tuple[float, float, float, float]:
        """Bytes that are kept for backward: of a layer, what every rank of a tensor group has and what they share; of
        the head; and what is temporary."""
        C, inner = self.config.n_embd, self.config.n_inner or 4 * self.config.n_embd
        report = gpt2_memory(replace(self.config, n_layer=1, checkpoint_blocks=False), sequences, dtype=self.dtype)
        kinds, T = report.activations, self.config.block_size
        scores = 5 * self.config.n_head * T * sequences * T * (self.bytes_a_weight[0] / 2) if self.scores else 0
        whole = kinds["LayerNorm"] * 2 / 3 + kinds["Linear"] + kinds["FeedForward"] * C / (C + inner)
        shared = kinds["PackedAttention"] + kinds["FeedForward"] * inner / (C + inner) + scores
        head = kinds["LayerNorm"] / 3 + kinds["LinearCrossEntropy"] + kinds["Embedding"]
        return whole, shared, head, report.temporary

    def flops(self, sequences: int) -> tuple[float, float]:
        """Operations of a layer's forward, and of the head's."""
        c, tokens = self.config, sequences * self.config.block_size
        inner = c.n_inner or 4 * c.n_embd
        attention = (4 if self.scores else 2) * c.block_size * c.n_embd
        return tokens * (2 * (4 * c.n_embd**2 + 2 * c.n_embd * inner) + attention), tokens * 2 * c.n_embd * c.vocab_size


@dataclass(frozen=True)
class Choice:
    """How the ranks share the work: replicas, ranks of a layer and stages of the pipeline (their product is the ranks);
    which states replicas share (ZeRO's stage, 0 for none); the sequences of a micro-batch of a replica; and whether
    backward computes the activations of each layer again."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    stage: int = 0
    micro_batch: int = 1
    again: bool = False


@dataclass(frozen=True)
class Prediction:
    """Of a rank and a step: bytes that it needs and sends; seconds of computing (the optimizer's among them), of
    communication, of what of that nothing hides, of waiting for the pipeline to fill and to empty, and of all."""

    choice: Choice
    memory: float
    sent: float
    compute: float
    communication: float
    exposed: float
    bubble: float

    @property
    def seconds(self) -> float:
        """Of the step."""
        return self.compute + self.exposed + self.bubble


class _Sums:
    """One choice's parts of a prediction."""

    def __init__(self, job: Job, machine: Machine, choice: Choice) -> None:
        self.job, self.machine, self.choice = job, machine, choice
        self.d, self.t, self.p = choice.data, choice.tensor, choice.pipeline
        self.micro_batches = job.batch // (self.d * choice.micro_batch)
        self.layers = math.ceil(job.config.n_layer / self.p)
        layer, rest = job.weights
        self.layer, self.rest = layer / self.t, rest / self.t
        self.weights = self.layers * self.layer + self.rest
        self.kept = job.kept(choice.micro_batch)
        self.link = machine.near if self.d * self.t * self.p <= machine.node else machine.far

    def memory(self) -> float:
        """States, what is gathered or being reduced, and activations of the stage that has most."""
        weight, grad, states = self.job.bytes_a_weight
        d, stage = self.d, self.choice.stage
        total = self.weights * (
            weight / (d if stage > 2 else 1) + grad / (d if stage > 1 else 1) + states / (d if stage else 1)
        )
        if stage == 2:
            total += 2 * min(DEFAULT_BUCKET_BYTES, self.weights * grad)
        if stage == 3:  # two blocks and the rest are whole, and so are the gradients of two of them
            total += (2 * self.layer + self.rest) * weight + max(2 * self.layer, self.rest) * grad
        whole, shared, head, temporary = self.kept
        layer = whole + shared / self.t
        tokens = self.choice.micro_batch * self.job.config.block_size
        kept = self.layers * (tokens * (4 * self.job.config.n_embd + 4) if self.choice.again else layer)
        if self.choice.again:
            temporary += layer
        first = min(self.p, self.micro_batches) * kept + (head / self.t if self.p == 1 else 0)
        return total + max(first, kept + head / self.t) + temporary

    def micro_batch(self) -> float:
        """Seconds of computing of a micro-batch in the slowest stage, the last one: products, and traffic of memory.

        What a layer keeps is written and read forward; backward reads it, and writes and reads its gradient.
        """
        forward, head = (n / self.t / self.machine.flops for n in self.job.flops(self.choice.micro_batch))
        traffic = (self.kept[0] + self.kept[1] / self.t) / self.machine.bandwidth
        again = self.choice.again
        return self.layers * (forward * (4 if again else 3) + traffic * (7 if again else 5)) + 3 * head

    def optimizer(self) -> float:
        """Seconds of AdamW, which reads four arrays and writes three, or with masters as many bytes."""
        return 28 * self.weights / (self.d if self.choice.stage else 1) / self.machine.bandwidth

    def time_of(self, size: float, messages: float, ranks: int, link: float) -> float:
        """Seconds until each rank has sent ``size`` bytes in some collectives."""
        return size / link + messages * math.log2(ranks) * self.machine.latency

    def tensors(self) -> tuple[float, float]:
        """Bytes and seconds of a micro-batch's all-reduces: two of a layer's output forward, backward, and again."""
        t, c, link = self.t, self.job.config, self.machine.near if self.t <= self.machine.node else self.machine.far
        number = (6 if self.choice.again else 4) * self.layers
        size = self.choice.micro_batch * c.block_size * c.n_embd * self.job.bytes_a_weight[0] * number
        sent = 2 * (t - 1) / t * size
        return sent, self.time_of(sent, 2 * number, t, link)

    def neighbours(self) -> tuple[float, float]:
        """Bytes and seconds of one message between stages; none without others."""
        c, near = self.job.config, self.t * self.p <= self.machine.node
        size = self.choice.micro_batch * c.block_size * c.n_embd * self.job.bytes_a_weight[0] * (self.p > 1)
        return size, self.time_of(size, self.p > 1, 2, self.machine.near if near else self.machine.far)

    def replicas(self) -> tuple[float, float, float]:
        """Bytes and seconds of gradients and weights, and the seconds of computing that may hide them."""
        weight, grad, _ = self.job.bytes_a_weight
        d, m, stage, share = self.d, self.micro_batches, self.choice.stage, (self.d - 1) / self.d
        micro = self.micro_batch()
        backward = micro * (0.75 if self.choice.again else 0.67)
        if stage == 3:
            sent, number, hiding = m * (grad + 2 * weight), 3 * m * (self.layers + 1), m * micro
        else:
            reduced = m if stage == 2 else 1
            sent, hiding = reduced * grad + weight, reduced * backward
            number = (reduced + 1) * math.ceil(self.weights * grad / DEFAULT_BUCKET_BYTES)
        sent *= share * self.weights
        return sent, self.time_of(sent, number, d, self.link), hiding


def predict(job: Job, machine: Machine, choice: Choice) -> Prediction:
    """A step of ``job`` on the ranks of ``choice``. ``job.batch`` is a multiple of its replicas' micro-batches."""
    sums = _Sums(job, machine, choice)
    m, filling = sums.micro_batches, choice.pipeline - 1
    micro = sums.micro_batch()
    (tensor_bytes, tensor), (message_bytes, message) = sums.tensors(), sums.neighbours()
    data_bytes, data, hiding = sums.replicas()
    hidden = min(data, machine.overlap * hiding) + 2 * m * message * machine.overlap
    communication = m * (tensor + 2 * message) + data
    return Prediction(
        choice,
        sums.memory(),
        m * (tensor_bytes + 2 * message_bytes) + data_bytes,
        m * micro + sums.optimizer(),
        communication,
        communication - hidden,
        filling * (micro + tensor + 2 * message),
    )


def choices(job: Job, machine: Machine, ranks: int) -> Iterator[Choice]:
    """All ways to share ``job`` between ``ranks``; layers are split within a node only."""
    for tensor in range(1, min(ranks, machine.node) + 1):
        for pipeline in range(1, job.config.n_layer + 1):
            data, left = divmod(ranks, tensor * pipeline)
            if left or job.config.n_head % tensor or job.batch % data:
                continue
            for stage in range(4 if data > 1 else 1):
                for k in range((job.batch // data).bit_length()):
                    if job.batch // data % 2**k == 0:
                        for again in (False, True):
                            yield Choice(data, tensor, pipeline, stage, 2**k, again)


def plans(job: Job, machine: Machine, ranks: int) -> list[Prediction]:
    """The fastest choice that fits into memory of each mesh and stage, the fastest first. PlanError if none fits."""
    best: dict[tuple[int, ...], Prediction] = {}
    least: Prediction | None = None
    for choice in choices(job, machine, ranks):
        found = predict(job, machine, choice)
        if least is None or found.memory < least.memory:
            least = found
        key = choice.data, choice.tensor, choice.pipeline, choice.stage
        if found.memory <= machine.memory and (key not in best or found.seconds < best[key].seconds):
            best[key] = found
    if least is None:
        raise PlanError(f"no mesh of {ranks} ranks shares {job.batch} sequences evenly; take another --batch")
    if not best:
        raise PlanError(
            f"no mesh of {ranks} ranks fits into {machine.memory / 1e9:.0f} GB a rank: the smallest, {named(least)}, "
            f"needs {least.memory / 1e9:.1f} GB; take more ranks or a smaller model"
        )
    return sorted(best.values(), key=lambda found: found.seconds)



# The command ----------------------------------------------------------------------------------------------------------

SHEETS = {"a100": (312e12, 2.039e12, 300e9), "h100": (989e12, 3.35e12, 450e9)}  # bfloat16, memory, NVLink one way
LINKS = {"nvlink": math.inf, "ib200": 25e9, "ib400": 50e9}  # of each GPU to other nodes; with nvlink there is one node
HEAD = ("mesh", "stage", "micro", "again", "GB", "sent GB", "compute", "comm", "exposed", "bubble", "step", "TFLOP/s")


def read_machine(name: str, link: str | None) -> Machine:
    """A GPU of ``SHEETS`` whose nodes ``link`` joins, or a file of measured rates: JSON with the fields of Machine."""
    if name in SHEETS:
        peak, bandwidth, near = SHEETS[name]
        machine = Machine.of_sheet(peak, bandwidth, near, min(near, LINKS[link or "ib400"]))
        return replace(machine, node=sys.maxsize) if link == "nvlink" else machine
    if link is not None:
        raise PlanError(f"--link {link}: the links are those of the file {name}; leave --link out")
    try:
        return Machine(**json.loads(Path(name).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        wanted = ", ".join(field.name for field in fields(Machine))
        raise PlanError(f"--machine {name}: {error}; expected {', '.join(SHEETS)} or JSON with {wanted}") from None


def numbers(flag: str, text: str, by: str) -> list[int]:
    """The positive integers of a flag."""
    if not all(word.isdecimal() and int(word) for word in text.split(by)):
        raise PlanError(f"{flag} {text}: expected positive integers, like {by.join(('8', '64', '512'))}")
    return [int(word) for word in text.split(by)]


def sizes(model: str) -> GPT2Config:
    """A GPT-2 by its name, or by layers, heads and channels."""
    if model not in MODELS and model.count("x") != 2:
        raise PlanError(f"--model {model}: expected {', '.join(MODELS)} or LAYERSxHEADSxCHANNELS, like 96x96x12288")
    layers, heads, channels = MODELS.get(model) or numbers("--model", model, "x")
    try:
        return GPT2Config(n_layer=layers, n_head=heads, n_embd=channels)
    except ValueError as error:
        raise PlanError(f"--model {model}: {error}") from None


def named(found: Prediction) -> str:
    """A mesh and a stage in words."""
    c = found.choice
    return f"{c.data} x {c.tensor} x {c.pipeline} (data x tensor x pipeline) in stage {c.stage}"


def row(job: Job, ranks: int, found: Prediction) -> tuple[str, ...]:
    """The words of a line of the table."""
    c, (layer, head) = found.choice, job.flops(job.batch)
    rate = 3 * (job.config.n_layer * layer + head) / ranks / found.seconds / 1e12
    times = (found.compute, found.communication, found.exposed, found.bubble, found.seconds)
    mesh = f"{c.data} x {c.tensor} x {c.pipeline}"
    start = (mesh, str(c.stage), str(c.micro_batch), "yes" if c.again else "no")
    return *start, *(f"{x:.1f}" for x in (found.memory / 1e9, found.sent / 1e9, *(1e3 * t for t in times), rate))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each number of ranks, the fastest choice first. Returns 2 for what cannot be planned."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m minigrad.distributed.plan", description=__doc__, formatter_class=kind)
    parser.add_argument("--model", default="gpt2-xl", help=f"{', '.join(MODELS)} or LAYERSxHEADSxCHANNELS")
    parser.add_argument("--gpus", default="8,64,512", help="numbers of ranks (default 8,64,512)")
    parser.add_argument("--machine", default="h100", help=f"{', '.join(SHEETS)} or a JSON file of measured rates")
    parser.add_argument("--link", choices=LINKS, help="of GPUs of different nodes; nvlink: all are one node")
    parser.add_argument("--batch", default="512", help="sequences of 1,024 tokens a step, of all ranks (default 512)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the weights")
    parser.add_argument("--top", default="5", help="lines of each table (default 5)")
    args = parser.parse_args(arguments)
    code = 0
    try:
        if args.machine in SHEETS and args.dtype == "float32":
            raise PlanError(f"--dtype float32: the rates of {args.machine} are bfloat16's; give --machine a file")
        (batch,), (top,) = numbers("--batch", args.batch, ","), numbers("--top", args.top, ",")
        job = Job(sizes(args.model), batch, getattr(minigrad, args.dtype))
        machine, counts = read_machine(args.machine, args.link), numbers("--gpus", args.gpus, ",")
    except PlanError as error:
        parser.exit(2, f"plan: {error}\n")
    for ranks in counts:
        try:
            rows = [HEAD, *(row(job, ranks, found) for found in plans(job, machine, ranks)[:top])]
        except PlanError as error:
            print(f"plan: {error}", file=sys.stderr)
            code = 2
            continue
        widths = [max(map(len, column)) for column in zip(*rows)]
        print(f"{args.model} on {ranks} ranks, {batch} sequences a step; milliseconds; data x tensor x pipeline")
        print("\n".join("  ".join(word.rjust(n) for word, n in zip(line, widths)) for line in rows) + "\n")
    return code
