"""The page, served by the standard library alone: on loopback, unless another host is asked for."""

import errno
import ipaddress
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .runs import Runs, WatchError
from .series import SECONDS, STEP

PAGE = Path(__file__).with_name("page.html")
MARK = '<script id="saved" type="application/json">null</script>'  # in the page: where the runs of a saved one are
# The page is whole: it loads nothing, sends nothing elsewhere, and no other page may show it in a frame.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def saved_page(runs: Runs) -> str:
    """The page with the runs in it, as one file that needs no server."""
    details = {name: run.detail() for name, run in list(runs.by_name.items())}
    data = {"at": time.time(), "runs": runs.summaries(), "details": details}
    # "<" as an escape: no text of a run ends the script. A line of JSON may stand in it as it is otherwise.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return PAGE.read_text(encoding="utf-8").replace(MARK, MARK.replace("null", text))


class Server(ThreadingHTTPServer):
    """Serves the page of some runs, each request in a thread of its own."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, runs: Runs, host: str, port: int) -> None:
        self.runs: Runs = runs
        self.host: str = host
        self._refreshing = threading.Lock()
        self._refreshed = 0.0
        self.address_family: socket.AddressFamily = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def refresh(self) -> None:
        """Read what is new; not more than a few times a second, however many look."""
        with self._refreshing:
            if time.monotonic() - self._refreshed > 0.2:
                self.runs.refresh()
                self._refreshed = time.monotonic()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "minigrad", ""
    timeout = 60

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        answers: dict[str, Callable[[dict[str, str]], tuple[str, str]]] = {
            "/": lambda query: ("text/html", PAGE.read_text(encoding="utf-8")),
            "/runs": lambda query: ("application/json", json.dumps(self._summaries(), allow_nan=False)),
            "/run": self._run,
            "/saved": lambda query: ("text/html", saved_page(self.server.runs)),
        }
        if not self._asked_by_name():
            return self._answer(403, "text/plain", "this page is served under the name of its own host only")
        if url.path not in answers:
            return self._answer(404, "text/plain", "there is no such page")
        try:
            kind, text = answers[url.path](dict(parse_qsl(url.query)))
        except (KeyError, ValueError) as error:
            return self._answer(400, "text/plain", f"the request cannot be followed: {error}")
        return self._answer(200, kind, text)

    def _asked_by_name(self) -> bool:
        """Not under a foreign name that leads here: so a page elsewhere could read the runs through its visitor."""
        host = urlsplit("//" + self.headers.get("Host", "")).hostname or ""
        return not is_loopback(self.server.host) or host == "localhost" or _is_address(host)

    def _summaries(self) -> list[dict[str, Any]]:
        self.server.refresh()
        return self.server.runs.summaries()

    def _run(self, query: dict[str, str]) -> tuple[str, str]:
        run = self.server.runs.by_name[query["name"]]
        axis = {"step": STEP, "seconds": SECONDS}[query.get("axis", "step")]
        bounds = {key: float(query[key]) for key in ("start", "end") if key in query}
        return "application/json", json.dumps(run.detail(axis, **bounds), allow_nan=False)

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode(errors="replace")
        self.send_response(code)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        headers |= {"Cache-Control": "no-store", "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can ask there."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def open_server(runs: Runs, host: str, port: int | None, usual: int) -> Server:
    """A server at this port, or at the usual one, or where that is taken at a free one. WatchError if it cannot be."""
    try:
        return Server(runs, host, usual if port is None else port)
    except OverflowError as error:
        raise WatchError(f"--port is {port}, expected 0 to 65535") from error
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return Server(runs, host, 0)
        raise WatchError(f"cannot listen at {host}, port {port or usual}: {error.strerror}") from error
