"""VideoReward: how people would judge a video's pictures, motion and fit to its prompt."""

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
from ..base.networks.checkpoints import check_suffix
from ..base.networks.resizing import GRID, check_bounds, within_pixels
from ..base.networks.video_reward import (
    MARKS,
    ORIGIN,
    QUESTION,
    VideoReward,
    load_video_reward,
    write_tiny_video_reward,
)
from ..base.published_questions import PROMPT, check_marks, read_text, refuse_marks

Dimension = Literal["VQ", "MQ", "TA"]
DIMENSIONS: tuple[Dimension, ...] = ("VQ", "MQ", "TA")
MEANS, STDS = (3.6757, 1.1646, 2.8105), (2.2476, 1.3811, 2.5121)  # of raw scores: model_config.json of the checkpoint
FEWEST_FRAMES, MOST_FRAMES = 4, 768  # qwen-vl-utils'


@dataclass
class VideoAlign(Checked):
    """The sum over `dimensions` of (raw score - mean) / std, on a Qwen2-VL-2B trained on people's choices of videos.

    VideoReward, Liu et al. 2025, "Improving Video Generation with Human Feedback", arXiv 2501.13918,
    github.com/KwaiVGI/VideoAlign. Visual quality (VQ), motion quality (MQ) and text alignment (TA) are a linear head
    read at three marks of one question, each normalised by the published mean and deviation; all three together are the
    published overall score. Mostly -3 to 3 each; unbounded, since a linear head has no ends.

    Frames are taken evenly at `fps` from clips of `video_fps`, at least 4 where there are as many and an even number,
    and resized (bicubic) to sides of multiples of 28, to `min_pixels` at least and `max_pixels` at most. Places of
    tokens count from 0 on, as in the published code. Frames are not rounded to 8 bits, so that scores have a gradient.

    The published question is part of the model and not ours to ship: `question` names a text file with it, or the file
    prompt_template.py of the repository, of which DETAILED_PROMPT_WITH_SPECIAL_TOKEN is read and nothing run.
    """

    source: ClassVar[str] = "Liu et al. 2025 (VideoReward), arXiv 2501.13918, github.com/KwaiVGI/VideoAlign"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"videos", "model"})
    batch_size: ClassVar[int | None] = 4
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # KwaiVGI/VideoReward

    question: str = "prompt_template.py"  # file with the question, see above
    dimensions: Annotated[tuple[Dimension, ...], Field(min_length=1)] = DIMENSIONS  # what is summed
    video_fps: Annotated[float, Field(gt=0)] = 16.0  # frames a second of the clips; Wan's
    fps: Annotated[float, Field(gt=0)] = 2.0  # frames a second that are judged; the published number
    min_pixels: Annotated[int, Field(ge=GRID**2)] = 128 * GRID**2  # of a frame after resizing; qwen-vl-utils' number
    max_pixels: Annotated[int, Field(ge=GRID**2)] = 256 * GRID**2  # the same; the published number
    # a file, or owner/repository/file on the hub
    checkpoint: str = "KwaiVGI/VideoReward/checkpoint-11352/model.pth"
    configuration: str = "KwaiVGI/VideoReward/model_config.json"  # the file that has the scale of its LoRA; likewise
    base: str = "Qwen/Qwen2-VL-2B-Instruct"  # hub name or folder of Qwen2-VL, for its sizes and its tokenizer
    _question: str = field(default="", init=False, repr=False, compare=False)
    _model: VideoReward | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_suffix("checkpoint", self.checkpoint)
        check_bounds(self.min_pixels, self.max_pixels)
        if len(set(self.dimensions)) < len(self.dimensions):
            raise ValueError(f"dimensions must differ, got {', '.join(self.dimensions)}")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random network of small sizes with the published names, written to `folder`."""
        checkpoint, configuration = write_tiny_video_reward(folder, seed)
        question = folder / "question.txt"
        question.write_text("\n".join((*MARKS, PROMPT)), encoding="utf-8")
        return replace(
            self,
            checkpoint=str(checkpoint),
            configuration=str(configuration),
            base=str(folder),
            question=str(question),
            min_pixels=GRID**2,
            max_pixels=4 * GRID**2,
        )

    def prepare(self, placement: Placement) -> None:
        """Loads the model and reads the question; raises ConfigError where one is missing or does not fit."""
        self._question = read_text("question of VideoReward", self.question, QUESTION, ORIGIN)
        check_marks("question of VideoReward", self._question, MARKS)
        self._model = load_video_reward(self.checkpoint, self.configuration, self.base, placement)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a prompt with a mark of the model, which would be read as the model's own."""
        refuse_marks(prompt.text, (*MARKS, "<|video_pad|>"))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the videos where they require one.

        Raises ValueError for videos of fewer than two frames, and for NaN or infinity.
        """
        assert self._model is not None, "prepare comes before score"
        frames = frames_of(batch, fewest=2)
        frames = frames[:, sampled_frames(frames.shape[1], self.video_fps, self.fps)]
        frames = within_pixels(frames.to(self._model.network.rm_head.weight.device), self.min_pixels, self.max_pixels)
        for prompt in batch.prompts:
            self.check(prompt)
        questions = [self._question.replace(PROMPT, prompt.text) for prompt in batch.prompts]
        raw = self._model.scores(frames, questions)  # [B, 3]
        scores = (raw - raw.new_tensor(MEANS)) / raw.new_tensor(STDS)
        return scores[:, [DIMENSIONS.index(dimension) for dimension in self.dimensions]].sum(1)


def sampled_frames(num_frames: int, video_fps: float, fps: float) -> list[int]:
    """Returns the numbers of the frames that are judged: evenly from the first to the last, an even number.

    Of a clip of s seconds fps * s, at least 4 and at most 768, rounded to the nearest even number.
    """
    most = min(MOST_FRAMES, num_frames) // 2 * 2
    count = min(max(num_frames / video_fps * fps, FEWEST_FRAMES), most)
    places = torch.linspace(0, num_frames - 1, round(count / 2) * 2)
    return [int(place) for place in places.round()]
