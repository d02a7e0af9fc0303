"""The shipped tasks on web pages: their names, their files, and their prompts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.labs import check_split

FOLDER = Path(__file__).parent / "tasks"
TASKS = tuple(sorted(file.stem for file in FOLDER.glob("*.html")))
NUM_SEEDS = {"train": 256, "held_out": 32}  # of each task
FIRST_SEED = {"train": 0, "held_out": 1_000_000}  # one range for each use
TEXT = "Do the task on the page."  # the goal itself is a function of the seed, and comes with the first screenshot


@dataclass(frozen=True)
class Question:
    """A page to act on, which `mmrl.prompts.stream` turns into a prompt."""

    text: str
    media: tuple[()]
    target: dict[str, Any]  # task: the name of a page; seed: what it is made from


def prompts(split: str) -> list[Question]:
    """Returns every task with 256 seeds (`train`) or 32 others (`held_out`), ordered by seed, then by task.

    Raises ValueError for another split.
    """
    check_split(split, NUM_SEEDS)
    first = FIRST_SEED[split]
    seeds = range(first, first + NUM_SEEDS[split])
    return [Question(TEXT, (), {"task": task, "seed": seed}) for seed in seeds for task in TASKS]
