"""A head on CLIP features, fitted in the run to which of two samples a judge prefers (RL-VLM-F)."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Scores
from mmrl.core.keys import generator

from ..base.fitted import FittedWrapper
from ..base.networks.clip import Clip, load_clip, write_tiny_clip

IMAGES_AT_ONCE = 64  # in CLIP


@dataclass
class PreferenceHead(FittedWrapper):
    """tanh of a small head on CLIP features, fitted so that preferred samples score higher, as Bradley and Terry say.

    Wang et al. 2024, "RL-VLM-F", arXiv 2402.03681: -log sigmoid(r_w - r_l) over pairs of which a vision-language model
    says which fits the goal better; pairs without a preference are left out. Here any reward says it, by the higher
    score of two members of a group: `pairwise_judge` asks as the paper does. Once the head is fitted (`warm_up`) its
    own scores count, and judges are asked less often (`every`).

    Features: CLIP's embedding of the image, and its product with that of the prompt, place by place (ours: the paper
    fits a network to pixels for each goal). In an iteration each member of a group is compared with one other: a cycle
    through the group in random order. Raises ValueError where the inner reward judges neither samples nor groups.
    """

    hidden: Annotated[int, Field(ge=1)] = 128  # width of the head
    model: str = "openai/clip-vit-large-patch14"  # hub name or folder of CLIP
    _clip: Clip | None = field(default=None, init=False, repr=False, compare=False)

    source: ClassVar[str] = "Wang et al. 2024 (RL-VLM-F), arXiv 2402.03681"
    granularity: ClassVar[Granularity] = "group"
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    license: ClassVar[License] = License("MIT", commercial=True)  # CLIP

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward.granularity not in ("sample", "group"):
            raise ValueError(
                f"the inner reward must judge samples or groups, got one that judges {self.reward.granularity}s"
            )
        low, high = self.reward.range
        self.override(range=(min(low, -1.0), max(high, 1.0)), needs=type(self).needs | self.needs_of_inner())

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same on a random CLIP of small sizes, with twins of the inner rewards."""
        write_tiny_clip("transformers", folder, seed, embedding=4)
        return replace(super().tiny(seed, folder / "inner"), model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads CLIP and what the inner reward needs; raises ConfigError where it cannot be loaded."""
        super().prepare(placement)
        self._clip = load_clip("transformers", self.model, None, placement.device)

    def features_of(self, batch: RewardBatch) -> Tensor:
        """Returns CLIP's features [B, D] of images with their prompts."""
        assert self._clip is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        images = torch.cat([self._clip.images(part) for part in batch.outputs.images.split(IMAGES_AT_ONCE)])
        texts = self._clip.texts([prompt.text for prompt in batch.prompts])
        return torch.cat([images, images * texts], 1).float() * math.sqrt(images.shape[1])  # numbers of about 1

    def make_network(self, width: int) -> nn.Module:
        """Makes the head of pairs of features: the preferred one's, then the other's."""
        layers = nn.Linear(width // 2, self.hidden), nn.SiLU(), nn.Linear(self.hidden, 1), nn.Tanh()
        return nn.Sequential(*layers, nn.Flatten(0))

    def fit_loss(self, network: nn.Module, examples: Tensor) -> Tensor:
        """Returns the mean of -log sigmoid(r_w - r_l) of pairs [n, 2 D]."""
        preferred, other = (network(part) for part in examples.chunk(2, 1))
        return -nn.functional.logsigmoid(preferred - other).mean()

    def examples_of(self, scores: Scores) -> Tensor:
        """Returns pairs [n, 2 D] of features, the preferred first."""
        seen = scores.examples[scores.names[0]]
        usable = seen.isfinite().all(1) & ~scores.is_control & torch.tensor(seen.shape[1] > 0)
        source, pairs = generator(self.seed, "pairs", self._updates), []
        for group in scores.group[usable].unique():
            members = (usable & (scores.group == group)).nonzero()[:, 0]
            members = members[torch.randperm(len(members), generator=source)]
            for one, other in zip(members.tolist(), members.roll(1).tolist(), strict=True):
                if difference := float(seen[one, -1] - seen[other, -1]):
                    winner, loser = (one, other) if difference > 0 else (other, one)
                    pairs.append(torch.cat([seen[winner, :-1], seen[loser, :-1]]))
        return torch.stack(pairs) if pairs else torch.zeros(0, 0)
