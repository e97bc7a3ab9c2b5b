"""What the errors of common mistakes say, compared with ``golden/errors.txt``.

``python tests/test_error_messages.py --write`` writes the golden file anew; read the difference before you keep it.
"""

import contextlib
import inspect
import math
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from processes import python
from refusals import raises

import minigrad as mg
from minigrad import Tensor, data, nn
from minigrad.device import Device
from minigrad.distributed import SimpleTrainer, TrainingConfig
from minigrad.models import GPT2, GPT2Config
from minigrad.nn import functional as F
from minigrad.optim import SGD, AdamW, CosineAnnealing, clip_grad_norm
from minigrad.serialization import load_checkpoint, load_safetensors, save_checkpoint, save_safetensors

GOLDEN = Path(__file__).with_name("golden") / "errors.txt"
SMALL = GPT2Config(vocab_size=7, block_size=4, n_layer=1, n_head=1, n_embd=4)


def leaf(*shape: int) -> Tensor:
    return mg.ones(*shape, requires_grad=True)


class Twice(mg.Function):
    """y = 2 x, with a derivative that is whatever ``answer`` makes of dy."""

    def forward(self, x, answer):
        self.answer = answer
        return 2 * x

    def backward(self, dy):
        return self.answer(dy)


MISTAKES = {
    # Shapes
    "transposed matmul": lambda: mg.ones(2, 3) @ mg.ones(2, 3),
    "matmul with a number": lambda: mg.ones(2, 2) @ 3,
    "matmul of a scalar": lambda: mg.ones(2, 2) @ mg.tensor(3.0),
    "batches that do not broadcast": lambda: mg.ones(2, 3, 4) @ mg.ones(5, 4, 3),
    "mm of three dimensions": lambda: mg.ones(2, 3, 4).mm(mg.ones(4, 3)),
    "shapes that do not broadcast": lambda: mg.ones(3, 4) + mg.ones(3),
    "reshape to another size": lambda: mg.ones(2, 3).reshape(4, 2),
    "reshape with two unknowns": lambda: mg.ones(2, 3).reshape(-1, -1),
    "reshape that does not divide": lambda: mg.ones(2, 3).reshape(-1, 4),
    "view of a transpose": lambda: mg.ones(2, 3).T.view(6),
    "dim out of range": lambda: mg.ones(2, 3).sum(dim=2),
    "dim of the wrong type": lambda: mg.ones(2, 3).softmax("rows"),
    "dim and axis at once": lambda: mg.ones(2, 3).sum(dim=0, axis=1),
    "permute with a dimension twice": lambda: mg.ones(2, 3).permute(0, 0),
    "expand of a dimension that is not 1": lambda: mg.ones(2, 3).expand(4, 3),
    "cat of shapes that differ": lambda: mg.cat([mg.ones(2, 3), mg.ones(2, 4)], dim=0),
    "cat of nothing": lambda: mg.cat([]),
    "stack of shapes that differ": lambda: mg.stack([mg.ones(2), mg.ones(3)]),
    "split sizes that do not add up": lambda: mg.ones(5).split([2, 2]),
    "squeeze then iterate a scalar": lambda: list(mg.ones(1).squeeze()),
    "len of a scalar": lambda: len(mg.tensor(1.0)),
    "einsum with a size that differs": lambda: mg.einsum("ij,jk->ik", mg.ones(2, 3), mg.ones(4, 5)),
    "einsum with a letter too few": lambda: mg.einsum("ij,jk->ik", mg.ones(2, 3, 4), mg.ones(3, 5)),
    "einsum with an unknown output": lambda: mg.einsum("ij->k", mg.ones(2, 3)),
    "einsum with an operand missing": lambda: mg.einsum("ij,jk->ik", mg.ones(2, 3)),
    "topk of more than there is": lambda: mg.ones(3).topk(5),
    # Indices
    "index out of range": lambda: mg.ones(3)[5],
    "index tensor out of range": lambda: mg.ones(3)[mg.tensor([0, 7])],
    "float index": lambda: mg.ones(3)[mg.tensor([0.0, 1.0])],
    "too many indices": lambda: mg.ones(3)[0, 0],
    "mask of another shape": lambda: mg.ones(3)[mg.tensor([True, False])],
    "gather out of range": lambda: mg.ones(2, 3).gather(1, mg.tensor([[3], [0]])),
    "gather with an index of too few dimensions": lambda: mg.ones(2, 3).gather(1, mg.tensor([0, 1])),
    "embedding index out of range": lambda: nn.Embedding(10, 4)(mg.tensor([[3, 10]])),
    "embedding of floats": lambda: nn.Embedding(10, 4)(mg.tensor([1.0, 2.0])),
    # Making and leaving tensors
    "truth of several elements": lambda: bool(mg.ones(3) > 0),
    "mixed devices": lambda: mg.ones(2) + Tensor.wrap(np.ones(2, np.float32), Device("cuda:0")),
    "ragged list": lambda: mg.tensor([[1.0, 2.0], [3.0]]),
    "array of objects": lambda: mg.tensor(np.array([1, None], dtype=object)),
    "list of strings": lambda: mg.tensor(["a", "b"]),
    "unsupported dtype": lambda: mg.zeros(3, dtype="complex64"),
    "integers that require grad": lambda: mg.tensor([1, 2], requires_grad=True),
    "numpy without detach": lambda: leaf(3).numpy(),
    "np asarray without detach": lambda: np.asarray(leaf(3) * 2),
    "item of several elements": lambda: mg.ones(3).item(),
    "a float tensor as an index": lambda: [10, 20][mg.tensor(1.0)],
    "unknown device": lambda: mg.zeros(3, device="gpu"),
    "a tensor and a string": lambda: mg.ones(3) + "1",
    "bitwise and of floats": lambda: mg.ones(3) & mg.ones(3),
    "mean of integers": lambda: mg.tensor([1, 2]).mean(),
    "mask that is not bool": lambda: mg.ones(3).masked_fill(mg.ones(3), 0.0),
    "where with a float condition": lambda: mg.where(mg.ones(3), mg.ones(3), mg.zeros(3)),
    "probabilities above 1": lambda: mg.tensor([0.5, 1.5]).bernoulli(),
    "negative seed": lambda: mg.manual_seed(-1),
    # Gradients
    "gradient as an attribute": lambda: leaf(3).grad,
    "gradients by name": lambda: leaf(3).sum().backward()["weight"],
    "in place on a leaf": lambda: leaf(3).__iadd__(1),
    "backward of several elements": lambda: (leaf(3) * 2).backward(),
    "backward without requires grad": lambda: mg.ones(3).sum().backward(),
    "gradient of another shape": lambda: (leaf(3) * 2).backward(mg.ones(2)),
    "second derivative": lambda: leaf(3).sum().backward(create_graph=True),
    "a backward with a gradient too many": lambda: Twice.apply(leaf(2), answer=lambda dy: (dy, dy)).sum().backward(),
    "a backward of the wrong shape": lambda: Twice.apply(leaf(2), answer=lambda dy: dy[:1]).sum().backward(),
    "clipping of nan": lambda: clip_grad_norm((leaf(1) * math.nan).sum().backward(), 1.0),
    "zero grad": lambda: nn.Linear(2, 2).zero_grad(),
    "in place with a result of another shape": lambda: mg.ones(3).add_(mg.ones(2, 3)),
    "in place with a result of another dtype": lambda: mg.tensor([1, 2]).add_(0.5),
    "in place on expanded memory": lambda: mg.ones(3).expand(2, 3).zero_(),
    # Modules and losses
    "attention of three dimensions": lambda: F.scaled_dot_product_attention(*[mg.ones(2, 5, 8)] * 3),
    "linear of another size": lambda: nn.Linear(4, 2)(mg.ones(3, 5)),
    "labels out of range": lambda: F.cross_entropy(mg.ones(2, 3), mg.tensor([0, 3])),
    "float labels": lambda: F.cross_entropy(mg.ones(2, 3), mg.tensor([0.0, 1.0])),
    "labels of another batch size": lambda: F.cross_entropy(mg.ones(2, 3), mg.tensor([0, 1, 2])),
    "one hot labels of another shape": lambda: F.cross_entropy(mg.ones(2, 3), mg.ones(2, 4)),
    "class weights of another size": lambda: F.cross_entropy(mg.ones(2, 3), mg.tensor([0, 1]), weight=mg.ones(2)),
    "mse of shapes that differ": lambda: F.mse_loss(mg.ones(4, 1), mg.ones(4)),
    "unknown reduction": lambda: F.mse_loss(mg.ones(4), mg.ones(4), reduction="average"),
    "dropout of integers": lambda: F.dropout(mg.tensor([1, 2]), 0.5),
    "dropout that is no probability": lambda: F.dropout(mg.ones(3), 50),
    "layer norm of another size": lambda: nn.LayerNorm(8)(mg.ones(2, 4)),
    "heads that do not divide": lambda: nn.CausalSelfAttention(n_embd=10, n_head=3),
    "sequence longer than block size": lambda: GPT2(SMALL)(mg.zeros(1, 5, dtype=mg.int64)),
    "tokens without a batch": lambda: GPT2(SMALL)(mg.zeros(4, dtype=mg.int64)),
    "a config of no heads": lambda: GPT2Config(n_head=0),
    # Optimizers and training
    "optimizer with a parameter twice": lambda: SGD([leaf(3)] * 2, lr=0.1),
    "state of another optimizer": lambda: AdamW([leaf(3)]).load_state_dict(*AdamW([leaf(3), leaf(2)]).state_dict()),
    "optimizer of numbers": lambda: SGD([1.0, 2.0], lr=0.1),
    "optimizer of an intermediate result": lambda: SGD([leaf(3) * 2], lr=0.1),
    "negative learning rate": lambda: AdamW([leaf(3)], lr=-1e-3),
    "beta of 1": lambda: AdamW([leaf(3)], betas=(0.9, 1.0)),
    "warmup longer than training": lambda: CosineAnnealing(base_lr=1.0, min_lr=0.0, warmup_steps=10, total_steps=5),
    # Habits of PyTorch
    "optimizer of another model": lambda: AdamW([leaf(3)]).step(leaf(2).sum().backward()),
    "trainer with parameters used up": lambda: SimpleTrainer().step(iter(()), leaf(2).sum().backward(), 1.0),
    "adding up losses in place": lambda: mg.zeros(()).add_(leaf(3).sum()),
    "tensor over a parameter": lambda: setattr(nn.Linear(4, 2), "weight", mg.ones(2, 4)),
    "saving a model": lambda folder: mg.save({"model": nn.Linear(2, 2)}, folder / "model.pt"),
    "saving a module": lambda folder: save_safetensors(folder / "model.safetensors", nn.Linear(2, 2)),
    "loading a path": lambda folder: nn.Linear(2, 2).load_state_dict(str(folder / "model.safetensors")),
    "optimizer zero grad": lambda: AdamW([leaf(3)]).zero_grad(),
    "optimizer step without gradients": lambda: AdamW([leaf(3)]).step(),
    "optimizer of a module": lambda: AdamW(nn.Linear(2, 2)),
    "optimizer with the learning rate first": lambda: AdamW(1e-3, nn.Linear(2, 2).parameters()),
    "clipping of parameters": lambda: clip_grad_norm(nn.Linear(2, 2).parameters(), 1.0),
    "clipping by its name in torch": lambda: nn.utils.clip_grad_norm_([leaf(3)], 1.0),
    "a schedule by its name in torch": lambda: mg.optim.lr_scheduler.StepLR(None, 1),
    "a loader of numbers": lambda: data.DataLoader(3),
    "a layer that is not here": lambda: nn.Conv2d(3, 8, 3),
    "a layer of another place": lambda: mg.Linear(2, 2),
    "a misspelt parameter": lambda: nn.Linear(2, 2).wieght,
    "list to a layer": lambda: nn.Linear(2, 2)([[1.0, 2.0]]),
    "layers as a list": lambda: nn.Sequential([nn.Linear(2, 2)]),
    "attention without a batch": lambda: nn.CausalSelfAttention(4, 2)(mg.ones(3, 4)),
    "drawing of a number": lambda: mg.draw(3),
    # Files
    "missing file": lambda folder: load_safetensors(folder / "missing.safetensors"),
    "folder without checkpoints": lambda folder: load_checkpoint(folder),
    "state that json cannot hold": lambda folder: save_checkpoint(folder, {}, {"step": 1, "when": {1, 2}}),
    "tensors without names": lambda folder: save_safetensors(folder / "model.safetensors", {1: mg.ones(2)}),
    # Data
    "corpus that is not there": lambda: data.load_corpus("no-such-file.txt"),
    "tokenizer of no text": lambda: data.CharTokenizer.from_text(""),
    "character that the tokenizer lacks": lambda: data.CharTokenizer.from_text("abc").encode("abd"),
    "token beyond the vocabulary": lambda: data.BytePairTokenizer.train("abc abc", 258).decode([999]),
    "too few tokens for a batch": lambda: data.RandomBatches(np.arange(5), 2, 8, seed=0),
    "epoch of no examples": lambda: data.EpochSampler(0, 8, seed=0),
    "token file that is not there": lambda: data.open_tokens("no-such-file.bin"),
}


