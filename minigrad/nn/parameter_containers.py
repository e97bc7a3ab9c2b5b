"""Modules that hold parameters: a list, a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import bad_type
from ..tensor import Tensor
from .containers import NamedValues
from .module import Module, Parameter


class ParameterList(Module):
    """A list of parameters, named by their index; tensors become parameters on the same memory."""

    def __init__(self, values: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.extend(values)

    def append(self, value: Tensor) -> ParameterList:
        """Add a parameter at the end; returns the list."""
        setattr(self, str(len(self)), _parameter(self, value))
        return self

    def extend(self, values: Iterable[Tensor]) -> ParameterList:
        """Add parameters at the end; returns the list."""
        for value in list(values):
            self.append(value)
        return self

    def __getitem__(self, index: int) -> Parameter:
        return list(self)[index]

    def __setitem__(self, index: int, value: Tensor) -> None:
        setattr(self, list(self._parameters)[index], _parameter(self, value))

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._parameters.values())

    def __len__(self) -> int:
        return len(self._parameters)


class ParameterDict(NamedValues[Parameter]):
    """A dictionary of parameters in order of insertion; tensors become parameters on the same memory."""

    def __init__(self, parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = ()) -> None:
        super().__init__()
        self.update(parameters)

    def update(self, parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> None:
        """Add or replace parameters."""
        for key, value in dict(parameters).items():
            self[key] = value

    def __setitem__(self, key: str, value: Tensor) -> None:
        setattr(self, self._checked_key(key), _parameter(self, value))

    @property
    def _table(self) -> dict[str, Parameter]:
        parameters: dict[str, Parameter] = self._parameters
        return parameters


def _parameter(owner: Module, value: Any) -> Parameter:
    if not isinstance(value, Tensor):
        name = type(owner).__name__
        raise bad_type(f"{name} holds Parameters, not {type(value).__name__}; make it an nn.Parameter")
    return value if isinstance(value, Parameter) else Parameter(value)
