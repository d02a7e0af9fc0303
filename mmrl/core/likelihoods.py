"""How likely the policy finds answers: what rewards may need of its log-probs under some of its weights."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from torch import Tensor

from mmrl.core.data import Prompt, WeightsName

# `sampled`: the weights that sampled the answers, as the rollout recorded it, which costs no network call.
LikelihoodsName = Literal["sampled", "trained", "old", "reference", "averaged"]
LIKELIHOODS = tuple(f"likelihoods.{name}" for name in get_args(LikelihoodsName))
SELF_CERTAINTIES = tuple(f"self_certainty.{name}" for name in get_args(WeightsName))  # of `Likelihoods`
RIGHT_ANSWERS = tuple(f"right_answer.{name}" for name in get_args(WeightsName))
TURN_ANSWERS = tuple(f"turn_answer.{name}" for name in get_args(WeightsName))
THOUGHT = (*LIKELIHOODS, *SELF_CERTAINTIES, *RIGHT_ANSWERS, *TURN_ANSWERS)  # what the policy itself thinks
ADAPTER = "adapter."  # and a folder or hub name: the score of each answer by this adapter on the policy's base
SPREAD = "spread"  # the fact of decisions that is read of whole groups, where an advantage requires it
ANSWER_TAG = "answer"  # where the right answer stands


@dataclass(frozen=True)
class Likelihoods:
    """How likely some weights find the tokens of B answers, at most K of each, the end token included.

    All are under the distribution that the answers were sampled from (self-certainties: without its truncation), and 0
    behind the last token.
    """

    log_prob: Tensor  # [B, K] float32, nats
    entropy: Tensor | None = None  # [B, K] float32, nats, of each distribution; None: the rollout does not record it
    # [B, K] float32, nats: KL(uniform || p) of each distribution p over all tokens but the banned ones; None where no
    # reward needs it, since it takes one more pass over the output head
    self_certainty: Tensor | None = None

    def select(self, rows: Tensor) -> "Likelihoods":
        """Returns those of the answers `rows`, [n] int64."""
        return Likelihoods(
            self.log_prob[rows],
            None if self.entropy is None else self.entropy[rows],
            None if self.self_certainty is None else self.self_certainty[rows],
        )


def tokens_between(pieces: Sequence[str], start: int, stop: int) -> list[int]:
    """Returns the places of the tokens of some characters of an answer, from `start` to before `stop`.

    `pieces`: the text of each token, see `Outputs.pieces`. A token with a part of its text there counts, and so does
    one without a text of its own, of a character that several tokens make.
    """
    places, end = [], 0
    for place, piece in enumerate(pieces):
        begin, end = end, end + len(piece)
        if (end > start and begin < stop) if piece else start <= begin < stop:
            places.append(place)
    return places


def right_answer_of(prompt: Prompt) -> str | None:
    """Returns the right answer of a prompt's target, of several the first; None where there is none."""
    given = prompt.target.get("answer")
    first = given[0] if isinstance(given, list | tuple) and given else given
    return first if isinstance(first, str) and first else None


def weights_read(needs: Iterable[str]) -> tuple[WeightsName, ...]:
    """Returns the weights by which answers are read once more for rewards that need all this; sorted."""
    found = {need.partition(".")[2] for need in needs if need in THOUGHT}
    return tuple(cast(WeightsName, name) for name in sorted(found - {"sampled"}))


def adapters_read(needs: Iterable[str]) -> tuple[str, ...]:
    """Returns the folders or hub names of the adapters that score answers for rewards that need all this; sorted."""
    return tuple(sorted(need.removeprefix(ADAPTER) for need in needs if need.startswith(ADAPTER)))


def thought_needs(needs: Collection[str]) -> list[str]:
    """Returns which of a reward's needs the policy's own network answers; sorted."""
    return sorted(need for need in needs if need in THOUGHT or need.startswith(ADAPTER))
