"""A second run reads what the first one encoded: no encoder is called, and every number is the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView
from mmrl.media.pictures import StoredPicture
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.samplers.flow_sde import FlowSDE

KEYS = [GroupKey(3, 0, n) for n in range(2)]


class Run:
    """One run of a policy: what its encoders are called with, its images, and the gradient of its log-probs."""

    def __init__(self, policy: Any, prompts: list[Prompt]) -> None:
        self.texts = self.images = 0
        original = policy.open

        def opened(*args: Any) -> Any:
            pipeline = original(*args)
            for name, part in pipeline.components.items():
                if name.startswith("text_encoder") and part is not None:
                    part.register_forward_pre_hook(self._count_text)
            encode = pipeline.vae.encode

            def encoded(*given: Any, **named: Any) -> Any:
                self.images += 1
                return encode(*given, **named)

            pipeline.vae.encode = encoded
            return pipeline

        policy.open = opened
        torch.manual_seed(0)
        policy.prepare(Placement(torch.device("cpu"), torch.float32))
        plans = [FlowSDE(num_steps=3, guidance_scale=1.0).plan(policy, key, 2) for key in KEYS]
        rollout = policy.rollout(prompts, plans, KEYS)
        calls = torch.arange(int(rollout.blocks[0].call.max()) + 1)
        policy.forward(rollout, DecisionView(calls)).log_prob().square().sum().backward()
        self.made = rollout.outputs.images
        self.gradient = torch.cat([p.grad.flatten() for p in policy.weights.parameters.values() if p.grad is not None])

    def _count_text(self, module: Any, args: Any) -> None:
        self.texts += 1


def _assert_read(first: Run, second: Run) -> None:
    assert first.texts > 0 and (second.texts, second.images) == (0, 0)
    assert torch.equal(first.made, second.made) and torch.equal(first.gradient, second.gradient)


@pytest.mark.slow  # 8 s: twice a small FLUX Kontext
def test_a_second_run_of_an_editing_pipeline_encodes_nothing(tmp_path: Path) -> None:
    settings = DiffusersPipeline(model="m", family="flux_kontext", condition_images=1).tiny(0, tmp_path / "model")
    prompts = []
    for n, text in enumerate(("make it red", "make the dog blue")):
        path = tmp_path / f"{n}.png"
        Image.new("RGB", (32, 32), (90 * n, 40, 200)).save(path)
        prompts.append(Prompt(text, (StoredPicture(path.name, path),)))

    def run() -> Run:
        policy = DiffusersPipeline(**{
            name: getattr(settings, name)
            for name in ("model", "height", "width", "arguments", "conditions")
        }, encodings=str(tmp_path / "encodings"))  # fmt: skip
        made = Run(policy, prompts)
        policy.close()
        return made

    first = run()
    _assert_read(first, run())
    assert first.images > 0


@pytest.mark.slow  # 3 s: three small SD3
def test_a_second_run_of_a_hand_written_family_encodes_nothing(twin_folder: Path, tmp_path: Path) -> None:
    prompts = [Prompt("a cat"), Prompt("two red dogs")]

    def run(length: int = 8) -> Run:
        folder = str(tmp_path / "encodings")
        policy = StableDiffusion3(
            model=str(twin_folder), height=32, width=32, max_sequence_length=length, encodings=folder
        )
        return Run(policy, prompts)

    first = run()
    _assert_read(first, run())
    other = run(9)  # of another setting
    assert other.texts == first.texts
    prompts[0] = Prompt("a bird")
    assert 0 < run().texts < first.texts


@pytest.mark.slow  # 5 s each: a small modular pipeline
@pytest.mark.parametrize("family", ["modular_flux", "modular_z_image"])
def test_a_modular_pipeline_encodes_a_text_once(family: str, tmp_path: Path) -> None:
    policy = DiffusersPipeline(model="m", family=family).tiny(0, tmp_path / "model")
    prompts = [Prompt("a cat"), Prompt("two red dogs")]
    run = Run(policy, prompts)
    assert 0 < run.texts <= 16  # prompts and probes, by one or two encoders; 72 and 36 if each paused call encodes
    before = run.texts
    plans = [FlowSDE(num_steps=3, guidance_scale=1.0).plan(policy, key, 2) for key in KEYS]
    again: Any = policy.rollout(prompts, plans, KEYS)
    assert run.texts == before and torch.equal(again.outputs.images, run.made)
    policy.rollout([Prompt("a bird"), prompts[1]], plans, KEYS)
    assert run.texts > before
    policy.close()


def test_encodings_of_a_modular_pipeline_are_refused() -> None:
    policy = DiffusersPipeline(model="m", modular=True, encodings="folder")
    with pytest.raises(ConfigError, match=r"modalities.diffusers_pipeline.encodings: blocks of a modular pipeline"):
        policy.encoded_files()
