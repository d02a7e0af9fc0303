"""A vision-language model of random weights, a few synthetic questions, and a reward that tells its answers apart."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import RewardBatch
from mmrl.prompts.datasets import write_synthetic
from tests.vision_twins import twin

_FOLDERS = TemporaryDirectory(prefix="mmrl-questions-")  # removed when the tests end


@dataclass(frozen=True)
class Letters:
    """Share of an answer's characters that are letters, which random weights write some of; 0 for an empty answer."""

    source: ClassVar[str] = "a test"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[str] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        texts = batch.outputs.texts or ()
        return torch.tensor([sum(map(str.isalpha, text)) / max(1, len(text)) for text in texts])


@cache
def questions(rows: int = 6) -> DatasetSettings:
    """Synthetic questions about images of different sizes, written once."""
    return write_synthetic("columns", Path(_FOLDERS.name) / str(rows), rows, 0)


def vision_language() -> tuple[str, ...]:
    """Overrides that make a run of any config one on questions about images: model, prompts, samplers, reward."""
    prompts = f"{{path: {questions().path}, images: {questions().images}, layout: columns}}"
    return (
        f"modality={{name: vision_language, model: {twin('qwen2_5_vl')}, vision: trained, vision_rate: 0.5}}",
        f"prompts={{train: {prompts}, held_out: {prompts}}}",
        "sampler={name: autoregressive, max_tokens: 8, top_p: 0.95}",
        "rewards=[{name: 'tests.tiny_texts:Letters'}]",
        "evaluation.rewards=null",
        "evaluation.sampler={name: autoregressive, max_tokens: 8}",
        "evaluation.also={greedy: {name: autoregressive, max_tokens: 8, temperature: 0}}",
    )


@cache
def clips(rows: int = 4) -> DatasetSettings:
    """Synthetic questions about small mp4 files, written once."""
    return write_synthetic("time_r1", Path(_FOLDERS.name) / f"clips {rows}", rows, 0)


@cache
def tasks() -> Path:
    """Tasks for an agent in the corridor of `tests.toy_worlds`, written once."""
    path = Path(_FOLDERS.name) / "tasks.jsonl"
    path.write_text("".join(f'{{"prompt": "go to the right, {number}"}}\n' for number in range(5)), encoding="utf-8")
    return path


def video() -> tuple[str, ...]:
    """The same for questions about videos, with answers about shuffled frames to compare with."""
    prompts = f"{{path: {clips().path}, images: {clips().images}, layout: time_r1}}"
    letters = "{name: 'tests.tiny_texts:Letters'}"
    return (
        f"modality={{name: video, model: {twin('qwen2_5_vl')}, num_frames: 4, frame_max_pixels: 3136, "
        "frame_min_pixels: 784, vision: trained, vision_rate: 0.5}",
        f"prompts={{train: {prompts}, held_out: {prompts}}}",
        "sampler={name: autoregressive, max_tokens: 8, controls: 2}",
        f"rewards=[{letters}, {{name: temporal_contrast, reward: {letters}, weight: 0.3, share: 0.5}}]",
        f"evaluation.rewards=[{letters}, {{name: temporal_iou, weight: 0}}]",
        "evaluation.sampler={name: autoregressive, max_tokens: 8}",
    )


def agent() -> tuple[str, ...]:
    """The same for an agent that plays episodes of up to three turns."""
    return (
        f"modality={{name: 'tests.toy_worlds:Clicker', model: {twin('qwen2_5_vl')}, dialect: plain, "
        "instructions: none, environment: {name: 'tests.toy_worlds:Corridor', places: 1}}",
        f"prompts={{train: {tasks()}, held_out: {tasks()}}}",
        "sampler={name: episodes, max_tokens: 6, max_turns: 3}",
        "rewards=[{name: episode_success}, {name: 'tests.tiny_texts:Letters', weight: 0.1}]",
        "advantage={name: gigpo}",
        "evaluation.rewards=[{name: episode_success}]",
        "evaluation.sampler={name: episodes, max_tokens: 6, max_turns: 3}",
    )
