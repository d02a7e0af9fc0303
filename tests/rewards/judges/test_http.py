"""The client of reward servers: scores of real servers, silent ones, wrong ones, and those of other trainers."""

import base64
import io
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from werkzeug import Request, Response

from mmrl.core.contracts import ConfigError, Placement, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.reward_batches import select
from mmrl.rewards.base.reward_protocols import Unjudged
from mmrl.rewards.judges.http import Http
from mmrl.rewards.text.exact_answer import ExactAnswer
from mmrl.rewards.wrappers.running_normalised import RunningNormalised
from mmrl.scoring.calls import call_reward
from mmrl.scoring.server import RewardServer, ServerSettings, serving
from tests.parameters import in_one_test
from tests.recorded_server import Recorded
from tests.rewards.example import Example, answers, make_batch
from tests.rewards.text.test_exact_answer import EXAMPLE as EXACT

CPU = Placement(torch.device("cpu"), torch.float32)
NEEDS = frozenset({"texts", "target.answer"})
TOKEN = "a-token-of-sixteen-letters"
# The server of the dry run serves the twin of the shipped reward of this name.
EXAMPLE = Example(
    random_batch=EXACT.random_batch,
    best=EXACT.best,
    settings={
        "url": "http://127.0.0.1:9",
        "reward": "exact_answer",
        "needs": NEEDS,
        "range": (0.0, 1.0),
        "batch_size": None,
    },
)
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    with ExitStack() as stack:

        def start(reward: Any = None, token: str | None = None, port: int = 0, **settings: Any) -> str:
            server = RewardServer({"exact": reward or ExactAnswer()}, ServerSettings(**settings), token)
            return stack.enter_context(serving(server, "127.0.0.1", port))

        yield start


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with Recorded() as server:
        yield server


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a client would have waited; a clock in place of them."""
    found: list[float] = []
    monkeypatch.setattr("mmrl.rewards.judges.http.time.sleep", found.append)
    monkeypatch.setattr("mmrl.rewards.judges.http.time.monotonic", lambda: sum(found))
    return found


def client(url: Any, **settings: Any) -> Any:  # whose range and granularity are settings
    return Http(**{"url": url, "reward": "exact", "needs": NEEDS, "timeout_seconds": 20.0} | settings)


@pytest.mark.slow
def test_the_scores_are_those_of_the_reward_in_the_process(serve: Callable[..., str]) -> None:
    reward = client(serve(), batch_size=3, concurrency=4)
    reward.prepare(CPU)
    for seed in range(3):
        batch = EXACT.random_batch(random.Random(seed))
        assert torch.equal(call_reward("r", reward, batch).values, ExactAnswer().score(batch))


@pytest.mark.slow
def test_several_servers_share_the_requests(serve: Callable[..., str]) -> None:
    calls: list[list[int]] = [[], []]

    class Counting(ExactAnswer):
        def __init__(self, own: list[int]) -> None:
            super().__init__()
            object.__setattr__(self, "own", own)

        def score(self, batch: RewardBatch) -> torch.Tensor:
            self.own.append(len(batch))  # type: ignore[attr-defined]
            return super().score(batch)

    reward = client(tuple(serve(Counting(own)) for own in calls), batch_size=1)
    call_reward("r", reward, EXACT.random_batch(random.Random(0)))
    assert [sum(own) for own in calls] == [4, 4]


@pytest.mark.slow
def test_a_sample_that_cannot_be_judged_is_masked_alone(serve: Callable[..., str]) -> None:
    reward = client(serve(), needs=frozenset({"texts"}))
    batch = make_batch(
        Outputs(texts=("<answer>4</answer>",) * 3), ["q"] * 3, [{"answer": "4"}, {}, {"answer": "5"}], group_size=3
    )
    answer = call_reward("r", reward, batch)
    assert answer.values.isnan().tolist() == [False, True, False]
    assert answer.values[[0, 2]].tolist() == [1.0, 0.0]
    with pytest.raises(Unjudged, match="needs 'answer' in the target"):
        reward.score(select(batch, torch.tensor([1])))


def test_a_token_is_sent_and_a_wrong_one_ends_the_run(serve: Callable[..., str], tmp_path: Path) -> None:
    url = serve(token=TOKEN)
    (tmp_path / "right").write_text(TOKEN + "\n")
    (tmp_path / "wrong").write_text("another-token-of-letters")
    batch = EXACT.random_batch(random.Random(0))
    reward = client(url, token_file=str(tmp_path / "right"))
    reward.prepare(CPU)
    assert torch.equal(reward.score(batch), ExactAnswer().score(batch)) and TOKEN not in repr(reward)
    for file, words in (("wrong", "needs its token.*; got another"), ("none", "none cannot be read")):
        with pytest.raises(ConfigError, match=words):
            client(url, token_file=str(tmp_path / file)).prepare(CPU)
        with pytest.raises(ConfigError, match=words):
            client(url, token_file=str(tmp_path / file)).score(batch)
    with pytest.raises(ConfigError, match=r"needs its token.*; got none"):
        client(url).prepare(CPU)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"reward": "exat"}, r"serves no 'exat' \(did you mean 'exact'\?\)"),
        ({"needs": frozenset({"texts"})}, "also needs target.answer; got texts"),
        ({"granularity": "group"}, "judges samples, got 'group'"),
    ],
)
def test_what_the_server_does_not_serve_is_an_error_before_the_run(
    settings: dict[str, Any], words: str, serve: Callable[..., str]
) -> None:
    with pytest.raises(ConfigError, match=words):
        client(serve(), **settings).prepare(CPU)


def test_a_server_of_something_else_is_an_error_before_the_run(recorded: Recorded) -> None:
    recorded.expect_request("/v1/rewards").respond_with_json([])
    with pytest.raises(ConfigError, match="is no server of `mmrl serve`"):
        client(recorded.url).prepare(CPU)


@pytest.mark.parametrize("status", [429, 502, 503, 504, "lost"])
def test_an_overloaded_or_lost_server_is_asked_again(status: Any, recorded: Recorded, waits: list[float]) -> None:
    count = 0

    def answer(request: Request) -> Response:
        nonlocal count
        count += 1
        if count < 4:
            is_lost = status == "lost"
            return Response(iter([b"{"]), headers={"Content-Length": "9"}) if is_lost else Response("", status)
        scores = [{"id": row, "score": float(row), "reason": None} for row in range(8)]
        return Response(json.dumps({"reward": "exact", "scores": scores}), content_type="application/json")

    recorded.expect_request("/v1/rewards/exact/scores").respond_with_handler(answer)
    assert client(recorded.url).score(EXACT.random_batch(random.Random(0))).tolist() == list(range(8))
    assert waits == [0.5, 1, 2]


@pytest.mark.slow
def test_a_silent_server_is_waited_for_once_and_its_samples_are_masked(waits: list[float]) -> None:
    reward = client("http://127.0.0.1:9", outage_seconds=60.0, batch_size=4, concurrency=1)
    batch = EXACT.random_batch(random.Random(0))
    answer = call_reward("r", reward, batch)
    assert answer.values.isnan().all() and "waited for 60 seconds" in str(answer.failure)
    assert waits == [0.5, 1, 2, 4, 8, 8, 8, 8, 8, 8, 8], "of 8 samples in 2 requests that were all asked alone again"
    waits.append(11.0)  # later it is tried once more
    with pytest.raises(Unjudged, match="nothing answers"):
        reward.score(batch)
    assert sum(waits) == pytest.approx(63.5 + 11)


def test_a_request_that_is_never_answered_ends_though_others_are(recorded: Recorded, waits: list[float]) -> None:
    reward = client(recorded.url, outage_seconds=20.0)

    def answer(request: Request) -> Response:
        reward._outage.end()  # as another request does that is answered
        return Response("", 504)

    recorded.expect_request("/v1/rewards/exact/scores").respond_with_handler(answer)
    with pytest.raises(Unjudged, match="HTTP 504"):
        reward.score(EXACT.random_batch(random.Random(0)))
    assert waits == [0.5, 1, 2, 4, 8, 8]


def test_a_request_that_breaks_the_server_is_tried_three_times(recorded: Recorded, waits: list[float]) -> None:
    recorded.expect_request("/v1/rewards/exact/scores").respond_with_data("trouble", 500)
    with pytest.raises(Unjudged, match="HTTP 500: trouble"):
        client(recorded.url).score(EXACT.random_batch(random.Random(0)))
    assert waits == [0.5, 1] and len(recorded.log) == 3


@pytest.mark.slow
@pytest.mark.parametrize("said", ["x", "{", '{"scores": []}', '{"scores": [{"id": 0, "score": 1.0, "reason": null}]}'])
def test_a_wrong_reply_masks_its_samples(said: str, recorded: Recorded) -> None:
    recorded.expect_request("/v1/rewards/exact/scores").respond_with_data(said, content_type="application/json")
    answer = call_reward("r", client(recorded.url), EXACT.random_batch(random.Random(0)))
    assert answer.values.isnan().tolist() == [said.count("id") == 0] * 8


@pytest.mark.slow
def test_a_body_that_is_too_large_is_sent_in_parts(serve: Callable[..., str]) -> None:
    reward = client(serve(max_body=2048))
    batch = answers(["<answer>4</answer>" + "x" * 300] * 8 + ["x" * 3000], {"answer": "4"})
    values = call_reward("r", reward, batch).values
    assert values[:8].tolist() == [1.0] * 8 and values[8].isnan()


@pytest.mark.slow
def test_a_server_that_comes_back_is_found(serve: Callable[..., str]) -> None:
    url = serve()
    port = int(url.rpartition(":")[2])
    batch = EXACT.random_batch(random.Random(0))
    with serving(RewardServer({"exact": ExactAnswer()}), "127.0.0.1", 0) as other:
        reward = client(other)
        assert torch.equal(reward.score(batch), ExactAnswer().score(batch))
        port = int(other.rpartition(":")[2])
    timer = threading.Timer(0.7, lambda: serve(port=port))
    timer.start()
    assert torch.equal(reward.score(batch), ExactAnswer().score(batch))
    timer.join()


@in_one_test(
    ("settings", "words"),
    [
        ({"url": "ftp://here"}, "url must look like http://host:port"),
        ({"url": ()}, "one server or several different"),
        ({"url": ("http://a", "http://a")}, "one server or several different"),
        ({"reward": ""}, "reward names what a server of protocol mmrl serves"),
        ({"protocol": "flow_grpo"}, "reward names what a server of protocol mmrl serves"),
        ({"protocol": "flow_grpo", "reward": ""}, "flow_grpo sends images"),
        ({"protocol": "flow_factory", "reward": ""}, "flow_factory sends images or videos"),
        ({"protocol": "flow_grpo", "reward": "", "granularity": "group"}, "flow_grpo judges samples, got"),
        ({"granularity": "token"}, "granularity must be sample, turn, episode or group"),
        ({"range": (1.0, 0.0)}, "range must be"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        client(**{"url": "http://127.0.0.1:9"} | settings)


def images_batch(group_size: int = 2) -> RewardBatch:
    images = torch.stack([torch.full((3, 16, 16), level) for level in (0.0, 0.2, 0.6, 1.0)])
    return make_batch(Outputs(images=images), ["a", "a", "b", "b"], [{"tag": "x"}] * 4, group_size=group_size)


def opened(text: str) -> tuple[str, int]:
    """The format of an image in base64, and its level of grey."""
    image = Image.open(io.BytesIO(base64.b64decode(text)))
    return str(image.format), image.convert("L").getpixel((0, 0))  # type: ignore[return-value]


def test_flow_factory_gets_its_own_fields_and_each_group_by_itself(recorded: Recorded) -> None:
    bodies = []

    def answer(request: Request) -> Response:
        body = json.loads(request.data)
        bodies.append(body)
        rewards = [opened(image)[1] / 51 for image in body["image"]]
        return Response(json.dumps({"rewards": rewards}), content_type="application/json")

    recorded.expect_request("/compute", method="POST").respond_with_handler(answer)
    settings: dict[str, Any] = {"reward": "", "protocol": "flow_factory", "needs": frozenset({"images"})}
    assert client(recorded.url, **settings).score(images_batch()).tolist() == [0, 1, 3, 5]
    assert client(recorded.url, granularity="group", **settings).score(images_batch()).tolist() == [0, 1, 3, 5]
    assert [body["prompt"] for body in bodies] == [["a", "a", "b", "b"], ["a", "a"], ["b", "b"]]
    assert set(bodies[0]) == {"prompt", "image", "video", "condition_images", "condition_videos", "kwargs"}
    assert opened(bodies[0]["image"][1]) == ("PNG", 51) and bodies[0]["video"] is None


def test_flow_factory_gets_videos_as_frames(recorded: Recorded) -> None:
    bodies = []

    def answer(request: Request) -> Response:
        bodies.append(json.loads(request.data))
        return Response(json.dumps({"rewards": [1.0, None]}), content_type="application/json")

    recorded.expect_request("/compute").respond_with_handler(answer)
    videos = torch.stack([torch.zeros(3, 3, 4, 4), torch.ones(3, 3, 4, 4)])
    batch = make_batch(Outputs(videos=videos, fps=(8.0, 8.0)), ["a", "b"])
    reward = client(recorded.url, reward="", protocol="flow_factory", needs=frozenset({"videos"}))
    values = reward.score(batch)
    assert values[0] == 1.0 and values[1].isnan()
    assert [[opened(frame)[1] for frame in video] for video in bodies[0]["video"]] == [[0] * 3, [255] * 3]


@in_one_test("reply", [{"rewards": [1.0]}, {"error": "no GPU"}, [], {"rewards": [1.0, "2", 3.0, 4.0]}])
def test_a_wrong_reply_of_flow_factory_masks_its_samples(reply: Any, recorded: Recorded) -> None:
    recorded.expect_request("/compute").respond_with_json(reply)
    reward = client(recorded.url, reward="", protocol="flow_factory", needs=frozenset({"images"}))
    with pytest.raises(Unjudged, match=r"the response must have a list|no GPU|a score is a number"):
        reward.score(images_batch())


def test_flow_grpo_gets_its_own_fields_as_json(recorded: Recorded) -> None:
    bodies = []

    def answer(request: Request) -> Response:
        bodies.append(json.loads(request.data))
        return Response(json.dumps({"outputs": [0.5, 1.0, 0.0, 2.0]}), content_type="application/json")

    recorded.expect_request("/", method="POST").respond_with_handler(answer)
    reward = client(recorded.url, reward="", protocol="flow_grpo", needs=frozenset({"images"}))
    assert reward.score(images_batch()).tolist() == [0.5, 1.0, 0.0, 2.0]
    assert bodies[0]["prompts"] == ["a", "a", "b", "b"] and bodies[0]["meta_datas"][3] == {"prompt": "b", "tag": "x"}
    assert opened(bodies[0]["images"][1])[0] == "JPEG"


@pytest.mark.parametrize("protocol", ["flow_grpo", "flow_factory"])
def test_a_dry_run_speaks_every_protocol(protocol: Any, tmp_path: Path) -> None:
    reward = client("http://127.0.0.1:9", reward="", protocol=protocol, needs=frozenset({"images"}), range=(2.0, 3.0))
    twin = reward.tiny(0, tmp_path)
    twin.prepare(CPU)
    values = twin.score(images_batch())
    assert (values >= 2).all() and (values <= 3).all() and len(values.unique()) == 4
    assert torch.equal(values, twin.score(images_batch()))


def test_a_dry_run_of_an_unknown_reward_has_numbers_from_the_samples(tmp_path: Path) -> None:
    twin = client("http://127.0.0.1:9", reward="mine", granularity="group", needs=frozenset({"images"})).tiny(
        0, tmp_path
    )
    twin.prepare(CPU)
    values = twin.score(images_batch())
    assert (values >= 0).all() and (values <= 1).all() and len(values.unique()) == 4


def test_a_reward_that_learns_is_wrapped_around_the_client() -> None:
    wrapped = RunningNormalised(client("http://127.0.0.1:9"))
    assert "service" in wrapped.needs and replace(client("http://127.0.0.1:9")).needs == NEEDS | {"service"}
