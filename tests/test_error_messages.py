"""What the errors of common mistakes say, compared with ``golden/errors.txt``.

``python tests/test_error_messages.py --write`` writes the golden file anew; read the difference before you keep it.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigrad as mg
from minigrad import Tensor, data, nn
from minigrad.device import Device
from minigrad.distributed import SimpleTrainer, TrainingConfig
from minigrad.models import GPT2, GPT2Config
from minigrad.nn import functional as F
from minigrad.optim import SGD, AdamW, CosineAnnealing, clip_grad_norm
from minigrad.serialization import load_checkpoint, load_safetensors, save_checkpoint, save_safetensors

GOLDEN = Path(__file__).with_name("golden") / "errors.txt"
MISTAKES: dict[str, Callable[..., Any]] = {}


def mistake(fn: Callable[..., Any]) -> Callable[..., Any]:
    MISTAKES[fn.__name__.replace("_", " ")] = fn
    return fn


def leaf(*shape: int) -> Tensor:
    return mg.ones(*shape, requires_grad=True)


# Shapes ---------------------------------------------------------------------------------------------------------------


@mistake
def transposed_matmul() -> None:
    a, b = mg.ones(2, 3), mg.ones(2, 3)
    a @ b


@mistake
def matmul_with_a_number() -> None:
    mg.ones(2, 2) @ 3


@mistake
def matmul_of_a_scalar() -> None:
    mg.ones(2, 2) @ mg.tensor(3.0)


@mistake
def batches_that_do_not_broadcast() -> None:
    mg.ones(2, 3, 4) @ mg.ones(5, 4, 3)


@mistake
def mm_of_three_dimensions() -> None:
    mg.ones(2, 3, 4).mm(mg.ones(4, 3))


@mistake
def shapes_that_do_not_broadcast() -> None:
    mg.ones(3, 4) + mg.ones(3)


@mistake
def reshape_to_another_size() -> None:
    mg.ones(2, 3).reshape(4, 2)


@mistake
def reshape_with_two_unknowns() -> None:
    mg.ones(2, 3).reshape(-1, -1)


@mistake
def reshape_that_does_not_divide() -> None:
    mg.ones(2, 3).reshape(-1, 4)


@mistake
def view_of_a_transpose() -> None:
    mg.ones(2, 3).T.view(6)


@mistake
def dim_out_of_range() -> None:
    mg.ones(2, 3).sum(dim=2)


@mistake
def dim_of_the_wrong_type() -> None:
    mg.ones(2, 3).softmax("rows")


@mistake
def dim_and_axis_at_once() -> None:
    mg.ones(2, 3).sum(dim=0, axis=1)


@mistake
def permute_with_a_dimension_twice() -> None:
    mg.ones(2, 3).permute(0, 0)


@mistake
def expand_of_a_dimension_that_is_not_1() -> None:
    mg.ones(2, 3).expand(4, 3)


@mistake
def cat_of_shapes_that_differ() -> None:
    mg.cat([mg.ones(2, 3), mg.ones(2, 4)], dim=0)


@mistake
def cat_of_nothing() -> None:
    mg.cat([])


@mistake
def stack_of_shapes_that_differ() -> None:
    mg.stack([mg.ones(2), mg.ones(3)])


@mistake
def split_sizes_that_do_not_add_up() -> None:
    mg.ones(5).split([2, 2])


@mistake
def squeeze_then_iterate_a_scalar() -> None:
    list(mg.ones(1).squeeze())


@mistake
def len_of_a_scalar() -> None:
    len(mg.tensor(1.0))


@mistake
def einsum_with_a_size_that_differs() -> None:
    mg.einsum("ij,jk->ik", mg.ones(2, 3), mg.ones(4, 5))


@mistake
def einsum_with_a_letter_too_few() -> None:
    mg.einsum("ij,jk->ik", mg.ones(2, 3, 4), mg.ones(3, 5))


@mistake
def einsum_with_an_unknown_output() -> None:
    mg.einsum("ij->k", mg.ones(2, 3))


@mistake
def einsum_with_an_operand_missing() -> None:
    mg.einsum("ij,jk->ik", mg.ones(2, 3))


@mistake
def topk_of_more_than_there_is() -> None:
    mg.ones(3).topk(5)


# Indices --------------------------------------------------------------------------------------------------------------


@mistake
def index_out_of_range() -> None:
    mg.ones(3)[5]


@mistake
def index_tensor_out_of_range() -> None:
    mg.ones(3)[mg.tensor([0, 7])]


@mistake
def float_index() -> None:
    mg.ones(3)[mg.tensor([0.0, 1.0])]


@mistake
def too_many_indices() -> None:
    mg.ones(3)[0, 0]


@mistake
def mask_of_another_shape() -> None:
    mg.ones(3)[mg.tensor([True, False])]


@mistake
def gather_out_of_range() -> None:
    mg.ones(2, 3).gather(1, mg.tensor([[3], [0]]))


@mistake
def gather_with_an_index_of_too_few_dimensions() -> None:
    mg.ones(2, 3).gather(1, mg.tensor([0, 1]))


@mistake
def embedding_index_out_of_range() -> None:
    nn.Embedding(10, 4)(mg.tensor([[3, 10]]))


@mistake
def embedding_of_floats() -> None:
    nn.Embedding(10, 4)(mg.tensor([1.0, 2.0]))


# Making and leaving tensors -------------------------------------------------------------------------------------------


@mistake
def ragged_list() -> None:
    mg.tensor([[1.0, 2.0], [3.0]])


@mistake
def array_of_objects() -> None:
    mg.tensor(np.array([1, None], dtype=object))


@mistake
def list_of_strings() -> None:
    mg.tensor(["a", "b"])


@mistake
def unsupported_dtype() -> None:
    mg.zeros(3, dtype="complex64")


@mistake
def integers_that_require_grad() -> None:
    mg.tensor([1, 2], requires_grad=True)


@mistake
def numpy_without_detach() -> None:
    leaf(3).numpy()


@mistake
def np_asarray_without_detach() -> None:
    np.asarray(leaf(3) * 2)


@mistake
def item_of_several_elements() -> None:
    mg.ones(3).item()


@mistake
def truth_of_several_elements() -> None:
    if mg.ones(3) > 0:
        pass


@mistake
def a_float_tensor_as_an_index() -> None:
    [10, 20][mg.tensor(1.0)]


@mistake
def unknown_device() -> None:
    mg.zeros(3, device="gpu")


@mistake
def mixed_devices() -> None:
    a, b = mg.ones(2), mg.ones(2)
    b.device = Device("cuda:0")
    a + b


@mistake
def a_tensor_and_a_string() -> None:
    mg.ones(3) + "1"


@mistake
def bitwise_and_of_floats() -> None:
    mg.ones(3) & mg.ones(3)


@mistake
def mean_of_integers() -> None:
    mg.tensor([1, 2]).mean()


@mistake
def mask_that_is_not_bool() -> None:
    mg.ones(3).masked_fill(mg.ones(3), 0.0)


@mistake
def where_with_a_float_condition() -> None:
    mg.where(mg.ones(3), mg.ones(3), mg.zeros(3))


@mistake
def probabilities_above_1() -> None:
    mg.tensor([0.5, 1.5]).bernoulli()


@mistake
def negative_seed() -> None:
    mg.manual_seed(-1)


# Gradients ------------------------------------------------------------------------------------------------------------


@mistake
def backward_of_several_elements() -> None:
    (leaf(3) * 2).backward()


@mistake
def backward_twice() -> None:
    loss = leaf(3).exp().sum()
    loss.backward()
    loss.backward()


@mistake
def backward_without_requires_grad() -> None:
    mg.ones(3).sum().backward()


@mistake
def gradient_of_another_shape() -> None:
    (leaf(3) * 2).backward(mg.ones(2))


@mistake
def second_derivative() -> None:
    leaf(3).sum().backward(create_graph=True)


@mistake
def gradient_as_an_attribute() -> None:
    x = leaf(3)
    x.sum().backward()
    x.grad  # noqa: B018


@mistake
def gradient_of_an_intermediate_result() -> None:
    x = leaf(3)
    y = x * 2
    grads = y.sum().backward()
    grads[y]


@mistake
def gradients_by_name() -> None:
    grads = leaf(3).sum().backward()
    grads["weight"]


@mistake
def zero_grad() -> None:
    nn.Linear(2, 2).zero_grad()


@mistake
def in_place_on_a_leaf() -> None:
    x = leaf(3)
    x += 1


@mistake
def in_place_on_a_saved_tensor() -> None:
    y = leaf(3) * 2
    loss = (y * y).sum()
    with mg.no_grad():
        y.add_(1)
    loss.backward()


@mistake
def in_place_on_a_saved_tensor_within_detect_anomaly() -> None:
    with mg.detect_anomaly():
        y = leaf(3).exp()
        with mg.no_grad():
            y.zero_()
        y.sum().backward()


@mistake
def nan_in_a_gradient() -> None:
    x = mg.zeros(2, requires_grad=True)
    with mg.detect_anomaly():
        y = x / x
        y.sum().backward()


@mistake
def in_place_with_a_result_of_another_shape() -> None:
    mg.ones(3).add_(mg.ones(2, 3))


@mistake
def in_place_with_a_result_of_another_dtype() -> None:
    mg.tensor([1, 2]).add_(0.5)


@mistake
def in_place_on_expanded_memory() -> None:
    mg.ones(3).expand(2, 3).zero_()


@mistake
def a_backward_with_a_gradient_too_few() -> None:
    class Product(mg.Function):
        """z = x y, with a derivative forgotten."""

        def forward(self, x: Any, y: Any) -> Any:
            self.saved = (x, y)
            return x * y

        def backward(self, dz: Any) -> Any:
            return dz * self.saved[1]

    Product.apply(leaf(2), leaf(2)).sum().backward()


@mistake
def a_backward_of_the_wrong_shape() -> None:
    class Sum(mg.Function):
        """y = sum(x), with a derivative that is not spread."""

        def forward(self, x: Any) -> Any:
            return x.sum()

        def backward(self, dy: Any) -> Any:
            return dy.reshape(1, 1)

    Sum.apply(leaf(2)).backward()


@mistake
def a_checkpointed_function_that_draws_from_numpy() -> None:
    rng = np.random.default_rng(0)
    y = mg.checkpoint(lambda x: (x * rng.random(3)).exp(), leaf(3))
    y.sum().backward()


# Modules and losses ---------------------------------------------------------------------------------------------------


@mistake
def linear_of_another_size() -> None:
    nn.Linear(4, 2)(mg.ones(3, 5))


@mistake
def labels_out_of_range() -> None:
    F.cross_entropy(mg.ones(2, 3), mg.tensor([0, 3]))


@mistake
def float_labels() -> None:
    F.cross_entropy(mg.ones(2, 3), mg.tensor([0.0, 1.0]))


@mistake
def labels_of_another_batch_size() -> None:
    F.cross_entropy(mg.ones(2, 3), mg.tensor([0, 1, 2]))


@mistake
def one_hot_labels_of_another_shape() -> None:
    F.cross_entropy(mg.ones(2, 3), mg.ones(2, 4))


@mistake
def class_weights_of_another_size() -> None:
    F.cross_entropy(mg.ones(2, 3), mg.tensor([0, 1]), weight=mg.ones(2))


@mistake
def mse_of_shapes_that_differ() -> None:
    F.mse_loss(mg.ones(4, 1), mg.ones(4))


@mistake
def unknown_reduction() -> None:
    F.mse_loss(mg.ones(4), mg.ones(4), reduction="average")


@mistake
def dropout_of_integers() -> None:
    F.dropout(mg.tensor([1, 2]), 0.5)


@mistake
def dropout_that_is_no_probability() -> None:
    F.dropout(mg.ones(3), 50)


@mistake
def layer_norm_of_another_size() -> None:
    nn.LayerNorm(8)(mg.ones(2, 4))


@mistake
def heads_that_do_not_divide() -> None:
    nn.CausalSelfAttention(n_embd=10, n_head=3)


@mistake
def attention_of_three_dimensions() -> None:
    F.scaled_dot_product_attention(mg.ones(2, 5, 8), mg.ones(2, 5, 8), mg.ones(2, 5, 8))


@mistake
def a_mask_and_is_causal() -> None:
    q = mg.ones(1, 2, 5, 8)
    F.scaled_dot_product_attention(q, q, q, attn_mask=mg.ones(5, 5), is_causal=True)


SMALL = GPT2Config(vocab_size=7, block_size=4, n_layer=1, n_head=1, n_embd=4)


@mistake
def sequence_longer_than_block_size() -> None:
    GPT2(SMALL)(mg.zeros(1, 5, dtype=mg.int64))


@mistake
def tokens_without_a_batch() -> None:
    GPT2(SMALL)(mg.zeros(4, dtype=mg.int64))


@mistake
def a_config_of_no_heads() -> None:
    GPT2Config(n_head=0)


@mistake
def a_module_without_super_init() -> None:
    class Net(nn.Module):
        """Forgets super().__init__()."""

        def __init__(self) -> None:
            self.layer = nn.Linear(2, 2)

    Net()


@mistake
def a_wrong_state_dict() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    state = model.state_dict()
    del state["0.bias"]
    state["0.weight"] = mg.ones(3, 4)
    state["head.weight"] = mg.ones(1)
    model.load_state_dict(state)


# Optimizers and training ----------------------------------------------------------------------------------------------


@mistake
def optimizer_of_numbers() -> None:
    SGD([1.0, 2.0], lr=0.1)


@mistake
def optimizer_with_a_parameter_twice() -> None:
    w = leaf(3)
    SGD([w, w], lr=0.1)


@mistake
def optimizer_of_an_intermediate_result() -> None:
    SGD([leaf(3) * 2], lr=0.1)


@mistake
def optimizer_of_names() -> None:
    SGD(nn.Linear(2, 2).state_dict(), lr=0.1)


@mistake
def negative_learning_rate() -> None:
    AdamW([leaf(3)], lr=-1e-3)


@mistake
def beta_of_1() -> None:
    AdamW([leaf(3)], betas=(0.9, 1.0))


@mistake
def optimizer_state_of_another_model() -> None:
    AdamW([leaf(3)]).load_state_dict(*AdamW([leaf(3), leaf(2)]).state_dict())


@mistake
def warmup_longer_than_training() -> None:
    CosineAnnealing(base_lr=1.0, min_lr=0.0, warmup_steps=10, total_steps=5)


@mistake
def clipping_of_nan() -> None:
    x = mg.tensor([math.nan], requires_grad=True)
    clip_grad_norm((x * x).sum().backward(), 1.0)


@mistake
def trainer_with_a_loss_that_is_nan() -> None:
    w = leaf(2)
    SimpleTrainer(TrainingConfig()).step([w], w.sum().backward(), math.nan)


@mistake
def trainer_with_a_parameter_that_is_not_in_the_optimizer() -> None:
    a, b = leaf(2), leaf(2)
    trainer = SimpleTrainer.with_optimizer(TrainingConfig(), AdamW([a]))
    trainer.step([a, b], (a * b).sum().backward(), 1.0)


# Habits of PyTorch ----------------------------------------------------------------------------------------------------


@mistake
def adding_up_losses_in_place() -> None:
    total = mg.zeros(())
    total += (leaf(3) * 2).sum()


@mistake
def optimizer_zero_grad() -> None:
    AdamW([leaf(3)]).zero_grad()


@mistake
def optimizer_step_without_gradients() -> None:
    AdamW([leaf(3)]).step()


@mistake
def optimizer_of_a_module() -> None:
    AdamW(nn.Linear(2, 2))


@mistake
def optimizer_with_the_learning_rate_first() -> None:
    AdamW(1e-3, nn.Linear(2, 2).parameters())


@mistake
def optimizer_of_nothing() -> None:
    class Net(nn.Module):
        """Keeps its layers in a list, where they are not found."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(2, 2)]

    AdamW(Net().parameters())


