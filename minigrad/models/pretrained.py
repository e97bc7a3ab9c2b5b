"""Folders of weights in Hugging Face's format: ``config.json`` beside ``model.safetensors``, or beside shards and their
``model.safetensors.index.json``.

The headers of all files are checked against the model before any weights are read. The weights are then read one
tensor at a time. Folders come from anywhere: every fault is a `CheckpointError` that names the file.
"""

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from .. import nn
from ..autograd import no_grad
from ..creation import zeros
from ..device import CPU, Place
from ..dtypes import default_dtype, float32
from ..errors import bad_value, located
from ..files import durable, sha256sums
from ..files.durable import StrPath
from ..files.safetensors_format import CheckpointError, encode, faults_of, iter_arrays, read_header, read_json, show
from ..tensor import Tensor
from ..tools.free_memory import check_model_fits
from .hub_config import CONFIG, HubConfig

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD = "lm_head.weight"
MAX_INDEX = 16 << 20  # bytes
_SHARD = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\.safetensors")  # a name in the folder, not a path
_OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}

Shapes = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # and dtypes, by name
Model = TypeVar("Model", bound="HubModel")


class HubModel(nn.Module):
    """A model that Hugging Face's folders hold. Families say how it is stored."""

    config: Any

    model_types: ClassVar[tuple[str, ...]]  # "model_type" in config.json
    config_class: ClassVar[Any]  # with from_hub and to_hub
    hub_prefix: ClassVar[str]  # before the names of all tensors but the head's
    hub_buffers: ClassVar[re.Pattern[str]]  # tensors in old files that are no weights: masks and frequencies
    hub_transposed: ClassVar[re.Pattern[str]]  # weights that are stored (in, out)

    def __init__(self, config: Any) -> None:
        super().__init__()
        if not nn.init.skipping():
            check_model_fits(config, np.dtype(default_dtype()).itemsize)
        self.config = config

    @property
    def embedding(self) -> nn.Embedding:
        """The token embedding."""
        raise located(NotImplementedError(f"{type(self).__name__} has no embedding"))

    @classmethod
    def from_pretrained(
        cls: type[Model], folder: StrPath, *, dtype: Any = None, device: Place = CPU, dropout: float | None = None
    ) -> Model:
        """Read ``config.json`` and the safetensors of a local folder in Hugging Face's format; in evaluation mode.

        What a ``SHA256SUMS`` in the folder names is checked against it.

        Args:
            folder: with ``model.safetensors``, or shards and ``model.safetensors.index.json``. Weights of any floating
                dtype, tied or untied head, names with the prefix of the whole model or without.
            dtype: of the weights here; None for float32.
            device: where they go.
            dropout: None for the configuration's.

        Raises:
            CheckpointError: a file is missing or damaged, the configuration asks for what this model cannot do, or
                tensors are missing, unexpected or of the wrong shape; the message names them all.
        """
        folder = Path(folder)
        hub = HubConfig(folder)
        kind = hub.get("model_type")
        if kind not in cls.model_types:
            raise hub.error(f"model_type is {show(kind)}, and {cls.__name__} reads {' and '.join(cls.model_types)}")
        with faults_of(hub.path):
            config = cls.config_class.from_hub(hub, dropout)
        hub.finish()
        files = _weight_files(folder)
        stored = _stored_shapes(cls, files, folder)
        # Sizes are claims until the weights have them: none may make this process ask for more memory than they take.
        if config.n_layer > len(stored):
            raise hub.error(f"{config.n_layer} layers, but the weights are {len(stored)} tensors")
        largest = max((size for shape, _ in stored.values() for size in shape), default=0)
        for size in ("vocab_size", "n_embd", "n_inner", "head_size"):
            value = getattr(config, size) or 0
            if value > largest:
                raise hub.error(f"{size} is {value} here, but the largest size of a weight is {largest}")
        try:
            check_model_fits(config, np.dtype(dtype or default_dtype()).itemsize)
            with nn.init.skip_init():
                model = cls(config)
                if dtype is not None or default_dtype() != float32:
                    model.to(dtype=float32 if dtype is None else dtype)
                model.to(device=device)
        except (MemoryError, ValueError) as error:
            raise hub.error(f"a model of these sizes cannot be made: {error}") from error
        _check(model, stored, folder)
        with no_grad():
            _copy(model, files)
        model.eval()
        return model

    def save_pretrained(self, folder: StrPath, *, max_shard_size: int | str = "5GB", checksums: bool = False) -> None:
        """Write ``config.json`` and safetensors that `from_pretrained` and Hugging Face's transformers load.

        Args:
            folder: made if missing; a model in it is replaced, other files stay.
            max_shard_size: bytes, or a number with KB, MB or GB; a larger model becomes several files and an index.
            checksums: write the sha256 of each file into ``SHA256SUMS``, which loading and ``sha256sum -c`` check.

        Raises:
            CheckpointError: the files could not be written. The folder then has no ``config.json`` and does not load.
            ValueError: the size is none, or the model has LoRA layers.
        """
        folder = Path(folder)
        limit = _bytes(max_shard_size)
        if nn.lora.layers(self):
            raise bad_value("save_pretrained: the model has LoRA layers: lora.merge it, or lora.save these alone")
        tensors = _tensors(self)
        shards = _shards(tensors, limit)
        n, dtype = len(shards), str(self.embedding.weight.dtype)
        names = [f"model-{i + 1:05d}-of-{n:05d}.safetensors" for i in range(n)] if n > 1 else [WEIGHTS]
        config = {**self.config.to_hub(), "torch_dtype": dtype}
        with faults_of(folder, " could not be written"):
            durable.make_directories(folder)
            sha256sums.read_sums(folder)  # a bad one is refused before anything is lost
            # Without config.json the folder does not load: weights of two models are never taken for one.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(folder / CONFIG)
            places: dict[str, str] = {}
            for file, shard in zip(names, shards, strict=True):
                data = encode({name: tensors[name] for name in shard}, {"format": "pt"})
                sha256sums.replace_file(folder / file, data, checksums)
                places.update(dict.fromkeys(shard, file))
            if len(shards) > 1:
                total = {"total_size": sum(tensor.data.nbytes for tensor in tensors.values())}
                _write_json(folder / INDEX, {"metadata": total, "weight_map": dict(sorted(places.items()))}, checksums)
            for path in folder.iterdir():
                if (_OURS.fullmatch(path.name) and path.name not in names) or (path.name == INDEX and len(shards) == 1):
                    with sha256sums.renewing(path, checksums=False):
                        path.unlink()
            _write_json(folder / CONFIG, config, checksums)

    def hub_zeros(self) -> dict[str, tuple[int, ...]]:
        """Tensors that the stored format has and this model has not, with their shapes; they are 0."""
        return {}


