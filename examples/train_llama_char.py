"""Train a character-level Llama on the CPU, in less than three minutes, with nothing to download.

It has rotary positions, RMSNorm, SwiGLU and grouped queries instead of a GPT's position embeddings, LayerNorm, GELU and
one head of keys per query.

    python examples/train_llama_char.py                        Python's own documentation
    python examples/train_llama_char.py --data notes.txt docs/ any UTF-8 text
    python examples/train_llama_char.py --resume               goes on where the last run stopped, bit for bit
    python examples/generate.py --prompt "The "                writes with the trained model

The training is that of train_char_gpt.py, with the settings of another model. Ctrl-C finishes the step, saves, and says
how to resume.
"""

from __future__ import annotations

from char_run import LlamaSettings
from command_line import run_cli
from train_char_gpt import main as train


def main() -> int:
    """Parse the flags, prepare the run, train it."""
    return train(LlamaSettings, __doc__)


if __name__ == "__main__":
    run_cli(main)
