"""A small network on latents that learns to say what another reward would: a gradient for rewards that have none."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Scores
from mmrl.core.declarations import RewardDeclaration

from ..base.fitted import FittedWrapper
from ..base.hashed_words import hashed_words
from ..base.networks.latent_network import LatentNetwork
from ..base.wrapper import check_judges_samples

LONGEST = 4  # dimensions of latents, at most


@dataclass
class LatentSurrogate(FittedWrapper):
    """The score that a network, fitted in the run, predicts from a sample's latents and its prompt's words.

    Ding et al. 2024, "DOLLAR", arXiv 2412.15689: a latent reward model, fitted by the squared error to (latents, score)
    pairs of any reward while the policy is trained. Its gradient goes to the latents, past the decoder and whatever
    judges the pixels, so the reward may be a program, a judge or a server, and nothing is decoded with a graph. With
    losses without such gradients it saves calls of a slow reward (`every`).

    Before it is ready (`warm_up`) the reward's own scores count; of a loss on gradients nothing does: they are 0. The
    network is ours: convolutions on the latents and their coordinates, scaled and shifted by the hashed words of the
    prompt (Perez et al. 2017, FiLM, arXiv 1709.07871). Scores are standardised by those that it remembers.

    Latents are those of the network: [C, H, W], [C, F, H, W], or tokens in a row [L, C]. Raises ConfigError for samples
    of several sizes, and ValueError where the inner reward does not judge samples.
    """

    channels: Annotated[int, Field(ge=1)] = 32  # of the convolutions
    words: Annotated[int, Field(ge=1)] = 256  # places of hashed words
    _shape: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)  # of the latents of a sample

    source: ClassVar[str] = "Ding et al. 2024 (DOLLAR), arXiv 2412.15689"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"latents"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judges_samples(self.reward)
        self.override(needs=type(self).needs | self.needs_of_inner())

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of all fitted rewards; gradients need the latents alone."""
        return replace(super().declaration, needs_of_gradient=frozenset({"latents"}))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; with a gradient to the latents where they require one."""
        latents = batch.outputs.latents
        assert latents is not None, "scoring checks needs"
        if not latents.requires_grad:
            return super().score(batch)
        return self.predicted(self.features_of(batch)) if self.is_ready else 0 * latents.float().flatten(1).sum(1)

    def score_with_examples(self, batch: RewardBatch) -> tuple[Tensor, Tensor]:
        """Returns the scores [B], and shape, latents, words and score of each sample where the reward was asked."""
        scores, examples = super().score_with_examples(batch)
        if not examples.shape[1]:
            return scores, examples
        shape = torch.tensor([*self._shape, *[0] * (LONGEST - len(self._shape))])  # for a process without samples
        return scores, torch.cat([shape.expand(len(examples), -1), examples], 1)

    def features_of(self, batch: RewardBatch) -> Tensor:
        """Returns latents and words [B, D]. Raises ConfigError for latents of another shape than those before."""
        assert batch.outputs.latents is not None, "scoring checks needs"
        latents = batch.outputs.latents.float()
        self._use(tuple(latents.shape[1:]))
        words = hashed_words([prompt.text for prompt in batch.prompts], self.words)
        return torch.cat([latents.flatten(1), words.to(latents.device)], 1)

    def _use(self, shape: tuple[int, ...]) -> None:
        if self._shape and self._shape != shape:
            raise ConfigError(f"latent_surrogate learns from latents of one size, got {shape} after {self._shape}")
        self._shape = shape

    def examples_of(self, scores: Scores) -> Tensor:
        """Returns latents, words and score [n, D] of an iteration's samples.

        Raises ConfigError where the latents of other processes have another shape.
        """
        for row in {tuple(row) for row in scores.examples[scores.names[0]][:, :LONGEST].tolist()}:
            if row and not math.isnan(row[0]):
                self._use(tuple(int(length) for length in row if length))
        return super().examples_of(scores)[:, LONGEST:]

    def in_units(self, values: Tensor) -> Tensor:
        """Returns the scores of standardised values [B]."""
        mean, std = self._scale
        return values * std + mean

    def make_network(self, width: int) -> nn.Module:
        """Makes the network of latents and words."""
        return LatentNetwork(self._shape, self.channels, self.words)

    def fit_loss(self, network: nn.Module, examples: Tensor) -> Tensor:
        """Returns the mean squared error of examples [n, D + 1], in variances of the scores that are remembered."""
        mean, std = self._scale
        values: Tensor = network(examples[:, :-1])
        return (values - (examples[:, -1] - mean) / std).square().mean()

    @property
    def _scale(self) -> tuple[float, float]:
        """The mean and the standard deviation of the scores that are remembered."""
        if self._examples is None:
            return 0.0, 1.0
        given = self._examples[:, -1].double()
        return float(given.mean()), max(float(given.std(correction=0)), 1e-6)

    def state_dict(self) -> dict[str, Any]:
        """Returns what was learned, and the states of inner rewards."""
        return super().state_dict() | {"shape": list(self._shape)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what was learned, and the states of inner rewards."""
        self._shape = tuple(state["shape"])
        super().load_state_dict(state)
