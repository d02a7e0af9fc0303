"""The fit of an image to its prompt: the cosine similarity of their CLIP embeddings."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.networks.clip import Clip, Library, load_clip, write_tiny_clip


@dataclass
class ClipScore(Checked):
    """The fit of an image to its prompt in CLIP's embedding space: scale * cos(image, prompt), not clipped at 0.

    Radford et al. 2021 (arXiv 2103.00020); Hessel et al. 2021 (CLIPScore, arXiv 2104.08718, which clips at 0 and whose
    scale is 2.5). flow_grpo's CLIP reward is CLIP's logit (100 cos) / 30: scale 100 / 30 = 3.333 on the default model.
    Resizing, cropping and normalising are the model's own; a prompt longer than its context (77 tokens) is cut there.
    """

    source: ClassVar[str] = "Radford et al. 2021, arXiv 2103.00020; Hessel et al. 2021, arXiv 2104.08718"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # -scale to scale; about 0.1 to 0.4 in practice
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 64
    license: ClassVar[License] = License("MIT", commercial=True)  # openai/CLIP

    library: Library = "transformers"  # the library that loads the CLIP
    model: str = "openai/clip-vit-large-patch14"  # hub name, open_clip name or folder; this is flow_grpo's
    pretrained: str | None = None  # open_clip only: tag or weights file
    scale: Annotated[float, Field(gt=0, le=100)] = 1.0  # factor of the cosine; 100 is the largest logit scale of CLIP
    _clip: Clip | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrained is not None and self.library != "open_clip":
            raise ValueError(
                f"pretrained is open_clip's, got {self.pretrained!r} with library {self.library!r};"
                " with transformers the model's name or folder says it all"
            )
        self.range = (-self.scale, self.scale)  # type: ignore[misc]  # of this one, not of the class

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random CLIP of small sizes, written to `folder`."""
        write_tiny_clip(self.library, folder, seed, embedding=4)
        return replace(self, model=str(folder), pretrained=None)

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._clip = load_clip(self.library, self.model, self.pretrained, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert self._clip is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        return self.scale * self._clip.cosines(batch.outputs.images, [prompt.text for prompt in batch.prompts])
