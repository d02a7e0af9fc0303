"""How certain the policy is of its answers, without any truth (Intuitor)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch, WeightsName
from mmrl.core.dense import decision_mask


@dataclass(frozen=True)
class SelfCertainty(Checked):
    """The mean over an answer's tokens of KL(uniform || p), in nats, of the distributions p that they come from.

    Zhao et al. 2025, "Learning to Reason without External Rewards" (Intuitor), arXiv 2505.19590, equation 4, with
    the self-certainty of Kang et al. 2025, arXiv 2502.18581: -(1 / V) sum_j log(V p_j) over all V tokens but those
    that no answer may hold, whatever top-p or top-k leave out. The authors' code leaves out log V, which is the
    same for all. It is unbounded above: a policy can raise it by being sure of nonsense, so Intuitor keeps it near
    a reference, and watch a real score beside it.

    It takes one more pass over each answer, by `weights`; the end token counts, as any other.
    """

    source: ClassVar[str] = "Zhao et al. 2025 (Intuitor), arXiv 2505.19590"
    range: ClassVar[tuple[float, float]] = (0.0, torch.inf)  # unbounded
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"num_tokens", "self_certainty.trained"})  # as `weights` says
    batch_size: ClassVar[int | None] = None

    weights: WeightsName = "trained"  # under which weights of the policy

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "needs", frozenset({"num_tokens", f"self_certainty.{self.weights}"}))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32. Raises ValueError where the likelihoods have no self-certainty."""
        certainty, length = batch.likelihoods[self.weights].self_certainty, batch.outputs.num_tokens
        assert length is not None, "scoring checks needs"
        if certainty is None:
            raise ValueError(f"the likelihoods by the {self.weights} weights have no self-certainty")
        length = length.to(certainty.device)
        is_token = decision_mask(length, certainty.shape[1])
        return (torch.where(is_token, certainty, 0.0).sum(1) / length.clamp(min=1)).float()
