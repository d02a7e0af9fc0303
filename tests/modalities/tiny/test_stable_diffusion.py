"""The tiny Stable Diffusion twins are whole pipelines of the real classes whose random weights all do something."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from mmrl.core.contracts import Placement
from mmrl.core.plugins import build
from mmrl.modalities.loading.lora import Lora
from tests.diffusion_twins import KINDS, WRITERS, policy_of, reader, twin

PARTS: Any = MappingProxyType(
    {  # as in the model_index.json of stable-diffusion-v1-5 and stable-diffusion-xl-base-1.0, but for the schedulers
        "stable_diffusion": {"text_encoder": "CLIPTextModel", "tokenizer": "CLIPTokenizer"},
        "stable_diffusion_xl": {
            "text_encoder": "CLIPTextModel",
            "tokenizer": "CLIPTokenizer",
            "text_encoder_2": "CLIPTextModelWithProjection",
            "tokenizer_2": "CLIPTokenizer",
        },
    }
)
EVERY = {"unet": "UNet2DConditionModel", "vae": "AutoencoderKL", "scheduler": "DDIMScheduler"}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_part_is_there_and_of_its_real_class(kind: str, base: Path) -> None:
    parts = reader(twin(kind, base))._pipeline.components
    assert {name: type(part).__name__ for name, part in parts.items() if part is not None} == EVERY | PARTS[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_writes_the_same_bytes_and_another_changes_every_weight_file(
    kind: str, base: Path, tmp_path: Path
) -> None:
    before = torch.get_rng_state()
    for seed in (0, 1):
        WRITERS[kind](tmp_path / str(seed), seed)
    torch.testing.assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
    first, second, known = files(tmp_path / "0"), files(tmp_path / "1"), files(twin(kind, base))
    assert first == known and sum(map(len, first.values())) < 1_500_000
    assert {name for name in first if first[name] != second[name]} == {n for n in first if n.endswith(".safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_prediction_depends_on_latents_timestep_and_all_that_is_told(kind: str, base: Path) -> None:
    policy = reader(twin(kind, base))
    latents, sigma = torch.randn(1, *policy.latent_shape), torch.tensor([0.5])
    conditioning = policy.conditioning(["a red circle"])
    with torch.no_grad():
        usual = policy.velocity(latents, sigma, conditioning)
        others = [
            policy.velocity(0.5 * latents, sigma, conditioning),
            policy.velocity(latents, sigma / 2, conditioning),
        ]
        for n in range(len(conditioning.tensors)):
            changed = tuple(0.5 * t if m == n else t for m, t in enumerate(conditioning.tensors))
            others.append(policy.velocity(latents, sigma, type(conditioning)(changed)))
    assert all((other - usual).std() > 0.01 * usual.std() for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_text_encoder_tells_prompts_apart(kind: str, base: Path) -> None:
    tensors = reader(twin(kind, base)).conditioning(["a red circle", "a blue circle"]).tensors
    parts = [tensors[0][..., :16], *([tensors[0][..., 16:], tensors[1]] if len(tensors) > 1 else [])]
    assert all((part[0] - part[1]).abs().max() > 0.1 for part in parts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_reaches_every_weight_of_the_network(kind: str, base: Path) -> None:
    policy = policy_of(twin(kind, base), lora=None)
    latents = torch.randn(2, *policy.latent_shape)
    velocity = policy.velocity(latents, torch.tensor([0.8, 0.3]), policy.conditioning(["a", "b"]))
    velocity.square().mean().backward()
    assert all(weight.grad.abs().max() > 1e-7 for weight in policy.weights.parameters.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tiny_keeps_the_settings_and_runs(kind: str, tmp_path: Path) -> None:
    settings = {"name": kind, "model": "a/b", "negative_prompt": "blurry", "lora": {"rank": 64}, "compile": True}
    tiny: Any = build("modalities", settings).tiny(0, tmp_path / kind)
    assert (tiny.negative_prompt, tiny.height, tiny.width) == ("blurry", 32, 32)
    assert tiny.lora == Lora(rank=4) and not tiny.compile
    tiny.prepare(Placement(torch.device("cpu"), torch.float32))
    assert tiny.latent_shape == (4, 8, 8)
