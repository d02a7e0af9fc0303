"""Paused functions: modes of torch, errors, and functions that end."""

import gc
import threading
from collections.abc import Callable

import pytest
import torch

from mmrl.modalities.flow.driven.paused import Done, Modes, Paused, ask


def test_events_and_replies_alternate_until_the_function_returns() -> None:
    made = Paused(lambda: [ask("first"), ask("second")])
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
    def body() -> None:
        modes = None
        while True:
            ask(modes)
            modes = Modes.current()
            torch.set_grad_enabled(False)  # what a pipeline does inside is its own
            torch.set_autocast_enabled("cpu", False)

    made = Paused(body)
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
    def body() -> None:
        value = ask(None)
        while True:
            value = ask(3 * value)

    made = Paused(body)
    with torch.no_grad():
        made.resume()
        assert not made.resume(torch.ones(1, requires_grad=True)).requires_grad
    weight = torch.ones(1, requires_grad=True)
    made.resume(weight).sum().backward()
    assert weight.grad is not None and weight.grad.item() == 3
    made.close()


def test_an_error_inside_is_raised_in_the_caller_and_ends_the_function() -> None:
    def body() -> None:
        ask("here")
        raise KeyError("inside")

    made = Paused(body)
    made.resume()
    with pytest.raises(KeyError, match="inside"):
        made.resume()
    assert not made.is_alive
    with pytest.raises(RuntimeError, match="has ended"):
        made.resume()


@pytest.mark.parametrize("end", [Paused.close, lambda made: None])
def test_a_function_ends_where_it_stands_when_it_is_closed_or_dropped(end: Callable[[Paused], None]) -> None:
    ended: list[int] = []

    def body() -> None:
        try:
            with torch.no_grad():
                ask("waits")
        except Exception:
            pytest.fail("a pipeline may catch this")
        finally:
            ended.append(1)

    made = Paused(body)
    assert made.resume() == "waits" and not ended
    end(made)
    end(made)
    del made
    gc.collect()
    assert ended == [1] and torch.is_grad_enabled()


def test_another_thread_cannot_resume_it() -> None:
    made, alive = Paused(lambda: ask("waits")), []
    made.resume()
    thread = threading.Thread(target=lambda: alive.append(made.is_alive))
    thread.start()
    thread.join()
    assert alive == [False] and made.is_alive
    made.close()
