"""Advantages of decisions from rewards of decisions: the sum of the normalised rewards from each decision on."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.dense import DENSE, widened
from mmrl.core.numerics import group_index, group_sum


@dataclass(frozen=True)
class Process(Checked):
    """A_t = sum over s >= t of (r_s - mean) / (std + epsilon): process supervision of GRPO.

    Shao et al. 2024, "DeepSeekMath", arXiv 2402.03300, section 4.1.3; epsilon is ours. r_s is the weighted sum of the
    dense rewards (of steps, segments or tokens) at decision s; the other rewards count at a sample's last decision.
    Mean and population std are those of all r_s of the group; a decision without a reward that counts, such as one
    inside of a segment, has no r_s. With rewards of whole samples alone, or one segment per sample, this is GRPO on
    samples without a clip.

    Invalid samples enter no statistic and get 0. All members get 0 in a group with equal rewards or with one valid
    member. A decision that several leaves of a tree share gets the mean over the valid leaves; in the statistic it
    counts once for each leaf.

    Raises ValueError for an epsilon below 0.
    """

    epsilon: Annotated[float, Field(ge=0)] = 1e-4  # added to the standard deviation

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(
        is_per_decision=True,
        requires_single_answers=True,
        requires_dense_reward=True,  # without one this is GRPO
        sums_rewards=True,  # of decisions
    )

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32, 0 behind a sample's last decision; without `paths` [B, 1]."""
        if paths is None:
            numbers, edges = scores.weighted_sum.double()[:, None], torch.arange(len(scores.group))[:, None]
            is_number = torch.ones_like(edges, dtype=torch.bool)
        else:
            edges = paths.edge
            numbers, is_number = rewards_of_decisions(scores, edges)
        is_number = is_number & scores.valid[:, None]
        normalised = self._normalised(torch.where(is_number, numbers, 0.0), is_number, scores)
        behind = normalised.flip(1).cumsum(1).flip(1)
        is_there = (edges >= 0) & scores.valid[:, None]
        return _mean_of_leaves(torch.where(is_there, behind, 0.0), edges, scores.prompt_index, is_there).float()

    def _normalised(self, numbers: Tensor, is_number: Tensor, scores: Scores) -> Tensor:
        """Returns the normalised numbers [B, K], float64, 0 where there is no number."""
        count = group_sum(is_number.sum(1).double(), scores.group).clamp(min=1)
        mean = group_sum(numbers.sum(1), scores.group) / count
        centred = torch.where(is_number, numbers - mean[:, None], 0.0)
        spread = (group_sum(centred.square().sum(1), scores.group) / count).sqrt()
        # sums of equal numbers differ in their last bits, and their spread is then no spread
        size = group_sum(numbers.abs().sum(1), scores.group) / count
        is_compared = group_sum(is_number.any(1).double(), scores.group) >= 2
        is_spread = (spread > 1e-12 * size) & is_compared
        return centred / torch.where(is_spread, spread + self.epsilon, torch.inf)[:, None]


def rewards_of_decisions(scores: Scores, paths: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the weighted sums [B, K] (float64) of the rewards at each decision, and where there is any [B, K] (bool).

    Rewards of whole samples count at the last decision. `paths` [B, K] are edge numbers, -1 behind the last decision.
    """
    is_decision = paths >= 0
    is_last = is_decision & (torch.arange(paths.shape[1]) == is_decision.sum(1, keepdim=True) - 1)
    numbers = torch.zeros(paths.shape, dtype=torch.float64)
    is_number = torch.zeros_like(is_decision)
    granularities = scores.granularities or ("sample",) * len(scores.names)
    for column, (name, weight) in enumerate(zip(scores.names, scores.weights, strict=True)):
        if weight == 0:
            continue
        if granularities[column] in DENSE:
            own = widened(scores.dense[name], paths.shape[1]).double()
            stands = is_decision & ~own.isnan()
        else:
            own, stands = scores.values[:, column, None].double(), is_last
        numbers += torch.where(stands, weight * own, 0.0)
        is_number |= stands
    return numbers, is_number


def _mean_of_leaves(values: Tensor, edges: Tensor, prompt_index: Tensor, is_there: Tensor) -> Tensor:
    """Returns at each edge the mean [B, K] of values [B, K] over the samples of its prompt index that pass it."""
    index, _ = group_index(prompt_index)
    name = index[:, None] * (edges.max() + 1 if edges.numel() else 1) + edges
    _, place, leaves = name[is_there].unique(return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(leaves)).index_add(0, place, values[is_there])
    return values.masked_scatter(is_there, (sums / leaves)[place])
