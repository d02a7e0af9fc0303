"""The loop around the toy token policy: everything but a modality, in milliseconds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mmrl.advantages.grpo import Grpo as GrpoAdvantage
from mmrl.core.config import GroupSettings, RunConfig, check_config
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.losses.grpo import Grpo
from mmrl.prompts.stream import PromptStream
from mmrl.reporting.metrics_log import MetricsLog
from mmrl.reporting.tracking import Tracking
from mmrl.scoring.scorer import RewardTerm, Scorer
from mmrl.training.held_out import Evaluator
from mmrl.training.processes import Processes
from mmrl.training.rollouts import Collector
from mmrl.training.trainer import Trainer
from tests.toys import ToyTokens

GROUP_SIZE = 6


@dataclass(frozen=True)
class WholeGroup:
    """A sampler whose plan is the number of samples."""

    sample_kind: ClassVar[Literal["latents", "tokens", "turns", "given"]] = "tokens"

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> int:
        return group_size


@dataclass
class CountZeros:
    """How many zeros an answer has; 0.5 for all answers to a dull prompt; `watch` sees each batch."""

    source: ClassVar[str] = "here"
    range: ClassVar[tuple[float, float]] = (0.0, 4.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None

    watch: Callable[[RewardBatch], Any] = lambda batch: None

    def score(self, batch: RewardBatch) -> Tensor:
        self.watch(batch)
        assert batch.outputs.texts is not None
        pairs = zip(batch.prompts, batch.outputs.texts, strict=True)
        return torch.tensor([0.5 if "dull" in prompt.text else float(text.count("0")) for prompt, text in pairs])


def stream(*texts: str, seed: int = 0) -> PromptStream:
    return PromptStream([tuple(Prompt(text) for text in texts)], [1.0], seed)


def collector(
    prompts: PromptStream,
    groups: GroupSettings | None = None,
    *,
    wanted: int = 4,
    chunk: int = 4,
    overlap: bool = False,
    reward: Any = None,
) -> Collector:
    scorer = Scorer((RewardTerm("zeros", reward or CountZeros()),))
    groups = groups or GroupSettings()
    policy: Any = ToyTokens()
    advantage = GrpoAdvantage()
    return Collector(
        *(policy, WholeGroup(), scorer, prompts, Processes(), groups, 0, GROUP_SIZE, wanted, chunk, overlap, advantage)
    )


def settings(**changes: Any) -> RunConfig:
    unused: dict[str, Any] = {"name": "unused"}
    small = {
        "iterations": 4,
        "group_size": GROUP_SIZE,
        "prompts_per_iteration": 4,
        "prompts": {"train": "unused.txt", "held_out": "unused.txt"},
        "modality": unused,
        "sampler": unused,
        "rewards": [unused],
        "advantage": unused,
        "loss": unused,
        "checkpoint": {"every": 0},
        "evaluation": {"sampler": unused, "every": 0},
    }
    return check_config(small | changes)


@dataclass
class Toy:
    """A trainer around the toy policy in a run directory, with what it logged."""

    trainer: Trainer
    saved: list[int] = field(default_factory=list)  # iterations, in order

    @property
    def lines(self) -> list[dict[str, Any]]:
        assert self.trainer.tracking.metrics is not None
        return self.trainer.tracking.metrics.read()

    @property
    def evaluated(self) -> list[int]:
        return [line["iteration"] for line in self.lines if "held_out/score" in line]


def toy(folder: Path, *texts: str, reward: Any = None, **changes: Any) -> Toy:
    folder.mkdir(exist_ok=True)
    config, prompts = settings(**changes), stream(*(texts or ("bright",)))
    drawing = collector(prompts, config.groups, reward=reward)
    policy: Any = drawing.policy
    if config.averaging is not None:
        policy.weights.keep("averaged")
    evaluator = Evaluator(
        policy, WholeGroup(), drawing.scorer, drawing.processes, (Prompt("held out"),), "trained", 8, 123, 4
    )
    trainer = Trainer(
        config=config,
        folder=folder,
        processes=drawing.processes,
        policy=policy,
        collector=drawing,
        advantage=GrpoAdvantage(),
        loss=Grpo(clip_low=0.2, clip_high=0.2),
        optimizer=torch.optim.SGD(policy.weights.parameters.values(), lr=config.optimizer.learning_rate),
        stateful={},
        evaluator=evaluator if config.evaluation is not None else None,
        tracking=Tracking(MetricsLog(folder / "metrics.jsonl")),
    )
    made = Toy(trainer)
    save = trainer.save

    def noted() -> None:
        made.saved.append(trainer.progress.iteration)
        save()

    trainer.save = noted  # type: ignore[method-assign]
    return made


def trained(run: Toy) -> dict[str, Tensor]:
    """A copy of the weights as they are now, by name."""
    return {name: tensor.clone() for name, tensor in run.trainer.policy.weights.tensors("trained").items()}
