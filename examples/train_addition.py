"""Teach a small GPT to add two numbers of two digits, and test it on sums that it has never seen.

    python examples/train_addition.py               trains on 7,500 of the 10,000 sums, tests on the other 2,500
    python examples/train_addition.py --ask         and then does sums of yours
    python examples/train_addition.py --no-reverse  the answer's hundreds first, see below

A sum is a text of nine characters, the answer written backwards: 57+68=125 is "57+68=521". A model writes from left to
right and cannot change what stands there. The units need nothing but the units of the two numbers; each later digit
needs the two above it and one carry. With the hundreds first, the first character already depends on every digit. Long
sums are learned from fewer examples in this way (Lee et al. 2023, "Teaching arithmetic to small transformers"). For two
digits it hardly matters: over the seeds 0 to 2, hundreds first left one of 7,500 sums wrong, units first none.
"""

from __future__ import annotations

import re
import time

import loading  # noqa: F401  # first
import numpy as np
from command_line import BAR, Parser, UsageError, run_cli
from estimate import announced
from tqdm.auto import tqdm

import minigrad
from minigrad.distributed import SimpleTrainer, TrainingConfig
from minigrad.models import GPT2, GPT2Config
from minigrad.nn import functional as F
from minigrad.optim import AdamW, CosineAnnealing, decay_groups

CHARACTERS = "0123456789+="
PROMPT, ANSWER = 6, 3  # characters of "57+68=" and of "521"
IGNORED = -100  # a target that counts for nothing: cross_entropy's ignore_index


def main() -> int:
    """Parse the flags, train, test on every sum that was held out."""
    parser = Parser(__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps (default 2000)")
    parser.add_argument("--held-out", type=int, default=2500, help="sums to test on, of 10,000 (default 2500)")
    parser.add_argument("--batch-size", type=int, default=256, help="sums per step (default 256)")
    parser.add_argument("--lr", type=float, default=3e-3, help="highest learning rate (default 0.003)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the batches (default 0)")
    parser.add_argument("--ask", action="store_true", help="then ask for sums of your own, and do them")
    parser.add_argument("--no-reverse", dest="reverse", action="store_false", help="the answer's hundreds first")
    args = parser.parse()
    if args.steps < 1 or args.batch_size < 1 or args.seed < 0:
        raise UsageError("--steps and --batch-size must be at least 1, --seed at least 0")
    if not 1 <= args.held_out <= 9999:
        raise UsageError(f"--held-out is {args.held_out}, expected 1 to 9999 of the 10,000 sums")

    sums = all_sums(args.reverse)
    order = np.random.default_rng(args.seed).permutation(len(sums))
    held_out, known = sums[order[: args.held_out]], sums[order[args.held_out :]]
    minigrad.manual_seed(args.seed)
    model = GPT2(GPT2Config(len(CHARACTERS), PROMPT + ANSWER - 1, n_layer=2, n_head=4, n_embd=64))
    needs = announced(model.config, model.num_parameters(), args.batch_size, args.steps)
    backwards = ", with the answer backwards, units first" if args.reverse else ""
    print(f"GPT: {model.num_parameters():,} parameters; {needs}")
    print(f'{len(known):,} sums to learn, such as "{text(known[0])}"{backwards}')

    started = time.perf_counter()
    train(model, known, args.steps, args.batch_size, args.lr, args.seed)
    seconds = time.perf_counter() - started

    answers = answer(model, held_out[:, :PROMPT])
    right = (answers == held_out[:, PROMPT:]).all(1)
    for wrong in np.flatnonzero(~right)[:10]:
        asked, right_one = held_out[wrong], written(held_out[wrong], held_out[wrong, PROMPT:], args.reverse)
        print(f"wrong: {written(asked, answers[wrong], args.reverse)}; {right_one} is right")
    print("some of them: " + ", ".join(written(*row, args.reverse) for row in zip(held_out[:5], answers)))
    count = int(right.sum())
    share = 100 * count / len(right)
    print(f"{count:,} of {len(right):,} held-out sums right: {share:.2f} % ({seconds:.0f} s of training)")
    while args.ask and (asked := ask("a sum, such as 57+68 (or nothing, to end): ").replace(" ", "")):
        numbers = re.fullmatch(r"(\d{1,2})\+(\d{1,2})=?", asked)
        if numbers is None:
            print("two numbers of at most two digits, with a + between them")
            continue
        question = np.array([[CHARACTERS.index(c) for c in f"{int(numbers[1]):02}+{int(numbers[2]):02}="]])
        print(written(question[0], answer(model, question)[0], args.reverse))
    return 0


def ask(question: str) -> str:
    """What is typed; nothing at the end of the input, which is Ctrl-D in a terminal."""
    try:
        return input(question)
    except EOFError:
        print()
        return ""


def written(question: np.ndarray, result: np.ndarray, reverse: bool) -> str:
    """A sum as people write it: 57 + 68 = 125."""
    a, b = text(question[:PROMPT]).strip("=").split("+")
    return f"{int(a)} + {int(b)} = {text(result[::-1] if reverse else result).lstrip('0') or '0'}"


def all_sums(reverse: bool = True) -> np.ndarray:
    """Every sum from 00+00 to 99+99 as tokens: int64 (10000, 9)."""
    lines = []
    for a in range(100):
        for b in range(100):
            total = f"{a + b:03}"
            lines.append(f"{a:02}+{b:02}={total[::-1] if reverse else total}")
    return np.array([[CHARACTERS.index(c) for c in line] for line in lines])


def text(tokens: np.ndarray) -> str:
    """The characters of a row of tokens."""
    return "".join(CHARACTERS[token] for token in tokens)


def train(model: GPT2, known: np.ndarray, steps: int, batch_size: int, lr: float, seed: int) -> None:
    """AdamW on random batches of the known sums (N, 9), the learning rate a cosine."""
    optimizer = AdamW(decay_groups(model.named_parameters(), weight_decay=0.1), lr=lr, betas=(0.9, 0.99))
    schedule = CosineAnnealing(lr, lr / 100, warmup_steps=min(100, steps // 10), total_steps=steps)
    trainer = SimpleTrainer.with_optimizer(TrainingConfig(), optimizer).with_lr_schedule(schedule)
    rng = np.random.default_rng([seed, 1])
    with tqdm(range(steps), bar_format=BAR, smoothing=0, disable=None) as bar:
        for _ in bar:
            batch = known[rng.integers(len(known), size=batch_size)]
            x, y = batch[:, :-1], batch[:, 1:].copy()
            # What follows "5" in a question cannot be known: learn only to predict the answer.
            y[:, : PROMPT - 1] = IGNORED
            logits = model(minigrad.from_numpy(x))
            loss = F.cross_entropy(
                logits.reshape(-1, len(CHARACTERS)), minigrad.from_numpy(y).reshape(-1), ignore_index=IGNORED
            )
            metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item())
            assert metrics is not None  # one micro-batch a step
            bar.set_postfix_str(f"loss {metrics.loss:.4f}", refresh=False)


def answer(model: GPT2, questions: np.ndarray) -> np.ndarray:
    """What the model writes after questions (N, 6), always its likeliest character: (N, 3)."""
    return model.generate(minigrad.from_numpy(questions), ANSWER, temperature=0).numpy()[:, PROMPT:]


if __name__ == "__main__":
    run_cli(main)