def mistake(fn):
    MISTAKES[fn.__name__.replace("_", " ")] = fn
    return fn


# Gradients ------------------------------------------------------------------------------------------------------------


@mistake
def backward_twice() -> None:
    loss = leaf(3).exp().sum()
    loss.backward()
    loss.backward()


@mistake
def gradient_of_an_intermediate_result() -> None:
    x = leaf(3)
    y = x * 2
    grads = y.sum().backward()
    grads[y]


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


# Modules and losses ---------------------------------------------------------------------------------------------------


@mistake
def a_mask_and_is_causal() -> None:
    q = mg.ones(1, 2, 5, 8)
    F.scaled_dot_product_attention(q, q, q, attn_mask=mg.ones(5, 5), is_causal=True)


# Optimizers and training ----------------------------------------------------------------------------------------------


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
def optimizer_of_nothing() -> None:
    class Net(nn.Module):
        """Keeps its layers in a list, where they are not found."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(2, 2)]

    AdamW(Net().parameters())


# Files ----------------------------------------------------------------------------------------------------------------


@mistake
def damaged_checkpoint(folder: Path) -> None:
    path = save_checkpoint(folder, {"model": {"w": np.ones(100)}}, {"step": 3})
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    load_checkpoint(folder)


# Data -----------------------------------------------------------------------------------------------------------------


# The comparison -------------------------------------------------------------------------------------------------------


def message_of(fn, folder: Path) -> str:
    """Type and message of what a mistake raises, without what differs from run to run."""
    try:
        fn(folder) if inspect.signature(fn).parameters else fn()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    else:
        raise AssertionError(f"{fn.__name__} raised nothing")
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r"at \S*test_error_messages\.py:\d+", "at FILE:LINE", text)
    text = re.sub(r'(at FILE:LINE: )"[^"]*": lambda[^:]*: (.*),', r"\1\2", text)  # a row of the table: its call alone
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
        caught = raises(ValueError, "", wrong)
        code = wrong.__code__
        assert f"\n  at {Path(code.co_filename).name}:{code.co_firstlineno}: for wrong in (lambda" in re.sub(
            r"at \S*/", "at ", str(caught)
        )
    deep = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match="in 1.0 of Sequential") as shown:
        deep(mg.ones(1, 2))
    # Of our frames, pytest shows but the last, in which it is raised.
    assert len(shown.traceback) > 6 and [entry.name for entry in shown.traceback.filter(shown)][1:] == []


def test_a_shell_says_what_to_use_below_an_error_of_pythons_own() -> None:
    wrong = "minigrad.zeros(2).data.zero_()"
    assert "minigrad: p.data is the NumPy array; use with" in python("-c", f"import minigrad; {wrong}").stderr
    # A notebook asks no excepthook; a stand-in for IPython, which tells what was registered of its cells.
    notebook = "import sys, types; said = []; shell = types.SimpleNamespace(events=types.SimpleNamespace(register="
    notebook += "lambda *a: said.append(a))); sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: shell)"
    cell = f"try: {wrong}\nexcept AttributeError as e: said[0][1](types.SimpleNamespace(error_in_exec=e))"
    run = python("-c", f"{notebook}\nimport minigrad\n{cell}\nsaid[0][1](types.SimpleNamespace(error_in_exec=None))")
    assert run.stderr == "minigrad: p.data is the NumPy array; use with minigrad.no_grad(): p.zero_(...)\n"


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


DIMS = {
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
    raises(IndexError, rf"^{name}: dim 5 is out of range for a tensor of ", DIMS[name], mg.ones(2, 3))
    # Within the library's own frames, too.
    raises(IndexError, rf"^{name}: dim 5 ", lambda: mg.checkpoint(DIMS[name], mg.ones(2, 3)))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    write()
