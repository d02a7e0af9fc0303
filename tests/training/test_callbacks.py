"""Callbacks: which events a run has, in which order, with which facts, and what a failing one does."""

from dataclasses import FrozenInstanceError
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import mmrl
from mmrl.core.contracts import ConfigError, RunError
from mmrl.training import checkpoint
from mmrl.training.callbacks import EVENTS, Callback, Callbacks, TrainControl, TrainState
from tests.process_runs import in_processes
from tests.toy_runs import Toy, toy, trained

LAB = (
    *("iterations=3", "threads=1", "checkpoint.every=2", "prompts_per_iteration=2", "group_size=2"),
    *("evaluation.every=2", "evaluation.num_prompts=1", "evaluation.samples_per_prompt=1"),
)
FASTER = {"optimizer": {"learning_rate": 0.3}, "evaluation": {"sampler": {"name": "unused"}, "every": 2}}


class Recorder(Callback):
    """Writes down each event; `stop_at` requests a stop and `fail_at` raises there."""

    def __init__(self, stop_at: tuple[str, int] | None = None, fail_at: tuple[str, int] | None = None) -> None:
        self.stop_at, self.fail_at = stop_at, fail_at
        self.events: list[tuple[str, int]] = []
        self.states: list[TrainState] = []

    def _seen(self, event: str, state: TrainState, control: TrainControl) -> None:
        self.events.append((event, state.iteration))
        self.states.append(state)
        if self.events[-1] == self.stop_at:
            control.request_stop()
        if self.events[-1] == self.fail_at:
            raise KeyError("no such thing")

    def on_train_begin(self, state: TrainState, control: TrainControl) -> None:
        self._seen("begin", state, control)

    def on_iteration_end(self, state: TrainState, control: TrainControl) -> None:
        self._seen("iteration", state, control)

    def on_evaluate(self, state: TrainState, control: TrainControl) -> None:
        self._seen("evaluate", state, control)

    def on_save(self, state: TrainState, control: TrainControl) -> None:
        assert state.checkpoint is not None and checkpoint.load(state.checkpoint).iteration == state.iteration
        self._seen("save", state, control)

    def on_train_end(self, state: TrainState, control: TrainControl) -> None:
        self._seen("end", state, control)


def with_recorder(folder: Path, recorder: Callback, **changes: Any) -> Toy:
    run = toy(folder, **(FASTER | {"iterations": 4, "checkpoint": {"every": 2}} | changes))
    run.trainer.callbacks = Callbacks([recorder])
    return run


def resumed(folder: Path, recorder: Callback, iteration: int) -> Toy:
    run = with_recorder(folder, recorder)
    run.trainer.restore(checkpoint.load(folder / "checkpoints" / f"{iteration:06d}"))
    return run


WHOLE = [("evaluate", 0), ("iteration", 1), ("iteration", 2), ("evaluate", 2), ("save", 2)]
WHOLE += [("iteration", 3), ("iteration", 4), ("evaluate", 4), ("save", 4)]


@pytest.mark.slow
def test_a_run_has_its_events_in_order_and_trains_as_without_callbacks(tmp_path: Path) -> None:
    recorder = Recorder()
    run = with_recorder(tmp_path / "run", recorder)
    assert run.trainer.train()
    assert recorder.events == [("begin", 0), *WHOLE]
    run.trainer.end(is_complete=True)
    assert recorder.events[-1] == ("end", 4) and recorder.states[-1].is_complete
    assert not any(state.is_complete for state in recorder.states[:-1])
    plain = toy(tmp_path / "plain", iterations=4, checkpoint={"every": 2}, **FASTER)
    assert plain.trainer.train()
    torch.testing.assert_close(trained(run), trained(plain), rtol=0, atol=0)


@pytest.mark.slow
def test_each_event_has_the_facts_of_its_moment(tmp_path: Path) -> None:
    recorder = Recorder()
    run = with_recorder(tmp_path, recorder)
    run.trainer.train()
    seen = dict(zip(recorder.events, recorder.states, strict=True))
    lines = [line for line in run.lines if line["iteration"] == 2]
    assert {"iteration": 2, **seen["iteration", 2].metrics} == lines[0]
    assert {"iteration": 2, **seen["evaluate", 2].held_out} == lines[1]
    assert seen["begin", 0].metrics == seen["begin", 0].held_out == seen["evaluate", 0].metrics == {}
    assert seen["iteration", 1].held_out["held_out/score"] == seen["save", 4].held_out_before
    assert seen["evaluate", 4].held_out_score == lines_of(run, 4)["held_out/score"]
    assert seen["iteration", 2].checkpoint is None
    assert seen["save", 2].checkpoint == tmp_path / "checkpoints" / "000002"
    assert seen["save", 4].best_held_out_score is not None and seen["save", 4].best_iteration in (2, 4)
    assert seen["save", 4].train_seconds > seen["iteration", 1].train_seconds > 0
    assert seen["begin", 0].is_main and seen["begin", 0].folder == tmp_path
    assert seen["begin", 0].config.iterations == 4


