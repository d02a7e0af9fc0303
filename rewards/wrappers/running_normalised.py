"""A reward in standard deviations from the mean of all its scores of the run so far."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Scores
from mmrl.core.declarations import RewardDeclaration

from ..base.wrapper import RewardWrapper, only_numbers


@dataclass
class RunningNormalised(RewardWrapper):
    """A reward in standard deviations: (r - mean) / (std + epsilon), both over all scores of earlier iterations.

    r itself before there are two scores. Statistics as in Engstrom et al. 2020, "Implementation Matters in Deep RL",
    arXiv 2005.12729, which divides by a running std. They are the same for all samples of an iteration and on all
    processes, are learned after it, and are in the checkpoint. Rewards of other scales then mix as their weights say;
    unbounded, since a std may be small. Samples that could not be judged or are drawn for comparison only do not count.
    An evaluation has statistics of its own, which stay empty: its scores are r. Of a dense reward each number counts:
    the statistics are those of all steps, segments or tokens.

    This wrapper stands around other wrappers, not inside of them: only a reward of the run sees its scores.
    """

    reward: Reward  # the reward that is normalised
    epsilon: Annotated[float, Field(ge=0)] = 1e-4  # added to the std
    _count: int = field(default=0, init=False, compare=False)
    _mean: float = field(default=0.0, init=False, compare=False)
    _squares: float = field(default=0.0, init=False, compare=False)  # sum of squared distances from the mean

    source: ClassVar[str] = "Engstrom et al. 2020, arXiv 2005.12729"
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inherit(self.reward, range=(float("-inf"), float("inf")))

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner reward; the same sample scores otherwise in a later iteration."""
        return replace(super().declaration, is_changing=True)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32; raises what the inner reward raises."""
        shift, scale = self._now()
        return only_numbers(self.reward, batch, (self.reward.score(batch) - shift) / scale)

    def _now(self) -> tuple[float, float]:
        """Returns the mean that is subtracted, and the number that is divided by."""
        spread = (self._squares / self._count) ** 0.5 if self._count else 0.0
        return (self._mean, spread + self.epsilon) if self._count > 1 and spread > 0 else (0.0, 1.0)

    def update(self, scores: Scores) -> None:
        """Learns the statistics from this reward's own scores [B, 1] of an iteration, or its numbers [B, K]."""
        shift, scale = self._now()
        is_judged = scores.values[:, 0].isfinite() & ~scores.is_control  # a dense sample with a part alone is none
        values = scores.dense.get(scores.names[0], scores.values)[is_judged].double()
        own = values[values.isfinite()] * scale + shift
        if not len(own):
            return
        count, mean = len(own), float(own.mean())
        total, apart = self._count + count, mean - self._mean
        self._squares += float((own - mean).square().sum()) + apart**2 * self._count * count / total  # Chan et al. 1983
        self._mean += apart * count / total
        self._count = total

    def state_dict(self) -> dict[str, Any]:
        """Returns the statistics, and the states of inner rewards."""
        own = {"count": self._count, "mean": self._mean, "squares": self._squares}
        return own | super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the statistics, and the states of inner rewards."""
        self._count, self._mean, self._squares = state["count"], state["mean"], state["squares"]
        super().load_state_dict(state)
