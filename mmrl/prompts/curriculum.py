"""A curriculum over the sources of a mixture: sources that still teach are sampled more often."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mmrl.core.data import Scores
from mmrl.core.numerics import group_standardised

EPSILON = 1e-4  # of GRPO's advantage


@dataclass
class Curriculum:
    """Chances p_s ~ w_s exp(U_s / temperature) of the sources s, with U_s = L_s + sqrt(2 ln(n + 1) / (n_s + 1)).

    Wang et al. 2025, "DUMP: Automated Distribution-Level Curriculum Learning for RL-based LLM Post-training", arXiv
    2504.09710: U_s is an upper confidence bound of what a source teaches. L_s is the mean size of the advantages of its
    last `window` groups (GRPO's advantages, whatever the run uses), n_s the number of its groups scored so far, n the
    sum of n_s over sources, and w_s its weight in the mixture. A source without a group yet has L_s = 0 and the largest
    bound. The chances change between iterations only, and are the same on all processes.
    """

    num_sources: int
    window: int = 300
    temperature: float = 0.1
    counts: list[int] = field(init=False)  # groups of each source that were scored
    recent: list[list[float]] = field(init=False)  # mean size of the advantages of each source's last groups
    _sources: dict[int, int] = field(init=False, default_factory=dict, repr=False)  # of this iteration's draws

    def __post_init__(self) -> None:
        self.counts = [0] * self.num_sources
        self.recent = [[] for _ in range(self.num_sources)]

    def weights(self, mixture: Sequence[float]) -> list[float]:
        """Returns the chances of the sources, up to a factor, from the weights of the mixture."""
        bounds = [self._bound(source) / self.temperature for source in range(self.num_sources)]
        return [weight * math.exp(bound - max(bounds)) for weight, bound in zip(mixture, bounds, strict=True)]

    def note(self, draw: int, source: int) -> None:
        """Records the source of the prompt numbered `draw` in this iteration."""
        self._sources[draw] = source

    def update(self, scores: Scores) -> None:
        """Records the scores of an iteration; prompts without a valid sample do not count."""
        total = scores.total.double()
        size = group_standardised(total, scores.group, scores.valid, unbiased=False, epsilon=EPSILON).abs()
        for draw in scores.prompt_index.unique().tolist():
            members = (scores.prompt_index == draw) & scores.valid
            if draw in self._sources and members.any():
                source = self._sources[draw]
                self.counts[source] += 1
                self.recent[source] = [*self.recent[source], float(size[members].mean())][-self.window :]
        self._sources.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "recent": [list(sizes) for sizes in self.recent]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts, self.recent = list(state["counts"]), [list(sizes) for sizes in state["recent"]]

    def _bound(self, source: int) -> float:
        sizes, count = self.recent[source], self.counts[source]
        return sum(sizes) / max(1, len(sizes)) + math.sqrt(2 * math.log(sum(self.counts) + 1) / (count + 1))