def lines_of(run: Toy, iteration: int) -> dict[str, float]:
    return next(line for line in run.lines if line["iteration"] == iteration and "held_out/score" in line)


@pytest.mark.slow
def test_what_a_callback_is_given_cannot_be_changed(tmp_path: Path) -> None:
    recorder = Recorder()
    with_recorder(tmp_path, recorder).trainer.train()
    state: Any = recorder.states[-1]
    with pytest.raises(FrozenInstanceError):
        state.iteration = 0
    with pytest.raises(TypeError):
        state.metrics["reward/mean"] = 1.0


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [("iteration", 1), ("evaluate", 2), ("save", 2), ("iteration", 3)])
def test_a_requested_stop_saves_and_the_resumed_run_has_the_events_that_are_left(
    tmp_path: Path, stop_at: tuple[str, int]
) -> None:
    first, second = Recorder(stop_at=stop_at), Recorder()
    run = with_recorder(tmp_path, first)
    assert not run.trainer.train()
    iteration = run.trainer.progress.iteration
    assert iteration == stop_at[1] and run.saved[-1] == iteration
    again = resumed(tmp_path, second, iteration)
    assert again.trainer.train()
    assert second.events[0] == ("begin", iteration)
    assert second.states[0].checkpoint == tmp_path / "checkpoints" / f"{iteration:06d}"
    # where the stop comes between the checkpoints of the whole run, there is one more, of the stop
    events = [*first.events[1:], *second.events[1:]]
    assert [event for event in events if event != ("save", iteration) or event in WHOLE] == WHOLE
    whole = toy(tmp_path / "whole", iterations=4, checkpoint={"every": 2}, **FASTER)
    whole.trainer.train()
    torch.testing.assert_close(trained(again), trained(whole), rtol=0, atol=0)


def test_a_stop_requested_at_the_start_trains_nothing(tmp_path: Path) -> None:
    run = with_recorder(tmp_path, recorder := Recorder(stop_at=("begin", 0)))
    assert not run.trainer.train()
    assert recorder.events == [("begin", 0)] and run.saved == []


@pytest.mark.slow
@pytest.mark.parametrize("fail_at", [("iteration", 3), ("evaluate", 2), ("save", 2)])
def test_a_failing_callback_ends_the_run_with_its_line_and_what_was_trained_is_saved(
    tmp_path: Path, fail_at: tuple[str, int]
) -> None:
    run = with_recorder(tmp_path, recorder := Recorder(fail_at=fail_at))
    pattern = (
        rf"callback Recorder failed in on_\w+ at iteration {fail_at[1]}: KeyError: .* \(at test_callbacks.py:\d+\)"
    )
    with pytest.raises(RunError, match=pattern):
        run.trainer.train()
    assert run.saved[-1] == fail_at[1]
    second = Recorder()
    again = resumed(tmp_path, second, fail_at[1])
    assert again.trainer.train()
    events = [*recorder.events[1:], *second.events[1:]]
    assert [event for event in WHOLE if event not in events] in ([], [("save", fail_at[1])])
    whole = toy(tmp_path / "whole", iterations=4, checkpoint={"every": 2}, **FASTER)
    whole.trainer.train()
    torch.testing.assert_close(trained(again), trained(whole), rtol=0, atol=0)


def test_a_callback_that_fails_before_training_leaves_nothing(tmp_path: Path) -> None:
    run = with_recorder(tmp_path, Recorder(fail_at=("begin", 0)))
    with pytest.raises(RunError, match="on_train_begin at iteration 0"):
        run.trainer.train()
    assert run.saved == [] and run.lines == []


def test_a_callback_that_exits_python_ends_the_run_as_a_failure(tmp_path: Path) -> None:
    class Leaver(Callback):
        def on_iteration_end(self, state: TrainState, control: TrainControl) -> None:
            raise SystemExit(0)

    with pytest.raises(RunError, match="callback Leaver failed in on_iteration_end at iteration 1: SystemExit"):
        with_recorder(tmp_path, Leaver()).trainer.train()


