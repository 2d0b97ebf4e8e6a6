"""A sweep as a page in a browser on this machine: its table, its curves and its report, read-only.

Only to this machine (127.0.0.1), by names that are listed here, and only to pages of its own: a request that names another host
comes from a name that somebody has pointed here (DNS rebinding), and is refused.
"""

import contextlib
import getpass
import gzip
import json
import platform
import secrets
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lockstep.errors import ConfigError, config_error
from lockstep.extras.report.curves import Curves, drawn
from lockstep.extras.report.document import FOLDER, STYLE
from lockstep.extras.watch.watch import note_of
from lockstep.sweeps.live_table import clause, short, span, words_of
from lockstep.sweeps.states import FINISHED
from lockstep.sweeps.view import JobView, SweepView, Watched

HOST = "127.0.0.1"
_OURS = (HOST, "localhost", "::1")
_LOCKED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:"
_FRESH = 1.0  # seconds for which one look serves all who ask


class Answer(NamedTuple):
    """`policy`: what the browser lets the content do, by Content-Security-Policy."""

    kind: str
    content: str
    policy: str = _LOCKED


class LivePage(socketserver.ThreadingTCPServer):
    """Serves until it is shut down."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        """Raises ConfigError where the port is taken; 0 is any that is free."""
        self.watched, self._curves, self._nonce = watched, Curves(), secrets.token_urlsafe()
        self._alone = threading.Lock()
        self._seen: tuple[float, SweepView] | None = None
        self.pages: dict[str, Callable[[], Answer | None]] = {
            "/": self._page,
            "/table.json": lambda: self._json(self._table),
            "/curves.json": lambda: self._json(self._drawn),
            "/report.html": self._report,
        }
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            words = f"{getattr(error, 'strerror', None) or error}; accepted is another port, or 0 for any that is free"
            raise config_error("--port", port, words) from error

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is nobody's matter."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def _page(self) -> Answer:
        nonce = f"'nonce-{self._nonce}'"
        policy = f"{_LOCKED}; connect-src 'self'; script-src {nonce}; style-src {nonce}"
        return Answer("text/html", self._template.replace("NONCE", self._nonce), policy)

    @cached_property
    def _template(self) -> str:
        return Path(__file__).with_suffix(".html").read_text().replace("/* STYLE */", STYLE)

    def _report(self) -> Answer | None:
        try:
            content = (self.watched.directory / FOLDER / "report.html").read_text()
        except (OSError, ValueError):
            return None
        return Answer("text/html", content, f"{_LOCKED}; style-src 'unsafe-inline'")

    def _json(self, content: Callable[[SweepView], dict[str, Any]]) -> Answer:
        with self._alone:
            try:
                told = content(self._look())
            except ConfigError as error:
                told = {"error": str(error)}
        return Answer("application/json", json.dumps(told, allow_nan=False))

    def _look(self) -> SweepView:
        if self._seen is None or time.monotonic() - self._seen[0] > _FRESH:
            self._seen = (time.monotonic(), self.watched.look())
        return self._seen[1]

    def _table(self, found: SweepView) -> dict[str, Any]:
        names = short(found.jobs)
        return {
            "name": found.directory.resolve().name,
            "words": words_of(found),
            "note": note_of(found),
            "has_ended": found.has_ended,
            "counts": found.counts,
            "best": None if found.best is None else found.best.key,
            "report": (found.directory / FOLDER / "report.html").is_file(),
            "jobs": [_job(job, names[job.key]) for job in found.jobs],
        }

    def _drawn(self, found: SweepView) -> dict[str, Any]:
        begun = sum(job.tries > 0 for job in found.jobs)
        shown = list(drawn(found.jobs))
        charts: dict[str, list[dict[str, Any]]] = {"training loss": []}
        for job in shown:
            curves = self._curves.of(found.directory / job.directory, job.metric_name, is_over=job.status == FINISHED)
            for name, points in zip(("training loss", job.metric_name), curves, strict=True):
                lines = charts.setdefault(name, [])
                lines += [{"key": job.key, "number": job.number, "points": points}] if points else []
        told = [{"name": name, "lines": lines} for name, lines in charts.items()]
        return {"charts": told, "shown": len(shown), "begun": begun}


def _job(job: JobView, name: str) -> dict[str, Any]:
    why = job.reason or (f"earlier: {job.earlier}" if job.earlier else "")
    words = {"overrides": name, "all_overrides": " ".join(job.overrides), "reason": clause(why), "whole_reason": why}
    return asdict(job) | words | {"time": span(job.seconds), "remains": span(job.left)}


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version, timeout = "Lockstep", "", 30

    def do_GET(self) -> None:
        try:
            host, path = urlsplit(f"//{self.headers.get('Host', '')}").hostname, urlsplit(self.path).path
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        if host not in _OURS:
            self.send_error(HTTPStatus.FORBIDDEN, "This page is for 127.0.0.1 and localhost")
            return
        assert isinstance(self.server, LivePage)
        page = self.server.pages.get(path)
        answer = page() if page is not None else None
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content = answer.content.encode()
        self.send_response(HTTPStatus.OK)
        if "gzip" in self.headers.get("Accept-Encoding", ""):  # thousands of jobs, through a slow tunnel
            content = gzip.compress(content, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", answer.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """A line for each request would be many."""


def serve(watched: Watched, port: int) -> None:
    """Until Ctrl-C."""
    with LivePage(watched, port) as page:
        number = page.server_address[1]
        print(f"{page.url}  (Ctrl-C ends it)", flush=True)
        print(f"from elsewhere first:  ssh -L {number}:{HOST}:{number} {getpass.getuser()}@{platform.node()}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            page.serve_forever()
