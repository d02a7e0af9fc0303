"""The Human Preference Score v2 and v2.1: how much people would prefer an image for its prompt."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.networks.checkpoints import check_suffix, find_file
from ..base.networks.clip import Clip, load_checkpoint, write_tiny_clip
from ..base.networks.resizing import fit_longer_side


@dataclass
class HpsV2:
    """The Human Preference Score: cos(image, prompt) on an open_clip ViT-H-14 trained on people's rankings of images.

    Wu et al. 2023, arXiv 2306.09341, github.com/tgxs002/HPSv2. About 0.2 to 0.35 in practice. An image is resized
    (bicubic) until its longer side fits the model, then padded with black to a square: the published code's own
    transform, which neither crops as CLIP's does, nor cuts off the overshoot of bicubic resizing.

    The published code resizes tensors, and torchvision changed what that means: without `antialias` until 0.16, as when
    the model was trained, with it since 0.17. The default is what the code does today: a 1024 x 1024 image of one-pixel
    stripes is grey with it and striped without. Scores are computed in float32; that code uses float16 on a GPU.
    """

    source: ClassVar[str] = "Wu et al. 2023 (HPS v2), arXiv 2306.09341, github.com/tgxs002/HPSv2"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # xswu/HPSv2

    # a file, or owner/repository/file on the hub; v2 is xswu/HPSv2/HPS_v2_compressed.pt
    checkpoint: str = "xswu/HPSv2/HPS_v2.1_compressed.pt"
    model: str = "ViT-H-14"  # open_clip's name of the architecture, or a folder with an open_clip_config.json
    antialias: bool = True  # whether resizing averages, as in torchvision since 0.17
    _clip: Clip | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_suffix("checkpoint", self.checkpoint)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random CLIP of small sizes, with a checkpoint like the published one."""
        from safetensors.torch import load_file

        write_tiny_clip("open_clip", folder, seed, embedding=4)
        weights = folder / "open_clip_model.safetensors"
        torch.save({"state_dict": load_file(weights)}, folder / "HPS.pt")
        weights.unlink()
        return replace(self, model=str(folder), checkpoint=str(folder / "HPS.pt"))

    def prepare(self, placement: Placement) -> None:
        """Loads the checkpoint; raises ConfigError where it is missing or does not fit."""
        file = find_file("HPS checkpoint", self.checkpoint)
        clip = load_checkpoint("HPS checkpoint", self.model, file, placement.device)

        def preprocess(images: Tensor) -> Tensor:
            return clip.black + fit_longer_side(images, clip.side, antialias=self.antialias) * (clip.white - clip.black)

        infinite = torch.tensor(torch.inf, device=placement.device)  # nothing is cut off
        self._clip = replace(clip, preprocess=preprocess, black=-infinite, white=infinite)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert self._clip is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        return self._clip.cosines(batch.outputs.images, [prompt.text for prompt in batch.prompts])
