"""The score of a reward model that is another adapter on the policy's own base (PERL)."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.likelihoods import ADAPTER


@dataclass(frozen=True)
class AdapterScore(Checked):
    """w . h + b, where h is the last hidden state at an answer's last token, by the policy's base with this adapter.

    Sidahmed et al. 2024, "Parameter Efficient Reinforcement Learning from Human Feedback" (PERL), arXiv 2403.10704:
    policy and reward model are two low-rank adapters on one language model. So the reward takes a pass over each
    answer and the memory of the adapter, and no second model. The policy must train a LoRA, whose frozen base is the
    one that the reward model was trained on: weights that a file does not hold are not compared.

    A file is as peft saves the reward model of trl's trainer: a LoRA (DoRA and rsLoRA too) with a linear head of one
    number, `score.weight`; the `v_head.summary` of older versions of trl is read as well, with its bias. The reward
    model must have learned to read the score at the end token of the policy's answers, in the policy's chat template;
    where an answer was cut, its last token takes that place. Scores are as the head gives them: neither centred nor
    scaled.
    """

    source: ClassVar[str] = "Sidahmed et al. 2024 (PERL), arXiv 2403.10704"
    range: ClassVar[tuple[float, float]] = (-torch.inf, torch.inf)  # unbounded
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})  # and "adapter." with the adapter's name
    batch_size: ClassVar[int | None] = None

    adapter: str  # a folder or a hub name: a LoRA of peft with a scalar head, of the policy's own base

    def __post_init__(self) -> None:
        """Raises ValueError for an empty name."""
        super().__post_init__()
        if not self.adapter:
            raise ValueError("adapter must be a folder or a hub name, got ''")
        object.__setattr__(self, "needs", frozenset({"texts", f"{ADAPTER}{self.adapter}"}))

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward by the adapter of a folder, to which the policy's twin writes a random one."""
        return replace(self, adapter=str(folder))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        return batch.adapter_scores[self.adapter].float()
