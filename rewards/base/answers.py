"""Answers in texts: the base of rewards that read the tag of an answer, and the loop that judges short answers."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.declarations import RewardDeclaration
from mmrl.parsing.answers import ParseError, check_tag, read_boxed

from .references import answer_text

Right = TypeVar("Right")


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


def judge_short(
    batch: RewardBatch,
    tag: str | None,
    boxed: bool,
    read: Callable[[Prompt], Right],
    judge: Callable[[str, Right], float],
) -> Tensor:
    """[B] float32: what `judge` says of each answer and of what `read` makes of its prompt, once for each prompt.

    0 for a text without an answer (`short_answer`) and where `judge` raises ParseError; what `read` raises is raised.
    """
    texts = batch.outputs.texts
    assert texts is not None, "scoring checks needs"
    known: dict[int, Right] = {}
    scores = [0.0] * len(batch)
    for row, (prompt, text) in enumerate(zip(batch.prompts, texts, strict=True)):
        if id(prompt) not in known:
            known[id(prompt)] = read(prompt)
        try:
            scores[row] = judge(short_answer(text, tag, boxed), known[id(prompt)])
        except ParseError:
            continue
    return torch.tensor(scores, dtype=torch.float32)


def short_answer(text: str, tag: str | None, boxed: bool) -> str:
    r"""What stands in the one `tag` of a text (None: all of it), and in the one `\boxed{...}` of that where `boxed`.

    Raises:
        ParseError: there is no such answer, several, or it is too long (`_references.answer_text`).
    """
    answer = answer_text(text, tag)
    return read_boxed(answer).strip() if boxed else answer
