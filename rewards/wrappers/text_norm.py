"""How much better an output fits its own prompt than prompts that differ a little."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.reward_batches import select

from ..base.wrapper import RewardWrapper, check_judges_samples


@dataclass(frozen=True)
class TextNorm(RewardWrapper):
    """exp(r(x, y) / temperature) / sum of exp(r(x, y') / temperature) over y and the texts of `target.contrasts`.

    Kim et al. 2024, "Confidence-aware Reward Optimization for Fine-tuning Text-to-Image Models", arXiv 2404.01863,
    equation 2: an image that pleases the judge whatever the prompt gains nothing. Contrasts are prompts that mean
    something else ("two red cats" for "three red cats"), each different from the prompt; the more there are, the
    harder. An ensemble of such rewards with their disagreement taken off is `uncertainty_weighted`.

    Raises ValueError for a temperature that is not above 0, or a reward that does not judge samples.
    """

    reward: Reward
    temperature: float = 1.0  # above 0; smaller: nearer to "the best fit takes all"

    source: ClassVar[str] = "Kim et al. 2024 (TextNorm), arXiv 2404.01863"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"target.contrasts"})  # beside those of the reward held
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        check_judges_samples(self.reward)
        self.inherit(self.reward, range=(0.0, 1.0))

    def check(self, prompt: Prompt) -> None:
        _contrasts(prompt)
        super().check(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for contrasts that are none, and what the reward held raises."""
        asked = [(row, text) for row, prompt in enumerate(batch.prompts) for text in (prompt.text, *_contrasts(prompt))]
        rows = torch.tensor([row for row, _ in asked])
        chosen = select(batch, rows)
        prompts = tuple(replace(batch.prompts[row], text=text) for row, text in asked)
        size = self.reward.batch_size or len(asked)
        whole = replace(chosen, prompts=prompts)
        parts = torch.arange(len(asked)).split(size)
        values = torch.cat([self.reward.score(select(whole, part)) for part in parts]) / self.temperature  # [n]
        mine = values.split(torch.bincount(rows, minlength=len(batch)).tolist())
        return torch.stack([own.softmax(0)[0] for own in mine])


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
