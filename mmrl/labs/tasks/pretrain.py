"""Makes the lab's checkpoint as the screens lab makes its own, of the oracle's clicks in states of tasks.

1. tower: learns what lies in each 28-pixel cell, where, and whether it is set; it is frozen from then on;
2. bind, settle: the language model learns to click what the oracle clicks;
3. spoil: clicks on other elements and off the centre, so that RL has something to mend.

The checkpoint before stage 3 is kept beside it as FOLDER_unspoilt.
"""

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.labs.screens import pretrain as screens
from mmrl.labs.screens.networks import WIDTH
from mmrl.labs.screens.questions import Batch, Noise
from mmrl.labs.screens.world import Task
from mmrl.labs.tasks import grading, networks, world
from mmrl.labs.tasks.pages import Look
from mmrl.labs.tasks.questions import Seat, questions, random_look, seat
from mmrl.labs.tasks.targets import LookHeads, NameHeads
from mmrl.labs.teaching import Course, Stage, command_line, make_checkpoint

NAME_LAYER = 2  # of four: the third chooses among the names, the fourth answers
TOWER_STEPS = 1300
# Where the seeds of a part begin, so that it sees the same however long the part before it was.
FIRST_OF = {"bind": 100_000, "spoil": 300_000}

RIGHT: dict[Task, Noise] = {"click": Noise()}
STAGES = (
    Stage("bind", 850, 2e-3, RIGHT),
    Stage("settle", 1000, 1.5e-3, RIGHT, is_falling=True, hints=0.2),
)
WRONG: dict[Task, Noise] = {"click": Noise(wrong=0.25, jitter=0.12, shift=0.22)}
SPOIL = Stage("spoil", 120, 5e-4, WRONG, is_falling=True, hints=0.0)


class Teacher(screens.Teacher):
    """A teacher that trains a model stage by stage, on tasks that no split holds."""

    def __init__(self, model: Any, processor: Any, seed: int) -> None:
        super().__init__(model, processor, seed)
        self.seed = seed
        with torch.random.fork_rng(devices=[]):  # what the language model's heads draw does not depend on the tower's
            self.in_cells = LookHeads(WIDTH)
        self.of_names = NameHeads(WIDTH)
        self.pointers.append(self.of_names)

    def train_language(self, stage: Stage[dict[Task, Noise]], num_steps: int) -> None:
        if stage.name in FIRST_OF:
            self._begin(FIRST_OF[stage.name])
        super().train_language(stage, num_steps)

    def _begin(self, first: int) -> None:
        """Resets all randomness, with tasks from `first` on."""
        self.rng = random.Random(self.seed)
        self.seeds = itertools.count(world.FIRST_SEED["pretrain"] + self.seed * 1_000_000 + first)

    def screen_of_tower(self, seed: int) -> Look:
        return random_look(seed)

    def screen_of_language(self, seed: int) -> Seat:
        return seat(seed)

    def ask(self, screens: Sequence[Any], stage: Stage[dict[Task, Noise]]) -> Batch:
        return questions(self.processor, screens, stage.noise["click"], self.rng)

    def pointed(self, states: Sequence[Tensor], image_tokens: Tensor, batch: Any) -> Tensor:
        hidden = states[NAME_LAYER][batch.rows, batch.places]  # [N, H]
        return super().pointed(states, image_tokens, batch) + self.of_names.loss(
            hidden, image_tokens[batch.rows], batch.meant
        )


def pretrain(folder: Path, *, seed: int, scale: float = 1.0) -> None:
    """Trains everything from one seed; writes the checkpoint, and the one before spoiling. `scale` is of all steps."""
    torch.manual_seed(seed)
    processor = networks.new_processor()
    teacher = Teacher(networks.new_model(processor), processor, seed)
    make_checkpoint(folder, teacher, Course(TOWER_STEPS, STAGES, SPOIL, num_graded=256), grading.report, scale)


if __name__ == "__main__":
    command_line(__doc__, pretrain)
