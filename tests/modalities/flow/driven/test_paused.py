"""Paused functions: modes of torch, errors, and threads that end."""

import gc
import threading
from typing import Any

import pytest
import torch

from mmrl.modalities.flow.driven.paused import Channel, Done, Modes, Paused


def paused(body: Any) -> Paused:
    channel = Channel()
    return Paused(lambda: body(channel), channel)


def threads() -> int:
    return sum(thread.name == "paused pipeline" for thread in threading.enumerate())


def test_events_and_replies_alternate_until_the_function_returns() -> None:
    made = paused(lambda channel: [channel.ask("first"), channel.ask("second")])
    assert made.resume() == "first"
    assert made.resume(1) == "second"
    assert made.resume(2) == Done([1, 2])
    assert not made.is_alive


@pytest.mark.parametrize("is_grad_enabled", [True, False])
@pytest.mark.parametrize("is_inference", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_function_has_the_modes_of_each_caller_and_leaves_them_as_they_are(
    is_grad_enabled: bool, is_inference: bool, dtype: torch.dtype | None
) -> None:
    def body(channel: Channel) -> None:
        modes = None
        while True:
            channel.ask(modes)
            modes = Modes.current()
            torch.set_grad_enabled(False)  # what a pipeline does inside is its own
            torch.set_autocast_enabled("cpu", False)

    made = paused(body)
    made.resume()
    with (
        torch.inference_mode(is_inference),
        torch.set_grad_enabled(is_grad_enabled),
        torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None),
    ):
        before = Modes.current()
        made.resume()
        assert made.resume() == before
        assert made.resume() == before
        assert Modes.current() == before
    made.resume()
    assert made.resume() == Modes.current()
    made.close()


def test_a_gradient_reaches_through_the_function_where_the_caller_has_one() -> None:
    def body(channel: Channel) -> None:
        value = channel.ask(None)
        while True:
            value = channel.ask(3 * value)

    made = paused(body)
    with torch.no_grad():
        made.resume()
        assert not made.resume(torch.ones(1, requires_grad=True)).requires_grad
    weight = torch.ones(1, requires_grad=True)
    made.resume(weight).sum().backward()
    assert weight.grad is not None and weight.grad.item() == 3
    made.close()


def test_an_error_inside_is_raised_in_the_caller_and_ends_the_thread() -> None:
    def body(channel: Channel) -> None:
        channel.ask("here")
        raise KeyError("inside")

    made = paused(body)
    made.resume()
    with pytest.raises(KeyError, match="inside"):
        made.resume()
    assert not made.is_alive
    with pytest.raises(RuntimeError, match="has ended"):
        made.resume()


@pytest.mark.slow
def test_no_thread_is_left_by_close_nor_by_an_object_that_nobody_closes() -> None:
    before = threads()
    closed, dropped = (paused(lambda channel: channel.ask("waits")) for _ in range(2))
    closed.resume()
    dropped.resume()
    assert threads() == before + 2
    closed.close()
    closed.close()
    assert threads() == before + 1
    del dropped
    gc.collect()
    assert threads() == before
