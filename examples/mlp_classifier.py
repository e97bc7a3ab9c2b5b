"""Teach a small network to tell two spirals apart, and draw what it has learned.

    python examples/mlp_classifier.py             a second or two; the drawing is text, and with matplotlib a picture
    python examples/mlp_classifier.py --hidden 3  too small a network: look at its drawing

No straight line parts the spirals. Each layer of the network bends the plane a little, until one does.
"""

from __future__ import annotations

from pathlib import Path

import loading  # noqa: F401  # first
import numpy as np
from command_line import BAR, Parser, UsageError, run_cli
from estimate import announced_mlp
from tqdm.auto import tqdm

import minigrad
from minigrad import nn
from minigrad.distributed import SimpleTrainer, TrainingConfig
from minigrad.nn import functional as F

PICTURE = "runs/mlp_classifier.png"
EXTENT = 1.15  # the drawing shows -1.15 to 1.15 in both directions


def main() -> int:
    """Parse the flags, train, test on other points, draw."""
    parser = Parser(__doc__)
    parser.add_argument("--steps", type=int, default=1500, help="optimizer steps (default 1500)")
    parser.add_argument("--points", type=int, default=400, help="points to learn from, as many to test (default 400)")
    parser.add_argument("--hidden", type=int, default=64, help="width of the two hidden layers (default 64)")
    parser.add_argument(
        "--noise", type=float, default=0.02, help="how far points stray from the spirals (default 0.02)"
    )
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate (default 0.01)")
    parser.add_argument("--seed", type=int, default=0, help="of points and weights (default 0)")
    parser.add_argument("--width", type=int, default=64, help="columns of the drawing, 0 for none (default 64)")
    parser.add_argument("--png", default=PICTURE, metavar="FILE", help=f"of the picture (default {PICTURE})")
    args = parser.parse()
    for name, least in (("steps", 1), ("points", 2), ("hidden", 1), ("noise", 0), ("seed", 0), ("width", 0)):
        if not getattr(args, name) >= least:
            raise UsageError(f"--{name} is {getattr(args, name)}, expected at least {least}")

    flags = {"hidden": args.hidden, "points": args.points}
    print(announced_mlp(lambda hidden, points: ((2, hidden, hidden, 2), points, points), flags, args.steps))
    rng = np.random.default_rng(args.seed)
    known, test = two_spirals(args.points, args.noise, rng), two_spirals(args.points, args.noise, rng)
    minigrad.manual_seed(args.seed)
    model = nn.Sequential(
        nn.Linear(2, args.hidden), nn.Tanh(), nn.Linear(args.hidden, args.hidden), nn.Tanh(), nn.Linear(args.hidden, 2)
    )
    loss = train(model, *known, args.steps, args.lr)
    if args.width:
        print(drawing(model, *test, args.width))
    picture(model, *test, Path(args.png))
    right = int((classify(model, test[0]) == test[1]).sum())
    print(
        f"{right} of {len(test[1])} new points right: {100 * right / len(test[1]):.1f} % "
        f"({model.num_parameters():,} parameters, last training loss {loss:.4f})"
    )
    return 0


def two_spirals(points: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points (N, 2) float32 and the spiral of each (N,) int64: 0, or 1 for the one turned by half a circle."""
    spiral = np.arange(points) % 2
    # The square root spreads the points evenly: more turns, more room.
    along = np.sqrt(rng.uniform(0.02, 1, points))
    angle = 3.5 * np.pi * along + np.pi * spiral
    x = np.stack([along * np.cos(angle), along * np.sin(angle)], axis=1) + noise * rng.standard_normal((points, 2))
    return x.astype(np.float32), spiral


def train(model: nn.Module, x: np.ndarray, y: np.ndarray, steps: int, lr: float) -> float:
    """AdamW on all points at once; returns the last loss."""
    inputs, targets = minigrad.from_numpy(x), minigrad.from_numpy(y)
    trainer = SimpleTrainer(TrainingConfig(learning_rate=lr))
    with tqdm(range(steps), bar_format=BAR, smoothing=0, disable=None) as bar:
        for _ in bar:
            loss = F.cross_entropy(model(inputs), targets)
            metrics = trainer.step(model.named_parameters(), loss.backward(), loss.item())
            assert metrics is not None  # one micro-batch a step
            bar.set_postfix_str(f"loss {metrics.loss:.4f}", refresh=False)
    return metrics.loss


@minigrad.no_grad()
def classify(model: nn.Module, x: np.ndarray) -> np.ndarray:
    """The likelier spiral of each point: (N, 2) -> (N,)."""
    return model(minigrad.from_numpy(x)).argmax(1).numpy()


def grid(columns: int, rows: int) -> np.ndarray:
    """The centres of the drawing's cells, top left first: (rows * columns, 2)."""
    across = EXTENT * ((2 * np.arange(columns) + 1) / columns - 1)
    down = -EXTENT * ((2 * np.arange(rows) + 1) / rows - 1)
    x, y = np.meshgrid(across, down)
    return np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)


def drawing(model: nn.Module, x: np.ndarray, y: np.ndarray, columns: int) -> str:
    """The plane as text: a background of '.' where the model says 0 and ':' where it says 1; points as 'o' and 'x', and
    as '!' where the model is wrong."""
    rows = max(columns // 2, 1)  # a character is about twice as high as it is wide
    cells = np.where(classify(model, grid(columns, rows)), ":", ".").reshape(rows, columns)
    column = ((x[:, 0] / EXTENT + 1) / 2 * columns).astype(int).clip(0, columns - 1)
    row = ((1 - x[:, 1] / EXTENT) / 2 * rows).astype(int).clip(0, rows - 1)
    marks = np.where(classify(model, x) != y, "!", np.where(y, "x", "o"))
    order = np.argsort(marks == "!", kind="stable")  # mistakes last, so that no other point hides them
    cells[row[order], column[order]] = marks[order]
    legend = "o and x: new points of the two spirals; . and : what the network says of each place; !: a mistake"
    return "\n".join(["".join(line) for line in cells] + [legend])


def picture(model: nn.Module, x: np.ndarray, y: np.ndarray, file: Path, size: int = 300) -> None:
    """The same as a picture, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed (pip install matplotlib)")
        return
    figure = Figure(figsize=(6, 6), layout="tight")
    axes = figure.subplots()
    background = classify(model, grid(size, size)).reshape(size, size)
    axes.imshow(background, extent=(-EXTENT, EXTENT, -EXTENT, EXTENT), cmap="coolwarm", alpha=0.4)
    axes.scatter(x[:, 0], x[:, 1], c=y, cmap="coolwarm", s=12, edgecolors="black", linewidths=0.3)
    axes.set_axis_off()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    print(f"picture: {file}")


if __name__ == "__main__":
    run_cli(main)
