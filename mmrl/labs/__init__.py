"""Embedded worlds, each with a renderer, a verifier and a tiny checkpoint to learn in."""

import difflib
import pkgutil
from pathlib import Path


def checkpoint(name: str) -> Path:
    """The folder of a lab's checkpoint; raises ValueError for an unknown lab."""
    known = names()
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise ValueError(f"unknown lab {name!r} (did you mean {nearest!r}?); the labs are {', '.join(known)}")
    return Path(__file__).parent / name / "checkpoint"


def names() -> list[str]:
    """The shipped labs, by walking this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
