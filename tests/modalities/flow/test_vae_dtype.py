"""An autoencoder in bfloat16: it decodes as the stock one in bfloat16 does, near to float32."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.assembly.build import _set_tf32
from mmrl.core.config import load_config
from mmrl.core.contracts import Placement
from mmrl.core.keys import normal
from mmrl.core.plugins import build
from tests.diffusion_twins import SHAPE, policy_of, twin


@pytest.mark.slow  # loads small pipelines
def test_latents_are_decoded_and_encoded_in_bfloat16(tmp_path: Path) -> None:
    folder = twin("stable_diffusion", tmp_path)
    exact, rounded = policy_of(folder), policy_of(folder, vae_dtype="bfloat16")
    latents = normal(3, (2, *SHAPE))
    wanted, found = exact.decode_latents(latents), rounded.decode_latents(latents)
    vae = rounded._pipeline.vae
    assert vae.dtype == torch.bfloat16 and exact._pipeline.vae.dtype == torch.float32
    stock = vae.decode((latents / vae.config.scaling_factor).bfloat16(), return_dict=False)[0].float()
    assert found.dtype == torch.float32 and torch.equal(found, (stock / 2 + 0.5).clamp(0, 1))
    assert 0 < (found - wanted).abs().max() < 0.05
    again, encoded = exact.encode_images(wanted), rounded.encode_images(wanted)
    assert encoded.dtype == torch.float32 and 0 < (encoded - again).norm() < 0.05 * again.norm()


@pytest.mark.slow  # small pipelines, probed
@pytest.mark.parametrize("family", ["z_image", "modular_flux"])  # the second hands its autoencoder float32
def test_driven_pipelines_decode_in_bfloat16(family: str, tmp_path: Path) -> None:
    policy: Any = build("modalities", {**load_config(f"families/{family}").modality, "vae_dtype": "bfloat16"})
    policy = policy.tiny(0, tmp_path / "model")
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    found = policy.decode_latents(latents := normal(1, (1, *policy.latent_shape)))
    assert policy._pipeline.vae.dtype == torch.bfloat16 and found.dtype == torch.float32
    policy.close()
    exact = replace(policy, vae_dtype="float32")
    exact.prepare(Placement(torch.device("cpu"), torch.float32))
    assert 0 < (found - exact.decode_latents(latents)).abs().max() < 0.1
    exact.close()


@pytest.mark.parametrize("allows", [True, False])
def test_tf32_is_allowed_or_forbidden_and_else_left_as_it_is(allows: bool) -> None:
    owners: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [owner.allow_tf32 for owner in owners]
    try:
        for setting in (allows, None):
            _set_tf32(setting)
            assert [owner.allow_tf32 for owner in owners] == [allows, allows]
    finally:
        for owner, value in zip(owners, before, strict=True):
            owner.allow_tf32 = value
    assert load_config("quickstart").tf32 is None
