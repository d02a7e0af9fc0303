"""What holds for every test: no network, one thread, and the same random numbers in any order of the tests."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once

settings.register_profile("mmrl", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("mmrl")


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
