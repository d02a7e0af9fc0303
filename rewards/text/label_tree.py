"""Are the coarse labels the right ones, and the finer ones below them?"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, read_json

from ..base.answers import TagReward, judge_answers, weighted_mean
from ..base.references import composed

Labels = dict[str, frozenset[str]]  # coarse labels, each with the finer ones below it, as they are compared
Weight = Annotated[float, Field(ge=0, le=1e6)]


@dataclass(frozen=True)
class LabelTree(TagReward):
    """The correctness of labels in levels, coarse before fine, in [0, 1]: the multi-level reward of MagicMirror.

    The `tag` (None: the whole text) holds a JSON object that names what is wrong: coarse labels, each with a list of
    finer ones, such as `{"hands": ["six fingers"], "shadows": []}`; `{}` where nothing is. `target.faults` is such an
    object. Wang et al. 2025, arXiv 2509.10260, equations 3 and 5 and appendix A.4, over the sum of the weights:
      (w0 r0 + w1 r1 + w2 r2 + w3 r3) / (w0 + w1 + w2 + w3), the weights 8, 4, 2 and 1
      r0  1 for such an object; anything else scores 0 as a whole
      r1  1 where it names something exactly where `target.faults` does
      r2  of the coarse labels: 1 where they are all right and none is too many, else 0 where none is named, else
          min(1, max(0, 0.6 right - 0.3 (missed + too many)))
      r3  the same of the finer labels, each below its coarse one
    Labels are compared in composed Unicode (NFC) and case-folded letters, with one space for each run of white space.

    The paper multiplies by whether the thoughts agree with the labels, as a model says: put `gated` around this reward.
    """

    weights: tuple[Weight, Weight, Weight, Weight] = (8.0, 4.0, 2.0, 1.0)  # of form, anything, coarse and finer labels
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    source: ClassVar[str] = "Wang et al. 2025 (MagicMirror), arXiv 2509.10260"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.faults"})
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not sum(self.weights):
            raise ValueError(f"weights must not all be 0, got {list(self.weights)}")

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no object of labels."""
        _right(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32. Raises ValueError for a target that is no object of labels."""
        return judge_answers(batch, self.tag, _right, self._judge)

    def _judge(self, answer: str, right: Labels) -> float:
        named = _labels(read_json(answer))
        parts = (1.0, float(bool(named) == bool(right)), share_right(named.keys(), right.keys()),
                 share_right(_finer(named), _finer(right)))  # fmt: skip
        return weighted_mean(parts, self.weights)


def share_right(named: Set[object], right: Set[object]) -> float:
    """Returns how right a set of labels is, in [0, 1]: arXiv 2509.10260, equation 5."""
    if named == right:
        return 1.0
    points = 0.6 * len(named & right) - 0.3 * len(named ^ right)
    return min(1.0, max(0.0, points)) if named else 0.0


def _finer(labels: Labels) -> set[tuple[str, str]]:
    """Returns the finer labels, each with its coarse one."""
    return {(coarse, fine) for coarse, below in labels.items() for fine in below}


def _labels(value: object) -> Labels:
    """Returns labels as they are compared. Raises ParseError for anything but an object of lists of texts."""
    if not isinstance(value, Mapping):
        raise ParseError(f"labels are an object of lists of texts, got {value!r:.80}")
    labels: Labels = {}
    for coarse, below in value.items():
        is_texts = isinstance(below, list | tuple) and all(isinstance(fine, str) and fine.strip() for fine in below)
        if not isinstance(coarse, str) or not coarse.strip() or not is_texts:
            raise ParseError(f"labels are an object of lists of texts, got {coarse!r:.80}: {below!r:.80}")
        if (name := _plain(coarse)) in labels:
            raise ParseError(f"a label stands there twice: {coarse!r:.80}")
        labels[name] = frozenset(map(_plain, below))
    return labels


def _plain(label: str) -> str:
    return " ".join(composed(label).split()).casefold()


def _right(prompt: Prompt) -> Labels:
    """Returns `target.faults`, as it is compared."""
    try:
        return _labels(prompt.target["faults"])
    except ParseError as error:
        raise ValueError(f"target.faults of {prompt.text!r}: {error}") from None
