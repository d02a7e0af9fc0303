"""How the answers of a group are drawn, as a value: token by token, or turn by turn."""

from collections.abc import Mapping
from dataclasses import dataclass

PROMPT_READS = "prompt_reads"  # passes over prompts and their media in a rollout; a metric under calls/


@dataclass(frozen=True)
class AnswerPlan:
    """How the answers to one prompt are drawn, token by token, each by its own key.

    The distribution of a token is softmax(logits / temperature), cut to the `top_k` likeliest, to the smallest set that
    holds `top_p` of the mass, and to those at least `min_p` times as likely as the likeliest, then normalised.
    `temperature` 0 takes the likeliest. An answer ends with an end token, behind a text in `stop`, or after
    `max_tokens`; with `masks_truncated` an answer cut there is no decision of the update.
    """

    num_samples: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    masks_truncated: bool = False
    num_controls: int = 0  # answers to the same question about media in disorder: compared with, never learned from
    has_greedy: bool = False  # one more answer, of the likeliest tokens: the same

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"a plan needs samples, got {self.num_samples}")
        if self.num_controls and self.has_greedy:
            raise ValueError(f"a plan has controls about media in disorder, got {self.num_controls}, or a greedy one")

    @property
    def num_compared(self) -> int:
        return self.num_samples

    @property
    def num_rollout_calls(self) -> int:
        return self.num_samples + self.num_controls + self.has_greedy

    @property
    def num_update_calls(self) -> int:
        """0 where the likeliest token is taken: nothing is chosen."""
        return self.num_samples if self.temperature > 0 else 0

    @property
    def forwards_per_call(self) -> int:
        return 1

    @property
    def is_bound(self) -> bool:
        """A prompt whose media have no order has no controls."""
        return self.num_controls > 0

    @property
    def shared_work(self) -> Mapping[str, int]:
        """The prompt is read once, not once for each answer; that of the controls once more."""
        return {PROMPT_READS: 1 + (self.num_controls > 0), "prompt_reads without sharing": self.num_rollout_calls}


@dataclass(frozen=True)
class EpisodePlan(AnswerPlan):
    """How the episodes of one task are played: `num_samples` of them, each of at most `max_turns` answers.

    Its counts are those of episodes that all last to the end and part after their first turn, so they are upper bounds.
    """

    max_turns: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_turns < 1 or self.num_controls or self.has_greedy:
            raise ValueError(f"a plan of episodes needs turns and has no controls, got {self.max_turns} turns")

    @property
    def num_rollout_calls(self) -> int:
        return self.num_samples * self.max_turns

    @property
    def num_update_calls(self) -> int:
        return self.num_rollout_calls if self.temperature > 0 else 0

    @property
    def is_bound(self) -> bool:
        return True

    @property
    def shared_work(self) -> Mapping[str, int]:
        """All episodes begin with one screenshot and one goal."""
        reads = 1 + self.num_samples * (self.max_turns - 1)
        return {PROMPT_READS: reads, "prompt_reads without sharing": self.num_rollout_calls}
