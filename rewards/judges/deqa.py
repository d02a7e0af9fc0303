"""DeQA-Score: how good a picture's technical quality is, as the expected level of five words."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Granularity, License, Placement, RewardBatch
from mmrl.core.numerics import MOST

from ..base.networks.vlm import Vlm, load_vlm, pictures, write_tiny_vlm

LEVELS = ("excellent", "good", "fair", "poor", "bad")


@dataclass
class Deqa(Checked):
    """The expected level sum_i p_i l_i in [1, 5]; p is the softmax over the words of five levels, l = 5, 4, 3, 2, 1.

    You et al. 2025 (DeQA-Score), arXiv 2501.11561, equation of the inferred score, which is that of Wu et al. 2023
    (Q-Align), arXiv 2312.17090. A vision-language model is asked for the quality of the picture and its answer is begun
    with `start`; p_i is what it gives to the word of level i as the next one, among the five. A word counts in every
    spelling that is one token. The prompt is not looked at.

    DeQA-Score's own weights (zhiyuanyou/DeQA-Score-Mix3) are an mPLUG-Owl2, which transformers does not have, and
    running the code of a model's repository is not done here. The default is Q-SiT (Zhang et al. 2025, arXiv
    2503.09197), a LLaVA-OneVision whose authors trained it for the same words, read in the same way. Any other
    image-text-to-text model of transformers answers as well, but Q-Insight and VisualQuality-R1 were trained to write a
    number after reasons, not for these words: for them `vlm_judge` with `prompt: q_insight`. The wording is ours, with
    the picture before the question. Images are rounded to 8 bits, so there is no gradient.
    """

    source: ClassVar[str] = (
        "You et al. 2025 (DeQA-Score), arXiv 2501.11561; Wu et al. 2023 (Q-Align), arXiv 2312.17090; Zhang et al. 2025 "
        "(Q-SiT), arXiv 2503.09197"
    )
    range: ClassVar[tuple[float, float]] = (1.0, 5.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 16
    license: ClassVar[License] = License("MIT", commercial=True)  # zhangzicheng/q-sit

    model: str = "zhangzicheng/q-sit"  # hub name or folder of the vision-language model
    # text after the image
    question: str = "Is the quality of this picture excellent, good, fair, poor or bad?"
    start: str = "The quality of the image is"  # what the answer begins with; the level is its next word
    # of the quality, the best first
    levels: tuple[str, str, str, str, str] = LEVELS
    questions_at_once: Annotated[int, Field(ge=1, le=MOST)] = 8  # in one forward pass: bounds the memory
    _vlm: Vlm | None = field(default=None, init=False, repr=False, compare=False)
    _words: list[list[int]] = field(default_factory=list, init=False, repr=False, compare=False)  # tokens of each level

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({level.casefold() for level in self.levels}) < len(self.levels):
            raise ValueError(f"levels must be five different words, got {', '.join(self.levels)}")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random model of small sizes, written to `folder`."""
        write_tiny_vlm(folder, seed, self.levels)
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it is missing or has no token for a level."""
        self._vlm = load_vlm(self.model, placement)
        self._words = [self._vlm.spellings(level) for level in self.levels]
        for level, tokens in zip(self.levels, self._words, strict=True):
            if not tokens:
                raise ConfigError(f"the level {level!r} must be one token of the model {self.model!r}, and is none")

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for an image that holds NaN or infinity."""
        assert self._vlm is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        shown = [[image] for image in pictures(batch.outputs.images)]
        count = len(shown)
        log_probs = self._vlm.word_log_probs(
            shown, [self.question] * count, [self._words] * count, start=self.start, at_once=self.questions_at_once
        )  # [B, 5]
        return log_probs.softmax(1) @ torch.arange(5.0, 0.0, -1.0, device=log_probs.device)
