"""Lessons of the language model: for a page and a goal the oracle's click, or a click that is wrong on purpose."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmrl.labs.screens.drawing import KINDS
from mmrl.labs.screens.questions import END_OF_IMAGE, Batch, Noise, padded, prompt_text
from mmrl.labs.screens.world import Element, click_answer
from mmrl.labs.tasks import world
from mmrl.labs.tasks.pages import PAIRS, Look, Pair, new_screen

PER_LOOK = 6  # goals for each page of a step
ASTRAY = 0.15  # share of the other goals of a page with a way back that name nothing on it


@dataclass(frozen=True)
class Seat:
    """A page of a task in a reachable state."""

    look: Look
    names: tuple[Pair, ...]
    sort: world.Sort

    def render(self) -> Image.Image:
        """Draws the page as an RGB image."""
        return self.look.render()


@dataclass(frozen=True)
class Goals(Batch):
    """Questions with the meaning of each name; N names in all, goal by goal."""

    rows: Tensor  # [N] the question that a name is in
    places: Tensor  # [N] place of the name's last token
    meant: list[Element | None]  # N, None where the name is not on the page, or set


def seat(seed: int) -> Seat:
    """Returns a random state of a seed's task."""
    task = world.task(seed)
    state = random.Random(seed).choice(list(world.reachable(task)))
    return Seat(task.look(state), task.names, task.sort)


def random_look(seed: int) -> Look:
    """Returns a page with random elements, marks and way back, for the tower."""
    rng = random.Random(seed)
    screen = new_screen(rng, (), rng.randint(2, 5), ())
    marked = frozenset(n for n in range(len(screen.elements)) if rng.random() < 0.5) if rng.random() < 0.5 else ()
    return Look(screen, frozenset(marked), rng.random() < 0.5, rng.randint(0, 4))


def other_goal(look: Look, rng: random.Random) -> tuple[world.Sort, tuple[Pair, ...]]:
    """Returns another goal that fits the page."""
    here = [(one.colour, one.kind) for one in look.screen.elements]
    buttons = [pair for pair in here if pair[1] == "button"]
    settable = [pair for number, pair in enumerate(here) if pair[1] != "button" and number not in look.marked]
    if look.marked or (not look.has_back and buttons and settable and rng.random() < 0.4):
        names = [here[number] for number in look.marked]
        most = min(3 - len(names), len(settable))
        names += rng.sample(settable, k=rng.randint(0 if names else 1, most))
        rng.shuffle(names)
        return "form", (*names, rng.choice(buttons))
    sort: world.Sort = rng.choice(("menu", "wizard"))
    count = rng.randint(2, 3 if sort == "menu" else 5)
    away = rng.sample([pair for pair in PAIRS if pair not in here], k=count)
    if look.has_back and rng.random() < ASTRAY:
        return sort, tuple(away)
    away[rng.randrange(1, count) if look.has_back else 0] = rng.choice(here)
    return sort, tuple(away)


def questions(processor: Any, seats: Sequence[Seat], noise: Noise, rng: random.Random) -> Goals:
    """Returns the same number of goals for each page, its own goal first; the goals of one page are neighbors."""
    elements, asked, answers, meant = [], [], [], []
    for one in seats:
        here = {(e.colour, e.kind): e for n, e in enumerate(one.look.screen.elements) if n not in one.look.marked}
        for number in range(PER_LOOK):
            sort, names = other_goal(one.look, rng) if number else (one.sort, one.names)
            element = world.oracle(names, one.look)
            elements.append(element)
            meant += [here.get(name) for name in names]
            asked.append(prompt_text(processor, world.goal(sort, names)).partition(END_OF_IMAGE)[2])
            answers.append(noisy_answer(one.look, element, noise, rng) + processor.tokenizer.eos_token)
    batch = padded(processor, elements, asked, answers)
    kinds = torch.tensor(processor.tokenizer.convert_tokens_to_ids([f"\u0120{kind}" for kind in KINDS]))
    rows, places = torch.isin(batch.tokens, kinds).nonzero().unbind(1)
    return Goals(**vars(batch), rows=rows, places=places, meant=meant)


def noisy_answer(look: Look, element: Element, noise: Noise, rng: random.Random) -> str:
    """Returns the click on the element, or on another, off by jitter and shift."""
    others = [other for other in look.visible if other is not element]
    if others and rng.random() < noise.wrong:
        element = rng.choice(others)
    (x, y), (x1, y1, x2, y2) = world.centre(element), element.box
    errors = [(noise.shift + noise.jitter * rng.gauss(0, 1)) * side for side in (x2 - x1, y2 - y1)]
    return click_answer(x + errors[0], y + errors[1])
