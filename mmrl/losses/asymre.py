"""AsymRE: REINFORCE on older samples, with a baseline below the mean, so that good samples count more than bad ones."""

from dataclasses import dataclass, replace

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms
from mmrl.core.numerics import Normalisation

from .reinforce import Reinforce


@dataclass(frozen=True)
class Asymre(Reinforce):
    """-(A - baseline_shift) log_prob: the advantage's baseline V moved by `baseline_shift`, in units of the reward.

    Arnal et al. 2025, "Asymmetric REINFORCE for off-Policy Reinforcement Learning", arXiv 2506.20520: r - V with V the
    mean of the group plus a small negative number. On-policy a baseline does not change the mean gradient; on samples
    of older weights a V below their mean reward cannot make the policy collapse, and a V above that mean does. No ratio
    corrects for older samples. Take an advantage without std. A shift of 0 is REINFORCE; samples whose advantage is 0
    are learned from, too. The log-prob is that of the whole sample, hence normalise "constant".
    """

    # What counts alike: each decision, sample or group; under `constant` a sample counts by its sum.
    normalise: Normalisation = "constant"
    baseline_shift: float = -0.1  # added to the advantage's baseline, in units of the reward

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        return super().__call__(measures, replace(batch, advantages=batch.advantages - self.baseline_shift))
