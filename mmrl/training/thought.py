"""What the policy thinks of a rollout's answers, read once for all rewards that need it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from mmrl.core.contracts import AdapterScoring, Assessing, Modality, Spreading
from mmrl.core.data import Prompt, Rollout
from mmrl.core.likelihoods import (
    ANSWER_TAG,
    SPREAD,
    THOUGHT,
    Likelihoods,
    adapters_read,
    right_answer_of,
    weights_read,
)
from mmrl.core.rewards import Thought
from mmrl.system.out_of_memory import in_halves

Result = TypeVar("Result")
OPENING, CLOSING = f"<{ANSWER_TAG}>", f"</{ANSWER_TAG}>"


@dataclass
class ThoughtReader:
    """Has the policy read answers of rollouts again, in smaller parts where memory does not suffice."""

    size: int = 1  # network calls at a time, at most

    def __call__(self, policy: Modality, rollout: Rollout, needs: Collection[str]) -> Thought:
        """Returns what rewards that need all this need to know.

        Each set of weights reads the answers once, and the right answers behind the same thoughts once.
        """
        scores = {adapter: self._scores(policy, rollout, adapter) for adapter in adapters_read(needs)}
        if not set(THOUGHT) & set(needs):
            return Thought(adapter_scores=scores)
        assert isinstance(policy, Assessing), "checked when the parts were built"
        likelihoods: dict[str, Likelihoods] = {}
        if "likelihoods.sampled" in needs:
            likelihoods["sampled"] = policy.recorded_likelihoods(rollout)
        right_answer, turn_answer = dict[str, Tensor](), dict[str, Tensor]()
        for which in weights_read(needs):
            with policy.weights(which):
                has_certainty = f"self_certainty.{which}" in needs
                if has_certainty or f"likelihoods.{which}" in needs:
                    read = partial(policy.likelihoods, rollout, has_certainty=has_certainty)
                    likelihoods[which] = self._in_memory(policy, rollout, read)
                if f"right_answer.{which}" in needs:
                    read_right = partial(policy.mean_log_probs, rollout, _right_ends(rollout))
                    right_answer[which] = self._in_memory(policy, rollout, read_right)
                if f"turn_answer.{which}" in needs:
                    read_turns = partial(policy.mean_log_probs, rollout, _ends_of_turns(rollout))
                    turn_answer[which] = _before_and_after(rollout, self._in_memory(policy, rollout, read_turns))
        return Thought(
            likelihoods=likelihoods, right_answer=right_answer, turn_answer=turn_answer, adapter_scores=scores
        )

    def with_spread(self, policy: Modality, rollout: Rollout) -> Rollout:
        """Returns the rollout whose decisions have the fact `spread`, for an advantage that requires it."""
        assert isinstance(policy, Spreading), "checked when the parts were built"
        spread = self._in_memory(policy, rollout, partial(policy.spreads, rollout))
        return replace(rollout, blocks=(rollout.blocks[0].with_fact(SPREAD, spread), *rollout.blocks[1:]))

    def _scores(self, policy: Modality, rollout: Rollout, adapter: str) -> Tensor:
        """Returns the scores [B] of the answers by an adapter on the policy's base."""
        assert isinstance(policy, AdapterScoring), "checked when the parts were built"
        return self._in_memory(policy, rollout, partial(policy.adapter_scores, rollout, adapter))

    def _in_memory(self, policy: Modality, rollout: Rollout, read: Callable[[int], Result]) -> Result:
        """Returns what `read` makes with `size` network calls at a time, halved until memory suffices."""
        before = policy.num_calls

        def begun(size: int) -> Result:
            policy.num_calls = before  # those of a pass that ran out of memory do not count
            return read(size)

        done, self.size = in_halves(self.size, begun, "updates.micro_batch", lambda: rollout.num_samples)
        return done


def _right_ends(rollout: Rollout) -> list[tuple[str, str] | None]:
    """Returns, for each sample, its text up to its first answer, and the right answer with the closing tag."""
    texts = rollout.outputs.texts
    assert texts is not None, "checked when the parts were built"
    prompts = [rollout.prompts[number] for number in rollout.prompt.tolist()]
    return [_right_end(text, prompt) for text, prompt in zip(texts, prompts, strict=True)]


def _right_end(text: str, prompt: Prompt) -> tuple[str, str] | None:
    thought, opening, _ = text.partition(OPENING)
    answer = right_answer_of(prompt)  # None for prompts of another reward of the run
    return (thought + opening, f"{answer}{CLOSING}") if opening and answer is not None else None


def _ends_of_turns(rollout: Rollout) -> list[tuple[str, str] | None]:
    """Returns the right answer at once, for the first sample of each prompt: turns that see the same share it."""
    ends: list[tuple[str, str] | None] = [None] * rollout.num_samples
    for prompt, row in _first_rows(rollout).items():
        ends[row] = _right_end(OPENING, rollout.prompts[prompt])
    return ends


def _first_rows(rollout: Rollout) -> dict[int, int]:
    """Returns the first sample of each prompt."""
    found: dict[int, int] = {}
    for row, prompt in enumerate(rollout.prompt.tolist()):
        found.setdefault(prompt, row)
    return found


def _before_and_after(rollout: Rollout, means: Tensor) -> Tensor:
    """Returns the means [B, 2] before each turn and before the next one, NaN after an episode's last turn.

    `means`: [B], those of the first sample of each prompt.
    """
    first = _first_rows(rollout)
    before = means[[first[prompt] for prompt in rollout.prompt.tolist()]]
    turns = list(zip(rollout.episode.tolist(), rollout.turn.tolist(), strict=True))
    place = {turn: row for row, turn in enumerate(turns)}
    following = [place.get((episode, turn + 1)) for episode, turn in turns]
    after = torch.full_like(before, torch.nan)
    for row, later in enumerate(following):
        if later is not None:
            after[row] = before[later]
    return torch.stack([before, after], 1)
