"""Base classes of samplers of tokens: for single answers, and for trees of answers.

Maths: docs/maths/trees-and-paths.md#trees-of-answers
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import MOST
from mmrl.plans.answers import AnswerPlan

COLDEST = 1e-6  # logits divided by a lower temperature come near the end of float32: their log-probs mean nothing
LONGEST = 1_000_000  # tokens of an answer: random numbers for all of them are sampled beforehand


@dataclass(frozen=True)
class TokenSampler(Checked):
    """A sampler of answers, token by token."""

    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "tokens"

    max_tokens: Annotated[int, Field(ge=1, le=LONGEST)]  # the budget of an answer, its end token included
    temperature: Annotated[float, Field(ge=0)] = 1.0  # 0 takes the likeliest token: for evaluation only
    # Keeps the fewest likeliest tokens that hold this share of the probability, after `top_k`.
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=1)] | None = None  # keeps so many of the likeliest tokens, first; null: all
    # Keeps the tokens at least so many times as probable as the likeliest, after `top_p`; 0: all.
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    stop: tuple[str, ...] = ()  # texts that end an answer, kept at its end
    # An answer that the budget cut: `keep`, or `mask` (scored, but out of the update: neither in the sum nor in the
    # number that the sum is divided by).
    truncated: Literal["keep", "mask"] = "keep"
    # Further answers of each group, about the same videos with their frames in disorder: rewards such as
    # `temporal_contrast` compare with them, nothing is learned from them. The paper has half as many as answers.
    controls: Annotated[int, Field(ge=0, le=MOST)] = 0
    # One more answer of each group, of the likeliest tokens, which the advantage `remax` compares with and nothing is
    # learned from.
    greedy: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for settings that exclude each other."""
        super().__post_init__()
        if 0 < self.temperature < COLDEST:
            raise ValueError(
                f"temperature must be 0 (the likeliest token), or at least {COLDEST:g}, got {self.temperature}"
            )
        if self.controls and self.greedy:
            raise ValueError(
                f"controls and greedy exclude each other: a group has controls of one kind; got {self.controls} "
                "controls and greedy true"
            )
        if "" in self.stop:
            raise ValueError("stop must hold texts to stop at, got an empty text, which every answer holds")

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> AnswerPlan:
        """Returns the plan of a group, the same for every group: random numbers come from the key of each answer."""
        return AnswerPlan(
            num_samples=group_size,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop,
            masks_truncated=self.truncated == "mask",
            num_controls=self.controls,
            has_greedy=self.greedy,
        )


@dataclass(frozen=True, kw_only=True)
class TreeOfAnswers(TokenSampler):
    """A sampler of trees of answers, whose tokens are sampled at a temperature above 0, so that branches differ."""

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for those of single answers that trees do not have."""
        super().__post_init__()
        if self.temperature == 0:
            raise ValueError("temperature must be above 0: all children of a fork would be the same, got 0")
        if self.controls or self.greedy:
            raise ValueError("a tree of answers has no controls and no greedy answer beside it")


def settings_of(sampler: TreeOfAnswers, policy: Any, key: GroupKey, group_size: int) -> dict[str, Any]:
    """Returns the fields of the plan of `group_size` answers that the plan of a tree shares."""
    return vars(TokenSampler.plan(sampler, policy, key, group_size))
