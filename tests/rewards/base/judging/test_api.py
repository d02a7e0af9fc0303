"""A judge at an address: no lost, swapped or made up reply, whatever the server does."""

import math
import re
import threading
from typing import Any

import pytest
from PIL import Image

from mmrl.core.contracts import ConfigError
from mmrl.rewards.base.judging.api import ApiJudge, check_key, data_url
from mmrl.rewards.base.judging.questions import Question, Reply, UnansweredError
from mmrl.rewards.base.judging.settings import JudgeModel
from tests.rewards.base.judging.openai_server import Answering, Served, chat, first_words, serving, slowly


def settings(served: Served, **changes: Any) -> JudgeModel:
    plain: dict[str, Any] = {"model": "m", "url": served.url, "deadline_seconds": 2.0, "outage_seconds": 0.0}
    return JudgeModel(**plain | changes)


def replies_of(answer: Answering, *questions: Question, **changes: Any) -> tuple[list[Any], Served]:
    with serving(answer) as served:
        return ApiJudge(settings(served, **changes)).ask(questions, range(len(questions))), served


def text_of(body: dict[str, Any]) -> str:
    content = body["messages"][-1]["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])


@pytest.mark.slow
def test_every_question_gets_its_own_reply_though_they_end_in_another_order() -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        return slowly(0.05 if text_of(body).endswith("0") else 0.0, chat(f"to {text_of(body)}"))

    replies, served = replies_of(answer, *(Question(f"question {n}") for n in range(40)), concurrency=8)
    assert [reply.text for reply in replies] == [f"to question {n}" for n in range(40)]
    assert 1 < served.most_at_once <= 8 and len(served.bodies) == 40
    assert (replies[0].prompt_tokens, replies[0].reply_tokens) == (10, 5)


@pytest.mark.slow
def test_images_come_before_the_text_and_lose_nothing() -> None:
    image = Image.new("RGB", (3, 2), (10, 20, 30))
    _, served = replies_of(lambda body: (200, chat("1")), Question("how?", "be fair", (image, image)))
    system, user = served.bodies[0]["messages"]
    assert system == {"role": "system", "content": "be fair"}
    assert [part["type"] for part in user["content"]] == ["image_url", "image_url", "text"]
    assert user["content"][0]["image_url"]["url"] == data_url(image)


@pytest.mark.slow
def test_first_words_are_summed_over_their_spellings() -> None:
    response = first_words({"Yes": math.log(0.5), " yes": math.log(0.1), "No": math.log(0.2), "the": -3.0})
    (reply,), served = replies_of(lambda body: (200, response), Question("?", words=("yes", "no")))
    assert reply.log_probs == pytest.approx((math.log(0.6), math.log(0.2))) and reply.text == ""
    assert served.bodies[0]["logprobs"] is True and served.bodies[0]["max_tokens"] == 1


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (chat("Score: 4", "length"), "cut at max_tokens"),
        (chat(""), "empty"),
        ({"choices": []}, "no reply"),
        ({"choices": None}, "no reply"),
        ({}, "no reply"),
        ("{", "does not answer"),
        ("[]", "no reply|does not answer"),
        (None, "no connection"),
        (b"x" * (2**24 + 1), "more than 16,777,216 bytes"),
    ],
)
def test_half_a_reply_is_no_reply(response: Any, reason: str) -> None:
    (reply,), _ = replies_of(lambda body: (200, response), Question("?"))
    assert isinstance(reply, UnansweredError) and re.search(reason, str(reply)), reply


def test_probabilities_that_are_not_told_are_no_reply() -> None:
    (reply,), _ = replies_of(lambda body: (200, chat("yes")), Question("?", words=("yes", "no")))
    assert isinstance(reply, UnansweredError) and "top_logprobs" in str(reply)


@pytest.mark.slow
@pytest.mark.parametrize("first", [(429, {"error": {"message": "busy"}}), (500, "oops"), (503, "{}"), (200, None)])
def test_a_busy_or_broken_server_is_asked_again(first: tuple[int, Any]) -> None:
    times = [0]

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        times[0] += 1
        return first if times[0] == 1 else (200, chat("Score: 3"))

    (reply,), served = replies_of(answer, Question("?"), outage_seconds=10.0)
    assert isinstance(reply, Reply) and reply.text == "Score: 3" and len(served.bodies) == 2


@pytest.mark.slow
def test_an_outage_is_waited_for_once_and_not_by_each_question() -> None:
    questions = [Question(f"{number}") for number in range(30)]
    replies, served = replies_of(lambda body: (500, "gone"), *questions, concurrency=1, outage_seconds=0.6)
    assert all(isinstance(reply, UnansweredError) for reply in replies)
    assert 31 <= len(served.bodies) <= 33  # the first is asked again after half a second


@pytest.mark.slow
def test_a_slow_server_is_waited_for_until_the_deadline_only() -> None:
    done = threading.Event()

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        done.wait(20)
        return 200, chat("late")

    try:
        (reply,), _ = replies_of(answer, Question("?"), deadline_seconds=0.2)
    finally:
        done.set()
    assert isinstance(reply, UnansweredError) and "no whole reply within 0.2 seconds" in str(reply)


def test_a_wrong_key_ends_it_and_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with (
        serving(lambda body: (401, {"error": {"message": "bad key"}})) as served,
        pytest.raises(ConfigError, match="the key is refused") as raised,
    ):
        ApiJudge(settings(served, key_variable="MY_KEY", concurrency=1)).ask([Question("?")] * 3, range(3))
    assert "sk-secret" not in str(raised.value) and served.headers[0]["authorization"] == "Bearer sk-secret"
    assert len(served.bodies) == 1  # the others were not asked
    monkeypatch.setenv("MY_KEY", "a\nb")
    with pytest.raises(ConfigError, match="MY_KEY holds no key"):
        check_key(JudgeModel(url="http://x/v1", key_variable="MY_KEY"))


@pytest.mark.slow
def test_options_that_a_server_does_not_take_are_left_out() -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if "max_tokens" in body:
            return 400, {"error": {"message": "Unsupported parameter: 'max_tokens'"}}
        if "temperature" in body:
            return 400, {"error": {"message": "'temperature' does not support 0.0 with this model"}}
        return 200, chat(str(body.get("max_completion_tokens")))

    (reply,), served = replies_of(answer, Question("?"), max_tokens=7)
    assert reply.text == "7" and len(served.bodies) == 3


def test_a_request_that_is_refused_for_itself_is_unanswered_alone() -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if "bad" in text_of(body):
            return 422, {"error": {"message": "content policy"}}
        return 200, chat("Score: 1")

    replies, _ = replies_of(answer, Question("good"), Question("bad"), Question("good too"), outage_seconds=5.0)
    assert [type(reply) for reply in replies] == [Reply, UnansweredError, Reply]
    assert "content policy" in str(replies[1])


@pytest.mark.slow
def test_a_schema_is_sent_where_the_server_keeps_to_one() -> None:
    question = Question("?", schema={"type": "object"})
    for is_structured in (True, False):
        _, served = replies_of(lambda body: (200, chat("{}")), question, structured=is_structured)
        assert ("response_format" in served.bodies[0]) is is_structured
