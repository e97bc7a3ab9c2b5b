"""The other trainers of several ranks give on GPUs what they give on the CPU; each is tested in depth there."""

from functools import partial

import numpy as np
import pytest
from nccl_programs import copies_to_host
from replica_models import PipelineCase, TensorCase

import minigrad as mg
from minigrad import Tensor, distributed as dist, nn, optim
from minigrad.nn import functional as F

if not mg.cuda.is_available():
    pytest.skip("no CUDA device, and NUMBA_ENABLE_CUDASIM=1 is not set", allow_module_level=True)

DEVICES = [mg.Device("cuda:0"), mg.Device(f"cuda:{min(1, mg.cuda.device_count() - 1)}")]
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((7, 3)), RNG.integers(0, 2, 7)
CONFIG = dist.TrainerConfig(4, 1.0, dist.OptimizerKind.sgd(0.1, 0.9), dist.LossKind.cross_entropy())


def weights(model: nn.Module) -> list[np.ndarray]:
    return [p.detach().cpu().numpy() for p in model.parameters()]


def normed(device: mg.Device) -> nn.Module:
    mg.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(device=device).double()


def trained_by(replicas, device: mg.Device) -> list[np.ndarray]:
    trainer = dist.DataParallelTrainer(CONFIG, replicas, model=normed(device), timeout=300)
    found = [trainer.step((X, Y)).loss for _ in range(2)]
    return [np.array(found), *weights(trainer.model), *(b.cpu().numpy() for b in trainer.model.buffers())]


def data_parallel(devices: list[mg.Device]) -> list[np.ndarray]:
    with (
        dist.ThreadReplica(lambda: normed(devices[0])) as first,
        dist.ThreadReplica(lambda: normed(devices[1])) as second,
    ):
        return trained_by([first, second], devices[0])


def data_parallel_ranks(comm: dist.Communicator):
    if comm.rank:
        return [dist.serve_replica(comm, normed(comm.device)) or 0]
    with dist.ThreadReplica(lambda: normed(comm.device)) as local, dist.RankReplicas(comm) as ranks:
        return trained_by([local, *ranks], comm.device)


def on_ranks(fn):
    def run(devices: list[mg.Device]) -> list[np.ndarray]:
        mg.manual_seed(0)
        return [np.asarray(x) for rank in dist.run_threads(2, fn, 300, devices=devices) for x in rank]

    return run


def in_parts(case: PipelineCase | TensorCase):
    """A model that the ranks have in parts: losses, norms and weights."""

    @on_ranks
    def train(comm: dist.Communicator):
        part = case.train(comm) if isinstance(case, PipelineCase) else case.train(comm)[0]
        return [np.array(part.stats), *part.weights.values()]

    return train


def reduced_by(make):
    @on_ranks
    def train(comm: dist.Communicator):
        mg.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().to(device=comm.device)
        x, y = Tensor(X[comm.rank :: 2], device=comm.device), Tensor(Y[comm.rank :: 2], device=comm.device)
        trainer = make(comm)
        for _ in range(2):
            trainer.backward_and_step(F.cross_entropy(model(x), y), model.named_parameters())
        return weights(model)

    return train


