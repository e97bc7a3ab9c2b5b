"""Graphs: a launch does to the last bit what the program would have done, and says no where it could not."""

import functools
import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from graph_cases import drawn, same_bits
from harness import devices, host
from optimizer_cases import CASES
from refusals import raises

import minigrad as mg
from minigrad import cuda, nn, optim
from minigrad.cpu_kernels.toolbox import threads
from minigrad.cuda import CaptureError
from minigrad.distributed import AmpTrainer, MixedPrecisionConfig, NonFiniteLossError, SimpleTrainer, TrainingConfig
from minigrad.models import GPT2, CausalLM, GPT2Config, Llama, LlamaConfig
from minigrad.nn import functional as F

GENERATOR = mg.random.default_generator
DEVICE = ""


PARAMS = [pytest.param(name, marks=pytest.mark.compiled if name == "cpu" else ()) for name in devices()[0]]


@pytest.fixture(params=PARAMS, autouse=True)
def device(request: pytest.FixtureRequest) -> str:
    """The device of a test's tensors and graphs."""
    global DEVICE
    DEVICE = request.param
    return DEVICE


def on_device(array: np.ndarray) -> mg.Tensor:
    return mg.tensor(array, device=DEVICE)


def mlp(p: float = 0.3) -> nn.Module:
    mg.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(p), nn.Linear(4, 2)).to(device=DEVICE)


def weights(model: nn.Module) -> list[np.ndarray]:
    return [host(p.detach()).copy() for p in model.parameters()]


# Graphs and functions of tensors --------------------------------------------------------------------------------------


def test_random_draws_go_on_with_each_replay_and_with_those_between() -> None:
    mg.manual_seed(3)
    eager = [mg.rand(6) for _ in range(7)]
    mg.manual_seed(3)
    graph = cuda.Graph(DEVICE)
    with graph.capture():
        a, b = mg.rand(6, device=DEVICE), mg.rand(6, device=DEVICE)
    found = []
    for between in (1, 0):
        graph.replay()
        found += [host(a).copy(), host(b).copy()] + [mg.rand(6).numpy() for _ in range(between)]
    assert same_bits(found, [x.numpy() for x in eager[:5]])
    mg.manual_seed(3)  # the seed is the device's too
    graph.replay()
    assert same_bits([host(a)], [eager[0].numpy()]) and GENERATOR.offset == 2


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD nesterov", "AdaGrad", "Lamb", "AdamW of bfloat16"])
def test_a_graph_of_a_step_is_the_step_bit_for_bit(name: str) -> None:
    name, dtype = name.split(" of ")[0], mg.bfloat16 if " of " in name else mg.float32

    def run(graphed: bool) -> tuple[list[np.ndarray], list[float], Any]:
        model = mlp().to(dtype)
        opt = CASES[name].make(model.named_parameters(), lr=0.1)

        def step(x: mg.Tensor) -> mg.Tensor:
            loss = model(x).pow(2).mean()
            opt.step(loss.backward())
            return loss

        call = cuda.graphed(step) if graphed else step
        losses = []
        for i in range(4):
            opt.set_lr(0.1 / (i + 1))
            losses.append(call(on_device(drawn(2, 4, seed=i)).to(dtype)).detach().item())
        return weights(model), losses, opt.state_dict()

    eager, launched = run(False), run(True)
    assert same_bits(eager[0], launched[0]) and eager[1] == launched[1]
    assert eager[2][1] == launched[2][1] and same_bits([*eager[2][0].values()], [*launched[2][0].values()])


def test_an_optimizer_whose_scalars_would_be_those_of_the_capture_refuses() -> None:
    p = nn.Parameter(on_device(drawn(4, 4)))
    optimizer, graph = optim.Muon([p]), cuda.Graph(DEVICE)
    with pytest.raises(RuntimeError, match=r"Muon.step during capture: .*use AdamW"), graph.capture():
        optimizer.step((p * p).sum().backward())


