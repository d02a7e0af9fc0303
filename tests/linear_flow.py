"""A flow whose velocity is linear in the latents, a weight and a shift for each step: everything has a closed form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from mmrl.core.contracts import Granularity, Placement, RewardBatch
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.weights import Weights
from mmrl.modalities.flow.decisions import Conditioning
from mmrl.modalities.flow.policy import FlowPolicy
from mmrl.plans.flow import Plan


class Linear(nn.Module):
    """v(x, sigma) = x M_k^T + b_k + c_prompt at the k-th of the levels 1, 1 - 1/T ...; the prompt's part is fixed."""

    def __init__(self, num_steps: int, size: int) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.matrix = nn.Parameter(torch.zeros(num_steps, size, size))
        self.shift = nn.Parameter(torch.zeros(num_steps, size))

    def forward(self, latents: Tensor, sigma: Tensor, told: Tensor) -> Tensor:
        step = ((1 - sigma) * self.num_steps).round().long()
        return torch.einsum("nij,nj->ni", self.matrix[step], latents) + self.shift[step] + told[:, None]


@dataclass(kw_only=True)
class LinearFlow(FlowPolicy):
    """Latents [n, size] that are their own media; the prompt's text is a number, which shifts the velocity."""

    num_steps: int = 4
    size: int = 2
    network: Linear = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.network = Linear(self.num_steps, self.size)
        self._weights = Weights(dict(self.network.named_parameters()))

    def prepare(self, placement: Placement) -> None: ...
    def tiny(self, seed: int, folder: Path) -> Self:
        return self

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.size,)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def weights(self) -> Weights:
        return self._weights

    def modules(self) -> Mapping[str, nn.Module]:
        return {"network": self.network}

    def sigmas(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        return [1 - step / num_steps for step in range(num_steps + 1)]

    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        found: Tensor = self.network(latents.float(), sigma, conditioning.tensors[0])
        return found

    def encode_prompts(self, texts: list[str]) -> Conditioning:
        return Conditioning((torch.tensor([float(text or 0) for text in texts]),))

    def decode_latents(self, latents: Tensor) -> Tensor:
        return latents.float()

    def encode_images(self, images: Tensor) -> Tensor:
        return images

    def export(self, folder: Path) -> None: ...


def random_flow(seed: int = 0, **settings: object) -> LinearFlow:
    """Far from any closed form's special cases; keeps trajectories and a reference."""
    policy = LinearFlow(**settings)  # type: ignore[arg-type]
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=source))
    policy.records_trajectories = True
    policy.weights.keep("reference")
    return policy


def sample_rollout(policy: LinearFlow, plan: Plan, texts: tuple[str, ...] = ("0.3", "-0.7")) -> Rollout:
    """One group for each text, all by one plan."""
    keys = [GroupKey(5, 0, draw) for draw in range(len(texts))]
    return policy.rollout([Prompt(text) for text in texts], [plan] * len(texts), keys)


@dataclass(frozen=True)
class Smooth:
    """A score that is no polynomial of the media: sum of sin(x) + x^2 / 4 * prompt."""

    source: ClassVar[str] = "here"
    range: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"images"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        assert batch.outputs.images is not None
        told = torch.tensor([float(prompt.text) for prompt in batch.prompts])
        return smooth(batch.outputs.images, told)


def smooth(media: Tensor, told: Tensor) -> Tensor:
    return media.sin().sum(1) + told * media.square().sum(1) / 4