@mistake
def optimizer_of_another_model() -> None:
    AdamW(nn.Linear(2, 2).parameters()).step(nn.Linear(2, 1)(mg.ones(2)).sum().backward())


@mistake
def trainer_with_parameters_used_up() -> None:
    w = leaf(2)
    SimpleTrainer().step(iter(()), w.sum().backward(), 1.0)


@mistake
def clipping_of_parameters() -> None:
    clip_grad_norm(nn.Linear(2, 2).parameters(), 1.0)


@mistake
def clipping_by_its_name_in_torch() -> None:
    nn.utils.clip_grad_norm_([leaf(3)], 1.0)


@mistake
def a_schedule_by_its_name_in_torch() -> None:
    mg.optim.lr_scheduler.StepLR(None, 1)


@mistake
def a_loader_by_its_name_in_torch() -> None:
    data.DataLoader([1, 2], batch_size=2)


@mistake
def saving_as_in_torch(folder: Path) -> None:
    mg.save(nn.Linear(2, 2).state_dict(), folder / "model.pt")


@mistake
def saving_a_module(folder: Path) -> None:
    save_safetensors(folder / "model.safetensors", nn.Linear(2, 2))


@mistake
def loading_a_path(folder: Path) -> None:
    nn.Linear(2, 2).load_state_dict(str(folder / "model.safetensors"))


