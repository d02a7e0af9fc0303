"""REINFORCE++: advantages normalised over the whole batch instead of each group."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_mean, group_std, masked_mean


@dataclass(frozen=True)
class ReinforcePP(Checked):
    """A = (R' - mean of the batch) / (std of the batch + epsilon).

    Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization",
    arXiv 2501.03262. The std of a batch hardly depends on the sample's own reward, unlike that of its group.
    `baseline: none`, R' = R, is the paper's REINFORCE++, made for one sample per prompt: a group with equal rewards is
    compared with the batch. `baseline: group`, R' = R - mean of the group, is its form for several samples (REINFORCE++
    with baseline), in which a group with equal rewards gets 0. The mean and population std run over `samples`, or over
    `decisions`, so that long answers count more, as in the code of OpenRLHF and verl. The paper's KL penalty inside of
    the reward is the loss's `kl_coef` here. Invalid samples enter no statistic and get 0; so does a batch with equal
    rewards.

    With baseline `group`, counting samples, this is GRPO's advantage with std `centred_batch`.
    Raises ValueError for an epsilon below 0.
    """

    # Subtracted first: nothing (`none`), or the mean of the `group` (REINFORCE++ with baseline, a group_size above 1).
    baseline: Literal["none", "group"] = "none"
    # Mean and standard deviation of the batch run over `samples`, or over `decisions`, so that long answers count more.
    counts: Literal["samples", "decisions"] = "samples"
    epsilon: Annotated[float, Field(ge=0)] = 1e-8  # added to the standard deviation

    @property
    def declaration(self) -> AdvantageDeclaration:
        """The declaration: where rewards are compared with the batch, groups with equal rewards learn, too."""
        is_of_batch = self.baseline == "none"
        return AdvantageDeclaration(
            min_group_size=1 if is_of_batch else 2,
            compares_with="batch" if is_of_batch else "group",
            weighs_by_length=self.counts == "decisions",
        )

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32.

        With `counts: decisions` samples without decisions do not count, unless no sample has decisions.
        """
        total, one_group = scores.total.double(), torch.zeros_like(scores.group)
        takes_part = scores.valid & (group_std(total, one_group, scores.valid) > 0)
        if self.baseline == "group":
            takes_part &= group_std(total, scores.group, scores.valid) > 0
            total = total - group_mean(total, scores.group, scores.valid)
        weight = scores.valid.double()
        if self.counts == "decisions" and paths is not None and bool((paths.edge >= 0).any()):
            weight *= (paths.edge >= 0).sum(1)
        centred = total - masked_mean(total, weight)
        std = masked_mean(centred.square(), weight).sqrt()
        takes_part &= std > 1e-12 * masked_mean(
            total.abs(), weight
        )  # samples with decisions differ in more than their last bits
        return torch.where(takes_part, centred / torch.where(takes_part, std + self.epsilon, 1.0), 0.0).float()
