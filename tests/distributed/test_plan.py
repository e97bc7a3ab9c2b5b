"""The planner: published memory, bytes that ranks send, published and measured steps; and what cannot be planned."""

import json
import re
import runpy
import sys
from functools import partial
from pathlib import Path

import pytest

import minigrad
from minigrad import distributed as dist
from minigrad.distributed.parallel import plan
from minigrad.models import GPT2, GPT2Config, gpt2_memory

REPORT = Path(__file__).resolve().parents[2] / "benchmarks/results/plan_cpu.json"

# Rajbhandari et al. (2020), table 1: GB of a rank, by 10^9 weights and ranks, in stages 1, 2 and 3.
ZERO = {
    (7.5, 4): (52.5, 41.3, 30), (7.5, 16): (35.6, 21.6, 7.5), (7.5, 64): (31.4, 16.6, 1.88),
    (7.5, 256): (30.4, 15.4, 0.47), (7.5, 1024): (30.1, 15.1, 0.12), (128, 4): (896, 704, 512),
    (128, 16): (608, 368, 128), (128, 64): (536, 284, 32), (128, 256): (518, 263, 8), (128, 1024): (513, 257, 2),
    (1000, 4): (7000, 5500, 4000), (1000, 16): (4750, 2875, 1000), (1000, 64): (4187, 2218, 250),
    (1000, 256): (4046, 2054, 62.5), (1000, 1024): (4011, 2013, 15.6),
}  # fmt: skip

# Narayanan et al. (2021): 10^9 weights, heads, channels, layers, tensor, pipeline, GPUs, sequences, teraFLOP/s a GPU.
TABLE_1 = [
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137), (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142), (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138), (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148), (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163), (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163),
]  # fmt: skip
G175, G530 = (174.6, 96, 12288, 96), (529.6, 128, 20480, 105)
TABLE_2 = [  # the same, then the stage of ZeRO and the sequences of a micro-batch
    (*G175, 1, 1, 384, 1536, 144, 3, 4), (*G175, 1, 1, 768, 1536, 88, 3, 2), (*G175, 1, 1, 1536, 1536, 44, 3, 1),
    (*G530, 1, 1, 640, 2560, 138, 3, 4), (*G530, 1, 1, 1120, 2240, 98, 3, 2), (*G530, 1, 1, 2240, 2240, 48, 3, 1),
    (*G175, 8, 12, 384, 1536, 153, 0, 1), (*G175, 8, 12, 768, 1536, 149, 0, 1), (*G175, 8, 12, 1536, 1536, 141, 0, 1),
    (*G530, 8, 35, 560, 2240, 171, 0, 1), (*G530, 8, 35, 1120, 2240, 167, 0, 1), (*G530, 8, 35, 2240, 2240, 159, 0, 1),
]  # fmt: skip


def test_states_are_those_of_zero_and_no_stage_is_the_whole():
    for (billions, ranks), want in ZERO.items():
        sizes = plan.Job(GPT2Config(), 1).bytes_a_weight
        found = [plan.state_bytes(billions, ranks, stage, sizes) for stage in range(4)]
        assert found == pytest.approx([16 * billions, *want], rel=0.03)  # 0.12 and 1.88 are rounded


@pytest.mark.parametrize("row", TABLE_1 + TABLE_2, ids=lambda row: f"{row[0]}-{row[6]}-{row[8]}")
def test_published_steps_come_out_within_20_percent(row):
    """Where the paper does not say the micro-batch, it is the planner's. The operations are the paper's equation 3."""
    billions, heads, h, layers, tensor, pipeline, gpus, batch, want, *rest = row
    s, V, data = 2048, 51200, gpus // (tensor * pipeline)
    job = plan.Job(GPT2Config(V, s, layers, heads, h), batch, scores=True)
    assert layers * job.weights[0] + job.weights[1] == pytest.approx(billions * 1e9, rel=1e-3, abs=5e7)
    machine = plan.read_machine("a100", "ib200")
    stage, *sizes = rest or (0, *(b for b in (1, 2, 4, 8, 16) if batch % (data * b) == 0))
    found = [plan.predict(job, machine, plan.Choice(data, tensor, pipeline, stage, b, True)) for b in sizes]
    seconds = min(p.seconds for p in found if p.memory <= machine.memory or rest)
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + V / (16 * layers * h))
    assert flops / gpus / seconds / 1e12 == pytest.approx(want, rel=0.2)


