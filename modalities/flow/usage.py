"""Code that loads and calls an exported pipeline without mmrl, so that it samples as mmrl does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmrl.core.contracts import Usage
from mmrl.core.data import Prompt
from mmrl.plans.flow import Plan

from ..loading.exporting import loading_code

Grid = Literal["pipeline", "uniform"]


@dataclass(frozen=True)
class Call:
    """The arguments of the stock pipeline, and its scheduler."""

    settings: Mapping[str, str]  # Python by keyword
    scheduler: str | None = None  # Python that makes it; None: the pipeline's own
    imports: tuple[str, ...] = ()  # of diffusers, for the scheduler


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
    """Returns the Python that loads the export and samples one image.

    `networks`: the parts that were trained. `base`: as in `Loadable.usage`; None for a whole model.
    """
    kind = type(pipeline).__name__
    loaded = {"dtype": dtype} | absent_parts(pipeline)
    arguments = "".join(f", {name}={value}" for name, value in loaded.items())
    names = ", ".join(sorted((kind, *call.imports)))
    lines = ["import torch", f"from diffusers import {names}", ""]
    lines += ['folder = "."  # this folder, or its name on the hub']
    lines += [f"pipe = {kind}.from_pretrained({'folder' if base is None else base}{arguments})"]
    if base is not None:
        lines += loading_code(pipeline, networks)
    if call.scheduler is not None:
        lines += [f"pipe.scheduler = {call.scheduler}"]
    lines += ['pipe = pipe.to("cuda" if torch.cuda.is_available() else "cpu")', "image = pipe("]
    lines += [f"    {prompt.text!r},", *(f"    {name}={value}," for name, value in call.settings.items())]
    lines += ["    generator=torch.Generator().manual_seed(0),", ").images[0]", 'image.save("drawn.png")']
    return "\n".join(lines) + "\n"


def usage_of(code: str, trained: str, is_adapter: bool, plan: Any, grid: Grid | None) -> Usage:
    """Returns the usage of the code, with notes where it does not sample as the run does."""
    notes: tuple[str, ...] = ()
    if not is_exact(plan, grid):
        notes = (
            "The run drew with a sampler that the pipeline does not have; the code draws with the pipeline's own, with "
            "the same guidance and as many steps where they are known.",
        )
    kind = "a LoRA" if is_adapter else "all weights"
    return Usage("diffusers", "text-to-image", f"{trained}, {kind}", is_adapter, code, notes)
