"""Samplers of tokens: base classes of one answer after the other, and of trees of answers.

Maths: docs/maths/trees-and-paths.md#trees-of-answers
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mmrl.core.keys import GroupKey
from mmrl.core.numerics import check_count
from mmrl.plans.answers import AnswerPlan

from .flow import check_positive

COLDEST = 1e-6  # logits divided by less come near the end of float32, and their log-probs mean nothing
LONGEST = 1_000_000  # tokens of an answer: random numbers for all of them are drawn beforehand


@dataclass(frozen=True)
class TokenSampler:
    """Samples the tokens of each answer; `samplers/autoregressive.py` says what each setting means."""

    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "tokens"

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    truncated: Literal["keep", "mask"] = "keep"
    controls: int = 0
    greedy: bool = False

    def __post_init__(self) -> None:
        check_count("max_tokens", self.max_tokens, most=LONGEST)
        if self.temperature != 0 and not self.temperature >= COLDEST:
            raise ValueError(
                f"temperature must be at least 0 (0: the likeliest token), or {COLDEST:g} and above, "
                f"got {self.temperature}"
            )
        check_positive("top_p", self.top_p, at_most=1)
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}; null keeps all tokens")
        check_count("controls", self.controls, least=0)
        if self.controls and self.greedy:
            raise ValueError(f"controls of one kind: got {self.controls} about media in disorder, and a greedy one")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be between 0 (keeps all tokens) and 1, got {self.min_p}")
        if "" in self.stop:
            raise ValueError("stop must hold texts to stop at, got an empty one, which every answer holds")

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> AnswerPlan:
        """The same for every group: chance comes with the key of each answer."""
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
    """Tokens as `autoregressive` draws them, at a temperature above 0, where the children of a fork differ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0:
            raise ValueError("temperature must be above 0: all children of a fork would be the same, got 0")
        if self.controls or self.greedy:
            raise ValueError("a tree of answers has no controls and no greedy answer beside it")


def settings_of(sampler: TreeOfAnswers, policy: Any, key: GroupKey, group_size: int) -> dict[str, Any]:
    """The fields of the plan of `group_size` answers that a tree of them has too."""
    return vars(TokenSampler.plan(sampler, policy, key, group_size))
