"""JSON over HTTP to a server that may be down, slow or wrong, by httpx2; anyio gives each request one deadline.

A timeout of httpx2 begins anew with each piece that arrives, so a server that talks without end would never meet it.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import anyio
import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mmrl.system.errors import ConfigError, RunError

MAX_ANSWER = 2**28  # bytes of one response; a longer one answers no request of mmrl
_CONNECTING = 10.0  # seconds that one try of a connection may take
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_SHOWN = 600  # characters of a server's own message in an error


class Lost(Exception):
    """A server that is not there, or no longer."""


class Unreachable(Lost, ConfigError):
    """A server to which no connection can be made."""


class BrokenOff(Lost, RunError):
    """A server that ended in the middle of an answer."""


class TimedOut(RunError):
    """A server that has not answered as a whole in time."""


class Refused(RunError):
    """A response of the server with a status other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class JsonServer:
    """A server at `url` (http://host:port), one connection per request.

    A connection that is refused is tried again `retries` times, after 0.5, 1, 2 ... seconds, 8 at most. Nothing else is
    tried again, since the server may already work on the request. The whole response must arrive within
    `timeout_seconds`.
    """

    url: str
    timeout_seconds: float
    retries: int
    section: str = "engine"  # of a config, which errors name
    page: str = "docs/engines.md"  # of the documents, on how the server is started
    schemes: tuple[str, ...] = ("http",)  # that the url may have
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # of every request; may hold a token
    # the loop and the client of many requests
    _shared: tuple[BlockingPortal, httpx2.AsyncClient] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            url = httpx2.URL(self.url)
            is_whole = url.scheme in self.schemes and bool(url.host) and url.port != 0
        except httpx2.InvalidURL:  # such as a port that is no number
            is_whole = False
        if not is_whole or url.query or url.fragment or url.userinfo:
            raise ValueError(f"url must look like http://host:port, got {self.url!r}")

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Gives the same server for many requests from many threads: one loop answers them all, which is cheaper."""
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(self._client()) as client:
            yield replace(self, _shared=(portal, client))

    def break_off(self) -> None:
        """Ends the requests that are under way in a block of `opened`; they raise an error. Outside of one: nothing."""
        if self._shared is not None:
            with suppress(RuntimeError):  # the block has just ended
                self._shared[0].call(self._shared[0].stop, True)

    @property
    def host(self) -> str:
        return httpx2.URL(self.url).host

    def get(self, path: str) -> Any:
        """Returns the server's response at a path. Raises RunError (`Refused` for a status other than 200)."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        """Returns the server's response to a JSON body: parsed JSON, a text, or None where it is empty."""
        return self.post_content(path, json.dumps(body).encode(), "application/json")

    def post_content(self, path: str, content: bytes, kind: str) -> Any:
        """Returns the server's response, as `post` does, to a body of this kind (its media type)."""
        return self._ask("POST", path, content, {"Content-Type": kind})

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] = _NO_HEADERS) -> Any:
        for attempt in range(self.retries + 1):
            try:
                # a loop of its own, also inside of a notebook's
                with nullcontext(self) if self._shared is not None else self.opened() as server:
                    status, kind, content = server._answered(method, path, body, headers)
                break
            except TimeoutError as error:
                raise TimedOut(
                    f"{self.url}{path} gave no whole answer within {self.timeout_seconds:g} seconds; see its log, or "
                    f"raise {self.section}.timeout_seconds"
                ) from error
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if attempt == self.retries:
                    tries = f"{attempt + 1} time{'s' if attempt else ''}"
                    raise Unreachable(
                        f"{self.section}.url: nothing answers at {self.url} (tried {tries}: {error}); start the "
                        f"server, as {self.page} says"
                    ) from error
            except httpx2.HTTPError as error:
                raise BrokenOff(
                    f"{self.url}{path} broke off while it answered: {type(error).__name__}: {error}; see its log"
                ) from error
            time.sleep(min(0.5 * 2**attempt, 8))
        if status != 200:
            raise Refused(status, f"{self.url}{path} answered HTTP {status}: {_own_words(content)}")
        if len(content) > MAX_ANSWER:
            raise RunError(f"{self.url}{path} answered with more than {MAX_ANSWER:,} bytes")
        return self._read(path, content, kind)

    def _client(self) -> httpx2.AsyncClient:
        limits = httpx2.Timeout(None, connect=min(self.timeout_seconds, _CONNECTING))
        pool = httpx2.Limits(max_connections=None, max_keepalive_connections=0)  # a kept one may end unnoticed
        return httpx2.AsyncClient(timeout=limits, limits=pool, trust_env=False, verify=self.url.startswith("https"))

    def _answered(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, str, bytes]:
        assert self._shared is not None, "it is opened"
        portal, client = self._shared
        return portal.call(self._answer, client, method, path, body, headers)

    async def _answer(
        self, client: httpx2.AsyncClient, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, str, bytes]:
        """Returns status, kind of content, and content, cut off where it is too long."""
        headers = {"Accept-Encoding": "identity", **self.headers, **headers}
        content, url = bytearray(), self.url.rstrip("/") + path
        with anyio.fail_after(self.timeout_seconds):
            async with client.stream(method, url, content=body, headers=headers) as response:
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > MAX_ANSWER:
                        break
        return response.status_code, response.headers.get("Content-Type", "").partition(";")[0].strip(), bytes(content)

    def _read(self, path: str, content: bytes, kind: str) -> Any:
        if not content:
            return None
        try:
            return json.loads(content) if kind == "application/json" else content.decode()
        except (ValueError, RecursionError) as error:
            raise RunError(f"{self.url}{path} answered with invalid JSON: {error}") from error


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
