"""``python -m minigrad.distributed.train``: the YAML file, the flags, and runs on several ranks."""

import dataclasses
import math
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from example_scripts import send_twice
from processes import python, writing
from ranks import requires_mpi, run_ranks
from refusals import raises
from train_runs import go, weights, write

from minigrad import distributed as dist
from minigrad.data import BytePairTokenizer
from minigrad.distributed.job import rendezvous
from minigrad.distributed.train import command as train
from minigrad.distributed.train.command import Run
from minigrad.distributed.train.settings import (
    DistributedSection,
    SettingsError,
    TrainingSection,
    read_settings,
    resolve,
)
from minigrad.metrics_log import read_json_lines
from minigrad.serialization import CheckpointError, load_checkpoint

pytest.importorskip("yaml", reason="PyYAML is not installed; install the extra `yaml`")

EXAMPLE = Path(__file__).parents[2] / "examples/distributed_gpt.yaml"
ALONE = dist.Place(0, 1, 0, "single")
SECOND = dist.Place(1, 2, 1, "Open MPI", True)


# ---------------------------------------------------------------------- the file


def test_the_example_shows_the_defaults():
    settings = read_settings(EXAMPLE)
    assert settings.model == type(settings.model)() and settings.data == type(settings.data)()
    section = DistributedSection(world_size=2)
    assert settings.training == dataclasses.replace(TrainingSection(), max_steps=200, distributed=section)
    text = EXAMPLE.read_text()
    for kind in (settings.model, settings.data, settings.training, section):
        for field in dataclasses.fields(kind):
            assert f"{field.name}:" in text, field.name


def test_should_launcher_defaults_are_entrenars():
    t = TrainingSection()
    assert (t.lr, t.beta1, t.beta2, t.weight_decay, t.accumulation_steps) == (1e-3, 0.9, 0.999, 0.01, 1)
    assert (t.warmup_steps, t.seed, t.max_grad_norm, t.keep) == (0, 42, 1.0, 5)


def test_must_config_files_refuse_by_name(tmp_path):
    for text, message in [
        ("training: {max_steps: 1", "is no valid YAML"),
        ("training: {seed: 0x" + "f" * 5000 + "}", "line 1: seed: .*4300 digits"),
        ("training:\n  seed: 2026-02-31", "line 2: seed: day is out of range"),
        ("training: {seed: !!int abc}", "line 1: seed: invalid literal"),
        ("training: {seed: !!timestamp x}", "line 1: seed: "),
        ("training: {seed: !!bool maybe}", "line 1: seed: 'maybe'"),
        ("training: !!map [1]", "is no valid YAML: expected a mapping node, but found sequence"),
        ("9" * 6000, "is no valid YAML: .*6000 digits"),
        ("training: !!python/object/apply:os.system ['true']", "is no valid YAML"),
    ]:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        raises(SettingsError, f"^{path}.*{message}.*\\Z", read_settings, path)


def test_must_config_files_that_cannot_be_read(tmp_path, monkeypatch, capsys):
    raises(SettingsError, r"nowhere.yaml: it cannot be read", lambda: read_settings(tmp_path / "nowhere.yaml"))
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert train.main([str(EXAMPLE)]) == 2
    assert 'install the extra `yaml`: pip install "minigrad-cuda[yaml]"' in capsys.readouterr().err


# ---------------------------------------------------------------------- places


def test_should_launcher_flags_outweigh_the_file_and_a_launcher_fills_in(tmp_path, monkeypatch):
    path = write(tmp_path, lr="2e-3", distributed="{world_size: 4, rank: 3, coordinator_addr: 'a:1', backend: cuda}")
    assert read_settings(path).training.lr == 2e-3
    section = read_settings(path).training.distributed
    assert resolve(section, ALONE) == dist.DistributedTrainConfig(4, 3, None, None, "a:1", "cuda")
    found = []
    monkeypatch.setattr(dist.DistributedTrainConfig, "connect", lambda config, **options: found.append(config) or 1 / 0)
    raises(ZeroDivisionError, "", train.main, [str(path), "--world-size", "2", "--rank", "1", "--coordinator", "b:2"])
    raises(ZeroDivisionError, "", lambda: train.main([str(write(tmp_path, distributed="null")), "--world-size", "1"]))
    assert found == [dist.DistributedTrainConfig(2, 1, None, None, "b:2", "cuda"), dist.DistributedTrainConfig(1, 0)]
    assert resolve(None, SECOND) == resolve(DistributedSection(), SECOND) == dist.DistributedTrainConfig(2, 1)
    assert resolve(DistributedSection(world_size=2), SECOND) == dist.DistributedTrainConfig(2, 1)
    assert resolve(None, ALONE) == dist.DistributedTrainConfig(1, 0)


