"""The training of the labs' diffusers pipelines: steps, averaged weights, files."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def new_optimizer(
    parameters: list[nn.Parameter], betas: tuple[float, float], peak: float = 2e-3
) -> Callable[[Tensor, int, float], None]:
    """Returns a function of loss, step and the share of all steps that is done: AdamW, gradients clipped to norm 1.

    The learning rate is warmed up over 100 steps and falls along a cosine to 0.
    """
    optimizer = torch.optim.AdamW(parameters, lr=peak, weight_decay=1e-3, betas=betas)

    def take_step(loss: Tensor, step: int, done: float) -> None:
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        optimizer.param_groups[0]["lr"] = peak * min(1.0, (step + 1) / 100) * cosine + 1e-6
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return take_step


@torch.no_grad()
def move_average(averaged: nn.Module, learned: nn.Module, step: int, highest: float = 0.995) -> None:
    """Moves averaged weights towards the learned ones, after step 0, 1, ...: the decay rises to the highest."""
    decay = min(highest, (step + 1) / (step + 10))
    torch._foreach_lerp_(list(averaged.parameters()), list(learned.parameters()), 1 - decay)


def save(pipeline: Any, folder: Path) -> None:
    """Writes the pipeline in half precision, which turns the networks given to half precision too."""
    for part in pipeline.components.values():
        if isinstance(part, nn.Module):
            part.half()
    pipeline.save_pretrained(folder)
    for path in folder.rglob("*.json"):
        settings = json.loads(path.read_text())
        settings.pop("_name_or_path", None)  # of this machine
        if "dtype" in settings:
            # transformers loads what this says and diffusers float32: a pipeline loaded without a dtype has to agree
            settings["dtype"] = "float32"
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
