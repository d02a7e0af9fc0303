"""Runs whose engine samples the rollout of the next iteration while this one is learned from."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.assembly.build import build, make_trainer
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.modalities.tokens.vllm.tiny_server import TinyVllm, serve
from mmrl.reporting.metric_names import VARYING
from mmrl.reporting.tracking import Tracking
from mmrl.training import checkpoint
from mmrl.training.trainer import Trainer
from tests.modalities.tokens.vllm.test_vllm_runs import load
from tests.tiny_runs import SMALL
from tests.tiny_texts import vision_language
from tests.vision_twins import twin

PROMPTS, MEMBERS = 2, 4  # of an iteration, of a group: `SMALL`
AHEAD = "rollout.ahead=1"


@dataclass
class Served:
    """A server that notes by which weights each seed was sampled, in numbers: 0 are the first ones that it got."""

    weights_of: dict[int, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    noted: threading.Condition = field(default_factory=threading.Condition)
    url: str = ""

    def __post_init__(self) -> None:
        server = TinyVllm(twin("qwen2_5_vl"), load)

        def answer(method: str, path: str, body: Any) -> Any:
            if path == "/update_weight_version":
                self.names.append(body["new_version"])
            if path == "/inference/v1/generate" and self.names:
                with self.noted:
                    self.weights_of[body["sampling_params"]["seed"]] = len(self.names) - 1
                    self.noted.notify_all()
            return server.answer(method, path, body)

        self.url = serve(answer, lambda: True)

    def of(self, iteration: int) -> set[int]:
        """The weights that sampled the answers of an iteration, of those that a server was asked for."""
        keys = [GroupKey(0, iteration, PROMPTS * iteration + number) for number in range(PROMPTS)]
        seeds = [key.seed_for("tokens", member) for key in keys for member in range(MEMBERS)]
        return {self.weights_of[seed] for seed in seeds if seed in self.weights_of}


@dataclass(frozen=True)
class Kept(Tracking):
    """Keeps what is logged."""

    logged: list[dict[str, float]] = field(default_factory=list)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.logged.append({name: value for name, value in metrics.items() if not name.startswith(VARYING)})


def made(folder: Path, served: Served, *overrides: str) -> Trainer:
    settings = (
        *SMALL, *vision_language(), "iterations=4", "loss={name: grpo}", "optimizer={name: sgd, learning_rate: 0.5}",
        "evaluation=null", "checkpoint={every: 0, keep: 9}", "sampler={name: autoregressive, max_tokens: 8}",
        f"modality.engine={{name: vllm, url: '{served.url}', concurrency: 4}}",
    )  # fmt: skip
    config = load_config("quickstart", [*settings, *overrides])
    torch.manual_seed(0)
    return make_trainer(config, build(config), folder, Kept())


def weights(of: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in of.policy.weights.tensors("trained").items()}


def logged(of: Trainer) -> list[dict[str, float]]:
    assert isinstance(of.tracking, Kept)
    return of.tracking.logged


@pytest.mark.slow  # two training runs
def test_a_run_whose_weights_stand_still_is_the_same_run(tmp_path: Path) -> None:
    served, still = Served(), "optimizer.learning_rate=1e-30"
    own, ahead = made(tmp_path / "own", served, still), made(tmp_path / "ahead", served, still, AHEAD)
    own.train()
    ahead.train()
    for line, wanted in zip(logged(ahead), logged(own), strict=True):
        staleness = line.pop("rollout/staleness")
        assert staleness == (line is not logged(ahead)[0]), "all answers but those of the first iteration"
        assert line == wanted


@pytest.mark.slow
def test_answers_are_of_the_weights_one_iteration_before_and_are_corrected(tmp_path: Path) -> None:
    now, before = Served(), Served()
    own, ahead = made(tmp_path / "own", now), made(tmp_path / "ahead", before, AHEAD)
    own.train()
    ahead.train()
    assert [now.of(iteration) for iteration in range(4)] == [{0}, {1}, {2}, {3}]
    assert [before.of(iteration) for iteration in range(4)] == [{0}, {0}, {1}, {2}]
    for line in logged(own):
        assert line["engine/difference_max"] < 1e-4 and "rollout/staleness" not in line
    assert logged(ahead)[0]["engine/difference_max"] < 1e-4
    for line in logged(ahead)[1:]:
        assert line["engine/difference_max"] > 1e-2, "the trainer's log-probs are by newer weights"
        assert 0 < line["engine/effective"] < 1


@pytest.mark.slow
def test_the_next_rollout_is_sampled_while_this_one_is_learned_from(tmp_path: Path) -> None:
    served = Served()
    trainer = made(tmp_path, served, "iterations=2", AHEAD)
    learn = trainer._learn

    def waiting(collected: Any, iteration: int) -> dict[str, float]:
        with served.noted:
            assert served.noted.wait_for(lambda: iteration == 1 or served.of(1), 30)
        return learn(collected, iteration)

    trainer._learn = waiting  # type: ignore[method-assign]
    assert trainer.train()


@pytest.mark.slow
@pytest.mark.parametrize("other", ["groups={degenerate: refill, min_spread: 0.1}", "modality.lora={rank: 2, alpha: 4}"])
def test_a_run_that_is_stopped_and_resumed_is_the_run_that_was_not(other: str, tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", Served(), AHEAD, other)
    whole.train()
    stopped = made(tmp_path / "stopped", Served(), AHEAD, other)
    learn = stopped._learn

    def stopping(collected: Any, iteration: int) -> dict[str, float]:
        stopped.stop_requested = iteration == 1  # as Ctrl-C does
        return learn(collected, iteration)

    stopped._learn = stopping  # type: ignore[method-assign]
    assert not stopped.train()
    saved = checkpoint.load(tmp_path / "stopped/checkpoints/000002")
    assert len(saved.tensors["ahead"]["ahead/name"]) == PROMPTS * MEMBERS
    resumed = made(tmp_path / "stopped", Served(), AHEAD, other)
    resumed.restore(saved)
    assert resumed.train()
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(resumed)[name], tensor), name
    assert logged(stopped) + logged(resumed) == logged(whole)
    last = checkpoint.load(tmp_path / "stopped/checkpoints/000004")
    assert not last.tensors["ahead"], "no further iteration was begun"


@pytest.mark.parametrize(
    "other",
    [
        "modality.engine=null",
        "modality.engine.sleep=1",
        "modality={name: 'tests.toy_worlds:Clicker', model: a/b, dialect: plain, instructions: none, engine: "
        "{name: vllm}, environment: {name: 'tests.toy_worlds:Corridor', places: 1}}",
    ],
)
def test_what_cannot_be_sampled_ahead_is_refused(other: str) -> None:
    agent = ("sampler={name: episodes, max_tokens: 6, max_turns: 3}",) if "Clicker" in other else ()
    settings = [*SMALL, *vision_language(), "loss={name: grpo}", "evaluation=null", *agent, AHEAD]
    with pytest.raises(
        ConfigError, match=r"rollout.ahead needs what samples ahead: modality.engine with sleep 0, or rollout"
    ):
        build(load_config("quickstart", [*settings, "modality.engine={name: vllm}", other]))
