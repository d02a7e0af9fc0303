"""A vision-language model judges images, videos, edits or answers about images in words."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import License, Prompt, RewardBatch
from mmrl.core.numerics import MOST
from mmrl.media.pictures import StoredPicture
from mmrl.parsing.answers import extract

from ..base.judging.reward import JudgeReward
from ..base.networks.vlm import pictures

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass
class VlmJudge(JudgeReward):
    """The verdict of a vision-language model on an image, a video or an answer about images, in [0, 1].

    Chen et al. 2024, "MLLM-as-a-Judge", arXiv 2402.04788. As `text_judge`, whose forms of verdicts it has, with
    pictures before the question, in this order: the first image of the prompt where `condition_image` says so (what was
    edited, what is asked about), the row's own image where `reference_image` does (what the sample is compared with, as
    in RewardDance, arXiv 2509.08826), then what the policy made. Of a video the judge sees `num_frames` frames, evenly
    spaced from the first to the last. With `of: screens` each turn of an agent is judged by the screen after its
    action, so that its score is a reward of that turn (WebGen-Agent, arXiv 2509.22644). Images are rounded to 8 bits,
    so there is no gradient.

    Raises ValueError for a prompt file and settings that do not go together.
    """

    # what the policy makes; texts: answers about images; screens: what an agent sees after each of its turns
    of: Literal["images", "videos", "texts", "screens"] = "images"
    condition_image: bool = (
        False  # whether the prompt's first image is shown before; of texts it is what they are about
    )
    # whether the first picture that the row brings as an output (`given`) is shown as well, as the reference
    reference_image: bool = False
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
        if self.reference_image and self.of == "texts":
            raise ValueError("reference_image goes with what is seen (of: images, videos or screens), got texts")
        shown = {"prompt.image"} if self.condition_image else set()
        shown |= {"target.given"} if self.reference_image else set()
        object.__setattr__(self, "needs", self.needs | {self.of} | shown)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError as `text_judge` does, and where the row brings no picture as the reference."""
        super().check(prompt)
        given = prompt.target.get("given") if self.reference_image else None
        if self.reference_image and not (isinstance(given, tuple) and given and isinstance(given[0], StoredPicture)):
            raise ValueError(f"the row must bring a picture as the reference, got {given!r:.80} for {prompt.text!r}")

    def shown(self, batch: RewardBatch, row: int) -> "tuple[list[Image], str]":
        """Returns the pictures of a sample, or its answer.

        Raises ValueError for pixels that are NaN or infinite and for a turn in which the environment broke, and
        ParseError for an answer without the tag.
        """
        outputs = batch.outputs
        if self.of == "texts":
            assert outputs.texts is not None, "scoring checks needs"
            return [], extract(outputs.texts[row], self.tag)
        if self.of == "screens":
            assert outputs.screens is not None, "scoring checks needs"
            if (screen := outputs.screens[row]) is None:
                raise ValueError("the environment broke in this turn")
            return [screen.load().convert("RGB")], ""
        made: Tensor | None = outputs.images if self.of == "images" else outputs.videos
        assert made is not None, "scoring checks needs"
        return pictures(made[row : row + 1] if self.of == "images" else chosen_frames(made[row], self.num_frames)), ""

    def condition(self, batch: RewardBatch, row: int) -> "list[Image]":
        """Returns the prompt's first image and the row's own one, where the judge sees them."""
        prompt = batch.prompts[row]
        images = [prompt.media[0].load().convert("RGB")] if self.condition_image else []
        return [*images, prompt.target["given"][0].load().convert("RGB")] if self.reference_image else images


def chosen_frames(video: Tensor, count: int) -> Tensor:
    """Returns at most `count` frames of a video [F, 3, H, W], evenly spaced from the first to the last."""
    if len(video) <= count:
        return video
    return video[torch.linspace(0, len(video) - 1, count).round().long()] if count > 1 else video[:1]
