"""Does the image show what the prompt of the shapes lab asks for? Judged by the pixels, without a learned part."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.labs.shapes.world import verify


@dataclass(frozen=True)
class Shapes(Checked):
    """The score of the verifier of the shapes lab (`mmrl.labs.shapes.world.verify`) for images [B, 3, 32, 32].

    `graded` is the mean of the graded scores of colour, shape and position; each of these is a measure of its own.
    `correct` is 1 where all three are exact and the drawing is clean, else 0.
    """

    source: ClassVar[str] = "mmrl/labs/shapes"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False  # it counts pixels above thresholds
    needs: ClassVar[frozenset[str]] = frozenset({"images"})
    batch_size: ClassVar[int | None] = None

    measure: Literal["graded", "correct", "colour", "shape", "position"] = "graded"  # which score of the verifier

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a prompt that is not of the lab or images of another size.
        """
        assert batch.outputs.images is not None, "scoring checks needs"
        verdict = verify(batch.outputs.images, [prompt.text for prompt in batch.prompts])
        measures = {
            "graded": verdict.graded,
            "correct": verdict.is_correct,
            "colour": verdict.colour,
            "shape": verdict.shape,
            "position": verdict.position,
        }
        return measures[self.measure].float()
