"""EMA: an exponential moving average of a module's weights, to evaluate or ship in place of the last ones."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..device import Device
from ..dtypes import float32, is_half
from ..errors import bad_state, bad_value, check_bool, check_float, check_int
from ..modes import current_graph
from ..nn.module import Module
from ..tensor import Tensor
from .optimizer_state import Arrays


class EMA:
    """The moving average of all parameters of a module; all of one dtype are updated in one launch.

    ::

        ema = EMA(model, decay=0.999)
        for x, y in batches:
            optimizer.step(model(x, y).backward())
            ema.update()
        with ema.applied():
            evaluate(model)

    In its t-th update an average a of a parameter p becomes a + (1 - d) * (p - a). d is ``decay``, or with ``warmup``
    the smaller of it and (1 + t) / (10 + t), so that the first weights are soon forgotten. Averages start as copies of
    the parameters, with their dtype and device. Those of float16 and bfloat16 parameters are float32: so small a step
    as (1 - d) (p - a) would often be lost in their own precision. Buffers are not averaged.

    Raises ValueError unless 0 <= decay < 1.

    Source: Polyak & Juditsky, "Acceleration of stochastic approximation by averaging" (1992); the warm-up is
    TensorFlow's.
    """

    def __init__(self, module: Module, decay: float = 0.999, warmup: bool = False) -> None:
        self.decay: float = check_float("decay", decay, below=1.0)
        check_bool("warmup", warmup)
        self.warmup: bool = warmup
        self.updates: int = 0
        """Calls of ``update`` so far."""
        self._applied = False
        self._params: dict[str, Tensor] = dict(module.named_parameters())
        self._dtypes = {name: p.dtype for name, p in self._params.items()}
        self._averages = {k: Tensor.wrap(p.device.kernels.copy(_wide(p)), p.device) for k, p in self._params.items()}
        batches: dict[Any, list[str]] = {}
        for name, average in self._averages.items():
            batches.setdefault((average.device, average.dtype), []).append(name)
        self._batches: list[tuple[Device, list[str], Any]] = [
            (device, names, device.kernels.sgd.Table([self._averages[name].data for name in names]))
            for (device, _), names in batches.items()
        ]

    def decay_at(self, t: int) -> float:
        """The weight of the old average in the t-th update, t >= 1."""
        return min(self.decay, (1.0 + t) / (10.0 + t)) if self.warmup else self.decay

    def update(self) -> None:
        """Move the averages towards the parameters as they are now; call it after each optimizer step.

        Raises RuntimeError inside of ``applied``, and ValueError for a parameter that has another shape, dtype or
        device than its average, before anything is changed.
        """
        self._refuse_while_applied("update")
        self._check_fits()
        graph = current_graph()
        for device, names, table in self._batches:
            params = [device.kernels.contiguous(_wide(self._params[name])) for name in names]
            scalars = functools.partial(self._scalars, len(names))
            device.kernels.sgd.step(table, params, scalars() if graph is None else graph.varying(scalars))
        if graph is None:
            self.updates += 1
        else:
            graph.count(self._count)

    def _scalars(self, params: int) -> np.ndarray:
        """SGD's with lr = -(1 - d) and weight_decay = -1: a <- a - (d - 1) * (p + (-1) * a)."""
        rest = 1.0 - self.decay_at(self.updates + 1)
        return np.array([(-rest, -1.0, 0.0, 0.0, 0.0, 0.0)] * params, np.float64)

    def _count(self, updates: int) -> None:
        self.updates += updates

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """A ``with`` block in which the module's parameters are the averages, in the parameters' dtypes.

        The weights come back at its end, also after an exception. In the block the parameters share memory with the
        averages (only those of half-width parameters are rounded to copies), so do not train there. Raises RuntimeError
        if the block is entered again within itself.
        """
        self._refuse_while_applied("applied")
        self._check_fits()
        weights = {name: p.data for name, p in self._params.items()}
        self._show({name: average.to(self._dtypes[name]).data for name, average in self._averages.items()})
        self._applied = True
        try:
            yield
        finally:
            self._applied = False
            self._show(weights)

    def _show(self, arrays: Mapping[str, Any]) -> None:
        for name, p in self._params.items():
            p.data = arrays[name]
            p.bump_version()

    def _refuse_while_applied(self, method: str) -> None:
        if self._applied:
            raise bad_state(f"{method}() inside of applied(): the parameters are the averages there; leave it first")

    def _check_fits(self) -> None:
        for name, p in self._params.items():
            average = self._averages[name]
            if p.shape != average.shape or p.dtype != self._dtypes[name] or p.device is not average.device:
                began = f"{self._dtypes[name]} of shape {average.shape} on {average.device}"
                now = f"{p.dtype} of shape {p.shape} on {p.device}, where averaging began {began}"
                raise bad_value(f"parameter {name} is now {now}; make a new EMA after such a change")

    def state_dict(self) -> tuple[Arrays, dict[str, Any]]:
        """All that an exact resume needs, copied: the averages by the parameters' names, and the rest as JSON."""
        arrays = {name: np.array(a.device.kernels.to_host(a.data)) for name, a in self._averages.items()}
        return arrays, {"decay": self.decay, "warmup": self.warmup, "updates": self.updates}

    def load_state_dict(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned: ``ema.load_state_dict(*saved)``.

        Raises ValueError, naming everything that does not match, before anything is changed; RuntimeError inside of
        ``applied``.
        """
        self._refuse_while_applied("load_state_dict")
        problems = [f"average {name!r} is missing" for name in self._averages if name not in arrays]
        problems += [f"average {name!r} belongs to no parameter" for name in arrays if name not in self._averages]
        for name, average in self._averages.items():
            given = arrays.get(name, average)
            if given.shape != average.shape or given.dtype != average.dtype:
                has, here = f"{tuple(given.shape)} and dtype {given.dtype}", f"{average.shape} and {average.dtype}"
                problems.append(f"average {name!r} has shape {has}, this one has {here}")
        for check in (
            lambda: check_int("updates", meta.get("updates"), 0),
            lambda: check_bool("warmup", meta.get("warmup")),
            lambda: check_float("decay", meta.get("decay"), below=1.0),
        ):
            try:
                check()
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise bad_value("the saved averages do not fit:\n  " + "\n  ".join(problems))
        for name, average in self._averages.items():
            average.copy_(np.asarray(arrays[name]))
        self.decay, self.warmup, self.updates = float(meta["decay"]), meta["warmup"], meta["updates"]


def _wide(p: Tensor) -> Any:
    """The values of a parameter, as float32 if it is of half width."""
    return p.device.kernels.elementwise.cast(p.data, float32) if is_half(p.dtype) else p.data
