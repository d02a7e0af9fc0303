"""One optimizer step of every loss on the forward process: its gradient does not depend on how the work is cut."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build, names
from mmrl.losses.base.old_decay import OldDecay
from mmrl.plans.offline import roll_out
from mmrl.samplers.ode import ODE
from mmrl.training.processes import Processes
from mmrl.training.update import Updater
from tests.linear_flow import LinearFlow, random_flow

SETTINGS: dict[str, dict[str, Any]] = {  # beside the defaults, so that every part of a loss takes part
    "awm": {"decay": {"slope": 0.0}, "sigmas": "uniform"},
    "dgpo": {"beta": 5.0, "clip": 0.5},
    "diffusion_dpo": {"beta": 5.0, "pairs": "all"},
    "elbo": {"decay": {"slope": 0.0}, "form": "pepg"},
    "flow_dpo": {"beta": 5.0, "refresh_every": 4},
    "kto": {"beta": 5.0},
    "raft": {"top_share": 0.5},
    "spin": {"beta": 5.0},
}


def _cases() -> list[Any]:
    built = {name: build("losses", {"name": name} | SETTINGS.get(name, {})) for name in names("losses")}
    found = [name for name, loss in built.items() if loss.kind == "denoising"]
    extra = {"draws": 2, "sigma_range": (0.2, 1.0), "reference_weight": 0.1, "averaged_weight": 0.2}
    losses = [pytest.param({"name": n} | SETTINGS.get(n, {}) | extra, id=n) for n in found]
    losses += [pytest.param({"name": name} | extra, id=f"{name}-itself") for name in ("elbo", "kto")]
    return [*losses, pytest.param({"name": "awm", "ratio": "sum_first"} | SETTINGS["awm"] | extra, id="awm-sum_first")]


@pytest.fixture(scope="module")
def policy_and_rollout() -> tuple[LinearFlow, Rollout]:
    """Returns three groups of four from older weights; all copies of the weights differ."""
    policy, keys = random_flow(), [GroupKey(0, 0, draw) for draw in (3, 5, 8)]
    plans = [ODE(num_steps=4).plan(policy, key, 4) for key in keys]
    rollout = roll_out(policy, [Prompt(text) for text in ("0.1", "-0.2", "0.3")], plans, keys)
    policy.weights.keep("reference")
    for number, which in enumerate(("old", "averaged", "trained"), 1):
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in policy.network.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        policy.weights.keep(which)  # type: ignore[arg-type]
    return policy, rollout


def _batch(rollout: Rollout) -> LossBatch:
    scores = torch.tensor([0.9, 0.1, 0.4, 0.6, 0.2, 0.2, 0.8, 0.5, 0.3, 0.7, 0.0, 1.0])
    weight = torch.ones(12, 1)
    weight[6] = 0.0  # could not be judged
    return LossBatch((2 * scores - 1)[:, None], weight, rollout.group, scores)


def _gradient(
    loss: Any, policy_and_rollout: tuple[LinearFlow, Rollout], micro_batch: int
) -> tuple[Tensor, dict[str, float]]:
    policy, rollout = policy_and_rollout
    rows, batch = torch.tensor([row for row in range(12) if row != 6]), _batch(rollout)
    policy.network.zero_grad()
    views = loss.views(rollout, rows, GroupKey(0, 0, 0))
    old = "kept" if loss.old_decay(0) is not None else "itself"
    metrics = Updater(policy, loss, Processes(), micro_batch).accumulate(rollout, views, batch, old)  # type: ignore[arg-type]
    assert metrics is not None
    means = {name: float(total / metrics.weight[name]) for name, total in metrics.totals.items()}
    return torch.cat([p.grad.flatten().clone() for p in policy.network.parameters() if p.grad is not None]), means


@pytest.mark.slow
@pytest.mark.parametrize("settings", _cases())
def test_micro_batches_give_the_gradient_and_metrics_of_the_whole(
    settings: dict[str, Any], policy_and_rollout: tuple[LinearFlow, Rollout]
) -> None:
    loss = build("losses", settings)
    whole, seen = _gradient(loss, policy_and_rollout, 100)
    assert whole.abs().max() > 1e-3
    for micro_batch in (1, 3):
        parts, seen_in_parts = _gradient(loss, policy_and_rollout, micro_batch)
        torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-4)
        assert seen_in_parts == pytest.approx(seen, abs=1e-5)


def test_given_outputs_are_learned_from_as_drawn_ones_are(policy_and_rollout: tuple[LinearFlow, Rollout]) -> None:
    """The same latents as data of the prompts: the same noise, the same gradient."""
    policy, rollout = policy_and_rollout
    prompts = [rollout.prompts[n] for n in rollout.prompt.tolist()]
    keys = [rollout.keys[n] for n in rollout.prompt.tolist()]
    given = policy.offline(prompts, Outputs(images=rollout.trace.clean), keys)
    loss = build("losses", {"name": "flow_dpo", "beta": 5.0, "draws": 2, "sigma_range": (0.2, 1.0)})
    one, _ = _gradient(loss, (policy, rollout), 100)
    other, _ = _gradient(loss, (policy, given), 100)
    torch.testing.assert_close(one, other)


def test_settings_of_old_weights_are_mappings() -> None:
    assert build("losses", {"name": "awm"} | SETTINGS["awm"]).decay == OldDecay(slope=0.0)