@mistake
def a_layer_that_is_not_here() -> None:
    nn.Conv2d(3, 8, 3)


@mistake
def a_layer_of_another_place() -> None:
    mg.Linear(2, 2)


@mistake
def a_misspelt_parameter() -> None:
    nn.Linear(2, 2).wieght  # noqa: B018


@mistake
def tensor_over_a_parameter() -> None:
    nn.Linear(4, 2).weight = mg.ones(2, 4)


@mistake
def list_to_a_layer() -> None:
    nn.Linear(2, 2)([[1.0, 2.0]])


@mistake
def layers_as_a_list() -> None:
    nn.Sequential([nn.Linear(2, 2)])


@mistake
def attention_without_a_batch() -> None:
    nn.CausalSelfAttention(4, 2)(mg.ones(3, 4))


@mistake
def drawing_of_a_number() -> None:
    mg.draw(3)


# Files ----------------------------------------------------------------------------------------------------------------


@mistake
def truncated_safetensors_file(folder: Path) -> None:
    save_safetensors(folder / "model.safetensors", {"w": mg.ones(100)})
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(300)
    load_safetensors(folder / "model.safetensors")


@mistake
def file_that_is_no_safetensors_file(folder: Path) -> None:
    (folder / "model.safetensors").write_text("hello, this is no tensor")
    load_safetensors(folder / "model.safetensors")


