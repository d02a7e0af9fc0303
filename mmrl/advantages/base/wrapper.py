"""What advantages share that change what another one says."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Advantage, BestChecking, RangeChecking, RunError, Selective
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration


@dataclass(frozen=True, kw_only=True)
class Wrapper(Checked):
    """An advantage made of another one, `inner`: it takes what that one takes, and requires what that one requires."""

    inner: Advantage

    @property
    def declaration(self) -> AdvantageDeclaration:
        """What the inner one declares; a wrapper that requires more changes it with `dataclasses.replace`."""
        return AdvantageDeclaration.of(self.inner)

    def refuse_more_than_totals(self) -> None:
        """Raises ValueError for an inner advantage that reads more than the totals of groups, or compares nothing."""
        inner = AdvantageDeclaration.of(self.inner)
        requires_more = inner.sums_rewards or inner.requires_dense_reward or bool(inner.requires_rewards)
        if requires_more or inner.compares_with in ("greedy", "nothing"):
            raise ValueError("inner must compare the totals of a group with each other, as 'grpo' and 'rloo' do")

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError for rewards that the inner one cannot compare."""
        if isinstance(self.inner, RangeChecking):
            self.inner.check(ranges, weights)

    def check_best(self, best: Mapping[str, tuple[float, float]]) -> None:
        """Raises ValueError where the inner one takes another total than the largest, `best`, for the best."""
        if isinstance(self.inner, BestChecking):
            self.inner.check_best(best)

    def inner_batch(self, scores: Scores, paths: Paths | None) -> tuple[Scores, Paths | None]:
        """What the inner one gets to see: these samples first, maybe others behind them."""
        return scores, paths

    def update_mask(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B] or [B, K] bool: what the inner one learns from, of what it is told."""
        inner_batch = self.inner_batch(scores, paths)
        kept = self.inner.update_mask(*inner_batch) if isinstance(self.inner, Selective) else inner_batch[0].valid
        return kept[: len(scores.group)]


def with_totals(scores: Scores, totals: Tensor) -> Scores:
    """The same samples as if `totals` [B] were their only reward."""
    return replace(
        scores, values=totals[:, None], names=("total",), weights=(1.0,), granularities=(), mix=None, dense={}
    )


def reward_column(scores: Scores, label: str) -> Tensor:
    """[B] what the reward `label` says, counted or not. Raises RunError where there is none."""
    if label not in scores.names:
        raise RunError(f"the advantage reads the reward {label!r}, got {', '.join(scores.names)}")
    return scores.values[:, scores.names.index(label)]
