"""Driven policies, and stock pipelines with planted faults."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.contracts import Placement
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline

MakeDriven = Callable[..., DiffusersPipeline]


@pytest.fixture
def driven_sd3(twin_folder: Path) -> Iterator[MakeDriven]:
    """Makes the random tiny SD3 a driven policy; settings by keyword, `fault` is planted into the pipeline's class."""
    made: list[DiffusersPipeline] = []

    def make(
        fault: Callable[[Any], Any] | None = None, dtype: torch.dtype = torch.float32, **settings: Any
    ) -> DiffusersPipeline:
        given: dict[str, Any] = {
            "model": str(twin_folder),
            "height": 32,
            "width": 32,
            "arguments": {"max_sequence_length": 8},
        } | settings

        class Planted(DiffusersPipeline):
            def open(self, source: str, trained: torch.dtype, frozen: torch.dtype) -> Any:
                pipeline = super().open(source, trained, frozen)
                return pipeline if fault is None else fault(pipeline)

        torch.manual_seed(0)
        policy = Planted(**given)
        policy.prepare(Placement(torch.device("cpu"), dtype))
        made.append(policy)
        return policy

    yield make
    for policy in made:
        policy.close()
