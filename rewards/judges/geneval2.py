"""Soft-TIFA, the score of GenEval 2: how sure a vision-language model is of each thing that a prompt asks for."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.numerics import MOST

from ..base.networks.vlm import Vlm, load_vlm, pictures, write_tiny_vlm

Mean = Literal["geometric", "arithmetic"]
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SPELT = {word: str(number) for number, word in enumerate(NUMBERS)}


@dataclass
class Geneval2(Checked):
    """The mean over a prompt's atoms of P(right answer | image, question), in [0, 1].

    Kamath et al. 2025 (GenEval 2), arXiv 2512.16853, github.com/facebookresearch/GenEval2. `target.vqa_list` holds a
    question and its answer for each atom (an object, an attribute, a number, a relation), as in the published rows. The
    probability is that of the answer's first token. With p_1 .. p_n of n atoms:
      geometric   (p_1 ... p_n)^(1/n), Soft-TIFA GM, the published score of a prompt: one missing thing costs most of it
      arithmetic  (p_1 + ... + p_n) / n, Soft-TIFA AM, the published score of an atom

    A right answer counts in any spelling that is one token (capitals, a space before it, and "3" for "three"), each
    once; where no spelling is, by its first token. The published code takes the first token of every spelling, so that
    one of several tokens counts there by what it shares with others; its spellings were read in a port of it. The words
    after the question are ours; the benchmark's own can be given as `ending`. Images are rounded to 8 bits, so there is
    no gradient.
    """

    source: ClassVar[str] = "Kamath et al. 2025 (GenEval 2), arXiv 2512.16853, github.com/facebookresearch/GenEval2"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "target.vqa_list", "model"})
    batch_size: ClassVar[int | None] = 16
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # Qwen/Qwen3-VL-8B-Instruct

    model: str = "Qwen/Qwen3-VL-8B-Instruct"  # hub name or folder of the vision-language model; the benchmark's
    mean: Mean = "geometric"  # over the atoms of a prompt
    ending: str = "Reply with a single word."  # after each question
    questions_at_once: Annotated[int, Field(ge=1, le=MOST)] = 16  # in one forward pass: bounds the memory
    _vlm: Vlm | None = field(default=None, init=False, repr=False, compare=False)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random model of small sizes, written to `folder`."""
        write_tiny_vlm(folder, seed, ("Yes", "No", *NUMBERS))
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it cannot be loaded."""
        self._vlm = load_vlm(self.model, placement)

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target has no questions with answers."""
        _atoms(prompt)

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError as `check` does, and for an image with NaN or infinity."""
        assert self._vlm is not None, "prepare comes before score"
        assert batch.outputs.images is not None, "scoring checks needs"
        atoms = [_atoms(prompt) for prompt in batch.prompts]
        parts = self._vlm.log_probs_of_each(
            pictures(batch.outputs.images),
            [[f"{question} {self.ending}" for question, _ in own] for own in atoms],
            [[[self._tokens(answer)] for _, answer in own] for own in atoms],
            at_once=self.questions_at_once,
        )
        means = [part.mean().exp() if self.mean == "geometric" else part.exp().mean() for part in parts]
        return torch.stack(means)

    def _tokens(self, answer: str) -> list[int]:
        """Returns the tokens that an answer may begin with."""
        assert self._vlm is not None, "prepare comes before score"
        forms = {answer, SPELT.get(answer.lower(), answer)}
        tokens = sorted({token for form in forms for token in self._vlm.spellings(form)})
        return tokens or self._vlm.tokenizer.encode(answer, add_special_tokens=False)[:1]


def _atoms(prompt: Prompt) -> list[tuple[str, str]]:
    """Returns the questions about a prompt with their answers."""
    atoms = prompt.target["vqa_list"]
    if not isinstance(atoms, list | tuple) or not atoms or not all(_is_atom(atom) for atom in atoms):
        raise ValueError(f"target.vqa_list must list [question, answer], got {atoms!r:.200} for {prompt.text!r}")
    return [(question, answer) for question, answer in atoms]


def _is_atom(atom: object) -> bool:
    """Returns whether an item of a row is a question with its answer."""
    return isinstance(atom, list | tuple) and len(atom) == 2 and all(isinstance(one, str) and one for one in atom)
