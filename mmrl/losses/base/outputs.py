"""The base of losses through the sampler: the reward of samples rendered again with a gradient to the weights.

Maths: docs/maths/reward-gradients.md
"""

from collections.abc import Iterable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, OutputsByWeights, Scope
from mmrl.core.data import Rollout, WeightsName
from mmrl.core.forward_outputs import RenderedOutputs
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import normalised_weights


class OutputsLoss:
    """The base of losses on outputs; a loss adds its views and its formula of the rewards."""

    kind: ClassVar[Literal["decisions", "denoising", "outputs"]] = "outputs"
    scope: ClassVar[Scope] = "decision"

    @property
    def needs(self) -> frozenset[WeightsName]:
        return frozenset()

    def old_decay(self, iteration: int) -> float | None:
        """Returns None: such a loss compares with no old weights."""
        return None

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        """Returns equal coefficients [B, K] for all renderings, and their sum."""
        return normalised_weights(batch.weight, batch.group, "decision")

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the rewards [B, K] with their gradient."""
        rendered: RenderedOutputs = forward_outputs.trained
        assert forward_outputs.score is not None, "the core hands the rewards to losses on outputs"
        return (rendered.spread(forward_outputs.score(rendered.outputs, rendered.sample)),)


def ends(name: str, value: int | tuple[int, int]) -> tuple[int, int]:
    """Returns the smallest and the largest number of a setting that is a number or a range with both ends included.

    Raises ValueError where the ends of a range do not ascend.
    """
    low, high = (value, value) if isinstance(value, int) else value
    if low > high:
        raise ValueError(f"{name} must be one whole number or two ascending ones, got {value}")
    return low, high


def sampled_rows(rollout: Rollout, rows: Tensor, span: tuple[int, int], key: GroupKey) -> Iterable[tuple[int, Tensor]]:
    """Yields each number that was sampled, in ascending order, with its rows.

    Each prompt index has one number, uniform from `span` (both ends included), which depends on the step's key and the
    prompt index alone: neither on the processes nor on the other prompts.
    """
    low, high = span
    prompt_indices = rollout.prompt_index[rows]
    chosen = torch.tensor([low + key.seed_for("steps", index) % (high - low + 1) for index in prompt_indices.tolist()])
    return [(int(number), rows[chosen == number]) for number in chosen.unique()]
