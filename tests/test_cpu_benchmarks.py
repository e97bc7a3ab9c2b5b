"""The benchmarks beside other libraries: what is not installed is skipped aloud, and all must do the same work."""

import importlib
import importlib.util
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from processes import python
from refusals import raises

import minigrad
from minigrad.distributed import NoOpCommunicator

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = minigrad.get_num_threads()  # contenders set their own
    yield importlib.import_module
    minigrad.set_num_threads(before)


def tiny(module):
    return module("train_step_contenders").Preset(1, 2, 8, 4, 2, 11)


def test_what_is_missing_is_skipped_with_the_reason(module, monkeypatch, capsys):
    contenders = module("train_step_contenders").CONTENDERS
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("jax", "tinygrad") else there(name))
    running = module("turns").those_that_run(["jax", "tinygrad", "minigrad"], contenders)
    assert running == ["minigrad"]
    assert capsys.readouterr().out == "jax: skipped, pip install jax\ntinygrad: skipped, pip install tinygrad\n"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    raises(SystemExit, "minigrad cannot run", module("turns").those_that_run, ["jax"], contenders)


def test_losses_that_differ_end_the_benchmark(module):
    check = module("train_step_cpu").check_losses
    check({"minigrad": [4.0, 3.0], "other": [4.0003, 3.0002]})
    wrong = {"minigrad": [4.0, 3.0], "other": [4.0, 3.001]}
    raises(SystemExit, "other does another computation", check, wrong)


OURS = ["minigrad-captured", "minigrad-user", "minigrad-user-captured"]


@pytest.mark.parametrize("name", [*OURS, "torch-eager", "jax", "tinygrad"])
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


USER_MODELS = runpy.run_path(str(BENCHMARKS / "user_models.py"))["MODELS"]


@pytest.mark.parametrize("name", USER_MODELS)
def test_a_users_model_makes_the_same_steps_captured_and_in_pytorch(module, name):
    contenders = module("user_models_cpu").CONTENDERS
    names = ["eager", "captured", *(["torch"] if contenders["torch"].missing() is None else [])]
    losses = {each: [step() for _ in range(4)] for each in names if (step := contenders[each].of_user(name, 1))}
    assert losses["eager"] == losses["captured"] and len(set(losses["eager"])) == 4
    module("train_step_cpu").check_losses(losses, 1e-3)


def test_generation_is_pytorchs(module):
    pytest.importorskip("torch", reason="the other contender")
    contenders = module("generate_contenders").CONTENDERS
    texts = {name: contender.build(tiny(module), 2, 1)[1](0.0) for name, contender in contenders.items()}
    assert texts["minigrad"].shape == (2, 4)
    np.testing.assert_array_equal(texts["minigrad"], texts["torch-eager"])


def test_each_part_of_a_profile_is_a_kernel_module(module):
    profile = module("profile_step_cpu")
    for name in [name for names in profile.PARTS.values() for name in names]:
        assert any(importlib.util.find_spec(f"minigrad.cpu_kernels.{room}{name}") for room in ("", "toolbox.")), name
        assert profile.part_of(name) != profile.OTHER
    assert profile.part_of("gelu") == profile.OTHER


@pytest.mark.long
def test_a_profile_shows_all_parts(tmp_path):
    report, options = tmp_path / "report.json", ("--preset", "X", "--threads", 1, "--steps", 2, "--json")
    python(BENCHMARKS / "profile_step_cpu.py", *options, report, check=True)
    assert all(share > 0 for share in json.loads(report.read_text())["percent"].values())


def test_contenders_with_sharded_states_make_the_same_steps(module):
    ddp, shard = module("ddp_cpu"), module("shard_cpu")
    comm = NoOpCommunicator()
    dist = ddp.connect_torch(comm) if ddp.HAS_TORCH else None
    try:
        turns = shard.ours(comm, tiny(module)) | (shard.theirs(comm, tiny(module)) if dist is not None else {})
        losses = {name: [turn() for _ in range(4)] for name, turn in turns.items()}
    finally:
        if dist is not None:
            dist.destroy_process_group()
    module("train_step_cpu").check_losses({"minigrad": losses.pop("alone"), **losses})
    assert set(shard.RIVALS) < set(losses)


def test_speed_contenders_of_ddp_take_turns_and_what_counts_are_medians(module, monkeypatch):
    ddp = module("ddp_cpu")
    now, played = [0.0], []

    def turn(name: str, *seconds: float):
        left = iter(seconds)

        def play() -> None:
            played.append(name)
            now[0] += next(left)

        return play

    monkeypatch.setattr(ddp, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    turns = {"a": turn("a", 99.0, 1.0, 2.0, 6.0), "b": turn("b", 99.0, 2.0, 8.0, 12.0)}
    contest = ddp.Contest(NoOpCommunicator(), turns, repeats=1)
    contest.play(3)
    assert "".join(played) == "baabbaab"  # the first of each is not counted
    assert contest.medians() == {"a": 2000.0, "b": 8000.0} and contest.deviations() == {"a": 1000.0, "b": 4000.0}
    assert contest.speed_against("a", "b") == 2.0


def test_speed_a_step_of_each_trainer_is_timed_beside_pytorchs_ddp(module):
    ddp = module("ddp_cpu")
    comm = NoOpCommunicator()
    dist = ddp.connect_torch(comm) if ddp.HAS_TORCH else None
    try:
        report = ddp.time_steps(comm, dist, tiny(module), rounds=2, reproducible=True)
    finally:
        if dist is not None:
            dist.destroy_process_group()
    trainers = {"DistributedTrainer", "BucketedTrainer", "FusedDistributedOptimizer"}
    ours = {"alone", "Trainer.setup", "reproducible", "comparison of hashes", *trainers}
    contenders = {*ours, *(("torch alone", "torch DDP") if dist is not None else ())}
    assert report["milliseconds"].keys() == report["deviations"].keys() == contenders
    assert all(ms > 0 for ms in report["milliseconds"].values()) and report["hidden_share"].keys() == trainers
    if dist is not None:
        assert report["speed_against_torch_ddp"].keys() == {*trainers, "Trainer.setup"}


def test_each_public_operation_is_measured_or_left_out_with_a_reason(module):
    assert module("ops_cases").unaccounted() == set()
