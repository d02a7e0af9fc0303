"""Answers that a server samples ahead: those of the weights and the prompts at that time, taken once, and kept."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.contracts import RunError, SamplingAhead
from mmrl.core.data import Prompt
from mmrl.core.views import DecisionView
from mmrl.modalities.tokens.vllm.ahead import Ahead, request_name
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.modalities.tokens.vllm.protocol import Answer, Question, SamplingParams
from mmrl.modalities.tokens.vllm.tiny_server import TinyVllm, serve
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan
from mmrl.training.checkpoint import flatten_records, restore_records
from tests.modalities.tokens.vllm.test_vllm_runs import load
from tests.vision_twins import GROUPS, PROMPTS, keys, picture, policy, rollout, twin

SAMPLING = SamplingParams(0.9, 0.95, 40, 0.0, 4, ("</a>",), (2, 3), (6, 9))
PLANS = [AnswerPlan(count, 10) for count in GROUPS]


class Server:
    """A small server that notes the seeds it was asked for, and can be held up or broken."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_broken = False
        server = TinyVllm(twin("qwen2_5_vl"), load)

        def answer(method: str, path: str, body: Any) -> Any:
            if path == "/inference/v1/generate":
                self.seeds.append(body["sampling_params"]["seed"])
                assert self.may_answer.wait(60)
                if self.is_broken:
                    raise ValueError("out of order")
            return server.answer(method, path, body)

        self.policy = policy(engine=Vllm(name="vllm", url=serve(answer, lambda: True), concurrency=4))


def move(one: VisionLanguage, number: int = 0) -> None:
    source = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in one.weights.parameters.values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=source))


def tokens(of: Any) -> list[list[int]]:
    return [list(row) for row in of.trace.completions.tokens.tolist()]


@pytest.mark.slow  # most of a second each, or more
def test_a_rollout_takes_what_was_sampled_ahead_by_the_weights_of_that_time() -> None:
    server, here = Server(), policy()
    there = server.policy
    assert isinstance(there, SamplingAhead)
    rollout(there)  # the first one, and what is asked to meet a server
    server.seeds.clear()
    move(there)
    move(here)
    there.sample_ahead(PROMPTS, PLANS, keys(3))
    expected = rollout(here)  # by the weights now in place, sampled by the network itself
    move(there, 1)
    got = rollout(there)
    assert tokens(got) == tokens(expected)
    view = DecisionView(torch.arange(9))
    wanted = here.recorded(expected, view).values
    torch.testing.assert_close(there.recorded(got, view).values, wanted, atol=1e-5, rtol=0)
    assert there.num_taken_ahead == len(server.seeds) == sum(GROUPS), "each answer was sampled once"
    again = rollout(there)
    assert tokens(again) != tokens(expected), "each is taken once; these are by the weights now in place"
    assert there.num_taken_ahead == sum(GROUPS) and len(server.seeds) == 2 * sum(GROUPS)


@pytest.mark.slow
def test_what_fits_no_request_is_sampled_when_it_is_asked_for() -> None:
    server = Server()
    there = server.policy
    rollout(there)
    there.sample_ahead(PROMPTS[:2], PLANS[:2], keys(2))
    other = [PROMPTS[0], Prompt("another question"), PROMPTS[2]]
    got = there.rollout(other, PLANS, keys(3))
    assert there.num_taken_ahead == GROUPS[0]
    assert tokens(got) == tokens(policy().rollout(other, PLANS, keys(3)))


@pytest.mark.slow
def test_it_returns_at_once_and_weights_are_sent_when_all_are_there() -> None:
    server, here = Server(), policy()
    there = server.policy
    rollout(there)
    server.may_answer.clear()
    there.sample_ahead(PROMPTS, PLANS, keys(3))
    assert there._service is not None and there._service.ahead._job is not None
    assert not there._service.ahead._job.done()
    timer = threading.Timer(0.3, server.may_answer.set)
    timer.start()
    move(there)  # while the server samples by the others
    assert tokens(rollout(there)) == tokens(rollout(here))
    timer.join()


