"""Diffusion of constant variance seen as a flow: noise levels, the network's timesteps, and its three predictions.

A latent y = alpha clean + s noise with alpha^2 + s^2 = 1, divided by alpha + s, is x = (1 - sigma) clean + sigma noise
with sigma = s / (alpha + s); backwards, alpha + s = 1 / sqrt((1 - sigma)^2 + sigma^2). A step that predicts both ends
and mixes them anew is the same in both scales, so samplers and losses of flows serve here as they are.

Maths: docs/maths/flow-matching.md#diffusion-models-as-flows
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

PREDICTIONS = ("epsilon", "v_prediction", "sample")


def constant_variance(latents: Tensor, sigma: Tensor) -> Tensor:
    """Returns y of a flow's latents x [n, ...] at sigma [n], in float32."""
    return latents.float() / _column(_shrinking(sigma), latents)


def flow_scale(latents: Tensor, sigma: Tensor) -> Tensor:
    """Returns x of latents of constant variance y [n, ...] at sigma [n], in float32: the inverse."""
    return latents.float() * _column(_shrinking(sigma), latents)


@dataclass(frozen=True)
class NoiseSchedule:
    """The T noise levels at which a network was trained, and the kind of its prediction, one of `PREDICTIONS`."""

    levels: Tensor  # [T] float64 sigma of the timesteps 0 to T - 1, rising
    prediction: str

    @classmethod
    def of(cls, scheduler: Any) -> Self:
        """Reads the schedule of a scheduler of diffusers. Raises ConfigError for one whose steps no flow can follow."""
        from diffusers import DDIMScheduler

        config = scheduler.config
        prediction = config.get("prediction_type", "epsilon")
        if prediction not in PREDICTIONS:
            raise ConfigError(f"the network predicts {prediction!r}; supported are {', '.join(PREDICTIONS)}")
        if config.get("clip_sample") or config.get("thresholding"):
            raise ConfigError("the scheduler clips the clean latents; set clip_sample and thresholding to false in it")
        # of the clean latent in the variance; CogVideoX's schedulers shift it, which DDIM does not know
        own = scheduler if "snr_shift_scale" in config else DDIMScheduler.from_config(config)
        share = own.alphas_cumprod.double()
        alpha, s = share.sqrt(), (1 - share).sqrt()
        if prediction == "epsilon" and alpha[-1] == 0:
            raise ConfigError("noise predicted from pure noise says nothing; rescale_betas_zero_snr needs v_prediction")
        return cls(s / (alpha + s), prediction)

    def timestep(self, sigma: Tensor) -> Tensor:
        """Returns the timesteps [n] int64 whose levels are nearest to sigma [n]: the network takes integers only."""
        between = (self.levels[1:] + self.levels[:-1]) / 2
        return torch.bucketize(sigma, between.to(sigma))

    def nearest(self, sigma: Tensor) -> Tensor:
        """Returns the levels [n] of the network's training that are nearest to sigma [n]."""
        return self.levels.to(sigma)[self.timestep(sigma)]

    def velocity(self, predicted: Tensor, latents: Tensor, sigma: Tensor) -> Tensor:
        """Returns noise - clean [n, ...] from the network's prediction, for a flow's latents x [n, ...] at sigma [n].

        v_prediction is alpha noise - s clean (Salimans and Ho 2022, arXiv 2202.00512, section 4). With `epsilon`
        the other end is clean = (x - sigma noise) / (1 - sigma), with `sample` noise = (x - (1 - sigma) clean) / sigma.
        """
        level = _column(sigma, latents)
        if self.prediction == "epsilon":
            return (predicted - latents) / (1 - level)
        if self.prediction == "sample":
            return (latents - predicted) / level
        squares = (1 - level).square() + level.square()
        return ((2 * level - 1) * latents + squares.sqrt() * predicted) / squares


def last_level(scheduler: Any, num_steps: int) -> float:
    """Returns the sigma at which a scheduler of diffusers ends: 0, or that of its first timestep."""
    from diffusers import DDIMScheduler

    own = type(scheduler).from_config(scheduler.config)
    if hasattr(own, "sigmas"):  # s / alpha, as Euler's and the solvers' count
        own.set_timesteps(num_steps)
        end = float(own.sigmas[-1])
        return end / (1 + end)
    return level_of_share(float(DDIMScheduler.from_config(scheduler.config).final_alpha_cumprod))


def level_of_share(share: float) -> float:
    """Returns the sigma at which the clean latent has this share of the variance."""
    return float((1 - share) ** 0.5 / (share**0.5 + (1 - share) ** 0.5))


def _shrinking(sigma: Tensor) -> Tensor:
    """Returns 1 / (alpha + s)."""
    return ((1 - sigma).square() + sigma.square()).sqrt()


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))
