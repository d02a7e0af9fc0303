"""The call of the stock pipeline that samples as a plan does, for code that uses an export without mmrl."""

from typing import Any

from mmrl.core.data import Prompt
from mmrl.plans.flow import Plan

from ..usage import Call, num_steps
from .arguments import GUIDER
from .conditions import code_of_conditions, condition_file
from .pipeline import DrivenPipeline
from .results import sound_rate


def call_of(driven: DrivenPipeline, plan: Any) -> Call:
    """Returns the arguments of the call as Python, and what is changed in the pipeline before it."""
    own, settings = driven.arguments, driven.settings
    given = {name: repr(value) for name, value in own.fixed.items()}
    setup = [f"pipe.blocks.sub_blocks.pop({name!r})" for name in settings.removed_blocks]
    if isinstance(plan, Plan):
        given["num_inference_steps"] = str(num_steps(plan) + driven.scale.num_trailing_steps)
        scale = driven.scale_of(plan.guidance_scale)
        guided = own.call(Prompt(""), scale, 1, 0)
        names = [name for name in (own.guidance, "negative_prompt") if name in guided]
        given |= {str(name): repr(guided[name]) for name in names if name is not None}
        if own.guidance == GUIDER:
            setup += [f"pipe.guider = pipe.guider.new(guidance_scale={own.off if scale is None else scale!r})"]
    scheduler, imports = _scheduler_of(driven)
    return Call(
        given,
        scheduler=scheduler,
        imports=imports,
        makes=settings.output,
        fps=driven.frames_per_second,
        sound_rate=sound_rate(driven.pipeline) if settings.audio and not settings.modular else None,
        conditions=code_of_conditions(own.conditions, own.picture_size),
        images=tuple(condition_file(number) for number in range(len(own.conditions))),
        setup=tuple(setup),
        is_modular=settings.modular,
    )


def _scheduler_of(driven: DrivenPipeline) -> tuple[str | None, tuple[str, ...]]:
    """Returns Python that makes the scheduler, and what it imports; None where it is the one that is shipped."""
    if not driven.has_other_steps:
        return None, ()
    kind, config = type(driven.pipeline.scheduler).__name__, driven.pipeline.scheduler.config
    return f"{kind}(shift={config.shift!r}, num_train_timesteps={config.num_train_timesteps!r})", (kind,)
