"""A policy reduced to what samplers ask of it."""

from dataclasses import dataclass
from typing import Literal

import pytest


@dataclass(frozen=True)
class GridPolicy:
    """linspace(1, 1/T, T), shifted, then 0; `pipeline` is told from `uniform` by a finer end."""

    shift: float = 3.0

    def sigmas(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        even = [1 - n / num_steps for n in range(num_steps)]
        levels = [self.shift * sigma / (1 + (self.shift - 1) * sigma) for sigma in even]
        return [*levels, 0.0] if kind == "uniform" else [*levels[:-1], levels[-1] / 2, 0.0]


@pytest.fixture
def grid_policy() -> type[GridPolicy]:
    return GridPolicy
