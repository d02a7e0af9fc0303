"""The similarity of a sample to a set of examples: pictures, sounds or texts that it should be like."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Granularity, License, Placement, RewardBatch

from ..base.networks.example_sets import embedded_examples, example_texts, write_tiny_examples, write_tiny_texts
from ..base.networks.set_embedders import (
    EmbedSamples,
    Features,
    check_model,
    embedded_texts,
    load_set_embedder,
    needs_of,
    one_each,
    write_tiny_set_embedder,
)

Reduction = Literal["mean", "max"]


@dataclass
class Exemplar(Checked):
    """The mean, or the largest, cosine of a sample's embedding with those of the exemplars, in [-1, 1].

    DRAGON (Bai et al. 2025, arXiv 2504.15217) makes rewards of an encoder and a set of exemplars, which may be of
    another medium where the encoder embeds both, such as descriptions of the music that is wanted; it compares
    distributions, as `frechet` does with `credit: own`. The mean and the largest cosine are ours: its text was not at
    hand. `mean` asks for what the exemplars have in common, `max` for one of them.

    A sound of several windows has the mean direction of their embeddings, as sample and as exemplar. Text is embedded
    as it is, without a template around it. A text that is empty or longer than the encoder reads scores -1.
    """

    source: ClassVar[str] = "Bai et al. 2025 (DRAGON), arXiv 2504.15217; the cosines are ours"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True  # of the default features; of images alone
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})  # of the default features
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("MIT", commercial=True)  # CLIP; the other defaults have Apache-2.0

    # A folder of images (`clip`, `dino`, `pixels`) or of sounds (`clap`), at any depth; or a file .txt with a text a
    # line (`clip`, `clap`, `text`).
    exemplars: str
    # What is compared: images by `clip`, DINOv2 (`dino`), or their values at 32 x 32 places (`pixels`); sounds by
    # `clap`, answers by a sentence encoder (`text`).
    features: Features = "clip"
    model: str | None = None  # hub name or folder of the encoder; null: the default of `features`
    reduction: Reduction = "mean"  # how the cosines with all exemplars become one
    _embed: EmbedSamples | None = field(default=None, init=False, repr=False, compare=False)
    _exemplars: Tensor | None = field(default=None, init=False, repr=False, compare=False)  # [n, D]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_model(self.features, self.model)
        self.needs = needs_of(self.features) | {"model"}  # type: ignore[misc]  # of this one; exemplars are loaded
        self.differentiable = self.features in ("dino", "clip", "pixels")  # type: ignore[misc]
        if self._are_texts and self.features in ("dino", "pixels"):
            raise ValueError(f"exemplars: {self.features} embeds images, not texts; clip embeds both")

    @property
    def _are_texts(self) -> bool:
        return self.exemplars.endswith(".txt")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random encoder of small sizes and a few exemplars, written to `folder`."""
        model = write_tiny_set_embedder(self.features, folder / "encoder", seed)
        if self._are_texts:
            return replace(self, model=model, exemplars=write_tiny_texts(folder / "exemplars"))
        return replace(self, model=model, exemplars=write_tiny_examples(self.features, folder / "exemplars", seed))

    def prepare(self, placement: Placement) -> None:
        """Loads the model and the exemplars; raises ConfigError where one of them cannot be loaded."""
        self._embed = load_set_embedder(self.features, self.model, placement.device)
        if self._are_texts and self.features in ("clip", "clap"):
            texts = example_texts(self.exemplars, "exemplars")
            self._exemplars = embedded_texts(self.features, self.model, texts, placement.device)
            return
        made = one_each(embedded_examples(self._embed, self.features, self.exemplars, "exemplars"))
        if not (whole := [one for one in made if one is not None]):
            raise ConfigError(f"exemplars: none of {self.exemplars!r} can be embedded")
        self._exemplars = torch.stack(whole)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert self._embed is not None and self._exemplars is not None, "prepare comes before score"
        return torch.stack([self._score(one) for one in one_each(self._embed(batch.outputs))])

    def _score(self, embedding: Tensor | None) -> Tensor:
        assert self._exemplars is not None, "score checks it"
        if embedding is None:
            return self._exemplars.new_tensor(-1.0)
        cosines = self._exemplars.to(embedding.device) @ embedding  # [n]
        return (cosines.mean() if self.reduction == "mean" else cosines.max()).clamp(-1, 1)
