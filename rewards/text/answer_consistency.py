"""A bonus for right answers that follow from the thought before them, compared with right peers (GRPO-CARE)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, License, Placement, Reward, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.likelihoods import ANSWER_TAG, THOUGHT
from mmrl.parsing.answers import ParseError, check_tag, tagged

from ..base.networks.language_model import LanguageModel, load_language_model, write_tiny_language_model
from ..base.wrapper import RewardWrapper, check_judges_samples, score_inner


@dataclass
class AnswerConsistency(RewardWrapper):
    """A bonus a_i for right answers that are as likely after their own thought as those of right peers, else 0.

    Chen et al. 2025, "GRPO-CARE", arXiv 2506.16141. With a_i the inner `reward` (the accuracy) of sample i:
      right       a_i > `threshold` and a_i >= the mean of a over the group
      likelihood  c_i = min(`ceiling`, exp(mean log-probability of the answer's tokens given question and thought))
      bonus       a_i where i is right and c_i >= the mean of c over the right ones of the group - `margin`
    In the mix its weight is the paper's 0.5; the thresholds are those of its code. c_i counts only in comparison with
    right peers: a model that is always sure of its answers gains nothing.

    The paper's reference is an average of the policy's own weights, and sees the video: so does the `likelihood`
    {name: answer_likelihood, weights: averaged}. Without one it is the language model `model`, which sees the words
    of the question and the text before the answer's `tag`, and no image: it measures whether the words lead to the
    answer, and reads only the last `max_tokens` tokens up to its end. Two more differences: groups are compared,
    where the paper's code takes the means over all samples on its process; and a group without a right answer gets
    0, where the code compares with the mean of nothing. A right answer that is not in exactly one tag, is empty, or
    is longer than `max_tokens`, gets no bonus and is no peer. Neither are controls.
    """

    reward: Reward  # the accuracy, such as {name: exact_answer}

    source: ClassVar[str] = "Chen et al. 2025 (GRPO-CARE), arXiv 2506.16141"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)  # the upper end is that of the inner reward
    granularity: ClassVar[Granularity] = "group"
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "model"})  # beside those of the inner reward
    license: ClassVar[License] = License("Apache-2.0", commercial=True)  # the model card

    likelihood: Reward | None = None  # the likelihood of each answer in [0, 1]; None: that of the language model
    model: str = "Qwen/Qwen2.5-0.5B-Instruct"  # hub name or folder of the language model
    threshold: Annotated[float, Field(ge=0)] = 0.1  # accuracy above which an answer may be right
    ceiling: Annotated[float, Field(gt=0, le=1)] = 0.95  # the largest likelihood that counts
    margin: Annotated[float, Field(ge=0)] = 0.01  # how far the likelihood may be below the mean of the right peers
    max_tokens: Annotated[int, Field(ge=2)] = 2048  # tokens that the language model reads, the last ones
    tag: str = "answer"  # the tag of the answer, `<tag>...</tag>`
    _model: LanguageModel | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tag(self.tag)
        check_judges_samples(self.reward)
        if self.likelihood is not None:
            check_judges_samples(self.likelihood, "likelihood")
            if self.tag != ANSWER_TAG and self.likelihood.needs & set(THOUGHT):
                raise ValueError(f"the policy finds answers in the tag {ANSWER_TAG!r} likely, got tag {self.tag!r}")
            if self.likelihood.range[0] < 0 or self.likelihood.range[1] > 1:
                raise ValueError(f"likelihood must be a reward between 0 and 1, got {self.likelihood.range}")
        if not self.threshold < self.reward.range[1] < math.inf:
            raise ValueError(f"the inner reward must end above the threshold {self.threshold}, got {self.reward.range}")
        own = type(self).needs if self.likelihood is None else {"texts"}
        self.override(needs=own | self.needs_of_inner(), range=(0.0, self.reward.range[1]))

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner reward, with the tag that this reward reads."""
        return replace(super().declaration, answer_tag=self.tag)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same reward on a random Llama of small sizes, with the tiny twin of the inner reward."""
        twin = super().tiny(seed, folder)
        if self.likelihood is not None:
            return twin
        write_tiny_language_model(folder / "model", seed)
        return replace(twin, model=str(folder / "model"))

    def prepare(self, placement: Placement) -> None:
        """Prepares the inner reward and loads the language model; raises ConfigError where it cannot be loaded."""
        super().prepare(placement)
        if self.likelihood is None:
            self._model = load_language_model(self.model, placement.device)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; 0 for the controls."""
        scores = torch.zeros(len(batch))
        accuracy = score_inner(self.reward, batch).float().cpu()
        given = None if self.likelihood is None else score_inner(self.likelihood, batch).tolist()
        for rows in batch.members():
            mean = accuracy[rows].double().mean()
            right = [row for row in rows.tolist() if accuracy[row] > self.threshold and accuracy[row] >= mean - 1e-6]
            found = {row: self._likelihood(batch, row, given) for row in right}
            likelihoods = {row: likelihood for row, likelihood in found.items() if likelihood is not None}
            for row, likelihood in likelihoods.items():
                if (
                    likelihood >= sum(likelihoods.values()) / len(likelihoods) - self.margin - 1e-6
                ):  # rounding of equal ones
                    scores[row] = accuracy[row]
        return scores

    def _likelihood(self, batch: RewardBatch, row: int, given: Sequence[float] | None) -> float | None:
        """Returns the likelihood c of a sample's answer, maybe one that is given; None where it has no answer."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        text = batch.outputs.texts[row]
        try:
            answer = tagged(text, (self.tag,)).contents[0].strip()
        except ParseError:
            return None
        if given is not None:
            return min(self.ceiling, given[row]) if answer else None
        assert self._model is not None, "prepare comes before score"
        opening = f"<{self.tag}>"
        thought = text[: text.index(opening) + len(opening)]
        question = batch.prompts[row].text.replace("<image>", "").replace("<video>", "").strip()
        mean = self._model.mean_log_prob(question, thought, answer, max_tokens=self.max_tokens)
        return None if mean is None else min(self.ceiling, math.exp(mean))
