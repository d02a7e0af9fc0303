"""Network arguments that are captured once and used again give what the paused pipeline gives, or are not used."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import normal
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.flow.driven.recorded_call import NotReplayed
from mmrl.modalities.flow.driven.replaying import StateInput, TimeInput

PROMPTS = [Prompt("a cat"), Prompt("two red dogs on a table")]


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Any]:
    """Makes the small random pipeline of a family a driven policy."""
    made: list[DiffusersPipeline] = []

    def make(name: str, **settings: Any) -> DiffusersPipeline:
        torch.manual_seed(0)
        policy = DiffusersPipeline(model=name, family=name, **settings).tiny(0, tmp_path / name)
        policy.prepare(Placement(torch.device("cpu"), torch.float32))
        made.append(policy)
        return policy

    yield make
    for policy in made:
        policy.close()


def evaluated(policy: Any, scale: float, *, is_driven: bool) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Outputs and gradient of the weights for two prompts at three levels; calls of the network; paused calls kept."""
    states, sigma = normal(7, (5, *policy.latent_shape)), torch.tensor([0.95, 0.4, 0.4, 0.1, 0.95])
    numbers = [policy.driven.numbers(PROMPTS)[n] for n in (0, 1, 0, 1, 0)]
    replays = policy.driven.replays
    if is_driven:
        policy.driven.replays = None
    before = policy.driven.driver.num_network_calls
    outputs = policy.driven.guided_by(states, sigma, numbers, scale)
    calls = policy.driven.driver.num_network_calls - before
    policy.driven.replays = replays
    weights = list(policy.weights.parameters.values())
    gradient = torch.autograd.grad((outputs * normal(8, tuple(outputs.shape))).sum(), weights, allow_unused=True)
    return (
        outputs.detach(),
        torch.cat([g.flatten() for g in gradient if g is not None]),
        calls,
        len(policy.driven.driver._free),
    )


@pytest.mark.slow  # 4 s each: a small pipeline
@pytest.mark.parametrize(("name", "calls"), [("sd3", (1, 1)), ("flux", (1, 2)), ("wan21", (1, 2))])
def test_replayed_outputs_and_gradients_are_the_driven_ones(name: str, calls: tuple[int, int], family: Any) -> None:
    policy = family(name, replay=True, negative_prompt="blurry")
    for scale, num_driven in zip((1.0, 2.5), calls, strict=True):
        policy.driven.guided_by(
            normal(6, (2, *policy.latent_shape)), torch.ones(2), policy.driven.numbers(PROMPTS), scale
        )
        policy.driven.driver.close()  # it was probed at this scale
        got, gradient, num_calls, kept = evaluated(policy, scale, is_driven=False)
        assert num_calls == 1 and kept == 0
        wanted, gradient_2, driven_calls, _ = evaluated(policy, scale, is_driven=True)
        assert driven_calls == num_driven
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(gradient, gradient_2, atol=1e-4 * float(gradient_2.abs().max()), rtol=1e-3)


@pytest.mark.slow  # 4 s: a small pipeline
def test_guidance_with_a_rule_about_lengths_is_driven_and_cannot_be_demanded(family: Any, tmp_path: Path) -> None:
    policy = family("qwen_image", negative_prompt="blurry")
    proof = policy.proof(PROMPTS[0])
    assert proof["replay"] == (
        "guidance_scale 1: on; guidance_scale 3: off, its guidance is more than a weighted sum of its branches"
    )
    assert proof["stock_difference"] < 1e-4
    with pytest.raises(ConfigError, match=r"replay: .* with guidance_scale 3 .* more than a weighted sum"):
        family("qwen_image", negative_prompt="blurry", replay=True)


@pytest.mark.slow  # 2 s: a small pipeline
def test_a_scale_at_which_the_branches_of_a_probe_cancel_is_replayed(family: Any) -> None:
    # (1 - 3.5) * 1.4 + 3.5 * 1 = 0
    assert family("aura_flow").proof(PROMPTS[0], [3.5])["replay"] == "guidance_scale 3.5: on"


class _Limited(float):
    """A guidance scale whose product has a root mean square of at most 30."""

    def __mul__(self, other: Any) -> Any:
        product = float(self) * other
        return product * (30 / product.square().mean().sqrt()).clamp(max=1)


@pytest.mark.slow  # 1 s: a model
def test_a_rule_that_the_random_network_never_reaches_is_found(driven_sd3: Any) -> None:
    def plant(pipeline: Any) -> Any:
        kind = type(pipeline)
        limited = property(lambda self: _Limited(self._guidance_scale))
        pipeline.__class__ = type(kind.__name__, (kind,), {"guidance_scale": limited})
        return pipeline

    policy = driven_sd3(plant)
    assert policy.proof(PROMPTS[0])["replay"] == (
        "guidance_scale 1: on; guidance_scale 3: off, its guidance is more than a weighted sum of its branches"
    )


def test_a_state_input_is_a_multiple_with_more_behind_it() -> None:
    states, more = (normal(1, (1, 3, 2)), normal(2, (1, 3, 2))), normal(3, (1, 4, 2))
    one, other = (torch.cat([0.5 * state, more], 1).repeat(2, 1, 1) for state in states)
    found = StateInput.fit(one, other, states)
    assert (found.scale, found.axis) == (0.5, 1)
    three = normal(4, (3, 3, 2))
    wanted = torch.cat([torch.cat([0.5 * state[None], more], 1) for state in [*three, *three]])
    torch.testing.assert_close(found.value(one, three), wanted)


def test_a_state_input_that_is_no_multiple_is_refused() -> None:
    states = (normal(1, (1, 3, 2)), normal(2, (1, 3, 2)))
    with pytest.raises(NotReplayed, match="more than a multiple"):
        StateInput.fit(states[0].tanh(), states[1].tanh(), states)
    with pytest.raises(NotReplayed, match="another shape"):
        StateInput.fit(states[0][..., None], states[1][..., None], states)


def test_a_time_input_is_affine_in_each_element() -> None:
    times = [torch.tensor(time) for time in (900.0, 20.0, 500.0)]
    mask = torch.tensor([[0.0, 1.0]])  # one level for each token, the first of which is clean
    found = TimeInput.fit([1 - 0.001 * time * mask for time in times], times)
    got = found.value(mask, torch.tensor([100.0, 300.0]))
    torch.testing.assert_close(got, torch.tensor([[1.0, 0.9], [1.0, 0.7]]))
    with pytest.raises(NotReplayed, match="no affine function"):
        TimeInput.fit([time.square()[None] for time in times], times)
