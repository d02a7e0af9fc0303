"""Questions to a server over HTTP: one that is down or silent, what it may say, and its address."""

import socket

import pytest

from mmrl.contracts import ConfigError, RunError
from mmrl.modalities._http import JsonServer
from mmrl.modalities._vllm import Vllm
from tests.recorded_server import Exchange, replaying


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_server_that_is_down_is_tried_again_and_then_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("mmrl.modalities._http.time.sleep", waits.append)
    with pytest.raises(
        ConfigError, match=r"nothing answers at http://127.0.0.1:\d+ \(tried 6 times: .*start the server"
    ):
        JsonServer(f"http://127.0.0.1:{free_port()}", 5, retries=5).get("/v1/models")
    assert waits == [0.5, 1, 2, 4, 8]


@pytest.mark.timeout(60)
def test_a_server_that_says_nothing_is_an_error() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = JsonServer(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.05, retries=3)
        with pytest.raises(RunError, match=r"said nothing for 0\.05 seconds"):
            server.post("/v1/models", {})


def test_a_text_is_a_text_and_json_is_read() -> None:
    with replaying([Exchange("/x", None, "not json"), Exchange("/y", {"a": 1}, {"b": [2]})]) as recorded:
        server = JsonServer(recorded.url, 5, 0)
        assert server.get("/x") == "not json" and server.post("/y", {"a": 1}) == {"b": [2]}


@pytest.mark.parametrize(
    "url", ["localhost:8000", "https://here", "http://", "http://a:b", "http://me@here", "http://a?b=c"]
)
def test_an_address_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url must look like http://host:port"):
        Vllm(name="vllm", url=url)
