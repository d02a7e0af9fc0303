"""Servers of Werkzeug in threads of this process, on a free port of the loopback: the servers of dry runs."""

import atexit
import json
import threading
from collections.abc import Callable
from typing import Any

from werkzeug import Request, Response
from werkzeug.serving import WSGIRequestHandler, make_server

_GLANCE = 0.2  # seconds between two looks at whether a server is still needed


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Writes nothing to stderr."""

    def connection_dropped(self, error: BaseException, environ: Any = None) -> None:
        """Ends the connection of a request that is not answered, for which its client would wait."""
        self.close_connection = True


def in_json(value: Any, status: int = 200) -> Response:
    """Returns a response with a value as JSON; None is an empty body, and a text is sent as it is."""
    kind = "text/plain" if isinstance(value, str) else "application/json"
    content = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return Response(content, status, content_type=kind)


def serve(answer: Callable[[Request], Response], is_needed: Callable[[], bool] = lambda: True) -> str:
    """Answers requests, each in a thread of its own, for as long as it is needed; returns the URL.

    An HTTPException of Werkzeug is a response too.
    """
    server = make_server("127.0.0.1", 0, Request.application(answer), threaded=True, request_handler=_Quiet)
    server.timeout = _GLANCE
    is_over = threading.Event()

    def run() -> None:
        with server:
            while is_needed() and not is_over.is_set():
                server.handle_request()

    def stop() -> None:
        is_over.set()
        thread.join()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    atexit.register(stop)  # a thread that is still at work when Python ends is torn down in the middle of it
    return f"http://127.0.0.1:{server.port}"
