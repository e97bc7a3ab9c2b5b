"""The pictures of README.md: docs/terminal.svg, a terminal after a real run, and docs/graph.svg, a model's graph.

    python benchmarks/terminal_picture.py

It trains a GPT of characters for 1000 steps in a temporary folder and lets it write, in a terminal of 92 columns. The
progress bar is kept as it was at last.
"""

import fcntl
import html
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import minigrad
from minigrad import nn

DOCS = Path(__file__).resolve().parents[1] / "docs"
COMMANDS = (
    "minigrad train --steps 1000 --eval-every 250 --sample-every 0",
    'minigrad sample --prompt "The " --chars 240 --seed 5',
)
COLUMNS, CHARACTER, LINE, MARGIN = 92, 8.4, 18, 14  # of the text, in columns and pixels


def shown(command: str, folder: str) -> list[str]:
    """The lines that a command leaves in a terminal."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("4H", 40, COLUMNS, 0, 0))
    line = [sys.executable, "-m", *shlex.split(command)]
    process = subprocess.Popen(line, cwd=folder, stdin=child, stdout=child, stderr=child)
    os.close(child)
    text = b""
    while True:
        try:
            text += (piece := os.read(parent, 4096))
        except OSError:  # what reading from a terminal without processes gives on Linux
            break
        if not piece:
            break
    if process.wait():
        raise SystemExit(text.decode())
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text.decode()).replace("\r\n", "\n")
    lines = [line.rpartition("\r")[2].rstrip() for line in plain.split("\n")]
    bars = [line for line in lines if re.match(r" *\d+% \|", line)]
    lines = [line for line in lines if line not in bars[:-1]]
    return [line[i : i + COLUMNS] for line in lines if line for i in range(0, len(line), COLUMNS)]


def drawing(lines: list[str]) -> str:
    """The lines as SVG, in a dark window; those that begin with $ are brighter."""
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), len(lines) * LINE + 2 * MARGIN
    rows = []
    for i, line in enumerate(lines):
        colour = "#7ee787" if line.startswith("$ ") else "#e6edf3"
        text = html.escape(line).replace(" ", "\u00a0")  # of plain spaces only one would be seen
        place = f'x="{MARGIN}" y="{MARGIN + (i + 0.75) * LINE:g}" textLength="{len(line) * CHARACTER:.1f}"'
        rows.append(f'<text {place} lengthAdjust="spacingAndGlyphs" fill="{colour}">{text}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    style = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14"'
    frame = f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>'
    return "\n".join([head, frame, f"<g {style}>", *rows, "</g>", "</svg>"]) + "\n"


if __name__ == "__main__":
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    loss = nn.functional.cross_entropy(model(minigrad.ones(4, 2)), minigrad.tensor([0, 1, 1, 0]))
    minigrad.draw(loss, model).save(DOCS / "graph.svg")
    with tempfile.TemporaryDirectory() as folder:
        parts = [[f"$ {command}", *shown(command, folder), ""] for command in COMMANDS]
    (DOCS / "terminal.svg").write_text(drawing([line for part in parts for line in part][:-1]), encoding="utf-8")
