"""What a stock pipeline's call is given for a prompt: sizes, guidance, condition images, copies."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.system.spelling import near

from .conditions import IMAGE_ARGUMENTS, condition_arguments, missing, pictures_of
from .modular import inputs_of
from .results import FRAME_RATES, SOUND
from .settings import Settings

_COPIES = ("num_images_per_prompt", "num_videos_per_prompt")
# What mmrl gives itself: the prompt with its images, the noise, the number of steps, and the form of what is returned.
_OWN = frozenset(
    {"prompt", "generator", "latents", "num_inference_steps", "output_type", "return_dict", *_COPIES, *IMAGE_ARGUMENTS}
)
_SIZES = ("height", "width", "num_frames", "max_area")
GUIDER = "guider"  # a part of the pipeline that guides, in place of an argument


@dataclass(frozen=True)
class Arguments:
    """The arguments of a pipeline's call that do not depend on the prompt, and those that it takes."""

    pipeline: Any
    takes: frozenset[str]
    fixed: Mapping[str, Any]  # sizes, and further arguments from the settings
    num_steps: int
    negative_prompt: str
    guidance: str | None  # the argument for the scale, `guider`, or None where the settings fix it
    off: float = 1.0  # the scale at which the pipeline does not guide
    conditions: tuple[str, ...] = ()  # the argument for each image of a prompt, in order
    copies_by_list: bool = False  # several samples are asked for by a list of prompts, not by their number
    extra: Mapping[str, Any] = field(default_factory=dict)  # of one use: noise levels of a grid, a type of output

    @classmethod
    def of(
        cls,
        pipeline: Any,
        takes: frozenset[str],
        fixed: Mapping[str, Any],
        guidance: str,
        negative: str,
        conditions: tuple[str, ...] = (),
    ) -> Self:
        """Returns the arguments. `guidance`: an argument's name, `guider`, or `auto`.

        Raises ConfigError for arguments that the call does not take.
        """
        if unknown := sorted(set(fixed) - takes):
            raise ConfigError(
                f"arguments: {type(pipeline).__name__} takes no {unknown[0]!r}{near(unknown[0], takes - _OWN)}"
            )
        if own := sorted(set(fixed) & (_OWN | set(conditions))):
            raise ConfigError(f"arguments: {own[0]!r} is given by the run itself; leave it out")
        if guidance == "auto":
            known = [name for name in ("true_cfg_scale", "guidance_scale") if name in takes]
            guidance = next(iter(known), GUIDER)
        elif guidance != GUIDER and guidance not in takes:
            raise ConfigError(f"guidance: {type(pipeline).__name__} takes no {guidance!r}{near(guidance, takes)}")
        has_guider = getattr(pipeline, GUIDER, None) is not None
        is_fixed = guidance in fixed or (guidance == GUIDER and not has_guider)
        return cls(pipeline, takes, fixed, 2, negative, None if is_fixed else guidance, conditions=conditions)

    def with_steps(self, num_steps: int, **extra: Any) -> Self:
        """Returns the same for another number of steps, with further arguments."""
        return replace(self, num_steps=num_steps, extra=extra)

    def call(self, prompt: Prompt, scale: float | None, copies: int, seed: int) -> dict[str, Any]:
        """Returns the arguments for `copies` samples of a prompt. `scale`: of guidance; None: without."""
        given: dict[str, Any] = {"prompt": prompt.text, **self.fixed, **self._guidance(scale)}
        if prompt.media:
            given |= pictures_of(prompt, self.conditions, self.picture_size)
        if copies > 1:
            name = next((name for name in _COPIES if name in self.takes), None)
            if name is not None and not self.copies_by_list:
                given[name] = copies
            else:
                for text in ("prompt", "negative_prompt"):
                    given |= {text: [given[text]] * copies} if isinstance(given.get(text), str) else {}
        given["generator"] = torch.Generator().manual_seed(seed)  # of what the pipeline draws before its loop
        for name, value in {"num_inference_steps": self.num_steps, "output_type": "pt", "return_dict": False}.items():
            given |= {name: value} if name in self.takes else {}
        return {**given, **self.extra}

    def pipeline_for(self, scale: float | None) -> Any:
        """Returns the pipeline, with a guider of this scale where a guider guides."""
        if self.guidance != GUIDER:
            return self.pipeline
        import copy

        made = copy.copy(self.pipeline)
        made.__dict__[GUIDER] = self.pipeline.guider.new(guidance_scale=self.off if scale is None else scale)
        return made

    @property
    def picture_size(self) -> tuple[int, int] | None:
        """Returns width and height in pixels of what the call makes; None where the call is given no size."""
        if "width" not in self.fixed or "height" not in self.fixed:
            return None
        return int(self.fixed["width"]), int(self.fixed["height"])

    def _guidance(self, scale: float | None) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if self.guidance is not None and self.guidance != GUIDER:
            given[self.guidance] = self.off if scale is None else scale
        if scale is not None and "negative_prompt" in self.takes and "negative_prompt" not in self.fixed:
            given["negative_prompt"] = self.negative_prompt
        return given


