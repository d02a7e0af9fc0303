"""The fit of an image to its prompt: SigLIP's probability, logit or cosine."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.networks.clip import Clip
from ..base.networks.siglip import load_siglip, write_tiny_siglip

Unit = Literal["probability", "logit", "cosine"]
RANGES = {"probability": (0.0, 1.0), "logit": (float("-inf"), float("inf")), "cosine": (-1.0, 1.0)}


@dataclass
class SiglipScore(Checked):
    """The probability that image and prompt belong together: sigmoid(s * cos(image, prompt) + b), s and b learned.

    Zhai et al. 2023 (SigLIP, arXiv 2303.15343), equation 1; Tschannen et al. 2025 (SigLIP 2, arXiv 2502.14786). `unit:
    logit` leaves the sigmoid out: the probabilities of a group are often all near 0 or all near 1, where they hardly
    differ. `cosine` leaves s and b out too. The logit is unbounded, since s and b are learned numbers of any size
    (about 110 and -13 in practice).

    Resizing and normalising are the model's own; a prompt longer than its context (64 tokens) is cut there.
    """

    source: ClassVar[str] = "Zhai et al. 2023 (SigLIP), arXiv 2303.15343; Tschannen et al. 2025, arXiv 2502.14786"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)  # of the default unit
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # the model card

    model: str = "google/siglip-so400m-patch14-384"  # hub name or folder
    unit: Unit = "probability"  # what the score is
    _siglip: Clip | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.range = RANGES[self.unit]  # type: ignore[misc]  # of this one, not of the class

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random SigLIP of small sizes, written to `folder`."""
        write_tiny_siglip(folder, seed, logit_scale=10.0, logit_bias=-0.5)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._siglip = load_siglip(self.model, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert self._siglip is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        cosines = self._siglip.cosines(batch.outputs.images, [prompt.text for prompt in batch.prompts])
        if self.unit == "cosine":
            return cosines
        logits = self._siglip.logit_scale * cosines + self._siglip.logit_bias
        return logits if self.unit == "logit" else torch.sigmoid(logits)
