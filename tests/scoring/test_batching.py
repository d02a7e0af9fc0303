"""Samples of several clients in one call: groups stay whole, results find their way back, failures stay alone."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.wire import ReadRequest, Sample, UnreadItem
from mmrl.scoring.batching import BatchQueue, Judged, QueueFull, Unit, make_units


@dataclass
class Number:
    """The number in the text; a group reward takes the mean of its group away. `calls` holds each batch of texts."""

    source: ClassVar[str] = "here"
    range: ClassVar[tuple[float, float]] = (-100.0, 100.0)
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    granularity: Granularity = "sample"
    batch_size: int | None = None
    calls: list[list[str]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def score(self, batch: RewardBatch) -> Tensor:
        assert batch.outputs.texts is not None
        self.calls.append(list(batch.outputs.texts))
        self.gate.wait(10)
        values = torch.tensor([float(text) for text in batch.outputs.texts])
        if self.granularity == "group":
            for number in batch.group.unique():
                values[batch.group == number] -= values[batch.group == number].mean()
        return values


class Noisy(Number):
    declaration: ClassVar[RewardDeclaration] = RewardDeclaration(is_changing=True)


# A granularity of each object's own is no class attribute, which types ask for.
NUMBER: Any = Number
NOISY: Any = Noisy


def sample(text: str, group: int | None = None, images: Tensor | None = None) -> Sample:
    return Sample(Prompt("q"), Outputs(texts=(text,), canvases=(None,), images=images), group, None, 0, 0, False)


def request(*samples: Sample | UnreadItem, iteration: int = 0) -> ReadRequest:
    return ReadRequest(tuple(range(len(samples))), samples, iteration, None)


@pytest.fixture
def queue() -> Iterator[Callable[..., BatchQueue]]:
    with ExitStack() as stack:
        yield lambda reward, **more: stack.enter_context(BatchQueue("number", reward, **more))


def results(units: list[tuple[list[int], Unit]]) -> list[list[Judged]]:
    return [unit.result.result(10) for _, unit in units]


def submit(queue: BatchQueue, one: ReadRequest) -> list[tuple[list[int], Unit]]:
    units, _ = make_units(queue.reward, one)
    queue.submit([unit for _, unit in units])
    return units


def test_requests_that_wait_share_a_call_up_to_the_batch_size(queue: Callable[..., BatchQueue]) -> None:
    reward = NUMBER(batch_size=4)
    running = queue(reward)
    first = submit(running, request(sample("0")))
    while not reward.calls:
        pass
    others = [submit(running, request(sample(f"{number}"), sample(f"{number + 10}"))) for number in (1, 2, 3)]
    assert running.num_waiting() == 6
    reward.gate.set()
    assert results(first) == [[Judged(0.0)]]
    for number, one in zip((1, 2, 3), others, strict=True):
        assert results(one) == [[Judged(float(number))], [Judged(number + 10.0)]]
    assert reward.calls == [["0"], ["1", "11", "2", "12"], ["3", "13"]] and running.num_waiting() == 0


@pytest.mark.parametrize(
    ("batch_size", "calls"),
    [
        (3, [["1", "3", "5"], ["10", "20", "30", "40"]]),  # a group is never cut
        (8, [["1", "3", "5", "10", "20", "30", "40"]]),
    ],
)
def test_groups_of_different_clients_stay_apart_and_whole(
    batch_size: int, calls: list[list[str]], queue: Callable[..., BatchQueue]
) -> None:
    reward = NUMBER(granularity="group", batch_size=batch_size)
    running = queue(reward)
    submit(running, request(sample("0", 0)))
    while not reward.calls:
        pass
    one = submit(running, request(sample("1", 7), sample("5", 8), sample("3", 7)))  # groups [1, 3] and [5]
    two = submit(running, request(sample("10", 7), sample("20", 7), sample("30", 7), sample("40", 7)))
    reward.gate.set()
    assert [rows for rows, _ in one] == [[0, 2], [1]]
    assert results(one) == [[Judged(-1.0), Judged(1.0)], [Judged(0.0)]]
    assert results(two) == [[Judged(-15.0), Judged(-5.0), Judged(5.0), Judged(15.0)]]
    assert reward.calls[1:] == calls


def test_a_sample_that_cannot_be_judged_fails_alone(queue: Callable[..., BatchQueue]) -> None:
    reward = NUMBER()
    reward.gate.set()
    running = queue(reward)
    found = results(submit(running, request(sample("1"), sample("x"), sample("nan"), sample("4"))))
    assert [one[0].score for one in found] == [1.0, None, None, 4.0]
    assert "could not convert string to float" in str(found[1][0].reason) and "returned nan" in str(found[2][0].reason)


@pytest.mark.slow
def test_a_sample_that_lacks_what_is_needed_is_not_shown_to_the_reward(queue: Callable[..., BatchQueue]) -> None:
    reward = NUMBER()
    reward.gate.set()
    bare = Sample(Prompt("q"), Outputs(images=torch.zeros(1, 3, 2, 2)), None, None, 0, 0, False)
    found = results(submit(queue(reward), request(bare, sample("1"))))
    assert found[0][0].score is None and "needs texts" in str(found[0][0].reason) and found[1] == [Judged(1.0)]
    assert reward.calls == [["1"]]


def test_other_sizes_and_iterations_are_other_calls(queue: Callable[..., BatchQueue]) -> None:
    reward = NUMBER()
    running = queue(reward)
    submit(running, request(sample("0")))
    while not reward.calls:
        pass
    small, large = torch.zeros(1, 3, 2, 2), torch.zeros(1, 3, 4, 4)
    waiting = submit(running, request(sample("1", images=small), sample("2", images=large), sample("3", images=small)))
    later = submit(running, request(sample("4", images=small), iteration=1))
    reward.gate.set()
    assert [one[0].score for one in results(waiting) + results(later)] == [1, 2, 3, 4]
    assert reward.calls[1:] == [["1", "3"], ["2"], ["4"]]


def test_the_noise_of_a_request_is_not_that_of_another(queue: Callable[..., BatchQueue]) -> None:
    reward = NOISY()
    running = queue(reward)
    submit(running, request(sample("0")))
    while not reward.calls:
        pass
    submit(running, request(sample("1"), sample("2")))
    last = submit(running, request(sample("3")))
    reward.gate.set()
    results(last)
    assert reward.calls[1:] == [["1", "2"], ["3"]]


def test_a_group_with_an_unreadable_item_is_not_judged_and_others_are() -> None:
    reward, broken = NUMBER(granularity="group"), UnreadItem("no picture", 1, None)
    units, unjudged = make_units(reward, request(sample("1", 0), sample("2", 1), broken, sample("3", 0)))
    assert [rows for rows, _ in units] == [[0, 3]]
    assert set(unjudged) == {1, 2} and all("no picture" in reason for reason in unjudged.values())
    units, unjudged = make_units(reward, request(sample("1", 0), UnreadItem("no picture", None, None)))
    assert units == [] and "which may be this one" in unjudged[0] and unjudged[1] == "no picture"
    units, unjudged = make_units(reward, request(sample("1", 0), sample("2")))
    assert [rows for rows, _ in units] == [[0]] and "does not say its group" in unjudged[1]
    mixed = sample("2", 0, images=torch.zeros(1, 3, 2, 2))
    units, unjudged = make_units(reward, request(sample("1", 0), mixed))
    assert units == [] and "of one kind and one size" in unjudged[0]


def test_cancelled_units_are_not_judged_and_a_full_queue_says_so(queue: Callable[..., BatchQueue]) -> None:
    reward = NUMBER(batch_size=1)
    running = queue(reward, max_waiting=2)
    submit(running, request(sample("0")))
    while not reward.calls:
        pass
    waiting = submit(running, request(sample("1"), sample("2")))
    with pytest.raises(QueueFull, match="2 samples wait for reward 'number'"):
        submit(running, request(sample("3")))
    assert waiting[0][1].result.cancel()
    reward.gate.set()
    assert waiting[1][1].result.result(10) == [Judged(2.0)] and reward.calls == [["0"], ["2"]]


def test_a_call_that_takes_too_long_is_seen(queue: Callable[..., BatchQueue]) -> None:
    reward = NUMBER()
    running = queue(reward, call_seconds=1e-6)
    assert running.trouble is None
    submit(running, request(sample("0")))
    while not reward.calls:
        pass
    assert "reward 'number'" in str(running.trouble)
    reward.gate.set()


def test_what_waits_is_cancelled_when_the_queue_ends() -> None:
    reward = NUMBER(batch_size=1)
    with BatchQueue("number", reward) as running:
        first = submit(running, request(sample("0")))
        while not reward.calls:
            pass
        waiting = submit(running, request(sample("1")))
        threading.Timer(0.1, reward.gate.set).start()
    assert results(first) == [[Judged(0.0)]] and waiting[0][1].result.cancelled()
    with pytest.raises(QueueFull, match="the server ends"):
        submit(running, request(sample("2")))
