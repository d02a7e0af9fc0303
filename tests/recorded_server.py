"""A server that replays recorded answers, and refuses each request that is not exactly the recorded one."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Response

logging.getLogger("werkzeug").setLevel(logging.WARNING)  # without a line on stderr for each request

LOST = object()  # an answer that never comes as a whole: the connection ends before


@dataclass(frozen=True)
class Exchange:
    """One request and what is answered. `body` None: a GET."""

    path: str
    body: Any
    answer: Any  # JSON; a text is sent as it is
    status: int = 200


class Recorded(HTTPServer):
    """A server on this machine; what it is asked must come in the order of the exchanges."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def add(self, *exchanges: Exchange) -> None:
        """Adds exchanges."""
        for one in exchanges:
            body = {} if one.body is None else {"json": one.body}
            path, _, query = one.path.partition("?")
            method = "POST" if body else "GET"
            handler = self.expect_ordered_request(path, method=method, query_string=query or None, **body)
            if one.answer is LOST:
                handler.respond_with_handler(lambda _: Response(iter([b"{"]), headers={"Content-Length": "9"}))
                continue
            respond = handler.respond_with_data if isinstance(one.answer, str) else handler.respond_with_json
            respond(one.answer, one.status)

    def thread_target(self) -> None:
        assert self.server is not None
        self.server.serve_forever(poll_interval=0.01)  # the library's own half a second would be waited for in the end


@contextmanager
def replaying(exchanges: Sequence[Exchange]) -> Iterator[Recorded]:
    """A server with these exchanges; all must have been asked for at the end."""
    with Recorded("127.0.0.1", 0, threaded=True) as recorded:
        recorded.add(*exchanges)
        yield recorded
        recorded.check()
        assert not recorded.ordered_handlers, f"never asked for: {recorded.format_matchers()}"
