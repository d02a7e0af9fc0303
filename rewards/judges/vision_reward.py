"""VisionReward: a published checklist of yes and no about a picture or a video, weighted by a linear model."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Granularity, License, Placement, RewardBatch
from mmrl.core.numerics import MOST

from ..base.frames import frames_of
from ..base.networks.vlm import Vlm, check_question, load_vlm, pictures, write_tiny_vlm

if TYPE_CHECKING:
    from PIL.Image import Image

MARK = "[[prompt]]"  # where the prompt goes in a published question
MASKS: Mapping[int, tuple[int, ...]] = {0: (22, 23, 24, 28, 29), 1: (25, 26), 2: (27,)}  # of the published images' list
MOST_FRAMES = 24  # of a video; the published number
WORDS = ("yes", "no")


@dataclass
class VisionReward(Checked):
    """A linear model of the answers a in {-1, 1} to a checklist: 1 where P(yes) > P(no), else -1.

    Xu et al. 2024 (VisionReward), arXiv 2412.21059, github.com/THUDM/VisionReward: checklist and weights are its files,
    read from a copy of the repository, and not ours to ship. As its two programs score:
      images   c_0 s + sum_i c_i m_i a_i + b: s is the alignment, P(Yes) of VQAScore's question about the prompt. Three
               questions only ask whether there is a body, a face, a hand; they have no weight, and m_i is 0 for the
               questions about one that is not there, else 1. The file has the keys `coef` and `intercept`
      videos   mean_i c_i a_i; the file is a list of numbers. A question may hold [[prompt]]
    With p = P(yes) / (P(yes) + P(no)), `soft` puts 2 p - 1 in the place of a and p in the place of m_i, which tells
    more pictures apart. The score is unbounded, since the weights are what the file says.

    The paper's own models (CogVLM2 that was trained to answer the checklist) are not among transformers' and are not
    loaded; any of its image-text-to-text models answers. The weights were fitted to answers of theirs, so that scores
    of another model are not those of the paper. Also different: the published code reads an answer that is neither yes
    nor no as no, and has a CLIP-FlanT5 of its own for the alignment.

    A video is shown by the frames nearest to its whole seconds, at most 24, as there. Images are rounded to 8 bits, so
    there is no gradient.
    """

    source: ClassVar[str] = "Xu et al. 2024 (VisionReward), arXiv 2412.21059, github.com/THUDM/VisionReward"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})  # or videos
    batch_size: ClassVar[int | None] = 8
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # Qwen/Qwen2.5-VL-7B-Instruct

    # file of the checklist, a question a line; of videos VisionReward_Video/VisionReward_video_qa_select.txt
    questions: str = "VisionReward_Image/VisionReward_image_qa_select.txt"
    # file of the linear model, JSON; of videos VisionReward_Video/weight.json
    weights: str = "VisionReward_Image/weight_select.json"
    of: Literal["images", "videos"] = "images"  # what is judged
    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder of the vision-language model that answers
    soft: bool = False  # whether answers are probabilities
    # of images: the line (from 0) of a question that has no weight, and those that it decides on; null: as published
    masks: dict[int, tuple[int, ...]] | None = None
    # of images: the question whose P(yes) is the alignment
    alignment: str = 'Does this figure show "{prompt}"? Please answer yes or no.'
    video_fps: Annotated[float, Field(gt=0)] = 16.0  # frames a second of the clips; Wan's
    questions_at_once: Annotated[int, Field(ge=1, le=MOST)] = 8  # in one forward pass: bounds the memory
    _checklist: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _coefficients: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _intercept: float = field(default=0.0, init=False, repr=False, compare=False)
    _vlm: Vlm | None = field(default=None, init=False, repr=False, compare=False)
    _words: list[list[int]] = field(default_factory=list, init=False, repr=False, compare=False)  # tokens of yes and no

    def __post_init__(self) -> None:
        super().__post_init__()
        check_question(self.alignment)
        if self.of == "videos" and self.masks:
            raise ValueError("masks go with images (of: images)")
        decided = [line for lines in self._masks().values() for line in lines]
        if len(set(decided)) < len(decided) or set(decided) & set(self._masks()):
            raise ValueError(f"a question has one mask at most, and a mask none, got {self.masks}")
        self.needs = frozenset({self.of, "model"})  # type: ignore[misc]  # of this one, not of the class

    def _masks(self) -> Mapping[int, Sequence[int]]:
        published = MASKS if self.of == "images" else {}
        return published if self.masks is None else self.masks

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random model and a short checklist with random weights, written to `folder`."""
        write_tiny_vlm(folder, seed, ("Yes", "No", *WORDS))
        checklist = ["Is there a hand?", "Is it bright?", "Is the hand right?", "Is it sharp?"]
        numbers = torch.randn(4, generator=torch.Generator().manual_seed(seed)).tolist()
        is_image = self.of == "images"
        (folder / "questions.txt").write_text("\n".join(checklist), encoding="utf-8")
        weights = {"coef": numbers, "intercept": 0.5} if is_image else numbers
        (folder / "weights.json").write_text(json.dumps(weights), encoding="utf-8")
        return replace(
            self,
            model=str(folder),
            questions=str(folder / "questions.txt"),
            weights=str(folder / "weights.json"),
            masks={0: (2,)} if is_image else None,
        )

    def prepare(self, placement: Placement) -> None:
        """Loads the model and reads both files; raises ConfigError where one is missing or they do not fit."""
        self._checklist = [line.strip() for line in _text(self.questions).splitlines() if line.strip()]
        numbers, self._intercept = _linear_model(self.weights, self.of)
        masks, count = self._masks(), len(self._checklist)
        expected = count - len(masks) + 1 if self.of == "images" else count
        lines = {*masks, *(line for decided in masks.values() for line in decided)}
        if len(numbers) != expected or not all(0 <= line < count for line in lines):
            raise ConfigError(
                f"{self.weights} and {self.questions} do not fit: {len(numbers)} weights for {count} questions,"
                f" {len(masks)} of them masks; there must be {expected}, and the masks must be among the questions"
            )
        self._coefficients = torch.tensor(numbers, device=placement.device)
        self._vlm = load_vlm(self.model, placement)
        self._words = [self._vlm.spellings(word) for word in WORDS]
        if not all(self._words):
            raise ConfigError(f"yes and no must be tokens of the model {self.model!r}")

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for pixels that are NaN or infinite."""
        assert self._vlm is not None and self._coefficients is not None, "prepare comes before score"
        shown = self._shown(batch)
        asked = [[line.replace(MARK, prompt.text) for line in self._checklist] for prompt in batch.prompts]
        if self.of == "images":
            for prompt, own in zip(batch.prompts, asked, strict=True):
                own.insert(0, self.alignment.replace("{prompt}", prompt.text))
        log_probs = self._vlm.word_log_probs(
            [images for images, own in zip(shown, asked, strict=True) for _ in own],
            [question for own in asked for question in own],
            [self._words] * sum(map(len, asked)),
            at_once=self.questions_at_once,
        ).view(len(batch), -1, 2)  # [B, questions, yes and no]
        likely = log_probs.softmax(-1)[..., 0]  # P(yes) among both
        if self.of == "videos":
            return (self._answers(likely) * self._coefficients).mean(1)
        parts = self._masked(likely[:, 1:])
        alignment = log_probs[:, :1, 0].exp()
        return torch.cat([alignment, parts], 1) @ self._coefficients + self._intercept

    def _answers(self, likely: Tensor) -> Tensor:
        """Returns the answers in [-1, 1] by the probabilities of yes."""
        return 2 * likely - 1 if self.soft else (likely > 0.5).float() * 2 - 1

    def _masked(self, likely: Tensor) -> Tensor:
        """Returns the answers [B, n] to the questions with a weight, each times its mask, by P(yes) of all [B, N]."""
        answers = self._answers(likely).clone()
        for mask, lines in self._masks().items():
            present = likely[:, mask] if self.soft else (likely[:, mask] > 0.5).float()
            answers[:, list(lines)] *= present[:, None]
        return answers[:, [line for line in range(likely.shape[1]) if line not in self._masks()]]

    def _shown(self, batch: RewardBatch) -> "list[list[Image]]":
        """Returns the pictures of each sample."""
        if self.of == "images":
            assert batch.outputs.images is not None, "scoring checks needs"
            return [[image] for image in pictures(batch.outputs.images)]
        frames = frames_of(batch, fewest=1)
        chosen = frames_by_seconds(frames.shape[1], self.video_fps)
        return [pictures(video[chosen]) for video in frames]


def frames_by_seconds(num_frames: int, video_fps: float) -> list[int]:
    """Returns the numbers of the frames nearest to 0, 1, 2, ... seconds, to that after the last frame, at most 24."""
    times = torch.arange(num_frames) / video_fps
    seconds = range(min(round(float(times[-1])) + 1, MOST_FRAMES))
    return [int((times - second).abs().argmin()) for second in seconds]


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {file!r} of VisionReward: {error}; take it from github.com/THUDM/VisionReward"
        ) from error


def _linear_model(file: str, of: str) -> tuple[list[float], float]:
    """Returns the weights and the intercept of a file; raises ConfigError for one of another form."""
    form = "a JSON list of numbers" if of == "videos" else "a JSON object with a list `coef` and a number `intercept`"
    try:
        content: Any = json.loads(_text(file))
        weights, intercept = (content, 0.0) if of == "videos" else (content["coef"], content["intercept"])
        numbers = torch.tensor(weights, dtype=torch.float64).flatten()  # scikit-learn's have a dimension more
        (last,) = torch.tensor(intercept, dtype=torch.float64).reshape(-1).tolist()
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file!r} must be {form}: {error}") from error
    if not numbers.isfinite().all() or not math.isfinite(last):
        raise ConfigError(f"{file!r} must be {form}, all finite")
    return numbers.tolist(), last
