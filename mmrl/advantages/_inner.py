"""What advantages share that change what another one says."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from mmrl.advantages.grpo import Grpo
from mmrl.contracts import Advantage, RunError
from mmrl.data import Paths, Scores


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """An advantage made of another one, `inner`: it takes what that one takes."""

    inner: Advantage = field(default_factory=Grpo)

    @property
    def min_group_size(self) -> int:
        return self.inner.min_group_size

    @property
    def sums_rewards(self) -> bool:
        return bool(getattr(self.inner, "sums_rewards", False))

    @property
    def reads_decisions(self) -> bool:
        return bool(getattr(self.inner, "reads_decisions", False))

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(getattr(self.inner, "reads", ()))

    @property
    def watches(self) -> frozenset[str]:
        """Labels of rewards that are read beside the total."""
        return frozenset(getattr(self.inner, "watches", ()))

    @property
    def compares_with(self) -> str:
        return str(getattr(self.inner, "compares_with", "group"))

    @property
    def of_decisions(self) -> bool:
        return bool(getattr(self.inner, "of_decisions", False))

    @property
    def of_nodes(self) -> bool:
        return bool(getattr(self.inner, "of_nodes", False))

    @property
    def reads_probabilities(self) -> bool:
        return bool(getattr(self.inner, "reads_probabilities", False))

    @property
    def of_answers(self) -> bool:
        return bool(getattr(self.inner, "of_answers", False))

    @property
    def weighs_decisions(self) -> bool:
        return bool(getattr(self.inner, "weighs_decisions", False))

    def refuse_more_than_totals(self) -> None:
        """Raises ValueError for an inner advantage that reads more than the totals of groups, or compares nothing."""
        inner = self.inner
        reads_more = any(getattr(inner, name, False) for name in ("sums_rewards", "reads_decisions", "watches"))
        if reads_more or getattr(inner, "compares_with", "group") in ("greedy", "nothing"):
            raise ValueError("inner must compare the totals of a group with each other, as 'grpo' and 'rloo' do")

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError for rewards that the inner one cannot compare."""
        if hasattr(self.inner, "check"):
            self.inner.check(ranges, weights)

    def check_best(self, best: Mapping[str, tuple[float, float]]) -> None:
        """Raises ValueError where the inner one takes another total than the largest, `best`, for the best."""
        if hasattr(self.inner, "check_best"):
            self.inner.check_best(best)

    def told(self, scores: Scores, paths: Paths | None) -> tuple[Scores, Paths | None]:
        """What the inner one gets to see: these samples first, maybe others behind them."""
        return scores, paths

    def keeps(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B] or [B, K] bool: what the inner one learns from, of what it is told."""
        told = self.told(scores, paths)
        kept: Tensor = self.inner.keeps(*told) if hasattr(self.inner, "keeps") else told[0].valid
        return kept[: len(scores.group)]


def with_totals(scores: Scores, totals: Tensor) -> Scores:
    """The same samples as if `totals` [B] were their only reward."""
    return replace(
        scores, values=totals[:, None], names=("total",), weights=(1.0,), granularities=(), mix=None, dense={}
    )


def watched(scores: Scores, label: str) -> Tensor:
    """[B] what the reward `label` says, counted or not. Raises RunError where there is none."""
    if label not in scores.names:
        raise RunError(f"the advantage reads the reward {label!r}, got {', '.join(scores.names)}")
    return scores.values[:, scores.names.index(label)]
