"""Is the answer the one that most of its group give? A reward without labels."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.parsing.answers import ParseError, extract, read_boxed, read_numbers

from ..base.answers import TagReward
from ..base.references import answer_text


@dataclass(frozen=True)
class MajorityVote(TagReward):
    r"""A vote of the group: 1 for each sample whose answer is the most frequent one, else 0; no target is read.

    MM-UPT (Wei et al. 2025, arXiv 2505.22453), TTRL (Zuo et al. 2025, arXiv 2504.16084). With `soft` each sample's
    score is the share of the votes that its answer has (EMPO, Zhang et al. 2025, arXiv 2504.05812, without clusters).

    Answers are read from the `tag` (None: the whole text), with `boxed` from the one `\boxed{...}` in it. Two answers
    are the same where they differ in white space and capitals only, or where both are one number ("3" and "3.0"). A
    text without exactly one answer, or with an empty one, does not vote and scores 0: in MM-UPT's code "no answer" is
    an answer that can win. Controls do not vote either.

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
    # share of the votes that an answer needs; the papers have none
    min_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    # whether the answer stands in the one `\boxed{...}` of that text; MM-UPT's and TTRL's, with `tag` null
    boxed: bool = False
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; 0 for the controls."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        answers = [self._answer(text) for text in batch.outputs.texts]
        scores = torch.zeros(len(batch))
        for rows in batch.members():
            given = [(row, answer) for row in rows.tolist() if (answer := answers[row]) is not None]
            worth = self._worth(Counter(answer for _, answer in given))
            for row, answer in given:
                scores[row] = worth.get(answer, 0.0)
        return scores

    def _worth(self, votes: Counter[str]) -> dict[str, float]:
        """Returns the scores of the answers of a group; an answer that is not there scores 0."""
        enough = {answer: n / votes.total() for answer, n in votes.items() if n >= self.min_share * votes.total()}
        if self.soft:
            return enough
        most = max(enough.values(), default=0.0)
        winners = [answer for answer, share in enough.items() if share == most]
        return {winners[0]: 1.0} if len(winners) == 1 else {}

    def _answer(self, text: str) -> str | None:
        try:
            # What is bounded is the answer: the thoughts before a box may be long.
            answer = (
                answer_text(read_boxed(extract(text, self.tag)), None) if self.boxed else answer_text(text, self.tag)
            )
        except ParseError:
            return None
        try:
            numbers = read_numbers(answer)
        except ParseError:
            numbers = ()
        if len(numbers) == 1:
            return repr(numbers[0] + 0.0)  # -0 is 0
        return " ".join(answer.split()).casefold() or None