@mistake
def missing_file(folder: Path) -> None:
    load_safetensors(folder / "missing.safetensors")


@mistake
def damaged_checkpoint(folder: Path) -> None:
    path = save_checkpoint(folder, {"model": {"w": np.ones(100)}}, {"step": 3})
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    load_checkpoint(folder)


@mistake
def folder_without_checkpoints(folder: Path) -> None:
    load_checkpoint(folder)


@mistake
def state_that_json_cannot_hold(folder: Path) -> None:
    save_checkpoint(folder, {}, {"step": 1, "when": {1, 2}})


@mistake
def tensors_without_names(folder: Path) -> None:
    save_safetensors(folder / "model.safetensors", {1: mg.ones(2)})


# Data -----------------------------------------------------------------------------------------------------------------


@mistake
def corpus_that_is_not_there() -> None:
    data.load_corpus("no-such-file.txt")


@mistake
def tokenizer_of_no_text() -> None:
    data.CharTokenizer.from_text("")


@mistake
def character_that_the_tokenizer_lacks() -> None:
    data.CharTokenizer.from_text("abc").encode("abd")


@mistake
def token_beyond_the_vocabulary() -> None:
    data.BytePairTokenizer.train("abc abc", 258).decode([999])


@mistake
def tokenizer_file_of_another_kind(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    data.BytePairTokenizer.from_file(folder / "tokenizer.json")


@mistake
def too_few_tokens_for_a_batch() -> None:
    data.RandomBatches(np.arange(5), 2, 8, seed=0)


@mistake
def epoch_of_no_examples() -> None:
    data.EpochSampler(0, 8, seed=0)


@mistake
def token_file_that_is_not_there() -> None:
    data.open_tokens("no-such-file.bin")


# The comparison -------------------------------------------------------------------------------------------------------


def message_of(fn: Callable[..., Any], folder: Path) -> str:
    """Type and message of what a mistake raises, without what differs from run to run."""
    try:
        fn(folder) if "folder" in fn.__annotations__ else fn()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    else:
        raise AssertionError(f"{fn.__name__} raised nothing")
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r"at \S*test_error_messages\.py:\d+", "at FILE:LINE", text)
    return re.sub(r"tensor \d+", "tensor ID", text)


