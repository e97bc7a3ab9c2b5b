"""GPT-2's training script: shards, a tiny run and its exact resume, published weights, MFU."""

import dataclasses
import importlib
import json
import re
import shlex
import shutil
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import tokenizers as library
from example_scripts import EXAMPLES, finish, load
from refusals import raises

import minigrad
from minigrad import data, models, serialization

TRAIN = "train_gpt2.py"
RUN = Path("runs/gpt2")
TINY = shlex.split(
    "--preset tiny --steps 6 --batch-size 2 --block-size 16 --n-layer 1 --n-embd 16 --dropout 0.1 --warmup 2 "
    "--eval-every 3 --eval-batches 1 --sample-every 3 --sample-chars 20 --save-every 3 --keep 9 --peak 0.001"
)
TEXTS = {
    "a.txt": "Zwölf Boxkämpfer jagen Viktor.\n\n  quer über\n" * 30,
    "b/c.txt": "def f(x):\n    return x\n\n\n" * 40,
}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of examples/."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


class Here:
    """Runs the script in this process, which has loaded the kernels, in ``folder``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch

    def main(self, *arguments: object) -> int:
        self.monkeypatch.chdir(self.folder)
        return int(load(TRAIN, self.monkeypatch, *arguments).main())

    def refused(self, match: str, *arguments: object) -> None:
        load(TRAIN, self.monkeypatch)
        raises(sys.modules["command_line"].UsageError, match, lambda: self.main(*arguments))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_generator: None) -> Here:
    return Here(tmp_path, monkeypatch)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "texts"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``runs/gpt2`` was trained to its end, on Python's documentation."""
    folder = tmp_path_factory.mktemp("gpt2")
    result = finish(TRAIN, *TINY, "--tokenizer", "bytes", cwd=folder)
    assert result.stderr == ""
    (folder / "shown").write_text(result.stdout, encoding="utf-8")
    return folder


# ---------------------------------------------------------------------- shards


def test_shards_hold_the_tokens_of_the_texts(script, texts: Path, tmp_path: Path, monkeypatch) -> None:
    shards, tokenizers = script("token_shards"), script("text_tokenizers")
    monkeypatch.setattr(shards, "PIECE", 50)
    tokenizer = data.BytePairTokenizer.train("".join(TEXTS.values()), 300, ["<|endoftext|>"])
    (texts / "picture.png").write_bytes(b"\x89PNG\0\xff" * 99)  # is left out, and the name of the whole says so
    made = shards.make_shards([str(texts)], tmp_path / "out", tokenizer, 0.1, 200)
    assert [len(shard) for shard in made.train[:-1]] == [200] * (len(made.train) - 1) and len(made.train) > 1
    found = np.concatenate([*made.train, made.val])
    end = tokenizer.special_tokens["<|endoftext|>"]
    train, val = TEXTS["b/c.txt"], ""  # the last tenth of the bytes lies in it
    at = found.tolist().index(end)
    np.testing.assert_array_equal(found[:at], tokenizer.encode(TEXTS["a.txt"]))  # cut into pieces, the same tokens
    train, val = tokenizer.decode(found[at + 1 : -len(made.val)]), tokenizer.decode(made.val)
    assert train + val == TEXTS["b/c.txt"] + "<|endoftext|>" and train.endswith("\n")
    assert 0.08 < len(val.encode()) / sum(len(text.encode()) for text in TEXTS.values()) < 0.12
    assert str(made.val.dtype) == "uint16" and not made.val.flags.writeable
    again = shards.open_shards(tmp_path / "out")
    assert (
        again.sha256 == made.sha256
        and again.tokenizer == tokenizer
        and again.name == f"{texts} (1 file left out: not text)"
    )
    assert f"{tokenizer.vocab_size} kinds of tokens" in again.in_words()
    assert tokenizers.tokenizer_of(tokenizers.ByteTokenizer().to_dict()).decode([72, 256, 105, 200]) == "Hi\ufffd"


