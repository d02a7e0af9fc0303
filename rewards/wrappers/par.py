"""The probability that a sample is preferred to samples of the policy before training (PAR)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.core.keys import generator, seed_from
from mmrl.core.reward_batches import MEDIA, select

from ..base.answers import is_number
from ..base.wrapper import RewardWrapper, check_judges_outputs_alone, check_judges_samples, score_inner

References = Literal["scores", "answers"]


@dataclass(frozen=True)
class PreferenceAsReward(RewardWrapper):
    """The preference over references: the mean over M references m of sigmoid(r - r_m), between 0 and 1.

    Fu et al. 2025, "Reward Shaping to Mitigate Reward Hacking in RLHF" (Preference As Reward), arXiv 2502.18770. For a
    reward r that was trained on choices (Bradley and Terry 1952), such as `image_reward`, it is the probability that a
    sample is chosen over what the policy made before training: bounded, 1/2 for a sample as good as its reference, and
    flat where r runs away. The scale of r matters.

    References are samples of the policy before training for the same prompt, made and judged once (`mmrl sample`, `mmrl
    score`); the paper finds that one is enough, its code takes up to five. They stand in the target:
      scores   `target.reference_scores`, a number or several: r of each reference, by the same reward
      answers  `target.reference_answers`, a text or several, whole answers with their tags: r judges them beside the
               group, once for each prompt of a batch; for rewards of texts
    The controls of `sampler.controls` are no such references: they are answers of the weights that are trained, about
    a video with its frames in disorder (`temporal_contrast`); the greedy answer is of these weights as well.

    Raises ValueError for a reward that does not judge samples, and for `answers` with a reward of anything but texts.
    """

    reward: Reward  # the reward that is compared with that of the references
    references: References = "scores"  # what the target holds of them

    source: ClassVar[str] = "Fu et al. 2025 (PAR), arXiv 2502.18770"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judges_samples(self.reward)
        inner, media = self.reward, self.reward.needs & set(MEDIA)
        if self.references == "answers" and media != {"texts"}:
            raise ValueError(
                f"references 'answers' are for a reward of texts alone, got one that needs "
                f"{', '.join(sorted(media)) or 'no output'}; allowed for it is 'scores'"
            )
        if self.references == "answers":
            check_judges_outputs_alone(inner)
        low, high = inner.range
        self.inherit(
            inner,
            range=(_sigmoid(low - high), _sigmoid(high - low)),
            needs=inner.needs | {f"target.reference_{self.references}"},
        )

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for references that are none, or where the inner reward refuses the prompt."""
        super().check(prompt)
        if self.references == "scores":
            self._known_scores(prompt)
        else:
            _texts(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; NaN where the inner reward gives the sample or a reference NaN.

        Raises ValueError for references that are none, and what the inner reward raises.
        """
        scores = self.reward.score(batch)
        references: dict[int, Tensor] = {}
        for row, prompt in enumerate(batch.prompts):
            if id(prompt) not in references:
                references[id(prompt)] = self._of_references(batch, row).to(scores)
        each = zip(scores, batch.prompts, strict=True)
        return torch.stack([(one - references[id(prompt)]).sigmoid().mean() for one, prompt in each])

    def _of_references(self, batch: RewardBatch, row: int) -> Tensor:
        """Returns the scores [M] of the references of the prompt of one sample."""
        prompt = batch.prompts[row]
        if self.references == "scores":
            return torch.tensor(self._known_scores(prompt))
        texts = _texts(prompt)
        # of the prompt alone: whichever samples of its group are in the batch
        seeds = tuple(seed_from("reference", prompt.text, number) for number in range(len(texts)))
        number = torch.arange(len(texts))
        alone = select(batch, torch.tensor([row] * len(texts)))
        outputs = Outputs(texts=tuple(texts))
        own = replace(alone, outputs=outputs, group=number, episode=number, turn=torch.zeros_like(number))
        with torch.no_grad():
            return score_inner(
                self.reward,
                replace(own, seeds=seeds, generator=generator(*seeds), is_control=None, num_decisions=None),
            )

    def _known_scores(self, prompt: Prompt) -> Sequence[float]:
        """Returns the scores of a prompt's references. Raises ValueError for such as this reward cannot give."""
        given = prompt.target["reference_scores"]
        values = list(given) if isinstance(given, list | tuple) else [given]
        low, high = self.reward.range
        if not values or not all(is_number(value) and low <= value <= high for value in values):
            raise ValueError(
                f"target.reference_scores must be a number or a list of numbers from {low:g} to {high:g}, the range of "
                f"the inner reward, got {given!r} for {prompt.text!r}"
            )
        return [float(value) for value in values]


def _texts(prompt: Prompt) -> list[str]:
    """Returns the reference answers of a prompt. Raises ValueError where they are no texts."""
    given = prompt.target["reference_answers"]
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"target.reference_answers must be a text or a list of texts, got {given!r} for {prompt.text!r}"
        )
    return list(texts)


def _sigmoid(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).sigmoid()) if math.isfinite(value) else float(value > 0)
