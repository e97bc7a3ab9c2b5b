"""The scripts for published models: finetune_pretrained.py, and generate.py, which writes with runs as well."""

import json
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import tokenizers
from example_scripts import assert_refused, command, content, finish, load, refusals, run, send_twice

import minigrad as mg
from minigrad.data import BytePairTokenizer, RandomBatches, load_tokenizer, train_val_split
from minigrad.models import GPT2, GPT2Config, Llama, LlamaConfig, from_pretrained
from minigrad.nn import lora

FINETUNE, GENERATE = "finetune_pretrained.py", "generate.py"
pytestmark = pytest.mark.long
TEXT = "The quick brown fox jumps over the lazy dog — überall. " * 60
SHORT = ("--text", "text.txt", "--steps", 30, "--batch-size", 2, "--block-size", 16, "--lr", 3e-3, "--warmup", 3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """A folder with a tiny published GPT-2 and Llama, as their authors would have saved them, and a text."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    tokenizer = BytePairTokenizer.train(TEXT, 300, ["<|endoftext|>"])
    mg.manual_seed(0)
    V = tokenizer.vocab_size
    for name, model in (
        ("gpt2", GPT2(GPT2Config(V, 32, 1, 2, 16, eos_token_id=V - 1, bos_token_id=V - 1))),
        ("llama", Llama(LlamaConfig(V + 5, 32, 1, 2, 1, 16, 24))),  # larger than its tokenizer, as many are
    ):
        model.save_pretrained(folder / name, max_shard_size="10KB")
        tokenizer.save(folder / name / "tokenizer.json")
    (folder / "gpt2" / "generation_config.json").write_text('{"eos_token_id": 0}')
    return folder


@pytest.fixture
def home(made, tmp_path):
    shutil.copytree(made, tmp_path / "home")
    return tmp_path / "home"


# ---------------------------------------------------------------------- fine-tuning


@pytest.mark.long(but=1)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_finetuning_learns_the_text_and_saves_the_same_kind_of_folder(home, name: str) -> None:
    before = content(home / name)
    result = finish(FINETUNE, name, *SHORT, cwd=home)
    assert result.stderr == ""  # no progress bar where nobody watches
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{name}: {'GPT2' if name == 'gpt2' else 'Llama'}, ") and "text.txt" in lines[0]
    start, end = (float(word) for word in lines[1].split()[2:5:2])
    assert lines[1].startswith("validation loss ") and "30 steps in " in lines[1]
    assert lines[1].endswith(f"saved in finetuned/{name}")
    assert 5 < start < 6.5 and end < start - 0.5  # ln(300) is 5.7
    assert lines[2].startswith("next: python ") and lines[2].endswith(f"generate.py finetuned/{name}")

    assert content(home / name) == before
    saved = home / "finetuned" / name
    old, new = from_pretrained(home / name), from_pretrained(saved)
    assert new.config == old.config
    assert not np.array_equal(new.embedding.weight.detach().numpy(), old.embedding.weight.detach().numpy())
    for file in ("tokenizer.json", "generation_config.json"):
        assert (saved / file).exists() == (home / name / file).exists()
    assert (saved / "tokenizer.json").read_bytes() == (home / name / "tokenizer.json").read_bytes()
    again = run(FINETUNE, name, *SHORT, "--steps", 1, cwd=home)
    assert f"saved in finetuned/{name}-2" in again.stdout, again.stderr  # nothing is overwritten

    written = finish(GENERATE, f"finetuned/{name}", "--prompt", "The quick", "--tokens", 8, "--seed", 1, cwd=home)
    assert written.stdout.startswith("The quick")


def test_lora_saves_the_difference_and_the_merged_model(home) -> None:
    flags = (*SHORT, "--out", "out", "--rank", 4, "--merge")
    lines = finish("finetune_lora.py", "gpt2", *flags, "--lr", 1e-2, cwd=home).stdout.splitlines()
    assert lines[0] == "4 layers learn by 1,024 numbers of rank 4; all else is frozen"
    start, end = (float(word) for word in lines[3].split()[2:5:2])
    assert end < start - 0.1 and "out/adapter.safetensors: " in lines[2] and "generate.py out" in lines[4]
    model = from_pretrained(home / "gpt2")
    lora.load(model, home / "out/adapter.safetensors")
    ids = mg.tensor([[1, 2, 3]])
    merged = from_pretrained(home / "out")(ids).detach().numpy()
    np.testing.assert_allclose(model(ids).detach().numpy(), merged, rtol=1e-4, atol=1e-5)  # float32


def test_the_result_is_that_of_the_seed_alone(home) -> None:
    for out in ("a", "b"):
        finish(FINETUNE, "gpt2", *SHORT, "--steps", 3, "--dropout", 0.1, "--out", out, cwd=home)
    assert (home / "a/model.safetensors").read_bytes() == (home / "b/model.safetensors").read_bytes()
    assert json.loads((home / "a/config.json").read_text())["resid_pdrop"] == 0.1


def test_time_ends_it_and_the_default_text_is_pythons(home) -> None:
    result = finish(FINETUNE, "gpt2", "--minutes", 1e-9, "--out", "out", cwd=home)
    assert "pydoc (Python" in result.stdout and ", 1 steps in" in result.stdout
    assert result.stdout.splitlines()[-2].endswith(f"{FINETUNE} out --steps 99")  # which goes on


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_ctrl_c_saves_what_was_learned(home) -> None:
    arguments = ("gpt2", *SHORT, "--steps", 10**8, "--minutes", 100, "--out", "out")
    process = subprocess.Popen(
        command(FINETUNE, *arguments), cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # the model is loaded
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    if "KeyboardInterrupt" in err or process.returncode == 130:
        pytest.fail(f"interrupted before the training began: {err}")
    assert process.returncode == 0, err
    assert "saved in out" in out and from_pretrained(home / "out").config.n_layer == 1


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
@pytest.mark.parametrize("script", [FINETUNE, "finetune_lora.py"])
def test_a_second_signal_says_what_is_lost_and_how_to_begin_again(home, monkeypatch, script) -> None:
    send_twice(
        monkeypatch, load(FINETUNE, monkeypatch), "trained", 4, signal.SIGTERM
    )  # of which one is the optimizer's
    done = run(script, "gpt2", *SHORT, cwd=home)
    told = "error: stopped after step 2; nothing is saved, 2 steps are lost. To begin again: python "
    assert done.returncode == 130 and told in done.stderr and f"{script} gpt2 --text text.txt" in done.stderr


# ---------------------------------------------------------------------- generation


def text(*arguments, cwd) -> str:
    result = finish(GENERATE, *arguments, cwd=cwd)
    *run, line = result.stderr.splitlines()  # of a run, which one
    assert len(run) <= 1 and " tokens in " in line and line.endswith(" tokens/s)"), result.stderr
    return result.stdout.removesuffix("\n")


@pytest.mark.short
def test_it_writes_what_the_model_generates(made) -> None:
    model = from_pretrained(made / "llama")
    tokenizer = load_tokenizer(made / "llama")
    prompt = tokenizer.encode("The — fox").tolist()
    options = {"temperature": 1.5, "top_k": 250, "top_p": 0.9, "seed": 5}
    ids = model.generate(mg.tensor([prompt]), 60, **options).tolist()[0]
    want = b"".join(tokenizer.decode_bytes([i]) if i < tokenizer.vocab_size else b"\xef\xbf\xbd" for i in ids)
    flags = ("--prompt", "The — fox", "--tokens", 60, "--temperature", 1.5, "--top-k", 250, "--top-p", 0.9, "--seed", 5)
    assert text("llama", *flags, cwd=made) == want.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def test_it_stops_at_the_end_of_the_text(home) -> None:
    model = from_pretrained(home / "gpt2")
    tokens = mg.tensor([load_tokenizer(home / "gpt2").encode("fox").tolist()])
    third = model.generate(tokens, 3, temperature=1.0, seed=3).tolist()[0][-1]
    config = json.loads((home / "gpt2/config.json").read_text())
    (home / "gpt2/config.json").write_text(json.dumps({**config, "eos_token_id": [third]}))
    result = run(GENERATE, "gpt2", "--prompt", "fox", "--tokens", 50, "--temperature", 1, "--seed", 3, cwd=home)
    assert result.stderr.startswith(("1 tokens in", "2 tokens in", "3 tokens in")), result.stderr


def test_it_writes_with_a_run_of_characters(finished) -> None:
    first = text("--prompt", "The ", "--tokens", 40, "--seed", 7, cwd=finished[0])  # finds the run by itself
    sampled = run("sample.py", "--prompt", "The ", "--chars", 40, "--seed", 7, cwd=finished[0])
    assert first == sampled.stdout.removesuffix("\n") and len(first) == 44


@pytest.mark.short
def test_a_tokenizer_of_the_library_writes_as_ours_and_gives_batches(made, monkeypatch) -> None:
    module = load(GENERATE, monkeypatch)
    theirs = tokenizers.Tokenizer.from_file(str(made / "gpt2/tokenizer.json"))
    ours, prompt = BytePairTokenizer(theirs), "The — quick \N{GRINNING FACE}"
    assert module.encode(theirs, prompt) == ours.encode(prompt).tolist()
    words = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True))  # as SentencePiece's are converted
    words.pre_tokenizer, decoders = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders
    words.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    words.train_from_iterator(
        [TEXT], tokenizers.trainers.BpeTrainer(special_tokens=[f"<0x{i:02X}>" for i in range(256)])
    )
    for each in (theirs, words):
        ids, piece = module.encode(each, prompt), module.pieces(each)
        assert "".join(piece(i, False) for i in ids).strip() + piece(None, True) == prompt
    row = ours.encode(TEXT)
    for tokens in (row.tolist(), theirs.encode(TEXT), [theirs.encode(TEXT)]):
        for a, b in zip(RandomBatches(tokens, 2, 8, 0).batch(0), RandomBatches(row, 2, 8, 0).batch(0)):
            np.testing.assert_array_equal(a, b)
    assert (train_val_split(theirs.encode(TEXT))[1] == train_val_split(row)[1]).all()


# ---------------------------------------------------------------------- bad input


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("arguments", "parts"), refusals("pretrained models"))
def test_bad_input_is_one_line_and_touches_nothing(home, arguments: list[str], parts: list[str]) -> None:
    before = content(home)
    assert_refused(run(*arguments, cwd=home), 2, *parts)
    assert content(home) == before


def test_tokenizers_that_are_not_byte_level_bpe(home) -> None:
    path = home / "gpt2/tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**document, "normalizer": {"type": "NFC"}}))
    written = finish(GENERATE, "gpt2", "--prompt", "lazy cafe\u0301", "--tokens", 3, cwd=home)
    assert written.stdout.startswith("lazy caf\u00e9")
    assert "saved in out" in finish(FINETUNE, "gpt2", *SHORT, "--steps", 1, "--out", "out", cwd=home).stdout
    path.write_text(json.dumps({**document, "pre_tokenizer": {"type": "Unheard"}}))
    assert_refused(run(GENERATE, "gpt2", cwd=home), 2, "gpt2/tokenizer.json", "not a tokenizer")
    path.unlink()
    (home / "gpt2/tokenizer.model").write_bytes(b"")
    assert_refused(run(FINETUNE, "gpt2", cwd=home), 2, "is missing; there is a tokenizer.model of SentencePiece")
    shutil.copyfile(home / "llama/tokenizer.json", path)
    BytePairTokenizer.train(TEXT, 316, [f"<{i}>" for i in range(60)]).save(path)
    assert_refused(run(GENERATE, "gpt2", cwd=home), 2, "the model knows", "do not belong together")
