"""An iteration of mmrl told apart into phases, by parts of mmrl that keep the time."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from _common import Clock, Seconds
from torch import Tensor

from mmrl.assembly.build import build, make_trainer
from mmrl.core.config import RunConfig
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.rewards import Thought
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.scoring.scorer import Judgement, Scorer
from mmrl.training.member_sampling import member_importance
from mmrl.training.minibatches import batch_of
from mmrl.training.trainer import Trainer
from mmrl.training.update import Updater, select_groups, views_of


class TimedPolicy(StableDiffusion3):
    """Adds up what decoding takes."""

    decoding = 0.0

    def decode_latents(self, latents: Tensor) -> Tensor:
        clock = Clock()
        images = super().decode_latents(latents)
        self.decoding += clock()
        return images


@dataclass(frozen=True)
class TimedScorer(Scorer):
    """Adds up what scoring takes."""

    seconds: list[float] = field(default_factory=list)

    def judge(
        self, rollout: Rollout, iteration: int, thought: Thought | None = None, *, has_properties: bool = True
    ) -> Judgement:
        clock = Clock()
        judgement = super().judge(rollout, iteration, thought, has_properties=has_properties)
        self.seconds.append(clock())
        return judgement


@dataclass
class MmrlIteration:
    """Times mmrl's collector and updater."""

    trainer: Trainer
    policy: TimedPolicy
    scorer: TimedScorer
    number: int = 0

    @classmethod
    def of(cls, config: RunConfig, folder: Path) -> "MmrlIteration":
        parts = build(config)
        settings = {item.name: getattr(parts.policy, item.name) for item in fields(StableDiffusion3) if item.init}
        policy, scorer = TimedPolicy(**settings), TimedScorer(parts.scorer.terms)
        trainer = make_trainer(config, replace(parts, policy=policy, scorer=scorer), folder)
        policy.conditioning([prompt.text for prompts in parts.prompts.sets for prompt in prompts])  # as in a later pass
        return cls(trainer, policy, scorer)

    def __call__(self) -> Seconds:
        trainer, self.policy.decoding = self.trainer, 0.0
        self.scorer.seconds.clear()
        trainer.optimizer.zero_grad()
        clock = Clock()
        collected = trainer.collector(self.number, trainer.sampling_weights)
        collecting = clock()
        rollout, batch = collected.rollout, batch_of(collected, trainer.advantage, trainer.processes.device)
        rows, part = select_groups(batch, collected.kept)
        key, updates = GroupKey(trainer.config.seed, self.number, 0), trainer.config.updates
        views = views_of(trainer.loss, rollout, rows, part, key)
        updater = Updater(self.policy, trainer.loss, trainer.processes, updates.calls_at_once)
        updater.accumulate(rollout, views, part, "itself", member_importance(part, updates.min_advantage, key))
        apart = {"update": clock(), "decoding": self.policy.decoding, "scoring": sum(self.scorer.seconds)}
        self.number += 1
        return {**apart, "rollout": collecting - apart["decoding"] - apart["scoring"]}
