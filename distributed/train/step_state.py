"""Saving a Step, and resuming it exactly."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigrad.errors import check_int

from .params import Params
from .step import Step


def save_step(step: Step, params: Params) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All that an exact resume needs beside the weights: arrays for safetensors, and the rest as JSON.

    Holds the optimizer's moments and counts, the global step, and an unfinished window of micro-batches.
    """
    step.recorder.wait_for_captures()
    named = step.named(params)
    arrays, meta = step.optimizer.state_dict()
    window_arrays, window = step.accumulator.state_dict(named)
    if step.reducer.unit != 1.0:
        window["unit"] = step.reducer.unit
    arrays = {f"optimizer.{key}": value for key, value in arrays.items()}
    arrays.update({f"window.{key}": value for key, value in window_arrays.items()})
    return arrays, {"global_step": step.global_step, "optimizer": meta, "window": window}


def restore_step(step: Step, params: Params, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Take over what ``save_step`` returned. Raises ValueError, naming what does not fit, before anything changes."""
    step.recorder.wait_for_captures()
    named = step.named(params)
    if not isinstance(meta, Mapping):
        raise ValueError(f"the saved trainer state is a {type(meta).__name__}, expected a mapping")
    count = check_int("global_step", meta.get("global_step"), 0)
    for key in ("optimizer", "window"):
        if not isinstance(meta.get(key), Mapping):
            raise ValueError(f"the saved trainer state has no {key!r}")
    parts: dict[str, dict[str, np.ndarray]] = {"optimizer": {}, "window": {}}
    for key, value in arrays.items():
        part, _, rest = key.partition(".")
        if part not in parts:
            raise ValueError(f"array {key!r} belongs to neither the optimizer nor the window")
        parts[part][rest] = value
    accumulator = copy.copy(step.accumulator)
    accumulator.load_state_dict(parts["window"], meta["window"], named)
    step.optimizer.load_state_dict(parts["optimizer"], meta["optimizer"])
    step.accumulator, step.global_step = accumulator, count
    step.key_draws()
    step.reducer.restart(float(meta["window"].get("unit", 1.0)))
