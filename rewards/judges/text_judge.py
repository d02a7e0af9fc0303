"""A language model judges answers in words: scores, verdicts, rubrics, comparisons."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mmrl.core.contracts import License, RewardBatch
from mmrl.parsing.answers import extract

from ..base.judging.reward import JudgeReward
from ..base.judging.settings import JudgeModel

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass
class TextJudge(JudgeReward):
    """The verdict of a language model on an answer, in [0, 1], by a prompt file of words.

    Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", arXiv 2306.05685. The judge reads the
    prompt and the answer (a reference, the criteria of the row), writes its reasons where the file says so, and ends
    with a verdict in one of these forms:
      number         a number on the file's scale, as (number - worst) / (best - worst)
      yes_no         P(yes) / (P(yes) + P(no)) of the first word; 1 or 0 where the judge writes reasons first
      rubric         sum(weight grade) / sum(positive weights) of criteria, with caps (arXiv 2507.17746)
      constraints    1 where all criteria hold, else 0
      pairwise       the win rate in the group, both orders of each pair asked, a tie one half (arXiv 2508.20751);
                     `compare` takes fewer pairs, or compares with the row's reference
      ranking        1 for the best of the group to 0 for the worst, in one question about all
      group_scores   a number for each member of the group, in one question about all
    `judges` may be models that run here or addresses that speak OpenAI's protocol. With several judges or votes each
    question counts where more than half of the votes can be read. A sample without a verdict that can be read is an
    error, so that it is left out and counted; it never scores 0. An answer is data: what it says to the judge stands in
    its place of the question, and `mmrl judge attack` shows whether a judge can be talked into a verdict.

    Raises ValueError for a prompt file and settings that do not go together.
    """

    tag: str | None = None  # the part of an answer that is judged, `<tag>...</tag>`; null: all of it
    judges: tuple[JudgeModel, ...] = (JudgeModel("Qwen/Qwen2.5-7B-Instruct"),)  # each is asked every question

    needs: ClassVar[frozenset[str]] = frozenset({"texts", "model"})  # or a service, and fields of the target
    source: ClassVar[str] = "Zheng et al. 2023, arXiv 2306.05685"
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # the model card

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "needs", self.needs | {"texts"})

    def shown(self, batch: RewardBatch, row: int) -> "tuple[list[Image], str]":
        """Returns the answer. Raises ParseError for an answer without the tag."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        return [], extract(batch.outputs.texts[row], self.tag)

    def condition(self, batch: RewardBatch, row: int) -> "list[Image]":
        """Returns none."""
        return []
