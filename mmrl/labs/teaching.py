"""The training of the labs' Qwen2.5-VL checkpoints: stages, steps, forward passes, files."""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPooling

Noise = TypeVar("Noise")


@dataclass(frozen=True)
class Stage(Generic[Noise]):
    """One part of the language model's training."""

    name: str
    num_steps: int
    learning_rate: float
    noise: Noise  # errors of the labels
    is_falling: bool = False  # learning rate: cosine down to a tenth, else constant
    hints: float = 1.0  # weight of the loss of the auxiliary heads, which are not saved

    def rate(self, step: int, num_steps: int) -> float:
        """Returns the learning rate of a step, warmed up over the first 30."""
        return warm(self.learning_rate, step) * (cosine(step / num_steps) if self.is_falling else 1.0)


@dataclass(frozen=True)
class Course:
    """The stages of a lab's training, in order."""

    tower_steps: int
    stages: Sequence[Stage[Any]]
    spoil: Stage[Any]  # trains errors into the model, for RL to repair
    num_graded: int  # of held-out questions, before spoiling and after it


class Learning(Protocol):
    """A lab's teacher: it trains the tower first, then the language model stage by stage."""

    model: Any
    processor: Any

    def train_tower(self, num_steps: int) -> None: ...

    def train_language(self, stage: Any, num_steps: int) -> None: ...


def make_checkpoint(
    folder: Path, teacher: Learning, course: Course, report: Callable[[Path, int], None], scale: float
) -> None:
    """Trains a model in all stages; writes it to `folder`, and the model before spoiling to FOLDER_unspoilt.

    Args:
        report: prints the scores of the checkpoint in a folder on a number of first questions.
        scale: factor of all steps and, down to 8, of the number of graded questions.
    """
    num_graded = min(course.num_graded, max(8, round(course.num_graded * scale)))
    teacher.train_tower(max(1, round(course.tower_steps * scale)))
    unspoilt = folder.with_name(f"{folder.name}_unspoilt")
    for stages, path in ((course.stages, unspoilt), ([course.spoil], folder)):
        for stage in stages:
            teacher.train_language(stage, max(1, round(stage.num_steps * scale)))
        save(teacher.model, teacher.processor, path)
        report(path, num_graded)


def forward(
    model: Any, medium: Literal["image", "video"], features: Tensor, head: Tensor, questions: Tensor, positions: Tensor
) -> tuple[Any, Any]:
    """Returns outputs with hidden states of S chats through their medium, and of B questions after it; S divides B.

    The shared part of the B / S questions about one medium, which are neighbors, runs once.

    Args:
        features: [S, ..., H], the tower's features of the media.
        head: [1, L], the tokens of a chat through its medium.
        questions: [B, T], the tokens after the medium.
        positions: [3, 1, L + T] (time, height, width), of both.
    """
    num_media, length = len(features), head.shape[1]
    pooled: Any = (features.flatten(0, -2),)  # the annotation says a tensor; a tuple, as of the tower
    cache = DynamicCache(config=model.config.text_config)
    before = model.model(
        input_ids=head.expand(num_media, -1),
        position_ids=positions[..., :length].expand(-1, num_media, -1),
        mm_encoder_outputs={medium: BaseModelOutputWithPooling(pooler_output=pooled)},
        past_key_values=cache,
        use_cache=True,
        output_hidden_states=True,
    )
    cache.batch_repeat_interleave(len(questions) // num_media)
    after = model.model(
        input_ids=questions,
        position_ids=positions[..., length:].expand(-1, len(questions), -1),
        past_key_values=cache,
        use_cache=True,
        output_hidden_states=True,
    )
    return before, after


class Optimizer:
    """AdamW with gradients clipped to norm 1, called with a loss and a learning rate."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.adamw = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.01)

    def __call__(self, loss: Tensor, learning_rate: float) -> None:
        self.adamw.param_groups[0]["lr"] = learning_rate
        self.adamw.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.adamw.step()


def warm(learning_rate: float, step: int) -> float:
    """Returns the learning rate of a step: a thirtieth of it in the first step, all of it from the thirtieth."""
    return learning_rate * min(1.0, (step + 1) / 30)


def cosine(done: float) -> float:
    """Returns a factor that falls from 1 at `done = 0` to a tenth at `done = 1`."""
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def save(model: Any, processor: Any, folder: Path) -> None:
    """Writes the model in half precision, and the processor; the Auto classes load it in float32."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = model.generation_config
    copy.half().save_pretrained(folder)
    processor.save_pretrained(folder)
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["dtype"] = "float32"
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def command_line(description: str | None, pretrain: Callable[..., None]) -> None:
    """Calls `pretrain(folder, seed=, scale=)`: on one thread, so that a seed gives the same weights on one machine."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of every stage; 0.01 is a smoke test")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pretrain(arguments.out, seed=arguments.seed, scale=arguments.scale)
