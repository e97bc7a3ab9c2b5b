"""Train a small vision transformer to read digits, which this script draws itself: nothing is downloaded.

    python examples/train_vit_digits.py              less than a minute
    python examples/train_vit_digits.py --noise 0.6  digits that are hard to read for you, too

A vision transformer (Dosovitskiy et al. 2020) is a GPT without the mask: an image is cut into patches, each patch is a
token, and every token sees every other. The mean of the tokens is then classified.
"""

from __future__ import annotations

import itertools
import time

import loading  # noqa: F401  # first
import numpy as np
from command_line import BAR, Parser, UsageError, run_cli
from digit_images import SIZE, draw_digits, show
from estimate import announced
from tqdm.auto import tqdm

import minigrad
from minigrad import Tensor, nn
from minigrad.data import DataLoader, TensorDataset
from minigrad.distributed import SimpleTrainer, TrainingConfig
from minigrad.models import GPT2Config
from minigrad.nn import functional as F
from minigrad.optim import AdamW, CosineAnnealing, decay_groups

PATCH = 4  # pixels: an image of 16 x 16 has 4 x 4 patches


class VisionTransformer(nn.Module):
    """Images (N, SIZE, SIZE) -> logits of the ten digits (N, 10)."""

    def __init__(self, n_layer: int = 2, n_head: int = 4, n_embd: int = 64) -> None:
        super().__init__()
        count = (SIZE // PATCH) ** 2
        self.embed: nn.Linear = nn.Linear(PATCH * PATCH, n_embd)
        # Learned: attention knows no order. With small numbers the first hundreds of steps would not see them.
        self.positions: nn.Parameter = nn.Parameter(0.3 * minigrad.randn(count, n_embd))
        self.blocks: nn.ModuleList = nn.ModuleList(nn.Block(n_embd, n_head, is_causal=False) for _ in range(n_layer))
        self.norm: nn.LayerNorm = nn.LayerNorm(n_embd)
        self.head: nn.Linear = nn.Linear(n_embd, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(N, SIZE, SIZE) -> (N, 10)."""
        x = self.embed(patches(images)) + self.positions  # (N, patches, n_embd)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def patches(images: Tensor) -> Tensor:
    """Cut images into squares, row by row: (N, SIZE, SIZE) -> (N, patches, PATCH * PATCH)."""
    n = SIZE // PATCH
    x = images.reshape(-1, n, PATCH, n, PATCH)  # (N, row of patches, row in it, column of patches, column in it)
    return x.permute(0, 1, 3, 2, 4).reshape(-1, n * n, PATCH * PATCH)


def main() -> int:
    """Parse the flags, draw the digits, train, test on digits that were held out."""
    parser = Parser(__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps (default 2000)")
    parser.add_argument("--images", type=int, default=8000, help="images to learn from (default 8000)")
    parser.add_argument("--held-out", type=int, default=2000, help="other images to test on (default 2000)")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step (default 64)")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate (default 0.002)")
    parser.add_argument("--noise", type=float, default=0.15, help="of each pixel, beside ink of 1 (default 0.15)")
    parser.add_argument("--seed", type=int, default=0, help="of images, weights and batches (default 0)")
    args = parser.parse()
    for name, least in (("steps", 1), ("images", 1), ("held_out", 1), ("batch_size", 1), ("noise", 0), ("seed", 0)):
        if not getattr(args, name) >= least:
            raise UsageError(f"--{name.replace('_', '-')} is {getattr(args, name)}, expected at least {least}")

    minigrad.manual_seed(args.seed)
    model = VisionTransformer()
    sizes = GPT2Config(10, (SIZE // PATCH) ** 2, len(model.blocks), 4, 64)  # those of a GPT that is as large
    needs = announced(sizes, model.num_parameters(), args.batch_size, args.steps)
    rng = np.random.default_rng(args.seed)
    images, digits = draw_digits(args.images, args.noise, rng)
    test_images, test_digits = draw_digits(args.held_out, args.noise, rng)
    print(f"{len(images):,} images such as these, {model.num_parameters():,} parameters; {needs}")
    print(show(images[:6]))

    started = time.perf_counter()
    train(model, DataLoader(TensorDataset(images, digits), args.batch_size, shuffle=True), args.steps, args.lr)
    seconds = time.perf_counter() - started

    read = classify(model, test_images)
    print(confusion(test_digits, read))
    wrong = np.flatnonzero(read != test_digits)[:6]
    if len(wrong):
        pairs = ", ".join(f"{test_digits[i]} read as {read[i]}" for i in wrong)
        print(f"mistakes: {pairs}\n{show(test_images[wrong])}")
    right = int((read == test_digits).sum())
    share = 100 * right / len(read)
    print(f"{right:,} of {len(read):,} held-out digits right: {share:.2f} % ({seconds:.0f} s of training)")
    return 0


def train(model: nn.Module, loader: DataLoader, steps: int, lr: float) -> None:
    """AdamW on batches of images (N, SIZE, SIZE) and their digits (N,), epoch after epoch; the rate is a cosine."""
    optimizer = AdamW(decay_groups(model.named_parameters(), weight_decay=0.1), lr=lr, betas=(0.9, 0.99))
    schedule = CosineAnnealing(lr, lr / 100, warmup_steps=min(100, steps // 10), total_steps=steps)
    trainer = SimpleTrainer.with_optimizer(TrainingConfig(), optimizer).with_lr_schedule(schedule)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    with tqdm(range(steps), bar_format=BAR, smoothing=0, disable=None) as bar:
        for _, (images, digits) in zip(bar, batches):
            loss = F.cross_entropy(model(images), digits)
            metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item())
            assert metrics is not None  # one micro-batch a step
            bar.set_postfix_str(f"loss {metrics.loss:.4f}", refresh=False)


@minigrad.no_grad()
def classify(model: nn.Module, images: np.ndarray, batch_size: int = 500) -> np.ndarray:
    """The likeliest digit of each image: (N, SIZE, SIZE) -> (N,)."""
    return np.concatenate([model(batch).argmax(1).numpy() for batch in DataLoader(images, batch_size)])


def confusion(digits: np.ndarray, read: np.ndarray) -> str:
    """A table: how often each digit (row) was read as which (column)."""
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (digits, read), 1)
    lines = ["read as " + "".join(f"{d:5}" for d in range(10))]
    for d, row in enumerate(counts):
        lines.append(f"digit {d} " + "".join(f"{n if n else '.':>5}" for n in row))
    return "\n".join(lines)


if __name__ == "__main__":
    run_cli(main)
