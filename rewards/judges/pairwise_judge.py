"""How often an image beats the others of its group, by a vision-language model that is shown each pair of them."""

from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, Placement, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.numerics import check_count

from ..base.networks.vlm import Vlm, check_question, load_vlm, pictures, write_tiny_vlm
from ..base.win_rates import win_rates

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass
class PairwiseJudge:
    """The win rate of an image in its group, in [0, 1]: the share of the others that a judge finds worse.

    Wang et al. 2025, "Pref-GRPO", arXiv 2508.20751. Of each pair the model is shown both images, in both orders, and
    asked which is better; of `first` and `second` that answer counts which is the likelier first token. An order says
    1, 0 or, where both are as likely, 1/2, and a pair is the mean of its orders: a judge that always prefers the first
    place says 1/2. The rates of a group have the mean 1/2. `soft` takes P(first) / (P(first) + P(second)) instead of
    the likelier one.

    The paper's judge, UnifiedReward-Think, writes a chain of thought first and is asked about each pair once, in one
    order, with 1/2 for what cannot be read; here a judge says one of both words at once, so that nothing has to be
    read. n images are n (n - 1) questions of two images each.

    Any image-text-to-text model of transformers answers that has a chat template and knows several images. Images are
    rounded to 8 bits, so there is no gradient. Weights are in the precision of the run, probabilities in float32.
    Controls score 1/2, as does an image alone in its group, and nobody is compared with controls. As the mean is the
    same whatever the policy does, an evaluation needs other rewards.
    """

    source: ClassVar[str] = "Wang et al. 2025 (Pref-GRPO), arXiv 2508.20751"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "group"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = None
    declaration: ClassVar[RewardDeclaration] = RewardDeclaration(is_relative=True)

    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder
    question: str = (
        'Both images were made for the prompt "{prompt}". Which one fits it better and looks better? Answer with 1 for '
        "the first image or 2 for the second one, and nothing else."
    )
    first: str = "1"  # one token each; spaces before it and capitals count
    second: str = "2"
    soft: bool = False
    questions_at_once: int = 8  # of two images each
    _vlm: Vlm | None = field(default=None, init=False, repr=False, compare=False)
    _tokens: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_question(self.question)
        if self.first == self.second:
            raise ValueError(f"first and second must differ, got {self.first!r} for both")
        check_count("questions_at_once", self.questions_at_once)

    def tiny(self, seed: int, folder: Path) -> Self:
        """The same reward on a random model of small sizes, written to `folder`."""
        write_tiny_vlm(folder, seed, (self.first, self.second))
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it is missing or an answer is more than one of its tokens."""
        self._vlm = load_vlm(self.model, placement)
        self._tokens = tuple(map(self._vlm.token, (self.first, self.second)))

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for an image that holds NaN or infinity."""
        assert batch.outputs.images is not None, "scoring checks needs"
        images, groups = pictures(batch.outputs.images), batch.members()
        pairs = [pair for rows in groups for pair in permutations(rows.tolist(), 2)]
        said = [torch.zeros(0)]
        for start in range(0, len(pairs), self.questions_at_once):
            asked = pairs[start : start + self.questions_at_once]
            shown = [[images[first], images[second]] for first, second in asked]
            said.append(self._first_wins(shown, [batch.prompts[row].text for row, _ in asked]))
        sizes = [len(rows) * (len(rows) - 1) for rows in groups]
        rates = torch.full((len(batch),), 0.5)
        for rows, own in zip(groups, torch.cat(said).split(sizes), strict=True):
            wins = torch.zeros(len(rows), len(rows))
            wins[~torch.eye(len(rows), dtype=torch.bool)] = own  # row by row, as permutations come
            rates[rows] = win_rates(wins)
        return rates

    def _first_wins(self, shown: "list[list[Image]]", prompts: list[str]) -> Tensor:
        """[Q] how far the first of both images is preferred, of each question."""
        assert self._vlm is not None, "prepare comes before score"
        questions = [self.question.replace("{prompt}", prompt) for prompt in prompts]
        said = self._vlm.log_probs(shown, questions, self._tokens).cpu()
        if self.soft:
            return said.softmax(1)[:, 0]
        return ((said[:, 0] - said[:, 1]).sign() + 1) / 2
