"""Tiny twins of families that mmrl does not list."""

from pathlib import Path

from mmrl.modalities.tiny.vision_language import UNLISTED as BUILDERS
from tests.vision_twins import twin


def unlisted(family: str) -> Path:
    """The folder of a family's tiny twin, written once."""
    assert family in BUILDERS
    return twin(family)
