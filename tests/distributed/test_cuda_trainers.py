"""The other trainers of several ranks give on GPUs what they give on the CPU; each is tested in depth there."""

from functools import partial

import numpy as np
import pytest
from nccl_programs import copies_to_host
from refusals import raises
from replica_models import PipelineCase, TensorCase

import minigrad as mg
from minigrad import Tensor, nn, optim
from minigrad import distributed as dist
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
            loss = F.cross_entropy(model(x), y)
            trainer.step(model.named_parameters(), loss.backward(), loss.item())
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


def offloaded(comm: dist.Communicator, folder, stage: int, dtype, **options) -> list[np.ndarray]:
    """Weights, states and metrics of steps of two micro-batches: one that overflows, then one after which the program
    changes a weight, one, a checkpoint, and in another trainer that has loaded it one more."""
    fp16 = dist.MixedPrecisionConfig.fp16() if dtype == mg.float32 else None
    config, found = dist.TrainingConfig(max_grad_norm=0.05, grad_accum_steps=2), []
    for scales in ([1e38] * (fp16 is not None) + [1.0, 2.0], [3.0]):
        mg.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype).to(device=comm.device)
        named = dict(model.named_parameters())
        adamw = optim.AdamW(named.items(), 0.1, eps=0.1, master_weights=True)
        trainer = dist.ShardedTrainer(config, comm, adamw, stage=stage, precision=fp16, **options)
        if scales == [3.0]:
            dist.load_checkpoint(folder, model, trainer)
        trainer.shard(model, [model[0], model[2]])
        for scale in scales:
            for x, y in zip(np.array_split(X[comm.rank :: 2], 2), np.array_split(Y[comm.rank :: 2], 2)):
                y = Tensor(y, device=comm.device)
                loss = F.cross_entropy(model(Tensor(x, dtype=dtype, device=comm.device)).float(), y) * scale
                metrics = trainer.backward_and_step(loss, named.items())
            found += [np.array([0, 0] if metrics is None else [metrics.loss, metrics.grad_norm])]
            trainer.gather_full_params()
            if scale == 1.0:
                model[2].weight.detach().mul_(2.0)
            found += weights(model)
            trainer.release_params()
        if scales != [3.0]:
            dist.save_sharded_checkpoint(folder, model, trainer)
    found += trainer.state_dict(named.items())[0].values()
    x = Tensor(X, dtype=dtype, device=comm.device)
    report = trainer.memory_report(model, lambda: model(x).float().sum())
    sizes = (12 if dtype == mg.bfloat16 else 8), np.dtype(dtype).itemsize  # of 26 weights
    want = [0, sum(sizes) * 26 / comm.world_size] if options else [sizes[0] * 26 / comm.world_size, 0]
    assert [report.optimizer, report.offloaded] == want
    return [array.astype(np.float64) for array in found]


@pytest.mark.parametrize(
    "stage, ranks, dtype", [(1, 2, mg.bfloat16), (2, 2, mg.float32), (3, 2, mg.bfloat16), (3, 1, mg.float32)]
)
def test_cuda_states_in_host_memory_give_what_states_on_the_gpu_give(stage, ranks, dtype, tmp_path) -> None:
    def run(name: str, devices, **options) -> list[list[np.ndarray]]:
        body = partial(offloaded, folder=tmp_path / name, stage=stage, dtype=dtype, **options)
        if ranks == 1:
            return [body(dist.NoOpCommunicator(device=devices[0]))]
        return dist.run_threads(2, body, 300, devices=devices)

    got, *others = run("offloaded", DEVICES, offload=True), run("cuda", DEVICES), run("cpu", [mg.device.CPU] * 2)
    for other in others:
        for ours, theirs in zip(got[0], other[0], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2.0**-7 if dtype == mg.bfloat16 else 1e-5, atol=1e-5)
    raises(
        ValueError,
        r"3 of 4 .* on the CPU: leave offload out, or call model.to",
        lambda: run("", [mg.device.CPU] * 2, offload=True),
    )
