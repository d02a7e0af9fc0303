"""Parts of mmrl that keep the time, so that an iteration can be told apart into phases."""

from dataclasses import dataclass, field

from _common import Clock
from torch import Tensor

from mmrl.data import Rollout
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.scoring import Judgement, Scorer


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

    def judge(self, rollout: Rollout, iteration: int) -> Judgement:
        clock = Clock()
        judgement = super().judge(rollout, iteration)
        self.seconds.append(clock())
        return judgement
