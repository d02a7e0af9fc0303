"""The scheduler of a driven pipeline: that of a flow, in the place of a multistep solver that the pipeline ships."""

import logging
from typing import Any

from mmrl.core.contracts import ConfigError

_log = logging.getLogger(__name__)
# Those of diffusion models of constant variance, whose steps are those of a flow in another scale.
_CONSTANT_VARIANCE = ("DDIMScheduler", "CogVideoXDDIMScheduler")


def has_constant_variance(scheduler: Any) -> bool:
    """Returns whether a pipeline's scheduler is that of a diffusion model of constant variance."""
    return type(scheduler).__name__ in _CONSTANT_VARIANCE


def flow_scheduler(scheduler: Any, setting: str) -> Any:
    """Returns a `FlowMatchEulerDiscreteScheduler` with the shift of a pipeline's scheduler.

    Returns the scheduler itself where it is one, and where it is one of constant variance.

    Raises ConfigError, which names the `setting`, for the scheduler of another kind of model.
    """
    from diffusers import FlowMatchEulerDiscreteScheduler

    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler) or has_constant_variance(scheduler):
        return scheduler
    config, name = scheduler.config, type(scheduler).__name__
    is_flow = config.get("use_flow_sigmas") or "FlowMatch" in name or config.get("prediction_type") == "flow_prediction"
    if not is_flow:
        raise ConfigError(f"{setting}: its {name} is not the scheduler of a flow")
    _log.warning("the pipeline ships a %s; rollouts take the steps of Euler at its shift", name)
    kind: Any = FlowMatchEulerDiscreteScheduler
    shift = config.get("flow_shift", config.get("shift", 1.0)) or 1.0
    return kind(shift=shift, num_train_timesteps=config.get("num_train_timesteps", 1000))
