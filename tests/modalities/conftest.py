"""Policies that the tests of modalities share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl import labs
from mmrl.core.contracts import Placement
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.sd3 import StableDiffusion3

MakePolicy = Callable[..., StableDiffusion3]


@pytest.fixture
def lab_policy() -> MakePolicy:
    """Makes the shapes lab's model a policy; settings by keyword."""

    def make(dtype: torch.dtype = torch.float32, **settings: Any) -> StableDiffusion3:
        torch.manual_seed(0)
        given: dict[str, Any] = {
            "model": str(labs.checkpoint("shapes")),
            "height": 32,
            "width": 32,
            "max_sequence_length": 1,
        } | settings
        policy = StableDiffusion3(**given)
        policy.prepare(Placement(torch.device("cpu"), dtype))
        return policy

    return make


@pytest.fixture(scope="session")
def twin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny SD3 with all three text encoders."""
    from mmrl.modalities.tiny.sd3 import write_tiny_sd3

    folder = tmp_path_factory.mktemp("twin")
    write_tiny_sd3(folder, 0)
    return folder


@pytest.fixture
def twin_policy(twin_folder: Path, lab_policy: MakePolicy) -> MakePolicy:
    """The same for the random tiny SD3."""

    def make(dtype: torch.dtype = torch.float32, **settings: Any) -> StableDiffusion3:
        return lab_policy(
            dtype, **({"model": str(twin_folder), "max_sequence_length": 8, "lora": Lora(rank=2)} | settings)
        )

    return make


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the twins of Stable Diffusion are written, once each."""
    return tmp_path_factory.mktemp("diffusion")
