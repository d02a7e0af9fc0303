"""What holds for every test: no network, one thread, and the same random numbers in any order of the tests."""

import atexit
import gc
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

gc.disable()  # until all tests are collected: what is imported stays
os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once

settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=50)  # what CI runs
settings.register_profile("mmrl", settings.get_profile("thorough"), max_examples=25)
settings.load_profile("mmrl")


def pytest_collection_finish() -> None:
    """Takes two things out of the way of each test: a heap full of modules, and the loggers of torch.

    pytest adds its handlers, six times a test, to each logger that does not hand on what it logs.
    """
    gc.enable()
    gc.freeze()
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True


def pytest_configure() -> None:
    """Lets modules be freed again in the very end: libraries complain of what is left then."""
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return Path(__file__).parents[1]


@cache
def _start() -> tuple[Callable[[int], None], Callable[[int], object]]:
    """Returns what sets torch's number of threads, and its seed.

    torch is imported here: the process that only hands tests to its workers starts them seconds earlier without.
    """
    import torch

    # `torch.manual_seed` keeps a stack trace for each GPU that may be there later, 11,000 times.
    seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
    return torch.set_num_threads, seed


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    set_num_threads, seed = _start()
    set_num_threads(1)
    seed(0)
