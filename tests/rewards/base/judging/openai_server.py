"""A server that speaks OpenAI's chat protocol, well or badly, as a test says."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# a request's body to (status, what is sent); a text is sent as it is; None: the connection ends without a word
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

    def __init__(self, url: str) -> None:
        self.url, self.most_at_once = url, 0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []


@contextmanager
def serving(answer: Answering) -> Iterator[Served]:
    """Serves until the end of the block."""
    lock, active = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                active[0] += 1
                served.bodies.append(body)
                served.headers.append({key.lower(): value for key, value in self.headers.items()})
                served.most_at_once = max(served.most_at_once, active[0])
            try:
                status, said = answer(body)
            finally:
                with lock:
                    active[0] -= 1
            self.close_connection = True
            if said is None:
                return
            content = (
                said if isinstance(said, bytes) else (said if isinstance(said, str) else json.dumps(said)).encode()
            )
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            try:
                self.wfile.write(content)
            except OSError:  # the client has gone
                return

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """A client that has gone is no error here."""

    server = Server(("127.0.0.1", 0), Handler)
    served = Served(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=lambda: server.serve_forever(0.01), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def slowly(seconds: float, response: Any) -> tuple[int, Any]:
    """A good answer that comes late."""
    time.sleep(seconds)
    return 200, response