def test_callbacks_are_called_in_the_order_in_which_they_were_given(tmp_path: Path) -> None:
    order: list[int] = []

    class Numbered(Callback):
        def __init__(self, number: int) -> None:
            self.number = number

        def on_train_begin(self, state: TrainState, control: TrainControl) -> None:
            order.append(self.number)

    run = toy(tmp_path, iterations=1)
    run.trainer.callbacks = Callbacks([Numbered(2), Numbered(1)])
    run.trainer.train()
    assert order == [2, 1]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("on_iteration_ended", "on_iteration_end"),
        ("on_evaluation", "on_evaluate"),
        ("iteration_end", "on_iteration_end"),
    ],
)
def test_a_misspelt_event_is_refused_with_the_right_name_when_the_class_is_defined(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=rf"Notify.{wrong} is no event \(did you mean '{right}'\?\)"):
        type("Notify", (Callback,), {wrong: lambda self, state, control: None})


def test_an_event_of_other_libraries_is_refused_with_the_list_of_events() -> None:
    with pytest.raises(ConfigError, match="Notify.on_log is no event; events are " + ", ".join(EVENTS)):
        type("Notify", (Callback,), {"on_log": lambda self, state, control: None})


def test_what_is_no_callback_or_cannot_be_called_is_refused_before_the_run() -> None:
    class OneArgument(Callback):
        def on_save(self, state: TrainState) -> None:  # type: ignore[override]
            pass

    class Async(Callback):
        async def on_save(self, state: TrainState, control: TrainControl) -> None:  # type: ignore[override]
            pass

    members: list[Any] = [Callback, print, OneArgument(), Async()]
    messages = ["callbacks.0 must be an instance of mmrl.Callback, got .* give an instance", "callbacks.0 must be an"]
    messages += [r"OneArgument.on_save must be called with .*: def on_save\(self, state, control\)", "Async.on_save is"]
    for member, message in zip(members, messages, strict=True):
        with pytest.raises(ConfigError, match=message):
            Callbacks([member])


class WritesSummary(Recorder):
    """Looks for the files of a run's end."""

    def on_train_end(self, state: TrainState, control: TrainControl) -> None:
        super().on_train_end(state, control)
        self.files = {path.name for path in state.folder.iterdir()}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


@pytest.mark.slow  # most of a second each, or more
def test_train_and_resume_of_the_package_call_callbacks_up_to_the_report(lab: Path) -> None:
    first, second = Recorder(stop_at=("iteration", 1)), WritesSummary()
    outcome = mmrl.train("lab/reinforce", LAB, out=lab, callbacks=[first])
    assert not outcome.is_complete and not first.states[-1].is_complete
    assert first.events == [("begin", 0), ("evaluate", 0), ("iteration", 1), ("save", 1), ("end", 1)]
    outcome = mmrl.resume(lab, callbacks=[second])
    assert outcome.is_complete and second.states[-1].is_complete
    assert second.events[:5] == [("begin", 1), ("iteration", 2), ("evaluate", 2), ("save", 2), ("iteration", 3)]
    assert second.events[5:] == [("evaluate", 3), ("save", 3), ("end", 3)]
    assert {"summary.json", "report.html"} <= second.files


def test_a_wrong_callback_leaves_no_run_directory(lab: Path) -> None:
    wrong: Any = print
    with pytest.raises(ConfigError, match="must be an instance of mmrl"):
        mmrl.train("lab/reinforce", LAB, out=lab, callbacks=[wrong])
    assert not lab.exists()


class FailsOnTheOther(Callback):
    def on_iteration_end(self, state: TrainState, control: TrainControl) -> None:
        if not state.is_main:
            raise KeyError("only here")


def _failing_in_one(folder: Path) -> tuple[str, int]:
    """Returns what a process raises where the callback of the second fails, and how many checkpoints there are."""
    run = with_recorder(folder, FailsOnTheOther(), evaluation=None)
    try:
        run.trainer.train()
    except RunError as error:
        return str(error), len(checkpoint.saved(folder / "checkpoints"))
    return "", 0


@pytest.mark.slow
def test_a_callback_that_fails_on_one_process_ends_all_after_a_save(tmp_path: Path) -> None:
    for message, num_saved in in_processes(partial(_failing_in_one, tmp_path), 2):
        assert "callback FailsOnTheOther failed in on_iteration_end at iteration 1: KeyError" in message
        assert num_saved == 1
