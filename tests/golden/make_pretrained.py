"""Write pretrained/: tiny random models in Hugging Face's format, and what transformers computes with them.

Run with PyTorch and transformers installed: ``python tests/golden/make_pretrained.py``. Made with transformers
5.24.0 and PyTorch 2.13.0 on the CPU.
"""

import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_models import GOLDEN, STORED, computed, write

if __name__ == "__main__":
    for name, max_shard_size in STORED.items():
        folder = GOLDEN / name
        shutil.rmtree(folder, ignore_errors=True)
        write(name, folder, max_shard_size)
        (folder / "generation_config.json").unlink()
        for path in folder.iterdir():
            path.chmod(0o644)
        found = computed(folder)
        logits = [[[round(float(v), 5) for v in row] for row in rows] for rows in found["logits"]]
        (folder / "expected.json").write_text(json.dumps({**found, "logits": logits}) + "\n")
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{folder.name}: {size:,} bytes, {len(set(found['greedy']))} different greedy tokens")
