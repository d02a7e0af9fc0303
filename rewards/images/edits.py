"""Is the edit done, and is all else kept? Judged by the pixels of the picture and of its source."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.labs.edits.verifier import verify
from mmrl.media.pictures import as_tensor


@dataclass(frozen=True)
class Edits(Checked):
    """The score of the verifier of the edits lab (`mmrl.labs.edits.verifier.verify`) for images [B, 3, 32, 32].

    The verifier compares each image with the picture that its prompt brings. `done` is what was asked for, `kept` the
    product of all else, both graded; `graded` is their mean. `correct` is 1 where all of it is exact, else 0.
    """

    source: ClassVar[str] = "mmrl/labs/edits"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False  # it counts pixels above thresholds
    needs: ClassVar[frozenset[str]] = frozenset({"images", "prompt.image"})
    batch_size: ClassVar[int | None] = None

    measure: Literal["graded", "correct", "done", "kept"] = "graded"  # which score of the verifier

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a prompt that is not of the lab or without one picture, or images of another size.
        """
        images = batch.outputs.images
        assert images is not None, "scoring checks needs"
        distinct = {id(prompt): prompt for prompt in batch.prompts}  # a group shares its prompt
        loaded = {number: _source(prompt) for number, prompt in distinct.items()}
        sources = torch.stack([loaded[id(prompt)] for prompt in batch.prompts]).to(images.device)
        verdict = verify(images, sources, [prompt.text for prompt in batch.prompts])
        measures = {
            "graded": verdict.graded,
            "correct": verdict.is_correct,
            "done": verdict.done,
            "kept": verdict.kept,
        }
        return measures[self.measure].float()


def _source(prompt: Prompt) -> Tensor:
    """Returns the picture [3, H, W] that a prompt brings."""
    if len(prompt.media) != 1:
        raise ValueError(f"prompt {prompt.text[:100]!r} brings {len(prompt.media)} pictures; an edit is of one")
    return as_tensor(prompt.media[0].load())
