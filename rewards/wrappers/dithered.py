"""A reward with a little noise, so that groups of equal answers still have a gradient."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.keys import generator

from ..base.wrapper import RewardWrapper, only_numbers

Noise = Literal["gaussian", "uniform"]


@dataclass(frozen=True)
class Dithered(RewardWrapper):
    """A reward with noise: r + n with zero-mean noise of standard deviation `std`.

    Wei et al. 2025, "ReDit: Reward Dithering for Improved LLM Policy Optimization", arXiv 2506.18631, section 4, for
    discrete rewards. The noise of a sample comes from its own seed: it does not depend on the batch, and a resumed run
    draws it again. `gaussian` noise makes the range unbounded; `uniform` noise is within +-sqrt(3) std. In groups whose
    true rewards agree the advantages are noise alone: keep `std` far below the steps of the reward, and use the reward
    itself for evaluation. Each number of a dense reward has noise of its own.
    """

    reward: Reward  # the reward that noise is added to
    std: Annotated[float, Field(gt=0)] = 0.05  # standard deviation of the noise; the paper's
    noise: Noise = "gaussian"  # distribution of the noise

    source: ClassVar[str] = "Wei et al. 2025 (ReDit), arXiv 2506.18631"
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.reward.range
        reach = float("inf") if self.noise == "gaussian" else 3**0.5 * self.std
        self.inherit(self.reward, range=(low - reach, high + reach))

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner reward; each sample has noise of its own."""
        return replace(super().declaration, is_changing=True)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32; raises what the inner reward raises."""
        scores = self.reward.score(batch)
        if scores.dim() == 1:
            noise = torch.cat([torch.zeros(0), *(self._noise(seed, 1) for seed in batch.seeds)])
            return scores + noise.to(scores.device)
        counts = batch.is_decision.sum(1).tolist()
        noise = torch.zeros(scores.shape)
        for row, (seed, count) in enumerate(zip(batch.seeds, counts, strict=True)):
            noise[row, :count] = self._noise(seed, count)
        return only_numbers(self.reward, batch, scores + noise.to(scores.device))

    def _noise(self, seed: int, count: int) -> Tensor:
        """Returns the noise [count] of a sample with this seed."""
        source = generator(seed, "dither")
        if self.noise == "gaussian":
            return (self.std * torch.randn(count, generator=source).double()).float()
        return (3**0.5 * self.std * (2 * torch.rand(count, generator=source) - 1).double()).float()