def parameters_of(pipeline: Any) -> frozenset[str]:
    """Returns the names of the arguments of a pipeline's call."""
    return frozenset(inspect.signature(type(pipeline).__call__).parameters) - {"self"}


def arguments_of(settings: Settings, pipeline: Any) -> Arguments:
    """Returns the arguments that the settings say. Raises ConfigError where the pipeline's call cannot take them."""
    takes = inputs_of(pipeline) if settings.modular else parameters_of(pipeline)
    where, kind = settings.where, type(pipeline).__name__
    if settings.num_frames is not None and "num_frames" not in takes:
        raise ConfigError(f"{where}.num_frames: {kind} takes no num_frames; leave it out")
    sizes = _sizes_of(settings)
    fixed = {name: value for name, value in sizes.items() if name in takes and value is not None}
    fixed |= settings.arguments
    try:
        names = condition_arguments(pipeline, takes, settings.conditions, settings.condition_images)
        found = Arguments.of(pipeline, takes, fixed, settings.guidance, settings.negative_prompt, names)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from error
    if not settings.modular and (absent := missing(pipeline, {*names, *fixed})):
        raise ConfigError(
            f"{where}.conditions: {kind} needs {' and '.join(absent)}, and {settings.num_conditions} images are set; "
            f"set conditions: [{', '.join((*names, *absent))}]"
        )
    return found


def without_sizes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that do not say of which size samples are."""
    return {name: value for name, value in arguments.items() if name not in _SIZES}


def _sizes_of(settings: Settings) -> dict[str, Any]:
    """Returns what the settings say of sizes, rates and kinds of outputs, by the names that calls have for them."""
    sizes: dict[str, Any] = {"height": settings.height, "width": settings.width, "num_frames": settings.num_frames}
    if "max_area" not in settings.arguments:
        sizes["max_area"] = settings.height * settings.width  # FLUX.1 Kontext scales to a megapixel by itself
    if settings.modular:
        sizes["output"] = [f"{settings.output}s", SOUND] if settings.audio else f"{settings.output}s"
    if (fps := settings.fps) is not None:
        if twice := sorted(set(FRAME_RATES) & set(settings.arguments)):
            raise ConfigError(f"{settings.where}.fps: {twice[0]!r} in arguments says it too; leave one out")
        sizes |= dict.fromkeys(FRAME_RATES, int(fps) if fps == int(fps) else fps)
    return sizes


Describe = Callable[[Arguments], Any]


def find_off(arguments: Arguments, describe: Describe) -> Arguments:
    """Returns the arguments with the scale at which the pipeline makes no guided calls: 1 or 0.

    Where both make as many calls as a scale that guides, guidance is an input of the network, and 1 is a scale as any.
    `describe` returns the form of the network calls that the pipeline makes without guidance.
    """
    if arguments.guidance is None:
        return arguments
    guided = describe(replace(arguments, off=3.0))
    for off in (1.0, 0.0):
        found = replace(arguments, off=off)
        if describe(found) != guided:
            return found
    return arguments
