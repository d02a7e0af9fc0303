"""Makes the lab's checkpoint: the vision tower first, then the language model on its image tokens, then noisy labels.

1. tower: learns what lies in each 28-pixel cell, and where (`targets.py`), and is frozen from then on;
2. bind, settle: the language model learns which element is meant, and to name its place;
3. spoil: labels of another element and labels off the centre, so that RL has something to mend.

The checkpoint before stage 3 is kept beside it as FOLDER_unspoilt, since RL cannot be asked for much more than that.
"""

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.labs.screens import grading, networks, world
from mmrl.labs.screens.drawing import SIZE
from mmrl.labs.screens.questions import Batch, Noise, questions, shared_head, soft_labels
from mmrl.labs.screens.targets import PointerHeads, TowerHeads
from mmrl.labs.teaching import Course, Optimizer, Stage, command_line, cosine, forward, make_checkpoint, warm

TOWER_SCREENS, LANGUAGE_SCREENS = 32, 16  # of a step
POOL = 80  # batches of screens that are asked again, each about three times
POINTER_LAYER = 3  # of four: what is found there, the answer's tokens can still read in the last layer
TOWER_STEPS = 1200
TOWER_RATE = 1.5e-3

RIGHT: dict[world.Task, Noise] = {"click": Noise(), "box": Noise()}
STAGES = (
    Stage("bind", 750, 2e-3, RIGHT),
    Stage("settle", 900, 1.5e-3, RIGHT, is_falling=True, hints=0.2),
)
WRONG: dict[world.Task, Noise] = {
    "click": Noise(wrong=0.33, jitter=0.12, shift=0.26),
    "box": Noise(wrong=0.25, jitter=0.1, shift=0.1),
}
SPOIL = Stage("spoil", 120, 5e-4, WRONG, is_falling=True, hints=0.0)


def pretrain(folder: Path, *, seed: int, scale: float = 1.0) -> None:
    """Trains everything from one seed; writes the checkpoint, and the one before spoiling. `scale` is of all steps."""
    torch.manual_seed(seed)
    processor = networks.new_processor()
    teacher = Teacher(networks.new_model(processor), processor, seed)
    make_checkpoint(folder, teacher, Course(TOWER_STEPS, STAGES, SPOIL, num_graded=512), grading.report, scale)


@dataclass(frozen=True)
class Seen:
    """Screens, and their features from the frozen tower."""

    screens: Sequence[Any]  # S, what a Teacher draws
    image_tokens: Tensor  # [S, 16, H]


