"""The win rate of an image in its group, by a vision-language model that compares each pair of images."""

from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, License, Placement, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.numerics import MOST

from ..base.networks.vlm import Vlm, check_question, load_vlm, pictures, write_tiny_vlm
from ..base.win_rates import win_rates

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass
class PairwiseJudge(Checked):
    """The win rate of an image in its group, in [0, 1]: the share of the other images that a judge finds worse.

    Wang et al. 2025, "Pref-GRPO", arXiv 2508.20751. The model is shown both images of each pair, in both orders, with a
    question which is better; of the answers `first` and `second` the one counts whose first token is likelier. An order
    scores 1, 0 or, where both are as likely, 1/2, and a pair is the mean of its orders: a judge that always prefers the
    first place gives 1/2. The rates of a group have the mean 1/2. `soft` takes P(first) / (P(first) + P(second))
    instead of the likelier one.

    The paper's judge, UnifiedReward-Think, writes a chain of thought first and compares each pair once, in one order,
    with 1/2 for what cannot be read; here a judge answers with one of both words at once, so that nothing has to be
    read. n images are n (n - 1) questions of two images each.

    Any image-text-to-text model of transformers can judge that has a chat template and takes several images. Images are
    rounded to 8 bits, so there is no gradient. Weights are in the precision of the run, probabilities in float32.
    Controls score 1/2, as does an image alone in its group, and no image is compared with controls. As the mean is the
    same whatever the policy does, an evaluation needs other rewards.
    """

    source: ClassVar[str] = "Wang et al. 2025 (Pref-GRPO), arXiv 2508.20751"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "group"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"images", "model"})
    batch_size: ClassVar[int | None] = None
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # the model card
    declaration: ClassVar[RewardDeclaration] = RewardDeclaration(is_relative=True)

    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"  # hub name or folder of the judge
    # text after the two images; {prompt} stands for the prompt
    question: str = (
        'Both images were made for the prompt "{prompt}". Which one fits it better and looks better? Answer with 1 for '
        "the first image or 2 for the second one, and nothing else."
    )
    first: str = "1"  # answer that prefers the first image, one token; spaces before it and capitals count
    second: str = "2"  # answer that prefers the second image, one token
    soft: bool = False  # whether the probability of an answer counts, and not only the likelier one
    questions_at_once: Annotated[int, Field(ge=1, le=MOST)] = 8  # questions of two images in one batch of the judge
    _vlm: Vlm | None = field(default=None, init=False, repr=False, compare=False)
    _tokens: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_question(self.question)
        if self.first == self.second:
            raise ValueError(f"first and second must differ, got {self.first!r} for both")

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random model of small sizes, written to `folder`."""
        write_tiny_vlm(folder, seed, (self.first, self.second))
        return replace(self, model=str(folder))

    def prepare(self, placement: Placement) -> None:
        """Loads the model; raises ConfigError where it is missing or an answer is more than one of its tokens."""
        self._vlm = load_vlm(self.model, placement)
        self._tokens = tuple(map(self._vlm.token, (self.first, self.second)))

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for an image that holds NaN or infinity."""
        assert batch.outputs.images is not None, "scoring checks needs"
        images, groups = pictures(batch.outputs.images), batch.members()
        pairs = [pair for rows in groups for pair in permutations(rows.tolist(), 2)]
        preferences = [torch.zeros(0)]
        for start in range(0, len(pairs), self.questions_at_once):
            chosen = pairs[start : start + self.questions_at_once]
            shown = [[images[first], images[second]] for first, second in chosen]
            preferences.append(self._first_wins(shown, [batch.prompts[row].text for row, _ in chosen]))
        sizes = [len(rows) * (len(rows) - 1) for rows in groups]
        rates = torch.full((len(batch),), 0.5)
        for rows, own in zip(groups, torch.cat(preferences).split(sizes), strict=True):
            wins = torch.zeros(len(rows), len(rows))
            wins[~torch.eye(len(rows), dtype=torch.bool)] = own  # row by row, as permutations come
            rates[rows] = win_rates(wins)
        return rates

    def _first_wins(self, shown: "list[list[Image]]", prompts: list[str]) -> Tensor:
        """Returns [Q] in [0, 1]: how far the first of both images is preferred, for each question."""
        assert self._vlm is not None, "prepare comes before score"
        questions = [self.question.replace("{prompt}", prompt) for prompt in prompts]
        log_probs = self._vlm.log_probs(shown, questions, self._tokens).cpu()
        if self.soft:
            return log_probs.softmax(1)[:, 0]
        return ((log_probs[:, 0] - log_probs[:, 1]).sign() + 1) / 2
