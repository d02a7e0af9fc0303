"""Advantages of decisions from rewards of decisions: the sum, discounted sum or minimum of those from each one on."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.dense import DENSE, widened
from mmrl.core.numerics import group_index, group_mean, group_std, group_sum

Credit = Literal["sum", "discounted", "min"]


@dataclass(frozen=True)
class Process(Checked):
    """Process supervision of GRPO: what a decision earns is the normalised rewards of steps from the decision on.

      sum         A_t = sum over s >= t of n_s, n_s = (r_s - mean) / (std + epsilon)
      discounted  A_t = sum over s >= t of gamma^(s - t) n_s, where s - t counts decisions
      min         A_t = (sum over s >= t of w_s (p_s - mean_p) + o - mean_o) / (std + epsilon), w = softmax(-p / T)

    `sum` is Shao et al. 2024, "DeepSeekMath", arXiv 2402.03300, section 4.1.3; epsilon is ours. r_s is the weighted sum
    of the dense rewards (of steps, segments or tokens) at decision s; the other rewards count at a sample's last
    decision. Mean and population std are those of all r_s of the group; a decision without a reward that counts, such
    as one inside of a segment, has no r_s. With rewards of whole samples alone, or one segment per sample, this is GRPO
    on samples without a clip.

    `min` is the min-form credit of Cheng et al. 2025, "Stop Summation" (PURE), arXiv 2504.15275: p_s is the weighted
    sum of the dense rewards, o that of the others, and m = sum of w_s p_s, nearly the least p_s of a sample. What comes
    before a sample's worst step is credited with m, what comes after it with nothing of p. At temperature T = 0, w is
    the share of the worst steps, and m their p. mean_p is the mean of m in the group, mean_o that of o, and std the
    population std of m + o: the first decision has GRPO's advantage of m + o. Theirs subtracts for each token
    the mean reward of a token of the other answers (RLOO).

    Invalid samples enter no statistic and get 0. All members get 0 in a group with equal rewards (of `min`: equal
    m + o), or with one valid member. A decision that several leaves of a tree share gets the mean over the valid
    leaves; in the statistic it counts once for each leaf.

    Raises ValueError for settings out of range, and for a gamma without credit `discounted` or the other way round.
    """

    epsilon: Annotated[float, Field(ge=0)] = 1e-4  # added to the standard deviation
    credit: Credit = "sum"  # how the rewards from a decision on make its advantage
    gamma: Annotated[float, Field(ge=0, le=1)] | None = None  # discount of a decision, of credit discounted
    temperature: Annotated[float, Field(ge=0)] = 0.1  # of credit min, in units of the weighted rewards; 0: the minimum

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(
        is_per_decision=True,
        requires_single_answers=True,
        requires_dense_reward=True,  # without one this is GRPO
        sums_rewards=True,  # of decisions
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.gamma is None) == (self.credit == "discounted"):
            raise ValueError(f"gamma and credit 'discounted' go together, got {self.gamma} and {self.credit!r}")

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32, 0 behind a sample's last decision; without `paths` [B, 1]."""
        edges = torch.arange(len(scores.group))[:, None] if paths is None else paths.edge
        has_paths = paths is not None
        credited = self._min(scores, edges, has_paths) if self.credit == "min" else self._sum(scores, edges, has_paths)
        is_there = (edges >= 0) & scores.valid[:, None]
        return _mean_of_leaves(torch.where(is_there, credited, 0.0), edges, scores.prompt_index, is_there).float()

    def _sum(self, scores: Scores, edges: Tensor, has_paths: bool) -> Tensor:
        """Returns the advantages [B, K], float64, of credits `sum` and `discounted`."""
        if has_paths:
            numbers, is_number = rewards_of_decisions(scores, edges)
        else:
            numbers = scores.weighted_sum.double()[:, None]
            is_number = torch.ones_like(edges, dtype=torch.bool)
        is_number = is_number & scores.valid[:, None]
        normalised = self._normalised(torch.where(is_number, numbers, 0.0), is_number, scores)
        return _from_each_on(normalised) if self.gamma is None else _discounted(normalised, self.gamma)

    def _min(self, scores: Scores, edges: Tensor, has_paths: bool) -> Tensor:
        """Returns the advantages [B, K], float64, of credit `min`."""
        steps, is_step = torch.zeros(edges.shape, dtype=torch.float64), torch.zeros_like(edges, dtype=torch.bool)
        outcome = scores.weighted_sum.double()
        if has_paths:
            is_dense = [granularity in DENSE for granularity in scores.granularities] or [False] * len(scores.names)
            steps, is_step = rewards_of_decisions(_of_weights(scores, is_dense), edges)
            outcome = _of_weights(scores, [not dense for dense in is_dense]).weighted_sum.double()
        is_counted = scores.valid & (edges >= 0).any(1)
        is_step = is_step & is_counted[:, None]
        steps, outcome = torch.where(is_step, steps, 0.0), torch.where(is_counted, outcome, 0.0)
        weight = _weights_of_worst(steps, is_step, self.temperature)
        worst = (weight * steps).sum(1)  # [B], m
        mean_step, mean_outcome = (group_mean(one, scores.group, is_counted) for one in (worst, outcome))
        spread = group_std(worst + outcome, scores.group, is_counted)
        size = group_mean((worst + outcome).abs(), scores.group, is_counted)
        is_compared = group_sum(is_counted.double(), scores.group) >= 2
        behind = _from_each_on(weight * torch.where(is_step, steps - mean_step[:, None], 0.0))
        credited = behind + (outcome - mean_outcome)[:, None]
        return self._over_spread(credited, spread, size, is_compared)

    def _normalised(self, numbers: Tensor, is_number: Tensor, scores: Scores) -> Tensor:
        """Returns the normalised numbers [B, K], float64, 0 where there is no number."""
        count = group_sum(is_number.sum(1).double(), scores.group).clamp(min=1)
        mean = group_sum(numbers.sum(1), scores.group) / count
        centred = torch.where(is_number, numbers - mean[:, None], 0.0)
        spread = (group_sum(centred.square().sum(1), scores.group) / count).sqrt()
        size = group_sum(numbers.abs().sum(1), scores.group) / count
        is_compared = group_sum(is_number.any(1).double(), scores.group) >= 2
        return self._over_spread(centred, spread, size, is_compared)

    def _over_spread(self, centred: Tensor, spread: Tensor, size: Tensor, is_compared: Tensor) -> Tensor:
        """Returns numbers [B, K] over the spread [B] of numbers of a mean `size` [B]; 0 without one or a comparison."""
        # sums of equal numbers differ in their last bits, and their spread is then no spread
        is_spread = (spread > 1e-12 * size) & is_compared
        return centred / torch.where(is_spread, spread + self.epsilon, torch.inf)[:, None]


