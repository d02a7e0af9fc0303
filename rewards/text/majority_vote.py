"""Is the answer the one that most of its group give? A reward without labels."""

from collections import Counter
from dataclasses import dataclass
from math import dist
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch

from ..base.answers import TagReward
from ..base.boxes import box_overlaps, has_area
from ..base.grounding import answered_boxes, answered_clicks, canvas_of
from ..base.votes import clusters, plain, voted_answer

Same = Literal["text", "click", "box"]
Place = tuple[float, ...]


@dataclass(frozen=True)
class MajorityVote(TagReward):
    r"""A vote of the group: 1 for each sample whose answer is the most frequent one, else 0; no target is read.

    MM-UPT (Wei et al. 2025, arXiv 2505.22453), TTRL (Zuo et al. 2025, arXiv 2504.16084). With `soft` each sample's
    score is the share of the votes that its answer has (EMPO, Zhang et al. 2025, arXiv 2504.05812; clusters by meaning
    are `semantic_vote`).

    Answers are read from the `tag` (None: the whole text), with `boxed` from the one `\boxed{...}` in it. Two answers
    are the same where they differ in white space and capitals only, or where both are one number ("3" and "3.0"). A
    text without exactly one answer, or with an empty one, does not vote and scores 0: in MM-UPT's code "no answer" is
    an answer that can win. Controls do not vote either.

    Places are seldom equal. With `same: click` an answer is a point or box (or the click that a policy makes), and with
    `same: box` one box; two of them are the same where the clicks are at most `within` of the image apart (x and y run
    from 0 to 1), or where the IoU of the boxes is at least 1 - `within`. Clusters grow by such pairs, so that a chain
    of near answers is one (single linkage), and the order of samples does not matter. SEED-GRPO (Chen et al. 2025,
    arXiv 2505.12346) clusters answers by their meaning; that places mean the same by nearness is ours.

    A tie has no majority: all of the group score 0, where the papers' code takes the answer that came first, so that
    the order of samples decides. With a `min_share` an answer needs at least that share of the votes too. So a group
    without votes scores 0 throughout, and the one vote of a group wins.
    """

    source: ClassVar[str] = "Wei et al. 2025 (MM-UPT), arXiv 2505.22453; Zuo et al. 2025 (TTRL), arXiv 2504.16084"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "group"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None

    soft: bool = False  # whether a sample scores its answer's share of the votes
    same: Same = "text"  # when two answers are the same: by their text or number, as clicks, or as boxes
    # of clicks: largest distance of two that are the same, as a share of the image; of boxes: largest 1 - IoU
    within: Annotated[float, Field(gt=0, lt=1)] = 0.1
    # share of the votes that an answer needs; the papers have none
    min_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    # whether the answer stands in the one `\boxed{...}` of that text; MM-UPT's and TTRL's, with `tag` null
    boxed: bool = False
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.same != "text":
            if self.boxed:
                raise ValueError(f"boxed is for same 'text', got same {self.same!r}")
            object.__setattr__(self, "needs", self.needs | {"canvases"})

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; 0 for the controls."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        answers = [self._answer(text) for text in batch.outputs.texts] if self.same == "text" else self._places(batch)
        scores = torch.zeros(len(batch))
        for rows in batch.members():
            given = [(row, answer) for row in rows.tolist() if (answer := answers[row]) is not None]
            worth = self._worth(Counter(answer for _, answer in given))
            for row, answer in given:
                scores[row] = worth.get(answer, 0.0)
        return scores

    def _places(self, batch: RewardBatch) -> list[str | None]:
        """Returns the name of each sample's cluster of places, in its group; None for a text without a place."""
        names: list[str | None] = [None] * len(batch)
        places = self._boxes(batch) if self.same == "box" else self._clicks(batch)
        for rows in batch.members():
            given = [row for row in rows.tolist() if places[row] is not None]
            for cluster in clusters(given, lambda one, other: self._is_same(places[one], places[other])):
                for row in cluster:
                    names[row] = str(min(cluster))
        return names

    def _clicks(self, batch: RewardBatch) -> list[Place | None]:
        """Returns where each sample clicks, in shares of its image."""
        places: list[Place | None] = []
        for row, click in enumerate(answered_clicks(batch, self.tag)):
            width, height = canvas_of(batch, row).original
            point = None if click is None else click.point
            places.append(None if point is None else (point[0] / width, point[1] / height))
        return places

    def _boxes(self, batch: RewardBatch) -> list[Place | None]:
        boxes = answered_boxes(batch, self.tag)
        pairs = zip(boxes.tolist(), has_area(boxes).tolist(), strict=True)
        return [tuple(box) if is_box else None for box, is_box in pairs]

    def _is_same(self, one: Place | None, other: Place | None) -> bool:
        assert one is not None and other is not None, "only places are compared"
        if self.same == "click":
            return dist(one, other) <= self.within
        pair = torch.tensor([one, other], dtype=torch.float64)
        return float(box_overlaps(pair[:1], pair[1:])) >= 1 - self.within

    def _worth(self, votes: Counter[str]) -> dict[str, float]:
        """Returns the scores of the answers of a group; an answer that is not there scores 0."""
        enough = {answer: n / votes.total() for answer, n in votes.items() if n >= self.min_share * votes.total()}
        if self.soft:
            return enough
        most = max(enough.values(), default=0.0)
        winners = [answer for answer, share in enough.items() if share == most]
        return {winners[0]: 1.0} if len(winners) == 1 else {}

    def _answer(self, text: str) -> str | None:
        answer = voted_answer(text, self.tag, boxed=self.boxed)
        return None if answer is None else plain(answer) or None
