"""How much a turn raises the probability that the policy gives to the right answer (IGPO)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch, WeightsName
from mmrl.core.data import Prompt
from mmrl.core.likelihoods import right_answer_of


@dataclass(frozen=True)
class InformationGain(Checked):
    """p(answer | what the agent sees after a turn) - p(answer | what it sees before the turn), in [-1, 1].

    Wang et al. 2025, "Information Gain-based Policy Optimization" (IGPO), arXiv 2510.14967: p is exp of the mean
    log-prob of the right answer's tokens, given to the policy in the place of its own answer (teacher forcing). The
    gains of an episode add up to p at its last turn less p at its first; the last turn has none, and there the outcome
    counts, a reward beside this one such as `episode_success`. Its advantage is `turn_returns`. The authors normalise
    the rewards of a group before they add them up along an episode, discounted; `turn_returns` does so afterwards.

    The policy answers `<answer>`, the answer of the target (of several the first) and `</answer>`, at temperature 1;
    the closing tag counts. What it sees is the prompt of a turn as the agent's settings write it, so what an agent
    forgets is lost. Turns with the same prompt are read once.

    Raises ValueError for a turn with an answer that no policy could give, such as one that spells a media token.
    """

    source: ClassVar[str] = "Wang et al. 2025 (IGPO), arXiv 2510.14967"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    granularity: ClassVar[Granularity] = "turn"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"target.answer", "turn_answer.trained"})  # as `weights` says
    batch_size: ClassVar[int | None] = None

    weights: WeightsName = "trained"  # under which weights of the policy

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "needs", frozenset({"target.answer", f"turn_answer.{self.weights}"}))

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target holds no text or list of texts as the right answer."""
        if right_answer_of(prompt) is None:
            given = prompt.target.get("answer")
            raise ValueError(f"target.answer must be a text or a list of texts, got {given!r} for {prompt.text!r}")

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        before, after = batch.turn_answer[self.weights].cpu().exp().unbind(1)
        if before.isnan().any():
            row = int(before.isnan().nonzero()[0])
            raise ValueError(f"the policy cannot give the right answer {right_answer_of(batch.prompts[row])!r}")
        return torch.where(after.isnan(), 0.0, after - before).float()
