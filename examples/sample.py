"""Write text with a trained character model.

python examples/sample.py                                the run under runs/ that was saved last
python examples/sample.py runs/char-gpt --prompt "The " --chars 500 --temperature 0.8
"""

from __future__ import annotations

from char_run import latest_folder, load_run
from command_line import Parser, UsageError, choose_device, run_cli
from generate import add_sampling, encode, sampling

import minigrad


def main() -> int:
    """Load the model, continue the prompt, print the text."""
    parser = Parser(__doc__)
    parser.add_argument("run", nargs="?", default=None, help="folder of a run, or of one checkpoint")
    parser.add_argument("--chars", type=int, default=500, help="characters to write (default 500)")
    add_sampling(parser)
    args = parser.parse()
    if args.chars < 0:
        parser.error(f"--chars {args.chars}: expected 0 or more")
    device = choose_device(args.device)
    run = load_run(latest_folder(args.run), device, args.step)
    tokens = minigrad.tensor([encode(run.tokenizer, args.prompt)], device=device)
    try:
        out = run.model.generate(tokens, args.chars, **sampling(args))
    except ValueError as error:
        raise UsageError(error) from error
    print(run.tokenizer.decode(out.cpu().numpy()[0]))
    return 0


if __name__ == "__main__":
    run_cli(main)