def test_damaged_shards_are_refused(script, texts: Path, tmp_path: Path) -> None:
    shards, folder = script("token_shards"), tmp_path / "out"
    shards.make_shards([str(texts)], folder, script("text_tokenizers").ByteTokenizer(), checksums=True)
    whole = (folder / "val-00000.bin").read_bytes()
    (folder / "val-00000.bin").write_bytes(whole[:-1] + b"?")
    raises(data.DataError, "sha256 is not the one in SHA256SUMS", lambda: shards.open_shards(folder))
    (folder / "SHA256SUMS").unlink()
    (folder / "val-00000.bin").write_bytes(whole[:-2])
    raises(data.DataError, "its header counts", lambda: shards.open_shards(folder))
    (folder / "val-00000.bin").write_bytes(b"\0" * len(whole))
    raises(data.DataError, "begins with 0, not with llm.c's", lambda: shards.open_shards(folder))
    (folder / "val-00000.bin").write_bytes((folder / "train-00000.bin").read_bytes())
    raises(data.DataError, "shards.json says", lambda: shards.open_shards(folder))
    index = json.loads((folder / "shards.json").read_text())
    (folder / "shards.json").write_text(json.dumps({**index, "tokenizer": {"kind": "words"}}))
    raises(data.DataError, "'words' is no kind of tokenizer", lambda: shards.open_shards(folder))


def test_shards_of_a_tokenizer_with_other_rules(script, texts: Path, tmp_path: Path) -> None:
    shards, tokenizers = script("token_shards"), script("text_tokenizers")
    theirs = library.SentencePieceBPETokenizer()
    theirs.train_from_iterator(TEXTS.values(), special_tokens=["</s>", "<unk>"], show_progress=False)
    theirs.save(str(tmp_path / "tokenizer.json"))
    for given in (theirs, str(tmp_path / "tokenizer.json"), tmp_path):
        made = shards.make_shards([str(texts)], tmp_path / str(hash(str(given))), given)
        tokens = np.concatenate([*made.train, made.val])
        assert int((tokens == 0).sum()) == len([*texts.iterdir()]) and tokenizers.end_of_text(made.tokenizer) == 0
        assert shards.open_shards(made.folder).tokenizer == made.tokenizer == data.load_tokenizer(theirs)
    raises(script("command_line").UsageError, "expected bytes, a token", tokenizers.choose_tokenizer, "gpt2")


# ---------------------------------------------------------------------- a run