def render(messages: dict[str, str]) -> str:
    return "".join(f"{name}\n    {text.replace(chr(10), chr(10) + '    ')}\n\n" for name, text in messages.items())


def read_golden() -> dict[str, str]:
    entries = re.split(r"\n\n(?=\S)", GOLDEN.read_text(encoding="utf-8").rstrip("\n"))
    pairs = [entry.partition("\n    ") for entry in entries]
    return {name: text.replace("\n    ", "\n") for name, _, text in pairs}


@pytest.mark.parametrize("name", MISTAKES)
def test_message(name: str, tmp_path: Path) -> None:
    assert message_of(MISTAKES[name], tmp_path) == read_golden().get(name)


def test_the_golden_file_lists_the_mistakes() -> None:
    assert list(read_golden()) == list(MISTAKES) and len(MISTAKES) >= 50


def test_the_golden_file_is_read_as_it_is_written() -> None:
    assert render(read_golden()) == GOLDEN.read_text(encoding="utf-8")


def test_the_line_is_that_of_the_users_call() -> None:
    x = mg.ones(2, 3)
    for wrong in (lambda: x @ x, lambda: nn.Linear(4, 2)(x), lambda: x.reshape(5)):
        with pytest.raises(ValueError) as caught:
            wrong()
        code = wrong.__code__
        assert f"\n  at {Path(code.co_filename).name}:{code.co_firstlineno}: for wrong in (lambda" in re.sub(
            r"at \S*/", "at ", str(caught.value)
        )


