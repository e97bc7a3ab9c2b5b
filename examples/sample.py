"""Write text with a trained character model.

python examples/sample.py                                the run under runs/ that was saved last
python examples/sample.py runs/char-gpt --prompt "The " --chars 500 --temperature 0.8
python examples/sample.py --attention heads.png          a picture of what each head looked at (matplotlib)
"""

from __future__ import annotations

from pathlib import Path

import loading  # noqa: F401  # first
from attention_picture import draw, figure_class
from char_run import latest_folder, load_run
from command_line import Parser, choose_device, run_cli
from generate import about, add_sampling, encode, sampling, write


def main() -> int:
    """Load the model, continue the prompt, print each character as it comes."""
    parser = Parser(__doc__)
    parser.add_argument("run", nargs="?", default=None, help="folder of a run, or of one checkpoint")
    parser.add_argument("--chars", type=int, default=500, help="characters to write (default 500)")
    parser.add_argument("--attention", default=None, metavar="FILE.png", help="of what each head looked at")
    add_sampling(parser)
    args = parser.parse()
    if args.chars < 0:
        parser.error(f"--chars {args.chars}: expected 0 or more")
    if args.attention:
        figure_class()  # which says before the writing that it is missing
    device = choose_device(args.device)
    run = load_run(latest_folder(args.run), device, args.step)
    tokens = encode(run.tokenizer, args.prompt)
    tokens += write(run.model, run.tokenizer, tokens, args.chars, sampling(args), about(run))
    if args.attention:
        draw(run.model, tokens, list(run.tokenizer.decode(tokens)), Path(args.attention))
    return 0


if __name__ == "__main__":
    run_cli(main)