def test_should_tcp_coordinator_is_where_nccl_ranks_meet(monkeypatch):
    asked = []

    def init(backend: str | None, **options) -> dist.Communicator:
        asked.append((backend, options))
        return dist.NoOpCommunicator()

    monkeypatch.setattr(rendezvous, "init_process_group", init)
    monkeypatch.setattr(rendezvous, "discover_place", lambda: ALONE)
    dist.DistributedTrainConfig(2, 1, 0, coordinator_addr="[::1]:9000", backend="cuda").connect(timeout=5)
    dist.DistributedTrainConfig(1).connect()
    monkeypatch.setattr(rendezvous, "discover_place", lambda: SECOND)
    dist.DistributedTrainConfig(2, 1, backend="cuda").connect()
    raises(ValueError, "world_size is 3, but Open MPI says 2", lambda: dist.DistributedTrainConfig(3, 1).connect())
    (backend, options), (alone, _), (launched, rest) = asked
    assert (backend, alone, launched) == ("nccl", None, "nccl")
    assert (options["rank"], options["world_size"], options["local_rank"]) == (1, 2, 0)
    assert (options["master_addr"], options["master_port"], options["timeout"]) == ("::1", 9000, 5)
    assert rest["rank"] is rest["world_size"] is rest["master_addr"] is None  # the launcher says it


# ---------------------------------------------------------------------- runs


def test_must_uneven_shards_an_epoch_of_3_batches_on_2_ranks_completes_and_saves(tmp_path):
    path = write(tmp_path, max_steps=None, epochs=1, accumulation_steps=1)
    runs = dist.run_threads(2, lambda comm: go(comm, path), timeout=30)
    assert [len(run.batches) for run in runs] == [3, 3]
    assert [run.trainer.global_step for run in runs] == [2, 2]
    assert load_checkpoint(tmp_path / "run").step == 2


def test_must_accumulation_the_last_window_of_a_run_may_be_short(tmp_path):
    path = write(tmp_path, max_steps=None, epochs=3, accumulation_steps=4)  # 3 epochs of 2 rounds: 4 + 2
    runs = dist.run_threads(2, lambda comm: go(comm, path), timeout=30)
    assert [(run.place, run.trainer.global_step) for run in runs] == [((3, 0), 2)] * 2