def test_code_without_source_has_a_line_too() -> None:
    namespace = {"x": mg.ones(2, 3), "__name__": "__main__"}
    with pytest.raises(ValueError, match=r"\n  at <made up>:2$"):
        exec(compile("y = x\nx @ y", "<made up>", "exec"), namespace)


def test_anomaly_mode_ends_with_its_block() -> None:
    x = mg.zeros(2, requires_grad=True)
    with contextlib.suppress(KeyError), mg.detect_anomaly():
        raise KeyError
    loss = (x / x).sum()
    assert np.isnan(loss.backward(retain_graph=True)[x].numpy()).all()
    with mg.detect_anomaly(), pytest.raises(RuntimeError, match="Div.backward returned NaN in the gradient of input"):
        loss.backward()


def write() -> None:
    messages = {}
    for name, fn in MISTAKES.items():
        with tempfile.TemporaryDirectory() as folder:
            messages[name] = message_of(fn, Path(folder))
    GOLDEN.write_text(render(messages), encoding="utf-8")


DIMS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x.sum(5),
    "amax": lambda x: x.amax(5),
    "transpose": lambda x: x.transpose(0, 5),
    "unsqueeze": lambda x: mg.unsqueeze(x, 5),
    "stack": lambda x: mg.stack([x], 5),
    "softmax": lambda x: nn.Softmax(5)(x),
    "glu": lambda x: F.glu(x, 5),
    "cummax": lambda x: x.cummax(5),
}


@pytest.mark.parametrize("name", DIMS)
def test_a_wrong_dim_names_the_operation(name: str) -> None:
    with pytest.raises(IndexError, match=rf"^{name}: dim 5 is out of range for a tensor of "):
        DIMS[name](mg.ones(2, 3))
    with pytest.raises(IndexError, match=rf"^{name}: dim 5 "):  # within the library's own frames, too
        mg.checkpoint(DIMS[name], mg.ones(2, 3))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    write()
