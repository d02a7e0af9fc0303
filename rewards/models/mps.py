"""MPS: how much people would prefer an image for its prompt, by the words of the prompt that a condition is about."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch

from ..base.networks.checkpoints import check_suffix
from ..base.networks.mps import Mps as Network
from ..base.networks.mps import load_mps, write_tiny_mps


@dataclass
class Mps(Checked):
    """The Multi-dimensional Preference Score exp(t) * cos(image | prompt, condition; prompt), on CLIP ViT-H/14.

    Zhang et al. 2024, "Learning Multi-Dimensional Human Preference for Text-to-Image Generation", arXiv 2405.14705,
    github.com/Kwai-Kolors/MPS. All tokens of the image pass four layers of attention to the tokens of the prompt and to
    each other; the first one is the image's embedding. Of the prompt those tokens count whose largest product with a
    token of `condition` is above `threshold` of the largest one. exp(t) is the model's own temperature, at most CLIP's
    bound of 100. Two images compare by the softmax of their scores.

    The published file (the README's MPS_overall_checkpoint.pth, trained on overall preference alone) is a whole module
    that would run code when it is read. Its weights as safetensors are in DiffSynth-Studio's collection on ModelScope,
    DiffSynth-Studio/QualityMetric_reward_pretrained. The condition is theirs: words that the network was trained with.
    The threshold is that of the evaluation on HPD v2; training had 0.01. The layers were read in copies of the code,
    whose source is not in the index of the repository; no published weights were at hand to compare scores with.

    Two things differ on purpose: images are resized as real numbers, without 8-bit rounding before, so that the score
    has a gradient; and all is computed in float32, where the published code has float16 for images.
    """

    source: ClassVar[str] = "Zhang et al. 2024 (MPS), arXiv 2405.14705, github.com/Kwai-Kolors/MPS"
    range: ClassVar[tuple[float, float]] = (-100.0, 100.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 32
    license: ClassVar[License] = License("unknown", commercial=False)  # the README of the weights names none

    # file of the weights, here or owner/repository/file on the hub, see above
    checkpoint: str = "MPS_overall_checkpoint_diffsynth.safetensors"
    base: str = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"  # hub name or folder of the CLIP, for sizes and preprocessing
    # what prompts are held against; all of it: overall preference
    condition: str = (
        "light, color, clarity, tone, style, ambiance, artistry, shape, face, hair, hands, limbs, structure, instance, "
        "texture, quantity, attributes, position, number, location, word, things."
    )
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.3  # share of the nearest token's product, above which one counts
    _network: Network | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_suffix("checkpoint", self.checkpoint)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random network of small sizes with the published names, written to `folder`."""
        checkpoint = write_tiny_mps(folder, seed, width=16, num_layers=2, head=4)
        return replace(self, checkpoint=str(checkpoint), base=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the network; raises ConfigError where a part is missing or does not fit."""
        self._network = load_mps(self.checkpoint, self.base, self.condition, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one."""
        assert self._network is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        texts = [prompt.text for prompt in batch.prompts]
        return self._network.scores(batch.outputs.images, texts, self.threshold)
