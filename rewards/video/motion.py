"""Does the clip show what the prompt of the motion lab asks for? Judged by the pixels, without a learned part."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.labs.motion.world import verify


@dataclass(frozen=True)
class Motion(Checked):
    """The score of the verifier of the motion lab (`mmrl.labs.motion.world.verify`) for videos [B, 9, 3, 32, 32].

    `graded` is the mean of the graded scores of colour, shape and motion; each of these is a measure of its own.
    `correct` is 1 where all three are exact and each frame is clean, else 0.
    """

    source: ClassVar[str] = "mmrl/labs/motion"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False  # it counts pixels above thresholds
    needs: ClassVar[frozenset[str]] = frozenset({"videos"})
    batch_size: ClassVar[int | None] = None

    measure: Literal["graded", "correct", "colour", "shape", "motion"] = "graded"  # which score of the verifier

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a prompt that is not of the lab or videos of another size.
        """
        assert batch.outputs.videos is not None, "scoring checks needs"
        verdict = verify(batch.outputs.videos, [prompt.text for prompt in batch.prompts])
        measures = {
            "graded": verdict.graded,
            "correct": verdict.is_correct,
            "colour": verdict.colour,
            "shape": verdict.shape,
            "motion": verdict.motion,
        }
        return measures[self.measure].float()
