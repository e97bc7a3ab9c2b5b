"""Images of digits, drawn with a pen: each digit is a few strokes, and no two images of it are the same."""

from __future__ import annotations

import shutil

import numpy as np

SIZE = 16  # pixels, both ways
Stroke = list[tuple[float, float]]  # a line from point (x, y) to point


def arc(
    x: float, y: float, rx: float, ry: float, start: float, end: float, points: int = 9
) -> list[tuple[float, float]]:
    """A piece of an ellipse around (x, y), from one angle to another in degrees; 0 is to the right, 90 is down."""
    angles = np.radians(np.linspace(start, end, points))
    return list(zip(x + rx * np.cos(angles), y + ry * np.sin(angles)))


# Of each digit, in a square from -1 to 1, y downwards.
STROKES: list[list[Stroke]] = [
    [arc(0, 0, 0.55, 0.9, 0, 360, 17)],
    [[(-0.4, -0.5), (0.1, -0.9), (0.1, 0.9)]],
    [[*arc(0, -0.4, 0.55, 0.5, 190, 390), (-0.55, 0.9), (0.6, 0.9)]],
    [arc(-0.05, -0.45, 0.5, 0.45, 200, 450), arc(-0.05, 0.42, 0.58, 0.48, 270, 520)],
    [[(0.25, 0.9), (0.25, -0.9), (-0.6, 0.3), (0.65, 0.3)]],
    [[(0.5, -0.9), (-0.45, -0.9), (-0.5, -0.1), *arc(-0.05, 0.32, 0.58, 0.56, 235, 510)]],
    [[(0.4, -0.85), (-0.2, -0.45), *arc(0, 0.4, 0.52, 0.5, 190, 550, 13)]],
    [[(-0.55, -0.9), (0.55, -0.9), (-0.1, 0.9)]],
    [arc(0, -0.45, 0.45, 0.43, 0, 360, 13), arc(0, 0.45, 0.55, 0.47, 0, 360, 13)],
    [[(-0.4, 0.85), (0.2, 0.45), *arc(0, -0.4, 0.52, 0.5, 10, 370, 13)]],
]


def draw_digits(count: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, SIZE, SIZE) float32, paper about 0 and ink about 1, and their digits (count,) int64.

    Each has its own size, slant, turn, place, thickness of the pen and trembling hand; ``noise`` is the standard
    deviation of what is added to each pixel.
    """
    digits = rng.integers(10, size=count)
    images = np.stack([draw(int(digit), rng) for digit in digits])
    return (images + noise * rng.standard_normal(images.shape)).astype(np.float32), digits


def draw(digit: int, rng: np.random.Generator) -> np.ndarray:
    """One image without noise: (SIZE, SIZE), from 0 to 1."""
    turn, slant = rng.normal(0, 0.15), rng.normal(0, 0.2)  # radians; x per y
    scale = SIZE * rng.uniform(0.28, 0.42, 2)
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) @ [[1, -slant], [0, 1]] * scale
    place = (SIZE - 1) / 2 + rng.uniform(-1.5, 1.5, 2)
    starts, ends = [], []
    for stroke in STROKES[digit]:
        trembling = np.array(stroke) + rng.normal(0, 0.05, (len(stroke), 2))
        points = trembling @ matrix.T + place
        starts.append(points[:-1])
        ends.append(points[1:])
    distance = distances(np.concatenate(starts), np.concatenate(ends))
    return np.clip(rng.uniform(0.6, 1.3) + 0.5 - distance, 0, 1)  # the pen's edge is one pixel of grey


def distances(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How far each pixel is from the nearest of the lines between starts and ends, (S, 2) each: (SIZE, SIZE)."""
    y, x = np.mgrid[:SIZE, :SIZE]
    pixels = np.stack([x, y], -1)[..., None, :]  # (SIZE, SIZE, 1, 2)
    along = ends - starts  # (S, 2)
    t = ((pixels - starts) * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-9)  # 0 at the start, 1 at the end
    nearest = starts + t.clip(0, 1)[..., None] * along
    return np.linalg.norm(pixels - nearest, axis=-1).min(-1)


def show(images: np.ndarray) -> str:
    """Images (N, SIZE, SIZE) side by side as text, darker for more ink, two characters a pixel; in rows that fit."""
    width = max(1, (shutil.get_terminal_size().columns + 1) // (2 * SIZE + 1))
    shades = np.array(list(" .:*#"))
    cells = shades[(images * len(shades)).astype(int).clip(0, len(shades) - 1)]
    rows = [line for i in range(0, len(cells), width) for line in cells[i : i + width].swapaxes(0, 1)]
    return "\n".join(" ".join("".join(2 * cell for cell in image) for image in row) for row in rows)
