"""Runs whose next rollout is sampled by another process of their own, with a copy of the network."""

import gc
import os
import pickle
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from mmrl.assembly.build import build, make_trainer
from mmrl.commands.train import restored
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError, RunError
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.reporting.metric_names import VARYING
from mmrl.reporting.tracking import Tracking
from mmrl.run_directory.resumed_settings import may_change
from mmrl.training import checkpoint
from mmrl.training.processes import Processes
from mmrl.training.rollouts import MemberRequest
from mmrl.training.sampling_process import GroupRequest, SamplingProcess, check_device, packed
from mmrl.training.trainer import Trainer
from tests.tiny_runs import KINDS, SDE, SMALL
from tests.tiny_texts import vision_language

ELSEWHERE = "rollout={ahead: 1, devices: [cpu]}"
FLOW = KINDS["policy_gradient"]
ROUNDED = (*KINDS["nft"], "precision=bfloat16", "memory={trained_weights: bfloat16}")


@dataclass(frozen=True)
class Kept(Tracking):
    """Keeps what is logged."""

    logged: list[dict[str, float]] = field(default_factory=list)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.logged.append({name: value for name, value in metrics.items() if not name.startswith(VARYING)})


def made(folder: Path, *overrides: str) -> Trainer:
    settings = (*SMALL, "iterations=3", "checkpoint={every: 0, keep: 9}", *overrides, "evaluation=null")
    config = load_config("quickstart", list(settings))
    torch.manual_seed(0)
    return make_trainer(config, build(config), folder, Kept())


def logged(of: Trainer) -> list[dict[str, float]]:
    assert isinstance(of.tracking, Kept)
    return of.tracking.logged


def weights(of: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in of.policy.weights.tensors("trained").items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [FLOW, ROUNDED, pytest.param(KINDS["lora"], marks=pytest.mark.exhaustive)],
    ids=["flow", "rounded", "lora"],
)
def test_a_run_whose_weights_stand_still_is_the_same_run(kind: tuple[str, ...], tmp_path: Path) -> None:
    still = "optimizer={name: sgd, learning_rate: 1e-30}"
    own, ahead = made(tmp_path / "own", *kind, still), made(tmp_path / "ahead", *kind, still, ELSEWHERE)
    own.train()
    ahead.train()
    for number, (line, wanted) in enumerate(zip(logged(ahead), logged(own), strict=True)):
        assert line.pop("rollout/staleness") == (number > 0), "all samples but those of the first iteration"
        line = {name: value for name, value in line.items() if not name.startswith(("engine/", "calls/"))}
        wanted = {name: value for name, value in wanted.items() if not name.startswith("calls/")}
        assert line == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        assert line["reward/mean"] == wanted["reward/mean"], "bit for bit the same samples"


@pytest.mark.slow
def test_samples_are_by_the_weights_of_one_iteration_before(tmp_path: Path) -> None:
    trainer = made(tmp_path, *FLOW, "optimizer={name: sgd, learning_rate: 0.5}", ELSEWHERE)
    collector, policy = trainer.collector, trainer.policy
    seen: list[tuple[Rollout, Rollout]] = []
    before = weights(trainer)

    def noting(iteration: int, which: object) -> object:
        collected = type(collector).__call__(collector, iteration, "trained")
        assert collected.rollout is not None
        plans = [collector._plan(one) for one in requests_of(collected.rollout)]
        now = weights(trainer)
        put(trainer, before)
        seen.append((collected.rollout, policy.rollout(collected.rollout.prompts, plans, collected.rollout.keys)))
        put(trainer, now)
        before.update(now)
        return collected

    def requests_of(rollout: Rollout) -> list[MemberRequest]:
        return [MemberRequest.whole((key, one), 4) for key, one in zip(rollout.keys, rollout.prompts, strict=True)]

    object.__setattr__(trainer, "collector", _Noting(collector, noting))
    trainer.train()
    for found, wanted in seen:
        assert found.outputs.images is not None and wanted.outputs.images is not None
        assert torch.equal(found.outputs.images, wanted.outputs.images)
    for line in logged(trainer)[1:]:
        assert line["engine/difference_max"] > 0 and line["engine/effective"] < 1, "and they are corrected"


class _Noting:
    """A collector whose call is another one."""

    def __init__(self, collector: object, call: object) -> None:
        self._collector, self._call = collector, call

    def __getattr__(self, name: str) -> object:
        return getattr(self._collector, name)

    def __call__(self, iteration: int, which: object) -> object:
        return self._call(iteration, which)  # type: ignore[operator]


def put(trainer: Trainer, values: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in trainer.policy.weights.parameters.items():
            tensor.copy_(values[name])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KINDS["nft"], pytest.param(FLOW, marks=pytest.mark.exhaustive)], ids=["nft", "flow"])
