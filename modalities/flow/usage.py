"""Code that loads and calls an exported pipeline without mmrl, so that it samples as mmrl does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mmrl.core.contracts import Usage
from mmrl.core.data import Prompt
from mmrl.plans.flow import Plan

from ..loading.exporting import loading_code

Grid = Literal["pipeline", "uniform"]
Makes = Literal["image", "video"]
# The field of the stock output that the code saves, and the line that saves it.
_SAVING = {
    "image": ("images", 'image.save("drawn.png")'),
    "video": ("frames", 'export_to_video(video, "drawn.mp4", fps={fps:g})'),
}


@dataclass(frozen=True)
class Call:
    """The arguments of the stock pipeline, and its scheduler."""

    settings: Mapping[str, str]  # Python by keyword
    scheduler: str | None = None  # Python that makes it; None: the pipeline's own
    imports: tuple[str, ...] = ()  # of diffusers, for the scheduler
    makes: Makes = "image"
    fps: float = 16  # frames per second of a video
    sound_rate: int | None = None  # samples per second of a video's sound; None: it is silent, or is not saved
    conditions: Mapping[str, str] = field(default_factory=dict)  # Python of condition images by keyword
    images: tuple[str, ...] = ()  # the files that this Python loads
    setup: tuple[str, ...] = ()  # lines of Python that change the loaded `pipe`
    is_modular: bool = False


def grid_of(plan: Any, sigmas: Callable[[Grid, int], list[float]]) -> Grid | None:
    """Returns the policy's grid that a plan steps along; None for other noise levels."""
    if not isinstance(plan, Plan):
        return None
    levels = [*plan.paths[0].levels, plan.paths[0].last_level]
    grids: tuple[Grid, ...] = ("pipeline", "uniform")
    return next((kind for kind in grids if levels == list(sigmas(kind, len(levels) - 1))), None)


def num_steps(plan: Plan) -> int:
    """Returns the number of steps on the trunk of a plan, those of its solver included."""
    tail = plan.paths[0].tail
    return len(plan.paths[0].steps) + (0 if tail is None else len(tail.sigmas) - 1)


def is_exact(plan: Any, grid: Grid | None) -> bool:
    """Returns whether the stock pipeline can sample as the plan does: plain steps without noise, on its own grid."""
    return grid is not None and plan.is_plain and not any(step.is_random for path in plan.paths for step in path.steps)


def absent_parts(pipeline: Any) -> dict[str, str]:
    """Returns the absent parts of a pipeline that its loader needs as arguments, each with its Python, `None`."""
    optional = pipeline._optional_components
    return {name: "None" for name, part in pipeline.components.items() if part is None and name not in optional}


def code_of(pipeline: Any, networks: Sequence[str], dtype: str, prompt: Prompt, call: Call, base: str | None) -> str:
    """Returns the Python that loads the export and samples one image or video.

    Condition images stand beside the code as `condition_0.png` and so on.
    `networks`: the parts that were trained. `base`: as in `Loadable.usage`; None for a whole model.
    """
    source = "folder" if base is None else base
    made, saving = _SAVING[call.makes]
    kind = "ModularPipeline" if call.is_modular else type(pipeline).__name__
    has_sound = call.sound_rate is not None
    saves = "encode_video" if has_sound else "export_to_video"
    tools = [saves] * (call.makes == "video") + ["load_image"] * bool(call.conditions)
    lines = ["import torch", f"from diffusers import {', '.join(sorted((kind, *call.imports)))}"]
    packages = "av" if has_sound else "imageio imageio-ffmpeg"
    needs = f"  # pip install {packages}" if call.makes == "video" else ""
    lines += [f"from diffusers.utils import {', '.join(tools)}{needs}"] if tools else []
    lines += ["", 'folder = "."  # this folder, or its name on the hub']
    if call.is_modular:
        lines += [f"pipe = {kind}.from_pretrained({source})", f"pipe.load_components(torch_dtype={dtype})"]
    else:
        loaded = {"dtype": dtype} | absent_parts(pipeline)
        arguments = "".join(f", {name}={value}" for name, value in loaded.items())
        lines += [f"pipe = {kind}.from_pretrained({source}{arguments})"]
    if base is not None:
        lines += loading_code(pipeline, networks)
    lines += call.setup
    if call.scheduler is not None:
        lines += [f"pipe.scheduler = {call.scheduler}"]
    name_of_result = "video, sound, *_" if has_sound else call.makes
    lines += ['pipe = pipe.to("cuda" if torch.cuda.is_available() else "cpu")', f"{name_of_result} = pipe("]
    given = {"prompt": repr(prompt.text), **call.settings, **call.conditions}
    given["generator"] = "torch.Generator().manual_seed(0)"
    lines += [f"    {name}={value}," for name, value in given.items()]
    if has_sound:
        lines += [
            "    return_dict=False,",
            ")",
            "sound = torch.atleast_2d(sound[0].float().cpu())  # [channels, samples]",
        ]
        rate = f"audio_sample_rate={call.sound_rate}"
        lines += [f'encode_video(video[0], fps={call.fps:g}, output_path="drawn.mp4", audio=sound, {rate})']
    else:
        lines += [")[0]" if call.is_modular else f").{made}[0]", saving.format(fps=call.fps)]
    return "\n".join(lines) + "\n"


def usage_of(code: str, call: Call, trained: str, is_adapter: bool, plan: Any, grid: Grid | None) -> Usage:
    """Returns the usage of the code, with notes where it does not sample as the run does."""
    notes: tuple[str, ...] = ()
    if not is_exact(plan, grid):
        notes = (
            "The run drew with a sampler that the pipeline does not have; the code draws with the pipeline's own, with "
            "the same guidance and as many steps where they are known.",
        )
    kind = "a LoRA" if is_adapter else "all weights"
    task = f"{'image' if call.conditions else 'text'}-to-{call.makes}"  # as the hub calls it
    return Usage("diffusers", task, f"{trained}, {kind}", is_adapter, code, notes, call.images)
