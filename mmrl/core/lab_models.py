"""`model: lab:NAME` in the settings of a modality: the checkpoint of an embedded lab."""

from collections.abc import Mapping
from typing import Any

from mmrl import labs
from mmrl.system.errors import ConfigError

LAB = "lab:"  # begins the name of an embedded lab in the place of a model


def lab_of(settings: Mapping[str, Any]) -> str | None:
    """Returns the name of the embedded lab of `model: lab:NAME`; None for any other model."""
    model = settings.get("model")
    return model.removeprefix(LAB) if isinstance(model, str) and model.startswith(LAB) else None


def resolve_lab(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with the folder of an embedded lab in the place of `model: lab:NAME`.

    Raises ConfigError for an unknown lab, and for a lab without a model.
    """
    lab = lab_of(settings)
    if lab is None:
        return dict(settings)
    try:
        return {**settings, "model": str(labs.checkpoint(lab))}
    except ValueError as error:
        raise ConfigError(f"modality.model: {error}") from error
