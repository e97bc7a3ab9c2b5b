"""Elementwise kernels made from scalar rules: z[i] = rule(x0[i], x1[i], ...), for arrays of any strides and numbers.

Most operations are made from the plain kernels' formulas (``made_from``). Others have a rule of their own, a Python
function of numbers, made for the type that it computes in, whose constants have that type:

    def silu(real):
        one = real(1)
        sigmoid = of_formula(plain.sigmoid)(real)      # rules call rules: that is how operations are fused

        def rule(x):
            return x * sigmoid(x)
        return rule

    SILU = Pointwise("silu", silu, floating)      # SILU(x) is one launch

Each ``Pointwise`` has one kernel for each tuple of its arrays' dtypes. Eager ones are
made with the operation, all others when they are first used (``launch.LAZY_KERNELS`` names the usual ones).

A thread computes a group of 4 elements along the innermost dimension. Each input is read in one of four modes: 128 bits
at once, one by one at a stride, one element for all four, or not at all because it is a number. The kernel's text is
written by ``pointwise_source.py`` for a number of inputs; which dimensions it sees is worked out by ``layout.py``.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from ..platform import launch, memory, recording
from ..platform.toolbox import THREADS, Array, cuda, empty
from ..ptx.fours import fours
from . import conversion, layout, pointwise_source
from .formulas import compiled, inputs_of, of_formula
from .layout import GATHER, NUMBER, VECTOR

FLOAT32_END = 2.0**128 - 2.0**103  # from here on, and for NaN, float32 has no finite number
FEW_GROUPS = 4096  # for these or fewer, blocks of one warp: they spread over more multiprocessors

_declaring = threading.RLock()

Rule = Callable[[Any], Callable[..., Any]]  # from the type of the computation to the function of numbers
Resolve = Callable[..., tuple[np.dtype[Any], ...]]  # from dtypes (or int, float) to those of the computation, and z's


@dataclass(eq=False)
class Pointwise:
    """An elementwise operation; call it with arrays and numbers. See the module.

    resolve:   the dtypes to compute in (see ``like``, ``floating``)
    eager:     the arrays' dtypes of the kernels that exist at once: "float32", "float32 bool to float32"
    lazy:      those of kernels that are made when they are first used
    registers: of a thread; ``registers64`` if something is 8 bytes wide
    width:     elements of a thread, 4 or 1
    slow_path: see ``compiler.Declaration``
    family:    the names of the module that it is of (default: of the caller)
    """

    name: str
    rule: Rule
    resolve: Resolve
    inputs: int
    _: KW_ONLY
    eager: Sequence[str] = ("float32",)
    lazy: Sequence[str] = ("float64", "bfloat16")
    registers: int = 36
    registers64: int = 64
    width: int = 4
    slow_path: bool = False
    family: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.family = self.family or sys._getframe(2).f_globals
        self.module: str = self.family["__name__"].rpartition(".")[2]
        self._variants: dict[tuple[Any, ...], Variant] = {}
        for words in self.eager:
            self._declared(words)
        for words in self.lazy:
            name = f"{self.module}.{self.name}_{words.replace(' ', '_')}"
            launch.LAZY_KERNELS[name] = functools.partial(self._declared, words)

    def _declared(self, words: str) -> launch.Kernel:
        names, _, out = words.partition(" to ")
        found = tuple(conversion.BFLOAT16 if n == "bfloat16" else np.dtype(n) for n in [*names.split(), *out.split()])
        inputs = found[: len(names.split())]
        inputs *= self.inputs if len(inputs) == 1 else 1
        return self.variant(inputs, found[-1] if out else None).kernel

    def variant(self, kinds: tuple[Any, ...], out: np.dtype[Any] | None = None) -> Variant:
        """The kernel for inputs of these dtypes (``int`` and ``float`` for numbers) and a result of ``out``."""
        key = (kinds, out)
        found = self._variants.get(key)
        if found is None:
            *computed, result = self.resolve(*kinds)
            result = result if out is None else out
            computed = [c if c.kind == "b" else conversion.loaded(c) for c in computed]
            stored = tuple(c if isinstance(k, type) else k for k, c in zip(kinds, computed, strict=True))
            full = (stored, tuple(computed), result)
            with _declaring:  # two threads may need it at once, and a kernel is declared once
                found = self._variants.get(full) or Variant(self, *full)
                self._variants[full] = self._variants[key] = found
        return found

    def __call__(self, *inputs: Any, out: Array | None = None, dtype: np.dtype[Any] | None = None) -> Array:
        """The result, in a new array (of ``dtype``) or in ``out``, of the inputs' broadcast shape.

        Raises ValueError where shapes do not broadcast, OverflowError for a number that the integer dtype cannot hold.
        """
        kinds = []
        layouts: list[Any] = []
        for x in inputs:
            if type(x) is Array:
                kinds.append(x.dtype)
                layouts.append((x.shape, x.strides, x.dtype.itemsize))
            else:
                kinds.append(kind(x))
                layouts.append(None)
        variant = self.variant(tuple(kinds), dtype if out is None else out.dtype)
        if out is None:
            plan = layout.plan(self.width, tuple(layouts), None, variant.result.itemsize)
            z = _new(plan, variant.result, next(x.device for x in inputs if type(x) is Array))
        else:
            plan = layout.plan(self.width, tuple(layouts), (out.shape, out.strides), out.dtype.itemsize)
            z = out
        variant.launch(z, inputs, plan)
        return z


class Variant:
    """The kernel of an operation for the dtypes in memory, those of the computation, and the result's."""

    def __init__(
        self,
        operation: Pointwise,
        stored: tuple[np.dtype[Any], ...],
        computed: tuple[np.dtype[Any], ...],
        result: np.dtype[Any],
    ) -> None:
        self.stored = stored
        self.computed = computed
        self.result = result
        real = next((dtype for dtype in reversed(computed) if dtype.kind != "b"), computed[-1])
        names = {
            "__name__": operation.family["__name__"],
            "cuda": cuda,
            "np": np,
            "rule": operation.rule(conversion.loaded(real).type),
            "store": conversion.store_as(real, result),
            "write": fours(result.itemsize).store,
        }
        for j, (dtype, c) in enumerate(zip(stored, computed, strict=True)):
            names |= {
                f"load{j}": conversion.load_as(dtype, c),
                f"read{j}": fours(dtype.itemsize).load,
                f"raw{j}": conversion.loaded(dtype).type,
            }
        numbers = [conversion.loaded(dtype).itemsize == dtype.itemsize for dtype in stored]
        source = pointwise_source.source(len(stored), operation.width, numbers)
        run = compiled("run", source, operation.family["__file__"], names)
        wide = any(dtype.itemsize == 8 for dtype in (*stored, *computed, result))
        steps, arrays = f"int64 x{len(stored) + 1}", ", ".join(f"{dtype.name}*" for dtype in (result, *stored))
        values = ", ".join("int32" if c.itemsize < 4 else c.name for c in computed)
        words = f"{arrays}, {values}, int32, uint32 x2, int64, {steps}, int32, {steps}"
        self.kernel: launch.Kernel = launch.kernel(
            words + f", uint32, {steps}" * layout.MIDDLE,
            registers=operation.registers64 if wide else operation.registers,
            name=_name(operation.name, stored, result),
            slow_path=operation.slow_path,
            vector_loads=operation.width == 4 and any(dtype.itemsize >= 4 for dtype in stored),
        )(run)

    def launch(self, z: Array, inputs: tuple[Any, ...], plan: layout.LaunchPlan) -> None:
        """Compute into ``z``."""
        arrays = []
        numbers: list[int | float] = []
        fixed = 0
        for j, x in enumerate(inputs):
            if type(x) is Array:
                arrays.append(x)
                numbers.append(0)
            else:
                fixed |= NUMBER << 2 * j
                arrays.append(_placeholder(self.stored[j], z.device))
                numbers.append(as_number(x, self.computed[j]))
        for part in plan.parts:
            modes = fixed
            for j, x in enumerate((*arrays, z)):
                mode = part.modes[j]
                if mode == VECTOR and (x.pointer + part.offsets[j]) % min(16, 4 * x.dtype.itemsize):
                    mode = GATHER
                if not fixed >> 2 * j & 3:
                    modes |= mode << 2 * j
            if len(plan.parts) > 1:
                whole = (z, *arrays)
                offsets = (part.offsets[-1], *part.offsets[:-1])
                moved = [a.view(a.shape, a.strides, by) for a, by in zip(whole, offsets, strict=True)]
            else:
                moved = [z, *arrays]
            few = part.groups <= FEW_GROUPS
            threads = min(part.groups, 32) if few else THREADS
            self.kernel.launch(
                (part.groups + threads - 1) // threads, *moved, *numbers, modes, *part.arguments, threads=threads
            )


