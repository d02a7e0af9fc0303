"""EditReward: how well an image was edited, by two questions to a vision-language model."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt
from mmrl.media.pictures import as_tensor

from ..base.networks.checkpoints import check_suffix
from ..base.networks.resizing import GRID, check_bounds, check_finite
from ..base.networks.value_head import IMAGE, MARK, MarkedModel, load_marked, write_tiny_marked
from ..base.published_questions import PROMPT, check_marks, read_text, refuse_marks
from ..base.sources import picture_of

ORIGIN = "github.com/TIGER-AI-Lab/EditReward, EditReward/dataset"
CONSTANTS = {  # of the published files
    "following": "INSTRUCTION_EDIT_FOLLOWING",
    "quality": "INSTRUCTION_EDIT_QUALITY",
    "ending": "prompt_with_special_token",
}
Pooling = Literal["mean", "min", "sum"]
HEADS = {"following": "head_0", "quality": "head_1"}


@dataclass
class EditReward(Checked):
    """The mean over two questions of mu, where (mu, sigma) = head(h) at the mark `<|Reward|>` of each question.

    Wu et al. 2025, "EditReward: A Human-Aligned Reward Model for Instruction-Guided Image Editing", arXiv 2509.26346,
    github.com/TIGER-AI-Lab/EditReward. The source, the edited image and the question stand in one turn; the first
    question is about following the instruction, the second about the quality of the edit, each with a head of its own,
    the layers width-1024-16-2 with ReLU between them. `pooling: mean` is that of the published configurations, `min`
    and `sum` are those that its code has beside. Scores are unbounded.

    Both images are resized (bicubic) to sides of multiples of 28 and about 256 * 28^2 pixels, and places of tokens
    count from 0 on, as in the published code. Edited images are not rounded to 8 bits, so that scores have a gradient.
    MiMo-VL-7B is a Qwen2.5-VL of another size: name its `base` and `checkpoint`. The published file and the licence on
    its model card could not be looked at: its name is that which the published loader looks for.

    The published questions are part of the model and not ours to ship: `following` and `quality` name text files with
    them, or the file prompts.py, and `ending` what follows both, or data_collator_qwen_edit.py. Nothing in them is run.
    """

    source: ClassVar[str] = "Wu et al. 2025 (EditReward), arXiv 2509.26346, github.com/TIGER-AI-Lab/EditReward"
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images", "prompt.image", "model"})
    batch_size: ClassVar[int | None] = 4
    license: ClassVar[License] = License("unknown", commercial=False)  # TIGER-Lab/EditReward-Qwen2.5-VL-7B

    following: str = "prompts.py"  # file with the question about following the instruction, see above
    quality: str = "prompts.py"  # file with the question about the quality
    ending: str = "data_collator_qwen_edit.py"  # file with the end of both questions, which has the mark
    pooling: Pooling = "mean"  # of both questions
    min_pixels: Annotated[int, Field(ge=GRID**2)] = 256 * GRID**2  # of an image after resizing; the published number
    max_pixels: Annotated[int, Field(ge=GRID**2)] = 256 * GRID**2  # the same
    # a file, or owner/repository/file on the hub
    checkpoint: str = "TIGER-Lab/EditReward-Qwen2.5-VL-7B/model.safetensors"
    base: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder of Qwen2.5-VL, for its sizes and its processor
    _questions: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _model: MarkedModel | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_suffix("checkpoint", self.checkpoint)
        check_bounds(self.min_pixels, self.max_pixels)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random network of small sizes with the published names, written to `folder`."""
        checkpoint = write_tiny_marked(folder, seed, "qwen2_5_vl", "rm_heads")
        texts = {"following": f"Is it {PROMPT}?", "quality": f"Is it good as {PROMPT}?", "ending": f" {MARK}"}
        files = {name: folder / f"{name}.txt" for name in texts}
        for name, text in texts.items():
            files[name].write_text(text, encoding="utf-8")
        twin = replace(self, checkpoint=str(checkpoint), base=str(folder), min_pixels=GRID**2, max_pixels=4 * GRID**2)
        twin.following, twin.quality, twin.ending = (str(files[name]) for name in texts)
        return twin

    def prepare(self, placement: Placement) -> None:
        """Loads the model and reads the questions; raises ConfigError where one is missing or does not fit."""
        files = {"following": self.following, "quality": self.quality, "ending": self.ending}
        what = "question of EditReward"
        texts = {name: read_text(what, file, CONSTANTS[name], ORIGIN) for name, file in files.items()}
        self._questions = {name: texts[name] + texts["ending"] for name in HEADS}
        for question in self._questions.values():
            check_marks(what, question, (MARK,))
        heads = tuple(HEADS.values())
        self._model = load_marked("EditReward", self.checkpoint, self.base, heads, "qwen2_5_vl", placement)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a prompt with a mark of the model, which would be read as the model's own."""
        refuse_marks(prompt.text, (MARK, IMAGE))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the images where they require one.

        Raises ValueError for NaN or infinity, for a prompt without an image to edit, and as `check` does.
        """
        images = batch.outputs.images
        assert self._model is not None, "prepare comes before score"
        assert images is not None, "scoring checks needs"
        check_finite(images)
        for prompt in batch.prompts:
            self.check(prompt)
        sources = [as_tensor(picture_of(prompt, "image").load()).to(images.device) for prompt in batch.prompts]
        shown = [[source, image] for source, image in zip(sources, images.float(), strict=True)]
        bounds, numbers = (self.min_pixels, self.max_pixels), []
        for name, question in self._questions.items():
            filled = [question.replace(PROMPT, prompt.text) for prompt in batch.prompts]
            numbers.append(self._model.scores(shown, filled, HEADS[name], bounds)[:, 0])
        both = torch.stack(numbers)  # [2, B]
        return {"mean": both.mean(0), "min": both.amin(0), "sum": both.sum(0)}[self.pooling]
