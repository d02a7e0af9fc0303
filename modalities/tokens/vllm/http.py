"""JSON over HTTP to a server that may be down, slow or wrong: one deadline for each request.

Not by httpx2: it starts its time limit anew with each piece that arrives, also inside of headers and of `100 Continue`
without end, and gives no place between two pieces for a deadline of ours.
"""

import http.client
import json
import math
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mmrl.core.contracts import ConfigError, RunError

MAX_ANSWER = 2**28  # bytes of one response; a longer one answers no request of mmrl
_CONNECTING = 10.0  # seconds that one try of a connection may take
_SHOWN = 600  # characters of a server's own message in an error


class Refused(RunError):
    """A response of the server with a status other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class JsonServer:
    """A server at `url` (http://host:port), one connection per request.

    A connection that is refused or that breaks before anything was sent is tried again `retries` times, after 0.5, 1,
    2 ... seconds, 8 at most. Nothing else is tried again, since the server may already work on the request. Once the
    connection stands, the whole response must arrive within `timeout_seconds`.
    """

    url: str
    timeout_seconds: float
    retries: int

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        try:
            is_whole = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            is_whole = False
        if not is_whole or parts.query or parts.fragment or parts.username:
            raise ValueError(f"url must look like http://host:port, got {self.url!r}")

    def get(self, path: str) -> Any:
        """Returns the server's response at a path. Raises RunError (`Refused` for a status other than 200)."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        """Returns the server's response to a JSON body: parsed JSON, a text, or None where it is empty."""
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        connection = self._connected()
        try:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, urlsplit(self.url).path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
            content = answer.read(MAX_ANSWER + 1)
        except TimeoutError as error:
            raise RunError(
                f"{self.url}{path} gave no whole answer within {self.timeout_seconds:g} seconds; see its log, or raise "
                "engine.timeout_seconds"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise RunError(
                f"{self.url}{path} broke off while it answered: {type(error).__name__}: {error}; see its log"
            ) from error
        finally:
            connection.close()
        if answer.status != 200:
            raise Refused(answer.status, f"{self.url}{path} answered HTTP {answer.status}: {_own_words(content)}")
        if len(content) > MAX_ANSWER:
            raise RunError(f"{self.url}{path} answered with more than {MAX_ANSWER:,} bytes")
        return self._read(path, content, answer.headers.get_content_type())

    def _connected(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None, "checked when it was made"
        for attempt in range(self.retries + 1):
            connection = _Connection(parts.hostname, parts.port, self.timeout_seconds)
            try:
                connection.connect()
                return connection
            except OSError as error:
                connection.close()
                if attempt == self.retries:
                    tries = f"{attempt + 1} time{'s' if attempt else ''}"
                    raise ConfigError(
                        f"engine.url: nothing answers at {self.url} (tried {tries}: {error}); start the server, as "
                        "docs/engines.md says"
                    ) from error
            time.sleep(min(0.5 * 2**attempt, 8))
        raise AssertionError("the last attempt returns or raises")

    def _read(self, path: str, content: bytes, kind: str) -> Any:
        if not content:
            return None
        try:
            return json.loads(content) if kind == "application/json" else content.decode()
        except (ValueError, RecursionError) as error:
            raise RunError(f"{self.url}{path} answered with invalid JSON: {error}") from error


class _Socket(socket.socket):
    """A socket with one deadline for all sends and receives; a timeout of Python's is for each of them anew."""

    deadline = math.inf  # of time.monotonic()

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._limit()
        return super().recv_into(*args, **kwargs)

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self._limit()
        super().sendall(*args, **kwargs)

    def _limit(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline is over")
        self.settimeout(left)


class _Connection(http.client.HTTPConnection):
    """A connection with a deadline `seconds` after it was made."""

    def __init__(self, host: str, port: int | None, seconds: float) -> None:
        super().__init__(host, port, timeout=min(seconds, _CONNECTING))
        self._seconds = seconds

    def connect(self) -> None:
        super().connect()
        made = _Socket(fileno=self.sock.detach())
        made.deadline = time.monotonic() + self._seconds
        self.sock = made


def _own_words(content: bytes) -> str:
    """Returns the message of a server's refusal: of an error in the form of OpenAI's, or FastAPI's `detail`."""
    text = content[: 2**16].decode(errors="replace")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = text
    if isinstance(said, dict):
        error = said.get("error", said.get("detail", said))
        said = error.get("message", error) if isinstance(error, dict) else error
    words = str(said)
    return words if len(words) <= _SHOWN else words[:_SHOWN] + "..."