def made_from(
    plain: type, family: dict[str, Any], names: str = "", kind: type[Pointwise] = Pointwise, **settings: Any
) -> list[Pointwise]:
    """The operations of a plain family of these names (default: all), which become names of a module's, ``family``.

    ``settings``: fields of ``Pointwise``.
    """
    made = []
    for name in names.split() or [name for name in vars(plain) if not name.startswith("_")]:
        formula = getattr(plain, name)
        function = inspect.unwrap(formula)
        resolve = like(function) if isinstance(function, np.ufunc) else floating
        stated = {"rule": of_formula(formula), "resolve": resolve, "inputs": inputs_of(formula), **settings}
        family[name] = kind(name, family=family, **stated)
        made.append(family[name])
    return made


def _name(operation: str, stored: tuple[np.dtype[Any], ...], result: np.dtype[Any]) -> str:
    same = len(set(stored)) == 1
    words = [stored[0].name] if same else [dtype.name for dtype in stored]
    if not same or result not in stored:
        words += ["to", result.name]
    return "_".join([operation, *words])


# What an operation computes in ----------------------------------------------------------------------------------------


def like(ufunc: np.ufunc) -> Resolve:
    """The dtypes of a NumPy ufunc: NumPy itself answers, and raises TypeError for what has no meaning."""
    return lambda *kinds: ufunc.resolve_dtypes((*adapted(kinds), *[None] * ufunc.nout))


