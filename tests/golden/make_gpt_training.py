"""Write gpt_training.json: the curves of tests/gpt_training.py as PyTorch computes them.

Run with PyTorch installed: ``python tests/golden/make_gpt_training.py``. Made with PyTorch 2.13.0 on the CPU.
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt_training import train_torch

if __name__ == "__main__":
    torch.set_num_threads(1)
    golden = {"torch": torch.__version__, **{dtype: train_torch(dtype) for dtype in ("float32", "float64")}}
    path = Path(__file__).with_name("gpt_training.json")
    path.write_text(json.dumps(golden, indent=1) + "\n")
    print(f"{path}: loss {golden['float64']['losses'][0]:.4f} -> {golden['float64']['losses'][-1]:.4f}")
