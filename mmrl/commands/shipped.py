"""The sections of shipped configs, read fast: what lists and chooses among all of them needs no checked settings."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mmrl.core.config import SHIPPED

_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@cache
def sections_of(name: str) -> Mapping[str, Any]:
    """Returns the sections of a shipped config, which nobody may change: others get the same ones."""
    return _parsed(SHIPPED.joinpath(f"{name}.yaml").read_text(encoding="utf-8"))


def sections_in(config: str | Path) -> Mapping[str, Any]:
    """Returns the sections of a file as it is now, or of a shipped config."""
    path = Path(config)
    return _parsed(path.read_text(encoding="utf-8")) if path.is_file() else sections_of(str(config))


def _parsed(text: str) -> Mapping[str, Any]:
    return dict(yaml.load(text, Loader=_LOADER))
