"""Did the agent reach the goal of its episode?"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch


@dataclass(frozen=True)
class EpisodeSuccess(Checked):
    """Success of an episode: 1 for all turns where the environment's rewards add up to `threshold` or more, else 0.

    An episode in which the environment broke tells nothing about the agent: it cannot be judged and leaves its group
    (`failed: mask`), unless the agent is to answer for it (`failed: zero`), for instance where its own clicks can hang
    a page. Episodes that end by a limit without success score 0, as do those that the agent ended too early.

    Raises ValueError for an episode that the environment broke, with `failed: mask`.
    """

    threshold: float = 1.0  # sum of the environment's rewards that is a success
    failed: Literal["mask", "zero"] = "mask"  # an episode that the environment broke leaves its group, or scores 0

    source: ClassVar[str] = "success rate of the task, as in verl-agent (Feng et al. 2025, arXiv 2505.10978)"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "episode"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"step_rewards", "outcomes"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32 in {0, 1}."""
        rewards, outcomes = batch.outputs.step_rewards, batch.outputs.outcomes
        assert rewards is not None and outcomes is not None, "checked by `needs`"
        _, place = batch.episode.unique(return_inverse=True)
        if self.failed == "mask" and "failed" in outcomes:
            raise ValueError("the environment broke in this episode")
        total = rewards.new_zeros(int(place.max()) + 1).index_add(0, place, rewards)
        # a sum of float32 rewards such as twelve times 1/12 ends just below the threshold
        is_success = total >= self.threshold - 1e-6
        if self.failed == "zero":
            broken = torch.tensor([outcome == "failed" for outcome in outcomes])
            is_success &= ~torch.zeros_like(is_success).index_put((place[broken],), torch.tensor(True))
        return is_success[place].float()