# ---- reading -------------------------------------------------------------------------------------------------------


def _weight_files(folder: Path) -> dict[Path, dict[str, Any]]:
    """The safetensors files, each with its header's tensors; an index must agree with them."""
    if (folder / WEIGHTS).exists():  # transformers too takes this one before an index
        return {folder / WEIGHTS: read_header(folder / WEIGHTS).tensors}
    path = folder / INDEX
    if not path.exists():
        others = sorted(p.name for p in folder.glob("*.bin"))
        pickles = f"; {others[0]} is a pickle, which can run any code: convert it to safetensors" if others else ""
        raise CheckpointError(f"{folder} has neither {WEIGHTS} nor {INDEX}{pickles}", folder)
    document = read_json(path, MAX_INDEX)
    with faults_of(path):
        places = document.get("weight_map") if isinstance(document, dict) else None
        if not isinstance(places, dict) or not places:
            raise ValueError("it has no weight_map")
        for name, file in places.items():
            if not isinstance(file, str) or not _SHARD.fullmatch(file):
                raise ValueError(f"the file of {show(name)}, {show(file)}, is not the name of a file in the folder")
    files = {folder / file: read_header(folder / file).tensors for file in sorted(set(places.values()))}
    for name, file in places.items():
        if name not in files[folder / file]:
            raise CheckpointError(f"{path}: {show(name)} is not in {file}", path)
    for file_path, tensors in files.items():
        for name in tensors:
            if places.get(name) != file_path.name:
                raise CheckpointError(f"{path}: {show(name)} is in {file_path.name}, but not so in the index", path)
    return files


def _own_name(cls: type[HubModel], name: str) -> str | None:
    """The model's name of a stored tensor; None for a buffer that holds no weights."""
    own = name.removeprefix(cls.hub_prefix)
    return None if cls.hub_buffers.fullmatch(own) else own


