"""The proof that a driven pipeline is the stock pipeline: images, batches, gradients, log-probs, calls."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.core.keys import normal
from mmrl.core.weights import Weights

from .pipeline import DrivenPipeline
from .probing import difference
from .stock import stock_run

_log = logging.getLogger(__name__)
_PIXELS = 1e-3  # of pixels in [0, 1], against the stock pipeline in float32
_SEED = 5  # of the noise of batches
_LONGER = " and a second sentence that makes this prompt longer than the first"


@dataclass(frozen=True)
class Proof:
    """How far a driven pipeline is from the stock pipeline, and a batch from its samples alone."""

    stock_difference: float  # of pixels in [0, 1], the largest, the worse of guidance off and on
    batch_difference: float  # relative to the largest value: prompts of different lengths in one go
    gradient_difference: float | None  # the same of the weights' gradient; None: not taken
    log_prob_difference: float  # of the values that log-probs are made of: recorded against recomputed
    calls: int  # network calls for the batch, of any size

    def numbers(self) -> dict[str, float | str]:
        """Returns what was measured, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def prove(
    driven: DrivenPipeline,
    weights: Weights,
    prompt: Prompt,
    scales: Sequence[float],
    num_steps: int = 4,
    *,
    with_gradient: bool = True,
) -> Proof:
    """Returns the proof for a prompt, at guidance scales in the sense of plans (1: off).

    Args:
        driven: a pipeline, prepared. weights: those that are trained. num_steps: of the stock run.
    """
    driver = driven.driver
    pair = [prompt, replace(prompt, text=prompt.text + _LONGER)]
    numbers = [driven.numbers([pair[n]])[0] for n in (0, 1, 1, 0)]
    stock = max(stock_difference(driven, prompt, scale, num_steps) for scale in scales)
    states = normal(_SEED, (4, *driver.latent_shape)).to(driver.time_of(1.0).device)
    levels = driven.levels.grid("pipeline", num_steps)
    sigma = torch.tensor([levels[0], levels[0], levels[1], levels[0]])
    batch, gradient, replayed, calls = 0.0, 0.0, 0.0, 0
    for scale in scales:

        def at_once(rows: Sequence[int], scale: float = scale) -> Tensor:
            at = list(rows)
            return driven.guided_by(states[at], sigma[at], [numbers[n] for n in at], scale)

        with torch.no_grad():
            before = driver.num_network_calls
            whole = at_once(range(4))
            calls = max(calls, driver.num_network_calls - before)
            replayed = max(replayed, float((at_once(range(4)) - whole).abs().max()))
            alone = torch.cat([at_once([n]) for n in range(4)])
        batch = max(batch, difference(whole, alone))
        if not with_gradient:
            continue
        weight = normal(_SEED + 1, tuple(states.shape)).to(states.device)
        one = _gradient(weights, at_once, weight, [range(4)])
        gradient = max(gradient, difference(one, _gradient(weights, at_once, weight, [[n] for n in range(4)])))
    return Proof(stock, batch, gradient if with_gradient else None, replayed, calls)


def stock_difference(driven: DrivenPipeline, prompt: Prompt, scale: float, num_steps: int) -> float:
    """Returns the largest difference of pixels in [0, 1] between steps of our own loop and the stock run."""
    driver = driven.driver
    with driven.driving(), driven.remembered.encoders_on_device():
        pipeline, arguments = driven.stock_call(prompt, scale, num_steps)
        wanted, first = stock_run(pipeline, arguments)
    with torch.no_grad():
        levels, number = driven.levels.grid("pipeline", num_steps), driven.numbers([prompt])[0]
        state = driver.joined(first).float()
        state = driven.from_stock(state, torch.full((len(state),), levels[0], device=state.device))
        for sigma, following in pairwise(levels):
            at = torch.full((len(state),), sigma)
            velocity = driven.guided_by(state, at, [number] * len(state), scale)
            # as diffusers steps, whose levels are float32
            step = torch.tensor(following, device=state.device) - torch.tensor(sigma, device=state.device)
            state = state + step * velocity
        state = driven.final(state, torch.full((len(state),), levels[-1], device=state.device))
        with driven.driving():
            got = driver.decode(state, [number] * len(state))
    if got.shape != wanted.shape:
        return float("inf")
    return float((got - wanted.to(got.device)).abs().max())


def prove_once(driven: DrivenPipeline, prompt: Prompt, scale: float) -> None:
    """Compares two steps with the stock pipeline's, once for each guidance scale. Raises ConfigError."""
    placement = driven.placement
    if scale in driven.proven or placement.maximum is not None:  # the stock run is in lockstep with nobody
        return
    found = stock_difference(driven, prompt, scale, 2)
    _log.info("guidance_scale %g: pixels differ from the stock pipeline's by up to %.1e", scale, found)
    # in half precision the stock pipeline rounds its states and timesteps, which are float32 here
    if placement.dtype == torch.float32:
        refuse_difference(found, scale, _PIXELS)
    driven.proven.add(scale)


def refuse_difference(found: float, scale: float, tolerance: float) -> None:
    """Raises ConfigError for a `stock_difference` above the tolerance, with the numbers."""
    if not found <= tolerance:
        raise ConfigError(
            f"images with guidance_scale {scale:g} differ from those of the stock pipeline by {found:.1e} of a pixel "
            f"in [0, 1], at most {tolerance:.0e} is allowed; guidance may depend on the number of the step"
        )


def _gradient(
    weights: Weights, outputs: Callable[[Sequence[int]], Tensor], weight: Tensor, parts: Sequence[Sequence[int]]
) -> Tensor:
    """Returns the gradient of (outputs * weight).sum() with respect to all trained weights, as one vector.

    `parts`: rows that are evaluated together.
    """
    trained = list(weights.parameters.values())
    total = [torch.zeros_like(parameter) for parameter in trained]
    for rows in parts:
        with torch.enable_grad():
            loss = (outputs(rows) * weight[list(rows)]).sum()
            found = torch.autograd.grad(loss, trained, allow_unused=True)
        total = [t if g is None else t + g for t, g in zip(total, found, strict=True)]
    return torch.cat([t.flatten() for t in total])