def test_a_run_that_is_stopped_and_resumed_is_the_run_that_was_not(kind: tuple[str, ...], tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", *kind, ELSEWHERE, "checkpoint={every: 1, keep: 9}")
    whole.train()
    resumed = made(tmp_path / "resumed", *kind, ELSEWHERE)
    resumed.restore(checkpoint.load(tmp_path / "whole" / "checkpoints" / "000002"))
    resumed.train()
    assert logged(resumed) == logged(whole)[2:]
    for name, tensor in weights(resumed).items():
        assert torch.equal(tensor, weights(whole)[name]), name


@pytest.mark.slow
def test_a_run_that_has_ended_and_goes_on_takes_no_samples_of_before(tmp_path: Path) -> None:
    trainer = made(tmp_path, *FLOW, ELSEWHERE, "iterations=2", "checkpoint={every: 1, keep: 9}")
    trainer.train()
    for number, names in ((1, {"sampled_by"}), (2, set())):
        saved = checkpoint.load(tmp_path / "checkpoints" / f"{number:06d}")
        assert saved.tensors.keys() & {"sampled_by", "ahead"} == names


@pytest.mark.slow
def test_a_process_that_dies_or_fails_ends_the_run_with_its_name(tmp_path: Path) -> None:
    trainer = made(tmp_path, *FLOW, ELSEWHERE)
    process = begun(trainer)
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGTERM)  # as a queue ends all processes of a job: the run ends it
    os.kill(process._process.pid, signal.SIGINT)
    rollout = process.take(keys_of(trainer))
    assert rollout is not None and rollout.num_samples == process.num_taken > 0
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match=r"samples ahead on cpu \(rollout.devices\) ended, with exit code -9"):
        trainer.train()
    assert process._connection is None, "closed at the end of training"
    broken = made(tmp_path / "broken", *FLOW, ELSEWHERE).collector.elsewhere
    assert broken is not None
    broken.begin(0, trainer.policy.weights.parameters, [GroupRequest((), ("no plan",), ())])  # type: ignore[arg-type]
    with pytest.raises(RunError, match="failed: "):
        broken.take(())
    assert broken._process is not None
    pid = broken._process.pid
    del broken
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_several_requests_are_sampled_before_the_first_is_taken(tmp_path: Path) -> None:
    trainer = made(tmp_path, *FLOW, ELSEWHERE, "rollout_groups=1")
    process, parameters = begun(trainer), trainer.policy.weights.parameters
    (key,) = keys_of(trainer)
    assert process.take([GroupKey(1, 2, 3)]) is None, "never asked for"
    first = process.take([key])
    assert first is not None
    (prompt,), plan = first.prompts, trainer.collector._plan(MemberRequest.whole((key, first.prompts[0]), 4))
    keys = [replace(key, prompt_index=100 + number) for number in range(40)]  # more than a pipe holds
    process.begin(0, parameters, [GroupRequest((prompt,), (plan,), (one,)) for one in keys])
    connection = process._connection
    assert connection is not None and connection.poll(120)
    deadline = time.monotonic() + 120
    process._outbox.put(pickle.dumps("no work"))  # which ends it, once all requests are done
    assert process._process is not None
    while process._process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process._process.poll() == 1


def begun(trainer: Trainer) -> SamplingProcess:
    """Returns the process after it was let begin the first iteration."""
    process = trainer.collector.elsewhere
    assert process is not None and process._process is None, "nothing starts it before"
    trainer.collector.sample_elsewhere(0, trainer.policy.weights.parameters)
    return process


def keys_of(trainer: Trainer) -> list[GroupKey]:
    return [one.key for one in trainer.collector._chunks(trainer.collector._upcoming(0))[0]]


def test_restoring_starts_no_process(tmp_path: Path) -> None:
    trainer = made(tmp_path, *FLOW, ELSEWHERE)
    trainer.save()
    trainer.restore(checkpoint.load(tmp_path / "checkpoints" / "000000"))
    assert trainer.collector.elsewhere is not None and trainer.collector.elsewhere._process is None


def test_a_run_is_evaluated_on_machines_without_its_devices() -> None:
    with restored("quickstart", overrides=[*SMALL, *FLOW, "rollout={ahead: 1, devices: ['cuda:7']}"]) as (trainer, _):
        assert trainer.collector.elsewhere is None


REFUSED = {
    "rollout={devices: [cpu]}": "set rollout.ahead to 1",
    "rollout={ahead: 1, devices: [gpu seven]}": "devices of torch",
    "rollout={ahead: 1, devices: []}": "devices of torch",
    "rollout={ahead: 1}": "needs what samples ahead: modality.engine with sleep 0, or rollout.devices",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_cannot_be_sampled_ahead_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[setting]):
        build(load_config("quickstart", [*SMALL, *FLOW, setting]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (KINDS["draft"], "cannot serve loss 'draft', whose gradients go through the sampler"),
        (
            (SDE, "loss={name: adjoint_matching}", "rewards=[{name: soft_shapes}]"),
            "cannot serve loss 'adjoint_matching', whose gradients",
        ),
        ((*FLOW, "replay={capacity: 64}"), "does not go with replay"),
        ((*vision_language(), "loss={name: grpo}"), "is for images and videos, got modality 'vision_language'"),
    ],
)
def test_parts_that_need_what_is_not_there_are_refused(settings: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=f"rollout.devices {words}"):
        build(load_config("quickstart", [*SMALL, *settings, "evaluation=null", ELSEWHERE]))


def test_a_resumed_run_may_sample_on_another_device_but_not_stop_sampling_ahead() -> None:
    assert may_change("rollout.devices.0") and not may_change("rollout.ahead")


def test_each_process_of_a_machine_has_its_own_device() -> None:
    assert Processes().own(["cuda:1", "cuda:2"]) == "cuda:1"
    with pytest.raises(ConfigError, match="a device for each process of a machine, got 0 for process number 1"):
        Processes().own([])
    check_device("cpu", torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"of the kind that the run trains on, cpu; got 'meta'"):
        check_device("meta", torch.device("cpu"))


def test_a_policy_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be given to another process"):
        packed(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="OfScript is of the script that runs"):
        packed(type("OfScript", (), {"__module__": "__main__"})())
