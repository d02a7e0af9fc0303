"""The noise levels of a pipeline's grids as those of a flow, and the timestep of each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

from ..variance_preserving import level_of_share
from .scales import ConstantVariance, Scale
from .timesteps import Timesteps

_FEW_STEPS = 4  # of a grid that is read to see what timesteps are
_TIMES = 1e-4  # of the largest timestep: how far a timestep may be from a level times a constant

# From a number of steps, and `sigmas` for the call, to the levels and the timesteps of the pipeline's own loop.
Read = Callable[[int, list[float] | None], tuple[Tensor | None, Tensor]]


@dataclass
class NoiseLevels:
    """The noise levels of one pipeline, at one size of samples."""

    scheduler: Any
    scale: Scale
    device: torch.device
    setting: str  # that names the model, for errors
    read: Read
    takes_sigmas: bool  # the pipeline's call does
    _timesteps: Timesteps | None = field(default=None, init=False)  # None: levels times a constant

    def learn_timesteps(self) -> None:
        """Finds out whether the timesteps are the noise levels times a constant, and if not, which they are."""
        levels, times = self._of_steps(_FEW_STEPS)
        if levels is None:
            return
        wanted = torch.stack([self.time_of(float(level)) for level in levels[: len(times)]])
        num_times: int = self.scheduler.config.num_train_timesteps
        if float((wanted - times).abs().max()) > _TIMES * num_times:
            levels, times = self.read(num_times - 1, None)
            assert levels is not None, "it had levels before"
            self._timesteps = Timesteps.of(levels, times)

    def time_of(self, sigma: float) -> Tensor:
        """Returns the scheduler's timestep of a noise level of the pipeline."""
        if isinstance(self.scale, ConstantVariance):
            return self.scale.schedule.timestep(torch.tensor([sigma])).to(self.device)[0]
        if self._timesteps is not None:
            return torch.tensor(self._timesteps(sigma), device=self.device)
        num_times: int = self.scheduler.config.num_train_timesteps
        return torch.tensor(sigma, device=self.device) * num_times

    def grid(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """Returns the num_steps + 1 noise levels of a grid.

        `pipeline`: those of the pipeline's call with as many steps, read at its first timestep. `uniform`:
        linspace(1, 1/T, T), shifted as the pipeline shifts its levels, then 0.
        Raises ConfigError for levels that are not those of a flow.
        """
        levels = None if kind == "pipeline" else torch.linspace(1, 1 / num_steps, num_steps).tolist()
        if levels is not None and self.scale.has_own_levels:
            raise ConfigError("sampler.sigmas: this model has noise levels of its own; take pipeline")
        if levels is not None and not self.takes_sigmas:
            scheduler = type(self.scheduler).from_config(self.scheduler.config)
            scheduler.set_timesteps(num_steps, sigmas=levels)
            return [float(sigma) for sigma in scheduler.sigmas]
        own, times = self._of_steps(num_steps, levels)
        if isinstance(self.scale, ConstantVariance):
            steps: list[float] = self.scale.schedule.levels[times.cpu()].tolist()
            return [*steps, level_of_share(float(self.scheduler.final_alpha_cumprod))]
        assert own is not None, "the scheduler of a flow has noise levels"
        return self._falling(self.scale.level(own)[: num_steps + 1])

    def _of_steps(self, num_steps: int, levels: list[float] | None = None) -> tuple[Tensor | None, Tensor]:
        return self.read(num_steps + self.scale.num_trailing_steps, levels)

    def _falling(self, grid: Tensor) -> list[float]:
        """Returns the levels of a grid. Raises ConfigError where they do not fall from 1 at most."""
        grid = grid.cpu()
        if float(grid[0]) > 1 + 1e-6:
            raise ConfigError(f"{self.setting}: its noise levels begin at {float(grid[0]):g}, those of a flow at 1")
        if not bool((grid.diff() < 0).all()):
            listed = ", ".join(f"{float(level):.3g}" for level in grid)
            raise ConfigError(f"{self.setting}: its noise levels do not fall: {listed}")
        return [float(sigma) for sigma in grid]
