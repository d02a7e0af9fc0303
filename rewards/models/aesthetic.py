"""LAION's aesthetic predictor on CLIP embeddings: how much people would like an image."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, License, Placement, RewardBatch

from ..base.networks.checkpoints import Head, check_suffix, find_file, put_weights, read_weights
from ..base.networks.clip import Clip, load_clip, write_tiny_clip

EMBEDDING = 768  # of CLIP ViT-L/14


@dataclass
class Aesthetic:
    """The score of a linear head on the CLIP ViT-L/14 embedding of length 1, trained on human ratings from 1 to 10.

    Schuhmann 2022, github.com/christophschuhmann/improved-aesthetic-predictor, `sac+logos+ava1-l14-linearMSE`; the
    aesthetic reward of DDPO (Black et al. 2023, arXiv 2305.13301). About 4 to 7 in practice; unbounded, since a linear
    head has no ends.
    """

    source: ClassVar[str] = "Schuhmann 2022, github.com/christophschuhmann/improved-aesthetic-predictor"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))  # a linear head has no ends
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 64
    # that of the repository, which holds the head; CLIP has MIT
    license: ClassVar[License] = License("Apache-2.0", commercial=True)

    model: str = "openai/clip-vit-large-patch14"  # hub name or folder of the CLIP that the head was trained on
    # weights of the head: a file, or owner/repository/file on the hub
    head: str = "trl-lib/ddpo-aesthetic-predictor/aesthetic-model.pth"
    _clip: Clip | None = field(default=None, init=False, repr=False, compare=False)
    _head: Head | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_suffix("head", self.head)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random CLIP of small sizes and a random head, written to `folder`."""
        from safetensors.torch import save_file

        write_tiny_clip("transformers", folder / "clip", seed, embedding=EMBEDDING)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            save_file(Head(EMBEDDING).state_dict(), folder / "head.safetensors")
        return replace(self, model=str(folder / "clip"), head=str(folder / "head.safetensors"))

    def prepare(self, placement: Placement) -> None:
        """Loads both parts; raises ConfigError where one is missing or does not fit."""
        self._head = _load_head(self.head).to(placement.device)
        self._clip = load_clip("transformers", self.model, None, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert self._clip is not None and self._head is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        embeddings = self._clip.images(batch.outputs.images)  # [B, D]
        if embeddings.shape[1] != EMBEDDING:
            raise ConfigError(
                f"the aesthetic head needs embeddings of {EMBEDDING} numbers, got {embeddings.shape[1]}"
                f" from the CLIP {self.model!r}; the published head is for openai/clip-vit-large-patch14"
            )
        with torch.autocast(embeddings.device.type, enabled=False):
            scores: Tensor = self._head(embeddings)
        return scores


def _load_head(head: str) -> Head:
    what = "aesthetic head (layers 768-1024-128-64-16-1, named layers.0.weight ...)"
    file = find_file("aesthetic head", head)
    module = Head(EMBEDDING)
    put_weights(what, file, module, read_weights(what, file))
    return module
