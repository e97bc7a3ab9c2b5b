"""``examples/train_gpt2.py`` on two GPUs, which are the simulator's, over a fake NCCL (``fake_nccl``)."""

import importlib
import sys
import threading

import example_scripts
import numpy as np
import pytest
from fake_nccl import on_ranks

from minigrad import cuda_kernels, device, distributed
from minigrad.distributed.comm.threads.thread import drawing_from, generators_for

if not cuda_kernels.simulated():
    pytest.skip("NUMBA_ENABLE_CUDASIM=1 selects the simulator", allow_module_level=True)

STEPS = 3
FLAGS = (
    "--preset tiny --batch-size 2 --grad-accum 1 --block-size 4 --n-layer 1 --n-head 1 --n-embd 8 --vocab-size 257 "
    f"--steps {STEPS} --dropout 0 --warmup 1 --eval-every 9 --eval-batches 1 --sample-every 0 --save-every 9 --peak 1 "
    "--data text.txt --tokenizer bytes --dtype float32"
).split()


@pytest.mark.parametrize("graph", ["--no-graph", "--graph"])
def test_two_cuda_ranks_train_as_one_process(machine, tmp_path, monkeypatch, capsys, graph) -> None:
    """Both have the weights of one process on the CPU, which has the same batches whole."""
    (tmp_path / "text.txt").write_text("def f(x):\n    return x\n\n\n" * 40, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    script = example_scripts.load("train_gpt2.py", monkeypatch, *FLAGS, "--out", "alone")
    assert script.main() == 0
    wanted = importlib.import_module("minigrad.serialization").load_checkpoint("alone").tensors["model"]

    comms = distributed.NcclCommunicator.group([device.Device("cuda:0"), device.Device("cuda:1")], timeout=100)
    losses: list[list[float]] = [[], []]
    found = [None, None]
    step = script.GPT2Training.step

    def counted(training):
        metrics = step(training)
        losses[training.rank].append(metrics.loss)
        if graph == "--graph":
            assert training.captured.graphs == (training.trainer.global_step > 1)
        found[training.rank] = {name: p.detach().cpu().numpy() for name, p in training.model.named_parameters()}
        return metrics

    generators, own = generators_for(2), threading.local()

    def rank(comm):
        own.comm = comm
        with drawing_from(generators[comm.rank]):
            return script.main()

    monkeypatch.setattr(script, "init_process_group", lambda *_, **__: own.comm)
    monkeypatch.setattr(script.GPT2Training, "step", counted)
    monkeypatch.setattr(sys, "argv", ["train_gpt2.py", *FLAGS, graph, "--device", "cuda", "--out", "two"])
    assert on_ranks(comms, rank) == [0, 0]
    assert "all 2 ranks hold the same weights, bit for bit" in capsys.readouterr().out
    reduced = [count for name, rank, _, _, count, *_ in machine.calls("allReduce") if rank == 0]
    assert sum(reduced) >= STEPS * sum(array.size for array in wanted.values()), "the gradients went by NCCL"
    assert losses[0] == losses[1]
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[0][name], found[1][name], err_msg=name)
        np.testing.assert_allclose(found[0][name], array, rtol=2e-4, atol=2e-5, err_msg=name)