I = np.array([0, 2, 1])
FORBIDDEN: list[tuple[str, str, Callable[[mg.Tensor, mg.Tensor], Any]]] = [
    ("numpy", "read it after the launch", lambda x, i: x.numpy()),
    ("item", "read it after the launch", lambda x, i: x.sum().item()),
    ("tolist", "read it after the launch", lambda x, i: x.tolist()),
    ("__bool__", "read it after the launch", lambda x, i: 1 if (x > 0).any() else 0),
    ("__float__", "read it after the launch", lambda x, i: float(x.sum())),
    ("equal", "read it after the launch", lambda x, i: x.equal(x)),
    ("__repr__", "read it after the launch", lambda x, i: repr(x)),
    ("tensor", "pass it as an input", lambda x, i: x + mg.tensor([1.0, 2.0, 3.0], device=DEVICE)),
    ("__getitem__", "instead of a boolean mask, use where", lambda x, i: x[x > 0]),
    ("__getitem__", "tensors of integers with dimensions", lambda x, i: x[i[0]]),
    ("masked_select", "use where or masked_fill", lambda x, i: x.masked_select(x > 0)),
    ("nonzero", "the shape of its result depends on values", lambda x, i: x.nonzero()),
    ("unique", "the shape of its result depends on values", lambda x, i: x.unique()),
    ("repeat_interleave", "the shape of its result depends on values", lambda x, i: x.repeat_interleave(i)),
    ("bincount", "the shape of its result depends on values", lambda x, i: i.bincount()),
    ("one_hot", "pass num_classes", lambda x, i: F.one_hot(i)),
    ("backward", "call it before the capture", lambda x, i: leaf(x[None]).prod().backward()),
    ("backward", "call it before the capture", lambda x, i: watched(leaf(x).square())),
    ("multinomial", "call it before the capture, or after the launch", lambda x, i: x.softmax(0).multinomial(1)),
    ("manual_seed", "do it before a launch", lambda x, i: mg.manual_seed(3)),
    ("load_state_dict", "do it before a launch", lambda x, i: GENERATOR.load_state_dict({"seed": 1, "offset": 0})),
    ("clip_grad_norm", "use clip_grad_norm_async", lambda x, i: optim.clip_grad_norm(leaf(x).square().backward(), 1.0)),
    ("unscale_grads", "AmpTrainer.capture", lambda x, i: optim.GradScaler().unscale_grads(leaf(x).square().backward())),
]
FORBIDDEN_ON_A_GPU: list[tuple[str, str, Callable[[mg.Tensor, mg.Tensor], Any]]] = [
    ("to", "read it after the launch", lambda x, i: x.to(device="cpu")),
    ("cpu", "read it after the launch", lambda x, i: x.cpu()),
    ("to", "pass it as an input", lambda x, i: x + mg.ones(3).to(device=DEVICE)),
    ("copy_", "pass it as an input", lambda x, i: x.copy_(mg.ones(3))),
    ("synchronize", "wait after the launch", lambda x, i: cuda.synchronize()),
    ("synchronize", "wait after the launch", lambda x, i: cuda.Event().synchronize()),
    ("__getitem__", "made before the capture", lambda x, i: x[[0, 1]]),
    ("__setitem__", "instead of a boolean mask, use where", lambda x, i: x.__setitem__(x > 0, x[:1])),
]


def with_set(x: mg.Tensor, where: mg.Tensor, value: float) -> mg.Tensor:
    x[where] = value
    return x


def leaf(x: mg.Tensor) -> mg.Tensor:
    return x[0].detach().requires_grad_()


def watched(loss: mg.Tensor) -> None:
    with mg.detect_anomaly():
        loss.backward()


