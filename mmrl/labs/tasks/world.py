"""A world of tasks: forms, menus and wizards of two to five clicks, what each click does, and who knows the way."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from PIL import Image

from mmrl.labs import check_split
from mmrl.labs.screens.drawing import SIZE
from mmrl.labs.screens.world import Element, Screen, click_answer
from mmrl.labs.tasks.pages import BACK, PAIRS, Look, Pair, new_screen

Sort = Literal["form", "menu", "wizard"]
NUM_TASKS = {"train": 4096, "held_out": 512}
FIRST_SEED = {"train": 0, "held_out": 1_000_000, "pretrain": 2_000_000}  # of tasks: one range for each use
SPLITS = tuple(NUM_TASKS)
ANSWERED = "answered"  # the first tasks of `train`, with the right last click as an answer
NUM_ANSWERED = 512  # an answer needs the pages of its task, which take a millisecond
SET_KINDS = ("switch", "checkbox", "dial")  # what a form lets one set; it is sent by a button

# What a click on an element does, beside leading to a page (its number).
NOTHING, SETS, ENDS = -1, -2, -3


@dataclass(frozen=True)
class Page:
    """One page of a task, and where its elements lead."""

    screen: Screen
    leads: tuple[int, ...]  # of each element: the number of a page, NOTHING, SETS or ENDS
    back: int | None = None  # where the way back leads; None: there is none
    depth: int = 0
    needs: frozenset[int] = frozenset()  # elements that have to be set before ENDS does
    otherwise: int = 0  # the page to which ENDS leads before that


@dataclass(frozen=True)
class State:
    """The state of an episode; leaving a form clears its set elements."""

    page: int = 0
    marked: frozenset[int] = frozenset()  # elements of the page that are set, by number
    is_done: bool = False


@dataclass(frozen=True)
class Task:
    """A task: the names to click one after the other, and the pages they are on."""

    sort: Sort
    names: tuple[Pair, ...]
    pages: tuple[Page, ...]

    @property
    def goal(self) -> str:
        """The task in words."""
        return goal(self.sort, self.names)

    def look(self, state: State) -> Look:
        """Returns the look of a state."""
        page = self.pages[state.page]
        return Look(page.screen, state.marked, page.back is not None, page.depth)

    def after(self, state: State, x: float, y: float) -> State:
        """Returns the state after a click at (x, y), in pixels of a window of 112x112."""
        page = self.pages[state.page]
        hit = [number for number, one in enumerate(self.look(state).visible) if _is_inside(x, y, one)]
        if not hit or state.is_done:
            return state
        lead = ((*page.leads, page.back) if page.back is not None else page.leads)[hit[0]]
        if lead == SETS:
            return replace(state, marked=state.marked ^ {hit[0]})
        if lead == ENDS:
            lead = page.otherwise if page.needs - state.marked else ENDS
        if lead == ENDS:
            return replace(state, is_done=True)
        return state if lead in (NOTHING, None) else State(page=lead)


@dataclass(frozen=True)
class FirstPage:
    """The picture of the first page of a seed's task, drawn when it is loaded."""

    seed: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return SIZE, SIZE

    def load(self) -> Image.Image:
        """Draws the window as an RGB image of 112x112 pixels."""
        return task(self.seed).look(State()).render()


@dataclass(frozen=True)
class TaskPrompt:
    """A task that `mmrl.prompts.stream` turns into a prompt."""

    text: str
    media: tuple[FirstPage]  # an agent is shown what the environment shows
    target: dict[str, Any]  # task: the number of its seed; answer: the right last click, `(x, y)`, of `answered` alone


def prompts(split: str) -> list[TaskPrompt]:
    """Returns the tasks of `train` (4,096), of `held_out` (512 others), or of `answered` (the first 512 of `train`).

    The split is by pages: a short goal may occur in both. Raises ValueError for another split.
    """
    check_split(split, (*SPLITS, ANSWERED))
    if split == ANSWERED:
        return [replace(one, target=one.target | {"answer": last_click(one.target["task"])}) for one in _answered()]
    seeds = range(FIRST_SEED[split], FIRST_SEED[split] + NUM_TASKS[split])
    return [TaskPrompt(goal(*_wanted(random.Random(seed))), (FirstPage(seed),), {"task": seed}) for seed in seeds]


def _answered() -> list[TaskPrompt]:
    return prompts("train")[:NUM_ANSWERED]


def last_click(seed: int) -> str:
    """Returns the click that completes the task of a seed, on the middle of its element, as `(x, y)`."""
    (element,) = (
        page.screen.elements[number]
        for page in task(seed).pages
        for number, lead in enumerate(page.leads)
        if lead == ENDS
    )
    return click_answer(*centre(element)).removeprefix("<answer>").removesuffix("</answer>")


def goal(sort: Sort, names: tuple[Pair, ...]) -> str:
    """Returns the names of a task as an instruction."""
    words = [f"the {colour} {kind}" for colour, kind in names]
    if sort == "form":
        return f"set {' and '.join(words[:-1])}, then press {words[-1]}"
    if sort == "menu":
        return f"open {', then '.join(words[:-1])}, then choose {words[-1]}"
    return f"choose {', then '.join(words)}"


