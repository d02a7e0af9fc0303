"""What the policy thinks of a rollout's answers, read once for all rewards that need it."""

from collections.abc import Collection, Sequence

from torch import Tensor

from mmrl.core.contracts import AdapterScoring, Assessing, Modality
from mmrl.core.data import Prompt, Rollout
from mmrl.core.likelihoods import (
    ANSWER_TAG,
    THOUGHT,
    Likelihoods,
    adapters_read,
    right_answer_of,
    weights_read,
)
from mmrl.core.reward_batches import Thought

OPENING, CLOSING = f"<{ANSWER_TAG}>", f"</{ANSWER_TAG}>"


def thought_of(policy: Modality, rollout: Rollout, needs: Collection[str], size: int) -> Thought:
    """Returns what rewards that need all this need to know; `size`: network calls at a time, at most.

    Each set of weights reads the answers once, and the right answers behind the same thoughts once.
    """
    scores = _adapter_scores(policy, rollout, adapters_read(needs), size)
    if not set(THOUGHT) & set(needs):
        return Thought(adapter_scores=scores)
    assert isinstance(policy, Assessing), "checked when the parts were built"
    likelihoods: dict[str, Likelihoods] = {}
    if "likelihoods.sampled" in needs:
        likelihoods["sampled"] = policy.recorded_likelihoods(rollout)
    right_answer: dict[str, Tensor] = {}
    for which in weights_read(needs):
        with policy.weights(which):
            if f"likelihoods.{which}" in needs:
                likelihoods[which] = policy.likelihoods(rollout, size)
            if f"right_answer.{which}" in needs:
                right_answer[which] = policy.mean_log_probs(rollout, _right_ends(rollout), size)
    return Thought(likelihoods, right_answer, scores)


def _adapter_scores(policy: Modality, rollout: Rollout, adapters: Sequence[str], size: int) -> dict[str, Tensor]:
    """Returns the scores [B] of the answers by each adapter on the policy's base."""
    if not adapters:
        return {}
    assert isinstance(policy, AdapterScoring), "checked when the parts were built"
    return {adapter: policy.adapter_scores(rollout, adapter, size) for adapter in adapters}


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
