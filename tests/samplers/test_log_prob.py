"""Steps of samplers scored as decisions: the density of what was drawn."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from mmrl.core.forward_outputs import GaussianDecisions
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build, find, names
from mmrl.plans.flow import Step
from mmrl.samplers.base.fans import FanSampler
from mmrl.samplers.base.flow import WindowedSampler
from tests.parameters import in_one_test

SHAPE = (2, 3, 3)
SAMPLERS: dict[str, Any] = {name: find("samplers", name) for name in names("samplers")}
STOCHASTIC = [name for name, cls in SAMPLERS.items() if issubclass(cls, WindowedSampler | FanSampler)]


def random_steps(name: str, policy: Any) -> list[Step]:
    """Of a group of one; some defaults are made for more steps and samples."""
    small: dict[str, dict[str, Any]] = {
        "branch_grpo": {"splits": [1]},
        "tempflow": {"roots": 1},
        "g2rpo": {"window": {}},
        "e_grpo": {"merged": [1, 2]},
    }
    sampler = build("samplers", {"name": name, "num_steps": 6, **small.get(name, {})})
    plan = sampler.plan(policy, GroupKey(0, 0, 0), 1)
    return [step for path in plan.paths for step in path.steps if step.is_random]


def transitions(steps: list[Step], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Means [n, ...], stds [n] and next latents [n, ...] as stored in `dtype`: one draw from every step."""
    latents, velocity, noise = torch.randn(3, len(steps), *SHAPE, generator=torch.Generator().manual_seed(1))
    mean = torch.stack([step.transition.mean(x, v) for step, x, v in zip(steps, latents, velocity, strict=True)])
    std = torch.tensor([step.transition.std for step in steps])
    return mean, std, (mean + std.view(-1, 1, 1, 1) * noise).to(dtype)


def decisions(mean: Tensor, std: Tensor, sample: Tensor, reduction: Any = "mean") -> GaussianDecisions:
    each = torch.arange(len(sample))
    return GaussianDecisions(mean, std, sample, each, each[:, None], reduction)


@in_one_test("dtype", [torch.float32, torch.bfloat16, torch.float16])
@in_one_test("name", STOCHASTIC)
def test_a_batch_of_mixed_noise_levels_scores_like_one_normal_after_another(
    name: str, dtype: torch.dtype, grid_policy: Any
) -> None:
    mean, std, sample = transitions(random_steps(name, grid_policy()), dtype)
    for reduction in ("mean", "sum"):
        scored = decisions(mean, std, sample, reduction).log_prob()[:, 0]
        for row in range(len(mean)):
            normal = Independent(Normal(mean[row].double(), std[row].double()), len(SHAPE))
            density = normal.log_prob(sample[row].double())
            expected = density / (1 if reduction == "sum" else mean[row].numel())
            torch.testing.assert_close(scored[row].double(), expected, rtol=1e-5, atol=1e-5)


@in_one_test("dtype", [torch.float32, torch.bfloat16, torch.float16])
@in_one_test("name", STOCHASTIC)
def test_scoring_what_was_stored_again_changes_no_bit(name: str, dtype: torch.dtype, grid_policy: Any) -> None:
    """One decision at a time, as when sampling, against all in another order, as in an update."""
    mean, std, sample = transitions(random_steps(name, grid_policy()), dtype)
    at_sampling = torch.cat([decisions(mean[[n]], std[[n]], sample[[n]]).log_prob() for n in range(len(mean))])
    order = torch.randperm(len(mean), generator=torch.Generator().manual_seed(2))
    in_update = decisions(mean[order], std[order], sample[order]).log_prob()
    torch.testing.assert_close(in_update, at_sampling[order], rtol=0, atol=0)
