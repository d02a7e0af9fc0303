"""Is the number in the answer near the true one?"""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, shown

from ..base.answers import TagReward, is_number, judge_answers

Kind = Literal["relaxed", "linear", "mean"]

_DIGITS = r"(?:[0-9]{1,3}+(?:,[0-9]{3})++|[0-9]{1,30}+)(?:\.[0-9]{0,30}+)?+|\.[0-9]{1,30}+"
_NUMBER = re.compile(rf"([+-]?+)({_DIGITS})")
# Up to 21 characters without a number, maybe with a square or a cube at the end: "m^2", "m3", "%", "km / h".
_UNIT = r" ?+(?![eE][+-]?[0-9])[^\d\s_.,;:=+*<>()\[\]-][^\d,;:=+*<>]{0,20}+(?:(?<=[^\W\d_])[23]|(?<=\^)[23])?+"
_MEASURE = re.compile(rf"([+-]?+)(?:[$\u20ac\u00a3\u00a5] ?)?+({_DIGITS})(?:{_UNIT})?+")


@dataclass(frozen=True)
class Number(TagReward):
    r"""The nearness of the number p in the `tag` (None: the whole text) to g, `target.answer`, by e = |p - g| / |g|:

      relaxed  1 where e <= `tolerance`, else 0 (ChartQA's relaxed accuracy, Masry et al. 2022, arXiv 2203.10244: 0.05)
      linear   1 - min(1, e) (the regression reward of Video-R1, Feng et al. 2025, arXiv 2503.21776)
      mean     mean of [e < 1 - t] over t = 0.50, 0.55 ... 0.95: the mean relative accuracy of VSI-Bench
               (Yang et al. 2024, arXiv 2412.14171)
    Where g is 0 only 0 itself is right, e = 0; any other number is infinitely far. Exact: 1.05 is within 5 % of 1.

    A number is ASCII digits with a sign, a decimal point and commas between thousands ("1,234.5"); "3" is "3.0".
    Exponents, fractions, NaN and several numbers score 0, as does a text that does not hold exactly one such tag. With
    `ignore_units` a currency sign before and a unit behind are left out, whatever they are: "$5", "10 cm", "5 %" are 5,
    10 and 5. With `boxed` the number stands in the one `\boxed{...}` of that text.

    The sources differ: Video-R1 gives the right answer 0 no reward, and takes a comma for a decimal point; ChartQA's
    script compares with 0 as texts ("0.0" is wrong) and divides by 100 where there is a "%"; that of VSI-Bench counts e
    = 1 - t too, which the paper does not.
    """

    source: ClassVar[str] = (
        "Masry et al. 2022 (ChartQA), arXiv 2203.10244; Yang et al. 2024 (VSI-Bench), arXiv 2412.14171"
    )
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer"})
    batch_size: ClassVar[int | None] = None

    kind: Kind = "relaxed"  # how an error counts
    # of `relaxed`: the largest relative error that is right; ChartQA's
    tolerance: Annotated[float, Field(ge=0, lt=inf)] = 0.05
    ignore_units: bool = False  # whether a currency sign before and a unit behind the number are left out
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text
    boxed: bool = False  # whether the answer stands in the one `\boxed{...}` of that text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no number."""
        self._right(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that is no number."""
        return judge_answers(batch, self.tag, self._right, self._judge, boxed=self.boxed)

    def _judge(self, answer: str, right: Fraction) -> float:
        error = relative_error(read_number(answer, self.ignore_units), right)
        if error is None:
            return 0.0
        if self.kind == "relaxed":
            return float(error <= Fraction(str(self.tolerance)))
        if self.kind == "linear":
            return float(1 - min(Fraction(1), error))
        return sum(error < 1 - Fraction(hundredths, 100) for hundredths in range(50, 100, 5)) / 10

    def _right(self, prompt: Prompt) -> Fraction:
        given = prompt.target["answer"]
        try:
            if isinstance(given, str):
                return read_number(given.strip(), self.ignore_units)
            if is_number(given):
                return Fraction(str(given))
        except ParseError:
            pass
        raise ValueError(f"target.answer must be a number, or the text of one, got {given!r} for {prompt.text!r}")


def relative_error(number: Fraction, right: Fraction) -> Fraction | None:
    """Returns |number - right| / |right|; None for infinity, where only `right` is 0."""
    if right == 0:
        return Fraction(0) if number == 0 else None
    return abs(number - right) / abs(right)


def read_number(text: str, ignore_units: bool) -> Fraction:
    """Reads the one number that a text is, exactly.

    With `ignore_units` a currency sign before and a unit behind are left out.

    Raises:
        ParseError: the text is anything else.
    """
    match = (_MEASURE if ignore_units else _NUMBER).fullmatch(text.replace("\u2212", "-"))
    if match is None:
        raise ParseError(f"this is not one number: {shown(text)}")
    whole, _, decimals = match[2].replace(",", "").partition(".")
    return Fraction(f"{match[1]}{whole or 0}.{decimals or 0}")
