"""Batches that are `auto`: the largest that fit, found by trying all; one choice for a run; the result of a number."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.testing import assert_close

from mmrl.assembly import batches, forecast
from mmrl.assembly.build import build
from mmrl.assembly.compatibility import Parts
from mmrl.commands.check import gpu_forecast
from mmrl.commands.train import train
from mmrl.core.config import RunConfig, load_config
from mmrl.core.contracts import Footprint
from mmrl.run_directory.start import new_run, resumed_run
from mmrl.system.errors import ConfigError
from mmrl.system.host_memory import free_bytes
from mmrl.training.checkpoint import latest, load
from tests.tiny_texts import vision_language

AUTO = ("updates.micro_batch=auto", "modality.answer_batch=auto")
WEIGHTS, OF_CALL, OF_ANSWER = 1000, 70, 30  # bytes


def settings(*overrides: str, like: tuple[str, ...] = AUTO) -> RunConfig:
    small = ("prompts.train=lab:screens/click_train[:8]", "evaluation=null", "prompts_per_iteration=4", "group_size=6")
    return load_config("quickstart_gui", [*small, *like, *overrides])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Replaces the forecast of a model by round numbers; the batches that it was asked about."""
    asked = list[tuple[int, int]]()

    def footprint_of(config: RunConfig, parts: Parts, prompt_tokens: int) -> Any:
        work, policy = forecast.workload_of(config, parts, prompt_tokens), parts.policy
        answers: int = policy.answers_at_once  # type: ignore[attr-defined]
        asked.append((work.micro_batch, answers))
        activations, sampling = OF_CALL * work.micro_batch, OF_ANSWER * answers
        return work, Footprint(WEIGHTS, 0, 0, True, activations, 0, sampling, 0, 0, 1.0, 1.0, False, 1, 0)

    monkeypatch.setattr(forecast, "footprint_of", footprint_of)
    return asked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beside", "calls", "answers"),
    [
        (24 * OF_CALL, 24, 24),  # all 24 samples at once
        (24 * OF_CALL - 1, 16, 24),
        (16 * OF_CALL - 1, 8, 24),
        (2 * OF_CALL, 2, 4),
        (OF_CALL, 1, 2),
    ],
)
def test_the_largest_that_fit_are_chosen(counted: list[tuple[int, int]], beside: int, calls: int, answers: int) -> None:
    config = settings()
    found = batches.fitting(config, build(config), 10, lambda weights: WEIGHTS + beside - weights, on_gpu=True)
    assert found == {batches.ANSWERS: answers, batches.CALLS: calls}
    assert len(counted) <= 12  # not every size


def test_each_optimizer_step_has_its_own_calls(counted: list[tuple[int, int]]) -> None:
    config = settings("updates.minibatches=2", "modality.answer_batch=5")
    assert batches.fitting(config, build(config), 10, lambda _: 1e9, on_gpu=True) == {batches.CALLS: 12}
    assert {answers for _, answers in counted} == {5}  # a number stays


def test_what_does_not_fit_at_all_is_said(counted: list[tuple[int, int]], caplog: pytest.LogCaptureFixture) -> None:
    config = settings(like=AUTO[:1])
    with caplog.at_level(logging.WARNING):
        assert batches.fitting(config, build(config), 10, lambda _: OF_CALL - 1, on_gpu=True) == {batches.CALLS: 1}
    assert "updates.micro_batch is 1, which by the forecast does not fit" in caplog.text


def test_a_gpu_or_a_smaller_budget_bounds_the_choice(counted: list[tuple[int, int]]) -> None:
    gpu = replace(forecast.GPUS["4090"], memory=(WEIGHTS + 8 * OF_CALL) / forecast.USABLE / 1e9 + 1e-12)
    for budget, calls in (("null", 8), ((WEIGHTS + 4 * OF_CALL + 1) / 1e9, 4), (1.0, 8)):
        config = settings(f"memory.budget_gb={budget}", like=AUTO[:1])
        assert batches.fitting_on(config, build(config), gpu, 10)[batches.CALLS] == calls


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sharding=full", "updates.micro_batch 'auto' needs weights that every process holds whole"),
        ("updates.micro_batch=0", "updates.micro_batch"),
        ("memory.budget_gb=0", "memory.budget_gb"),
    ],
)
def test_what_cannot_be_chosen_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(settings(override, like=AUTO[:1]))


def test_free_memory_is_a_number_of_bytes_here_and_unknown_on_other_devices() -> None:
    assert 2**20 < free_bytes(torch.device("cpu")) < 2**50
    with pytest.raises(ValueError, match="free memory of meta is not known"):
        free_bytes(torch.device("meta"))


def run(folder: Path, iterations: int, *overrides: str) -> Any:
    small = ("threads=1", "group_size=4", "prompts_per_iteration=2", "checkpoint.every=1", "evaluation=null")
    given = [*vision_language(), "evaluation=null", *small, f"iterations={iterations}", *overrides]
    train(*new_run("quickstart_gui", [one for one in given if not one.startswith("evaluation.")], folder))
    return tensors(folder)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    path = latest(folder / "checkpoints")
    assert path is not None
    return dict(load(path).tensors["trained"])


@pytest.mark.slow  # five runs of a small model, and torch's fake tensors
def test_a_run_chooses_once_and_its_result_is_that_of_numbers(tmp_path: Path) -> None:
    auto = (*AUTO, "memory.budget_gb=0.003")
    run(tmp_path / "auto", 1, *auto)
    chosen = yaml.safe_load((tmp_path / "auto" / "config.yaml").read_text(encoding="utf-8"))
    calls, answers = chosen["updates"]["micro_batch"], chosen["modality"]["answer_batch"]
    assert (calls, answers) == (4, 8), "more calls of an update do not fit, and all answers do"
    train(resumed_run(tmp_path / "auto", ["iterations=2"]), tmp_path / "auto", resume=True)
    same = run(tmp_path / "same", 2, f"updates.micro_batch={calls}", f"modality.answer_batch={answers}")
    other = run(tmp_path / "other", 2, "updates.micro_batch=512", "modality.answer_batch=3")
    for name, tensor in tensors(tmp_path / "auto").items():
        assert torch.equal(tensor, same[name])
        assert_close(tensor, other[name], atol=1e-5, rtol=0)


@pytest.mark.slow  # torch's fake tensors
def test_check_prints_what_it_chose_and_the_memory_of_it() -> None:
    config = settings("memory.budget_gb=0.1")
    said = gpu_forecast(config, "4090", 300)
    numbers = said["chosen"]
    assert set(numbers) == {batches.ANSWERS, batches.CALLS} and json.dumps(said)
    sizes = {
        size: gpu_forecast(batches.with_numbers(config, {**numbers, batches.CALLS: size}), "4090", 300)
        for size in (4, 8, 16, 24)
    }
    fit = [size for size, one in sizes.items() if one["memory_gb"]["update"] <= 0.1]
    assert said["memory_gb"] == sizes[numbers[batches.CALLS]]["memory_gb"] and numbers[batches.CALLS] == max(fit)
