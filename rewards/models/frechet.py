"""The Frechet distance of a group to a reference set, and how much nearer each sample brings the group."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Granularity, License, Placement, RewardBatch

from ..base.frechet_distance import Covariance, FrechetSet, Moments, leave_one_out
from ..base.networks.example_sets import embedded_examples, write_tiny_examples
from ..base.networks.set_embedders import (
    EmbedSamples,
    Features,
    check_model,
    load_set_embedder,
    needs_of,
    write_tiny_set_embedder,
)

Credit = Literal["leave_one_out", "group", "own"]
FARTHEST = -8.0  # |m - m_r|^2 is at most 4, each trace at most 2


@dataclass
class Frechet(Checked):
    """FD(group without the sample) - FD(group), FD = |m - m_r|^2 + tr(S + S_r - 2 (S S_r)^(1/2)) to a reference r.

    Heusel et al. 2017 (FID), arXiv 1706.08500, equation 6; of sounds Kilgour et al. 2018 (FAD), arXiv 1812.08466. m and
    S are the mean and the covariance (over n - 1) of embeddings of length 1. DRAGON (Bai et al. 2025, arXiv 2504.15217)
    trains music on FAD of sets and of single songs ("per-song"). Here, by `credit`:
      leave_one_out  how much farther the group is without the sample; unbounded both ways. How DRAGON shares the
                     reward of a set among its samples was not at hand; leaving one out is ours
      group          -FD of the group, the same for all of it: a number to watch, since nothing is learned of it where
                     advantages are taken within groups
      own            -FD of the sample alone: of a sound the set of its windows, DRAGON's per-song FAD in spirit; of an
                     image or a text one point, -(|e - m_r|^2 + tr S_r)
    The default encoders are not those of published FIDs (Inception) and FADs (VGGish), so numbers differ from theirs.

    Few samples in many dimensions: S of n embeddings has rank n - 1, so a small group is far from any reference whose
    spread has more dimensions, and FD is biased upwards. All groups of one size have that bias, and differences within
    a group are what is learned; `covariance: diagonal` compares the spread of each number of an embedding alone, which
    few samples estimate better, and `none` the means alone.

    The group is the set: samples of other prompts are not part of it. Controls score 0 and are not part of it either,
    nor is a text that is empty or longer than the encoder reads: it scores the lowest of its group, and 0 at most
    (-8 where there is no other: embeddings of length 1 are not farther apart). Raises ValueError for `leave_one_out` in
    a group of one, which is no set without its sample.
    """

    source: ClassVar[str] = "Heusel et al. 2017 (FID), arXiv 1706.08500; Kilgour et al. 2018 (FAD), arXiv 1812.08466"
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    granularity: ClassVar[Granularity] = "group"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})  # of the default features
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # of the defaults; CLIP has MIT

    # A folder of images or sounds, at any depth; a text file with an example a line (`text`); or a file .npz with the
    # arrays mu [D] and sigma [D, D] of the same encoder, as pytorch-fid saves them.
    reference: str
    # What is compared: images by DINOv2 (`dino`), `clip`, or their values at 32 x 32 places (`pixels`); sounds by
    # `clap`, answers by a sentence encoder (`text`).
    features: Features = "dino"
    model: str | None = None  # hub name or folder of the encoder; null: the default of `features`
    covariance: Covariance = "full"  # what of it is compared; `diagonal` or `none` for small groups
    credit: Credit = "leave_one_out"  # what a sample changes, the group's number for all, or the sample's own
    _embed: EmbedSamples | None = field(default=None, init=False, repr=False, compare=False)
    _moments: Moments | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_model(self.features, self.model)
        self.needs = needs_of(self.features) | {"model"}  # type: ignore[misc]  # of this one; the reference is loaded
        if self.credit != "leave_one_out":
            self.range = (-math.inf, 0.0)  # type: ignore[misc]

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random encoder of small sizes and a few examples, written to `folder`."""
        model = write_tiny_set_embedder(self.features, folder / "encoder", seed)
        return replace(self, model=model, reference=write_tiny_examples(self.features, folder / "reference", seed))

    def prepare(self, placement: Placement) -> None:
        """Loads the model and the reference; raises ConfigError where one of them cannot be loaded."""
        self._embed = load_set_embedder(self.features, self.model, placement.device)
        if self.reference.endswith(".npz"):
            self._moments = Moments.read(Path(self.reference))
            return
        embeddings = torch.cat(embedded_examples(self._embed, self.features, self.reference, "reference")).cpu()
        if len(embeddings) < 2:
            raise ConfigError(f"reference must have two examples at least, got one in {self.reference!r}")
        self._moments = Moments.of(embeddings)

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; 0 for the controls.

        Raises ValueError where a sample is left out of fewer than two, or the reference is of another encoder.
        """
        assert self._embed is not None and self._moments is not None, "prepare comes before score"
        embeddings = [one.double().cpu() for one in self._embed(batch.outputs)]
        if embeddings[0].shape[1:] != self._moments.mean.shape:
            raise ValueError(
                f"the reference has {len(self._moments.mean)} numbers an embedding, the encoder makes"
                f" {embeddings[0].shape[1]}: it is of another encoder"
            )
        scores = torch.zeros(len(batch))
        for rows in batch.members():
            in_set = [row for row in rows.tolist() if len(embeddings[row])]
            credits = self._credits([embeddings[row] for row in in_set], self._moments)
            scores[rows] = float(credits.min().clamp(max=0)) if in_set else FARTHEST
            scores[in_set] = credits.float()
        return scores

    def _credits(self, members: list[Tensor], reference: Moments) -> Tensor:
        """Returns the credit [n] of each of n samples, of one or several embeddings each."""
        if not members:
            return torch.zeros(0)
        if self.credit == "own":
            return torch.stack([self._closeness([one], reference) for one in members])
        if self.credit == "group":
            return self._closeness(members, reference).expand(len(members))
        if len(members) == 1:
            raise ValueError("a group of one sample is no set without it; groups need at least 2")
        return leave_one_out(members, reference, self.covariance)

    def _closeness(self, members: list[Tensor], reference: Moments) -> Tensor:
        embeddings = torch.cat(members)
        return -FrechetSet(embeddings, reference, self.covariance).distance(torch.arange(len(embeddings))).clamp_min(0)
