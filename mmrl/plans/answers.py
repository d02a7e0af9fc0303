"""The plan of a group of answers, as a value: one by one, in turns of episodes, or as a tree of shared beginnings."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

PROMPT_READS = "prompt_reads"  # passes over prompts and their media in a rollout; a metric under calls/
Uncertainty = Literal["entropy", "probability"]


@dataclass(frozen=True)
class AnswerPlan:
    """The plan of the answers to one prompt, sampled token by token, each with its own key.

    The distribution of a token is softmax(logits / temperature), cut to the `top_k` likeliest tokens, to the smallest
    set that holds `top_p` of the mass, and to tokens at least `min_p` times as likely as the likeliest, then
    normalised.
    """

    num_samples: int
    max_tokens: int  # an answer ends with an end token, behind a text of `stop`, or after so many tokens
    temperature: float = 1.0  # 0: always the likeliest token
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    masks_truncated: bool = False  # an answer that is cut at `max_tokens` has no decisions in the update
    num_controls: int = 0  # further answers, about media in disorder: compared with, never learned from
    has_greedy: bool = False  # one further answer, of the likeliest tokens: compared with, never learned from

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
        """One for each answer; 0 at temperature 0, where there are no decisions."""
        return self.num_samples if self.temperature > 0 else 0

    @property
    def forwards_per_call(self) -> int:
        return 1

    @property
    def is_bound(self) -> bool:
        """True with controls: a prompt whose media have no order has none."""
        return self.num_controls > 0

    @property
    def shared_work(self) -> Mapping[str, int]:
        """The prompt is read once, and not once for each answer; the prompt of the controls once more."""
        return {PROMPT_READS: 1 + (self.num_controls > 0), "prompt_reads without sharing": self.num_rollout_calls}


@dataclass(frozen=True)
class RethinkingPlan(AnswerPlan):
    """The plan of answers of which some go on behind a trigger, as further samples beside the group.

    Its counts are upper bounds: an answer that was cut, or leaves little room, does not go on; and only right ones of
    those that went on are learned from.
    """

    num_rethought: int = 1  # answers that go on, at most
    triggers: tuple[str, ...] = ()
    room: int = 1  # tokens of `max_tokens` that must be left behind a trigger

    @property
    def num_rollout_calls(self) -> int:
        return self.num_samples + self.num_rethought

    @property
    def num_update_calls(self) -> int:
        return self.num_rollout_calls

    @property
    def is_bound(self) -> bool:
        return True

    @property
    def shared_work(self) -> Mapping[str, int]:
        """The prompt is read once for the answers, and for those that go on to sample and to evaluate them."""
        return {PROMPT_READS: 3, "prompt_reads without sharing": self.num_rollout_calls}


@dataclass(frozen=True)
class EpisodePlan(AnswerPlan):
    """The plan of `num_samples` episodes of one task.

    Its counts are upper bounds: those of episodes that all take `max_turns` turns and differ after the first one.
    """

    max_turns: int = 1  # answers of an episode, at most

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


@dataclass(frozen=True)
class AnswerTree(AnswerPlan):
    """The plan of a group whose answers are the leaves of one tree. What answers share is sampled and evaluated once.

    A call evaluates the tokens between two forks. All counts are upper bounds, since answers may end before a fork.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0 or self.num_controls or self.has_greedy:
            raise ValueError(
                f"a tree of answers needs a temperature above 0, where the children of a fork differ, and has no "
                f"controls; got temperature {self.temperature:g}"
            )

    @property
    def num_roots(self) -> int:
        """The number of answers that begin at the prompt, before any fork."""
        return self.num_samples

    @property
    def max_sampled_tokens(self) -> int:
        """The number of tokens that are sampled, at most."""
        return self.num_samples * self.max_tokens

    @property
    def is_bound(self) -> bool:
        return True

    @property
    def shared_work(self) -> Mapping[str, int]:
        """The prompt is read once, and tokens that answers share are sampled once."""
        return {
            PROMPT_READS: 1,
            "prompt_reads without sharing": self.num_samples,
            "tokens drawn at most": self.max_sampled_tokens,
            "tokens drawn at most without sharing": self.num_samples * self.max_tokens,
        }


