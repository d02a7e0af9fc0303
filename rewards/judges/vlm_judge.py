"""A vision-language model judges images, videos, edits or answers about images in words."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import License, RewardBatch
from mmrl.core.numerics import MOST
from mmrl.parsing.answers import extract

from ..base.judging.reward import JudgeReward
from ..base.networks.vlm import pictures

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass
class VlmJudge(JudgeReward):
    """The verdict of a vision-language model on an image, a video or an answer about images, in [0, 1].

    Chen et al. 2024, "MLLM-as-a-Judge", arXiv 2402.04788. As `text_judge`, whose forms of verdicts it has, with
    pictures before the question, in this order: the first image of the prompt where `condition` says so (what was
    edited, what is asked about), then what the policy made. Of a video the judge sees `num_frames` frames, evenly
    spaced from the first to the last. Images are rounded to 8 bits, so there is no gradient.

    Raises ValueError for a prompt file and settings that do not go together.
    """

    of: Literal["images", "videos", "texts"] = "images"  # what the policy makes; texts: answers about images
    condition_image: bool = (
        False  # whether the prompt's first image is shown before; of texts it is what they are about
    )
    num_frames: Annotated[int, Field(ge=1, le=MOST)] = 8  # of a video, at most
    tag: str | None = None  # the part of an answer that is judged, `<tag>...</tag>`; null: all of it

    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})  # or a service, and fields of the target
    source: ClassVar[str] = "Chen et al. 2024 (MLLM-as-a-Judge), arXiv 2402.04788"
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # the model card
    sees_images: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tag is not None and self.of != "texts":
            raise ValueError(f"tag goes with answers (of: texts), got {self.of}")
        shown = {"prompt.image"} if self.condition_image else set()
        object.__setattr__(self, "needs", self.needs | {self.of} | shown)

    def shown(self, batch: RewardBatch, row: int) -> "tuple[list[Image], str]":
        """Returns the pictures of a sample, or its answer.

        Raises ValueError for pixels that are NaN or infinite, and ParseError for an answer without the tag.
        """
        outputs = batch.outputs
        if self.of == "texts":
            assert outputs.texts is not None, "scoring checks needs"
            return [], extract(outputs.texts[row], self.tag)
        made: Tensor | None = outputs.images if self.of == "images" else outputs.videos
        assert made is not None, "scoring checks needs"
        return pictures(made[row : row + 1] if self.of == "images" else chosen_frames(made[row], self.num_frames)), ""

    def condition(self, batch: RewardBatch, row: int) -> "list[Image]":
        """Returns the prompt's first image where the judge sees it."""
        return [batch.prompts[row].media[0].load().convert("RGB")] if self.condition_image else []


def chosen_frames(video: Tensor, count: int) -> Tensor:
    """Returns at most `count` frames of a video [F, 3, H, W], evenly spaced from the first to the last."""
    if len(video) <= count:
        return video
    return video[torch.linspace(0, len(video) - 1, count).round().long()] if count > 1 else video[:1]
