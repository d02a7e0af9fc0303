"""A dense reward and the outcome as one: no step of a wrong answer is praised, none of a right one blamed (ReNorm)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch

from ..base.wrapper import RewardWrapper, check_dense, check_judges_samples, only_numbers, score_inner


@dataclass(frozen=True)
class Renormalised(RewardWrapper):
    """The reward p_k of each step, renormalised by the outcome o of its sample: p_k + o - centre.

    ReNorm of Xu et al. 2025, "Hybrid Reward Normalization for Process-supervised Non-verifiable Agentic Tasks" (PPR),
    arXiv 2509.25598. With p_k and o in [0, 1] and a centre of 1, steps of a sample with o = 1 score at least 0, and
    those of a sample with o = 0 at most 0: process rewards cannot outbid the outcome, in answers of any length. Theirs
    learns by PPO with a value network. A sample whose outcome cannot be judged (NaN) is left out.

    Raises ValueError for a reward that is not dense, or an outcome that does not judge samples.
    """

    reward: Reward  # a reward of steps, segments or tokens
    outcome: Reward  # a reward of the whole sample
    centre: float = 1.0  # what is subtracted; the paper's

    source: ClassVar[str] = "Xu et al. 2025 (PPR), arXiv 2509.25598"
    granularity: ClassVar[Granularity] = "segment"  # and all dense ones: that of the inner reward
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dense(self.reward)
        check_judges_samples(self.outcome, "the outcome")
        ends = zip(self.reward.range, self.outcome.range, strict=True)
        low, high = (step + outcome - self.centre for step, outcome in ends)
        self.inherit(self.reward, range=(low, high), differentiable=False)

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B, K] float32; raises what the inner rewards raise."""
        steps, outcome = score_inner(self.reward, batch), score_inner(self.outcome, batch)
        return only_numbers(self.reward, batch, steps + (outcome.to(steps.device) - self.centre)[:, None])
