"""A vision-language model of random weights, a few synthetic questions, and a reward that tells its answers apart."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.config import DatasetSettings
from mmrl.contracts import RewardBatch
from mmrl.datasets import write_synthetic
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
