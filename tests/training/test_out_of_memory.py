"""A device whose memory does not suffice: the work is begun again in halves, and its result is the same."""

import gc
import logging
import os
import weakref
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.losses.disco import Disco
from mmrl.losses.gspo import Gspo
from mmrl.modalities.tokens.generation import AnswerGenerator
from mmrl.system.out_of_memory import OutOfMemory, in_halves
from tests import vision_twins
from tests.process_runs import in_processes
from tests.toy_runs import Toy, toy, trained

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB.\nAnd much more"


def short_of_memory(run: Toy, most: int, *, after: int = 0) -> list[int]:
    """Lets forward passes of more than `most` network calls fail, with a graph before them; the sizes tried."""
    policy: Any = run.trainer.policy
    forward, tried = policy.forward, list[int]()

    def limited(rollout: Any, view: Any) -> Any:
        tried.append(view.num_calls)
        if view.num_calls > most and len(tried) > after:
            raise torch.OutOfMemoryError(FULL)
        return forward(rollout, view)

    policy.forward = limited
    return tried


def run_of(folder: Path, *, micro_batch: int, loss: Any = None, **changes: Any) -> Toy:
    updates = {"micro_batch": micro_batch, "minibatches": 2}
    run = toy(folder, updates=updates, iterations=2, evaluation=None, optimizer={"learning_rate": 0.3}, **changes)
    if loss is not None:
        run.trainer.loss = loss
    return run


@pytest.mark.slow
@pytest.mark.parametrize("loss", [None, Gspo(), Disco()], ids=["decisions", "paths", "step"])
def test_a_step_without_memory_is_begun_again_in_halves_with_the_same_result(
    loss: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = run_of(tmp_path / "small", micro_batch=3, loss=loss)
    expected.trainer.train()
    run = run_of(tmp_path / "large", micro_batch=512, loss=loss)
    tried = short_of_memory(run, 3)
    with caplog.at_level(logging.WARNING):
        assert run.trainer.train()
    assert run.trainer.micro_batch == 3 and tried[:3] == [12, 6, 3]  # 24 answers in two steps
    assert max(tried[3:]) == 3  # never tried again
    assert len(caplog.messages) == 1 and "updates.micro_batch 512; the run goes on with 3" in caplog.text
    for name, tensor in trained(expected).items():
        assert torch.equal(trained(run)[name], tensor)


@pytest.mark.slow
def test_gradients_from_before_the_failure_are_dropped(tmp_path: Path) -> None:
    expected = run_of(tmp_path / "small", micro_batch=1)
    expected.trainer.train()
    run = run_of(tmp_path / "large", micro_batch=2)
    short_of_memory(run, 1, after=4)  # the fifth of six micro-batches
    assert run.trainer.train() and run.trainer.micro_batch == 1
    for name, tensor in trained(expected).items():
        assert torch.equal(trained(run)[name], tensor)


@pytest.mark.slow
def test_memory_that_does_not_suffice_for_one_call_ends_the_run(tmp_path: Path) -> None:
    run = run_of(tmp_path / "none", micro_batch=4)
    short_of_memory(run, 0)
    with pytest.raises(OutOfMemory, match=r"with updates.micro_batch 1 too: CUDA out of memory. Tried .* GiB\.$"):
        run.trainer.train()


@pytest.mark.slow
def test_what_failed_is_freed_before_the_next_attempt() -> None:
    held: list[weakref.ref[Tensor]] = []

    def work(size: int) -> int:
        gc.disable()
        assert not any(one() is not None for one in held)
        activations = torch.ones(size)
        held.append(weakref.ref(activations))
        if size > 2:
            raise torch.OutOfMemoryError(FULL)
        return size

    try:
        assert in_halves(16, work, "a.setting", lambda: 16) == (2, 2)
    finally:
        gc.enable()
    assert len(held) == 4


def of_rank() -> tuple[int, dict[str, Tensor]]:
    """The last micro-batch and weights of a process whose companion alone runs out of memory."""
    with TemporaryDirectory() as folder:
        run = run_of(Path(folder) / "run", micro_batch=64)
        if os.environ.get("RANK") == "1":
            short_of_memory(run, 2)
        run.trainer.train()
        return run.trainer.micro_batch, {name: tensor.tolist() for name, tensor in trained(run).items()}  # type: ignore[misc]


@pytest.mark.slow  # two processes
def test_two_processes_agree_on_the_size() -> None:
    (one, first), (two, second) = in_processes(of_rank, 2)
    ((alone, expected),) = in_processes(of_rank, 1)
    assert (one, two, alone) == (1, 1, 64)  # of 6 calls on each: 3, then 1
    assert first == second
    for name, values in expected.items():
        torch.testing.assert_close(torch.tensor(first[name]), torch.tensor(values), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_answers_are_sampled_in_halves_and_are_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = vision_twins.rollout(vision_twins.policy())
    answers, tried = AnswerGenerator.answers, list[int]()

    def limited(self: AnswerGenerator, *given: Any) -> Any:
        tried.append(self.batch_size)
        if self.batch_size > 2:
            raise torch.OutOfMemoryError(FULL)
        return answers(self, *given)

    monkeypatch.setattr(AnswerGenerator, "answers", limited)
    policy = vision_twins.policy()
    with caplog.at_level(logging.WARNING):
        found = vision_twins.rollout(policy)
        vision_twins.rollout(policy)
    assert tried == [256, 4, 2, 2] and len(caplog.messages) == 1
    assert found.outputs.texts == expected.outputs.texts
    assert torch.equal(found.trace.completions.tokens, expected.trace.completions.tokens)
    torch.testing.assert_close(found.trace.completions.log_prob, expected.trace.completions.log_prob)
