"""What a tiny pipeline of a family is built from, and what its call is given."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True)
class PipelineFamily:
    """A family of pipelines that share a class: how to build a tiny one and how to call it."""

    build: Callable[[], Any]  # the pipeline in eval mode and frozen; its weights are those of the constructors
    call: Mapping[str, Any]  # arguments of its call at tiny size, with or without guidance
    plain: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # arguments that turn guidance off
    guided: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # arguments that turn guidance on
    networks: tuple[str, ...] = ("transformer",)  # parts that predict velocity, noise or clean latents
    makes: Literal["image", "video"] = "image"
    condition_arguments: tuple[str, ...] = ()  # the argument for each image of a prompt; twice: it takes a list
    condition_side: int = 32  # height and width of a condition image in pixels
    modular: bool = False  # a `ModularPipeline`
    guider: str | None = None  # the part whose `guidance_scale` turns guidance on (1: off), where no argument does
    second_guider: str | None = None  # another such part, of the sound that comes with a video
    removed_blocks: tuple[str, ...] = ()  # blocks that are taken out of a loaded modular pipeline before it runs
    small: Callable[[], AbstractContextManager[None]] = nullcontext  # keeps the pipeline's sizes tiny while it runs

    @property
    def conditions(self) -> int:
        """Returns the number of condition images that a prompt needs."""
        return len(self.condition_arguments)
