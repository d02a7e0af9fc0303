"""VideoScore: five scores of a video by people's standards, from an Idefics2 that sees its frames."""

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

from ..base.frames import frames_of
from ..base.networks.value_head import HeadedModel
from ..base.networks.video_score import load_video_score, write_tiny_video_score
from ..base.networks.vlm import pictures
from ..base.published_questions import PROMPT, check_marks, read_text

Dimension = Literal["VQ", "TC", "DD", "TVA", "FC"]
DIMENSIONS: tuple[Dimension, ...] = ("VQ", "TC", "DD", "TVA", "FC")
QUESTION = "REGRESSION_QUERY_PROMPT"
ORIGIN = "github.com/TIGER-AI-Lab/VideoScore, examples/run_videoscore.py"
_IMAGE = "<image>"  # a frame's place in the text


@dataclass
class VideoScore(Checked):
    """The mean, or the weighted sum, over `dimensions` of a linear head's numbers for the last token of all frames.

    He et al. 2024, "VideoScore: Building Automatic Metrics to Simulate Fine-grained Human Feedback for Video
    Generation", arXiv 2406.15252, github.com/TIGER-AI-Lab/VideoScore: Mantis-8B-Idefics2 trained by regression on
    people's grades of 37,600 videos: visual quality (VQ), temporal consistency (TC), dynamic degree (DD), text-to-video
    alignment (TVA) and factual consistency (FC), in this order. Grades are 1 to 4; unbounded, since a linear layer has
    no ends.

    Of more than `num_frames` frames those at floor(i * F / num_frames) are seen, as in the published example; its
    models were trained on frames at 8 a second. The frames follow the question as pictures, 8-bit and resized by the
    published processor, so there is no gradient. The network is transformers' Idefics2 with the names of Mantis' class
    `Idefics2ForSequenceClassification` (`model.`, `score.`).

    The published question is part of the model and not ours to ship: `question` names a text file with it, or the file
    run_videoscore.py of the repository, of which REGRESSION_QUERY_PROMPT is read and nothing run.
    """

    source: ClassVar[str] = "He et al. 2024 (VideoScore), arXiv 2406.15252, github.com/TIGER-AI-Lab/VideoScore"
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"videos", "model"})
    batch_size: ClassVar[int | None] = 2
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # TIGER-Lab/VideoScore

    question: str = "run_videoscore.py"  # file with the question, see above
    dimensions: Annotated[tuple[Dimension, ...], Field(min_length=1)] = DIMENSIONS  # those that count
    # of the dimensions, in their order, for a sum; none: the mean
    dimension_weights: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] = ()
    num_frames: Annotated[int, Field(ge=1, le=48)] = 16  # of a video, at most; VideoScore-v1.1 is for 48
    model: str = "TIGER-Lab/VideoScore"  # hub name or folder
    _question: str = field(default="", init=False, repr=False, compare=False)
    _model: HeadedModel | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.dimensions)) < len(self.dimensions):
            raise ValueError(f"dimensions must differ, got {', '.join(self.dimensions)}")
        if len(self.dimension_weights) not in (0, count := len(self.dimensions)):
            raise ValueError(f"dimension_weights must be none or {count}, got {len(self.dimension_weights)}")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random model of small sizes with the published names, written to `folder`."""
        write_tiny_video_score(folder, seed, len(DIMENSIONS))
        question = folder / "question.txt"
        question.write_text(f"How good is this for {PROMPT}? ", encoding="utf-8")
        return replace(self, model=str(folder), question=str(question))

    def prepare(self, placement: Placement) -> None:
        """Loads the model and reads the question; raises ConfigError where one is missing or does not fit."""
        self._question = read_text("question of VideoScore", self.question, QUESTION, ORIGIN)
        check_marks("question of VideoScore", self._question, ())
        self._model = load_video_score(self.model, len(DIMENSIONS), placement)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a prompt with the mark of a frame, which would be read as the model's own."""
        if _IMAGE in prompt.text:
            raise ValueError(f"the prompt holds {_IMAGE!r}, a mark of the model")

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for NaN or infinity, and as `check` does."""
        assert self._model is not None, "prepare comes before score"
        frames = frames_of(batch, fewest=1)
        frames = frames[:, sampled_frames(frames.shape[1], self.num_frames)]
        for prompt in batch.prompts:
            self.check(prompt)
        shown = f"{_IMAGE} " * frames.shape[1]
        texts = [self._question.replace(PROMPT, prompt.text) + shown for prompt in batch.prompts]
        numbers = self._model.scores(texts, [pictures(video) for video in frames])  # [B, 5]
        chosen = numbers[:, [DIMENSIONS.index(dimension) for dimension in self.dimensions]]
        return chosen @ chosen.new_tensor(self.dimension_weights) if self.dimension_weights else chosen.mean(1)


def sampled_frames(num_frames: int, most: int) -> list[int]:
    """Returns the numbers of the frames that are seen: all, or floor(i * num_frames / most)."""
    if num_frames <= most:
        return list(range(num_frames))
    return [place * num_frames // most for place in range(most)]
