"""GRPO, and supervised fine-tuning on the right ones of further samples, such as answers that were thought over."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .grpo import Grpo


@dataclass(frozen=True)
class GrpoSft(Grpo):
    """The term of `grpo`, and -imitation log p of each token of a sample to imitate.

    Wang et al. 2025, "VL-Rethinker", arXiv 2504.08837, section 3.3: answers to which the sampler `rethinking` appended
    a trigger are kept where they are right, at most two of a prompt, and imitated, the words of the trigger too, so
    that the policy learns to think again by itself. The paper does not say what the imitation weighs. Imitated samples
    enter no advantage; in the mean of the loss their tokens count as all others. Old log-probs are constants, so the
    gradient of the log-ratio is that of log p.

    Raises ValueError for settings out of range.
    """

    imitation: Annotated[float, Field(gt=0)] = 1.0  # weight of the imitation
    imitate_above: float = 0.5  # a further sample with a total above this is right, and is imitated
    imitate_at_most: Annotated[int, Field(ge=1)] = 2  # further samples of a prompt that are imitated, the first

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        terms, metrics = super().terms(compared, batch)
        if batch.is_imitated is None:
            return terms, metrics
        return torch.where(batch.is_imitated[:, None], -self.imitation * compared[0], terms), metrics
