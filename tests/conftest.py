"""What holds for every test: no network, one thread, and the same random numbers in any order of the tests."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once

settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=50)  # what CI runs
settings.register_profile("mmrl", settings.get_profile("thorough"), max_examples=25)
settings.load_profile("mmrl")
# `torch.manual_seed` keeps a stack trace for each GPU that may be there later, 11,000 times.
SEED = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    torch.set_num_threads(1)
    SEED(0)
