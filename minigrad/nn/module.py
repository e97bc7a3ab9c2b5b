"""Module and Parameter: named trees of weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .. import hints
from ..autograd import no_grad
from ..device import Device
from ..dtypes import is_floating
from ..errors import located
from ..tensor import Tensor
from . import summary
from .hooks import RemovableHandle


class Parameter(Tensor):
    """A tensor that a Module trains: a leaf that requires grad, sharing memory with ``data`` if that is a Tensor."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        source = data if isinstance(data, Tensor) else Tensor(data)
        self._init(source.data, source.device, source._version)
        self.requires_grad_(requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


_walks: dict[int, tuple[weakref.ref[Module], list[tuple[str, Parameter]]]] = {}
"""By the ``id`` of a module, what ``named_parameters`` found, until any module gets or loses a parameter or a child."""


def _forget_walks() -> None:
    # Not cleared: a thread that is walking now enters what it finds into the old dictionary, which nobody reads again.
    global _walks
    _walks = {}


class Module:
    """A layer or model: Parameters, buffers and child Modules, which are attributes.

    Subclasses call ``super().__init__()``, assign parameters and children as attributes, and define ``forward``.
    A parameter reachable by several names (tied weights) is one parameter: it is listed, counted, saved and trained
    once, under the first name.
    """

    training: bool
    _modules: dict[str, Module]

    def __init__(self) -> None:
        # The tables list attributes by kind, in order; reading one takes no look at them.
        self.__dict__.update(_parameters={}, _buffers={}, _modules={}, _transient=set(), training=True)
        self.__dict__.update(_forward_pre_hooks={}, _forward_hooks={})
        _forget_walks()  # it may be initialised a second time

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation; subclasses define it."""
        raise located(
            NotImplementedError(
                f"{type(self).__name__} has no forward: define it; of a list or dictionary, call the modules"
            )
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_pre_hooks:
            for pre_hook in tuple(self._forward_pre_hooks.values()):
                changed = pre_hook(self, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        y = self.forward(*args, **kwargs)
        if self._forward_hooks:
            for hook in tuple(self._forward_hooks.values()):
                changed = hook(self, args, y)
                if changed is not None:
                    y = changed
        return y

    def register_forward_pre_hook(self, hook: Callable[[Any, tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call ``hook(module, args)`` before each forward; a result other than None replaces the positional args."""
        return RemovableHandle(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[[Any, tuple[Any, ...], Any], Any]) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after each forward; a result other than None replaces the output."""
        return RemovableHandle(self._forward_hooks, hook)

    # ------------------------------------------------------------------ attributes

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if "_parameters" not in own:
            raise located(AttributeError(f"{type(self).__name__}: call super().__init__() before assigning {name!r}"))
        if isinstance(value, Parameter):
            table = own["_parameters"]
        elif name in own["_parameters"]:
            if value is not None:
                raise located(
                    TypeError(
                        f"cannot assign {type(value).__name__} as parameter {name!r} of {type(self).__name__}: "
                        "expected an nn.Parameter or None (to set its values: with no_grad(): parameter.copy_(values))"
                    )
                )
            table = own["_parameters"]
        elif isinstance(value, Module):
            table = own["_modules"]
        elif name in own["_buffers"] and (value is None or isinstance(value, Tensor)):
            table = own["_buffers"]
        else:
            table = None
        self._write_attribute(name, value, table)

    def _write_attribute(self, name: str, value: Any, table: dict[str, Any] | None) -> None:
        """Set an attribute and its entry in the table of its kind; no other code writes to the tables."""
        own = self.__dict__
        listed = table is not None
        for other in (own["_parameters"], own["_buffers"], own["_modules"]):
            if other is not table and name in other:
                del other[name]
                listed = True
        if table is not None:
            table[name] = value  # keeps its place in the order if it had one
        own[name] = value
        if listed:
            _forget_walks()

    def __delattr__(self, name: str) -> None:
        own = self.__dict__
        if name not in own:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self._write_attribute(name, None, None)
        del own[name]

    def __getattr__(self, name: str) -> Any:  # only called when there is no such name
        raise hints.missing("Module", name, dir(self), type(self).__name__)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Keep a tensor that is not trained but belongs to the module; saved in ``state_dict`` if persistent."""
        if "." in name or not name or hasattr(self, name):
            raise located(ValueError(f"register_buffer: {name!r} is taken or no attribute name"))
        self._write_attribute(name, tensor, self._buffers)
        (self._transient.discard if persistent else self._transient.add)(name)

    # ------------------------------------------------------------------ walking the tree

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, with dotted names, each once."""
        seen = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            if module._modules:
                children = [(f"{name}.{key}" if name else key, child) for key, child in module._modules.items()]
                stack.extend(reversed(children))

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def children(self) -> Iterator[Module]:
        """The modules directly below."""
        return iter(self._modules.values())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below, with their names."""
        return iter(self._modules.items())

    def apply(self, fn: Callable[[Module], None]) -> Module:
        """Call ``fn`` on this module and all below it; returns the module."""
        for module in self.modules():
            fn(module)
        return self

    def _named_tensors(
        self, table: str, prefix: str, skip_transient: bool = False
    ) -> Iterator[tuple[str, Tensor, bool]]:
        """(name, tensor, seen before under another name) of every entry of the table in the tree."""
        seen = set()
        for path, module in self.named_modules(prefix):
            tensors = module.__dict__[table]
            if not tensors:
                continue
            start = f"{path}." if path else ""
            for key, tensor in tensors.items():
                if tensor is None or (skip_transient and key in module._transient):
                    continue
                yield start + key, tensor, id(tensor) in seen
                seen.add(id(tensor))

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """All parameters with dotted names, shared ones once, under their first name."""
        named = self._walk()
        return ((f"{prefix}.{name}", parameter) for name, parameter in named) if prefix else iter(named)

    def _walk(self) -> list[tuple[str, Parameter]]:
        """``named_parameters`` without a prefix; kept, because a step of training asks for it."""
        walks, key = _walks, id(self)
        known = walks.get(key)
        if known is not None:
            return known[1]
        named = self._named_tensors("_parameters", "")
        found: list[tuple[str, Parameter]] = [(name, p) for name, p, again in named if not again]  # type: ignore[misc]
        walks[key] = weakref.ref(self, lambda _: _walks.pop(key, None)), found
        return found

    def parameters(self) -> Iterator[Parameter]:
        """All parameters, shared ones once."""
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """All buffers with dotted names."""
        return ((name, buffer) for name, buffer, again in self._named_tensors("_buffers", prefix) if not again)

    def buffers(self) -> Iterator[Tensor]:
        """All buffers."""
        return (buffer for _, buffer in self.named_buffers())

    def num_parameters(self) -> int:
        """Number of parameter elements, shared ones once."""
        return sum(parameter.numel() for parameter in self.parameters())

    # ------------------------------------------------------------------ modes, devices, dtypes

    def train(self, mode: bool = True) -> Module:
        """Training mode (dropout active) for the whole tree; returns the module."""
        for module in self.modules():
            module.__dict__["training"] = mode
        return self

    def eval(self) -> Module:
        """Evaluation mode for the whole tree; returns the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Train (or freeze) all parameters; returns the module."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def to(self, *args: Any, dtype: Any = None, device: str | Device | None = None) -> Module:
        """Convert parameters and buffers in place, keeping their ids; returns the module.

        Only floating ones change their dtype; all move to another device.
        """
        tensors = [*self.parameters(), *self.buffers()]
        with no_grad():
            converted = [tensor.detach().to(*args, dtype=dtype, device=device) for tensor in tensors]
        for i, (tensor, new) in enumerate(zip(tensors, converted, strict=True)):
            if tensor.is_floating_point() and not new.is_floating_point():
                raise located(
                    TypeError(f"{type(self).__name__}.to: weights are floating tensors, {new.dtype} is no such dtype")
                )
            if not tensor.is_floating_point():
                converted[i] = tensor.detach().to(device=new.device)
        for tensor, new in zip(tensors, converted, strict=True):
            tensor.data, tensor.device = new.data, new.device
            tensor.bump_version()
        return self

    def cpu(self) -> Module:
        """Parameters and buffers on the CPU."""
        return self.to(device="cpu")

    def cuda(self, device: str | Device | int = "cuda") -> Module:
        """Parameters and buffers on a GPU (default: the first), by its Device, name or index."""
        return self.to(device=f"cuda:{device}" if isinstance(device, int) else device)

    def double(self) -> Module:
        """Parameters and floating buffers as float64."""
        return self.to(np.float64)

    def float(self) -> Module:
        """Parameters and floating buffers as float32."""
        return self.to(np.float32)

    def half(self) -> Module:
        """Parameters and floating buffers as float16."""
        return self.to(np.float16)

    def bfloat16(self) -> Module:
        """Parameters and floating buffers as bfloat16."""
        return self.to("bfloat16")

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters (shared ones once) and persistent buffers by name; the tensors share memory with the module."""
        state = {name: parameter.detach() for name, parameter in self.named_parameters()}
        for name, buffer, again in self._named_tensors("_buffers", "", skip_transient=True):
            if not again:
                state[name] = buffer.detach()
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Copy values (tensors or arrays) into the parameters and persistent buffers of the same names.

        A shared parameter may come under any of its names. With ``strict``, names must match exactly. Shapes and kinds
        must always. All is checked before anything is copied; ValueError lists every missing, unexpected and
        mismatched name. Values are cast between floating dtypes.
        """
        if not isinstance(state, Mapping):
            raise located(
                TypeError(
                    f"load_state_dict takes a mapping from names to arrays, not {type(state).__name__}; "
                    "minigrad.serialization.load_safetensors(path) reads one"
                )
            )
        own: dict[str, Tensor] = {}
        first: dict[int, str] = {}
        names: dict[str, list[str]] = {}
        for table in ("_parameters", "_buffers"):
            for name, tensor, _ in self._named_tensors(table, "", skip_transient=True):
                own[name] = tensor
                names.setdefault(first.setdefault(id(tensor), name), []).append(name)
        problems = [
            f"missing: {name}" for name, all_names in names.items() if strict and not any(n in state for n in all_names)
        ]
        problems += [f"unexpected: {name}" for name in state if strict and name not in own]
        for name, tensor in own.items():
            if name in state:
                value = state[name]
                if tuple(value.shape) != tensor.shape:
                    problems.append(f"shape: {name} is {tuple(value.shape)} in the state, {tensor.shape} in the module")
                elif is_floating(value.dtype) != tensor.is_floating_point():
                    problems.append(f"dtype: {name} is {value.dtype} in the state, {tensor.dtype} in the module")
        for all_names in names.values():
            given = [n for n in all_names if n in state]
            if len(given) > 1 and not all(_equal(state[given[0]], state[n]) for n in given[1:]):
                problems.append(f"shared: {' and '.join(given)} are one parameter but have different values")
        if problems:
            listing = "\n  ".join(problems)
            raise located(ValueError(f"{type(self).__name__}: the state does not fit the module:\n  {listing}"))
        with no_grad():
            for name, tensor in own.items():
                if name in state:
                    tensor.copy_(state[name])

    def summary(self) -> str:
        """A table of all parameters and buffers with their shapes, numbers of elements and memory, and the totals."""
        return summary.table(self)

    def extra_repr(self) -> str:
        """What ``repr`` shows between the parentheses; layers say their sizes."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {child!r}" for name, child in self._modules.items()]
        inner = "\n".join(lines).replace("\n", "\n  ")
        extra = self.extra_repr()
        body = f"\n  {extra}\n  {inner}\n" if lines and extra else f"\n  {inner}\n" if lines else extra
        return f"{type(self).__name__}({body})"


def _equal(a: Any, b: Any) -> bool:
    a, b = (np.asarray(t.data if isinstance(t, Tensor) else t) for t in (a, b))
    return bool(np.array_equal(a, b, equal_nan=is_floating(a.dtype) and is_floating(b.dtype)))
