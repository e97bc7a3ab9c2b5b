"""Plan a training before its ranks are there: ``python -m minigrad.distributed.plan --model gpt2-xl --gpus 8,64,512``.

Memory, bytes and time of a step follow from sizes and from the rates that a machine reaches, for every mesh (data x
tensor x pipeline), stage of ZeRO, micro-batch, and with and without recomputing activations. docs/planning.md has the
formulas, and compares them with published runs and with steps on CPUs.

Sources: Rajbhandari et al., "ZeRO" (2020), for memory and bytes of sharded states; Narayanan et al., "Efficient
large-scale language model training on GPU clusters using Megatron-LM" (2021), for tensors, pipelines and their bubble.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

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


@dataclass(frozen=True)
class Job:
    """A GPT-2 to train with ``batch`` sequences of ``config.block_size`` tokens a step, on all ranks together. With a
    half ``dtype`` AdamW keeps float32 masters. ``scores``: attention computes and keeps all scores."""

    config: GPT2Config
    batch: int
    dtype: str = "bfloat16"
    scores: bool = False

    @cached_property
    def bytes_a_weight(self) -> tuple[int, int, int]:
        """Of a weight, its gradient, and the optimizer's states (ZeRO, section 3.1)."""
        return (4, 4, 8) if self.dtype == "float32" else (2, 2, 12)

    @cached_property
    def weights(self) -> tuple[float, float]:
        """The weights of a layer, and those of the rest."""
        one, two = (gpt2_memory(replace(self.config, n_layer=n), 1, dtype="float32").weights / 4 for n in (1, 2))
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

    @property
    def mesh(self) -> str:
        """The numbers of ranks, as the table has them."""
        return f"{self.data} x {self.tensor} x {self.pipeline}"


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


def state_bytes(weights: float, ranks: int, stage: int, bytes_a_weight: tuple[int, int, int]) -> float:
    """Weights, gradients and the optimizer's states of one of ``ranks`` replicas (ZeRO, sections 3.1 and 5)."""
    return weights * sum(size / (ranks if stage >= kind else 1) for kind, size in zip((3, 2, 1), bytes_a_weight))


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
        weight, grad, _ = self.job.bytes_a_weight
        stage = self.choice.stage
        total = state_bytes(self.weights, self.d, stage, self.job.bytes_a_weight)
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
        return total + max(min(self.p, self.micro_batches) * kept, kept + head / self.t) + temporary

    def micro_batch(self) -> float:
        """Seconds of computing of a micro-batch in the slowest stage, the last one: products, and traffic of memory.

        What a layer keeps is written and read forward; backward reads it, and writes and reads its gradient.
        """
        forward, head = (n / self.t / self.machine.flops for n in self.job.flops(self.choice.micro_batch))
        traffic = (self.kept[0] + self.kept[1] / self.t) / self.machine.bandwidth
        again = self.choice.again
        return self.layers * (forward * (4 if again else 3) + traffic * (7 if again else 5)) + 3 * head

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
        """Bytes and seconds of gradients and weights, and the seconds of these that computing hides.

        Gradients travel beside backward, in stages 2 and 3 of each micro-batch. Stages 1 and 2 send weights after the
        update, stage 3 before a layer's forward and backward, but for the last two layers, which are still there.
        """
        d, m, stage, c = self.d, self.micro_batches, self.choice.stage, self.job.bytes_a_weight
        share, reduced = (d - 1) / d, m if stage > 1 else 1
        grads, weights, hiding = reduced * self.weights * c[1], self.weights * c[0], self.micro_batch()
        messages = (reduced + 1) * math.ceil(self.weights * c[1] / DEFAULT_BUCKET_BYTES)
        if stage == 3:
            weights = m * (weights + max(0, self.layers - 2) * self.layer * c[0])
            messages, hiding = m * 3 * (self.layers + 1), m * hiding
        else:
            hiding *= reduced * (0.75 if self.choice.again else 2 / 3)
        seconds = self.time_of(share * (grads + weights), messages, d, self.link)
        late = share * weights / self.link if stage in (1, 2) else 0  # the seconds that nothing can hide
        return share * (grads + weights), seconds, min(seconds - late, self.machine.overlap * hiding)


def predict(job: Job, machine: Machine, choice: Choice) -> Prediction:
    """A step of ``job`` on the ranks of ``choice``. ``job.batch`` is a multiple of its replicas' micro-batches."""
    sums = _Sums(job, machine, choice)
    m, filling = sums.micro_batches, choice.pipeline - 1
    micro = sums.micro_batch()
    # AdamW reads four arrays and writes three in float32; with masters it moves as many bytes.
    optimizer = 28 * sums.weights / (choice.data if choice.stage else 1) / machine.bandwidth
    (tensor_bytes, tensor), (message_bytes, message) = sums.tensors(), sums.neighbours()
    data_bytes, data, hidden = sums.replicas()
    hidden += 2 * m * message * machine.overlap
    communication = m * (tensor + 2 * message) + data
    return Prediction(
        choice,
        sums.memory(),
        m * (tensor_bytes + min(2, filling) * message_bytes) + data_bytes,
        m * micro + optimizer,
        communication,
        communication - hidden,
        filling * (micro + tensor + 2 * message),
    )


