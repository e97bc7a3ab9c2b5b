"""The command ``minigrad watch``: what it is told, and what it says."""

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import NoReturn

from ...env import fit
from ...files import durable
from .runs import WatchError, open_runs
from .server import is_loopback, open_server, saved_page

PORT = 8642
DESCRIPTION = """Show runs in the browser, while they train and after: loss curves over steps, tokens or time, learning
rate, gradient norm, speed, time left, memory, samples, and what each rank waited."""
EXAMPLES = """
  minigrad watch                          all runs under runs/, also those that begin later
  minigrad watch runs/a runs/b            two runs, compared
  minigrad watch log.jsonl                a file of JSON lines
  minigrad watch runs/a --export a.html   the page as one file, to keep or to send

The page is served at 127.0.0.1: no other machine can reach it, and it loads nothing from anywhere. Ctrl-C ends it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WatchError(f"{message} (minigrad watch --help lists the flags)")


def main(arguments: list[str]) -> int:
    """Serve the page until Ctrl-C, or write it into a file; returns the exit code."""
    parser = _Parser(
        prog="minigrad watch",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a run's folder, a folder of runs, or a log")
    parser.add_argument("--export", metavar="FILE.html", help="write the page with the runs in it, and end")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default 127.0.0.1, this machine alone)")
    parser.add_argument("--port", type=int, help=f"(default {PORT}, or a free one)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    try:
        options = parser.parse_args(arguments)
        runs = open_runs(options.runs)
        if options.export is not None:
            return _export(Path(options.export), saved_page(runs))
        server = open_server(runs, options.host, options.port, PORT)
    except WatchError as error:
        print(fit(f"error: {error}", sys.stderr), file=sys.stderr)
        return 2
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = f"http://{host}:{server.server_address[1]}/"
    if not is_loopback(options.host):
        print(f"warning: whoever can reach this machine at {options.host} can read these runs", file=sys.stderr)
    count = len(runs.by_name)
    print(f"{count} run{'s' if count > 1 else ''} at {url} (Ctrl-C ends it)", flush=True)
    if options.open:
        webbrowser.open(url)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _export(path: Path, text: str) -> int:
    try:
        durable.replace_file(path, [text.encode(errors="replace")])
    except OSError as error:
        raise WatchError(f"cannot write {path}: {error.strerror}") from error
    print(f"{path}: {len(text) / 1e3:,.0f} kB, for any browser, without a server")
    return 0
