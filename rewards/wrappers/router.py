"""Several rewards, of which a field of the target names the one that judges: for mixtures of tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.reward_batches import select

from ..base.wrapper import RewardWrapper, as_wide_as, check_prompt, number_mask, score_inner


@dataclass(frozen=True)
class Router(RewardWrapper):
    """A choice of rewards by task: the reward `rewards[target.<by>]` judges each sample of a prompt.

    For instance boxes by their IoU and sums by their number, as the trainers of Video-R1 (arXiv 2503.21776) and its kin
    score each kind of question by its own rule; there the kind of the first row of a batch sometimes decides for all.
    Each prompt needs what its own reward needs; media are the same for all. A kind without a reward is an error when
    the data is loaded. The rewards may be dense, of one granularity; each ends segments in its own way.

    Raises ValueError for no rewards, or rewards of episodes and turns beside others.
    """

    rewards: dict[str, Reward]  # the rewards by the kinds of prompts
    by: str = "task"  # the field of the target that names the kind, a text

    source: ClassVar[str] = "Feng et al. 2025 (Video-R1), arXiv 2503.21776"
    holds_dense: ClassVar[bool] = True
    range: ClassVar[tuple[float, float]] = (
        float("-inf"),
        float("inf"),
    )  # from the lowest to the highest end of the inner rewards

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rewards:
            raise ValueError("rewards must be a section with at least one reward, got none")
        granularities = {reward.granularity for reward in self.rewards.values()}
        if not (len(granularities) == 1 or granularities <= {"sample", "group"}):
            raise ValueError(f"the rewards must judge alike, got rewards of {', '.join(sorted(granularities))}")
        ends = [reward.range for reward in self.rewards.values()]
        sizes = [reward.batch_size for reward in self.rewards.values() if reward.batch_size is not None]
        media = frozenset(need for need in self.needs_of_inner() if not need.startswith("target."))
        self.override(
            range=(min(low for low, _ in ends), max(high for _, high in ends)),
            granularity="group" if "group" in granularities else next(iter(granularities)),
            differentiable=all(reward.differentiable for reward in self.rewards.values()),
            needs=media | {f"target.{self.by}"},
            batch_size=min(sizes, default=None),
        )

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a kind without a reward, or where the reward of the kind refuses the prompt."""
        check_prompt(self._reward_for(prompt), prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32.

        Raises ValueError for a kind without a reward, and what the inner rewards raise.
        """
        return self._routed(batch, score_inner)

    def ends(self, batch: RewardBatch) -> Tensor:
        """Returns [B, K] bool: where the segments of each sample's own reward end."""

        def own_ends(reward: Reward, part: RewardBatch) -> Tensor:
            ends = number_mask(reward, part)
            assert ends is not None, "only rewards of segments are asked"
            return ends

        return self._routed(batch, own_ends)

    def _routed(self, batch: RewardBatch, judge: Callable[[Reward, RewardBatch], Tensor]) -> Tensor:
        """Returns what `judge` says of each sample by its own reward, in the order of the batch."""
        rows: dict[int, list[int]] = {}
        for row, prompt in enumerate(batch.prompts):
            rows.setdefault(id(self._reward_for(prompt)), []).append(row)
        by_id = {id(reward): reward for reward in self.rewards.values()}
        places = [torch.tensor(own) for own in rows.values()]
        chosen = zip(rows, places, strict=True)
        parts = [as_wide_as(batch, judge(by_id[key], select(batch, place))) for key, place in chosen]
        together = torch.cat([part.to(parts[0].device) for part in parts])
        return together[torch.cat(places).argsort()]

    def _reward_for(self, prompt: Prompt) -> Reward:
        kind = prompt.target.get(self.by)
        if not isinstance(kind, str) or kind not in self.rewards:
            known = ", ".join(sorted(self.rewards))
            raise ValueError(f"target.{self.by} must be one of {known}, got {kind!r} for {prompt.text!r}")
        return self.rewards[kind]
