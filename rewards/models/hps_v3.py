"""HPSv3: how much people would like an image for its prompt, by a Qwen2-VL-7B."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt

from ..base.networks.checkpoints import check_suffix
from ..base.networks.resizing import GRID, check_bounds, check_finite
from ..base.networks.value_head import IMAGE, MARK, MarkedModel, load_marked, write_tiny_marked
from ..base.published_questions import PROMPT, check_marks, read_text, refuse_marks

ORIGIN = "github.com/MizzenAI/HPSv3, hpsv3/dataset/data_collator_qwen.py"
PARTS = ("INSTRUCTION", "prompt_with_special_token")  # of the question, joined in this order


@dataclass
class HpsV3(Checked):
    """mu of (mu, sigma) = head(h), where h is the hidden state at the mark `<|Reward|>` of a question about the image.

    Ma et al. 2025, "HPSv3: Towards Wide-Spectrum Human Preference Score", arXiv 2508.03789, github.com/MizzenAI/HPSv3:
    Qwen2-VL-7B with the layers width-1024-16-2 and ReLU between them, trained on 1.17 million choices of people; mu is
    the published score, unbounded, since the last layer is linear.

    The image stands before the question, resized (bicubic) to sides of multiples of 28 and about 256 * 28^2 pixels, and
    places of tokens count from 0 on, as in the published code. Images are not rounded to 8 bits, so that scores have a
    gradient. The names in the published file could not be looked at: both those of Qwen2-VL before transformers 4.52
    and newer ones are read.

    The published question is part of the model and not ours to ship: `question` names a text file with it, or the file
    data_collator_qwen.py of the repository, whose INSTRUCTION and prompt_with_special_token are read and nothing run.
    """

    source: ClassVar[str] = "Ma et al. 2025 (HPSv3), arXiv 2508.03789, github.com/MizzenAI/HPSv3"
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = 8
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # MizzenAI/HPSv3

    question: str = "data_collator_qwen.py"  # file with the question, see above
    min_pixels: Annotated[int, Field(ge=GRID**2)] = 256 * GRID**2  # of the image after resizing; the published number
    max_pixels: Annotated[int, Field(ge=GRID**2)] = 256 * GRID**2  # the same
    checkpoint: str = "MizzenAI/HPSv3/HPSv3.safetensors"  # a file, or owner/repository/file on the hub
    base: str = "Qwen/Qwen2-VL-7B-Instruct"  # hub name or folder of Qwen2-VL, for its sizes and its processor
    _question: str = field(default="", init=False, repr=False, compare=False)
    _model: MarkedModel | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_suffix("checkpoint", self.checkpoint)
        check_bounds(self.min_pixels, self.max_pixels)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random network of small sizes with the published names, written to `folder`."""
        checkpoint = write_tiny_marked(folder, seed, "qwen2_vl", "rm_head")
        question = folder / "question.txt"
        question.write_text(f"How good is this for {PROMPT}? {MARK}", encoding="utf-8")
        return replace(
            self,
            checkpoint=str(checkpoint),
            base=str(folder),
            question=str(question),
            min_pixels=GRID**2,
            max_pixels=4 * GRID**2,
        )

    def prepare(self, placement: Placement) -> None:
        """Loads the model and reads the question; raises ConfigError where one is missing or does not fit."""
        what = "question of HPSv3"
        names = PARTS if self.question.endswith(".py") else PARTS[:1]  # a text file holds both
        self._question = "".join(read_text(what, self.question, name, ORIGIN) for name in names)
        check_marks(what, self._question, (MARK,))
        self._model = load_marked("HPSv3", self.checkpoint, self.base, ("rm_head",), "qwen2_vl", placement)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a prompt with a mark of the model, which would be read as the model's own."""
        refuse_marks(prompt.text, (MARK, IMAGE))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one.

        Raises ValueError for NaN or infinity, and as `check` does.
        """
        assert self._model is not None, "prepare comes before score"
        images = batch.outputs.images
        assert images is not None, "scoring checks needs"
        check_finite(images)
        for prompt in batch.prompts:
            self.check(prompt)
        questions = [self._question.replace(PROMPT, prompt.text) for prompt in batch.prompts]
        bounds = (self.min_pixels, self.max_pixels)
        return self._model.scores([[image] for image in images.float()], questions, "rm_head", bounds)[:, 0]
