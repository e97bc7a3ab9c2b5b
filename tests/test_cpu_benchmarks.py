"""The benchmarks beside other libraries: what is not installed is skipped aloud, and all must do the same work."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigrad

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = minigrad.get_num_threads()  # contenders set their own
    yield importlib.import_module
    minigrad.set_num_threads(before)


def tiny(module: Any) -> Any:
    return module("train_step_contenders").Preset(1, 2, 8, 4, 2, 11)


def test_what_is_missing_is_skipped_with_the_reason(module, monkeypatch, capsys):
    contenders = module("train_step_contenders").CONTENDERS
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("jax", "tinygrad") else there(name))
    running = module("turns").those_that_run(["jax", "tinygrad", "minigrad"], contenders)
    assert running == ["minigrad"]
    assert capsys.readouterr().out == "jax: skipped, pip install jax\ntinygrad: skipped, pip install tinygrad\n"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="minigrad cannot run"):
        module("turns").those_that_run(["jax"], contenders)


def test_losses_that_differ_end_the_benchmark(module):
    check = module("train_step_cpu").check_losses
    check({"minigrad": [4.0, 3.0], "other": [4.0003, 3.0002]})
    with pytest.raises(SystemExit, match="other does another computation"):
        check({"minigrad": [4.0, 3.0], "other": [4.0, 3.001]})


@pytest.mark.parametrize("name", ["torch-eager", "jax", "tinygrad"])
def test_a_contender_makes_the_same_steps(module, name):
    contenders = module("train_step_contenders").CONTENDERS
    if (reason := contenders[name].missing()) is not None:
        pytest.skip(reason)
    losses = {}
    for each in ("minigrad", name):
        _, step = contenders[each].build(tiny(module), 1)
        losses[each] = [step() for _ in range(4)]
    assert len(set(losses["minigrad"])) == 4
    module("train_step_cpu").check_losses(losses)


def test_generation_is_pytorchs(module):
    pytest.importorskip("torch", reason="the other contender")
    contenders = module("generate_contenders").CONTENDERS
    texts = {name: contender.build(tiny(module), 2, 1)[1](0.0) for name, contender in contenders.items()}
    assert texts["minigrad"].shape == (2, 4)
    np.testing.assert_array_equal(texts["minigrad"], texts["torch-eager"])


def test_a_profile_counts_the_outermost_call(module):
    clock = module("profile_step_cpu").Clock()
    inner = clock.timed("inner", lambda: 1)
    assert clock.timed("outer", lambda: inner() + 1)() == 2
    assert set(clock.seconds) == {"outer"} and clock.seconds["outer"] > 0
    assert inner() == 1 and set(clock.seconds) == {"outer", "inner"}


def test_each_part_of_a_profile_is_a_kernel_module(module):
    profile = module("profile_step_cpu")
    for name in [name for names in profile.PARTS.values() for name in names]:
        assert importlib.util.find_spec(f"minigrad.cpu_kernels.{name}")
        assert profile.part_of(name) != profile.OTHER
    assert profile.part_of("gelu") == profile.OTHER
