"""The code that model cards give for pipelines: run as it stands, it draws what mmrl draws of the same noise."""

import logging
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.modalities.flow import tree_sampling
from mmrl.modalities.loading.lora import Lora
from mmrl.samplers.dance_sde import DanceSDE
from mmrl.samplers.ode import ODE
from tests.diffusion_twins import policy_of, twin, with_scheduler

KEY, PROMPT = GroupKey(3, 0, 0), Prompt("red circle top left")
WITHOUT = "The run drew with a sampler that the pipeline does not have"


def moved(policy: Any) -> Any:
    """The policy with other weights than its model has."""
    for parameter in policy.weights.parameters.values():
        parameter.data.add_(torch.randn(parameter.shape), alpha=0.02)
    return policy


def ours(policy: Any, plan: Any, patch: pytest.MonkeyPatch) -> Tensor:
    """What mmrl draws of the noise that the card's generator makes: [3, H, W] in 0..255."""
    noise = torch.randn((1, *policy.latent_shape), generator=torch.Generator().manual_seed(0))
    with patch.context() as patched:
        patched.setattr(tree_sampling, "root_noise", lambda plan, key, shape: noise)
        return policy.rollout([PROMPT], [plan], [KEY]).outputs.images[0] * 255  # type: ignore[no-any-return]


def theirs(code: str, folder: Path, patch: pytest.MonkeyPatch) -> Tensor:
    """What the code draws in the folder."""
    with patch.context() as patched:
        patched.chdir(folder)
        exec(compile(code, "README.md", "exec"), {})
        return torch.from_numpy(numpy.array(Image.open("drawn.png"))).permute(2, 0, 1).float()


@pytest.mark.slow  # loads a model once more
@pytest.mark.parametrize("is_adapter", [False, True])
def test_the_code_of_the_lab_s_card_draws_what_mmrl_draws_and_needs_its_settings(
    is_adapter: bool, lab_policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = moved(lab_policy(lora=Lora(rank=2) if is_adapter else None))
    policy.export(tmp_path)
    plan = ODE(num_steps=6, sigmas="uniform").plan(policy, KEY, 1)
    usage = policy.usage(PROMPT, plan, repr(policy.model))
    assert (usage.is_adapter, usage.notes, policy.model in usage.code) == (is_adapter, (), is_adapter)
    drawn = ours(policy, plan, monkeypatch)
    torch.testing.assert_close(theirs(usage.code, tmp_path, monkeypatch), drawn, atol=1.01, rtol=0)
    for setting in ("max_sequence_length=1,", "guidance_scale=1.0,", "sigmas="):
        lines = [line for line in usage.code.splitlines() if setting not in line]
        assert len(lines) == usage.code.count("\n") - 1
        assert (theirs("\n".join(lines), tmp_path, monkeypatch) - drawn).abs().max() > 8, setting


@pytest.mark.slow  # the same
def test_guidance_and_what_it_leads_away_from_are_told(
    twin_policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = moved(twin_policy(negative_prompt="blurry"))
    policy.export(tmp_path)
    plan = ODE(num_steps=4, guidance_scale=4.5).plan(policy, KEY, 1)
    code = policy.usage(PROMPT, plan, repr(policy.model)).code
    torch.testing.assert_close(theirs(code, tmp_path, monkeypatch), ours(policy, plan, monkeypatch), atol=1.01, rtol=0)


@pytest.mark.slow  # the same
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of the Euler scheduler
@pytest.mark.parametrize("sigmas", ["pipeline", "uniform"])
@pytest.mark.parametrize(
    ("kind", "scheduler", "settings"),
    [
        ("stable_diffusion", "PNDMScheduler", {"skip_prk_steps": True, "set_alpha_to_one": False}),
        ("stable_diffusion_xl", "EulerDiscreteScheduler", {}),
    ],
)
def test_other_schedulers_give_way_to_steps_without_noise(
    kind: str, scheduler: str, settings: Any, sigmas: Any, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_scheduler(twin(kind, base), scheduler, steps_offset=1, **settings)
    policy = moved(policy_of(folder, lora=None))
    policy.export(tmp_path)
    plan = ODE(num_steps=4, sigmas=sigmas, guidance_scale=3.0).plan(policy, KEY, 1)
    usage = policy.usage(PROMPT, plan, "")
    assert usage.notes == ()
    drawn = ours(policy, plan, monkeypatch)
    torch.testing.assert_close(theirs(usage.code, tmp_path, monkeypatch), drawn, atol=1.5, rtol=0)


@pytest.mark.slow
def test_a_sampler_that_the_pipeline_does_not_have_is_told_and_levels_of_its_own_too(lab_policy: Any) -> None:
    policy = lab_policy()
    samplers = [
        ODE(num_steps=4, solver="dpmpp_2m"),
        ODE(num_steps=4, sigmas=(1.0, 0.7, 0.5, 0.3, 0.0)),
        DanceSDE(num_steps=4),
    ]
    for sampler in samplers:
        usage = policy.usage(PROMPT, sampler.plan(policy, KEY, 1), "")
        assert "num_inference_steps=4" in usage.code and usage.notes[0].startswith(WITHOUT)
    assert "num_inference_steps" not in policy.usage(PROMPT, None, "").code  # of a run that drew nothing


@pytest.mark.slow
@pytest.mark.parametrize("is_adapter", [False, True])
def test_an_export_says_nothing_of_parts_that_the_pipeline_is_without(
    is_adapter: bool, lab_policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    for name in ("diffusers", "transformers"):  # whose loggers tell no others
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    policy = lab_policy(lora=Lora(rank=2) if is_adapter else None)
    policy.export(tmp_path)
    assert not caplog.records
