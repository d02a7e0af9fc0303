"""Shipped models and new teachers of the lab that a test module, or a parameter, names as its `lab`."""

from importlib import import_module
from typing import Any

import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl import labs


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> str:
    name: str = request.module.LAB
    return name


@pytest.fixture(scope="module")
def model(lab: str) -> Any:
    """The shipped model."""
    return AutoModelForImageTextToText.from_pretrained(labs.checkpoint(lab)).eval()


@pytest.fixture(scope="module")
def processor(lab: str) -> Any:
    """The shipped processor."""
    return AutoProcessor.from_pretrained(labs.checkpoint(lab))


@pytest.fixture(scope="module")
def new_processor(lab: str) -> Any:
    """The one that the lab's script makes."""
    return import_module(f"mmrl.labs.{lab}.networks").new_processor()


@pytest.fixture
def teacher(lab: str, new_processor: Any) -> Any:
    """One that has taught nothing yet."""
    new_model = import_module(f"mmrl.labs.{lab}.networks").new_model(new_processor)
    return import_module(f"mmrl.labs.{lab}.pretrain").Teacher(new_model, new_processor, 0)
