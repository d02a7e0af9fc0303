"""A server that replays recorded answers, and refuses each request that is not exactly the recorded one."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Exchange:
    """One request and what is answered. `body` None: a GET."""

    path: str
    body: Any
    answer: Any  # JSON; a text is sent as it is
    status: int = 200


@dataclass
class Recorded:
    """Exchanges in the order in which they are asked for, and what was asked instead."""

    exchanges: list[Exchange]
    surprises: list[str] = field(default_factory=list)
    url: str = ""

    def next(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if not self.exchanges:
            self.surprises.append(f"{method} {path} {json.dumps(body)}")
            return 500, {"error": {"message": "nothing is recorded for this"}}
        wanted = self.exchanges.pop(0)
        if (wanted.path, wanted.body) != (path, body):
            self.surprises.append(f"got {path} {json.dumps(body)}, recorded is {wanted.path} {json.dumps(wanted.body)}")
            return 500, {"error": {"message": "another request is recorded"}}
        return wanted.status, wanted.answer


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_GET(self) -> None:
        self._respond("GET", None)

    def do_POST(self) -> None:
        self._respond("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _respond(self, method: str, body: Any) -> None:
        status, answer = self.server.recorded.next(method, self.path, body)
        is_text = isinstance(answer, str)
        content = answer.encode() if is_text else json.dumps(answer).encode()
        self.send_response(status)
        if not is_text:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing on stderr."""


class _Server(ThreadingHTTPServer):
    recorded: Recorded


@contextmanager
def replaying(exchanges: Sequence[Exchange]) -> Iterator[Recorded]:
    """A server on this machine with these exchanges; all must have been asked for at the end."""
    recorded = Recorded(list(exchanges))
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.recorded = recorded
        recorded.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield recorded
        finally:
            server.shutdown()
            thread.join()
    assert not recorded.surprises, recorded.surprises
    assert not recorded.exchanges, f"never asked for: {recorded.exchanges[0].path}"