def choices(job: Job, machine: Machine, ranks: int) -> Iterator[Choice]:
    """All ways to share ``job`` between ``ranks``; layers are split within a node only."""
    for tensor in range(1, min(ranks, machine.node, job.config.n_head) + 1):
        for pipeline in range(1, min(ranks, job.config.n_layer) + 1):
            data, left = divmod(ranks, tensor * pipeline)
            if left or job.config.n_head % tensor or job.batch % data:
                continue
            for stage in range(1 if data == 1 else 3 if tensor * pipeline > 1 else 4):  # as MeshTrainer has them
                for k in range((job.batch // data).bit_length()):
                    for again in (False, True) if job.batch // data % 2**k == 0 else ():
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
        smallest = f"{least.choice.mesh} in stage {least.choice.stage}, needs {least.memory / 1e9:.1f} GB"
        room = f"{machine.memory / 1e9:.0f} GB a rank"
        raise PlanError(f"no mesh of {ranks} ranks fits into {room}; the smallest, {smallest}; take more ranks")
    return sorted(best.values(), key=lambda found: (found.seconds, found.memory))


# The command ----------------------------------------------------------------------------------------------------------

SHEETS = {"a100": (312e12, 2.039e12, 300e9), "h100": (989e12, 3.35e12, 450e9)}  # bfloat16, memory, NVLink one way
LINKS = {"nvlink": math.inf, "ib200": 25e9, "ib400": 50e9}  # of each GPU to other nodes; with nvlink there is one node
UNITS = "data x tensor x pipeline, milliseconds"
HEAD = ("mesh", "stage", "micro", "recompute", "GB", "sent GB", "compute", "comm", "exposed", "bubble", "step")


def read_machine(name: str, link: str | None) -> Machine:
    """A GPU with 80 GB whose nodes of 8 ``link`` joins, or a file of measured rates: JSON with the fields of Machine.

    The shares of its data sheet that a GPU reaches are explained in docs/planning.md.
    """
    if name in SHEETS:
        peak, bandwidth, near = SHEETS[name]
        far, node = min(near, LINKS[link or "ib400"]), sys.maxsize if link == "nvlink" else 8
        return Machine(0.7 * peak, 80e9, 0.85 * bandwidth, 0.7 * near, 0.7 * far, node, 1e-5, 0.65)
    if link is not None:
        raise PlanError(f"--link {link}: the links are those of the file {name}; leave --link out")
    try:
        return Machine(**json.loads(Path(name).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        wanted = ", ".join(field.name for field in fields(Machine))
        raise PlanError(f"--machine {name}: {error}; expected {', '.join(SHEETS)} or JSON with {wanted}") from None


def number(flag: str, word: str) -> int:
    """A positive integer of a flag."""
    if not word.isdecimal() or not int(word):
        raise PlanError(f"{flag}: {word!r} is no positive integer")
    return int(word)


def sizes(model: str) -> GPT2Config:
    """A GPT-2 by its name, or by layers, heads and channels."""
    if model not in MODELS and model.count("x") != 2:
        raise PlanError(f"--model {model}: expected {', '.join(MODELS)} or LAYERSxHEADSxCHANNELS, like 96x96x12288")
    layers, heads, channels = MODELS.get(model) or (number("--model", word) for word in model.split("x"))
    try:
        return GPT2Config(n_layer=layers, n_head=heads, n_embd=channels)
    except ValueError as error:
        raise PlanError(f"--model {model}: {str(error).splitlines()[0]}") from None


def table(found: list[Prediction]) -> str:
    """A line for each prediction."""
    rows: list[tuple[str, ...]] = [HEAD]
    for one in found:
        c, times = one.choice, (one.compute, one.communication, one.exposed, one.bubble, one.seconds)
        numbers = (one.memory / 1e9, one.sent / 1e9, *(1e3 * seconds for seconds in times))
        words = str(c.stage), str(c.micro_batch), "yes" if c.again else "no"
        rows.append((c.mesh, *words, *(f"{x:.1f}" for x in numbers)))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(word.rjust(n) for word, n in zip(row, widths)) for row in rows)


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
    parser.add_argument("--top", default="8", help="lines of each table (default 8)")
    args = parser.parse_args(arguments)
    try:
        if args.machine in SHEETS and args.dtype == "float32":
            raise PlanError(f"--dtype float32: the rates of {args.machine} are bfloat16's; give --machine a file")
        batch, top = number("--batch", args.batch), number("--top", args.top)
        counts = [number("--gpus", word) for word in args.gpus.split(",")]
        job, machine = Job(sizes(args.model), batch, args.dtype), read_machine(args.machine, args.link)
        for ranks in counts:
            lines = table(plans(job, machine, ranks)[:top])
            print(f"{args.model}, {batch} sequences a step, {ranks} ranks: {UNITS}\n{lines}\n")
    except PlanError as error:
        print(f"plan: {error}", file=sys.stderr)
        return 2
    return 0
