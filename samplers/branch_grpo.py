"""The sampler of BranchGRPO: a group is a tree."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.core.numerics import MOST
from mmrl.plans.flow import Plan, Step, Transition

from .base.flow import FlowPolicy, WindowedSampler
from .base.kernels import euler_maruyama


@dataclass(frozen=True)
class BranchGRPO(WindowedSampler):
    """The Dance-SDE with states that split at chosen steps (BranchGRPO, Li et al. 2025, arXiv 2509.06040).

    The defaults are those of Fredreic1849/BranchGRPO: 20 steps, two children at each of the steps `splits`, so 16
    leaves (`group_size: 16`); noise level 0.3, and `split_noise` times that at splits. (Its code samples the noise of
    splits four times as wide as the density that it trains; here the density is that of the sampled noise.) A group of
    more leaves is several trees, whose nodes are compared with each other too (theirs: only within a tree). A smaller
    group splits at the first of the steps only. The mix variant is `window: {mode: range, last: 4}`: steps outside of
    the window are random at splits only. Goes with advantage `tree`.
    """

    num_steps: Annotated[int, Field(ge=1, le=MOST)] = 20  # denoising steps; the paper's value
    noise_level: Annotated[float, Field(gt=0)] = 0.3  # g, the same at every step
    splits: tuple[int, ...] = (0, 3, 6, 9)  # the steps at which every state splits; random whatever the window
    branch: Annotated[int, Field(ge=2)] = 2  # children of a state that splits
    split_noise: Annotated[float, Field(gt=0)] = 4.0  # the noise of steps that split, times that of other steps
    # Steps that are not trained, by the depth of the node that they lead to (the number of the step + 1).
    pruned_depths: tuple[int, ...] = ()
    # After so many iterations all pruned depths move up by one, until the first is the depth of the last split step.
    pruned_every: Annotated[int, Field(ge=1)] = 30

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for steps that do not ascend within the grid."""
        super().__post_init__()
        for name, chosen, first, last in (
            ("splits", self.splits, 0, self.num_steps - 2),
            ("pruned_depths", self.pruned_depths, 1, self.num_steps),
        ):
            if sorted(set(chosen)) != list(chosen) or (chosen and not first <= chosen[0] <= chosen[-1] <= last):
                raise ValueError(f"{name} must ascend within {first} to {last}, got {list(chosen)}")

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return euler_maruyama(sigma, sigma_next, self.noise_level)

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        """Returns the trees of a group. Raises ValueError where no whole trees make it, or no step is trained."""
        splits = self._splits(group_size)
        random_steps = tuple(sorted({*self.window.steps(self.num_steps, key), *splits}))
        trained = set(self.trained(random_steps, key)) - self._pruned(key.iteration)
        if not trained:
            raise ValueError(f"pruned_depths leaves no random step to train, got {list(self.pruned_depths)}")
        steps = self.steps(self.grid(policy), random_steps, trained)
        steps = tuple(self._split(step) if number in splits else step for number, step in enumerate(steps))
        return Plan(group_size // self.branch ** len(splits), steps, self.guidance_scale)

    def _splits(self, group_size: int) -> tuple[int, ...]:
        """Returns the steps at which a group of this size splits. Raises ValueError for a size of no whole trees."""
        leaves = self.branch ** len(self.splits)
        if group_size % leaves == 0:
            return self.splits
        for count in range(len(self.splits)):
            if self.branch**count == group_size:
                return self.splits[:count]
        raise ValueError(
            f"group_size must be a multiple of {leaves} leaves ({len(self.splits)} splits into {self.branch}), or a "
            f"smaller power of {self.branch}, got {group_size}"
        )

    def _split(self, step: Step) -> Step:
        wider = replace(step.transition, std=self.split_noise * step.transition.std)
        return replace(step, transition=wider, branch=self.branch)

    def _pruned(self, iteration: int) -> set[int]:
        """Returns the steps that are not trained in this iteration."""
        if not self.pruned_depths:
            return set()
        last_split = self.splits[-1] if self.splits else 0
        shift = min(iteration // self.pruned_every, max(0, self.pruned_depths[0] - last_split))
        return {depth - shift - 1 for depth in self.pruned_depths}
