"""Makes the lab's checkpoint as the screens lab makes its own, of the oracle's clicks in states of tasks.

1. tower: learns what lies in each 28-pixel cell, where, and whether it is set; it is frozen from then on;
2. bind, settle: the language model learns to click what the oracle clicks;
3. spoil: clicks on other elements and off the centre, so that RL has something to mend.

The checkpoint before stage 3 is kept beside it as FOLDER_unspoilt.
"""

import argparse
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.labs.screens import pretrain as screens
from mmrl.labs.screens.networks import WIDTH
from mmrl.labs.screens.pretrain import Stage
from mmrl.labs.screens.questions import Batch, Noise
from mmrl.labs.tasks import grading, networks, world
from mmrl.labs.tasks.pages import Look
from mmrl.labs.tasks.questions import Seat, questions, random_look, seat
from mmrl.labs.tasks.targets import LookHeads, NameHeads

NAME_LAYER = 2  # of four: the third chooses among the names, the fourth answers
TOWER_STEPS = 1300
# Where the seeds of a part begin, so that it sees the same however long the part before it was.
FIRST_OF_LANGUAGE, FIRST_OF_SPOILING = 100_000, 300_000


STAGES = (
    Stage("bind", 850, 2e-3),
    Stage("settle", 1000, 1.5e-3, is_falling=True, pointer=0.2),
)
SPOIL = Stage(
    "spoil", 120, 5e-4, is_falling=True, pointer=0.0, noise={"click": Noise(wrong=0.25, jitter=0.12, shift=0.22)}
)


class Teacher(screens.Teacher):
    """Trains a model stage by stage on tasks that no split holds."""

    def __init__(self, model: Any, processor: Any, seed: int) -> None:
        super().__init__(model, processor, seed)
        with torch.random.fork_rng(devices=[]):  # what the language model's heads draw does not depend on the tower's
            self.in_cells = LookHeads(WIDTH)
        self.of_names = NameHeads(WIDTH)
        self.pointers.append(self.of_names)

    def begin(self, seed: int, first: int) -> None:
        """Starts all that is random anew, with tasks from `first` on."""
        self.rng = random.Random(seed)
        self.seeds = itertools.count(world.FIRST_SEED["pretrain"] + seed * 1_000_000 + first)

    def screen_of_tower(self, seed: int) -> Look:
        return random_look(seed)

    def screen_of_language(self, seed: int) -> Seat:
        return seat(seed)

    def ask(self, screens: Sequence[Any], stage: Stage) -> Batch:
        return questions(self.processor, screens, stage.noise["click"], self.rng)

    def pointed(self, states: Sequence[Tensor], image_tokens: Tensor, batch: Any) -> Tensor:
        hidden = states[NAME_LAYER][batch.rows, batch.places]  # [N, H]
        return super().pointed(states, image_tokens, batch) + self.of_names.loss(
            hidden, image_tokens[batch.rows], batch.meant
        )


def pretrain(folder: Path, *, seed: int, scale: float = 1.0) -> None:
    """Trains everything from one seed, writes the checkpoint and the one before spoiling; `scale` is of all steps."""
    torch.manual_seed(seed)
    processor = networks.new_processor()
    model = networks.new_model(processor)
    num_graded = min(256, max(8, round(256 * scale)))
    teacher = Teacher(model, processor, seed)
    teacher.train_tower(max(1, round(TOWER_STEPS * scale)))
    teacher.begin(seed, FIRST_OF_LANGUAGE)
    for stage in STAGES:
        teacher.train_language(stage, max(1, round(stage.num_steps * scale)))
    unspoilt = folder.with_name(f"{folder.name}_unspoilt")
    screens.save(model, processor, unspoilt)
    grading.report(unspoilt, num_graded)
    teacher.begin(seed, FIRST_OF_SPOILING)
    teacher.train_language(SPOIL, max(1, round(SPOIL.num_steps * scale)))
    screens.save(model, processor, folder)
    grading.report(folder, num_graded)


def main() -> None:
    """Command line: one thread, so that a seed gives the same weights again on the same machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of every stage; 0.01 is a smoke test")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pretrain(arguments.out, seed=arguments.seed, scale=arguments.scale)


if __name__ == "__main__":
    main()