class Teacher:
    """A teacher that trains a model stage by stage, on screens that no split holds.

    Another lab of windows overrides the screens (anything with `render()`), their elements, and the questions.
    """

    def __init__(self, model: Any, processor: Any, seed: int) -> None:
        self.model, self.processor = model, processor
        self.rng = random.Random(seed)
        self.seeds: Iterator[int] = itertools.count(world.FIRST_SEED["pretrain"] + seed * 1_000_000)
        self.labels = soft_labels(model.config.text_config.vocab_size, processor)  # [V, V]
        self.in_cells: Any = TowerHeads(networks.WIDTH)  # has `loss(image tokens, screens)`
        torch.manual_seed(seed)  # the language model's stages do not depend on what the tower's drew
        self.pointer = PointerHeads(networks.WIDTH)
        self.pointers = nn.ModuleList([self.pointer])  # all heads that train with the language model
        self.head = shared_head(processor)  # [1, L]
        across = SIZE // model.config.vision_config.patch_size
        self.positions, _ = model.model.get_rope_index(
            self.head,
            mm_token_type_ids=(self.head == model.config.image_token_id).int(),
            image_grid_thw=torch.tensor([[1, across, across]]),
        )  # [3, 1, L]

    def screen_of_tower(self, seed: int) -> Any:
        """Returns the screen of a seed for the tower."""
        return world.screen(seed)

    def screen_of_language(self, seed: int) -> Any:
        """Returns the screen of a seed for the language model."""
        return world.screen(seed)

    def ask(self, screens: Sequence[Any], stage: Stage[dict[world.Task, Noise]]) -> Batch:
        """Returns the same number of questions about each screen, of the stage's kind."""
        return questions(self.processor, screens, stage.noise, self.rng)

    def train_tower(self, num_steps: int) -> None:
        """Trains the vision tower alone on dense targets of fresh screens, then freezes it."""
        step_optimizer = Optimizer([*self.model.model.visual.parameters(), *self.in_cells.parameters()])
        start = time.process_time()
        for step in range(num_steps):
            screens = [self.screen_of_tower(next(self.seeds)) for _ in range(TOWER_SCREENS)]
            loss = self.in_cells.loss(self.look(screens), screens)
            step_optimizer(loss, warm(TOWER_RATE, step) * cosine(step / num_steps))
            if step % 100 == 99 or step == num_steps - 1:
                print(f"tower {step + 1} {time.process_time() - start:.0f}s loss {loss.item():.3f}", flush=True)
        self.model.model.visual.requires_grad_(False)

    def look(self, screens: Sequence[Any]) -> Tensor:
        """Returns the tower's image tokens [S, 16, H] of screens."""
        pixels = self.processor.image_processor([screen.render() for screen in screens], return_tensors="pt")
        seen = self.model.model.visual(pixels["pixel_values"], grid_thw=pixels["image_grid_thw"]).pooler_output
        tokens: Tensor = seen.unflatten(0, (len(screens), networks.NUM_IMAGE_TOKENS))
        return tokens

    def train_language(self, stage: Stage[dict[world.Task, Noise]], num_steps: int) -> None:
        """Trains the language model on questions about screens, with features of the frozen tower."""
        step_optimizer = Optimizer([*self.model.model.language_model.parameters(), *self.pointers.parameters()])
        pool: list[Seen] = []
        start = time.process_time()
        for step in range(num_steps):
            if len(pool) < 8 or step % 3 == 0:
                pool = [*pool[1 - POOL :], self._fresh()]
                seen = pool[-1]
            else:
                seen = self.rng.choice(pool)
            answers, pointer = self.losses(seen, self.ask(seen.screens, stage))
            step_optimizer(answers + stage.hints * pointer, stage.rate(step, num_steps))
            if step % 50 == 49 or step == num_steps - 1:
                losses = f"{answers.item():.3f}, pointer {pointer.item():.3f}"
                print(f"{stage.name} {step + 1} {time.process_time() - start:.0f}s loss {losses}", flush=True)

    @torch.no_grad()
    def _fresh(self) -> Seen:
        screens = [self.screen_of_language(next(self.seeds)) for _ in range(LANGUAGE_SCREENS)]
        return Seen(screens, self.look(screens))

    def losses(self, seen: Seen, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the cross entropy of the answers and PointerHeads' loss; the shared part of a screen runs once."""
        places = int(self.positions.max()) + 1 + torch.arange(batch.tokens.shape[1])
        positions = torch.cat([self.positions, places.expand(3, 1, -1)], -1)  # [3, 1, L + T]
        _, output = forward(self.model, "image", seen.image_tokens, self.head, batch.tokens, positions)
        is_next_label = batch.is_label[:, 1:]
        log_prob = self.model.lm_head(output.last_hidden_state[:, :-1][is_next_label]).log_softmax(-1)  # [labels, V]
        answers = -(self.labels[batch.tokens[:, 1:][is_next_label]] * log_prob).sum(-1).mean()
        image_tokens = seen.image_tokens.repeat_interleave(len(batch.tokens) // len(seen.screens), 0)
        return answers, self.pointed(output.hidden_states, image_tokens, batch)

    def pointed(self, states: Sequence[Tensor], image_tokens: Tensor, batch: Any) -> Tensor:
        """Returns PointerHeads' loss on the layers' states [B, T, H]; `image_tokens`: [B, 16, H], of each question."""
        hidden = states[POINTER_LAYER][torch.arange(len(batch.last)), batch.last]  # [B, H]
        return self.pointer.loss(hidden, image_tokens, batch.elements)


if __name__ == "__main__":
    command_line(__doc__, pretrain)
