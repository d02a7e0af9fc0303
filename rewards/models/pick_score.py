"""PickScore: how much people would prefer an image for its prompt."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.networks.clip import Clip, load_clip, write_tiny_clip


@dataclass
class PickScore(Checked):
    """The score exp(t) * cos(image, prompt) / divisor, on a CLIP ViT-H/14 trained on people's choices of images.

    Kirstain et al. 2023, "Pick-a-Pic", arXiv 2305.01569, section 4; exp(t) is the model's own temperature, 100 for the
    published weights. Two images compare by the softmax of their scores at divisor 1. About 18 to 24 in practice at
    divisor 1; flow_grpo and DiffusionNFT divide by 26, so that a good image has about 0.9. The range is that of a
    temperature of at most 100, CLIP's own bound.

    Two things differ from these codes on purpose: images are resized as real numbers, without 8-bit rounding before it,
    so that the score has a gradient; and the score is computed in float32 whatever the run's precision.
    """

    source: ClassVar[str] = "Kirstain et al. 2023 (Pick-a-Pic), arXiv 2305.01569"
    range: ClassVar[tuple[float, float]] = (-100.0, 100.0)  # of divisor 1
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("unknown", commercial=False)  # the card names none; MIT is that of the code

    model: str = "yuvalkirstain/PickScore_v1"  # hub name or folder
    # hub name or folder of tokenizer and preprocessing; this is the paper's; null: where the model is
    processor: str | None = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    divisor: Annotated[float, Field(gt=0, lt=math.inf)] = 1.0  # 1 gives the published score; flow_grpo's is 26
    _clip: Clip | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.range = (-100 / self.divisor, 100 / self.divisor)  # type: ignore[misc]  # of this one, not of the class

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random, small CLIP with the published temperature, written to `folder`."""
        write_tiny_clip("transformers", folder, seed, embedding=4, logit_scale=math.log(100))
        return replace(self, model=str(folder), processor=None)

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._clip = load_clip("transformers", self.model, None, placement.device, processor=self.processor)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert self._clip is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        temperature = min(self._clip.logit_scale, 100.0)  # the stored logarithm is rounded
        cosines = self._clip.cosines(batch.outputs.images, [prompt.text for prompt in batch.prompts])
        return cosines * (temperature / self.divisor)
