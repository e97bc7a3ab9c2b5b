"""Modules that hold modules or parameters: lists, dictionaries, a sequence."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, ClassVar, Generic, TypeVar, overload

from ..errors import bad_index, bad_type, check_int, located
from ..tensor import Tensor
from .module import Module, Parameter

T = TypeVar("T")
Self = TypeVar("Self", bound="_ListOf[Any]")


def _module(owner: Module, value: Any) -> Module:
    name = type(owner).__name__
    if not isinstance(value, Module):
        hint = f"; pass them one by one: {name}(*layers)" if isinstance(value, list | tuple) else ""
        hint = "; write nn.ReLU() for the class nn.ReLU and the function relu" if callable(value) else hint
        raise bad_type(f"{name} holds Modules, not {type(value).__name__}{hint}")
    return value


def _parameter(owner: Module, value: Any) -> Parameter:
    if not isinstance(value, Tensor):
        name = type(owner).__name__
        raise bad_type(f"{name} holds Parameters, not {type(value).__name__}; make it an nn.Parameter")
    return value if isinstance(value, Parameter) else Parameter(value)


class _Holding(Module, Generic[T]):
    """What holds values of one kind: modules or parameters."""

    _kind: ClassVar[str]  # the table of a module in which they are

    def _checked(self, value: Any) -> T:
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Name, shape and dtype of each parameter."""
        return ", ".join(f"({name}): {p.shape} {p.dtype}" for name, p in self._parameters.items())

    @property
    def _table(self) -> dict[str, T]:
        return self.__dict__[self._kind]

    def __len__(self) -> int:
        return len(self._table)


class _ListOf(_Holding[T]):
    """A list of values, named by their index."""

    def append(self: Self, value: Any) -> Self:
        """Add a value at the end; returns the list."""
        setattr(self, str(len(self)), self._checked(value))
        return self

    def extend(self: Self, values: Iterable[Any]) -> Self:
        """Add values at the end; returns the list."""
        for value in list(values):
            self.append(value)
        return self

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, self._name(index), self._checked(value))

    def __getitem__(self, index: int) -> T:
        """The value at ``index``."""
        return self._table[self._name(index)]

    def _name(self, index: int) -> str:
        if not -len(self) <= check_int(f"index of a {type(self).__name__}", index) < len(self):
            raise bad_index(f"index {index} of a {type(self).__name__} of {len(self)}")
        return list(self._table)[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._table.values())


class _DictOf(_Holding[T]):
    """A dictionary of values, named by their keys, in order of insertion."""

    def update(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add or replace values."""
        for key, value in dict(values).items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        value = self._checked(value)
        if not isinstance(key, str) or not key or "." in key or (key not in self._table and hasattr(self, key)):
            name = type(self).__name__
            raise located(KeyError(f"{name}: {key!r} is no key; expected a name without dots that is no attribute"))
        setattr(self, key, value)

    def __getitem__(self, key: str) -> T:
        return self._table[key]

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def __contains__(self, key: object) -> bool:
        return key in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

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


class ModuleList(_ListOf[Module]):
    """A list of modules, children named by their index."""

    _kind = "_modules"
    _checked = _module

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def insert(self, index: int, module: Module) -> None:
        """Add a module before the one at ``index``; the numbers of those behind it grow by one."""
        entries = list(self._modules.items())
        entries.insert(index, ("0", self._checked(module)))
        for name in list(self._modules):
            delattr(self, name)
        for i, (name, child) in enumerate(entries):
            setattr(self, str(i) if name.isdecimal() else name, child)

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> ModuleList: ...
    def __getitem__(self, index: int | slice) -> Module:
        """The module at ``index``; of a slice, a container of the same kind that shares the modules."""
        return self._of(list(self._modules.items())[index]) if isinstance(index, slice) else super().__getitem__(index)

    def _of(self, entries: list[tuple[str, Module]]) -> ModuleList:
        return ModuleList(module for _, module in entries)


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
                raise located(KeyError(f"Sequential: {name!r} is no name: expected one without dots, no attribute"))
            setattr(self, name, self._checked(module))

    def _of(self, entries: list[tuple[str, Module]]) -> Sequential:
        return Sequential(dict(entries))  # with the names that they have here, as in PyTorch

    def forward(self, x: Any) -> Any:
        """The last module's output."""
        for module in self:
            x = module(x)
        return x


class ParameterList(_ListOf[Parameter]):
    """A list of parameters, named by their index; tensors become parameters on the same memory."""

    _kind = "_parameters"
    _checked = _parameter

    def __init__(self, values: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.extend(values)


class ModuleDict(_DictOf[Module]):
    """A dictionary of modules, children named by their keys, in order of insertion."""

    _kind = "_modules"
    _checked = _module

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()) -> None:
        super().__init__()
        self.update(modules)


class ParameterDict(_DictOf[Parameter]):
    """A dictionary of parameters in order of insertion; tensors become parameters on the same memory."""

    _kind = "_parameters"
    _checked = _parameter

    def __init__(self, parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = ()) -> None:
        super().__init__()
        self.update(parameters)
