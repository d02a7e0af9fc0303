"""Embedded worlds, each with a renderer and a verifier, and most with a tiny checkpoint to learn in."""

import difflib
import pkgutil
from collections.abc import Iterable
from pathlib import Path


def folder(name: str) -> Path:
    """Returns the folder of a lab. Raises ValueError for an unknown lab."""
    known = names()
    if name not in known:
        raise ValueError(f"unknown lab {_or_nearest(name, known)}; the labs are {', '.join(known)}")
    return Path(__file__).parent / name


def checkpoint(name: str) -> Path:
    """Returns the folder of a lab's checkpoint. Raises ValueError for an unknown lab and for a lab without a model."""
    path = folder(name) / "checkpoint"
    if not path.is_dir():
        having = [lab for lab in names() if (folder(lab) / "checkpoint").is_dir()]
        raise ValueError(f"the lab {name!r} has prompts but no model; those with one are {', '.join(having)}")
    return path


def names() -> list[str]:
    """Returns the names of the shipped labs, which are the packages of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)


def check_split(split: str, known: Iterable[str]) -> None:
    """Raises ValueError for a split that a lab does not have."""
    if split not in (splits := list(known)):
        raise ValueError(f"no split {_or_nearest(split, splits)}; the splits are {', '.join(splits)}")


def _or_nearest(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.0)[0]
    return f"{name!r} (did you mean {nearest!r}?)"
