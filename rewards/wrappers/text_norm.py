"""The fit of an output to its own prompt, compared with prompts that differ a little."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.reward_batches import select

from ..base.wrapper import RewardWrapper, check_judges_outputs_alone, check_judges_samples


@dataclass(frozen=True)
class TextNorm(RewardWrapper):
    """The share of the prompt among contrasts: exp(r(x, y) / T) / sum over y' of exp(r(x, y') / T).

    y is the prompt, y' also runs over the texts of `target.contrasts`, and T is the `temperature`. Kim et al. 2024,
    "Confidence-aware Reward Optimization for Fine-tuning Text-to-Image Models", arXiv 2404.01863, equation 2: an image
    that pleases the judge whatever the prompt gains nothing. Contrasts are prompts of another meaning ("two red cats"
    for "three red cats"), each different from the prompt; the more there are, the harder. An ensemble of such rewards
    with their disagreement taken off is `uncertainty_weighted`.

    Raises ValueError for a reward that does not judge samples.
    """

    reward: Reward  # a reward of outputs and prompts
    temperature: Annotated[float, Field(gt=0)] = 1.0  # smaller: nearer to "the best fit takes all"

    source: ClassVar[str] = "Kim et al. 2024 (TextNorm), arXiv 2404.01863"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    needs: ClassVar[frozenset[str]] = frozenset({"target.contrasts"})  # beside those of the inner reward

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judges_samples(self.reward)
        check_judges_outputs_alone(self.reward)
        self.inherit(self.reward, range=(0.0, 1.0))

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for contrasts that are none, or where the inner reward refuses the prompt."""
        _contrasts(prompt)
        super().check(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for contrasts that are none, and what the inner reward raises.
        """
        judged = [
            (row, text) for row, prompt in enumerate(batch.prompts) for text in (prompt.text, *_contrasts(prompt))
        ]
        rows = torch.tensor([row for row, _ in judged])
        chosen = select(batch, rows)
        prompts = tuple(replace(batch.prompts[row], text=text) for row, text in judged)
        size = self.reward.batch_size or len(judged)
        whole = replace(chosen, prompts=prompts)
        parts = torch.arange(len(judged)).split(size)
        values = torch.cat([self.reward.score(select(whole, part)) for part in parts]) / self.temperature  # [n]
        by_sample = values.split(torch.bincount(rows, minlength=len(batch)).tolist())
        return torch.stack([own.softmax(0)[0] for own in by_sample])


def _contrasts(prompt: Prompt) -> list[str]:
    texts = prompt.target.get("contrasts")
    is_texts = (
        isinstance(texts, list | tuple) and len(texts) > 0 and all(isinstance(t, str) and t.strip() for t in texts)
    )
    if texts is None or not is_texts or prompt.text in texts:
        raise ValueError(
            f"target.contrasts must be a list of texts that differ from the prompt, got {texts!r} for {prompt.text!r}"
        )
    return list(texts)
