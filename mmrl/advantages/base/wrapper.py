"""The base of advantages that change another advantage."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Advantage, BestChecking, RangeChecking, RunError, Selective, Stateful
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration


@dataclass(frozen=True, kw_only=True)
class Wrapper(Checked):
    """An advantage made of another advantage, `inner`, with the same requirements."""

    inner: Advantage  # the section of the other advantage

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.inner, Stateful):
            raise ValueError("inner learns from the scores of a run, which only the advantage of the run itself sees")

    @property
    def declaration(self) -> AdvantageDeclaration:
        """The inner declaration; a wrapper that requires more changes it with `dataclasses.replace`."""
        return AdvantageDeclaration.of(self.inner)

    def refuse_more_than_totals(self) -> None:
        """Raises ValueError for an inner advantage that reads more than the totals of groups, or compares nothing."""
        inner = AdvantageDeclaration.of(self.inner)
        requires_more = inner.sums_rewards or inner.requires_dense_reward or bool(inner.requires_rewards)
        if requires_more or inner.compares_with in ("greedy", "nothing"):
            raise ValueError("inner must compare the totals of a group with each other, as 'grpo' and 'rloo' do")

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError for rewards that the inner advantage cannot compare."""
        if isinstance(self.inner, RangeChecking):
            self.inner.check(ranges, weights)

    def check_best(self, best: Mapping[str, tuple[float, float]]) -> None:
        """Raises ValueError where the best total of the inner advantage is not the largest possible one, `best`."""
        if isinstance(self.inner, BestChecking):
            self.inner.check_best(best)

    def inner_batch(self, scores: Scores, paths: Paths | None) -> tuple[Scores, Paths | None]:
        """Returns the samples for the inner advantage: these samples first, maybe others behind them."""
        return scores, paths

    def update_mask(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the update mask of the inner advantage for these samples: [B] or [B, K], bool."""
        inner_batch = self.inner_batch(scores, paths)
        mask = self.inner.update_mask(*inner_batch) if isinstance(self.inner, Selective) else inner_batch[0].valid
        return mask[: len(scores.group)]


def of_decisions(advantage: Tensor, paths: Paths) -> tuple[Tensor, Tensor]:
    """Returns an advantage [B] or [B, K] as [B, K], and where there is a decision, [B, K] bool."""
    plain = (advantage if advantage.dim() == 2 else advantage[:, None]).expand(paths.edge.shape)
    return plain, paths.edge >= 0


def with_totals(scores: Scores, totals: Tensor) -> Scores:
    """Returns the same samples with `totals` [B] as their only reward."""
    return replace(
        scores, values=totals[:, None], names=("total",), weights=(1.0,), granularities=(), mix=None, dense={}
    )


def reward_column(scores: Scores, label: str) -> Tensor:
    """Returns the values [B] of the reward `label`, whatever its weight; raises RunError without such a reward."""
    if label not in scores.names:
        raise RunError(f"the advantage reads the reward {label!r}, got {', '.join(scores.names)}")
    return scores.values[:, scores.names.index(label)]
