"""DSG: questions about what a prompt names, where a question counts only if what it depends on is there."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.numerics import MOST

from ..base.networks.vlm import Vlm, load_vlm, pictures, write_tiny_vlm

YES, NO = "yes", "no"


@dataclass
class QuestionGraph(Checked):
    """The share of a prompt's questions that a vision-language model answers with yes, in [0, 1].

    Cho et al. 2023 (Davidsonian Scene Graph), arXiv 2310.18235; DPG-Bench of Hu et al. 2024 (ELLA), arXiv 2403.05135.
    `target.questions` are texts, `target.parents` of each question the numbers, from 0, of those that it depends on:
    whether the motorcycle is blue counts as no where there is no motorcycle. With passes_on, a question that does not
    count makes those behind it not count either, which the order of the questions decides, as in DPG-Bench's code;
    without, only a parent's own answer does, as in that of DSG.

    An answer is yes where its first token is likelier a spelling of "yes" than one of "no" (capitals, a space before
    it). The published numbers are of mPLUG-large (DPG-Bench) and PaLI-17B (DSG-1k), which transformers does not have:
    compare only numbers of the same model. Images are rounded to 8 bits, so there is no gradient.
    """

    source: ClassVar[str] = "Cho et al. 2023 (DSG), arXiv 2310.18235; Hu et al. 2024 (DPG-Bench), arXiv 2403.05135"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "target.questions", "target.parents", "model"})
    batch_size: ClassVar[int | None] = 16
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # Qwen/Qwen2.5-VL-7B-Instruct

    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder of the vision-language model
    passes_on: bool = True  # whether a question that does not count is a no for those that depend on it
    ending: str = "Answer with yes or no."  # after each question
    questions_at_once: Annotated[int, Field(ge=1, le=MOST)] = 16  # in one forward pass: bounds the memory
    _vlm: Vlm | None = field(default=None, init=False, repr=False, compare=False)
    _answers: tuple[list[int], list[int]] = field(default=([], []), init=False, repr=False, compare=False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random model of small sizes, written to `folder`."""
        write_tiny_vlm(folder, seed, (YES, NO))
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded, or yes or no is no token of it."""
        vlm = load_vlm(self.model, placement)
        self._vlm, self._answers = vlm, (vlm.spellings(YES), vlm.spellings(NO))
        if not all(self._answers):
            raise ConfigError(f"yes and no must each be one token in some spelling, and are not in {self.model!r}")

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target has no questions, or their parents do not fit."""
        _questions(prompt)

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError as `check` does, and for an image with NaN or infinity."""
        assert self._vlm is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        graphs = [_questions(prompt) for prompt in batch.prompts]
        log_probs = self._vlm.log_probs_of_each(
            pictures(batch.outputs.images),
            [[f"{text} {self.ending}" for text in texts] for texts, _ in graphs],
            [[self._answers] * len(texts) for texts, _ in graphs],
            at_once=self.questions_at_once,
        )
        answers = [(own[:, 0] > own[:, 1]).tolist() for own in log_probs]
        shares = [self._share(own, parents) for own, (_, parents) in zip(answers, graphs, strict=True)]
        return torch.tensor(shares, dtype=torch.float32)

    def _share(self, answers: Sequence[bool], parents: Sequence[Sequence[int]]) -> float:
        """Returns the share of the questions that count and are answered with yes."""
        counted = list(answers)
        for number, own in enumerate(parents):
            seen = counted if self.passes_on else answers
            counted[number] = counted[number] and all(seen[parent] for parent in own)
        return sum(counted) / len(counted)


def _questions(prompt: Prompt) -> tuple[Sequence[str], Sequence[Sequence[int]]]:
    """Returns the questions about a prompt, and of each the numbers of those that it depends on."""
    texts, parents = prompt.target["questions"], prompt.target["parents"]
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"target.questions must list texts, got {texts!r:.200} for {prompt.text!r}")
    if (
        not isinstance(parents, list | tuple)
        or len(parents) != len(texts)
        or not all(isinstance(own, list | tuple) and all(_is_place(one, len(texts)) for one in own) for own in parents)
    ):
        allowed = f"{len(texts)} lists of numbers from 0 to {len(texts) - 1}"
        raise ValueError(f"target.parents must be {allowed}, got {parents!r:.200} for {prompt.text!r}")
    return texts, parents


def _is_place(number: object, count: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < count
