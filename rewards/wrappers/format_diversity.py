"""More reward for answers whose format is rare in their group, until a decay has taken it away (Ada-GRPO)."""

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.schedules import Schedule, Shape
from mmrl.parsing.answer_format import format_of

from ..base.wrapper import RewardWrapper, check_judges_samples, score_inner


@dataclass(frozen=True)
class FormatDiversity(RewardWrapper):
    """r_i (1 + d(t) (G / F_i - 1)): F_i of the G members of its group have the format of answer i.

    Wu et al. 2025, "ARM: Adaptive Reasoning Model", arXiv 2505.20258 (Ada-GRPO), and TEAM-ARM/ARM: d(t) falls from 1 at
    the first iteration to 0 at the last, along (1 + cos(pi t / T)) / 2. So a short answer that is right counts up to G
    times as much while long ones crowd it out, and r_i alone at the end; GRPO alone ends with one format. Held-out
    scores are those of the end.

    An answer has the format of that one of `marks` which it begins with, white space apart; answers without any share
    one format, as there. Without marks the format is the form of the answer: its tags, code, lists and prose in order.
    Controls are no members: their score is r_i.

    Raises ValueError for a reward that does not judge samples or may be below 0, and for a `last` that is not after
    `first`.
    """

    reward: Reward  # the accuracy, at least 0
    last: int  # the iteration from which formats do not count
    marks: tuple[str, ...] = ()  # the beginnings of answers that make a format; none: the form of the whole answer
    first: int = 0  # the last iteration at which formats count in full
    shape: Shape = "cosine"  # of the way between the two
    _schedule: Schedule = field(init=False, repr=False, compare=False)

    source: ClassVar[str] = "Wu et al. 2025 (ARM), arXiv 2505.20258"
    granularity: ClassVar[Granularity] = "group"
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})  # beside those of the inner reward

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judges_samples(self.reward)
        if self.reward.range[0] < 0:
            raise ValueError(f"the inner reward must be at least 0, got {self.reward.range}")
        if len(set(self.marks)) < len(self.marks) or not all(mark.strip() == mark != "" for mark in self.marks):
            raise ValueError(f"marks must be different texts without white space at their ends, got {self.marks}")
        schedule = Schedule(start=1.0, end=0.0, first=self.first, last=self.last, shape=self.shape)
        ends = (0.0, inf if self.reward.range[1] > 0 else 0.0)  # at most G times the inner reward's
        self.override(_schedule=schedule, range=ends, needs=type(self).needs | self.needs_of_inner())

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner reward; the same sample scores otherwise in a later iteration."""
        return replace(super().declaration, follows_iteration=True, is_changing=True)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner reward raises."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        scores = score_inner(self.reward, batch).float()
        formats = [self._format(text) for text in batch.outputs.texts]
        rarity = torch.ones(len(formats))
        for rows in batch.members():
            counts = Counter(formats[row] for row in rows.tolist())
            for row in rows.tolist():
                rarity[row] = counts.total() / counts[formats[row]]
        return scores * (1 + self._schedule(batch.iteration) * (rarity - 1)).to(scores.device)

    def _format(self, text: str) -> str:
        """Returns a name of the answer's format: the longest mark that it begins with, or its form."""
        if not self.marks:
            return format_of(text)
        return max((mark for mark in self.marks if text.lstrip().startswith(mark)), key=len, default="")
