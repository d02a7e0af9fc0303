"""The look of a task's windows: the elements of the screens lab, marks of set elements, a way back."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from mmrl.labs.screens.drawing import BAR, COLOURS, KINDS, SIZE, THEMES, WHITE
from mmrl.labs.screens.world import Element, Screen, place

Pair = tuple[str, str]  # colour and kind: together a name that no other element of a page has

BACK = Element("black", "back", (3, 91, 30, 109))  # the only one of its look, always in this place
PAIRS: tuple[Pair, ...] = tuple((colour, kind) for colour in COLOURS for kind in KINDS)
MARK = (0, 225, 225)  # the frame around what is set: a colour that no element has
MARGIN, GAP = 4, 5  # pixels to the edges and between two elements, at least: room for their frames
BLACK = (10, 10, 10)


@dataclass(frozen=True)
class Look:
    """The look of a page: equal values give equal pixels."""

    screen: Screen
    marked: frozenset[int] = frozenset()  # elements that are set, by number
    has_back: bool = False
    depth: int = 0  # how far into the task this page is: as many ticks in the title bar

    @property
    def visible(self) -> tuple[Element, ...]:
        """The elements, and the way back where there is one."""
        return (*self.screen.elements, *([BACK] if self.has_back else []))

    def render(self) -> Image.Image:
        """Draws the window as an RGB image of 112x112 pixels."""
        image = self.screen.render()
        pen = ImageDraw.Draw(image)
        for number in self.marked:
            x1, y1, x2, y2 = self.screen.elements[number].box
            pen.rectangle((x1 - 3, y1 - 3, x2 + 2, y2 + 2), outline=MARK, width=2)
        for number in range(self.depth):
            pen.rectangle((SIZE - 8 - 6 * number, 3, SIZE - 5 - 6 * number, BAR - 4), fill=(90, 130, 190))
        if self.has_back:
            x1, y1, x2, y2 = BACK.box
            pen.rectangle((x1, y1, x2 - 1, y2 - 1), fill=BLACK, outline=WHITE)
            middle = (y1 + y2) // 2
            pen.polygon(((x1 + 5, middle), (x1 + 14, y1 + 4), (x1 + 14, y2 - 5)), fill=WHITE)
            pen.rectangle((x1 + 14, middle - 2, x2 - 5, middle + 1), fill=WHITE)
        return image


@dataclass(frozen=True)
class PagePicture:
    """The picture of a page, drawn when it is loaded."""

    look: Look
    side: int = SIZE  # pixels, both sides

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.side, self.side

    def load(self) -> Image.Image:
        """Draws the window in RGB at 112x112 pixels, and enlarges it by a smooth filter where `side` is larger."""
        image = self.look.render()
        return image if self.side == SIZE else image.resize(self.size, Image.Resampling.LANCZOS)


def new_screen(rng: random.Random, wanted: Sequence[Pair], count: int, avoided: Collection[Pair]) -> Screen:
    """Returns a screen with the wanted elements and others up to `count`, in random order and places.

    The first of the others has the colour and the second the kind of a wanted element, so that both words of a name
    count; none is in `avoided`. The place of the way back stays free.
    """
    pairs = [*wanted]
    for shared in (0, 1):
        like = rng.choice(wanted) if wanted else rng.choice(PAIRS)
        similar = [pair for pair in PAIRS if pair[shared] == like[shared] and pair not in (*pairs, *avoided)]
        if similar and len(pairs) < count:
            pairs.append(rng.choice(similar))
    rest = [pair for pair in PAIRS if pair not in (*pairs, *avoided)]
    pairs += rng.sample(rest, k=max(0, count - len(pairs)))
    rng.shuffle(pairs)
    return Screen(place(rng, pairs, margin=MARGIN, gap=GAP, taken=(BACK,)), rng.choice(THEMES))
