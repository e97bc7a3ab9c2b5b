"""Write text with any trained model: a run of these examples, or a local folder of GPT-2, Llama or SmolLM2.

    python examples/generate.py                                  the run under runs/ that was saved last
    python examples/generate.py FOLDER --prompt "Once upon" --tokens 100 --temperature 0.7 --top-p 0.95
    python examples/generate.py FOLDER --temperature 0           the likeliest text

FOLDER holds config.json, model.safetensors (or shards) and a tokenizer.json (needs the extra `bpe`); or the
checkpoints of train_char_gpt.py, train_llama_char.py or train_gpt2.py. The text appears as it is written; into a file,
a bar shows the progress. The last line, on stderr, is how fast it was.
"""

from __future__ import annotations

import argparse
import codecs
import sys
import time
from collections.abc import Callable
from typing import Any

from char_run import Run, latest_folder, load_run
from command_line import BAR, Parser, UsageError, choose_device, run_cli
from pretrained_folder import is_pretrained, load_pretrained
from text_tokenizers import as_tokenizer
from tqdm.auto import tqdm

import minigrad
from minigrad.data import CharTokenizer, LibraryTokenizer
from minigrad.metrics_log import read_json_lines
from minigrad.models import CausalLM
from minigrad.models.generation import stream


def main() -> int:
    """Load the model, continue the prompt, write the text while it is made."""
    parser = Parser(__doc__)
    parser.add_argument("folder", nargs="?", default=None, help="of a run, of a checkpoint, or of a published model")
    parser.add_argument("--tokens", type=int, default=200, help="tokens to write at most (default 200)")
    add_sampling(parser)
    args = parser.parse()
    device = choose_device(args.device)
    folder, heading = latest_folder(args.folder), ""
    tokenizer: Any
    if is_pretrained(folder):
        if args.step is not None:
            raise UsageError(f"--step is for runs; {folder} is a model's folder, without steps")
        model, tokenizer = load_pretrained(folder, device)
    else:
        run = load_run(folder, device, args.step)
        model, tokenizer = run.model, run.tokenizer
        heading = about(run)
    prompt = encode(tokenizer, args.prompt, model.config.bos_token_id)
    options = {**sampling(args), "eos_token_id": model.config.eos_token_id}
    started = time.perf_counter()
    count = len(write(model, tokenizer, prompt, args.tokens, options, heading))
    seconds = time.perf_counter() - started
    print(f"{count} tokens in {seconds:.1f} s ({count / seconds:.1f} tokens/s)", file=sys.stderr)
    return 0


def write(
    model: CausalLM, tokenizer: Any, prompt: list[int], count: int, options: dict[str, Any], heading: str
) -> list[int]:
    """Print the prompt and what follows it, as it comes, after a heading on stderr; returns what follows."""
    piece, written = pieces(tokenizer), []
    with tqdm(total=count, bar_format=BAR, smoothing=0, disable=True if sys.stdout.isatty() else None) as bar:
        try:
            following = stream(model, minigrad.tensor([prompt], device=model.device), count, **options)
        except ValueError as error:
            raise UsageError(error) from error
        if heading:
            tqdm.write(heading, file=sys.stderr)
        for index in prompt:
            sys.stdout.write(piece(index, False))
        for token in following:
            written.append(int(token))
            sys.stdout.write(piece(written[-1], False))
            sys.stdout.flush()
            bar.update()
    sys.stdout.write(piece(None, True) + "\n")
    return written


def about(run: Run) -> str:
    """Which run, step and loss a text is from."""
    file, step = run.folder / "metrics.jsonl", run.trainer.global_step
    records = read_json_lines(file) if file.is_file() else []
    losses = [r["val_loss"] for r in records if "val_loss" in r and r["step"] <= step]
    return f"{run.folder}, step {step}" + (f", validation loss {losses[-1]:.3f}" if losses else "")


def add_sampling(parser: Parser) -> None:
    """The flags of every script that writes text."""
    parser.add_argument("--prompt", default=None, help="text to continue (default: a new line)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 for the likeliest text (default 0.8)")
    parser.add_argument("--top-k", type=int, default=None, help="choose among the k likeliest tokens")
    parser.add_argument("--top-p", type=float, default=None, help="choose among the likeliest that make up p")
    parser.add_argument("--seed", type=int, default=None, help="for the same text again (default: another each time)")
    parser.add_argument(
        "--step", type=int, default=None, help="the run's checkpoint of this step (default: the newest)"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """What these flags say, as arguments of ``generate`` and ``stream``."""
    seed = minigrad.fresh_seed() if args.seed is None else args.seed
    return {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p, "seed": seed}


def encode(tokenizer: Any, prompt: str | None, first: Any = None) -> list[int]:
    """The tokens of the prompt, at least one. ``first`` is the token that begins a text, if there is one."""
    tokenizer = as_tokenizer(tokenizer)
    if prompt is None:  # a new line, unless the model knows none
        known = "\n" if not isinstance(tokenizer, CharTokenizer) else tokenizer.characters
        prompt = "\n" if "\n" in known else known[0]
    options = {"template": True} if isinstance(tokenizer, LibraryTokenizer) else {}
    ids: list[int] = tokenizer.encode(prompt, **options).tolist()
    if not ids and isinstance(first, int) and first < tokenizer.vocab_size:
        ids = [first]
    if not ids:
        raise UsageError("--prompt is empty; give at least one character")
    return ids


def pieces(tokenizer: Any) -> Callable[[int | None, bool], str]:
    """Turns tokens into text one at a time: a character whose bytes are spread over several comes with the last one."""
    tokenizer, seen = as_tokenizer(tokenizer), []
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def piece(index: int | None, last: bool) -> str:
        if index is not None and index >= tokenizer.vocab_size:  # models are made larger than their tokenizers
            return "\ufffd"
        if isinstance(tokenizer, CharTokenizer):
            return "" if index is None else tokenizer.decode([index])
        if type(tokenizer) is LibraryTokenizer:  # words may begin with a space that is none at the start
            before = tokenizer.decode(seen)
            seen.extend([] if index is None else [index])
            after = tokenizer.decode(seen)
            if after.endswith("\ufffd") and not last:  # within a character
                return ""
            return after[len(before.rstrip("\ufffd")) :]
        return utf8.decode(b"" if index is None else tokenizer.decode_bytes([index]), last)

    return piece


if __name__ == "__main__":
    run_cli(main)