def oracle(names: tuple[Pair, ...], look: Look) -> Element:
    """Returns the element to click: the first name that is visible and not set; the way back where there is none.

    It finishes every task from every state that can be reached. Raises ValueError where nothing is left to click.
    """
    there = {(one.colour, one.kind): number for number, one in enumerate(look.screen.elements)}
    for name in names:
        if name in there and there[name] not in look.marked:
            return look.screen.elements[there[name]]
    if not look.has_back:
        raise ValueError("nothing that the goal names is here, and there is no way back")
    return BACK


def reachable(task: Task) -> Iterator[State]:
    """Returns every reachable state, the first state first and the end left out."""
    pending, known = [State()], {State()}
    while pending:
        state = pending.pop(0)
        yield state
        for element in task.look(state).visible:
            following = task.after(state, *centre(element))
            if following not in known and not following.is_done:
                known.add(following)
                pending.append(following)


def centre(element: Element) -> tuple[float, float]:
    """Returns the middle of an element in pixels."""
    x1, y1, x2, y2 = element.box
    return (x1 + x2) / 2, (y1 + y2) / 2


@lru_cache(maxsize=1024)
def task(seed: int) -> Task:
    """Returns the task of a seed."""
    rng = random.Random(seed)
    sort, names = _wanted(rng)
    pages = {"form": _form, "menu": _menu, "wizard": _wizard}[sort](rng, names)
    return Task(sort, names, tuple(pages))


def _wanted(rng: random.Random) -> tuple[Sort, tuple[Pair, ...]]:
    """Returns the sort of a task and its names, all different: two to five clicks."""
    sort: Sort = rng.choice(get_args(Sort))
    if sort == "form":
        settable, buttons = ([p for p in PAIRS if (p[1] in SET_KINDS) == is_set] for is_set in (True, False))
        return sort, (*rng.sample(settable, k=rng.choice((1, 2, 2, 3))), rng.choice(buttons))
    return sort, tuple(rng.sample(PAIRS, k=rng.choice((2, 3) if sort == "menu" else (2, 3, 4, 5))))


def _form(rng: random.Random, names: tuple[Pair, ...]) -> list[Page]:
    """Returns one page, and the page that a wrong button or a form sent too early leads to."""
    other = rng.choice([p for p in PAIRS if p[1] == "button" and p not in names])
    screen = new_screen(rng, (*names, other), max(4, len(names) + 1), ())
    named = [(one.colour, one.kind) for one in screen.elements]
    leads = tuple(
        ENDS if pair == names[-1] else SETS if pair in names else 1 if pair[1] == "button" else NOTHING
        for pair in named
    )
    needs = frozenset(number for number, pair in enumerate(named) if pair in names[:-1])
    return [Page(screen, leads, needs=needs, otherwise=1), _astray(rng, names, 0, 0)]


def _wizard(rng: random.Random, names: tuple[Pair, ...]) -> list[Page]:
    """Returns a page for each name, and for each a page that a wrong choice leads to."""
    pages, count = [], len(names)
    for depth, name in enumerate(names):
        screen = new_screen(rng, (name,), rng.randint(3, 4), names)
        right = ENDS if depth == count - 1 else depth + 1
        leads = tuple(right if (one.colour, one.kind) == name else count + depth for one in screen.elements)
        pages.append(Page(screen, leads, back=depth - 1 if depth else None, depth=depth))
    return pages + [_astray(rng, names, depth, depth) for depth in range(count)]


def _menu(rng: random.Random, names: tuple[Pair, ...]) -> list[Page]:
    """Returns nested menus: a wrong menu opens too, and a wrong choice at the end closes all."""
    pages: list[Page] = []
    astray: list[Page] = []
    for depth, name in enumerate(names):
        screen, is_last = new_screen(rng, (name,), rng.randint(3, 4), names), depth == len(names) - 1
        leads = []
        for one in screen.elements:
            if (one.colour, one.kind) == name:
                leads.append(ENDS if is_last else depth + 1)
            elif is_last:
                leads.append(0)
            else:
                leads.append(len(names) + len(astray))
                astray.append(_astray(rng, names, depth, depth, closes=True))
        pages.append(Page(screen, tuple(leads), back=depth - 1 if depth else None, depth=depth))
    return pages + astray


def _astray(rng: random.Random, names: tuple[Pair, ...], back: int, depth: int, *, closes: bool = False) -> Page:
    """Returns a page without any element of the goal; `closes`: its elements lead to the first page."""
    screen = new_screen(rng, (), rng.randint(2, 4), names)
    return Page(screen, (0 if closes else NOTHING,) * len(screen.elements), back=back, depth=depth + 1)


def _is_inside(x: float, y: float, element: Element) -> bool:
    """Returns whether a point is on an element, borders included."""
    x1, y1, x2, y2 = element.box
    return x1 <= x <= x2 and y1 <= y <= y2
