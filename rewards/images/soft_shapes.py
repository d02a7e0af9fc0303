"""The scores of the shapes lab with a gradient to the pixels."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.labs.shapes.soft import soft_scores


@dataclass(frozen=True)
class SoftShapes(Checked):
    """The score of the shapes lab's verifier without thresholds (`mmrl.labs.shapes.soft`), for images [B, 3, 32, 32].

    `graded` is the mean of the scores of colour, shape and position; each of these is a measure of its own. For losses
    that learn from gradients of rewards; a run is judged by `correct` of the reward `shapes`.
    """

    source: ClassVar[str] = "mmrl/labs/shapes"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images"})
    batch_size: ClassVar[int | None] = None

    measure: Literal["graded", "colour", "shape", "position"] = "graded"  # which score of the verifier

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a prompt that is not of the lab or images of another size.
        """
        assert batch.outputs.images is not None, "scoring checks needs"
        colour, shape, position = soft_scores(batch.outputs.images.float(), [prompt.text for prompt in batch.prompts])
        measures = {"colour": colour, "shape": shape, "position": position}
        if self.measure == "graded":
            return torch.stack([colour, shape, position]).mean(0)
        return measures[self.measure]
