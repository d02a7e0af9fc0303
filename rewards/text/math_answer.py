"""Does the answer equal the right one, as mathematics?"""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, read_boxed

from ..base.answers import TagReward, short_answer
from ..base.limited_process import LimitedProcess

MAX_LETTERS = 400  # of an answer
MAX_DIGITS = 30  # in a row

_PROCESS = Path(__file__).parents[1] / "base" / "math_verify_process.py"  # loaded alone, without its package
_LONG_NUMBER = re.compile(rf"[0-9]{{{MAX_DIGITS + 1}}}")
_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
_DOLLARS = re.compile(r"\$([^$]*)\$|\\\(((?:(?!\\\)).)*)\\\)|\\\[((?:(?!\\\]).)*)\\\]", re.DOTALL)


class _Mathematician(LimitedProcess):
    """A process that reads answers in LaTeX and compares them, with `seconds` of processor time at most for each."""

    def __init__(self, seconds: float, float_rounding: int, is_strict: bool) -> None:
        settings = {"float_rounding": float_rounding, "strict": is_strict}
        super().__init__(_PROCESS, "math-verify", seconds, settings)
        self._readable: dict[str, bool] = {}  # right answers are asked about when data is loaded, and in each batch

    def can_read(self, right: str) -> bool:
        """Returns whether this is mathematics that answers can be compared with, in time: it equals itself."""
        if _PLAIN_NUMBER.fullmatch(right):  # as most are, of which a file may have many
            return True
        if right not in self._readable:
            self._readable[right] = self.ask({"right": right}) == "equal"
        return self._readable[right]

    def are_equal(self, right: str, answer: str) -> bool:
        """Returns whether the answer equals the right one; False where it cannot be read, or exceeds time or memory."""
        return self.ask({"right": right, "answer": answer}) == "equal"


@dataclass(frozen=True)
class MathAnswer(TagReward):
    r"""A match: 1 where math-verify (huggingface/Math-Verify) finds the answer equal to `target.answer`, else 0.

    The package is github.com/huggingface/Math-Verify. The answer is LaTeX, or as simple as "1/2": the text in the `tag`
    (None: the whole text), and there in the one `\boxed{...}`, which must be there with `boxed`, and may be there
    without; one pair of dollars around it is left out. `target.answer` is such a text, or a list of which one is
    enough. Equal are "0.5" and "\frac{1}{2}", "x=3" and "3", "2\sqrt{2}" and "\sqrt{8}", "\{1, 2\}" and "2, 1"; floats
    are rounded to `float_rounding` digits. Units are left out, and a percent sign as well or not: "50\%" is 50, and it
    is 0.5. Letters in a row are a product, "yes" as much as "sey": words are for `exact_answer`.

    The score is 0 for no answer or several, braces that do not close, over 400 letters, over 30 digits in a row, what
    cannot be parsed, and what takes over `seconds` of processor time or 2 GiB to parse and compare, such as
    "9^{9^{9}}". math-verify runs in a process of its own, started at the first score, since it must be stopped from
    outside and scoring runs on a worker thread, where its own limits fail. Where that process cannot run, the reward
    raises.

    R1-V and its kin differ: they parse the whole answer, so that a number of the thought can be the one that counts,
    take any of several, and score 0 where the target cannot be parsed; here that is an error when the data is loaded.
    Nothing is evaluated as Python: math-verify's reader of plain expressions, which does that, is not used.
    """

    source: ClassVar[str] = "math-verify, github.com/huggingface/Math-Verify; R1-V 2025, github.com/Deep-Agent/R1-V"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer"})
    batch_size: ClassVar[int | None] = None

    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text
    boxed: bool = False  # whether the answer must stand in the one `\boxed{...}` of that text
    # processor time for one answer; math-verify's own limit is by the clock
    seconds: Annotated[float, Field(ge=0.1, le=600)] = 5.0
    # digits to which floats are rounded; math-verify's default, as the next one
    float_rounding: Annotated[int, Field(ge=0, le=15)] = 6
    is_strict: bool = True  # whether variables are compared by name, and a set never equals a tuple

    def __post_init__(self) -> None:
        super().__post_init__()
        if find_spec("math_verify") is None:
            raise ConfigError(
                "math_answer needs the package math-verify: install the extra, `pip install 'mmrl[math]'`"
            )
        mathematician = _Mathematician(self.seconds, self.float_rounding, self.is_strict)
        object.__setattr__(self, "_mathematician", mathematician)  # no setting

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target cannot be parsed as mathematics."""
        self._right(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that cannot be parsed, RuntimeError where the process is lost.
        """
        assert batch.outputs.texts is not None, "scoring checks needs"
        targets = {id(prompt): self._right(prompt) for prompt in batch.prompts}
        known: dict[tuple[str, str], bool] = {}
        scores = [0.0] * len(batch)
        for row, (prompt, text) in enumerate(zip(batch.prompts, batch.outputs.texts, strict=True)):
            try:
                answer = _latex(short_answer(text, self.tag, boxed=self.boxed))
            except ParseError:
                continue
            for right in targets[id(prompt)]:
                if (right, answer) not in known:
                    known[right, answer] = self._process.are_equal(right, answer)
            scores[row] = float(any(known[right, answer] for right in targets[id(prompt)]))
        return torch.tensor(scores, dtype=torch.float32)

    @property
    def _process(self) -> _Mathematician:
        return self._mathematician  # type: ignore[attr-defined, no-any-return]  # set beside the fields

    def _right(self, prompt: Prompt) -> list[str]:
        given = prompt.target["answer"]
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"target.answer must be a text or a list of texts, got {given!r} for {prompt.text!r}")
        try:
            right = [_latex(text.strip()) for text in texts]
        except ParseError as error:
            raise ValueError(f"target.answer of {prompt.text!r} is no mathematics: {error}") from None
        for text in right:
            if not self._process.can_read(text):
                raise ValueError(f"target.answer of {prompt.text!r} is no mathematics that math-verify reads: {text!r}")
        return right


def _latex(answer: str) -> str:
    r"""Returns the LaTeX of an answer: of its one `\boxed{...}` if it has one, without one pair of dollars around it.

    Raises:
        ParseError: it is empty or too long, has several boxes or formulas, or its braces do not close.
    """
    if _PLAIN_NUMBER.fullmatch(answer):
        return answer
    if "\\boxed{" in answer:
        answer = read_boxed(answer).strip()
    if len(answer) > MAX_LETTERS or _LONG_NUMBER.search(answer):
        raise ParseError(f"an answer may have {MAX_LETTERS} letters and {MAX_DIGITS} digits in a row")
    if match := _DOLLARS.fullmatch(answer):
        answer = next(group for group in match.groups() if group is not None).strip()
    if not answer or read_boxed(f"\\boxed{{{answer}}}") != answer:  # a brace too many would close our own box
        raise ParseError("the answer is empty, or its braces do not close")
    return answer
