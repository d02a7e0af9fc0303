"""Views: what a forward pass evaluates.

A view is made once per optimizer step and handed to every pass of that step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from mmrl.core.data import Rollout


class View(Protocol):
    """A value that says what to evaluate of a rollout. It can be cut into micro-batches of network calls."""

    @property
    def num_calls(self) -> int:
        """The number of network calls that evaluate the view, in batch elements."""
        ...

    def split(self, size: int) -> "Sequence[View]":
        """Returns parts of at most `size` network calls each, and of one entry at least."""
        ...

    def weight(self, rollout: Rollout) -> Tensor:
        """Returns what each entry counts in the loss, [B, K]; 0 for entries that are not part of this view."""
        ...

    def weight_among(self, rollout: Rollout, takes_part: Tensor) -> Tensor:
        """Returns what each entry counts, [B, K]; 0 also where `takes_part` ([B, 1] or [B, K]) is not above 0."""
        ...

    def among(self, rollout: Rollout, takes_part: Tensor) -> "View":
        """Returns the view without network calls that no entry with a `takes_part` above 0 needs."""
        ...


@dataclass(frozen=True)
class DecisionView:
    """The view of the decisions after some network calls, for their log-probs."""

    calls: Tensor  # [n] int64, unique numbers of network calls
    block: int = 0  # index into `Rollout.blocks`

    @property
    def num_calls(self) -> int:
        return len(self.calls)

    def split(self, size: int) -> "list[DecisionView]":
        return [replace(self, calls=part) for part in self.calls.split(size)] if len(self.calls) else []

    def weight(self, rollout: Rollout) -> Tensor:
        block = rollout.blocks[self.block]
        return block.weight * torch.isin(block.call, self.calls)

    def weight_among(self, rollout: Rollout, takes_part: Tensor) -> Tensor:
        """Returns [B, K]: a decision that m samples share and take part in counts 1 / m in each of them."""
        block = rollout.blocks[self.block]
        return block.weight_among(takes_part) * torch.isin(block.call, self.calls)

    def among(self, rollout: Rollout, takes_part: Tensor) -> "DecisionView":
        """Returns the view without calls whose decisions no sample takes part in."""
        block = rollout.blocks[self.block]
        needed = block.call[block.weight_among(takes_part) > 0]
        return replace(self, calls=self.calls[torch.isin(self.calls, needed)])


@dataclass(frozen=True)
class DenoisingView:
    """The view of the network's predictions on the samples' own outputs, noised again: N pairs of sigma and noise."""

    sample: Tensor  # [N] int64: the sample of each entry
    noise_sample: Tensor  # [N] int64 in [0, num_noise_samples): number of the pair of that sample; the column in [B, K]
    sigma: Tensor  # [N] float32 noise level in (0, 1)
    noise_seed: tuple[int, ...]  # N seeds; samples that share a seed share the noise
    num_noise_samples: int  # K

    def __post_init__(self) -> None:
        sizes = {len(self.sample), len(self.noise_sample), len(self.sigma), len(self.noise_seed)}
        if len(sizes) != 1:
            raise ValueError(f"the fields of a DenoisingView must be equally long, got lengths {sorted(sizes)}")

    @property
    def num_calls(self) -> int:
        return len(self.sample)

    def split(self, size: int) -> "list[DenoisingView]":
        return [
            replace(
                self,
                sample=self.sample[start : start + size],
                noise_sample=self.noise_sample[start : start + size],
                sigma=self.sigma[start : start + size],
                noise_seed=self.noise_seed[start : start + size],
            )
            for start in range(0, len(self.sample), size)
        ]

    def weight(self, rollout: Rollout) -> Tensor:
        """Returns 1 for the entries of the view, [B, K], else 0."""
        weight = torch.zeros(rollout.num_samples, self.num_noise_samples)
        weight[self.sample, self.noise_sample] = 1.0
        return weight

    def weight_among(self, rollout: Rollout, takes_part: Tensor) -> Tensor:
        return self.weight(rollout) * (takes_part > 0)

    def among(self, rollout: Rollout, takes_part: Tensor) -> Self:
        return self  # made of the samples that take part


@dataclass(frozen=True)
class OutputsView:
    """The view of N rendered media with a gradient through `num_steps` steps of their sampling.

    These are the steps before the last `left_out` steps. Where steps are left out, the media are those of the clean
    latents that the last prediction implies. With a `noise_seed` for each entry, the last step begins at the sample's
    own clean latents, noised anew to the level of that step, and not at the latents that sampling passed through.
    """

    sample: Tensor  # [N] int64: the sample of each entry
    num_steps: int  # sampling steps with a gradient, at least 1
    left_out: int = 0  # last sampling steps that are not made
    # [N] int64 in [0, num_noise_samples): number of the noise of that sample, the column in [B, K]; None: all 0
    noise_sample: Tensor | None = None
    num_noise_samples: int = 1  # K
    noise_seed: tuple[int, ...] = ()  # N seeds, or none

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.left_out < 0:
            raise ValueError(
                f"a view of outputs needs num_steps of at least 1 and left_out of at least 0, got num_steps "
                f"{self.num_steps} and left_out {self.left_out}"
            )
        if self.noise_seed and (len(self.noise_seed) != len(self.sample) or (self.num_steps, self.left_out) != (1, 0)):
            raise ValueError(
                "entries noised anew need one seed each and take the last step alone, got "
                f"{len(self.noise_seed)} seeds for {len(self.sample)} entries, num_steps {self.num_steps} and left_out "
                f"{self.left_out}"
            )

    @property
    def column(self) -> Tensor:
        """[N] int64: the column of each entry in [B, K]."""
        return torch.zeros_like(self.sample) if self.noise_sample is None else self.noise_sample

    @property
    def num_calls(self) -> int:
        """The number of network calls, at most: entries that share states may need fewer."""
        return len(self.sample) * self.num_steps

    def split(self, size: int) -> "list[OutputsView]":
        per_part = max(1, size // self.num_steps)
        return [
            replace(
                self,
                sample=self.sample[start : start + per_part],
                noise_sample=self.column[start : start + per_part],
                noise_seed=self.noise_seed[start : start + per_part],
            )
            for start in range(0, len(self.sample), per_part)
        ]

    def weight(self, rollout: Rollout) -> Tensor:
        """Returns 1 for the entries of the view, [B, K], else 0."""
        weight = torch.zeros(rollout.num_samples, self.num_noise_samples)
        weight[self.sample, self.column] = 1.0
        return weight

    def weight_among(self, rollout: Rollout, takes_part: Tensor) -> Tensor:
        """Returns [B, K]: 1 for the entries of samples that take part in at least one decision."""
        return self.weight(rollout) * (takes_part > 0).any(1, keepdim=True)

    def among(self, rollout: Rollout, takes_part: Tensor) -> Self:
        return self  # made of the samples that take part
