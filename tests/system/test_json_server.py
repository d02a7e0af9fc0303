"""Questions to a server over HTTP: one that is down or silent, what it may say, and its address."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from mmrl.core.contracts import ConfigError, RunError
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.system.json_server import JsonServer
from tests.parameters import in_one_test
from tests.recorded_server import Exchange, replaying


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_server_that_is_down_is_tried_again_and_then_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("mmrl.system.json_server.time.sleep", waits.append)
    with pytest.raises(
        ConfigError, match=r"nothing answers at http://127.0.0.1:\d+ \(tried 6 times: .*start the server"
    ):
        JsonServer(f"http://127.0.0.1:{free_port()}", 5, retries=5).get("/v1/models")
    assert waits == [0.5, 1, 2, 4, 8]


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_server_that_says_nothing_is_an_error() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = JsonServer(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.05, retries=3)
        for body in ({}, {"fills": "every buffer" * 2**20}):
            with pytest.raises(RunError, match=r"/v1/models gave no whole answer within 0\.05 seconds"):
                server.post("/v1/models", body)


TALK = {
    "body": (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "status": (b"", b"H"),
    "header": (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@contextmanager
def talking(first: bytes, again: bytes, pause: float) -> Iterator[str]:
    """A server that says `first` to a request, and then `again` until nobody listens."""

    def talk() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(2**16)
            connection.sendall(first)
            while True:
                connection.sendall(again)
                time.sleep(pause)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=talk)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", TALK)
def test_a_server_that_talks_without_end_is_an_error(kind: str) -> None:
    said = r"http://127.0.0.1:\d+/v1/models gave no whole answer within 0\.1 seconds"
    with talking(*TALK[kind], pause=0.01) as url, pytest.raises(RunError, match=said):
        JsonServer(url, 0.1, 0).get("/v1/models")


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_server_that_talks_without_end_or_pause_is_an_error() -> None:
    said = r"gave no whole answer within 0\.1 seconds"
    with talking(*TALK["continue"], pause=0) as url, pytest.raises(RunError, match=said):
        JsonServer(url, 0.1, 0).get("/v1/models")


def test_a_text_is_a_text_and_json_is_read() -> None:
    with replaying([Exchange("/x", None, "not json"), Exchange("/y", {"a": 1}, {"b": [2]})]) as recorded:
        server = JsonServer(recorded.url, 5, 0)
        assert server.get("/x") == "not json" and server.post("/y", {"a": 1}) == {"b": [2]}


@in_one_test("url", ["localhost:8000", "https://here", "http://", "http://a:b", "http://me@here", "http://a?b=c"])
def test_an_address_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url must look like http://host:port"):
        Vllm(name="vllm", url=url)
