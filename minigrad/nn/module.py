"""Module and Parameter: named trees of weights."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from .. import hints
from ..device import Place
from ..errors import bad_type, bad_value, located
from ..modes import Closing, of_thread
from ..plans import PLANS, choose
from ..tensor import Tensor
from . import module_state


class Parameter(Tensor):
    """A tensor that a Module trains: a leaf that requires grad, sharing memory with ``data`` if that is a Tensor."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        source = data if isinstance(data, Tensor) else Tensor(data)
        self._init(source.data, source.device, source._version)
        self.requires_grad_(requires_grad)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "data" and isinstance(value, Tensor):  # as PyTorch takes it
            if value.device != self.device:
                raise bad_value(f"p.data = a tensor on {value.device}, of a parameter on {self.device}: use .to(...)")
            value = value.data
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


_hook_ids = itertools.count()


class RemovableHandle(Closing):
    """Takes a hook back: by ``remove()``, or at the end of a ``with`` block."""

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self._hooks, self._id = hooks, next(_hook_ids)
        hooks[self._id] = hook

    def remove(self) -> None:
        """Forget the hook; again is no error."""
        self._hooks.pop(self._id, None)

    close = remove


_walks: dict[int, tuple[weakref.ref[Module], list[tuple[str, Parameter]]]] = {}
"""By the ``id`` of a module, what ``named_parameters`` found, until any module gets or loses a parameter or a child."""


def _forget_walks() -> None:
    # Not cleared: a thread that is walking now enters what it finds into the old dictionary, which nobody reads again.
    global _walks
    _walks = {}


_writes = itertools.count(1)


class Module:
    """A layer or model: Parameters, buffers and child Modules, which are attributes.

    Subclasses call ``super().__init__()``, assign parameters and children as attributes, and define ``forward``.
    A parameter reachable by several names (tied weights) is one parameter: it is listed, counted, saved and trained
    once, under the first name.
    """

    training: bool
    last_write: ClassVar[int] = 0
    """The number of the latest change of any module's attributes: what was found before it may have changed."""
    _modules: dict[str, Module]
    _forward_of_library: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("minigrad."):
            cls._forward_of_library = cls.forward

    def __init__(self) -> None:
        # The tables list attributes by kind, in order; reading an attribute does not use them.
        self.__dict__.update(_parameters={}, _buffers={}, _modules={}, _transient=set(), training=True)
        self.__dict__.update(_forward_pre_hooks={}, _forward_hooks={})
        _forget_walks()  # it may be initialised a second time

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation; subclasses define it."""
        raise located(NotImplementedError(f"{type(self).__name__} has no forward: define it, or call its modules"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = of_thread.mode.recorder
        if recorder is not None:
            recorder.entered(self)
        if self._forward_pre_hooks:
            for pre_hook in tuple(self._forward_pre_hooks.values()):
                changed = pre_hook(self, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        method, plan = type(self).forward, None
        if method in PLANS and "forward" not in self.__dict__:
            plan = choose(method, self, args, kwargs)
        y = self.forward(*args, **kwargs) if plan is None else plan.run(self, *args, **kwargs)
        if self._forward_hooks:
            for hook in tuple(self._forward_hooks.values()):
                changed = hook(self, args, y)
                if changed is not None:
                    y = changed
        if recorder is not None:
            recorder.left(self)
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
                what = f"{type(value).__name__} as parameter {name!r} of {type(self).__name__}"
                remedy = "to set its values: with no_grad(): parameter.copy_(values)"
                raise bad_type(f"cannot assign {what}: expected an nn.Parameter or None ({remedy})")
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
        Module.last_write = next(_writes)
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
            raise bad_value(f"register_buffer: {name!r} is taken or no attribute name")
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

    def _named_tensors(self, table: str, prefix: str, saved_only: bool = False) -> Iterator[tuple[str, Tensor, bool]]:
        """(name, tensor, seen before under another name) of every entry of the table in the tree."""
        seen = set()
        for path, module in self.named_modules(prefix):
            tensors = module.__dict__[table]
            if not tensors:
                continue
            start = f"{path}." if path else ""
            for key, tensor in tensors.items():
                if tensor is None or (saved_only and key in module._transient):
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
        Module.last_write = next(_writes)
        return self

    def eval(self) -> Module:
        """Evaluation mode for the whole tree; returns the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Train (or freeze) all parameters; returns the module."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def to(self, *args: Any, dtype: Any = None, device: Place | None = None, non_blocking: bool = False) -> Module:
        """Convert parameters and buffers in place, keeping their ids; returns the module.

        Only floating ones change their dtype; all move to another device, as by ``Tensor.to``.
        """
        module_state.convert(self, *args, dtype=dtype, device=device, non_blocking=non_blocking)
        return self

    def cpu(self) -> Module:
        """Parameters and buffers on the CPU."""
        return self.to(device="cpu")

    def cuda(self, device: Place | int = "cuda") -> Module:
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
        for name, buffer, again in self._named_tensors("_buffers", "", saved_only=True):
            if not again:
                state[name] = buffer.detach()
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> module_state.IncompatibleKeys:
        """Copy values (tensors or arrays) into the parameters and persistent buffers of the same names.

        A shared parameter may come under any of its names. With ``strict``, names must match exactly. Shapes and kinds
        must always. All is checked before anything is copied; ValueError lists every missing, unexpected and
        mismatched name. Values are cast between floating dtypes. Returns ``(missing_keys, unexpected_keys)``, the names
        that were passed over: none with ``strict``.
        """
        return module_state.load(self, state, strict)

    def summary(self) -> str:
        """A table of all parameters and buffers with their shapes, numbers of elements and memory, and the totals."""
        return module_state.table(type(self).__name__, [*self.named_parameters()], [*self.named_buffers()])

    _shown: ClassVar[str] = ""

    def extra_repr(self) -> str:
        """What ``repr`` shows between the parentheses: layers say their sizes, by default attributes in ``_shown``."""
        return self._shown.format_map(self.__dict__)

    def __repr__(self) -> str:
        lines = [f"({name}): {child!r}" for name, child in self._modules.items()]
        inner = "\n".join(lines).replace("\n", "\n  ")
        extra = self.extra_repr()
        body = f"\n  {extra}\n  {inner}\n" if lines and extra else f"\n  {inner}\n" if lines else extra
        return f"{type(self).__name__}({body})"


Module._forward_of_library = Module.forward


def unmodified(module: Module) -> bool:
    """Whether calling ``module`` runs the ``forward`` that this library gave its class, and nothing else: it has no
    hooks, and neither the module nor a class of other code has a ``forward`` of its own."""
    own, kind = module.__dict__, type(module)
    return (
        kind.forward is kind._forward_of_library
        and not own["_forward_hooks"]
        and not own["_forward_pre_hooks"]
        and "forward" not in own
    )