class Blocks(nn.Module):
    def __init__(self, comm: dist.Communicator) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([dist.ColumnParallelLinear(3, 4, comm), nn.Linear(4, 2)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)


def alone(devices: list[mg.Device]) -> list[np.ndarray]:
    """One process with one device, which the communicator need not be told."""
    comm, found = dist.NoOpCommunicator(), []
    for step in (
        lambda model: dist.TensorParallelTrainer(CONFIG, model, comm).step((X, Y)),
        lambda model: dist.PipelineParallelTrainer(CONFIG, model, comm).step((X, Y)),
        lambda model: dist.BlockDistributedTrainer(model, comm).train_batch(X, Y),
    ):
        mg.manual_seed(1)
        model = Blocks(comm).double().to(device=devices[0])
        found += [step(model).loss, *weights(model)]
    with dist.AmpTrainer(precision=dist.MixedPrecisionConfig.fp16()).autocast():
        y = F.linear(*(mg.ones(2, 2, device=devices[0]) for _ in range(2)))
    return [np.asarray(x) for x in (*found, y.dtype == mg.float16)]


CASES = {
    "alone": alone,
    "data parallel": data_parallel,
    "data parallel, of ranks": on_ranks(data_parallel_ranks),
    "tensor parallel": in_parts(TensorCase()),
    "tensor parallel, gathered": in_parts(TensorCase(tied=False, weighted=True, gather=True)),
    "pipeline parallel": in_parts(PipelineCase(2, size=3, samples=7, clip=0.3)),
    "fused": reduced_by(
        lambda comm: dist.FusedDistributedOptimizer(dist.FusedOptimizerConfig(bucket_size_bytes=64), comm)
    ),
    "compressed": reduced_by(
        lambda comm: dist.DistributedTrainer(dist.TrainingConfig(), comm, hook=dist.BFloat16Compression())
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cuda_trainers_give_what_they_give_on_the_cpu(name: str) -> None:
    tolerance = 2.0**-6 if name == "compressed" else 1e-9  # bfloat16's rounding may fall the other way
    for got, wanted in zip(CASES[name](DEVICES), CASES[name]([mg.device.CPU, mg.device.CPU]), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=1e-12 if tolerance < 1e-6 else 1e-3)


def test_cuda_weights_and_gradients_of_replicas_and_server_stay_on_devices() -> None:
    models = [nn.Linear(3, 256).to(device=device) for device in (*DEVICES, DEVICES[0])]
    batch = X.astype(np.float32), Y

    def of_ranks(comm: dist.Communicator) -> None:
        if comm.rank:
            dist.serve_replica(comm, models[1])
        else:
            with dist.RankReplicas(comm) as ranks:
                trainer.set_replicas(ranks)
                trainer.step(batch)

    with dist.ThreadReplica(lambda: models[0]) as first, dist.ThreadReplica(lambda: models[1]) as second:
        trainer = dist.DataParallelTrainer(CONFIG, [first, second], model=models[2], timeout=300)
        with copies_to_host() as seen:
            trainer.step(batch)
            dist.run_threads(2, of_ranks, 300, devices=DEVICES)
            server = dist.AsyncParameterServer(models[0].weight, dist.OptimizerKind.sgd(0.1), 1)
            server.push_gradient(0, 0, models[1].weight.detach())
            weight = server.pull_weights()[0]
    assert weight.device is DEVICES[0] and max(size for _, size in seen) < 3 * 256 * 4
    wanted = weights(models[0])[0] - np.float32(0.1) * weights(models[1])[0]
    np.testing.assert_allclose(weight.cpu().numpy(), wanted, rtol=1e-6)


@np.errstate(over="ignore", invalid="ignore")  # on the CPU, where it overflows
def sharded(folder, stage: int, half: bool, offload: bool, comm: dist.Communicator) -> list[np.ndarray]:
    """Metrics, weights and states of steps of two micro-batches, after each of which the program changes a weight. In
    float32 the first one overflows, by its weight. After the first that counts, states are saved and loaded."""
    fp16, found = None if half else dist.MixedPrecisionConfig.fp16(), []
    mg.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device=comm.device)
    named = [*model.to(mg.bfloat16 if half else mg.float32).named_parameters()]
    adamw = optim.AdamW(named, 0.1, eps=0.1, master_weights=True)
    config = dist.TrainingConfig(max_grad_norm=0.05, grad_accum_steps=2)
    trainer = dist.ShardedTrainer(config, comm, adamw, stage=stage, precision=fp16, offload=offload)
    trainer.shard(model, [model[0], model[2]])
    for factor in (1.0 if half else 1e37, 1.0, 1.0, 1.0):
        for rows in np.array_split(np.arange(comm.rank, 7, comm.world_size), 2):
            x, y = Tensor(X[rows], dtype=named[0][1].dtype, device=comm.device), Tensor(Y[rows], device=comm.device)
            metrics = trainer.backward_and_step(F.cross_entropy(model(x).float(), y), named, len(rows) * factor)
        trainer.gather_full_params()
        model[2].weight.detach().mul_(1.5)
        found += [np.array([metrics.loss, metrics.grad_norm] if metrics else 0), *map(np.array, weights(model))]
        trainer.release_params()
        if trainer.global_step == 1:
            dist.save_sharded_checkpoint(folder, model, trainer, {"step": 1})
            saved = dist.load_distributed_checkpoint(comm, folder)
            trainer.load_state_dict(named, saved.tensors["trainer"], saved.state["trainer"])
            assert {state.device for state in adamw.state.values()} == {mg.device.CPU if offload else comm.device}
    found = [array.astype(np.float64) for array in (*found, *trainer.state_dict(named)[0].values())]
    report = trainer.memory_report(model, lambda: model(x).float().sum())
    assert not offload or (report.optimizer, report.offloaded * comm.world_size) == (0, 26 * (14 if half else 12))
    return found


@pytest.mark.parametrize(("stage", "ranks", "half"), [(1, 2, False), (2, 2, False), (3, 2, True), (3, 1, False)])
def test_cuda_states_in_host_memory_give_what_states_on_the_gpu_give(stage, ranks, half, tmp_path) -> None:
    def run(devices, offload: bool = False) -> list[np.ndarray]:
        return dist.run_threads(len(devices), partial(sharded, tmp_path, stage, half, offload), 300, devices=devices)[0]

    got = run(DEVICES[:ranks], offload=True)
    for devices, tolerance in ((DEVICES[:ranks], 1e-5), ([mg.device.CPU], 2.0**-6 if half else 1e-5)):
        for ours, theirs in zip(got, run(devices), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())
