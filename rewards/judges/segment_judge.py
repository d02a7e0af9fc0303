"""A model judges each step of an answer in words, with what the answer says before it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, License, RewardBatch
from mmrl.core.numerics import MOST

from ..base.judging.prompt_files import OF_GROUPS, numbered
from ..base.judging.questions import Question
from ..base.judging.reward import JudgeReward, whole

if TYPE_CHECKING:
    from PIL.Image import Image

By = Literal["paragraph", "line"]
_GAPS = {"paragraph": re.compile(r"\n[ \t\r]*+\n\s*+"), "line": re.compile(r"\n\s*+")}


@dataclass
class SegmentJudge(JudgeReward):
    """The verdict of a model on each step of an answer, in [0, 1]; the number stands at the last token of the step.

    A process reward that is asked in words, as in Lightman et al. 2023, "Let's Verify Step by Step", arXiv 2305.20050,
    whose model gives each step the probability that it is right: `prompt: answer_step` asks for it. The forms of
    verdicts are those of `text_judge` about one sample: number, yes_no, rubric and constraints. One question is asked
    for each step; the prompt file may hold {prompt}, {before} (all that the answer says before the step) and {answer}
    (the step itself), and with `condition_image` the judge sees the prompt's first image.

    The text of the answer is cut behind each run of blank lines (`by: paragraph`) or of line ends (`by: line`); a step
    holds more than white space, where the answer does. A step ends at the token that holds the end of its text, and two
    steps that end in one token are one step. The last step ends at the answer's last token. The advantage `process`
    credits the steps: with `credit: min` an answer is worth its worst step.

    Turns of an agent need no segments: each is a sample of its own, which `vlm_judge` scores by the screen before it
    (`of: texts`, `condition_image`) or after it (`of: screens`).

    Raises ValueError for a prompt file that asks about groups or pairs, or has no place for the step.
    """

    by: By = "paragraph"  # what ends a step: a blank line, or each end of a line
    # steps of an answer, at most; what is behind the last but one is a single step
    max_segments: Annotated[int, Field(ge=1, le=MOST)] = 32
    # whether the judge sees the prompt's first image; without, a judge that runs here is a model of text alone
    condition_image: bool = True

    granularity: ClassVar[Granularity] = "segment"
    needs: ClassVar[frozenset[str]] = frozenset({"pieces", "prompt.image", "model"})  # or a service, and target fields
    source: ClassVar[str] = "Lightman et al. 2023 (Let's Verify Step by Step), arXiv 2305.20050"
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # the model card

    def __post_init__(self) -> None:
        super().__post_init__()
        file = self._file
        if file.form in (*OF_GROUPS, "pairwise"):
            raise ValueError(f"a judge of steps is asked about one step, got a prompt of the form {file.form}")
        if not all("{answer}" in text for text in file.variants):
            raise ValueError("the question about a step must hold {answer}, the step")
        object.__setattr__(self, "granularity", "segment")
        object.__setattr__(self, "sees_images", self.condition_image)
        image = {"prompt.image"} if self.condition_image else set()
        object.__setattr__(self, "needs", self.needs | {"pieces"} | image)

    def ends(self, batch: RewardBatch) -> Tensor:
        """Returns [B, K] bool: the last tokens of all steps."""
        last = torch.zeros_like(batch.is_decision)
        for row, steps in enumerate(self._steps(batch)):
            last[row, [place for place, _ in steps]] = True
        return last

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B, K] float32, 0 where no step ends. Raises as `text_judge` does."""
        places: list[tuple[int, int]] = []
        questions: list[Question] = []
        readers = []
        for row, steps in enumerate(self._steps(batch)):
            assert batch.outputs.pieces is not None, "scoring checks needs"
            text, start = "".join(batch.outputs.pieces[row]), 0
            criteria = self._criteria(batch.prompts[row])
            listed = numbered([one.text for one in criteria])
            for place, stop in steps:
                values = {"before": text[:start].strip(), "answer": text[start:stop].strip(), "criteria": listed}
                questions.append(self._question(batch, row, values, count=len(criteria), images=()))
                readers.append(self._reader(criteria))
                places.append((row, place))
                start = stop
        scores = torch.zeros(batch.is_decision.shape)
        for (row, place), value in zip(places, whole(self._values(questions, readers, batch)).tolist(), strict=True):
            scores[row, place] = value
        return scores

    def shown(self, batch: RewardBatch, row: int) -> "tuple[list[Image], str]":
        """Returns the whole answer."""
        assert batch.outputs.pieces is not None, "scoring checks needs"
        return [], "".join(batch.outputs.pieces[row])

    def condition(self, batch: RewardBatch, row: int) -> "list[Image]":
        """Returns the prompt's first image, where the judge sees it."""
        return [batch.prompts[row].media[0].load().convert("RGB")] if self.condition_image else []

    def _steps(self, batch: RewardBatch) -> list[list[tuple[int, int]]]:
        assert batch.outputs.pieces is not None, "scoring checks needs"
        return [steps_of(pieces, self.by, self.max_segments) for pieces in batch.outputs.pieces]


def steps_of(pieces: Sequence[str], by: By, most: int) -> list[tuple[int, int]]:
    """Returns the steps of an answer: the place of the last token, and the character before which the step's text ends.

    Args:
        pieces: the texts of the answer's tokens, see `Outputs.pieces`; of none there are no steps.
        by: what ends a step. most: steps at most, at least 1.
    """
    if not pieces:
        return []
    text = "".join(pieces)
    length, written, stops, start = len(text), len(text.rstrip()), list[int](), 0
    for gap in _GAPS[by].finditer(text):
        if text[start : gap.start()].strip() and gap.end() < written:
            stops.append(gap.end())
            start = gap.end()
    steps: dict[int, int] = {}
    place, end = 0, len(pieces[0])
    for stop in stops[: most - 1]:
        while end < stop:
            place += 1
            end += len(pieces[place])
        steps[place] = stop  # of several steps in one token the last end counts
    steps[len(pieces) - 1] = length
    return list(steps.items())