@pytest.mark.slow
def test_a_prompt_that_cannot_be_read_is_left_to_the_rollout() -> None:
    there = Server().policy
    rollout(there)
    broken = replace(PROMPTS[1], media=(replace(picture(30, 30, 1), content=b"no image"),))
    there.sample_ahead([PROMPTS[0], broken, PROMPTS[2]], PLANS, keys(3))
    assert there.rollout([PROMPTS[0], PROMPTS[2]], [PLANS[0], PLANS[2]], [keys(3)[0], keys(3)[2]]).num_samples == 7
    assert there.num_taken_ahead == GROUPS[0] + GROUPS[2]


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [None, 20])
def test_answers_of_a_checkpoint_are_those_that_were_sampled(top_k: int | None) -> None:
    first, second = Server(), Server()
    plans = [replace(plan, top_k=top_k, temperature=0.7) for plan in PLANS]
    for server in (first, second):
        server.policy.rollout(PROMPTS, plans, keys(3))
        server.seeds.clear()
    move(first.policy)  # weights that the second one never has
    first.policy.sample_ahead(PROMPTS, plans, keys(3))
    saved = flatten_records(first.policy.ahead(), "ahead")
    second.policy.restore_ahead(restore_records(saved, "ahead"))
    given, got = (one.policy.rollout(PROMPTS, plans, keys(3)).trace.completions for one in (first, second))
    assert torch.equal(got.tokens, given.tokens) and torch.equal(got.log_prob, given.log_prob)
    assert torch.equal(got.is_finished, given.is_finished) and torch.equal(got.length, given.length)
    assert (got.support is None) == (top_k is None)
    if got.support is not None and given.support is not None:
        assert torch.equal(got.support.ids, given.support.ids) and torch.equal(got.support.sizes, given.support.sizes)
    assert second.seeds == []


@pytest.mark.slow
def test_a_server_that_fails_is_an_error_of_the_next_rollout_and_a_checkpoint_is_written_before() -> None:
    server = Server()
    there = server.policy
    rollout(there)
    server.is_broken = True
    there.sample_ahead(PROMPTS, PLANS, keys(3))
    assert there.ahead() == []
    with pytest.raises(RunError, match="HTTP 400: ValueError: out of order"):
        there.settle_ahead()
    server.is_broken = False
    assert tokens(rollout(there)) == tokens(rollout(policy())), "said once"


@pytest.mark.slow
def test_a_policy_that_is_closed_waits_for_no_server() -> None:
    server = Server()
    there = server.policy
    rollout(there)
    server.may_answer.clear()
    server.seeds.clear()
    before = set(threading.enumerate())
    there.sample_ahead(PROMPTS, PLANS, keys(3))
    _wait(lambda: len(server.seeds) == 4)
    there.close()
    _wait(lambda: not {one for one in threading.enumerate() if "process_request" not in one.name} - before)
    server.may_answer.set()


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_request_is_known_by_its_prompt_its_sampling_and_its_seed() -> None:
    question = Question((5, 6, 7), (5, 6, 6, 6, 7), ("data:image/png;base64,AAAA",))
    name = request_name(question, SAMPLING, 11)
    others = [
        request_name(replace(question, read=(5, 6, 6, 7)), SAMPLING, 11),
        request_name(question, replace(SAMPLING, temperature=0.8), 11),
        request_name(question, SAMPLING, 12),
    ]
    assert len({name, *others}) == 4 and 0 <= name < 2**63
    assert request_name(replace(question, images=()), SAMPLING, 11) == name


def test_what_was_not_taken_is_dropped_when_the_next_rollout_is_begun() -> None:
    ahead, answer = Ahead(), Answer([1], [0.0], True, None)
    ahead.begin(lambda: {1: answer, 2: answer})
    ahead.settle()
    assert ahead.take(1) is answer and ahead.take(1) is None and ahead.num_taken == 1
    ahead.begin(lambda: {3: answer})
    ahead.settle()
    assert ahead.take(2) is None and ahead.take(3) is answer
