"""A small HTTP server for pages of this machine's user: on the loopback address alone, safe against other pages.

What it refuses, whoever uses it:
- a request whose Host is not this server's own address: another site's name that points here (DNS rebinding);
- a POST without the token, which stands in the page alone, and one from another origin;
- a request body that is larger than `LARGEST_BODY`.
Every answer has a Content-Security-Policy, and headers that keep other sites from showing or loading it.
"""

import hmac
import re
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from urllib.parse import urlsplit

from mmrl.system.errors import ConfigError

ADDRESS = "127.0.0.1"
TOKEN = "X-Mmrl-Token"  # the header that a POST needs
LARGEST_BODY = 2**16  # bytes of a POST
QUIET_SECONDS = 30  # after which a connection without a request is closed
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"  # of all but pages
FIXED = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True)
class Request:
    """A request that was let through."""

    method: str  # GET, also for a HEAD, or POST
    path: str  # without the query
    query: str
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """What a request gets."""

    content: bytes
    kind: str = "text/plain; charset=utf-8"  # of the content
    status: int = HTTPStatus.OK
    policy: str = NOTHING  # the Content-Security-Policy
    headers: Mapping[str, str] = field(default_factory=dict)  # further ones


Handle = Callable[[Request], Answer]


def new_token() -> str:
    """Returns a token for the POST requests of one page."""
    return secrets.token_urlsafe(24)


@contextmanager
def serving(handle: Handle, port: int = 0, *, token: str | None = None) -> Iterator[str]:
    """Answers requests in threads as long as the block lasts; gives the address of the page.

    Args:
        handle: called with each request that is let through, by several threads at once. port: 0 is a free one.
        token: what a POST has to bring; None: every POST is refused.
    Raises:
        ConfigError: the port is in use, or not this user's to take.
    """
    try:
        server = _Server((ADDRESS, port), _Handler)
    except OSError as error:
        raise ConfigError(f"cannot listen at {ADDRESS}:{port}: {error.strerror or error}; --port 0 is free") from error
    server.handle, server.token = handle, token
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://{ADDRESS}:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Gives an event that SIGINT and SIGTERM set inside of the block."""
    is_over = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        is_over.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield is_over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a browser may leave a connection open for ever
    handle: Handle
    token: str | None

    @property
    def hosts(self) -> frozenset[str]:
        """The Host headers that mean this server."""
        return frozenset(f"{name}:{self.server_port}" for name in (ADDRESS, "localhost"))


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "mmrl", ""
    protocol_version = "HTTP/1.1"
    timeout = QUIET_SECONDS

    def do_GET(self) -> None:
        if (refusal := self._refusal()) is not None:
            return self._send(refusal)
        parts = urlsplit(self.path)
        if parts.path == "/favicon.ico":  # browsers want one, and complain of a 404
            return self._send(Answer(b"", "image/x-icon"))
        self._send(self.server.handle(Request("GET", parts.path, parts.query)))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > LARGEST_BODY:
            self.close_connection = True  # what follows is not read
            return self._send(_refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LARGEST_BODY} bytes are read"))
        body = self.rfile.read(int(length))
        if (refusal := self._refusal() or self._refusal_of_post()) is not None:
            return self._send(refusal)
        parts = urlsplit(self.path)
        self._send(self.server.handle(Request("POST", parts.path, parts.query, body)))

    def _refusal(self) -> Answer | None:
        """Returns the answer to a request that is not for this server; None where it is."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            return _refused(HTTPStatus.FORBIDDEN, "this server is reached by its own address alone")
        return None

    def _refusal_of_post(self) -> Answer | None:
        origin, given = self.headers.get("Origin"), self.headers.get(TOKEN, "")
        if origin is not None and origin.lower() not in {f"http://{host}" for host in self.server.hosts}:
            return _refused(HTTPStatus.FORBIDDEN, "another page sent this")
        if self.server.token is None or not hmac.compare_digest(given.encode(), self.server.token.encode()):
            return _refused(HTTPStatus.FORBIDDEN, "the token of the page is missing or an old one; load the page again")
        return None

    def _send(self, answer: Answer) -> None:
        content, status, headers = answer.content, answer.status, dict(answer.headers)
        asked = _RANGE.fullmatch(self.headers.get("Range", "")) if status == HTTPStatus.OK else None
        if asked is not None and (part := _part(asked[1], asked[2], len(content))) is not None:  # browsers seek videos
            headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{len(content)}"
            content, status = content[part.start : part.stop], HTTPStatus.PARTIAL_CONTENT
        self.send_response(status)
        for name, value in {
            "Content-Type": answer.kind,
            "Content-Length": str(len(content)),
            "Accept-Ranges": "bytes",
            "Content-Security-Policy": answer.policy,
            **FIXED,
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):  # the browser went away
            self.close_connection = True

    def log_message(self, format: str, *values: object) -> None:
        """Writes nothing: requests are no news to who opened the page."""


def _refused(status: HTTPStatus, why: str) -> Answer:
    return Answer(f"{why}\n".encode(), status=status)


def _part(first: str, last: str, size: int) -> range | None:
    """Returns the bytes of a range "first-last" of a request; None where it means none, and all are sent."""
    if not first and not last:
        return None
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    return range(start, stop) if start < stop else None
