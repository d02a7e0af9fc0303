"""Answers of models: the base of rewards that read the tag of an answer, and the loop over short answers."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.declarations import RewardDeclaration
from mmrl.parsing.answers import ParseError, check_tag, read_boxed

from .references import answer_text

Target = TypeVar("Target")


class TagReward(Checked):
    """The base of rewards that judge what stands in one tag of an answer, `<tag>...</tag>`.

    The dataclasses that inherit have the setting `tag: str | None`; None means the whole text.
    """

    tag: str | None

    def __post_init__(self) -> None:
        """Raises ValueError for a setting that is not allowed, and for a `tag` that is no name of a tag."""
        super().__post_init__()
        check_tag(self.tag)

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns a declaration with the tag that this reward reads."""
        return RewardDeclaration(answer_tag=self.tag)


def weighted_mean(parts: Sequence[float], weights: Sequence[float]) -> float:
    """Returns the mean of the parts of a score by their weights, which are not all 0."""
    return sum(weight * part for weight, part in zip(weights, parts, strict=True)) / sum(weights)


def judge_answers(
    batch: RewardBatch,
    tag: str | None,
    read_target: Callable[[Prompt], Target],
    judge: Callable[[str, Target], float],
    *,
    boxed: bool = False,
) -> Tensor:
    """Returns the scores [B] float32 of short answers: `judge(answer, read_target(prompt))` for each sample.

    The target of a prompt is read once for all of its samples. A text without an answer (`short_answer`) scores 0, as
    does one for which `judge` raises ParseError. Raises what `read_target` raises.
    """
    texts = batch.outputs.texts
    assert texts is not None, "scoring checks needs"
    targets: dict[int, Target] = {}
    scores = [0.0] * len(batch)
    for row, (prompt, text) in enumerate(zip(batch.prompts, texts, strict=True)):
        if id(prompt) not in targets:
            targets[id(prompt)] = read_target(prompt)
        try:
            scores[row] = judge(short_answer(text, tag, boxed=boxed), targets[id(prompt)])
        except ParseError:
            continue
    return torch.tensor(scores, dtype=torch.float32)


def short_answer(text: str, tag: str | None, *, boxed: bool) -> str:
    r"""Returns the text in the one `tag` (None: the whole text), and with `boxed` in the one `\boxed{...}` there.

    Raises:
        ParseError: there is no such answer, there are several, or the answer is too long (`references.answer_text`).
    """
    answer = answer_text(text, tag)
    return read_boxed(answer).strip() if boxed else answer


def is_number(value: object) -> bool:
    """Returns whether a value of a target or of parsed JSON is a finite number; truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
