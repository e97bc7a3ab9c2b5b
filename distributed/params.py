"""How trainers are told which parameters there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minigrad.grad_store import TensorId
from minigrad.tensor import Tensor

Params = Mapping[TensorId, Tensor] | Iterable[Tensor | tuple[str, Tensor]]
Named = list[tuple[str, Tensor]]


def named_params(params: Params) -> Named:
    """Pairs (name, tensor) of boostr's ``{TensorId: Tensor}``, of tensors, or of such pairs.

    A tensor without a name is called by its position. A mapping is taken in order of its ids, that of creation: not
    that of insertion, which may change.
    """
    entries = [params[key] for key in sorted(params)] if isinstance(params, Mapping) else list(params)
    return [entry if isinstance(entry, tuple) else (str(i), entry) for i, entry in enumerate(entries)]