MEASURED = [(run, name) for run in json.loads(REPORT.read_text())["runs"] for name in run["steps"]]


@pytest.mark.parametrize(("run", "name"), MEASURED, ids=lambda x: x if isinstance(x, str) else x["ranks"])
def test_steps_on_cpu_ranks_come_out_within_25_percent(run, name):
    """The steps of benchmarks/plan_cpu.py, from the rates that it measured in turns with them."""
    model, step = json.loads(REPORT.read_text())["model"], run["steps"][name]
    sizes = (model[key] for key in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"))
    job = plan.Job(GPT2Config(*sizes), step["batch"], "float32")
    found = plan.predict(job, plan.Machine(**run["machine"]), plan.Choice(**step["choice"]))
    assert found.seconds == pytest.approx(step["measured"], rel=0.25)


# ---------------------------------------------------------------------- against the engine

SMALL = GPT2Config(100, 32, n_layer=5, n_head=2, n_embd=64)


def sent_in_a_step(comm, stage):
    model = GPT2(SMALL)
    trainer = dist.ShardedTrainer(None, comm, stage=stage) if stage else dist.BucketedTrainer(None, comm)
    trainer.broadcast_params(model.named_parameters())
    if stage:
        trainer.shard(model)
    tokens = minigrad.arange(64).reshape(2, 32)
    for _ in range(2):  # the ranks compare more in the first step
        before = comm.stats.wire_bytes
        trainer.backward_and_step(model.loss(tokens, tokens), model.named_parameters())
    sent = comm.stats.wire_bytes - before
    return sent, trainer.memory_report(model, lambda: model.loss(tokens, tokens)) if stage else None


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("stage", range(4))
def test_ranks_send_and_need_as_many_bytes_as_predicted(stage, ranks):
    job, machine = plan.Job(SMALL, 2 * ranks, "float32"), plan.read_machine("h100", None)
    want = plan.predict(job, machine, plan.Choice(ranks, stage=stage, micro_batch=2))
    sent, report = dist.run_threads(ranks, partial(sent_in_a_step, stage=stage), timeout=30)[0]
    assert sent == pytest.approx(want.sent, rel=0.01)
    if stage:
        layer, rest = job.weights
        whole = [0, 8 * (5 * layer + rest), 8 * layer][stage - 1]  # the gradients of two buckets, or blocks
        counted = report.weights + report.gradients + report.optimizer + report.kept
        assert want.memory == pytest.approx(counted + whole + gpt2_memory(SMALL, 2).temporary, rel=0.01)


@pytest.mark.parametrize("again", [False, True])
def test_one_rank_needs_the_memory_of_the_model(again):
    config = GPT2Config(5000, 128, n_layer=6, n_head=4, n_embd=256, checkpoint_blocks=again)
    choice = plan.Choice(micro_batch=4, again=again)
    found = plan.predict(plan.Job(config, 4, "float32"), plan.read_machine("h100", None), choice)
    report = gpt2_memory(config, 4)
    assert found.memory == pytest.approx(report.peak + report.gradients, rel=0.01)  # these are counted apart


JOB = plan.Job(GPT2Config(100, 32, n_layer=12, n_head=6, n_embd=48), 24)
NUMBERS = 32 * 48  # of a sequence between layers


def test_operations_are_six_for_a_weight_and_token_and_half_the_scores():
    weights = sum(p.numel() for name, p in GPT2(JOB.config).named_parameters() if p.ndim == 2 and "wpe" not in name)
    found = plan.predict(JOB, plan.Machine(1e12, 1e12, 1e30, 1, 1, 8, 1, 0.0), plan.Choice())
    assert found.compute * 1e12 == pytest.approx(24 * (32 * 6 * weights + 6 * 12 * 32 * NUMBERS), rel=1e-6)


def test_a_pipeline_fills_and_empties_while_its_micro_batches_last():
    machine = plan.Machine(1e12, 1e12, 1e15, 1e15, 1e15, 8, 1e-15, 0.0)
    two, four = (plan.predict(JOB, machine, plan.Choice(pipeline=p)) for p in (2, 4))
    assert two.bubble == pytest.approx(two.compute / 24, rel=1e-3)
    assert four.bubble == pytest.approx(four.compute * 3 / 24, rel=1e-3)
    assert four.compute == plan.predict(JOB, machine, plan.Choice(pipeline=5)).compute  # of a stage of 3 layers
    assert four.sent == 2 * two.sent == 24 * 2 * 2 * NUMBERS  # a stage in the middle has two neighbours
    split = plan.predict(JOB, machine, plan.Choice(tensor=3)).sent
    assert split == pytest.approx(24 * 12 * 8 * 2 / 3 * NUMBERS * 2)  # Narayanan et al. (2021), section 3.2


def test_computing_hides_all_but_the_weights_that_follow_the_update():
    machine = plan.Machine(1e9, 1e12, 1e15, 1e10, 1e10, 8, 1e-15, 1.0)
    found = [plan.predict(JOB, machine, plan.Choice(4, stage=stage, micro_batch=6)) for stage in range(4)]
    assert [p.exposed / p.communication for p in found] == pytest.approx([0, 0.5, 0.5, 0], abs=1e-3)


def test_choices_use_all_ranks_evenly():
    found = list(plan.choices(JOB, plan.read_machine("h100", None), 24))
    assert len(found) == len(set(found)) > 100 and {c.tensor for c in found} == {1, 2, 3, 6}
    assert all(c.data * c.tensor * c.pipeline == 24 and JOB.batch % (c.data * c.micro_batch) == 0 for c in found)
    assert {c.mesh for c in found if c.stage == 3} == {"24 x 1 x 1"}  # MeshTrainer refuses others


# ---------------------------------------------------------------------- the command


def test_the_command_ranks_what_fits(capsys):
    assert plan.main(["--model", "gpt2-xl", "--gpus", "8,64", "--link", "nvlink", "--top", "3"]) == 0
    tables = [table.splitlines() for table in capsys.readouterr().out.strip().split("\n\n")]
    assert [len(table) for table in tables] == [5, 5]
    assert tables[1][0].startswith("gpt2-xl, 512 sequences a step, 64 ranks")
    for table in tables:
        numbers = [[float(word) for word in line.split()[8:]] for line in table[2:]]
        assert [row[-1] for row in numbers] == sorted(row[-1] for row in numbers) and max(numbers)[0] < 80
        for _, _, compute, communication, exposed, bubble, step in numbers:
            assert exposed <= communication and step == pytest.approx(compute + exposed + bubble, abs=0.2)


BAD = {
    "--model gpt5": "--model gpt5: expected gpt2, ",
    "--model 2x3x64": "n_embd=64 is not a multiple of n_head=3",
    "--gpus 8,x": "--gpus: 'x' is no positive integer",
    "--gpus 0": "--gpus: '0' is no positive integer",
    "--gpus 7 --batch 3 --model 2x2x64": "no mesh of 7 ranks shares 3 sequences evenly",
    "--gpus 8 --model 96x96x12288": "no mesh of 8 ranks fits into 80 GB .*; take more ranks",
    "--machine none.json": "none.json: .*No such file.*; expected a100, h100 or JSON with flops, memory",
    "--machine rates.json": "--machine rates.json: flops is 'fast', expected a number > 0",
    "--machine rates.json --link ib400": "--link ib400: the links are those of the file rates.json",
    "--dtype float32": "--dtype float32: the rates of h100 are bfloat16's",
}


@pytest.mark.parametrize("words", BAD)
def test_what_cannot_be_planned_is_said_in_a_line(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rates = dict.fromkeys(("memory", "bandwidth", "near", "far", "node", "latency", "overlap"), 1)
    Path("rates.json").write_text(json.dumps({**rates, "flops": "fast"}))
    monkeypatch.setattr(sys, "argv", ["plan", *words.split()])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("minigrad.distributed.plan", run_name="__main__")
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("plan: ") and said.count("\n") == 1
    assert re.search(BAD[words], said)
