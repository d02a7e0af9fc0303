"""The small random pipeline that stands in for a model in `--tiny`, by the setting `family`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mmrl.core.contracts import ConfigError
from mmrl.system.spelling import near

from .settings import Settings


def check_family(settings: Settings) -> None:
    """Raises ConfigError for the name of no family: it would be found out by the next --tiny only."""
    from ...tiny.pipelines.families import FAMILIES

    if settings.family is not None and settings.family not in FAMILIES:
        raise ConfigError(
            f"{settings.where}.family: there is no family {settings.family!r}{near(settings.family, FAMILIES)}; "
            "`mmrl list families` prints their names"
        )


def shrunk(settings: Settings) -> AbstractContextManager[None]:
    """Keeps the sizes of the family's small pipeline, which constants of diffusers' modules say."""
    from ...tiny.pipelines.families import FAMILIES

    found = FAMILIES.get(settings.family or "")
    return nullcontext() if found is None else found.small()


def write_twin(settings: Settings, folder: Path, seed: int) -> Mapping[str, Any]:
    """Writes the family's small pipeline to a folder, and returns the settings that it needs.

    Raises ConfigError where the family is not set, or there is none of the name.
    """
    from ...tiny.pipelines.families import FAMILIES, write_tiny_pipeline

    check_family(settings)
    if settings.family is None:
        raise ConfigError(
            f"{settings.where}.family: names the small pipeline of --tiny; set it"
            f"{_like(settings.model, list(FAMILIES))}; `mmrl list families` prints their names"
        )
    write_tiny_pipeline(settings.family, folder, seed)
    found = FAMILIES[settings.family]
    call = dict(found.call)
    sizes: dict[str, Any] = {name: call.pop(name) for name in ("height", "width", "num_frames") if name in call}
    return {
        "arguments": {**settings.arguments, **call},
        "modular": found.modular,
        "removed_blocks": found.removed_blocks,
        "output": found.makes,
        "condition_images": 0,
        "conditions": found.condition_arguments,
        **sizes,
    }


def _like(model: str, families: Sequence[str]) -> str:
    """Returns ', such as ...' with the families whose names are nearest to a model's; an empty text without any."""
    own = model.rstrip("/").rpartition("/")[2].lower().replace("-", "_").replace(".", "")
    found = get_close_matches(own, [*families], n=3, cutoff=0.4)
    return f", such as {' or '.join(found)}" if found else ""
