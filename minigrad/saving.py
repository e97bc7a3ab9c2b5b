"""``save`` and ``load``: nested dicts and lists of tensors and plain values, in one safetensors file, without a pickle.

The tensors are the file's, the rest is JSON in its header. ``serialization.py`` has checkpoints that survive a crash.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from .device import CPU, Place
from .errors import bad_type
from .files.durable import StrPath
from .files.safetensors_format import CheckpointError, faults_of, show
from .serialization import decode_state, encode_state, load_safetensors, safetensors_header, save_safetensors
from .tensor import Tensor

TREE = "minigrad.save"  # the entry of the header that holds the rest
MARKS: dict[str, Callable[[Any], Any]] = {"__tensor__": Tensor.wrap, "__array__": np.asarray}


def save(obj: Any, path: StrPath) -> Path:
    """Write dicts, with strings as keys, and lists of tensors, arrays, numbers, strings, True, False and None.

    ``minigrad.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 100}, "run.pt")``; the
    file appears under its name only when it is complete. Tuples come back as lists.

    Raises CheckpointError for what cannot be stored, TypeError for an object, such as a model, that has a state_dict.
    """
    _check_path("save(obj, path)", path)
    arrays: dict[str, Any] = {}

    def marked(value: Any, name: str) -> Any:
        """The value with a mark in place of each array, which is kept under its path in the value."""
        if isinstance(value, Tensor | np.ndarray):
            while name in arrays:  # as {"a": {"b": x}, "a.b": y} has one path twice
                name += "'"
            arrays[name] = value
            return {"__tensor__" if isinstance(value, Tensor) else "__array__": name}
        if hasattr(value, "state_dict"):
            text = "objects are not saved (loading them would run code): pass its .state_dict()"
            raise bad_type(f"save: {text}" + (f", {name}" if name else ""))
        if isinstance(value, Mapping):
            if MARKS.keys() & value.keys():
                raise CheckpointError(f"{name or 'the object'} has a key of {', '.join(MARKS)}, which save itself uses")
            return {key: marked(item, f"{name}.{key}" if name else str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [marked(item, f"{name}[{index}]") for index, item in enumerate(value)]
        return value

    tree = encode_state({"value": marked(obj, "")}).decode()
    return save_safetensors(path, arrays, {TREE: tree})


def _check_path(called: str, path: Any) -> None:
    if not isinstance(path, str | PathLike):
        raise bad_type(f"{called}: path is a {type(path).__name__}; expected the name of a file, such as 'run.pt'")


def load(path: StrPath, map_location: Place = CPU, weights_only: bool = True) -> Any:
    """What ``save`` wrote, its tensors on the device ``map_location``; of another safetensors file, a dict of tensors.

    ``weights_only`` changes nothing: no file can run code.

    Raises:
        CheckpointError: naming the file and what is wrong with it.
    """
    _check_path("load(path)", path)
    tree = (safetensors_header(path).metadata or {}).get(TREE)
    arrays = load_safetensors(path)

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(item) for item in value]
        if not isinstance(value, dict):
            return value
        for mark, make in MARKS.items():
            if value.keys() == {mark}:
                if (name := str(value[mark])) not in arrays:
                    raise ValueError(f"it names the tensor {show(name)}, which it does not hold")
                found = make(arrays[name])
                return found.to(device=map_location) if isinstance(found, Tensor) else found
        return {key: filled(item) for key, item in value.items()}

    with faults_of(Path(path)):
        if tree is None:
            return filled({name: {"__tensor__": name} for name in arrays})
        return filled(decode_state(tree.encode()).get("value"))
