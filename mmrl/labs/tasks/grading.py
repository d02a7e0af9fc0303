"""The share of held-out tasks that a model of the lab finishes."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.labs.screens.grading import BATCH_SIZE, answers
from mmrl.labs.screens.world import CLICK
from mmrl.labs.tasks import world

MAX_TURNS = 6


def success(model: Any, processor: Any, *, is_greedy: bool, num_tasks: int, max_turns: int = MAX_TURNS) -> float:
    """Returns the share of the first held-out tasks that are finished within `max_turns` answers."""
    finished = 0
    seeds = range(world.FIRST_SEED["held_out"], world.FIRST_SEED["held_out"] + num_tasks)
    for start in range(0, num_tasks, BATCH_SIZE):
        tasks = [world.task(seed) for seed in seeds[start : start + BATCH_SIZE]]
        states = [world.State() for _ in tasks]
        for _ in range(max_turns):
            going = [number for number, state in enumerate(states) if not state.is_done]
            if not going:
                break
            goals, images = [tasks[n].goal for n in going], [tasks[n].look(states[n]).render() for n in going]
            for number, text in zip(going, answers(model, processor, goals, images, is_greedy=is_greedy), strict=True):
                if (match := CLICK.fullmatch(text)) is not None:
                    states[number] = tasks[number].after(states[number], int(match[1]), int(match[2]))
        finished += sum(state.is_done for state in states)
    return finished / num_tasks


def report(folder: Path, num_tasks: int) -> None:
    """Prints the share of tasks that the checkpoint in a folder finishes, sampled and greedy."""
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    torch.manual_seed(0)
    sampled, greedy = (success(model, processor, is_greedy=one, num_tasks=num_tasks) for one in (False, True))
    print(f"{folder.name}: sampled {sampled:.4f} greedy {greedy:.4f}", flush=True)
