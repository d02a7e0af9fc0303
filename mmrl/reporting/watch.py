"""The server of a run's live page: on this machine alone, read only, and of the run's own samples alone."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from mmrl.reporting.charts import library
from mmrl.reporting.document import document, policy
from mmrl.reporting.live_run import KINDS, LiveRun
from mmrl.reporting.theme import SCRIPT, STYLE
from mmrl.reporting.watch_script import WATCH_SCRIPT, WATCH_STYLE
from mmrl.system.errors import ConfigError

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost", "[::1]")  # of this machine, in the Host header: a page of another name is refused
MEDIA = re.compile(r"/media/((?:samples|rollouts)/(?:\d+|questions)/[\w-]+\.(png|mp4))", re.ASCII)
TYPES = {"png": "image/png", "mp4": "video/mp4"}
ALLOWED = "img-src 'self'; media-src 'self'; connect-src 'self'; frame-ancestors 'none'"
PATIENCE = 30.0  # seconds for one request


@contextmanager
def serving(run: Path, port: int) -> Iterator[str]:
    """Serves the page of a run inside of the block; gives its address. Port 0 is a free one.

    Raises ConfigError for a port that is in use or may not be opened.
    """
    live = LiveRun(run.absolute())

    class Handler(_Handler):
        page = live

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise ConfigError(f"--port {port} cannot be used: {error.strerror or error}; give another, or 0") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="live page", daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; all other methods are refused."""

    page: ClassVar[LiveRun]
    timeout = PATIENCE
    server_version, sys_version = "mmrl", ""

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").lower()
        if re.sub(r":\d+$", "", host) not in NAMES:
            return self._answer(HTTPStatus.FORBIDDEN, b"this page is for the browser of this machine alone\n")
        address = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        try:
            self._route(unquote(address.path), query)
        except ConfigError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error).encode(errors="replace"))

    do_HEAD = do_GET

    def _route(self, path: str, query: dict[str, str]) -> None:
        if path == "/":
            style, script = _texts()
            shell = '<main><div id="notice"></div><div id="parts"></div></main>'
            text = document(self.page.run.name, shell, style, script, ALLOWED.rpartition(";")[0])
            return self._answer(HTTPStatus.OK, text.encode(), "text/html; charset=utf-8")
        if path == "/state":
            version, parts = self.page.look()
            if query.get("have") == version:
                return self._answer(HTTPStatus.NO_CONTENT, b"")
            content = json.dumps({"version": version, "parts": list(parts.items())}).encode()
            return self._answer(HTTPStatus.OK, content, "application/json")
        if path.removeprefix("/") in KINDS:
            text = self.page.samples(path.removeprefix("/"), query.get("iteration", ""))
            return self._answer(HTTPStatus.OK, text.encode(), "text/html; charset=utf-8")
        if path == "/favicon.ico":  # browsers want one
            return self._answer(HTTPStatus.NO_CONTENT, b"")
        if match := MEDIA.fullmatch(path):
            return self._file(self.page.run / match[1], TYPES[match[2]])
        self._answer(HTTPStatus.NOT_FOUND, b"there is no such page\n")

    def _file(self, file: Path, kind: str) -> None:
        """Sends a file of the run, or the part of it that a player wants; a link that leads out of the run is none."""
        is_inside = file.resolve().is_relative_to(self.page.run.resolve())
        if not is_inside or not file.is_file():
            return self._answer(HTTPStatus.NOT_FOUND, b"there is no such file\n")
        content = file.read_bytes()
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if part is None or int(part[1]) >= len(content):
            return self._answer(HTTPStatus.OK, content, kind, {"Accept-Ranges": "bytes"})
        first, last = int(part[1]), min(int(part[2] or len(content) - 1), len(content) - 1)
        about = {"Accept-Ranges": "bytes", "Content-Range": f"bytes {first}-{last}/{len(content)}"}
        self._answer(HTTPStatus.PARTIAL_CONTENT, content[first : last + 1], kind, about)

    def _answer(
        self,
        status: HTTPStatus,
        content: bytes,
        kind: str = "text/plain; charset=utf-8",
        more: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": policy(*_texts(), ALLOWED),
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and status != HTTPStatus.NO_CONTENT:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal is not for each request."""


def _texts() -> tuple[str, str]:
    """Returns the style and the script of the live page."""
    style, script = library()
    return style + STYLE + WATCH_STYLE, script + SCRIPT + WATCH_SCRIPT
