"""The improvement of an image: a reward of the output, less that of the prompt's own image."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.reward_batches import select
from mmrl.media.pictures import as_tensor

from ..base.wrapper import RewardWrapper


@dataclass(frozen=True)
class Delta(RewardWrapper):
    """The improvement over the input: r(output, prompt) - r(input, prompt), the input being the prompt's first image.

    For edits, restoration and image to image, where an image that was good before needs no praise. The input is judged
    at its own size, once for each prompt of a batch. Gradients go to the output. Within one group the input's score is
    the same for all: only what compares groups, such as evaluation and a std over the batch, sees a difference.

    Raises ValueError where the inner reward does not judge images one by one.
    """

    reward: Reward  # a reward of images

    source: ClassVar[str] = "improvement over the input, as edits are judged in Wu et al. 2025, arXiv 2509.26346"
    needs: ClassVar[frozenset[str]] = frozenset({"images", "prompt.image"})  # beside those of the inner reward

    def __post_init__(self) -> None:
        super().__post_init__()
        if "images" not in self.reward.needs or self.reward.granularity != "sample":
            raise ValueError(
                f"the inner reward must judge images one by one, got one that needs "
                f"{', '.join(sorted(self.reward.needs)) or 'nothing'} and judges {self.reward.granularity}s"
            )
        low, high = self.reward.range
        self.inherit(self.reward, range=(low - high, high - low))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises what the inner reward raises, and ConfigError for an image that cannot be read.
        """
        outputs = self.reward.score(batch)
        before: dict[int, Tensor] = {}
        with torch.no_grad():
            for row, prompt in enumerate(batch.prompts):
                if id(prompt) not in before:
                    before[id(prompt)] = self._of_input(batch, row)
        inputs = torch.stack([before[id(prompt)] for prompt in batch.prompts])
        return outputs - inputs.to(outputs.device)

    def _of_input(self, batch: RewardBatch, row: int) -> Tensor:
        """Returns the score [] of the image that the prompt of this sample begins with."""
        alone = select(batch, torch.tensor([row]))
        image = as_tensor(batch.prompts[row].media[0].load())[None]  # [1, 3, H, W]
        assert batch.outputs.images is not None, "scoring checks needs"
        image = image.to(batch.outputs.images.device)
        return self.reward.score(replace(alone, outputs=replace(alone.outputs, images=image)))[0]
