"""The import of a user's own modules."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from mmrl.system.errors import ConfigError, describe

# Modules that own plug-ins import from, below `mmrl`: former name -> present name.
MOVED: Mapping[str, str] = MappingProxyType(
    {
        "actions": "parsing.actions.action",
        "answer_plans": "plans.answers",
        "answer_trees": "plans.answers",
        "answers": "parsing.answers",
        "config": "core.config",
        "contracts": "core.contracts",
        "coordinates": "parsing.coordinates",
        "data": "core.data",
        "datasets": "prompts.datasets",
        "decisions": "core.data",
        "dense": "core.dense",
        "errors": "system.errors",
        "evaluations": "core.forward_outputs",
        "given": "plans.offline",
        "judging": "scoring.standalone",
        "keys": "core.keys",
        "media": "media.pictures",
        "neighbours": "plans.flow",
        "numerics": "core.numerics",
        "outputs": "core.data",
        "plans": "plans.flow",
        "plugins": "core.plugins",
        "reward_batches": "core.reward_batches",
        "reward_contracts": "core.rewards",
        "schedules": "core.schedules",
        "video": "media.video",
        "views": "core.views",
        "weights": "core.weights",
        "checkpoint": "training.checkpoint",
        "run": "commands.train",
        "trainer": "training.trainer",
        "advantages._inner": "advantages.base.wrapper",
        "advantages.entropy_shaped": "advantages.entropy_advantage",
        "losses._decisions": "losses.base.decisions",
        "losses._denoising": "losses.base.denoising",
        "losses._log_ratios": "losses.base.log_ratios",
        "losses._outputs": "losses.base.outputs",
        "losses._paths": "losses.base.paths",
        "losses._ratio": "losses.base.ratio",
        "mixes._mix": "core.mixes",
        "rewards._answers": "rewards.base.answers",
        "rewards._held": "rewards.base.wrapper",
        "samplers._base": "samplers.base.flow",
        "samplers._kernels": "samplers.base.kernels",
        "samplers._window": "samplers.base.window",
    }
)


def own_module(name: str, what: str) -> ModuleType:
    """Returns a module of the user. Raises ConfigError, which begins with `what`, where the import fails.

    A module of mmrl that has another name now is named with it.
    """
    try:
        return importlib.import_module(name)
    except ConfigError as error:  # of a declaration in the module
        raise ConfigError(f"{what}: {error}") from error
    except Exception as error:  # user code, which may fail in any way while it is imported
        missing = error.name if isinstance(error, ImportError) else None
        if (place := _present_place(missing or "")) is not None:
            raise ConfigError(f"{what}: {name} imports from {missing}; {place}") from error
        if isinstance(error, ModuleNotFoundError):
            raise ConfigError(
                f"{what}: cannot import {missing!r}; a user's own modules are looked up in the working folder and in "
                "installed packages"
            ) from error
        raise ConfigError(f"{what}: importing {name} failed: {describe(error)}") from error


def _present_place(module: str) -> str | None:
    """Returns where the content of a former module of mmrl is now, in words; None for any other module."""
    package, _, former = module.partition(".")
    if package != "mmrl":
        return None
    if former in MOVED:
        return f"what it had is in mmrl.{MOVED[former]} now (docs/api.md lists it)"
    if former.startswith("rewards."):
        return "rewards stand in folders by what they judge, such as mmrl.rewards.boxes.box_iou"
    return None
