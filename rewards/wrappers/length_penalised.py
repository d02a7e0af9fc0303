"""A reward that depends on the length of the answer, compared with the others of its group."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.numerics import group_mean, group_std

from ..base.wrapper import RewardWrapper, check_judges_samples, score_inner

Kind = Literal["kimi", "efficient"]


@dataclass(frozen=True)
class LengthPenalised(RewardWrapper):
    """A reward r with a bonus or penalty for the length of the answer, n tokens, compared within the group.

      kimi       r + penalty l for right answers, r + penalty min(0, l) for wrong ones, with
                 l = 1/2 - (n - shortest) / (longest - shortest), 0 where all are of one length
                 (Kimi Team 2025, "Kimi k1.5", arXiv 2501.12599, section 2.3.3)
      efficient  r (1 - penalty sigmoid((n - mean) / std)) for right answers, r for wrong ones, mean and population std
                 over the right ones; sigmoid(0) where all are of one length
                 (Arora and Zanette 2025, arXiv 2502.04463, equation 2)

    With `min_right` the length counts only in groups of which at least that share is right; the others keep r (a gate
    by group accuracy, as GRPO-lambda has it, Dai et al. 2025, arXiv 2505.18086, which takes the best groups of a batch
    instead: the same answers score otherwise there beside other groups).

    An answer is right where r is at least `threshold`. Samples drawn for comparison only set no length.

    Raises ValueError for `efficient` with a penalty of 1 and more, and for a reward of groups or episodes.
    """

    reward: Reward  # the accuracy
    kind: Kind = "kimi"  # the paper's formula
    penalty: Annotated[float, Field(gt=0)] = 0.5  # how much the length counts; below 1 for efficient
    threshold: float = 0.5  # score from which an answer is right
    # share of a group's answers that must be right for the length to count; 0: it always counts
    min_right: Annotated[float, Field(ge=0, le=1)] = 0.0

    source: ClassVar[str] = "Kimi Team 2025, arXiv 2501.12599; Arora and Zanette 2025, arXiv 2502.04463"
    range: ClassVar[tuple[float, float]] = (
        float("-inf"),
        float("inf"),
    )  # that of the inner reward, wider by the penalty
    granularity: ClassVar[Granularity] = "group"
    needs: ClassVar[frozenset[str]] = frozenset({"num_tokens"})  # beside those of the inner reward

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "efficient" and self.penalty >= 1:
            raise ValueError(f"penalty must be below 1 for kind 'efficient', got {self.penalty}")
        low, high = self.reward.range
        check_judges_samples(self.reward)
        if self.kind == "efficient" and low < 0:
            raise ValueError(f"kind 'efficient' is for rewards of at least 0, got one that goes down to {low:g}")
        lowest_right = max(low, self.threshold) * (1 - self.penalty)
        is_kimi = self.kind == "kimi"
        ends = (low - self.penalty / 2, high + self.penalty / 2) if is_kimi else (min(low, lowest_right), high)
        self.override(range=ends, needs=self.needs | self.reward.needs)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner reward raises."""
        assert batch.outputs.num_tokens is not None, "scoring checks needs"
        scores, lengths = score_inner(self.reward, batch).cpu(), batch.outputs.num_tokens.double().cpu()
        is_right = scores >= self.threshold
        is_learned = torch.ones_like(is_right) if batch.is_control is None else ~batch.is_control.cpu()
        share = group_mean(is_right.double(), batch.group, is_learned)  # [B]
        is_open = share >= self.min_right
        return torch.where(is_open, self._with_length(scores, lengths, is_right, is_learned, batch), scores)

    def _with_length(
        self, scores: Tensor, lengths: Tensor, is_right: Tensor, is_learned: Tensor, batch: RewardBatch
    ) -> Tensor:
        """Returns the scores [B] with the bonus or penalty of the kind."""
        if self.kind == "kimi":
            bonus = _shorter(lengths, batch.group, is_learned)
            return scores + self.penalty * torch.where(is_right, bonus, bonus.clamp(max=0)).float()
        counted = is_right & is_learned
        mean, spread = (stat(lengths, batch.group, counted) for stat in (group_mean, group_std))
        place = torch.where(spread > 0, (lengths - mean) / torch.where(spread > 0, spread, 1.0), 0.0)
        return scores * torch.where(is_right, 1 - self.penalty * place.sigmoid(), 1.0).float()


def _shorter(lengths: Tensor, group: Tensor, counted: Tensor) -> Tensor:
    """Returns [B] float64 in [-1/2, 1/2]: 1/2 for the shortest of those `counted` in a group, -1/2 for the longest."""
    place = group.unique(return_inverse=True)[1]
    ends = torch.zeros(2, int(place.max()) + 1 if len(place) else 0, dtype=torch.float64)
    shortest = (ends[0] + torch.inf).scatter_reduce(0, place[counted], lengths[counted], "amin")[place]
    longest = (ends[1] - torch.inf).scatter_reduce(0, place[counted], lengths[counted], "amax")[place]
    is_spread = longest > shortest
    return torch.where(is_spread, (0.5 - (lengths - shortest) / (longest - shortest)).clamp(-0.5, 0.5), 0.0)
