"""Write text with a trained character GPT.

python examples/sample.py                                the run under runs/ that was saved last
python examples/sample.py runs/char-gpt --prompt "The " --chars 500 --temperature 0.8
"""

from __future__ import annotations

from char_run import latest_folder, load_run
from command_line import Parser, UsageError, choose_device, run_cli

import minigrad


def main() -> int:
    """Load the model, continue the prompt, print the text."""
    parser = Parser(__doc__)
    parser.add_argument("run", nargs="?", default=None, help="folder of a run, or of one checkpoint")
    parser.add_argument("--prompt", default=None, help="text to continue (default: a new line)")
    parser.add_argument("--chars", type=int, default=500, help="characters to write (default 500)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 for the likeliest text (default 0.8)")
    parser.add_argument("--top-k", type=int, default=None, help="choose among the k likeliest characters")
    parser.add_argument("--top-p", type=float, default=None, help="choose among the likeliest that make up p")
    parser.add_argument("--seed", type=int, default=None, help="for the same text again (default: another each time)")
    parser.add_argument("--step", type=int, default=None, help="the checkpoint of this step (default: the newest)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default cpu)")
    args = parser.parse()
    device = choose_device(args.device)
    run = load_run(latest_folder(args.run), device, args.step)
    prompt = args.prompt
    if prompt is None:  # a new line, unless the model knows none
        prompt = "\n" if "\n" in run.tokenizer.characters else run.tokenizer.characters[0]
    if not prompt:
        raise UsageError("--prompt is empty; give at least one character")
    tokens = minigrad.tensor(run.tokenizer.encode(prompt)[None], device=device)
    seed = minigrad.fresh_seed() if args.seed is None else args.seed
    try:
        out = run.model.generate(
            tokens, args.chars, temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=seed
        )
    except ValueError as error:
        raise UsageError(error) from error
    print(run.tokenizer.decode(out.cpu().numpy()[0]))
    return 0


if __name__ == "__main__":
    run_cli(main)
