"""The difference of the images of a group from each other."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.networks.image_embedders import Embed, Encoder, load_embedder, write_tiny_embedder

Share = Literal["member", "group"]


@dataclass
class Diversity(Checked):
    """The mean distance of an image to the others of its group: 1 - mean over j of cos(e_i, e_j), embeddings e.

    Its mean over the group is 1 minus the mean cosine of all pairs, the group's diversity. `share: group` gives every
    member that mean instead: a number to watch, of which nothing can be learned where advantages are taken within
    groups. 0 where all images are alike; 2 at most, in a group whose images are opposite to the member.

    Embeddings: the first token of DINOv2 (Oquab et al. 2023, arXiv 2304.07193), or CLIP's (Radford et al. 2021, arXiv
    2103.00020). Raises ValueError for a group of one image, which has no diversity.
    """

    source: ClassVar[str] = "Oquab et al. 2023, arXiv 2304.07193; Radford et al. 2021, arXiv 2103.00020"
    range: ClassVar[tuple[float, float]] = (0.0, 2.0)
    granularity: ClassVar[Granularity] = "group"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # DINOv2; CLIP has MIT

    encoder: Encoder = "dino"  # the network of the embeddings
    model: str | None = None  # hub name or folder; null: facebook/dinov2-base or openai/clip-vit-large-patch14
    share: Share = "member"  # each member's own distance, or the group's mean for all
    _embed: Embed | None = field(default=None, init=False, repr=False, compare=False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random encoder of small sizes, written to `folder`."""
        write_tiny_embedder(self.encoder, folder, seed)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._embed = load_embedder(self.encoder, self.model, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert self._embed is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        embeddings = self._embed(batch.outputs.images)  # [B, D]
        scores = embeddings.new_empty(len(batch))
        for name in batch.group.unique():
            rows = (batch.group == name).nonzero()[:, 0].to(embeddings.device)
            if len(rows) == 1:
                raise ValueError("a group of one image has no diversity; groups need at least 2")
            scores = scores.index_put((rows,), self._group(embeddings[rows]))
        return scores

    def _group(self, embeddings: Tensor) -> Tensor:
        """Returns the scores [n] of the embeddings [n, D] of a group."""
        others = len(embeddings) - 1
        pairs = (embeddings @ embeddings.T).masked_fill(
            torch.eye(others + 1, dtype=torch.bool, device=embeddings.device), 0
        )
        distances = (1 - pairs.sum(1) / others).clamp(0, 2)  # cosines round to a little more than 1
        return distances if self.share == "member" else distances.mean().expand_as(distances)
