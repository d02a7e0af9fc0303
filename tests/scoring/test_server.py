"""The server of rewards over real sockets in this process: answers, refusals, limits, token, health, metrics."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import httpx2
import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.rewards.text.exact_answer import ExactAnswer
from mmrl.scoring.server import RewardServer, ServerSettings, serving

TOKEN = "a-token-of-sixteen-letters"
pytestmark = pytest.mark.timeout(60)


@dataclass
class Slow:
    """Answers when it may."""

    source: ClassVar[str] = "here"
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    granularity: ClassVar[Any] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = 2
    gate: threading.Event = field(default_factory=threading.Event)
    calls: list[int] = field(default_factory=list)

    def score(self, batch: RewardBatch) -> Tensor:
        self.calls.append(len(batch))
        self.gate.wait(20)
        return torch.ones(len(batch))


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    with ExitStack() as stack:

        def start(token: str | None = None, slow: Slow | None = None, **settings: Any) -> str:
            rewards: dict[str, Any] = {"exact": ExactAnswer(), "slow": slow or Slow()}
            server = RewardServer(rewards, ServerSettings(**settings), token)
            return stack.enter_context(serving(server, "127.0.0.1", 0))

        yield start


def ask(url: str, *items: dict[str, Any], name: str = "exact", **more: Any) -> httpx2.Response:
    body = json.dumps({"items": list(items)} | more.pop("request", {}))
    headers = {"Content-Type": "application/json"} | more
    return httpx2.post(f"{url}/v1/rewards/{name}/scores", content=body.encode(), headers=headers, timeout=30)


def item(name: str | int, text: str = "<answer>4</answer>") -> dict[str, Any]:
    return {"id": name, "prompt": {"text": "2 + 2", "target": {"answer": "4"}}, "text": text}


@pytest.mark.slow
def test_items_are_scored_and_a_broken_one_is_null_with_its_reason(serve: Callable[..., str]) -> None:
    response = ask(serve(), item("a"), item("b", "<answer>5</answer>"), {"id": 3}, item("d"))
    assert response.status_code == 200
    scores = response.json()["scores"]
    assert [(one["id"], one["score"]) for one in scores] == [("a", 1.0), ("b", 0.0), (3, None), ("d", 1.0)]
    assert scores[2]["reason"] == "the item cannot be read: prompt: Field required" and scores[0]["reason"] is None


def test_no_item_is_no_score(serve: Callable[..., str]) -> None:
    assert ask(serve()).json() == {"reward": "exact", "scores": []}


@pytest.mark.slow
def test_what_is_refused_says_why(serve: Callable[..., str]) -> None:
    url = serve(max_body=2048)
    refusals = [
        (ask(url, name="exat"), 404, "no reward 'exat' is served here (did you mean 'exact'?); served are exact, slow"),
        (ask(url, item("a"), item("a")), 422, "each item needs an id of its own, got 'a' twice"),
        (ask(url, **{"Content-Type": "application/python-pickle"}), 415, "got 'application/python-pickle'"),
        (ask(url, **{"Content-Type": "application/x-safetensors"}), 422, "must be a safetensors file"),
        (ask(url, item("a", "x" * 3000)), 413, "a body may have 2,048 bytes, got more"),
        (ask(url, item("a", "x" * 300_000)), 413, "a body may have 2,048 bytes, got more"),
        (ask(url, request={"timeout_seconds": -1}), 422, "timeout_seconds: Input should be greater than 0"),
    ]
    for response, status, words in refusals:
        assert response.status_code == status and words in response.json()["detail"]
    assert ask(url, item("a")).json()["scores"][0]["score"] == 1.0


@pytest.mark.slow
def test_a_token_is_asked_of_all_but_health(serve: Callable[..., str]) -> None:
    url = serve(TOKEN)
    for wrong in (None, "Bearer another", TOKEN, "Bearer é"):
        headers: Any = {} if wrong is None else {"Authorization": wrong.encode("latin-1")}
        response = ask(url, item("a"), **headers)
        assert response.status_code == 401 and "needs its token" in response.json()["detail"]
        for path in ("/metrics", "/v1/rewards"):
            assert httpx2.get(url + path, headers=headers).status_code == 401
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert ask(url, item("a"), **right).json()["scores"][0]["score"] == 1.0
    assert httpx2.get(f"{url}/v1/rewards", headers=right).status_code == 200
    assert httpx2.get(f"{url}/health").json() == {"status": "ok"}


def test_it_says_what_it_serves(serve: Callable[..., str]) -> None:
    served = httpx2.get(f"{serve()}/v1/rewards").json()
    exact, slow = served["rewards"]
    assert exact["needs"] == ["target.answer", "texts"] and exact["range"] == [0.0, 1.0]
    assert slow["range"] == [0.0, None] and slow["granularity"] == "sample" and slow["batch_size"] == 2
    assert served["limits"]["items"] == 4096


@pytest.mark.slow
def test_a_request_has_a_deadline_and_what_waits_is_dropped(serve: Callable[..., str]) -> None:
    slow = Slow()
    url = serve(slow=slow)
    items = [item(number) for number in range(6)]
    response = ask(url, *items, name="slow", request={"timeout_seconds": 0.2})
    assert response.status_code == 504 and "'slow' has not answered within 0.2 seconds" in response.json()["detail"]
    slow.gate.set()
    assert ask(url, item("a"), name="slow").json()["scores"][0]["score"] == 1.0
    assert slow.calls == [2, 1], "the call under way ended, the others were dropped"


@pytest.mark.slow
def test_too_many_waiting_samples_are_refused_for_a_while(serve: Callable[..., str]) -> None:
    slow = Slow()
    url = serve(slow=slow, max_waiting=3)
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(url, *map(item, range(3)), name="slow").status_code))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 20
    while 503 not in answers and time.monotonic() < until:
        time.sleep(0.01)
    slow.gate.set()
    for thread in threads:
        thread.join()
    assert 503 in answers and 200 in answers


@pytest.mark.slow
def test_health_fails_where_a_reward_hangs(serve: Callable[..., str]) -> None:
    slow = Slow()
    url = serve(slow=slow, call_seconds=0.01)
    assert ask(url, item("a"), name="slow", request={"timeout_seconds": 0.3}).status_code == 504
    response = httpx2.get(f"{url}/health")
    assert response.status_code == 503 and "reward 'slow'" in response.json()["status"]
    slow.gate.set()


@pytest.mark.slow
def test_metrics_count_requests_samples_and_calls(serve: Callable[..., str]) -> None:
    url = serve()
    ask(url, item("a"), item("b"), {"id": 3})
    ask(url, name="exat")
    page = httpx2.get(f"{url}/metrics").text
    for line in (
        'mmrl_requests_total{reward="exact",status="200"} 1.0',
        'mmrl_requests_total{reward="",status="404"} 1.0',
        'mmrl_items_total{outcome="judged",reward="exact"} 2.0',
        'mmrl_items_total{outcome="not_judged",reward="exact"} 1.0',
        'mmrl_call_samples_sum{reward="exact"} 2.0',
        'mmrl_waiting_samples{reward="exact"} 0.0',
    ):
        assert line in page.splitlines()


@pytest.mark.slow
def test_a_request_under_way_is_answered_when_the_server_ends() -> None:
    slow, answers = Slow(), []
    with serving(RewardServer({"slow": slow}), "127.0.0.1", 0) as url:
        thread = threading.Thread(target=lambda: answers.append(ask(url, item("a"), name="slow").json()))
        thread.start()
        while not slow.calls:
            time.sleep(0.01)
        threading.Timer(0.2, slow.gate.set).start()
    thread.join()
    assert answers[0]["scores"][0]["score"] == 1.0
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/health")


@pytest.mark.slow
def test_a_client_that_leaves_in_the_middle_disturbs_nobody(
    serve: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    url = serve()
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
        head = "POST /v1/rewards/exact/scores HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
    until = time.monotonic() + 20
    while 'status="400"' not in httpx2.get(f"{url}/metrics").text and time.monotonic() < until:
        time.sleep(0.01)
    assert ask(url, item("a")).json()["scores"][0]["score"] == 1.0
    page = httpx2.get(f"{url}/metrics").text
    assert 'mmrl_requests_total{reward="exact",status="400"} 1.0' in page.splitlines() and not caplog.records


def test_a_port_in_use_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = serving(RewardServer({"exact": ExactAnswer()}), "127.0.0.1", port)
        with pytest.raises(ConfigError, match=f"cannot listen at --host 127.0.0.1 --port {port}"), server:
            pass
