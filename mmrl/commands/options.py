"""What commands of the command line share: options, the names that options allow, and how results are printed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmrl.system.errors import ConfigError

if TYPE_CHECKING:
    from mmrl.core.data import WeightsName

ConfigName = Annotated[str, typer.Argument(metavar="CONFIG", help="A shipped config's name, or a YAML file.")]
Source = Annotated[str, typer.Argument(metavar="RUN", help="A run directory (or a config: its untrained model).")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key.sub=value]...", help="Settings to change.")]
Json = Annotated[bool, typer.Option("--json", help="JSON alone on stdout.")]
Which = Annotated[str | None, typer.Option("--weights", help="trained, averaged, old or reference.")]
Images = Annotated[
    list[Path] | None, typer.Option("--image", help="An image of the one prompt; may be given more than once.")
]
Videos = Annotated[
    list[Path] | None, typer.Option("--video", help="A video of the one prompt; may be given more than once.")
]
At = Annotated[str, typer.Option("--checkpoint", help="last or best.")]


def show(entries: dict[str, Any], as_json: bool) -> None:
    """Prints JSON alone, or a line for each entry."""
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    lines = [line for name, value in entries.items() for line in _lines(name, value)]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name:{width}}  {value:.4g}" if isinstance(value, float) else f"{name:{width}}  {value}")


def _lines(name: str, value: Any) -> list[tuple[str, Any]]:
    """Returns the lines of an entry, name and value: one for each part of a mapping and of a list."""
    if isinstance(value, Mapping):
        return [(f"{name}, {part}", inner) for part, inner in value.items()]
    if isinstance(value, list):
        return [("" if number else name, inner) for number, inner in enumerate(value)]
    return [(name, value)]


def weights_named(name: str | None) -> "WeightsName | None":
    """Returns the weights of --weights. Raises ConfigError for an unknown name."""
    if name in (None, "trained", "averaged", "old", "reference"):
        return name  # type: ignore[return-value]
    raise ConfigError(f"--weights must be trained, averaged, old or reference, got {name!r}")


def checkpoint_named(name: str) -> Any:
    """Returns the checkpoint of --checkpoint. Raises ConfigError for an unknown name."""
    if name in ("last", "best"):
        return name
    raise ConfigError(f"--checkpoint must be last or best, got {name!r}")
