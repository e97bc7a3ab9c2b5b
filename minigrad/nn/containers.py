"""Modules that hold modules or parameters: lists, dictionaries, a sequence."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Generic, TypeVar, overload

from ..errors import bad_type, located
from ..tensor import Tensor
from .module import Module, Parameter

T = TypeVar("T")


class ModuleList(Module):
    """A list of modules, children named by their index."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> ModuleList:
        """Add a module at the end; returns the list."""
        setattr(self, str(len(self)), self._checked(module))
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end; returns the list."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Add a module before the one at ``index``; the numbers of those behind it grow by one."""
        entries = list(self._modules.items())
        entries.insert(index, ("0", self._checked(module)))
        for name in list(self._modules):
            delattr(self, name)
        for i, (name, child) in enumerate(entries):
            setattr(self, str(i) if name.isdecimal() else name, child)

    def _checked(self, module: Any) -> Module:
        if not isinstance(module, Module):
            hint = f"; pass them one by one: {type(self).__name__}(*layers)" if isinstance(module, list | tuple) else ""
            raise bad_type(f"{type(self).__name__} holds Modules, not {type(module).__name__}{hint}")
        return module

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, list(self._modules)[index], self._checked(module))

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> ModuleList: ...
    def __getitem__(self, index: int | slice) -> Module:
        """The module at ``index``; of a slice, a container of the same kind that shares the modules."""
        if isinstance(index, slice):
            return self._of(list(self._modules.items())[index])
        return list(self._modules.values())[index]

    def _of(self, entries: list[tuple[str, Module]]) -> ModuleList:
        return ModuleList(module for _, module in entries)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)


class NamedValues(Module, Generic[T]):
    """What a dictionary of modules and one of parameters have in common."""

    @property
    def _table(self) -> dict[str, T]:
        raise NotImplementedError

    def __getitem__(self, key: str) -> T:
        return self._table[key]

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def __contains__(self, key: object) -> bool:
        return key in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._table.keys()

    def values(self) -> ValuesView[T]:
        """The values."""
        return self._table.values()

    def items(self) -> ItemsView[str, T]:
        """Names and values."""
        return self._table.items()

    def pop(self, key: str) -> T:
        """Remove a value and return it."""
        value = self._table[key]
        delattr(self, key)
        return value

    def clear(self) -> None:
        """Remove all."""
        for key in list(self._table):
            delattr(self, key)

    def _checked_key(self, key: Any) -> str:
        if not isinstance(key, str) or not key or "." in key or (key not in self._table and hasattr(self, key)):
            name = type(self).__name__
            raise located(KeyError(f"{name}: {key!r} is no key; expected a name without dots that is no attribute"))
        return key


class ModuleDict(NamedValues[Module]):
    """A dictionary of modules, children named by their keys, in order of insertion."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()) -> None:
        super().__init__()
        self.update(modules)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace modules."""
        for key, module in dict(modules).items():
            self[key] = module

    def __setitem__(self, key: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise bad_type(f"ModuleDict holds Modules, not {type(module).__name__}")
        setattr(self, self._checked_key(key), module)

    @property
    def _table(self) -> dict[str, Module]:
        return self._modules


class Sequential(ModuleList):
    """Modules applied one after the other, named by their index; ``Sequential({"head": nn.Linear(4, 2)})`` names
    them.
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        if len(modules) != 1 or not isinstance(modules[0], Mapping):
            super().__init__(modules)  # type: ignore[arg-type]  # a dict among several is refused
            return
        super().__init__()
        for name, module in modules[0].items():
            if not name or "." in name or hasattr(self, name):
                raise located(
                    KeyError(f"Sequential: {name!r} is no name; expected one without dots that is no attribute")
                )
            setattr(self, name, self._checked(module))

    def _of(self, entries: list[tuple[str, Module]]) -> Sequential:
        return Sequential(dict(entries))  # with the names that they have here, as in PyTorch

    def forward(self, x: Any) -> Any:
        """The last module's output."""
        for module in self:
            x = module(x)
        return x


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
