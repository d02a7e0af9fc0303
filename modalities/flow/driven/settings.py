"""The settings of a driven pipeline that its parts read."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol


class Settings(Protocol):
    """What the config says; the plug-in's fields say what each setting means."""

    model: str
    family: str | None
    height: int
    width: int
    num_frames: int | None
    output: Literal["image", "video"]
    fps: float | None
    audio: bool
    arguments: Mapping[str, Any]
    guidance: str
    negative_prompt: str
    network: str | None
    modular: bool
    removed_blocks: tuple[str, ...]
    condition_images: int
    conditions: tuple[str, ...]
    paused_calls: int
    vae_dtype: Literal["float32", "bfloat16"]
    prompt_cache: int
    prompt_cache_gb: float
    replay: bool | Literal["auto"]

    @property
    def where(self) -> str:
        """Returns where the settings stand in a config, for errors."""
        ...

    @property
    def num_conditions(self) -> int:
        """Returns the number of images that each prompt brings."""
        ...


def refuse_contradictions(settings: Settings) -> None:
    """Raises ValueError for settings that contradict each other."""
    if settings.conditions and settings.condition_images not in (0, len(settings.conditions)):
        raise ValueError(
            f"condition_images is {settings.condition_images}, and conditions names {len(settings.conditions)} images; "
            "leave condition_images out"
        )
    if settings.removed_blocks and not settings.modular:
        raise ValueError("removed_blocks are of modular pipelines; leave them out, or set modular: true")
    if settings.num_frames is not None and settings.output == "image":
        raise ValueError("num_frames is of videos; leave it out, or set output: video")
