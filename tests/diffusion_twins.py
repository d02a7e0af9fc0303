"""Tiny Stable Diffusion policies with the scheduler that a test wants, and the stock pipelines beside them."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import diffusers
import torch
from torch import Tensor

from mmrl.core.contracts import Placement
from mmrl.core.keys import GroupKey, normal
from mmrl.core.plugins import build
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tiny.stable_diffusion import write_tiny_stable_diffusion, write_tiny_stable_diffusion_xl

KINDS = ("stable_diffusion", "stable_diffusion_xl")
PREDICTIONS = ("epsilon", "v_prediction", "sample")
KEY = GroupKey(3, 0, 0)
SHAPE = (4, 8, 8)  # of the latents of 32 x 32 pixels
DIFFUSERS: Any = diffusers
WRITERS: dict[str, Callable[[Path, int], None]] = {
    "stable_diffusion": write_tiny_stable_diffusion,
    "stable_diffusion_xl": write_tiny_stable_diffusion_xl,
}


@cache
def twin(kind: str, base: Path) -> Path:
    """The folder of a twin of seed 0, written once."""
    WRITERS[kind](base / kind, 0)
    return base / kind


def with_scheduler(folder: Path, name: str = "DDIMScheduler", **changes: Any) -> Path:
    """A copy of a twin whose scheduler is another, or set otherwise."""
    label = "-".join([name, *(f"{key}={value}" for key, value in changes.items())])
    copy = folder.with_name(f"{folder.name}-{label}")
    if copy.is_dir():
        return copy
    copytree(folder, copy)
    path = copy / "scheduler" / "scheduler_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    own = getattr(diffusers, name).from_config(config | changes)
    path.write_text(json.dumps(dict(own.config) | {"_class_name": name} | changes), encoding="utf-8")
    index = json.loads((copy / "model_index.json").read_text(encoding="utf-8"))
    index["scheduler"] = ["diffusers", name]
    (copy / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return copy


def policy_of(folder: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """The twin in a folder as a policy, with a LoRA unless told otherwise."""
    torch.manual_seed(0)
    kind = max((name for name in KINDS if folder.name.startswith(name)), key=len)
    given = {"name": kind, "model": str(folder), "height": 32, "width": 32}
    policy: Any = build("modalities", given | {key: value for key, value in settings.items() if key != "lora"})
    policy.lora = settings.get("lora", Lora(rank=2))
    policy.prepare(Placement(torch.device("cpu"), dtype))
    return policy


@cache
def reader(folder: Path) -> Any:
    """A policy for tests that change nothing of it."""
    return policy_of(folder)


def step_noise(shape: tuple[int, ...], count: int, key: GroupKey = KEY) -> Callable[[int], Tensor]:
    """The noise that a group of `count` samples without forks draws at each step."""
    return lambda step: normal(key.seed_for("step", step), (count, *shape))


class Given(DIFFUSERS.DDIMScheduler):  # type: ignore[misc]  # diffusers has no types
    """DDIM whose noise is handed to it: that of its n-th step."""

    noise: Callable[[int], Tensor]

    def step(self, model_output: Any, timestep: Any, sample: Any, eta: float = 0.0, return_dict: bool = True) -> Any:
        noise = self.noise(self.timesteps.tolist().index(int(timestep)))
        return super().step(model_output, timestep, sample, eta=eta, variance_noise=noise, return_dict=return_dict)


@cache
def _stock(folder: Path) -> Any:
    kind = max((name for name in KINDS if folder.name.startswith(name)), key=len)
    loader = DIFFUSERS.StableDiffusionXLPipeline if kind.endswith("xl") else DIFFUSERS.StableDiffusionPipeline
    extra = {} if kind.endswith("xl") else {"safety_checker": None, "requires_safety_checker": False}
    pipeline = loader.from_pretrained(folder, **extra)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


class GivenLCM(DIFFUSERS.LCMScheduler):  # type: ignore[misc]  # diffusers has no types
    """LCM's scheduler whose noise is handed to it: that of its n-th step."""

    noise: Callable[[int], Tensor]

    def step(self, model_output: Any, timestep: Any, sample: Any, return_dict: bool = True) -> Any:
        number = self.timesteps.tolist().index(int(timestep))
        clean = super().step(model_output, timestep, sample).denoised
        if number == len(self.timesteps) - 1:
            return clean, clean
        share = self.alphas_cumprod[self.timesteps[number + 1]]
        return share.sqrt() * clean + (1 - share).sqrt() * self.noise(number), clean


def stock_images(
    folder: Path, noise: Callable[[int], Tensor] | None = None, scheduler: Any = Given, **call: Any
) -> Tensor:
    """What the pipeline in the folder draws by itself, from the same first latents; with `noise` by DDIM or as told."""
    pipeline = _stock(folder)
    if noise is not None:
        pipeline.scheduler = scheduler.from_config(pipeline.scheduler.config)
        pipeline.scheduler.noise = noise
    latents = normal(KEY.seed_for("root"), (2, 4, 8, 8))
    images: Tensor = pipeline(
        "a cat", height=32, width=32, num_images_per_prompt=2, latents=latents, output_type="pt", **call
    ).images
    return images