def test_should_shuffle_epochs_are_disjoint_and_complete(tmp_path):
    settings = read_settings(write(tmp_path))

    def deal(comm: dist.ThreadCommunicator) -> list[list[bytes]]:
        run = Run(comm, settings)
        run.trainer.close()
        return [[x.tobytes() for x in run.next_batch()[:1]] for _ in range(2 * -(-3 // comm.world_size))]

    ranks = dist.run_threads(2, deal, timeout=30)
    shutil.rmtree(tmp_path / "run")
    (alone,) = dist.run_threads(1, deal, timeout=30)
    first, second = ([x for n in (epoch, epoch + 1) for rank in ranks for x in rank[n]] for epoch in (0, 2))
    assert first == [x for n in range(3) for x in alone[n]] and len(set(first)) == 3
    assert second == [x for n in range(3, 6) for x in alone[n]] and len(set(second)) == 3
    assert set(second) != set(first)  # batches of other windows


def test_another_number_of_ranks_goes_on_with_the_batches_that_are_left(tmp_path, monkeypatch):
    """And to more steps. Nothing is seen twice or left out, and a run of as many ranks has the same bits."""
    seen: list[bytes] = []
    next_batch = Run.next_batch

    def watched(run: Run):
        found = next_batch(run)
        seen.extend(x.tobytes() for x in found[:1])
        return found

    monkeypatch.setattr(Run, "next_batch", watched)
    go(dist.NoOpCommunicator(), write(tmp_path, max_steps=6, output_dir=tmp_path / "whole"))
    whole, seen[:] = seen[:], []
    go(dist.NoOpCommunicator(), write(tmp_path, max_steps=1))
    path = write(tmp_path, max_steps=2)
    dist.run_threads(2, lambda comm: go(comm, path, resume=True), timeout=30)
    go(dist.NoOpCommunicator(), write(tmp_path, max_steps=5), resume=True)
    assert seen[0] == whole[0] and set(seen[:3]) == set(whole[:3]) and seen[3:] == whole[3:]


@pytest.mark.parametrize("more", [{}, {"epochs": 2, "max_steps": None}])
def test_a_finished_run_says_what_goes_on(tmp_path, capsys, more):
    path = write(tmp_path, **more)
    before = go(dist.NoOpCommunicator(), path).trainer.global_step
    assert go(dist.NoOpCommunicator(), path, resume=True).trainer.global_step == before
    said = capsys.readouterr().out
    assert f"ranks, {before} steps done, in " in said
    assert f"nothing to do: the run has {before} steps; more training.max_steps or epochs" in said


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_should_precision_and_memory_are_settings(tmp_path, precision):
    path = write(tmp_path, mixed_precision=precision, checkpoint_blocks="true", tokens="bytes", dropout=0.2)
    run = go(dist.NoOpCommunicator(), path)
    assert (run.trainer.scaler is not None) == (precision == "fp16")
    assert run.trainer.model.config.vocab_size == 256 and run.trainer.model.config.checkpoint_blocks
    full = go(dist.NoOpCommunicator(), write(tmp_path, tokens="bytes", dropout=0.2, output_dir=tmp_path / "full"))
    half, wide = (load_checkpoint(folder).tensors["model"] for folder in (tmp_path / "run", tmp_path / "full"))
    assert full.trainer.scaler is None
    different = [name for name in half if not (half[name] == wide[name]).all()]
    assert different and all(abs(half[name] - wide[name]).max() < 0.02 for name in half)


def test_tokens_of_a_tokenizer_file(tmp_path):
    tokenizer = BytePairTokenizer.train("abcabc" * 9, 257)
    tokenizer.save(tmp_path / "tokenizer.json")
    run = Run(dist.NoOpCommunicator(), read_settings(write(tmp_path, tokens=tmp_path / "tokenizer.json")))
    run.trainer.close()
    assert run.trainer.model.config.vocab_size == tokenizer.vocab_size == 257


def test_tokens_without_the_library_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert train.main([str(write(tmp_path, tokens="bytes"))]) == 2
    assert capsys.readouterr().err.startswith("error: BytePairTokenizer needs `tokenizers`; install the extra `bpe`")


def test_entrenars_names_and_flags(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(
        "model: {architecture: llama, n_layer: 1, n_head: 2, n_embd: 8}\n"
        f"data: {{train: [{write(tmp_path) and tmp_path / 'text.txt'}]}}\n"
        "optimizer: {name: adamw, lr: 0.01, beta2: 0.9}\n"
        "training: {max_steps: 6, grad_clip: 2.0, gradient_checkpointing: true, deterministic: true, seq_len: 8}\n"
    )
    settings = read_settings(path, {"training.steps": "7", "training.distributed.world_size": "1"})
    assert settings.model.family == "llama" and settings.model.checkpoint_blocks
    t = settings.training
    assert (t.lr, t.beta2, t.max_grad_norm, t.max_steps, t.distributed.world_size) == (0.01, 0.9, 2.0, 7, 1)
    flags = ["--epochs", "1", "--lr", "1e-4", "--output-dir", str(tmp_path / "out"), "--training.batch_size=2"]
    assert train.main([str(path), *flags, "--dry-run"]) == 0
    words = "making a llama of 1 layers: at least \\S+ MB of memory(.|\n)* steps 1 to 3, in"
    assert re.match(words, capsys.readouterr().out) and not (tmp_path / "out").exists()
    for arguments, message in [
        (["--model.architecture", "bert"], "model.family is 'bert'"),
        (["--training.lr", "fast"], "training.lr is 'fast', expected a number"),
        (["--training.stepz", "5"], "unknown key training.stepz"),
        (["--training.lr"], "unknown argument --training.lr: expected"),
        (["--fast", "1"], "unknown argument --fast: expected"),
        (["--data.source.x", "1"], "source is ["),
    ]:
        assert train.main([str(path), *arguments]) == 2
        assert message in capsys.readouterr().err
    path.write_text("model: {architecture: llama, family: gpt2}\n")
    assert train.main([str(path)]) == 2
    assert "model.architecture and model.family are the same: give one" in capsys.readouterr().err


def test_should_determinism_the_same_file_gives_the_same_weights(tmp_path):
    for name, seed in (("a", 42), ("b", 42), ("c", 43)):
        path = write(tmp_path, output_dir=tmp_path / name, seed=seed, dropout=0.2)
        dist.run_threads(2, lambda comm, path=path: go(comm, path), timeout=30)  # type: ignore[misc]
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert weights(tmp_path / "a") != weights(tmp_path / "c")


def test_a_run_replaces_nothing_and_keeps_its_settings(tmp_path):
    path = write(tmp_path)
    go(dist.NoOpCommunicator(), path)
    raises(SettingsError, "holds a run: add --resume", lambda: go(dist.NoOpCommunicator(), path))
    with pytest.raises(SettingsError, match=r"training.lr is 0.5; the run in .* has 0.001 and keeps it"):
        go(dist.NoOpCommunicator(), write(tmp_path, lr=0.5), resume=True)
    raises(CheckpointError, "", go, dist.NoOpCommunicator(), write(tmp_path, output_dir=tmp_path / "none"), resume=True)


def test_a_run_that_the_launcher_starts_again_goes_on_or_begins_anew(tmp_path, monkeypatch):
    path = write(tmp_path)
    go(dist.NoOpCommunicator(), path)
    whole, folder = weights(tmp_path / "run"), tmp_path / "run"
    logged = [r["step"] for r in read_json_lines(folder / "metrics.jsonl") if "step" in r]
    shutil.rmtree(max(folder.glob("step-*")))
    monkeypatch.setenv("MINIGRAD_RESTART", "0")
    raises(SettingsError, "holds a run", lambda: go(dist.NoOpCommunicator(), path))
    monkeypatch.setenv("MINIGRAD_RESTART", "1")
    for left in (True, False):
        if not left:
            for saved in folder.glob("step-*"):
                shutil.rmtree(saved)
        assert bool(list(folder.glob("step-*"))) == left
        go(dist.NoOpCommunicator(), path)
        assert weights(folder) == whole
        assert [r["step"] for r in read_json_lines(folder / "metrics.jsonl") if "step" in r] == logged


def test_ranks_with_other_files_refuse(tmp_path):
    paths = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        paths.append(write(folder, seed=rank))
    with pytest.raises(dist.CommError, match="settings differ: training.seed is 1 on rank 1, 0 on rank 0"):
        dist.run_threads(2, lambda comm: go(comm, paths[comm.rank]), timeout=30)


def test_errors_of_the_command_are_one_line(tmp_path, capsys):
    path = write(tmp_path, n_head=3)
    assert train.main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: model: ")
    assert train.main([str(path), "--seed", "1", "--data.source", "gone.txt"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path} --training.seed --data.source: data.source: gone.txt")
    assert train.main([str(write(tmp_path)), "--world-size", "2"]) == 2
    assert "start the ranks with python -m minigrad.distributed.launch -n 2" in capsys.readouterr().err
    assert train.main([str(EXAMPLE), "--coordinater", "x:1"]) == 2
    assert "unknown argument --coordinater: expected a flag of --help" in capsys.readouterr().err
    place = ["--world-size", "2", "--rank", "0", "--coordinator", "x:1", "--training.distributed.local_rank", "0"]
    assert train.main([str(path), *place]) == 2 and ": training.distributed.local_rank is" in capsys.readouterr().err


@pytest.mark.parametrize("layers", [1, 2, 10**5, 10**9, 10**30])
def test_a_model_beyond_the_memory_is_refused_with_the_estimate(tmp_path, capsys, monkeypatch, layers):
    family, batch = "llama" if layers == 10**9 else "gpt2", 10**33 if layers == 1 else 2
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1000000000" if layers == 2 else "1")
    flags = f"--model.family {family} --model.n_layer {layers} --model.n_embd 512 --batch-size {batch}".split()
    assert train.main([str(write(tmp_path)), *flags]) == 2
    words = rf"error: .*: model: {layers} layers of 512 channels have at least \S+ billion parameters and need \S+ GB "
    words += rf"of memory with {8 * batch} tokens a micro-batch, of which"
    assert re.match(words + r" \S+ GB are free on cpu( for \d+ ranks)?\n$", capsys.readouterr().err)


def test_a_folder_has_one_run_also_if_another_one_came_meanwhile(tmp_path, monkeypatch):
    path, batches = write(tmp_path), train.EpochBatches
    with writing(tmp_path / "run/metrics.jsonl") as pid:
        for flags in ([], ["--resume"]):
            done = python("-m", "minigrad.distributed.train", path, *flags)
            assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
            assert f"process {pid} (" in done.stderr
    go(dist.NoOpCommunicator(), path)
    (tmp_path / "run").rename(tmp_path / "other")

    def meanwhile(*arguments):
        shutil.copytree(tmp_path / "other", tmp_path / "run")
        return batches(*arguments)

    monkeypatch.setattr(train, "EpochBatches", meanwhile)
    raises(SettingsError, "holds a run: add --resume", lambda: go(dist.NoOpCommunicator(), path))
    assert weights(tmp_path / "run") == weights(tmp_path / "other")


def test_one_process_runs_from_the_command_line(tmp_path):
    done = python("-W", "error", "-m", "minigrad.distributed.train", write(tmp_path), returncode=0)
    assert done.stdout.splitlines()[-1] == "done: step 6; all 1 ranks hold the same weights, bit for bit"


STOPPED = """
import os, signal, sys
from minigrad.distributed.train.command import Run, main

path, number, *flags = sys.argv[1:]
next_batch = Run.next_batch

def interrupted(run):
    if run.comm.rank == 1 and run.trainer.global_step == 3 and run.trainer._step.accumulator.current_step == 1:
        os.kill(os.getpid(), int(number))
    return next_batch(run)

Run.next_batch = interrupted
sys.exit(main([path, *flags]))
"""


@pytest.mark.long
@requires_mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_or_a_death_loses_no_whole_step(tmp_path, number):
    """Of one rank, within the window of step 4. One rank goes on; with as many as before, bit for bit."""
    path = write(tmp_path, dropout=0.2, accumulation_steps=2, save_interval=100)
    found = run_ranks(2, STOPPED, path, int(number), timeout=300)
    saved = 3 if number is signal.SIGKILL else 4
    assert load_checkpoint(tmp_path / "run").step == saved, found.text
    if number is signal.SIGKILL:
        assert f"step {saved} is saved in" in found.errors(0) and f"train {path}" in found.errors(0), found.text
    else:
        assert found.returncode == 128 + number and "stopped after step 4, saved. To go on:" in found.stdout, found.text
    shutil.copytree(tmp_path / "run", tmp_path / "alone")
    run_ranks(2, "-m", "minigrad.distributed.train", path, "--resume", timeout=300, returncode=0)
    whole = write(tmp_path, dropout=0.2, accumulation_steps=2, output_dir=tmp_path / "whole")
    dist.run_threads(2, lambda comm: go(comm, whole), timeout=60)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert train.main([str(whole), "--resume", "--output-dir", str(tmp_path / "alone")]) == 0
    assert load_checkpoint(tmp_path / "alone").step == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_says_what_is_lost_and_how_to_go_on(tmp_path, monkeypatch, capsys, number):
    path = write(tmp_path)
    send_twice(monkeypatch, Run, "_after", 5, number)
    monkeypatch.setenv("MINIGRAD_LAUNCH", "1")
    assert train.main([str(path), "--training.seed", "7"]) == 130
    told = "error: stopped after step 5; step 3 is saved, 2 steps are lost. To go on: python -m minigrad.distributed."
    told += f"launch -n 1 -m minigrad.distributed.train {path} --training.seed 7 --resume\n"
    assert told in capsys.readouterr().err


@pytest.mark.long
@requires_mpi
def test_should_launcher_processes_log_and_resume_bit_for_bit_on_every_rank(tmp_path):
    path = write(tmp_path, dropout=0.2, accumulation_steps=2)
    path.write_text(path.read_text() + "  distributed: {world_size: 2, backend: cpu}\n")
    result = run_ranks(2, "-m", "minigrad.distributed.train", path, timeout=300, returncode=0)
    assert "all 2 ranks hold the same weights" in result.lines(0)[-1] and result.lines(1) == []
    folder = tmp_path / "run"
    begin, *lines = read_json_lines(folder / "metrics.jsonl")
    assert begin["run"].items() >= {"steps": 6, "ranks": 2}.items()
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert math.isfinite(line["loss"]) and line["grad_norm"] > 0 and line["world_size"] == 2
        assert line["tokens_per_second"] > 0 and line["communication_seconds"] > 0 and len(line["waited_by_rank"]) == 2
    hashes = load_checkpoint(folder).state["weight_hashes"]
    assert len(hashes) == 2 and hashes[0] == hashes[1]
    straight = weights(folder, 6)
    shutil.rmtree(next(folder.glob("step-00000006*")))
    run_ranks(2, "-m", "minigrad.distributed.train", path, "--resume", "--world-size", 2, timeout=300, returncode=0)
    assert weights(folder) == straight  # dropout too: every rank's random numbers went on
    relogged = [line for line in read_json_lines(folder / "metrics.jsonl") if "run" not in line]
    assert [(line["step"], line["loss"]) for line in relogged] == [(line["step"], line["loss"]) for line in lines]
    refused = run_ranks(2, "-m", "minigrad.distributed.train", path, "--world-size", 3, timeout=300)
    assert refused.returncode == 2 and "world_size is 3, but Open MPI says 2" in refused.errors(0), refused.text
