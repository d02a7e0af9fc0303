"""A world of small windows: their layout, the questions about them, the answers as text, and a verifier."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from PIL import Image

from mmrl.labs import check_split
from mmrl.labs.screens.drawing import BAR, COLOURS, KINDS, SIZE, THEMES, Box, render

Task = Literal["click", "box"]
Part = Literal["train", "held_out"]
NUM_SCREENS = {"train": 4096, "held_out": 512}
FIRST_SEED = {"train": 0, "held_out": 1_000_000, "pretrain": 2_000_000}  # of screens: one range for each use
SPLITS = tuple(f"{task}_{part}" for task in get_args(Task) for part in get_args(Part))
SIDES = {  # pixels: width from, to; height from, to. Checkboxes and dials are as high as wide.
    "button": (30, 38, 15, 19),
    "switch": (26, 32, 14, 17),
    "checkbox": (16, 20, 0, 0),
    "dial": (18, 23, 0, 0),
}
MARGIN = 2  # pixels between an element and the edges of its desktop, at least
GAP = 3  # and between two elements
CLICK = re.compile(r"<answer>\(([0-9]{1,3}), ([0-9]{1,3})\)</answer>")
BOX = re.compile(r"<answer>\[([0-9]{1,3}), ([0-9]{1,3}), ([0-9]{1,3}), ([0-9]{1,3})\]</answer>")


@dataclass(frozen=True)
class Element:
    """An element of a screen that can be named: no other element there has its colour and its kind."""

    colour: str
    kind: str
    box: Box  # x1, y1, x2, y2 in pixels, x2 and y2 exclusive

    @property
    def name(self) -> str:
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True)
class Screen:
    """A screen: the elements on a window of 112x112 pixels."""

    elements: tuple[Element, ...]
    theme: int  # grey level of the desktop

    def render(self) -> Image.Image:
        """Draws the window as an RGB image."""
        return render([(element.colour, element.kind, element.box) for element in self.elements], self.theme)


@dataclass(frozen=True)
class ScreenPicture:
    """The picture of a seed's screen, drawn when it is loaded."""

    seed: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return SIZE, SIZE

    def load(self) -> Image.Image:
        """Draws the window as an RGB image of 112x112 pixels."""
        return screen(self.seed).render()


@dataclass(frozen=True)
class Question:
    """A question about one screen, which `mmrl.prompts.stream` turns into a prompt."""

    text: str
    media: tuple[ScreenPicture, ...]
    target: dict[str, Any]  # box: the element's, in pixels of the screen


def prompts(split: str) -> list[Question]:
    """Returns the questions of `click_train` or `box_train` (4,096 screens), `click_held_out` or `box_held_out` (512).

    The split is by screens, not names: every colour, kind and pair occurs in both.
    Raises ValueError for another split.
    """
    check_split(split, SPLITS)
    task: Task = "click" if split.startswith("click") else "box"
    part = split.removeprefix(f"{task}_")
    return [question(FIRST_SEED[part] + number, task) for number in range(NUM_SCREENS[part])]


def question(seed: int, task: Task) -> Question:
    """Returns the task on an element of a seed's screen."""
    element = screen(seed).elements[0]  # their order is random
    return Question(ask(element, task), (ScreenPicture(seed),), {"box": element.box})


def ask(element: Element, task: Task) -> str:
    """Returns the instruction in words."""
    return f"click the {element.name}" if task == "click" else f"box of the {element.name}"


def screen(seed: int) -> Screen:
    """Returns the screen of a seed, with three to five elements."""
    rng = random.Random(seed)
    pairs = _pairs(rng)[: rng.randint(3, 5)]
    rng.shuffle(pairs)
    return Screen(place(rng, pairs, margin=MARGIN, gap=GAP), rng.choice(THEMES))


def _pairs(rng: random.Random) -> list[tuple[str, str]]:
    """Returns six colours with kinds; the second has the first one's colour, the third the first one's kind."""
    everything = [(colour, kind) for colour in COLOURS for kind in KINDS]
    first = rng.choice(everything)
    same_colour = rng.choice([pair for pair in everything if pair != first and pair[0] == first[0]])
    same_kind = rng.choice([pair for pair in everything if pair != first and pair[1] == first[1]])
    chosen = [first, same_colour, same_kind]
    return chosen + rng.sample([pair for pair in everything if pair not in chosen], k=3)


def place(
    rng: random.Random, pairs: Sequence[tuple[str, str]], *, margin: int, gap: int, taken: Sequence[Element] = ()
) -> tuple[Element, ...]:
    """Returns elements of random size in random places; starts again where an element has no room.

    Args:
        pairs: colour and kind of each.
        margin: pixels between an element and the edges of the desktop, at least.
        gap: pixels between two elements, and to those that are `taken`, at least.
        taken: what is there already; not returned.
    """
    elements: list[Element] = []
    while len(elements) < len(pairs):
        colour, kind = pairs[len(elements)]
        for _ in range(60):
            box = _random_box(rng, kind, margin)
            if not any(_is_near(box, other.box, gap) for other in (*taken, *elements)):
                elements.append(Element(colour, kind, box))
                break
        else:
            elements = []
    return tuple(elements)


def _random_box(rng: random.Random, kind: str, margin: int) -> Box:
    min_width, max_width, min_height, max_height = SIDES[kind]
    width = rng.randint(min_width, max_width)
    height = rng.randint(min_height, max_height) if max_height else width
    x, y = rng.randint(margin, SIZE - margin - width), rng.randint(BAR + margin, SIZE - margin - height)
    return x, y, x + width, y + height


def _is_near(a: Box, b: Box, gap: int) -> bool:
    """Returns whether two boxes are closer than the gap."""
    return a[0] < b[2] + gap and b[0] < a[2] + gap and a[1] < b[3] + gap and b[1] < a[3] + gap


def click_answer(x: float, y: float) -> str:
    """Returns the answer that clicks at (x, y) pixels, rounded and kept on the screen."""
    return f"<answer>({_whole(x, SIZE - 1)}, {_whole(y, SIZE - 1)})</answer>"


def box_answer(box: tuple[float, float, float, float]) -> str:
    """Returns the answer that names a box in pixels, rounded and kept on the screen."""
    return f"<answer>[{', '.join(str(_whole(value, SIZE)) for value in box)}]</answer>"


def _whole(value: float, largest: int) -> int:
    return min(max(round(value), 0), largest)


def right_answer(element: Element, task: Task) -> str:
    """Returns the answer with the centre of the element, or with its box."""
    x1, y1, x2, y2 = element.box
    return click_answer((x1 + x2) / 2, (y1 + y2) / 2) if task == "click" else box_answer(element.box)


def score(answer: str, box: Box, task: Task) -> float:
    """Returns 1 for a click in the box, borders included, else 0; the IoU of a box; 0 for any other text."""
    match = (CLICK if task == "click" else BOX).fullmatch(answer)
    if match is None:
        return 0.0
    numbers = [int(number) for number in match.groups()]
    if task == "click":
        return float(box[0] <= numbers[0] <= box[2] and box[1] <= numbers[1] <= box[3])
    return iou((numbers[0], numbers[1], numbers[2], numbers[3]), box)


def iou(a: Box, b: Box) -> float:
    """Returns the intersection over union of two half-open boxes; 0 where the first has no area."""
    if a[2] <= a[0] or a[3] <= a[1]:
        return 0.0
    overlap = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return overlap / (areas - overlap)