@dataclass(frozen=True)
class SegmentTree(AnswerTree):
    """The plan of a tree that forks behind every segment of `segment_tokens` tokens.

    The last segments have any length.
    """

    segment_tokens: int = 1
    branch: tuple[int, ...] = ()  # children at each depth: those of the prompt first, then those of each segment

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.branch or min(self.branch) < 1 or prod(self.branch) != self.num_samples:
            wanted = f"branch {' x '.join(map(str, self.branch))} has {prod(self.branch)} leaves"
            raise ValueError(f"a group is the leaves of one tree: {wanted}, got a group of {self.num_samples}")
        if self.segment_tokens < 1 or self.segment_tokens * (len(self.branch) - 1) >= self.max_tokens:
            raise ValueError(
                f"segment_tokens must be at least 1 and leave the segments of depth {len(self.branch)} a token of "
                f"max_tokens {self.max_tokens}, got {self.segment_tokens}"
            )

    @property
    def num_roots(self) -> int:
        return self.branch[0]

    @property
    def splits(self) -> dict[int, int]:
        """The number of children at each fork behind the prompt, by the number of tokens before the fork."""
        return {self.segment_tokens * n: count for n, count in enumerate(self.branch) if n > 0 and count > 1}

    @property
    def num_rollout_calls(self) -> int:
        """One for each node, except for only children, which continue the tokens of their parents."""
        nodes = [prod(self.branch[: n + 1]) for n in range(len(self.branch))]
        return sum(count for n, count in enumerate(nodes) if n == 0 or self.branch[n] > 1)

    @property
    def num_update_calls(self) -> int:
        return self.num_rollout_calls

    @property
    def max_sampled_tokens(self) -> int:
        """The number of tokens that are sampled, at most; shared segments count once."""
        nodes = [prod(self.branch[: n + 1]) for n in range(len(self.branch))]
        return sum(nodes[:-1]) * self.segment_tokens + nodes[-1] * (
            self.max_tokens - self.segment_tokens * (len(nodes) - 1)
        )


@dataclass(frozen=True)
class ForkTree(AnswerTree):
    """The plan of trees that fork at uncertain tokens.

    `chains` answers are sampled. Then, in each round, the `forks` least certain tokens of each chain's tree get
    `branch` other continuations, which sample that token and all tokens behind it anew.
    """

    chains: int = 1
    rounds: int = 0
    forks: int = 1
    branch: int = 1
    by: Uncertainty = "entropy"  # the measure of uncertainty

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.chains, self.forks, self.branch) < 1 or self.rounds < 0 or self.by not in get_args(Uncertainty):
            raise ValueError(
                "chains, forks and branch must be at least 1, rounds at least 0, by entropy or probability"
            )
        leaves = self.chains * (1 + self.rounds * self.forks * self.branch)
        if leaves != self.num_samples:
            raise ValueError(
                f"a group is the leaves of one tree: chains x (1 + rounds x forks x branch) = {self.chains} x (1 + "
                f"{self.rounds} x {self.forks} x {self.branch}) = {leaves}, got a group of {self.num_samples}"
            )

    @property
    def num_roots(self) -> int:
        return self.chains

    @property
    def num_rollout_calls(self) -> int:
        """Each fork cuts a stretch of tokens in two and adds `branch` others."""
        return self.chains * (1 + self.rounds * self.forks * (self.branch + 1))

    @property
    def num_update_calls(self) -> int:
        return self.num_rollout_calls

    @property
    def max_sampled_tokens(self) -> int:
        """A fork shares at least the first token."""
        return self.num_samples * (self.max_tokens - 1) + self.chains
