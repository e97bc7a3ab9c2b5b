"""Mesh: ranks as data x pipeline x tensor, and which part of a model each of them has.

    Mesh(comm, data=2, pipeline=2, tensor=2)

                 pipeline 0      pipeline 1
    data 0      [ 0 ][ 1 ] -->  [ 2 ][ 3 ]        a model: two stages, whose layers are split in two
    data 1      [ 4 ][ 5 ] -->  [ 6 ][ 7 ]        the same for other samples
         tensor   0    1          0    1

A stage has a run of the model's blocks; the first also what comes before them, the last what comes after. Weights that
two stages use are on both. Sources: Shoeybi et al., "Megatron-LM" (2019); Narayanan et al., "Efficient large-scale
language model training on GPU clusters" (2021).
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad import Tensor, checkpoint, nn
from minigrad.errors import check_int
from minigrad.models import CausalLM
from minigrad.nn import functional as F
from minigrad.random import drawing_from, generators_for

from ..comm.communicator import Communicator, CommunicatorGroup, all_gather_json
from ..comm.place import on_host
from ..train.blocks import blocks_of
from ..train.checkpoint import from_rank
from ..train.grad_sync import agree_on_settings, broadcast_params
from ..train.trainer_errors import NoShardsError
from .tensor_layers import ColumnParallelLinear, CopyToRanks, RowParallelLinear, SplitModule, VocabParallelEmbedding


@dataclass(frozen=True)
class Split:
    """How a module is split over the ranks of ``tensor``: its Linear layers ``columns`` become column-parallel, then
    ``rows`` row-parallel, and between them is only what works on each part by itself.

    columns: by name, how many projections lie side by side in the layer's outputs
    heads: the attributes that count heads, of which each rank then has its share
    draws: the method between columns and rows that drops out, where each rank draws numbers of its own
    """

    columns: Mapping[str, int]
    rows: tuple[str, ...]
    heads: tuple[str, ...] = ()
    draws: str | None = None


_QKV = {"q_proj": 1, "k_proj": 1, "v_proj": 1}
SPLITS: dict[type[nn.Module], Split] = {
    nn.SelfAttention: Split({"c_attn": 3}, ("c_proj",), ("n_head",), "attend"),
    nn.MLP: Split({"c_fc": 1}, ("c_proj",)),
    nn.GroupedQueryAttention: Split(_QKV, ("o_proj",), ("n_head", "n_kv_head"), "forward"),
    nn.SwiGLU: Split({"gate_proj": 1, "up_proj": 1}, ("down_proj",)),
}
"""By class, subclasses included, how modules are split."""
Splits = Mapping[type[nn.Module], Split]


class Mesh(CommunicatorGroup):
    """The communicators of a rank that is one of ``data`` x ``pipeline`` x ``tensor``, and the parts of a model.

    ::

        mesh = Mesh(comm, tensor=2, pipeline=2)       # data: as many replicas as there are ranks for
        part = mesh.split(GPT2(config))
        trainer = MeshTrainer(trainer_config, part, mesh, shard=1)

    ``data`` None is what the others leave of the communicator's ranks. To make a mesh is a collective of all ranks.
    Raises, on all ranks, ValueError for sizes that do not multiply to the communicator's, and
    CollectiveMismatchError for ranks that pass other sizes.
    """

    def __init__(self, comm: Communicator, *, data: int | None = None, pipeline: int = 1, tensor: int = 1) -> None:
        agree_on_settings(comm, {"data": data, "pipeline": pipeline, "tensor": tensor})
        rest = comm.world_size // (check_int("pipeline", pipeline, 1) * check_int("tensor", tensor, 1))
        super().__init__(comm, data=max(1, rest) if data is None else data, pipeline=pipeline, tensor=tensor)

    @contextmanager
    def alike(self) -> Iterator[None]:
        """What raises an error within it on one rank, and communicates with nobody, raises one on all ranks."""
        problem: Exception | None = None
        try:
            yield
        except Exception as error:  # raised below, when the others know
            problem = error
        told = all_gather_json(self.world, None if problem is None else f"{type(problem).__name__}: {problem}")
        if problem is not None:
            raise problem
        if bad := [f"rank {rank}: {text}" for rank, text in enumerate(told) if text is not None]:
            raise ValueError(bad[0])

    def split(self, model: Any, blocks: str | None = None, splits: Splits | None = None) -> "Part":
        """This rank's part of the model, with rank 0's weights; the model becomes it. A collective of all ranks, each
        of which passes the whole model on the mesh's device.

        With several stages, ``blocks`` names the ModuleList whose modules the stages share (None: the only one); each
        takes and returns one tensor. A language model of ``minigrad.models`` and a Sequential are known. Another model
        says what comes before and after the blocks: it has ``embed`` and ``head``, methods or modules of one tensor.
        What is assigned before the ModuleList goes to the first stage, what comes later to the last, and parameters
        of the model itself to both.

        With several ranks of ``tensor``, modules of the classes in ``SPLITS``, and of your own ones in ``splits``, are
        split, and the embedding and head of a language model. The others are whole on each rank.

        Raises, on all ranks: TypeError for what is no Module; ValueError for fewer blocks than stages, heads that do
        not divide by ``tensor``, layers that cannot be split, and a model without ``embed`` or ``head``; NoShardsError
        for one without anything to split; CollectiveMismatchError for other models on other ranks.
        """
        with self.alike():
            if not isinstance(model, nn.Module):
                raise TypeError(f"split takes a Module, not {type(model).__name__}")
            found = self._to_split(model, {**SPLITS, **(splits or {})})
            path, held = self._to_part(model, blocks)
        broadcast_params(self.world, [*model.named_parameters(), *model.named_buffers()])
        names = {id(p): name for name, p in model.named_parameters()}
        if self.pipeline.world_size > 1:
            self._prune(model, path, held)
        part = Part(model, held, {name: names[id(p)] for name, p in model.named_parameters()}, self)
        here = {id(module) for module in model.modules()}
        for module, split in found:
            if id(module) in here:
                self._split(module, split)
        made: dict[int, nn.Parameter] = {}  # weights may be tied
        for key in [] if part.classes is None else [model.parts[0], "lm_head"]:
            if (kind := ROWS.get(type(layer := getattr(model, key)))) is not None:
                setattr(model, key, new := kind.of(layer, self.tensor))
                new.weight = made.setdefault(layer.weight.id, new.weight)
        part.agree(list(names.values()))
        self._made += [communicator for communicator, _ in part.ties]
        return part

    # ------------------------------------------------------------------ what can be done; nobody is asked

    def _to_split(self, model: nn.Module, splits: Splits) -> list[tuple[nn.Module, Split]]:
        """The modules that are split over ``tensor``."""
        if any(isinstance(module, SplitModule) for module in model.modules()):
            raise ValueError(f"{type(model).__name__} has layers that are split already; pass a whole model")
        n, kinds = self.tensor.world_size, splits.items()
        named = model.named_modules() if n > 1 else ()
        found = [(name, module, rule) for name, module in named for kind, rule in kinds if isinstance(module, kind)]
        if n > 1 and not found:
            known = ", ".join(kind.__name__ for kind in splits)
            raise NoShardsError(f"tensor is {n}, but {type(model).__name__} has no {known} to split; pass splits=")
        vocabulary = [getattr(model, key) for key in (model.parts[0], "lm_head")] if isinstance(model, CausalLM) else []
        odd = [type(layer).__name__ for layer in vocabulary if layer is not None and type(layer) not in ROWS]
        if n > 1 and odd:
            raise ValueError(f"tensor is {n}, but {type(model).__name__} has a {odd[0]} where tokens have rows")
        uses = Counter(id(p) for _, p, _ in model._named_tensors("_parameters", ""))
        for name, module, split in found:
            layers = {key: getattr(module, key) for key in (*split.columns, *split.rows)}
            inner = {id(p) for layer in layers.values() for p in layer.parameters()}
            counts, own = {key: getattr(module, key) for key in split.heads}, list(module.named_parameters())
            bad = [f"has {key}={count}, no multiple of it" for key, count in counts.items() if count % n]
            bad += [f"has no Linear as {key}" for key, layer in layers.items() if type(layer) is not nn.Linear]
            bad += [f"shares {key} with another module" for key, p in own if uses[id(p)] > 1]
            bad += [f"has {key} beside the layers that can be split" for key, p in own if id(p) not in inner]
            if bad:
                raise ValueError(f"tensor is {n}, but {name} ({type(module).__name__}) {bad[0]}")
        return [(module, split) for _, module, split in found]

    def _to_part(self, model: nn.Module, blocks: str | None) -> tuple[str, nn.ModuleList]:
        """The name of the ModuleList that the stages share, and itself."""
        stages, kind = self.pipeline.world_size, type(model).__name__
        if stages == 1:
            return "", model._trunk[0] if isinstance(model, CausalLM) else nn.ModuleList()
        path, held = ("", model) if isinstance(model, nn.Sequential) else blocks_of(model, blocks, "a name")
        if len(held) < stages:
            raise ValueError(f"pipeline is {stages}, but {kind} has {len(held)} blocks, and each stage needs one")
        if not (isinstance(model, KNOWN) or all(callable(getattr(model, end, None)) for end in ("embed", "head"))):
            text = "a model in stages has embed(x), what comes before its blocks, and head(x), what comes after them"
            raise ValueError(f"pipeline is {stages}, but {kind} lacks embed or head: {text}")
        return path, held

    # ------------------------------------------------------------------ what is done

    def _prune(self, model: Any, path: str, blocks: nn.ModuleList) -> None:
        """Leave out of the model what other stages have."""
        stage, stages = self.pipeline.rank, self.pipeline.world_size
        tied = isinstance(model, CausalLM) and model.lm_head is None and stage == stages - 1
        kept = model.embedding if tied else None
        owner: nn.Module = model
        for step in path.split(".") if path else []:
            at = list(owner._modules).index(step)
            for i, (key, child) in enumerate(list(owner.named_children())):
                if i != at and stage != (0 if i < at else stages - 1) and child is not kept:
                    setattr(owner, key, Elsewhere())
            owner = getattr(owner, step)
        begin, end = (-(-len(blocks) * i // stages) for i in (stage, stage + 1))  # the first stages have more
        for i, key in enumerate(list(blocks._modules)):
            if not begin <= i < end:
                delattr(blocks, key)

    def _split(self, module: nn.Module, split: Split) -> None:
        """Give a module this rank's share of its layers."""
        for key, groups in split.columns.items():
            whole = getattr(module, key)
            setattr(module, key, ColumnParallelLinear.of(whole, self.tensor, groups, gather_output=False))
        for key in split.rows:
            setattr(module, key, RowParallelLinear.of(getattr(module, key), self.tensor, input_is_parallel=True))
        for key in split.heads:
            setattr(module, key, getattr(module, key) // self.tensor.world_size)
        if split.draws is not None:
            setattr(module, split.draws, functools.partial(self._drawing, getattr(module, split.draws)))

    def _drawing(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call the method with random numbers of this rank's own; the default generator stays that of all ranks."""
        with drawing_from(generators_for(self.tensor.world_size)[self.tensor.rank]):
            return method(*args, **options)


KNOWN = CausalLM, nn.Sequential
ROWS: dict[type[nn.Module], type[SplitModule]] = {nn.Embedding: VocabParallelEmbedding, nn.Linear: ColumnParallelLinear}
"""What the layers of a language model become that have a row for each token."""


class Elsewhere(nn.Module):
    """In the place of a module that another stage has."""

    def forward(self, *args: Any) -> Any:
        """Raises AttributeError."""
        return self.__getattr__("forward")

    def __getattr__(self, name: str) -> Any:
        uses = "embed(x) uses what is assigned before the blocks, head(x) what is assigned after them"
        share = "which may share its weights (self.head.weight = self.embed.weight)"
        raise AttributeError(f"another stage has this module: {uses}, {share}")


class Part(nn.Module):
    """A rank's part of a model, which ``Mesh.split`` makes; its parameters have the names of the whole model's.

    The first stage takes what the model takes, the others what the stage before returns; the last returns what the
    model does. Of a language model whose vocabulary is split, that is (B, T, classes_r) of ``classes``.
    """

    def __init__(self, model: Any, blocks: nn.ModuleList, names: dict[str, str], mesh: Mesh) -> None:
        super().__init__()
        self.model: Any = model
        self.mesh: Mesh = mesh
        self._names = names
        lm = isinstance(model, CausalLM)
        self.classes: int | None = model.config.vocab_size if lm and mesh.tensor.world_size > 1 else None
        """Over how many classes the last stage's outputs are split; None: they are whole."""
        first, last = mesh.pipeline.rank == 0, mesh.pipeline.rank == mesh.pipeline.world_size - 1
        remade = lm and model.config.checkpoint_blocks
        run: list[Any] = [functools.partial(checkpoint, block) if remade else block for block in blocks]
        if first and last and self.classes is None:
            run = [model]
        elif not isinstance(model, nn.Sequential):
            embed, head = (self._tokens, self._logits) if lm else (model.embed, model.head)
            run = [embed] * first + run + [head] * last
        self._run = run

    def _tokens(self, tokens: Tensor) -> Tensor:
        self.model._check_tokens(tokens, None)
        return self.model._embed(tokens, None)

    def _logits(self, x: Tensor) -> Tensor:
        x = CopyToRanks.apply(self.model._trunk[1](x), communicator=self.mesh.tensor)
        return F.linear(x, self.model._head.weight)

    def forward(self, x: Tensor) -> Tensor:
        """This rank's part of the model's."""
        for module in self._run:
            x = module(x)
        return x

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
        """Those of the model that are here, with their names there."""
        return self.model.named_modules(prefix)

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
        """Those of the model that are here, with their names there."""
        start = f"{prefix}." if prefix else ""
        return ((start + self._names[name], p) for name, p in self.model.named_parameters())

    def agree(self, order: list[str]) -> None:
        """When the layers are split: which stages have which of the model's parameters, ``order``. A collective."""
        pipeline, params = self.mesh.pipeline, dict(self.named_parameters())
        held = all_gather_json(pipeline, [*params])
        stages = {name: tuple(i for i, names in enumerate(held) if name in names) for name in order}
        self.order: list[str] = order
        """The names of the whole model's parameters."""
        self.ties: list[tuple[Communicator, list[Tensor]]] = []
        """Parameters that this stage has together with others, which the communicator connects."""
        for group in sorted({those for those in stages.values() if len(those) > 1}):
            if (communicator := pipeline.split(0 if pipeline.rank in group else None)) is not None:
                self.ties.append((communicator, [params[name] for name in order if stages[name] == group]))
        self.repeated: set[int] = {p.id for name, p in params.items() if stages[name][0] < pipeline.rank}
        """Ids of the parameters that an earlier stage has, too."""
        layers = [(path, layer) for path, layer in self.model.named_modules() if isinstance(layer, SplitModule)]
        self.cuts: dict[str, tuple[SplitModule, int | None]] = {
            self._names.get(f"{path}.{key}", ""): (layer, dim)
            for path, layer in layers
            for key, dim in layer.split.items()
        }
        """By the name of a parameter of a layer that is split, the layer, and along which dimension."""

    def whole(self, values: Mapping[str, Tensor], before: int = 0) -> dict[str, np.ndarray]:
        """The values of all ranks, put together: what belongs to each parameter or buffer of the whole model. The name
        of that is what comes after ``before`` points of a key. A collective of all ranks, each of which gets all."""
        mine, found, pipeline = dict[str, np.ndarray](), dict[str, np.ndarray](), self.mesh.pipeline
        for key, value in values.items():
            layer, dim = self.cuts.get(key.split(".", before)[before], (None, None))
            mine[key] = on_host(value if layer is None else layer.joined(value, dim))
        told = all_gather_json(pipeline, {key: [array.shape, array.dtype.name] for key, array in mine.items()})
        for stage, arrays in enumerate(told):
            for key in [key for key in arrays if key not in found]:
                found[key] = from_rank(pipeline, mine.get(key, np.empty(*arrays[key])), stage)
        return found

    def whole_state(self) -> dict[str, np.ndarray]:
        """The ``state_dict`` of the whole model. A collective of all ranks, each of which gets all."""
        return self.whole(self.state_dict())