def adapted(kinds: Sequence[Any]) -> Sequence[Any]:
    """The kinds of inputs, with numbers beside bfloat16 as such: NumPy would make float32 of them."""
    is_bfloat16 = any([kind == conversion.BFLOAT16 for kind in kinds])
    return [conversion.BFLOAT16 if isinstance(kind, type) else kind for kind in kinds] if is_bfloat16 else kinds


def floating(*kinds: Any) -> tuple[np.dtype[Any], ...]:
    """The dtype of the first array, for all: of functions of one array and numbers."""
    first: np.dtype[Any] = next(k for k in kinds if not isinstance(k, type))
    return (first,) * (len(kinds) + 1)


def kind(x: Any) -> Any:
    """The dtype of a NumPy number or bool, ``int`` or ``float`` for Python's other numbers, which adapt."""
    if isinstance(x, bool):
        return np.dtype(bool)
    if isinstance(x, np.generic):
        return x.dtype
    if isinstance(x, int | float):
        return int if isinstance(x, int) else float
    raise TypeError(f"a kernel takes arrays of the device and numbers, not {type(x).__name__}")


def as_number(x: Any, computed: np.dtype[Any]) -> int | float:
    """A number as a kernel's argument; OverflowError if the integer dtype cannot hold it."""
    if computed.kind == "f":
        value = float(x)
        return value if computed.itemsize == 8 or abs(value) < FLOAT32_END else value * math.inf
    if computed.kind == "b":
        return int(bool(x))
    info = np.iinfo(computed)
    if not info.min <= x <= info.max:
        raise OverflowError(f"Python integer {x} out of bounds for {computed}")
    return int(x)


_placeholders: dict[tuple[np.dtype[Any], int], Array] = {}


def _placeholder(dtype: np.dtype[Any], device: int) -> Array:
    """What stands for the address of an input that is a number; nothing reads it."""
    key = (dtype, device)
    found = _placeholders.get(key)
    if found is None:
        with recording.outside():
            found = _placeholders.setdefault(key, empty(1, dtype, device))
    return found


def _new(plan: layout.LaunchPlan, dtype: np.dtype[Any], device: int) -> Array:
    if plan.strides is None:
        return empty(plan.shape, dtype, device)
    return Array(memory.allocate(plan.size * dtype.itemsize, device), plan.shape, dtype, plan.strides)
