"""Every script says what it is for and which flags it has, and misspelt flags are refused."""

import ast
import sys

import pytest
from example_scripts import EXAMPLES, load
from refusals import raises

SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8"))


FLAGS = {
    "train_char_gpt.py": "data out resume device threads steps n-embd dropout keep",
    "train_llama_char.py": "data resume n-kv-head n-inner rope-base",
    "generate.py": "seed device prompt temperature top-k top-p tokens",
    "finetune_pretrained.py": "seed device text out steps minutes lr",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_the_docstring_and_the_flags(script, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert raises(SystemExit, "", lambda: load(script, monkeypatch, "--help").main()).code == 0
    shown = capsys.readouterr().out
    docstring = ast.get_docstring(ast.parse((EXAMPLES / script).read_text("utf-8")))
    assert " ".join(docstring.split()) in " ".join(shown.split()) and max(map(len, shown.splitlines())) < 80
    assert all(f"  --{flag}" in shown for flag in FLAGS.get(script, "").split())
    assert f"examples/{script}" in docstring  # how to run it
    text = (EXAMPLES / script).read_text("utf-8")
    assert text.count("tqdm(") == text.count("bar_format=BAR, smoothing=0")  # the time left, from the whole run


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_misspelt_flag_is_refused(script, monkeypatch):
    module = load(script, monkeypatch, "--hepl")
    usage_error = sys.modules["command_line"].UsageError
    raises(usage_error, "unknown argument --hepl; did you mean --help|arguments are required", lambda: module.main())


MEANT = {
    "--heads": "--n-head", "--layers": "--n-layer", "--epochs": "--steps", "--learning-rate": "--lr",
    "--context-length": "--block-size", "--stpes": "--steps", "--batchsize": "--batch-size", "--gpu": "--device",
}  # fmt: skip


def test_a_flag_of_another_name_is_recognised_by_its_words(monkeypatch):
    load("train_char_gpt.py", monkeypatch)
    flags = ["--threads", "--min-lr", *MEANT.values()]
    for name, meant in MEANT.items():
        assert meant in sys.modules["command_line"].nearest(name, flags), name
    assert sys.modules["command_line"].nearest("--verbose", flags) == []


AT_LEAST = {
    "heterogeneous_training.py": "epochs samples batch-size sleep-ms slow-down anchor seed width",
    "mlp_classifier.py": "steps points hidden noise seed width",
    "train_vit_digits.py": "steps images held-out batch-size noise seed",
}


@pytest.mark.parametrize(("script", "flag"), [(s, flag) for s, flags in AT_LEAST.items() for flag in flags.split()])
def test_values_out_of_range_are_refused(script, flag, monkeypatch):
    module = load(script, monkeypatch, f"--{flag}", -1)
    raises(module.UsageError, f"--{flag} is -1.*, expected at least", lambda: module.main())
