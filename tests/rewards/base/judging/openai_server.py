"""A server that speaks OpenAI's chat protocol, well or badly, as a test says."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from werkzeug import Request, Response

from tests.recorded_server import Recorded

# a request's body to (status, what is sent); a text is sent as it is; None: the connection ends in its middle
Answering = Callable[[dict[str, Any]], tuple[int, Any]]


def chat(text: str, finish_reason: str = "stop", tokens: tuple[int, int] = (10, 5)) -> dict[str, Any]:
    """A whole response that says a text."""
    message = {"role": "assistant", "content": text}
    return _response({"index": 0, "message": message, "finish_reason": finish_reason}, tokens)


def first_words(log_probs: dict[str, float]) -> dict[str, Any]:
    """A whole response with the log-probs of some first tokens."""
    top = [{"token": token, "logprob": value, "bytes": None} for token, value in log_probs.items()]
    content = [{**top[0], "top_logprobs": top}]
    message = {"role": "assistant", "content": top[0]["token"]}
    return _response(
        {"index": 0, "message": message, "finish_reason": "length", "logprobs": {"content": content}}, (9, 1)
    )


def _response(choice: dict[str, Any], tokens: tuple[int, int]) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


class Served:
    """What such a server was asked, and how many requests it had at the same time at most."""

    def __init__(self, url: str, answer: Answering) -> None:
        self.url, self.most_at_once = url, 0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._answer, self._lock, self._active = answer, threading.Lock(), 0

    def respond(self, request: Request) -> Response:
        with self._lock:
            self._active += 1
            self.bodies.append(request.json)
            self.headers.append({key.lower(): value for key, value in request.headers.items()})
            self.most_at_once = max(self.most_at_once, self._active)
        try:
            status, said = self._answer(request.json)
        finally:
            with self._lock:
                self._active -= 1
        if said is None:
            return Response(iter([b"{"]), headers={"Content-Length": "9"})
        content = said if isinstance(said, bytes | str) else json.dumps(said)
        return Response(
            content, status, {"Retry-After": "0"} if status == 429 else None, content_type="application/json"
        )


@contextmanager
def serving(answer: Answering) -> Iterator[Served]:
    """Serves until the end of the block."""
    with Recorded("127.0.0.1", 0, threaded=True) as server:
        served = Served(f"{server.url}/v1", answer)
        server.expect_request(re.compile(".*")).respond_with_handler(served.respond)
        yield served


def slowly(seconds: float, response: Any) -> tuple[int, Any]:
    """A good answer that comes late."""
    time.sleep(seconds)
    return 200, response
