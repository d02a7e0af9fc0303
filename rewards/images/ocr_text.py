"""Can the text that should stand in the image be read in it?"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt

from ..base.networks.resizing import check_finite
from ..base.ocr import Read, distance_score, load_reader, recall_score, wanted_texts

Measure = Literal["distance", "recall"]


@dataclass
class OcrText(Checked):
    """The legibility of a text of n letters: 1 - min(d, n) / n, d the edit distance between it and the text read.

    The text rendering reward of Flow-GRPO (Liu et al. 2025, arXiv 2505.05470), as its code has it: white space and
    capitals do not count, and a text that stands whole in the text read has d = 0, whatever is around it. The wanted
    text is `target.text`, or the part of the prompt in double quotes, straight or curly. Where there are several, each
    is compared with the lines that are nearest to it, and the score is the mean; a line that is read once serves one of
    them. An image without text scores 0. `recall` is the share of the words that are read, each as often as it should
    be.

    The reader is RapidOCR, whose package holds its models (PP-OCRv6, small), on the CPU: nothing is downloaded.
    flow_grpo reads with PaddleOCR, takes the first quoted text only, and fails in the middle of a run where there is
    none; here such a prompt is refused when the data is loaded. Letters of double width, which OCR of Chinese gives,
    count as plain ones. For videos: `frame_mean`.
    """

    source: ClassVar[str] = "Liu et al. 2025 (Flow-GRPO), arXiv 2505.05470"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = None
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # RapidOCR

    measure: Measure = "distance"  # letters by edit distance, Flow-GRPO's, or the share of words
    # lines that are read with less confidence are ignored; PaddleOCR's
    min_confidence: Annotated[float, Field(ge=0, lt=1)] = 0.5
    # pixels to which the shorter side of a smaller image is enlarged to look for text
    detector_side: Annotated[int, Field(ge=32)] = 736
    _read: Read | None = field(default=None, init=False, repr=False, compare=False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward with images enlarged less; the models are small already, and nothing is random."""
        return replace(self, detector_side=64)

    def prepare(self, placement: Placement) -> None:
        """Loads the reader; raises ConfigError where a package is missing."""
        self._read = load_reader(self.min_confidence, self.detector_side)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where neither the target nor the prompt says what should be read."""
        texts = wanted_texts(prompt)
        if self.measure == "recall":
            recall_score((), texts)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError as `check` does, and for an image that holds NaN or infinity.
        """
        images = batch.outputs.images
        assert self._read is not None, "prepare comes before score"
        assert images is not None, "scoring checks needs"
        check_finite(images)
        judge = distance_score if self.measure == "distance" else recall_score
        wanted = [wanted_texts(prompt) for prompt in batch.prompts]  # before the slow part
        levels = (images.detach().float() * 255).round().clamp(0, 255).to("cpu", torch.uint8).permute(0, 2, 3, 1)
        scores = [judge(self._read(image), texts) for image, texts in zip(levels, wanted, strict=True)]
        return torch.tensor(scores, dtype=torch.float32)