def test_a_tiny_run_says_what_it_does(trained: Path) -> None:
    shown = (trained / "shown").read_text(encoding="utf-8")
    assert "pydoc (Python" in shown and "bytes as tokens" in shown and "million operations, in bfloat16;\nMFU" in shown
    assert "share of 0.001 TFLOP/s (--peak)" in shown and "run: runs/gpt2, steps 1 to 6" in shown
    assert len(re.findall(r"^step +[36]  train loss \d\.\d{4}  validation loss \d\.\d{4}$", shown, re.M)) == 2
    assert shown.count(" sample\n") == 2 and shown.splitlines()[-1].endswith("generate.py runs/gpt2")
    lines = [json.loads(line) for line in (trained / RUN / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [1]
    assert steps[0]["mfu"] > 0
    saved = serialization.load_checkpoint(trained / RUN)
    assert saved.tensors["model"]["wte.weight"].shape == (384, 16)  # 257 tokens, rounded up
    assert {a.dtype for file in saved.tensors.values() for a in file.values() if a.ndim} == {np.dtype(np.float32)}
    groups = saved.state["trainer"]["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]


def test_it_resumes_bit_for_bit_and_generates(trained: Path, here: Here, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(trained / RUN, here.folder / RUN)
    shutil.rmtree(here.folder / RUN / "step-00000006")
    assert here.main("--resume", "--out", RUN) == 0
    assert "runs/gpt2, steps 4 to 6" in capsys.readouterr().out
    for file in ("model.safetensors", "trainer.safetensors", "state.json"):
        again = here.folder / RUN / "step-00000006" / file
        assert again.read_bytes() == (trained / RUN / "step-00000006" / file).read_bytes(), file
    generate = load("generate.py", here.monkeypatch, RUN, "--prompt", "The ", "--tokens", 8, "--seed", 1)
    assert generate.main() == 0 and capsys.readouterr().out.startswith("The ")
    with pytest.raises(data.DataError, match=r"holds no shards.json"):
        (here.folder / RUN / "tokens" / "shards.json").unlink()
        here.main("--resume", "--out", RUN)


def test_the_bar_and_the_schedule(here: Here, script, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar tells the share of the peak, and the learning rate: warmup, then half a cosine."""
    loop, shown = script("train_char_gpt"), []

    class Bar(loop.tqdm):  # type: ignore[misc, name-defined]
        def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
            shown.append(s)

    monkeypatch.setattr(loop, "tqdm", Bar)
    rest = ("--tokenizer", "bytes", "--steps", 6, "--eval-every", 9, "--sample-every", 0, "--save-every", 9)
    assert here.main(*TINY, *rest) == 0
    number = r"(\d[\d.,e-]*)"
    found = [re.fullmatch(f"loss {number}, lr {number}, {number} tokens/s, MFU {number} %", line) for line in shown]
    assert len(found) == 6 and all(found), shown
    values = [[float(x.replace(",", "")) for x in match.groups()] for match in found if match]
    operations = 6 * (384 * 16 + 12 * 16**2 + 13 * 16 + 2 * 16) + 12 * 16 * 16
    assert [mfu for *_, mfu in values] == pytest.approx([v[2] * operations / 1e7 for v in values], rel=0.02, abs=0.06)
    cosine = [3e-4 + 2.7e-3 * (1 + np.cos(np.pi * step / 4)) / 2 for step in range(4)]
    assert [v[1] for v in values] == pytest.approx([1.5e-3, 3e-3, *cosine], rel=0.04)  # of which two digits are shown


@pytest.mark.parametrize(
    ("captures", "batch_size", "message"), [(False, 4, "needs NCCL"), (True, 3, "2 do not divide --batch-size")]
)
def test_graphs_of_several_ranks_are_refused(monkeypatch, captures, batch_size, message) -> None:
    script, of = load(TRAIN, monkeypatch), types.SimpleNamespace
    settings = of(settings=of(checkpoint_blocks=False, reproducible=False, batch_size=batch_size))
    with pytest.raises(sys.modules["command_line"].UsageError, match=message):
        script.GPT2Training(of(world_size=2, captures=captures), settings, None, graph=True)


def test_it_begins_with_published_weights(here: Here, capsys: pytest.CaptureFixture[str]) -> None:
    """After a step with a learning rate of 0 the logits are still those."""
    theirs, ids = models.GPT2(models.GPT2Config(300, 96, 2, 2, 16)).eval(), minigrad.tensor(tiny_models.tokens())
    theirs.save_pretrained(here.folder / "theirs")
    tokenizer = data.BytePairTokenizer.train(TEXTS["a.txt"], 290)
    tokenizer.save(here.folder / "theirs" / "tokenizer.json")
    (here.folder / "text").write_text(TEXTS["a.txt"] * 10, encoding="utf-8")
    rest = shlex.split("--steps 1 --batch-size 1 --lr 0 --min-lr 0 --sample-chars 5 --peak 1 --data text")
    assert here.main("--init-from", "theirs", *rest, "--grad-accum", 1, "--eval-batches", 1) == 0
    shown = capsys.readouterr().out
    assert "text: 290 kinds of tokens" in shown and "GPT-2: 12,9" in shown
    loaded = sys.modules["char_run"].load_run(here.folder / RUN, minigrad.Device("cpu"))
    assert loaded.settings.vocab_size == 300 and loaded.settings.block_size == 96
    assert isinstance(loaded.model, models.GPT2) and loaded.tokenizer == tokenizer
    with minigrad.no_grad():
        np.testing.assert_array_equal(loaded.model.eval()(ids).numpy(), theirs(ids).numpy())
    here.refused("--init-from theirs has n_layer 2; leave the flag out", "--init-from", "theirs", "--n-layer", 3)


def test_what_it_cannot_begin_with_is_refused(here: Here) -> None:
    stored = tiny_models.GOLDEN
    here.refused("is a Llama; train_gpt2.py trains GPT-2", "--init-from", stored / "llama3")
    flags = ("--init-from", stored / "gpt2", "--tokenizer", "bytes")
    here.refused("--vocab-size is 61, but the tokenizer has 257 tokens", *flags)
    here.refused("--preset gpt3: expected one of gpt2,", "--preset", "gpt3")
    here.refused("--dtype float16: expected bfloat16 or float32", "--dtype", "float16")
    here.refused("expected bytes, a tokenizer.json, or a folder with one", "--tokenizer", "words", *TINY)
    here.refused("leave out --init-from and --tokenizer", "--resume", "--tokenizer", "bytes")
    here.refused("--peak is -1, expected a number above 0", "--peak", -1)
    here.refused("unknown device 'gpu'", "--device", "gpu")
    here.refused("backend 'nccl' serves CUDA devices", "--communicator", "nccl")
    here.refused("no.txt: No such file", *TINY, "--data", "no.txt")
    assert [path.name for path in here.folder.iterdir()] == []
    here.refused("--graph: a CUDA graph works without the host", *TINY, "--graph", "--checkpoint-blocks")


# ---------------------------------------------------------------------- sizes and speed


def test_presets_are_gpt2s_sizes(script, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt2_run = script("gpt2_run")
    monkeypatch.setattr(gpt2_run, "GPT2", lambda config: config)
    published = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024)}
    for preset, (layers, heads, channels) in published.items():
        config = gpt2_run.from_flags({"preset": preset}).model(50257)
        assert config == models.GPT2Config(50304, 1024, layers, heads, channels)
    assert gpt2_run.from_flags({"preset": "tiny", "steps": 7}).steps == 7
    settings = gpt2_run.from_flags({})
    assert settings.batch_size * settings.block_size * settings.grad_accum == 2**19


def test_operations_are_those_of_the_products(script) -> None:
    """A multiplication and an addition for each weight, and twice that backward; the same for the scores and sums."""
    model = models.GPT2(models.GPT2Config(40, 8, 2, 2, 16))
    shapes = {name: p.shape for name, p in model.named_parameters() if name != "wpe.weight"}
    products = sum(2 * 24 * p[0] * p[1] for p in shapes.values() if len(p) == 2)  # of 24 tokens
    products += sum(2 * 24 * p[0] for p in shapes.values() if len(p) == 1)
    attention = 2 * 3 * 2 * (2 * 2 * 8 * 8 * 8)  # layers, sequences, heads, two products of (8, 8) and (8, 8)
    settings = script("gpt2_run").GPT2Settings(n_layer=2, n_head=2, n_embd=16, block_size=8)
    assert script("estimate").flops_per_token(settings, model.num_parameters()) == 3 * (products + attention) / 24


def test_the_peak_is_the_cards_or_measured(script, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt2_run = script("gpt2_run")
    rate, source = gpt2_run.peak_flops(minigrad.Device("cpu"), "bfloat16")
    assert rate > 1e8 and source == "a product of float32 here"
    monkeypatch.setattr(gpt2_run, "product_rate", lambda device, dtype, side: 3.0)
    for name, peak in (
        *(("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-80GB", 312e12)),
        *(("NVIDIA A10G", 70e12), ("NVIDIA L40S", 362e12), ("Another card", 3.0)),
    ):
        monkeypatch.setattr(minigrad.cuda, "get_device_name", lambda device, name=name: name)
        assert gpt2_run.peak_flops(minigrad.Device("cuda"), "bfloat16")[0] == peak, name
        assert gpt2_run.peak_flops(minigrad.Device("cuda"), "float32")[0] == 3.0


# ---------------------------------------------------------------------- what this machine can do


def test_without_a_gpu_the_default_is_tiny(here: Here, texts: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = "--steps 1 --warmup 1 --eval-batches 1 --sample-every 0 --peak 1"
    assert here.main("--data", texts, *flags.split()) == 0
    said = capfd.readouterr().out
    assert "on a CPU: --preset tiny (--preset gpt2 is for a GPU: --device cuda)" in said
    assert "2 layers, 2 heads, 64 channels" in said and "of memory, some seconds" in said


def test_what_does_not_fit_is_refused_with_what_would(script, monkeypatch: pytest.MonkeyPatch) -> None:
    estimate, gpt2_run = script("estimate"), script("gpt2_run")
    cpu = minigrad.Device("cpu")
    settings = gpt2_run.from_flags({})
    assert 20e9 < estimate.step_bytes(settings, 50304, 64, minigrad.Device("cuda")) < 60e9
    assert 50e9 < estimate.step_bytes(settings, 50304, 64) < 90e9  # twice float32's: 9.8 GB were measured for 8
    monkeypatch.setattr(estimate, "free_memory", lambda device: 16 * 10**9)
    caught = raises(script("command_line").UsageError, "", estimate.check_memory, settings, 50304, cpu)
    said = str(caught)
    assert "12 layers, 768 channels and 64 sequences of 1024" in said and "16.0 GB are free on cpu" in said
    fits = int(re.search(r"--batch-size (\d+) fits", said)[1])
    assert estimate.step_bytes(settings, 50304, fits) <= 16e9 < estimate.step_bytes(settings, 50304, 2 * fits)
    assert "--preset tiny" in said and "--device cuda" in said
    estimate.check_memory(dataclasses.replace(settings, batch_size=fits), 50304, cpu)


def test_memory_and_time_are_estimated_from_the_sizes(script, monkeypatch: pytest.MonkeyPatch) -> None:
    estimate, char_run = script("estimate"), script("char_run")
    free, settings = estimate.free_memory(minigrad.Device("cpu")), char_run.Settings()
    assert free is None or 1e8 < free < 1e14
    too_many = char_run.Settings(grad_accum=10**400)
    raises(script("command_line").UsageError, "--grad-accum is 10+, expected less than 10.99", too_many.check)
    clock = iter([0.0, 0.05, 0.2])
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: next(clock))
        patch.setattr(minigrad, "get_num_threads", lambda: 3)
        # 64**3 is OpenBLAS's most for one thread.
        assert estimate.cpu_flops() == pytest.approx(3 * 16 * 2 * 64**3 / 0.2)
    monkeypatch.setattr(estimate, "cpu_flops", lambda: 1e11)
    tokens, operations = 6000 * 12 * 64, 6 * (800_000 - 64 * 128) + 12 * 4 * 64 * 128
    assert 246 < tokens * operations / 1e11 + 6000 * 4 * 4e-4 < 247  # products, and the host's part
    assert estimate.time_of(settings, 800_000) == "at most about 16 min on a free CPU, often a quarter"
    settings.dtype = "bfloat16"  # converted beside the products of float32
    assert estimate.time_of(settings, 800_000) == "at most about 32 min on a free CPU, often a quarter"
    assert estimate.at_most(1e9, 2) == "some seconds" and "about 9 s on a free" in estimate.at_most(0, 0, 9.0)
    assert [estimate.duration(s) for s in (3, 600, 7200 * 2, 864_000)] == ["3 s", "10 min", "4 h", "10 days"]
