"""A reward that counts only where another reward reaches a threshold."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.reward_batches import select

from ..base.wrapper import RewardWrapper, check_judges_samples, for_each_number, only_numbers, score_inner


@dataclass(frozen=True)
class Gated(RewardWrapper):
    """A gated reward: r where the reward `gate` is at least `threshold`, else `otherwise`.

    For instance a slow judge that judges answers in the right format only (SophiaVL-R1 calls its thinking model where
    the answer scores at least 0.2, arXiv 2505.17018): a reward that judges samples sees only those that pass. The mix
    `gate` does the same for all rewards of a run. The score is NaN where the gate is NaN, which is neither open nor
    shut. Of a dense reward each number of a sample whose gate is shut is `otherwise`.

    Raises ValueError for numbers that are not finite, or a gate that judges something else than samples or turns.
    """

    reward: Reward  # the reward that counts where the gate is open
    gate: Reward  # the reward that opens the gate; it judges samples, or turns of agents
    threshold: float = 0.5  # score of the gate from which it is open
    otherwise: float = 0.0  # the score where the gate is shut

    source: ClassVar[str] = "Fan et al. 2025 (SophiaVL-R1), arXiv 2505.17018"
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.threshold) and math.isfinite(self.otherwise)):
            raise ValueError(f"threshold and otherwise must be finite, got {self.threshold} and {self.otherwise}")
        if self.gate.granularity != "turn":  # of an agent a turn is a sample
            check_judges_samples(self.gate, "the gate")
        low, high = self.reward.range
        self.inherit(self.reward, range=(min(low, self.otherwise), max(high, self.otherwise)))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32; raises what the inner rewards raise."""
        gate = score_inner(self.gate, batch).detach()
        is_open, shut = gate >= self.threshold, torch.where(gate.isnan(), torch.nan, self.otherwise)  # [B]
        if self.reward.granularity != "sample":  # a group has to stay whole, and dense scores have one width
            scores = score_inner(self.reward, batch).to(gate.device)
            scores = torch.where(for_each_number(is_open, scores), scores, for_each_number(shut, scores))
            return only_numbers(self.reward, batch, scores)
        rows = is_open.cpu().nonzero()[:, 0]
        if not len(rows):
            return shut
        return shut.index_put((rows.to(shut.device),), score_inner(self.reward, select(batch, rows)).to(shut.device))