def rewards_of_decisions(scores: Scores, paths: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the weighted sums [B, K] (float64) of the rewards at each decision, and where there is any [B, K] (bool).

    Rewards of whole samples count at the last decision. `paths` [B, K] are edge numbers, -1 behind the last decision.
    """
    is_decision = paths >= 0
    is_last = is_decision & (torch.arange(paths.shape[1]) == is_decision.sum(1, keepdim=True) - 1)
    numbers = torch.zeros(paths.shape, dtype=torch.float64)
    is_number = torch.zeros_like(is_decision)
    granularities = scores.granularities or ("sample",) * len(scores.names)
    for column, (name, weight) in enumerate(zip(scores.names, scores.weights, strict=True)):
        if weight == 0:
            continue
        if granularities[column] in DENSE:
            own = widened(scores.dense[name], paths.shape[1]).double()
            stands = is_decision & ~own.isnan()
        else:
            own, stands = scores.values[:, column, None].double(), is_last
        numbers += torch.where(stands, weight * own, 0.0)
        is_number |= stands
    return numbers, is_number


def _from_each_on(numbers: Tensor) -> Tensor:
    """Returns the sums [B, K] of numbers [B, K] from each place on."""
    return numbers.flip(1).cumsum(1).flip(1)


def _discounted(numbers: Tensor, gamma: float) -> Tensor:
    """Returns the sums [B, K] of numbers [B, K] from each place on, each times gamma for every place before it."""
    sums = numbers.clone()
    for place in range(numbers.shape[1] - 2, -1, -1):
        sums[:, place] += gamma * sums[:, place + 1]
    return sums


def _weights_of_worst(steps: Tensor, is_step: Tensor, temperature: float) -> Tensor:
    """Returns softmax(-steps / temperature) [B, K] over the steps of each sample, 0 elsewhere; at 0 its limit."""
    shown = torch.where(is_step, steps, torch.inf)
    above = shown - shown.amin(1, keepdim=True) if steps.shape[1] else shown  # NaN in rows without a step
    share = (above == 0).double() if temperature == 0 else (-above / temperature).exp()
    share = torch.where(is_step, share, 0.0)
    return share / share.sum(1, keepdim=True).clamp(min=1)  # a worst step has 1


def _of_weights(scores: Scores, is_chosen: list[bool]) -> Scores:
    """Returns the scores with weight 0 for the rewards that are not chosen."""
    pairs = zip(scores.weights, is_chosen, strict=True)
    return replace(scores, weights=tuple(weight if chosen else 0.0 for weight, chosen in pairs))


def _mean_of_leaves(values: Tensor, edges: Tensor, prompt_index: Tensor, is_there: Tensor) -> Tensor:
    """Returns at each edge the mean [B, K] of values [B, K] over the samples of its prompt index that pass it."""
    index, _ = group_index(prompt_index)
    name = index[:, None] * (edges.max() + 1 if edges.numel() else 1) + edges
    _, place, leaves = name[is_there].unique(return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(leaves)).index_add(0, place, values[is_there])
    return values.masked_scatter(is_there, (sums / leaves)[place])
