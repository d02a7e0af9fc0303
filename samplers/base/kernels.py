"""The transition of one step: the two kernel families of the published flow samplers, and their noise schedules.

Notation: x = (1 - sigma) * clean + sigma * noise, sigma in [0, 1]; v = E[noise - clean | x]; h = sigma - sigma_next.
All numbers are Python floats, double precision.

Maths: docs/maths/sde-sampling.md#euler-maruyama-kernel
"""

import math

from mmrl.core.contracts import ConfigError
from mmrl.plans.flow import Transition


def ode(sigma: float, sigma_next: float) -> Transition:
    """Returns the deterministic Euler step x' = x - h v: both families without noise."""
    return Transition(state=1.0, velocity=sigma_next - sigma, std=0.0)


def euler_maruyama(sigma: float, sigma_next: float, diffusion: float) -> Transition:
    """Returns the Euler-Maruyama step of the SDE with diffusion g that keeps the flow's marginals.

    Flow-GRPO (Liu et al. 2025, arXiv 2505.05470, eq. 9); with e = x + (1 - sigma) v the predicted noise,
    x' = x - h v - g^2 h / (2 sigma) e + g sqrt(h) z.

    Args:
        sigma: in (0, 1]. sigma_next: in [0, sigma). diffusion: g >= 0 at sigma.
    Raises:
        ConfigError: where g^2 h / (2 sigma) > 2, so that the step would flip *and* enlarge the latents. Between 1 and
            2 the step flips them, which published recipes do at the first step (noise level 1.5).
    """
    h = sigma - sigma_next
    pull = diffusion**2 * h / (2 * sigma)  # share of the predicted noise that is replaced by fresh noise
    if pull > 2:
        raise ConfigError(
            f"too much noise for the step from sigma {sigma:.6g} to {sigma_next:.6g}: it would multiply the latents by "
            f"{1 - pull:.3g} (allowed: -1 to 1); lower the noise level or leave the step out of the window"
        )
    return Transition(state=1 - pull, velocity=-h - pull * (1 - sigma), std=diffusion * math.sqrt(h))


def bridge(sigma: float, sigma_next: float, correlation: float) -> Transition:
    """Returns the step that predicts both ends of the path and keeps the share r of the predicted noise.

    r = 1 is the ODE, r = 0 adds fresh noise to the predicted clean latents.

    x' = (1 - sigma') (x - sigma v) + sigma' (r (x + (1 - sigma) v) + sqrt(1 - r^2) z), with sigma' = sigma_next.
    The noise adds up to sigma' for every r (DDIM, Song et al. 2021, arXiv 2010.02502, eq. 12).

    Args:
        sigma: in (0, 1]. sigma_next: in [0, sigma). correlation: r in [0, 1].
    """
    kept = sigma_next * correlation
    return Transition(
        state=1 - sigma_next + kept,
        velocity=kept * (1 - sigma) - sigma * (1 - sigma_next),
        std=sigma_next * math.sqrt((1 - correlation) * (1 + correlation)),
    )


def flow_sde_diffusion(sigma: float, sigma_1: float, noise_level: float) -> float:
    """Returns Flow-GRPO's g = noise_level * sqrt(sigma / (1 - sigma)) (arXiv 2505.05470, section 4.2).

    g is infinite at sigma = 1, so 1 - sigma is kept at 1 - sigma_1 or more, where `sigma_1` < 1 is the grid's second
    level: the first std is then `noise_level` on every grid that starts at 1, and at most that on other grids.
    """
    return noise_level * math.sqrt(sigma / (1 - min(sigma, sigma_1)))


def cps_correlation(noise_level: float) -> float:
    """Returns the correlation of Flow-CPS, r = cos(noise_level * pi / 2), noise_level in [0, 1].

    Wang and Yu 2025, arXiv 2509.05952.
    """
    return math.cos(noise_level * math.pi / 2)


def ddim_correlation(sigma: float, sigma_next: float, eta: float) -> float:
    """Returns the correlation r of DDIM: 1 - r^2 = eta^2 (1 - R^2), eta in [0, 1]; eta = 1 is ancestral sampling.

    arXiv 2010.02502, eq. 16.
    """
    return math.sqrt(1 - eta**2 * (1 - noise_decay(sigma, sigma_next) ** 2))


def precise_correlation(sigma: float, sigma_next: float, noise_level: float) -> float:
    """Returns the correlation of Precise, r = R^(noise_level^2 / 2): the exact integral of Flow-GRPO's SDE.

    arXiv 2605.23522.
    """
    return float(noise_decay(sigma, sigma_next) ** (noise_level**2 / 2))


def noise_decay(sigma: float, sigma_next: float) -> float:
    """Returns R = sigma' (1 - sigma) / (sigma (1 - sigma')): exp of minus the step in log-SNR / 2, 0 at pure noise."""
    return sigma_next * (1 - sigma) / (sigma * (1 - sigma_next))