def _stored_shapes(cls: type[HubModel], files: dict[Path, dict[str, Any]], folder: Path) -> Shapes:
    """Shape as the model has it, and dtype, of all stored tensors by the model's names."""
    stored: Shapes = {}
    for path, tensors in files.items():
        for name, entry in tensors.items():
            own = _own_name(cls, name)
            if own is None:
                continue
            if own in stored:
                raise CheckpointError(f"{path}: {show(own)} is stored twice, with and without a prefix", path)
            transposed = cls.hub_transposed.fullmatch(own)
            stored[own] = (entry.shape[::-1] if transposed else entry.shape, entry.dtype)
    if not stored:
        raise CheckpointError(f"{folder} holds no weights", folder)
    return stored


def _check(model: HubModel, stored: Shapes, folder: Path) -> None:
    """One error for all tensors that are missing, unexpected, or of another shape or kind."""
    expected = {name: p.shape for name, p in model.named_parameters()}
    redundant = model.hub_zeros()
    if model.config.tied:
        redundant[HEAD] = model.embedding.weight.shape
    problems = [f"missing: {name}" for name in expected if name not in stored]
    for name, (shape, dtype) in stored.items():
        wanted = expected.get(name, redundant.get(name))
        if wanted is None:
            problems.append(f"unexpected: {show(name)}")
        elif shape != wanted:
            problems.append(f"shape: {name} is {shape}, expected {wanted}")
        elif dtype.kind not in "fV":  # V is bfloat16's
            problems.append(f"dtype: {name} is {dtype}, expected a floating one")
    if problems:
        shown, rest = problems[:20], len(problems) - 20
        listing = "\n  ".join(shown + ([f"and {rest} more"] if rest > 0 else []))
        kind = type(model).__name__
        raise CheckpointError(f"{folder}: the weights do not fit the {kind} of {CONFIG}:\n  {listing}", folder)


def _copy(model: HubModel, files: dict[Path, dict[str, Any]]) -> None:
    """Copy the stored values into the parameters; those without a parameter must say the same as the model."""
    parameters = dict(model.named_parameters())
    dtype = model.embedding.weight.dtype
    head: tuple[Path, Any] | None = None
    for path in files:
        for name, stored in iter_arrays(path):
            own = _own_name(type(model), name)
            if own is None:
                continue
            array = stored.astype(dtype, copy=False)
            if own in parameters:
                parameters[own].copy_(array.T if model.hub_transposed.fullmatch(own) else array)
            elif own == HEAD:
                head = path, array
            elif stored.any():
                raise CheckpointError(f"{path}: {name} is not 0, but {CONFIG} says that there is no bias", path)
    if head is not None and not np.array_equal(head[1], model.embedding.weight.detach().cpu().numpy(), equal_nan=True):
        raise CheckpointError(f"{head[0]}: {HEAD} is not the token embedding, but by {CONFIG} they are tied", head[0])


# ---- writing -------------------------------------------------------------------------------------------------------


def _write_json(path: Path, document: Any, checksums: bool) -> None:
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    sha256sums.replace_file(path, [text.encode()], checksums)


def _bytes(size: int | str) -> int:
    if type(size) is int and size > 0:
        return size
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(KB|MB|GB)", size, re.IGNORECASE) if isinstance(size, str) else None
    if match is None or not (found := int(float(match[1]) * _UNITS[match[2].upper()])):
        raise bad_value(f"max_shard_size={size!r}; expected bytes, or a text like '200MB'")
    return found


def _tensors(model: HubModel) -> dict[str, Tensor]:
    """All tensors of a folder by their stored names, in the model's order."""
    own = {name: p.detach() for name, p in model.named_parameters()}
    own.update({name: zeros(shape, dtype=model.embedding.weight.dtype) for name, shape in model.hub_zeros().items()})
    turned = {name: tensor.T if model.hub_transposed.fullmatch(name) else tensor for name, tensor in own.items()}
    return {name if name == HEAD else model.hub_prefix + name: tensor for name, tensor in turned.items()}


def _shards(tensors: dict[str, Tensor], limit: int) -> list[list[str]]:
    """Names in groups of at most ``limit`` bytes; a larger tensor is a group alone."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, tensor in tensors.items():
        if groups[-1] and filled + tensor.data.nbytes > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += tensor.data.nbytes
    return groups
