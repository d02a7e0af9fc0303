"""Are the findings of a thought right and complete, and its steps to the point? (RadRScore, without a judge)"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError

from ..base.answers import TagReward, judge_answers, weighted_mean
from ..base.references import composed

MAX_STEPS = 200  # of a thought

_MARK = re.compile(r"(?:[-*\u2022]|[0-9]{1,3}[.)])[ \t]++")  # of a list
Findings = Mapping[str, str]  # findings with their status, both as they are compared


@dataclass(frozen=True)
class ReferenceSteps(TagReward):
    """The weighted mean of factuality, completeness and effectiveness of a thought against `target.findings`.

    Fan et al. 2025 (ChestX-Reasoner), arXiv 2504.20930, RadRScore, which is the plain mean. A step is a line of the
    `tag`, with or without the mark of a list; a step `finding: status` states a finding. `target.findings` has the
    findings of the reference, such as `{pleural effusion: present, pneumothorax: absent}`:
      factuality     of the stated findings, the share with the right status: that of the reference, or for findings
                     of `others` that it does not mention one of `normal`, as what a report leaves out is normal;
                     findings that neither names count nothing, else invented ones would be right
      completeness   of the findings of the reference, the share that is stated with its status
      effectiveness  of the steps, the share that states a finding of the reference with its status
    A finding that is stated again is the same finding and one more step, which is no longer effective; with different
    statuses it is wrong. Findings and statuses are compared in composed Unicode (NFC) and case-folded letters, with one
    space for each run of white space. The score is 0 without the one tag, or a step, and beyond 200 steps.

    The difference: the paper lets a language model find findings and statuses in free text, and compare them by
    meaning. Here nothing judges: the thought has to write its findings in this form, in the words of the reference,
    which the prompt has to ask for. Reasons between them are steps that state nothing.
    """

    others: tuple[str, ...] = ()  # findings that are normal where the reference does not mention them
    normal: tuple[str, ...] = ("absent", "normal")  # statuses that are right for those
    factuality_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of the factuality
    completeness_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of the completeness
    effectiveness_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of the effectiveness
    tag: str | None = "think"  # the tag of the steps, `<tag>...</tag>`; null: the whole text

    source: ClassVar[str] = "Fan et al. 2025 (ChestX-Reasoner), arXiv 2504.20930"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.findings"})
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(self._weights):
            raise ValueError("factuality_weight, completeness_weight and effectiveness_weight must not all be 0")

    @property
    def _weights(self) -> tuple[float, float, float]:
        return self.factuality_weight, self.completeness_weight, self.effectiveness_weight

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target has no findings with a status each."""
        _reference(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32. Raises ValueError as `check` does."""
        return judge_answers(batch, self.tag, _reference, self._judge)

    def _judge(self, thought: str, reference: Findings) -> float:
        steps = [_MARK.sub("", line.strip(), count=1) for line in thought.splitlines() if line.strip()]
        if not 1 <= len(steps) <= MAX_STEPS:
            return 0.0
        stated: dict[str, set[str]] = {}
        for step in steps:
            finding, colon, status = step.partition(":")
            if colon and (name := _plain(finding)) and (value := _plain(status)):
                stated.setdefault(name, set()).add(value)
        right = sum(stated.get(finding) == {status} for finding, status in reference.items())
        normal, others = set(map(_plain, self.normal)), set(map(_plain, self.others)) - set(reference)
        beside = sum(len(one) == 1 and one <= normal for name, one in stated.items() if name in others)
        num_known = sum(name in reference or name in others for name in stated)
        parts = ((right + beside) / max(1, num_known), right / len(reference), right / len(steps))
        return weighted_mean(parts, self._weights)


def _reference(prompt: Prompt) -> dict[str, str]:
    """Reads `target.findings` of a prompt; raises ValueError unless these are texts with a text each."""
    given = prompt.target["findings"]
    pairs = list(given.items()) if isinstance(given, Mapping) else []
    if not pairs or not all(isinstance(text, str) and _is_writable(text) for pair in pairs for text in pair):
        raise ValueError(
            "target.findings must have findings with a status each, in one line and without colons, such as "
            f"{{pneumothorax: absent}}, got {given!r} for {prompt.text!r}"
        )
    reference = {_plain(finding): _plain(status) for finding, status in pairs}
    if len(reference) != len(pairs) or len(reference) > MAX_STEPS:
        raise ValueError(
            f"target.findings must have at most {MAX_STEPS} different findings, got {given!r} for {prompt.text!r}"
        )
    return reference


def _is_writable(text: str) -> bool:
    """Returns whether a step can state the text: one line, not empty, without a colon, not too many accents."""
    try:
        return bool(_plain(text)) and len(text.splitlines()) == 1 and ":" not in text
    except ParseError:
        return False


def _plain(text: str) -> str:
    """Returns the text as it is compared, without a full stop at its end."""
    return " ".join(composed(text).casefold().split()).removesuffix(".")
