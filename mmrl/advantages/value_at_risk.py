"""Advantages of a risk measure: the worst bundles of answers count most, the best ones not at all."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_max, group_numbers, group_rank, group_std, group_sum

from .base.episodes import joint

_SMALLEST_STD = 1e-3  # of the rewards of a group; below it nothing is divided by it
_LOWEST = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class _Sheets:
    """Which samples are on which sheet: a sheet holds one answer to each prompt of a bundle."""

    bundle: Tensor  # [B] int64; -1 for a sample on no sheet
    score: Tensor  # [B] float64: the sum of the rewards on the sample's sheet
    is_first: Tensor  # [B] bool: one sample of each sheet

    def by_bundle(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the samples [B] (bool) of each bundle, and the scores of its sheets."""
        for number in self.bundle[self.is_first].unique().tolist():
            inside = self.bundle == number
            yield inside, self.score[inside & self.is_first]


@dataclass(frozen=True)
class ValueAtRisk(Checked):
    """A = (w tail + middle) / (w + 1), a policy gradient of the mixed value at risk of bundles of prompts.

      tail   = -max(0, Q_low - S) / low
      middle = (max(0, S - Q_low) - max(0, S - Q_high) + Q_low - Q_high) / (high - low)

    Ren et al. 2025, "RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training", arXiv
    2510.00911, and the advantage grpo_bundle_RVaR_quantile_tracking of RTkenny/RiskPO (8dce3fa), whose settings for
    MATH are the defaults. S is the sum of the rewards on a sheet: the k-th answers to the prompts of a `bundle`, which
    are neighbours in the order of the batch. So 0 or 1 of each answer becomes one of several scores, and a group of
    equal answers learns from those beside it. A falls from 0 at Q_high, all the steeper below Q_low; no sheet is above
    0. It is then divided by the standard deviation of the sheets of the bundle (`divides`) and by that of the answer's
    own group (`credit: std`), both unbiased, plus epsilon; one that is next to 0 divides nothing.

    The levels' quantiles are `tracked` over the run, Q + rate (level - share of sheets below Q) after each rollout and
    before its update, or those of each `bundle`. Tracked ones begin with those of the first rollout's sheets; in the
    code they begin at 0. Other differences: a group with fewer than two answers that could be judged is in no bundle,
    and the sums of a bundle that lacks prompts are scaled up. Answers beyond the number of sheets get 0, as there.

    Raises ValueError for settings out of range.
    """

    bundle: Annotated[int, Field(ge=1)] = 5  # prompts whose answers make a sheet; 1: each group alone
    low: Annotated[float, Field(gt=0, lt=1)] = 0.2  # the level up to which sheets are the tail
    high: Annotated[float, Field(gt=0, lt=1)] = 0.9  # the level from which sheets count no more; above `low`
    tail_weight: Annotated[float, Field(ge=0)] = 1.5  # of the tail, beside 1 for the middle
    quantiles: Literal["tracked", "bundle"] = "tracked"  # of all sheets so far, or of those of each bundle
    rate: Annotated[float, Field(gt=0)] = 0.1  # how far a tracked quantile moves in an iteration, at most
    divides: bool = True  # divide by the standard deviation of the sheets of the bundle
    # What each answer gets of its sheet: all of it (`sheet`), or that over the standard deviation of its group (`std`).
    credit: Literal["sheet", "std"] = "std"
    epsilon: Annotated[float, Field(ge=0)] = 1e-6  # added to the standard deviations
    _tracked: list[float] = field(default_factory=list, init=False, compare=False)  # of both levels; empty: none yet

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")

    @property
    def declaration(self) -> AdvantageDeclaration:
        """The declaration: sheets of other groups make a group of equal answers learn, too."""
        return AdvantageDeclaration(compares_with="batch", requires_single_answers=True)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        sheets, total = self._sheets(scores), scores.total.double()
        own = group_std(total, scores.group, scores.valid, unbiased=True)
        divisor = torch.where(own > _SMALLEST_STD, own + self.epsilon, 1.0)
        advantages = torch.zeros_like(total)
        for inside, found in sheets.by_bundle():
            worth = self._worth(sheets.score[inside], self._quantiles(found))
            if self.divides and len(found) > 1 and (spread := found.std()) > 0:
                worth = worth / (spread + self.epsilon)
            advantages[inside] = worth / divisor[inside] if self.credit == "std" else worth
        return advantages.float()

    def _worth(self, score: Tensor, quantiles: tuple[float, float]) -> Tensor:
        """Returns (w tail + middle) / (w + 1) for the scores of sheets [n]."""
        low, high = quantiles
        tail = -(low - score).clamp(min=0) / self.low
        middle = ((score - low).clamp(min=0) - (score - high).clamp(min=0) + low - high) / (self.high - self.low)
        return (self.tail_weight * tail + middle) / (self.tail_weight + 1)

    def _quantiles(self, found: Tensor) -> tuple[float, float]:
        """Returns the quantiles of both levels: the tracked ones, or those of the scores of a bundle's sheets [n]."""
        if self.quantiles == "tracked" and self._tracked:
            return self._tracked[0], self._tracked[1]
        low, high = torch.quantile(found, found.new_tensor([self.low, self.high])).tolist()
        return low, high

    def _sheets(self, scores: Scores) -> _Sheets:
        count = group_sum(scores.valid.long(), scores.group)
        enters = scores.valid & (count > 1)
        bundle = torch.full_like(scores.group, -1)
        bundle[enters] = group_numbers(scores.group[enters]) // self.bundle
        number = group_rank(scores.episode.double(), scores.group, scores.valid)  # of the sheet
        enters &= number < -group_max(-count, bundle)  # the smallest group has that many
        is_first = enters & (scores.group == -group_max(torch.where(enters, -scores.group, _LOWEST), bundle))
        sheet = joint(bundle, number)
        prompts = group_sum(enters.double(), sheet).clamp(min=1)
        summed = group_sum(torch.where(enters, scores.total.double(), 0.0), sheet) * self.bundle / prompts
        return _Sheets(torch.where(enters, bundle, -1), summed, is_first)

    def update(self, scores: Scores) -> None:
        """Moves the tracked quantiles by the sheets of a rollout."""
        sheets = self._sheets(scores)
        found = sheets.score[sheets.is_first]
        if self.quantiles != "tracked" or not len(found):
            return
        levels = (self.low, self.high)
        if not self._tracked:
            self._tracked[:] = torch.quantile(found, found.new_tensor(levels)).tolist()
            return
        pairs = zip(self._tracked, levels, strict=True)
        self._tracked[:] = [q + self.rate * (level - float((found < q).double().mean())) for q, level in pairs]

    def state_dict(self) -> dict[str, Any]:
        """Returns the tracked quantiles."""
        return {"quantiles": list(self._tracked)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the tracked quantiles."""
        self._tracked[:] = state["quantiles"]
