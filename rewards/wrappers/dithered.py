"""A reward with a little noise, so that groups of equal answers still have a gradient."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.keys import generator

from ..base.wrapper import RewardWrapper

Noise = Literal["gaussian", "uniform"]


@dataclass(frozen=True)
class Dithered(RewardWrapper):
    """A reward with noise: r + n with zero-mean noise of standard deviation `std`.

    Wei et al. 2025, "ReDit: Reward Dithering for Improved LLM Policy Optimization", arXiv 2506.18631, section 4, for
    discrete rewards. The noise of a sample comes from its own seed: it does not depend on the batch, and a resumed run
    draws it again. `gaussian` noise makes the range unbounded; `uniform` noise is within +-sqrt(3) std. In groups whose
    true rewards agree the advantages are noise alone: keep `std` far below the steps of the reward, and use the reward
    itself for evaluation.
    """

    reward: Reward  # the reward that noise is added to
    std: Annotated[float, Field(gt=0)] = 0.05  # standard deviation of the noise; the paper's
    noise: Noise = "gaussian"  # distribution of the noise

    source: ClassVar[str] = "Wei et al. 2025 (ReDit), arXiv 2506.18631"

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
        """Returns the scores [B] float32; raises what the inner reward raises."""
        scores = self.reward.score(batch)
        noise = torch.tensor([self._noise(seed) for seed in batch.seeds])
        return scores + noise.to(scores.device)

    def _noise(self, seed: int) -> float:
        source = generator(seed, "dither")
        if self.noise == "gaussian":
            return self.std * float(torch.randn((), generator=source))
        return 3**0.5 * self.std * float(2 * torch.rand((), generator=source) - 1)