@pytest.mark.parametrize(("name", "remedy", "action"), FORBIDDEN + FORBIDDEN_ON_A_GPU)
def test_what_a_launch_could_not_do_again_raises_and_the_device_goes_on(
    name: str, remedy: str, action: Callable[..., Any]
) -> None:
    if name == "numpy" if DEVICE == "cuda" else (name, remedy, action) in FORBIDDEN_ON_A_GPU:
        pytest.skip("of the other device")
    x, i = on_device(drawn(3)), on_device(I)
    action(x.clone(), i)  # what kernels keep for themselves is there now
    assert (x * 2.0).sum().tolist() is not None
    gc.collect()
    before = cuda.memory_reserved() if DEVICE == "cuda" else 0
    graph = cuda.Graph(DEVICE)
    with (
        pytest.raises(CaptureError, match=rf"^{name}\(\) during capture: .*{remedy}.*\n  at .*test_captured_graphs.py"),
        graph.capture(),
    ):
        y = x * 2.0
        action(y, i)
    raises(CaptureError, "nothing to launch", lambda: graph.replay())
    del y
    gc.collect()
    assert (cuda.memory_reserved() if DEVICE == "cuda" else 0) == before
    assert (x * 2.0).sum().item() == pytest.approx(2 * drawn(3).sum(), rel=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: mg.where(x > 0, x, 0.5) + x.where(x > 1, -1),
        lambda x, i: mg.where(x > 0, 2, x).masked_fill(x < -1, 0.0),
        lambda x, i: x[i] * x[mg.arange(3, device=DEVICE)],
        lambda x, i: mg.eye(3, device=DEVICE) @ x + mg.linspace(0, 1, 3, device=DEVICE) * x.quantile(0.3),
        lambda x, i: x[mg.tril_indices(2, 2, device=DEVICE)] + x[mg.triu_indices(2, 2, device=DEVICE)],
        lambda x, i: F.cross_entropy(x.expand(3, 3), i),
        lambda x, i: F.cross_entropy(x.expand(3, 3), i, weight=x.abs(), ignore_index=2),
        lambda x, i: x.gather(0, i) * x.take_along_dim(i, 0) + x.index_select(0, i) * (x * 1e-25).std(),
        lambda x, i: x.scatter(0, i, 2 * x) + x.scatter(0, i[:1], 0.5) * x.scatter_add(0, i[:2] // 2, x),
        lambda x, i: x.scatter_reduce(0, i // 2, x, "prod") + x.scatter_reduce(0, i // 2, x, "amax"),
        lambda x, i: x.index_add(0, i, x) + x.index_copy(0, i[:2], x[1:]) + x.index_fill(0, i[:1], 3.0),
        lambda x, i: x.index_put((i[:2],), x[:2]) + x.index_put((i // 2,), x, accumulate=True),
        lambda x, i: mg.cat([*x.sort(descending=True), *x.topk(2), *(y.reshape(1) for y in x.max(0))]),
        lambda x, i: x.median() + x.expand(3, 3).median(1).values,
        lambda x, i: F.one_hot(i, 4),
        lambda x, i: F.nll_loss(x.expand(3, 3), i, ignore_index=2) + F.nll_loss(x.expand(3, 3), i, weight=x.abs()),
        lambda x, i: F.nll_loss(x.expand(3, 3).half(), i),
        lambda x, i: x.expand(2, 3).repeat_interleave(2, 0) + x.repeat_interleave(4).reshape(4, 3),
        lambda x, i: (x + x).masked_fill_(x > 0, 0.5) + with_set(x - 1, x > 0, 0.5),
    ],
)
def test_what_takes_the_place_of_them_is_captured(function: Callable[..., mg.Tensor]) -> None:
    x, i = on_device(drawn(3)), on_device(I)
    graph = cuda.Graph(DEVICE)
    with graph.capture():
        y = function(x, i)
    for seed in range(2):
        x.copy_(on_device(drawn(3, seed=seed)))
        graph.replay()
        assert host(y).tobytes() == host(function(x, i)).tobytes()


def test_a_moving_average_with_warmup_goes_on_with_each_replay() -> None:
    def run(captured: bool) -> tuple[int, list[bytes]]:
        model = mlp()
        ema = optim.EMA(model, decay=0.9, warmup=True)
        graph = cuda.Graph(DEVICE)
        if captured:
            with graph.capture():
                ema.update()
        for i in range(3):
            for p in model.parameters():
                p.detach().fill_(float(i))
            (graph.replay if captured else ema.update)()
        with ema.applied():
            return ema.updates, [w.tobytes() for w in weights(model)]

    assert run(True) == run(False)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_launch_appends_tokens_to_a_cache(family: str) -> None:
    if family == "gpt2":
        model: CausalLM = GPT2(GPT2Config(vocab_size=5, block_size=9, n_layer=2, n_head=2, n_embd=8))
    else:
        model = Llama(LlamaConfig(vocab_size=5, block_size=9, n_layer=2, n_head=4, n_kv_head=2, n_embd=8, n_inner=8))
    model.to(device=DEVICE).eval()
    token, graph, ids = on_device(np.array([[1]])), cuda.Graph(DEVICE), [1, 4, 2, 0, 3, 1, 2]
    with mg.no_grad(), mg.unfused():
        found, caches = [], model.new_caches(1, 7)
        found.append(model(on_device(np.array([ids[:1]])), caches).numpy(force=True))
        with graph.capture():
            y = mg.cat([model(token, caches), model(token, caches)], dim=1)  # two at a time
        assert caches[1].length == 1
        for i in (1, 3, 5):
            token.copy_(on_device(np.array([[ids[i]]])))
            graph.replay()
            found.append(y.numpy(force=True).copy())
        assert [cache.length for cache in caches] == [7, 7]
        raises(ValueError, "KVCache holds 7 tokens; 7 are in it and 2 more came", graph.replay)
        doubled = [ids[0], *(ids[i] for i in (1, 1, 3, 3, 5, 5))]
        want = model(on_device(np.array([doubled])))
    np.testing.assert_allclose(np.concatenate(found, 1), want.numpy(force=True), rtol=1e-5, atol=1e-6)


def test_a_launch_appends_one_token_of_a_sequence_at_a_time() -> None:
    model = GPT2(GPT2Config(vocab_size=5, block_size=4, n_layer=1, n_head=1, n_embd=4)).to(device=DEVICE).eval()
    tokens = on_device(np.array([[1, 2]]))
    with mg.no_grad():
        words = r"^attend\(\) during capture: a launch appends one token, in float32 .* not 2 of .*float32"
        with pytest.raises(CaptureError, match=words), cuda.Graph(DEVICE).capture():
            model(tokens, model.new_caches(1, 4))
        with cuda.Graph(DEVICE).capture():
            model(tokens)


def test_backward_of_what_was_computed_before_the_capture_is_refused_on_the_cpu() -> None:
    x = on_device(drawn(3)).requires_grad_()
    early, graph = x * 2.0, cuda.Graph(DEVICE)
    refused = pytest.raises(CaptureError, match=r"^backward\(\) during capture: a part .* computed before any capture")
    with refused if DEVICE == "cpu" else nullcontext(), graph.capture():
        (early * x).sum().backward()


def bias_alone(x: mg.Tensor, layer: nn.Module) -> list[mg.Tensor]:
    y = layer(x)
    grads = y.square().sum().backward()
    return [y.detach(), *(grads[p] for p in layer.parameters() if p in grads)]


@pytest.mark.parametrize(("inputs", "outputs", "frozen"), [(1, 5, False), (8, 1, False), (8, 6, True), (6, 6, False)])
def test_what_zeros_hide_at_the_capture_is_in_the_launch(inputs: int, outputs: int, frozen: bool) -> None:
    layer = nn.Linear(inputs, outputs).to(device=DEVICE)
    layer.bias.detach().fill_(0.0)
    layer.weight.requires_grad_(not frozen)
    x, graph = on_device(np.zeros((7, inputs), np.float32)), cuda.Graph(DEVICE)
    bias_alone(x, layer)
    with graph.capture():
        found = bias_alone(x, layer)
    x.copy_(on_device(drawn(7, inputs)))
    layer.bias.detach().fill_(3.0)
    graph.replay()
    assert same_bits([host(y).copy() for y in found], [host(y) for y in bias_alone(x, layer)])


def test_targets_of_ones_and_inputs_that_are_gone() -> None:
    targets, x = on_device(np.ones((4, 2), np.int64)), on_device(drawn(4, 5))
    graph, wanted = cuda.Graph(DEVICE), F.cross_entropy(x, on_device(np.array([0, 2, 4, 1]))).item()
    with graph.capture():
        loss = F.cross_entropy(x * 1.0, targets[:, 0])
    targets[:, 0] = on_device(np.array([0, 2, 4, 1]))
    graph.replay()
    assert loss.item() == wanted


def test_ctrl_c_within_a_trial_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first launches that a capture makes again are those of the trial with other values; a GPU has none."""

    def interrupt(launches: Any) -> None:
        raise KeyboardInterrupt

    layer, x = nn.Linear(3, 4).to(device=DEVICE), on_device(drawn(2, 3))
    before = weights(layer)
    if DEVICE == "cuda":
        pytest.skip("of the other device")
    monkeypatch.setattr(threads.Launches, "run", interrupt)
    with pytest.raises(KeyboardInterrupt), cuda.Graph(DEVICE).capture():
        layer(x)
    assert same_bits(before, weights(layer))


def test_what_overlaps_is_as_before_the_capture() -> None:
    x, graph = on_device(np.zeros(4, np.float32)), cuda.Graph(DEVICE)
    with graph.capture():
        x.add_(1.0)
        x[1:].copy_(x[1:] + 1.0)
        x.copy_(x + 1.0)
    assert host(x).tolist() == [0.0] * 4
    graph.replay()
    assert host(x).tolist() == [2.0, 3.0, 3.0, 3.0]


def test_own_operations_say_that_they_call_kernels_alone() -> None:
    class Twice(mg.Function):
        def forward(self, x: Any) -> Any:
            return self.kernels.elementwise.mul(x, 2.0)

    class Said(Twice):
        captured = True

    x = on_device(drawn(3))
    for operation, refused in ((Twice, DEVICE == "cpu"), (Said, False)):
        outcome = pytest.raises(CaptureError, match="Twice is the program's own") if refused else nullcontext()
        with outcome, cuda.Graph(DEVICE).capture():
            operation.apply(x)


def test_running_averages_move_once_a_replay() -> None:
    def run(captured: bool) -> list[bytes]:
        norm = nn.BatchNorm1d(4).to(device=DEVICE)
        x, graph = on_device(drawn(5, 4)), cuda.Graph(DEVICE)
        if captured:
            with graph.capture():
                norm(x)
        for seed in range(3):
            x.copy_(on_device(drawn(5, 4, seed=seed)))
            graph.replay() if captured else norm(x)
        return [host(buffer).tobytes() for _, buffer in norm.named_buffers()]

    assert run(True) == run(False)


def test_places_and_borders_are_those_of_each_replay() -> None:
    def step(x: mg.Tensor, places: mg.Tensor, values: mg.Tensor) -> mg.Tensor:
        y = x * 1
        y[places] = values
        p = y.detach().requires_grad_()
        with mg.enable_grad():
            loss = (p.pad((1, 2, -1, 1), 2.0) ** 2).sum()
        return loss.backward()[p] + y

    captured, rng = cuda.graphed(step), np.random.default_rng(0)
    for places in ([0, 3], [4, 1], [-1, -2], [5, -3]):
        arrays = rng.normal(size=(200, 100)), np.array(places), rng.normal(size=(2, 100))
        assert same_bits(host(captured(*map(on_device, arrays))), host(step(*map(on_device, arrays))))


def test_captures_are_neither_nested_nor_repeated() -> None:
    graph = cuda.Graph(DEVICE)
    with graph.capture(), pytest.raises(CaptureError, match="cannot be nested"), cuda.Graph(DEVICE).capture():
        pass
    with pytest.raises(CaptureError, match="captured before"), graph.capture():
        pass


@pytest.mark.parametrize("function", [lambda x: x * 1.5, lambda x: F.softmax(x, -1)])
def test_memory_freed_within_the_capture_is_used_again_in_it(function: Callable[[mg.Tensor], mg.Tensor]) -> None:
    x, p, graph = on_device(drawn(10, 300)), on_device(drawn(3)).requires_grad_(), cuda.Graph(DEVICE)
    with graph.capture():
        y = functools.reduce(lambda y, again: again(y), [function] * 10, x)
        optim.SGD([p], lr=0.1).step(mg.GradStore({p.id: p.detach()}))
    assert graph.pool_bytes <= 3 * 12224
    graph.replay()
    for _ in range(10):
        x = function(x)
    np.testing.assert_array_equal(host(y), host(x))


@pytest.mark.parametrize("bad", [-9, 4, 2**40])
@pytest.mark.parametrize(
    "loss",
    [
        lambda x, i: x[i].sum(),
        lambda x, i: x[:, i].sum(),
        lambda x, i: (F.embedding(i, x) * F.embedding(i, x)).sum(),
        lambda x, i: F.cross_entropy(x[:3], i),
        lambda x, i: F.cross_entropy(x[:3], i, weight=x[0].abs(), label_smoothing=0.1),
        lambda x, i: F.linear_cross_entropy(x[:3], x, i),
        lambda x, i: x[0].gather(0, i).square().sum() + x.index_select(1, i).sum(),
        lambda x, i: (x.scatter(1, i.reshape(1, 3), x) * x.index_add(0, i, x[:3])).sum(),
        lambda x, i: (x[0].scatter_reduce(0, i, x[1], "prod") * x[0].scatter_reduce(0, i, x[1], "amax")).sum(),
        lambda x, i: (F.one_hot(i, 4) * x[:3]).sum(),
    ],
)
def test_an_index_out_of_range_goes_nowhere(loss: Callable[..., mg.Tensor], bad: int) -> None:
    """Forward and backward stay within their arrays, which the simulator checks; good indices count as ever."""
    x, i = on_device(drawn(4, 4)).requires_grad_(), on_device(np.array([0, 3, 1]))
    loss(x, i).backward()
    graph = cuda.Graph(DEVICE)
    with graph.capture():
        y = loss(x, i)
        grad = y.backward()[x]
    for indices in ([0, 3, bad], [2, 3, 1]):
        i.copy_(on_device(np.array(indices)))
        with pytest.raises(IndexError, match="out of") if bad in indices else nullcontext():
            graph.replay()
            graph.check()
    expected = loss(x, i)
    assert host(y.detach()).tobytes() == host(expected.detach()).tobytes()
    assert host(grad).tobytes() == host(expected.backward()[x]).tobytes()


# Trainers -------------------------------------------------------------------------------------------------------------


def gpt() -> nn.Module:
    return GPT2(GPT2Config(block_size=6, vocab_size=11, n_layer=1, n_head=1, n_embd=4, dropout=0.2))


def layers() -> nn.Module:
    start = nn.Embedding(11, 8), nn.Linear(8, 8), nn.SiLU(), nn.Dropout(0.2)
    return nn.Sequential(*start, nn.RMSNorm(8), nn.Linear(8, 11))


MODELS: list[tuple[Callable[[], nn.Module], int]] = [
    *[(gpt, 1), (gpt, 2), (lambda: Llama(LlamaConfig(11, 6, 2, 4, 2, 16, 20)), 1), (layers, 2)],
    (lambda: nn.Sequential(nn.Embedding(11, 8), nn.Block(8, 2, dropout=0.1), nn.Softmax(-1), nn.Linear(8, 11)), 1),
]


@pytest.mark.parametrize(("build", "count"), MODELS)
def test_captured_steps_of_any_model_are_the_eager_ones_bit_for_bit(build: Callable[[], nn.Module], count: int) -> None:
    def run(captured: bool) -> tuple[list[Any], list[np.ndarray], Any]:
        mg.manual_seed(0)
        model, found = build().to(device=DEVICE), []
        settings = TrainingConfig(max_grad_norm=0.1, grad_accum_steps=count)
        trainer = SimpleTrainer(settings, schedule=optim.CosineAnnealing(1e-1, 1e-3, 2, 10))
        loss_of = lambda x, y: F.cross_entropy(model(x).reshape(-1, 11), y.reshape(-1))  # noqa: E731
        step = trainer.capture(loss_of, model.named_parameters())
        for i in range(4):
            shape = (count, 2, 6) if count > 1 else (2, 6)
            x, y = (on_device(np.random.default_rng([i, j]).integers(0, 11, shape)) for j in (0, 1))
            if captured:
                found.append(trainer.launch(x, y).result())
                continue
            for k in range(count):
                loss = loss_of(x[k], y[k]) if count > 1 else loss_of(x, y)
                metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item())
            found.append(metrics)
        assert step.graphs == captured
        return found, weights(model), trainer.state_dict(model.named_parameters())

    eager, captured = run(False), run(True)
    assert eager[0] == captured[0]
    assert eager[0][2].grad_norm > 0.1 and eager[0][2].lr != eager[0][3].lr  # clipped, and scheduled
    assert same_bits(eager[1], captured[1])
    assert eager[2][1] == captured[2][1] and same_bits([*eager[2][0].values()], [*captured[2][0].values()])


def linear_trainer(**settings: Any) -> tuple[nn.Module, SimpleTrainer, Callable[..., mg.Tensor]]:
    model = mlp(p=0.2)
    trainer = SimpleTrainer(TrainingConfig(learning_rate=0.1, **settings))
    return model, trainer, lambda x: model(x).pow(2).mean()


def stepper(
    captured: bool, trainer: SimpleTrainer, model: nn.Module, loss_of: Callable[..., mg.Tensor], **options: Any
) -> Callable[..., Any]:
    """The captured step, or the same by hand."""
    if captured:
        return trainer.capture(loss_of, model.named_parameters(), **options)

    def eager(x: mg.Tensor) -> Any:
        loss = loss_of(x)
        scaled = trainer.scale_loss(loss) if isinstance(trainer, AmpTrainer) else loss
        return trainer.step(model.named_parameters(), scaled.backward(), loss.item())

    return eager


def test_new_shapes_are_captured_anew_and_the_oldest_graphs_go() -> None:
    def run(max_graphs: int | None) -> list[np.ndarray]:
        model, trainer, loss_of = linear_trainer()
        step: Any = stepper(max_graphs is not None, trainer, model, loss_of, max_graphs=max_graphs)
        for i, n in enumerate((2, 3, 2, 3, 2, 3, 1, 2)):
            step(on_device(drawn(n, 4, seed=i)))
        if max_graphs:
            step.settle()
            assert (step.graphs, trainer.clear_graphs(), step.graphs) == (min(2, max_graphs), None, 0)
        return weights(model)

    eager = run(None)
    assert same_bits(eager, run(8)) and same_bits(eager, run(1))


def test_activations_that_are_computed_again_are_so_in_each_launch() -> None:
    def run(captured: bool) -> list[np.ndarray]:
        model, trainer, _ = linear_trainer()
        step = stepper(captured, trainer, model, lambda x: mg.checkpoint(model, x).pow(2).mean())
        for i in range(3):
            done = step(on_device(drawn(2, 4, seed=i)))
            if captured:
                done.result()
        return weights(model)

    assert same_bits(run(False), run(True))


def test_a_resumed_run_equals_the_uninterrupted_one() -> None:
    model, trainer, loss_of = linear_trainer()
    step = trainer.capture(loss_of, model.named_parameters())
    saved: Any = None
    for i in range(6):
        if i == 3:
            saved = trainer.state_dict(model.named_parameters()), weights(model), GENERATOR.state_dict()
        step(on_device(drawn(2, 4, seed=i)))
    step.settle()
    final = weights(model)
    (arrays, meta), values, rng = saved
    assert meta["global_step"] == 3
    trainer.load_state_dict(model.named_parameters(), arrays, meta)  # in the same process: its graph is stale now
    for p, value in zip(model.parameters(), values, strict=True):
        p.detach().copy_(on_device(value))
    GENERATOR.load_state_dict(rng)
    for i in range(3, 6):
        step(on_device(drawn(2, 4, seed=i)))
    step.settle()
    assert same_bits(final, weights(model))


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing_and_stops_those_after_it(kind: str) -> None:
    model, trainer, _ = linear_trainer()

    def loss_of(x: mg.Tensor, bad: mg.Tensor) -> mg.Tensor:
        y = model(x).pow(2).mean()
        return y + bad.sum() if kind == "loss" else y + (model[0].weight * bad.sum()).pow(2).sqrt().sum() * 0.0

    good, bad = np.zeros(1, np.float32), np.array([np.inf if kind == "loss" else 0.0], np.float32)
    step = trainer.capture(loss_of, model.named_parameters())
    x = on_device(drawn(2, 4))
    one = np.ones(1, np.float32) if kind == "gradient" else good  # the gradient of sqrt at 0 is 0 times infinity
    for _ in range(3):
        step(x, on_device(one)).result()
    before = weights(model)
    expected = NonFiniteLossError if kind == "loss" else optim.NonFiniteGradientError
    if DEVICE == "cpu":
        raises(expected, "step 4", lambda: step(x, on_device(bad)))
    else:
        pending = [step(x, on_device(b)) for b in (bad, one)]
        raises(expected, "step 4", lambda: pending[0].result())
        raises(RuntimeError, "left out, because step 4 failed", lambda: pending[1].result())
    assert same_bits(before, weights(model)) and trainer.global_step == 3 and trainer.optimizer.timestep == 3
    metrics = step(x, on_device(one)).result()
    assert metrics is not None and metrics.step == 4 and not same_bits(before, weights(model))


def test_an_error_that_nobody_asked_for_is_raised_by_a_later_step() -> None:
    model, trainer, loss_of = linear_trainer()
    step = trainer.capture(loss_of, model.named_parameters())
    for _ in range(2):
        step(on_device(drawn(2, 4)))
    with pytest.raises(NonFiniteLossError, match="step 3"):
        step(on_device(np.full((2, 4), np.inf, np.float32)))
        for _ in range(5):
            step(on_device(drawn(2, 4)))
    assert trainer.global_step == 2


@pytest.mark.filterwarnings("ignore:overflow")
def test_scaled_gradients_that_overflow_are_left_out_on_the_device() -> None:
    def run(captured: bool) -> tuple[Any, ...]:
        model = mlp(p=0.0)
        scale = optim.LossScaleStrategy.dynamic(2.0**126, growth_interval=2)
        trainer = AmpTrainer(TrainingConfig(learning_rate=0.1), MixedPrecisionConfig(loss_scale=scale))
        step = stepper(captured, trainer, model, lambda x: model(x).pow(2).mean())
        found = []
        for i in range(6):
            done = step(on_device(drawn(2, 4, seed=i) * (1.0, 1.0, 100.0, 1.0, 1.0, 1.0)[i]))
            found.append(done.result() if captured else done)
        return found, weights(model), trainer.skipped_steps, trainer.loss_scale, trainer.optimizer.timestep

    eager, captured = run(False), run(True)
    assert None in captured[0][1:] and eager[0] == captured[0] and eager[2:] == captured[2:]
    assert same_bits(eager[1], captured[1])


def test_boostrs_forward_and_backward_passes() -> None:
    mg.manual_seed(0)
    model = nn.Linear(4, 2).to(device=DEVICE)
    trainer = SimpleTrainer()
    raises(RuntimeError, "capture_forward_pass first", lambda: trainer.launch_forward_graph())
    x = on_device(drawn(3, 4))
    trainer.capture_forward_pass(lambda x: model(x).pow(2).mean(), x)
    trainer.capture_backward_pass(lambda loss: loss.backward())
    assert trainer.graphs_captured
    for seed in (1, 2):
        x = on_device(drawn(3, 4, seed=seed))
        loss = trainer.launch_forward_graph(x)
        grads = trainer.launch_backward_graph()
        expected = model(x).pow(2).mean()
        assert loss.detach().item() == expected.detach().item()
        assert same_bits([host(grads[model.weight])], [host(expected.backward()[model.weight])])
    trainer.clear_graphs()
    assert not trainer.graphs_captured


def test_arrays_that_launches_know_by_their_addresses_are_there_in_replays() -> None:
    """A triangle's mask, a product of integers, a sort's keys: none is an argument of its launch."""
    x, bits, zeros = mg.rand(64, 128, 128), mg.ones(128, 128).to(mg.uint8), mg.zeros(40, 20_000).int()
    a, b = mg.ones(3, 400, 1).long(), mg.ones(3, 1, 500).long()
    graph = mg.cuda.Graph("cpu")
    with graph.capture():
        found = x.tril(), bits + 1, bits + 2, a @ b, zeros.argsort(1)
    a.fill_(7)
    zeros.copy_(mg.randint(0, 1000, zeros.shape).int())
    graph.replay()
    np.testing.assert_array_equal(found[0].numpy(), np.tril(x.numpy()))
    assert (found[3] == 7).all()
    np.testing.assert_array_equal(found[4].numpy(), np.argsort(zeros.numpy(), 1, kind="stable"))
