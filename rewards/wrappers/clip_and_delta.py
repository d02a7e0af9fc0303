"""A dense reward that does not pay for more steps: clipped from above, and as the difference of neighboring steps."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch

from ..base.wrapper import RewardWrapper, check_dense, number_mask


@dataclass(frozen=True)
class ClipAndDelta(RewardWrapper):
    """A dense reward p_1 ... p_K of a sample's steps, whose sum from any step on is bounded, however many there are.

      clip   c_k = min(p_k - eta, 0), so that a good step earns nothing and a bad one costs
      delta  d_k = c_k - c_(k + 1) for k < K - 1, d_(K - 1) = c_(K - 1), d_K = 0

    Gao et al. 2024, "On Designing Effective RL Reward at Training Time for LLM Reasoning", arXiv 2410.15115, against
    policies that write more steps to earn more. After delta the sum of the steps from k on is c_k; the last step is
    left to a reward of the outcome beside this one. A sample of one step scores 0 then. With `eta: null` c_k is p_k.
    A step is a decision that has a number: a token, a denoising step or a segment.

    Raises ValueError for a reward that is not dense, for neither eta nor delta, and for an eta at which each step
    scores 0.
    """

    reward: Reward  # a reward of steps, segments or tokens
    eta: float | None  # where clipping begins, in units of the inner reward; null: nothing is clipped
    delta: bool = True  # whether the difference to the next step counts, not the step

    source: ClassVar[str] = "Gao et al. 2024, arXiv 2410.15115"
    granularity: ClassVar[Granularity] = "segment"  # and all dense ones: that of the inner reward
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dense(self.reward)
        low, high = self.reward.range
        if self.eta is None and not self.delta:
            raise ValueError("needs an eta, or delta: with neither the reward is the inner one")
        if self.eta is not None:
            if not (math.isfinite(self.eta) and self.eta > low):
                raise ValueError(f"eta must be finite and above {low:g}, the lowest score, got {self.eta:g}")
            low, high = low - self.eta, min(high - self.eta, 0.0)
        if self.delta:
            low, high = min(low - high, low, 0.0), max(high - low, high, 0.0)
        self.inherit(self.reward, range=(low, high))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B, K] float32; raises what the inner reward raises."""
        numbers = self.reward.score(batch)
        if self.eta is not None:
            numbers = (numbers - self.eta).clamp(max=0)
        mask = number_mask(self.reward, batch)
        assert mask is not None, "the reward is dense"
        mask = mask.to(numbers.device)
        scores = torch.zeros_like(numbers)
        for row in range(len(numbers)):
            own = numbers[row, mask[row]]  # [number of steps]
            scores[row, mask[row]] = _differences(own) if self.delta else own
        return scores


def _differences(numbers: Tensor) -> Tensor:
    """Returns the numbers [K] less their next ones; the last but one as it is, and 0 for the last."""
    return torch.cat([numbers[:-2] - numbers[1:-1], numbers[:-1][-1:], torch.zeros_like(numbers[-1:])])
