"""Does the answer keep to its tags, such as <think>...</think><answer>...</answer>?"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.parsing.answers import ParseError, check_tags, extract, read_boxed, tagged


@dataclass(frozen=True)
class FormatTags:
    r"""A check of format: 1 where the text is the `tags` in order, each once and not empty, and nothing else; or 0.

    White space around, between and inside of tags is free. Everything is refused that lets a model answer twice or
    beside the point: a repeated, nested, unclosed or empty tag, and text before, between or after tags. All rewards
    read an answer out of its tag by the same rule (`mmrl.parsing.answers.tagged`), so that a text of this format can be
    read. DeepSeek-AI 2025 (arXiv 2501.12948); the regular expressions of R1-V and its kin let more through.

    With `boxed` a text follows the tags, with one `\boxed{...}` in it that is not empty (EasyR1's format of
    mathematics: think, then say the answer).

    With `is_graded` the score is the share of what holds: each tag once and not empty, anywhere (and the box, with
    `boxed`), and the whole rule.
    """

    source: ClassVar[str] = "DeepSeek-AI 2025 (DeepSeek-R1), arXiv 2501.12948"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None

    tags: tuple[str, ...] = ("think", "answer")  # the tags, in their order
    is_graded: bool = False  # whether a text that breaks the rule scores the share of what holds
    boxed: bool = False  # whether one `\boxed{...}` must follow the tags

    def __post_init__(self) -> None:
        check_tags(self.tags)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        return torch.tensor([self._judge(text) for text in batch.outputs.texts], dtype=torch.float32)

    def _judge(self, text: str) -> float:
        is_whole = self._is_whole(text)
        if is_whole or not self.is_graded:
            return float(is_whole)
        parts = [_has(text, tag) for tag in self.tags] + ([_has_box(text)] if self.boxed else [])
        return sum(parts) / (len(parts) + 1)

    def _is_whole(self, text: str) -> bool:
        try:
            parsed = tagged(text, self.tags)
        except ParseError:
            return False
        behind = text.rpartition(f"</{self.tags[-1]}>")[2] if self.boxed else ""
        before = parsed.outside[: len(parsed.outside) - len(behind)]
        is_filled = all(map(str.strip, parsed.contents))
        return is_filled and not before.strip() and (not self.boxed or _has_box(behind))


def _has(text: str, tag: str) -> bool:
    """Returns whether the tag is in the text once, with something in it."""
    try:
        return bool(extract(text, tag).strip())
    except ParseError:
        return False


def _has_box(text: str) -> bool:
    r"""Returns whether there is one `\boxed{...}` behind the thoughts, with something in it."""
    try:
        return bool(read_boxed(text).strip())
    except ParseError:
        return False
