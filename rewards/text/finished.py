"""Did the answer end before the token budget?"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch


@dataclass(frozen=True)
class Finished:
    """A flag: 1 where the answer ended by itself, 0 where it was cut at the token budget, to penalise truncation.

    With a small weight beside the other rewards an answer that never ends scores less than the same answer that does.
    """

    source: ClassVar[str] = "mmrl"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"is_finished"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        assert batch.outputs.is_finished is not None, "scoring checks needs"
        return batch.outputs.is_finished.float()
