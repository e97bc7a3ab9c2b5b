"""What only a GPU shows of CUDA graphs: ``pytest -m gpu``. Sizes that fill it, tensor cores, the driver's memory, other
threads at work during a capture. (``test_graphs.py`` runs on a GPU, too.)"""

import gc
import threading

import numpy as np
import pytest

import minigrad as mg
from minigrad import distributed

pytestmark = pytest.mark.gpu

LAYERS, HEADS, WIDTH, BLOCK, VOCABULARY, BATCH = 2, 2, 128, 128, 512, 4


def train(captured: bool, kind: str):
    mg.manual_seed(0)
    config = mg.models.GPT2Config(VOCABULARY, BLOCK, LAYERS, HEADS, WIDTH, dropout=0.1)
    model = mg.models.GPT2(config).to(device="cuda")
    settings, schedule = distributed.TrainingConfig(max_grad_norm=0.5), mg.optim.CosineAnnealing(1e-3, 1e-4, 2, 20)
    trainer: distributed.SimpleTrainer
    if kind == "fp16":
        trainer = distributed.AmpTrainer(settings, distributed.MixedPrecisionConfig.fp16(), schedule=schedule)
    elif kind == "bf16 weights":
        model = model.to(mg.bfloat16)
        optimizer = mg.optim.AdamW(model.named_parameters(), master_weights=True)
        trainer = distributed.SimpleTrainer(settings, optimizer, schedule)
    else:
        trainer = distributed.SimpleTrainer(settings, schedule=schedule)

    def loss_of(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
        with mg.autocast("cuda", mg.float16 if kind == "fp16" else mg.bfloat16, enabled=kind in ("fp16", "bf16")):
            return model.loss(x, y)

    step, found = trainer.capture(loss_of, model.named_parameters()), []
    for i in range(8):
        tokens = np.random.default_rng(i).integers(0, VOCABULARY, (BATCH, BLOCK + 1))
        x, y = mg.tensor(tokens[:, :-1].copy(), device="cuda"), mg.tensor(tokens[:, 1:].copy(), device="cuda")
        if captured:
            found.append(step(x, y))
        else:
            loss = loss_of(x, y)
            found.append(trainer.step(model.named_parameters(), trainer._backward(loss), loss.item()))
    metrics = [m.result() for m in found] if captured else found
    assert step.graphs == captured
    return metrics, [mg.Device("cuda").kernels.to_host(p.data).tobytes() for p in model.parameters()]


@pytest.mark.parametrize("kind", ["float32", "bf16", "fp16", "bf16 weights"])
def test_captured_training_has_the_bits_of_eager_training(kind: str) -> None:
    assert train(False, kind) == train(True, kind)


def test_a_closed_graphs_memory_is_the_drivers_again() -> None:
    x = mg.ones(1 << 24, device="cuda")
    y = x * 2.0 + 1.0
    del y
    gc.collect()
    mg.cuda.empty_cache()
    mg.cuda.synchronize()
    free, _ = mg.cuda.mem_get_info()
    graph = mg.cuda.Graph()
    with graph.capture():
        y = x * 2.0 + 1.0
    graph.replay()
    assert y[-1].item() == 3.0 and graph.pool_bytes >= 2 << 26
    mg.cuda.empty_cache()
    assert mg.cuda.mem_get_info()[0] <= free - (2 << 26)
    del y
    graph.close()
    mg.cuda.empty_cache()
    assert mg.cuda.mem_get_info()[0] >= free - (8 << 20)  # what the driver keeps of a graph


def test_another_thread_computes_and_reads_during_a_capture() -> None:
    x, found = mg.ones(1 << 20, device="cuda"), []
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        begun.wait(60)
        for _ in range(10):
            found.append(float((mg.ones(1 << 20, device="cuda") * 2.0).sum().item()))
        ended.set()

    thread = threading.Thread(target=other)
    thread.start()
    graph = mg.cuda.Graph()
    with graph.capture():
        y = x * 3.0
        begun.set()
        assert ended.wait(60)
        z = y + 1.0
    thread.join()
    graph.replay()
    assert found == [2.0 * (1 << 20)] * 10 and z[-1].item() == 4.0


def test_a_replay_follows_what_other_streams_were_given_before_it() -> None:
    x, stream = mg.zeros(1 << 22, device="cuda"), mg.cuda.Stream()
    graph = mg.cuda.Graph()
    with graph.capture():
        y = x + 1.0
    with stream:
        for value in range(1, 20):
            x.copy_(mg.full((1 << 22,), float(value), device="cuda"))
            graph.replay()
    stream.synchronize()
    assert y[0].item() == 20.0 and y[-1].item() == 20.0
