"""A penalty that grows as an answer nears the token budget (DAPO)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch


@dataclass(frozen=True)
class Overlong(Checked):
    """The soft overlong punishment of an answer of n tokens, the end token included, in [-1, 0]:

      0                                   n <= max_tokens - buffer
      (max_tokens - buffer - n) / buffer  in between
      -1                                  n >= max_tokens

    Yu et al. 2025, "DAPO", arXiv 2503.14476, equation 13. `max_tokens` is the token budget of the sampler (20,480 in
    the paper); the answer's own limit lies `buffer` tokens before it (4,096 in the paper). The penalty is added to the
    other rewards, so that an answer that is cut off is not merely wrong.
    """

    max_tokens: int  # the token budget of the sampler
    # tokens before the budget over which the penalty grows; at most max_tokens; the paper's
    buffer: Annotated[int, Field(ge=1)] = 4096

    source: ClassVar[str] = "Yu et al. 2025 (DAPO), arXiv 2503.14476, equation 13"
    range: ClassVar[tuple[float, float]] = (-1.0, 0.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"num_tokens"})
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffer > self.max_tokens:
            raise ValueError(f"buffer must be at most max_tokens, got {self.buffer} and {self.max_tokens}")

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        assert batch.outputs.num_tokens is not None, "scoring checks needs"
        room = self.max_tokens - self.buffer - batch.outputs.num_tokens.to(torch.float64)
        return (room / self.buffer).clamp(-1, 0).float()
