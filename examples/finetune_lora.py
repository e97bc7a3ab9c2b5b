"""Train a published model further by LoRA (Hu et al. 2021): small matrices beside frozen weights, in a small file.

    python examples/finetune_lora.py FOLDER --text notes.txt           GPT-2; saves adapter.safetensors
    python examples/finetune_lora.py FOLDER --layers q_proj v_proj     Llama and SmolLM2
    python examples/finetune_lora.py FOLDER --merge                    saves the whole model, too, for generate.py

FOLDER, training and its end are as for finetune_pretrained.py. `minigrad.nn.lora.load(model, FILE)` puts what
adapter.safetensors holds into the model of FOLDER.
"""

from __future__ import annotations

from pathlib import Path

from command_line import Parser, run_cli
from finetune_pretrained import add_flags, finetune
from pretrained_folder import copy_companions

from minigrad.models import CausalLM
from minigrad.nn import lora

ADAPTER = "adapter.safetensors"


def main() -> int:
    """Parse the flags, load, put LoRA layers in, train them, save."""
    parser = Parser(__doc__)
    add_flags(parser, lr=1e-3)
    parser.add_argument("--rank", type=int, default=8, help="of the change of each weight (default 8)")
    parser.add_argument("--alpha", type=float, default=16.0, help="changes are times alpha / rank (default 16)")
    parser.add_argument(
        "--layers", nargs="+", default=["c_attn", "c_proj", "c_fc"], help="their names (default: all of GPT-2's blocks)"
    )
    parser.add_argument("--merge", action="store_true", help="save the whole model, too, with the changes in it")
    args = parser.parse()

    def wrap(model: CausalLM) -> None:
        made = lora.wrap(model, args.layers, args.rank, args.alpha, args.dropout)
        count = sum(layer.lora_A.numel() + layer.lora_B.numel() for layer in made.values())
        print(f"{len(made)} layers learn by {count:,} numbers of rank {args.rank}; all else is frozen")

    def save(model: CausalLM, source: Path, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        lora.save(model, out / ADAPTER)
        print(f"{out / ADAPTER}: {(out / ADAPTER).stat().st_size:,} bytes")
        if args.merge:
            lora.merge(model)
            model.save_pretrained(out)
            copy_companions(source, out)

    return finetune(args, wrap, save)


if __name__ == "__main__":
    run_cli(main)
