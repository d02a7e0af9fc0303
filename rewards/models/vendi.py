"""The Vendi score of a group: how many different samples it has, in effect; and what each sample adds to it."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.networks.set_embedders import (
    EmbedSamples,
    Features,
    check_model,
    load_set_embedder,
    needs_of,
    one_each,
    write_tiny_set_embedder,
)

Credit = Literal["leave_one_out", "group"]
SMALLEST = 1e-6  # eigenvalues below it are rounding of float32 embeddings, which counts at orders near 0


@dataclass
class Vendi(Checked):
    """VS(group) - VS(group without the sample), VS = exp H_q(eigenvalues of K / n), K the cosines of n embeddings.

    Friedman and Dieng 2022, "The Vendi Score", arXiv 2210.02410, definition 3.1: with order 1, H is Shannon's entropy;
    other orders q, H_q = log(sum p^q) / (1 - q), are Pasarkar and Dieng 2023, arXiv 2310.12952: a low order sees rare
    kinds, a high one the frequent. VS is 1 where all samples are alike and n where all are orthogonal. DRAGON (Bai et
    al. 2025, arXiv 2504.15217) trains on the Vendi score of a set of generations.

    A set has one score, the same for all of a group, of which nothing is learned where advantages are taken within
    groups; so a sample's score is what it adds, the score of its group less that of the others alone. It is at most 1,
    a sample that is orthogonal to all others; below 0 for a copy in a group of different ones, unbounded below as
    groups grow. `credit: group` gives every sample VS itself, a number to watch. How DRAGON shares the reward of a set
    among its samples was not at hand; leaving one out is ours.

    The group is the set: samples of other prompts are not compared. A sample alone scores 1. Controls score 0 and are
    not part of the set. Neither is a text that is empty or longer than the encoder reads: it scores the lowest of its
    group, and 0 at most.
    """

    source: ClassVar[str] = "Friedman and Dieng 2022, arXiv 2210.02410; Pasarkar and Dieng 2023, arXiv 2310.12952"
    range: ClassVar[tuple[float, float]] = (-math.inf, 1.0)  # of `credit: leave_one_out`
    granularity: ClassVar[Granularity] = "group"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})  # of the default features
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # of the defaults; CLIP has MIT

    # What is compared: images by DINOv2 (`dino`), `clip`, or their values at 32 x 32 places (`pixels`, no model);
    # sounds by `clap`, answers by a sentence encoder (`text`).
    features: Features = "dino"
    model: str | None = None  # hub name or folder of the encoder; null: the default of `features`
    # q, the order of the entropy; null: infinity, the most frequent kind alone
    order: Annotated[float, Field(ge=0)] | None = 1.0
    credit: Credit = "leave_one_out"  # what a sample adds to the score of its group, or that score for all
    _embed: EmbedSamples | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_model(self.features, self.model)
        self.needs = needs_of(self.features)  # type: ignore[misc]  # of this one, not of the class
        if self.credit == "group":
            self.range = (0.0, math.inf)  # type: ignore[misc]
        if self.features == "pixels":
            self._embed = load_set_embedder("pixels", None, torch.device("cpu"))

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random encoder of small sizes, written to `folder`."""
        return replace(self, model=write_tiny_set_embedder(self.features, folder, seed))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._embed = load_set_embedder(self.features, self.model, placement.device)

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; 0 for the controls."""
        assert self._embed is not None, "prepare comes before score"
        embeddings = one_each(self._embed(batch.outputs))
        scores = torch.zeros(len(batch))
        for rows in batch.members():
            members = rows.tolist()
            in_set = {row: one for row in members if (one := embeddings[row]) is not None}
            if not in_set:
                continue
            credits = self._credits(torch.stack(list(in_set.values())).double().cpu())
            scores[members] = credits.min().clamp(max=0).float()
            scores[list(in_set)] = credits.float()
        return scores

    def _credits(self, embeddings: Tensor) -> Tensor:
        """Returns the credit [n] of each sample of a set of embeddings [n, D]."""
        cosines = embeddings @ embeddings.T
        order = math.inf if self.order is None else self.order
        whole, count = vendi_score(cosines, order), len(cosines)
        if self.credit == "group":
            return whole.expand(count)
        rest = ~torch.eye(count, dtype=torch.bool)
        return torch.stack([whole - vendi_score(cosines[keep][:, keep], order) for keep in rest])


def vendi_score(similarities: Tensor, order: float) -> Tensor:
    """Returns exp of the entropy of the eigenvalues of similarities [n, n] over n; 0 for a set of none.

    Friedman and Dieng 2022, arXiv 2210.02410, definition 3.1; orders other than 1: arXiv 2310.12952.
    """
    count = len(similarities)
    if count == 0:
        return similarities.new_zeros(())
    shares = torch.linalg.eigvalsh(similarities / count)  # [n]
    shares = shares[shares > SMALLEST]
    if math.isinf(order):
        largest: Tensor = shares.max()
        return largest.reciprocal()
    if abs(order - 1) < 1e-6:  # the limit of the other formula
        entropy: Tensor = torch.special.entr(shares)
        return entropy.sum().exp()
    powers: Tensor = order * shares.log()  # as logarithms, which a high order does not round to 0
    return (powers.logsumexp(0) / (1 - order)).exp()
