"""An agent's episode to look at: its screens with the actions on them, as a strip of pictures and as a video."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from mmrl.media.mp4 import write_mp4
from mmrl.media.pictures import Picture
from mmrl.parsing.actions.action import Action
from mmrl.reporting import drawing
from mmrl.reporting.drawing import INK, PAPER, Cell, Marks

FPS, REPEATS = 2, 3  # frames per second, and for how many of them a turn is shown: 1.5 seconds
MAX_FRAMES = 3000  # of one video: 1,000 turns
LEGEND = (
    (Marks(points=((0.0, 0.0),)), "cross: where the action points"),
    (Marks(boxes=((0.0, 0.0, 1.0, 1.0),)), "dashed box: the box that was answered"),
    (Marks(paths=(((0.0, 0.0), (1.0, 0.0)),)), "dashed line: a drag, its end a small cross"),
)
OF_REWARDS = "right: the environment's reward for the turn"


@dataclass(frozen=True)
class Turn:
    """One turn of an episode."""

    screen: Picture  # as the agent saw it
    answer: str
    action: Action | None  # None: the answer was not understood
    reward: float | None  # the environment's; None: unknown

    @property
    def picture(self) -> Image.Image:
        """The screen with the action on it."""
        return drawing.marked(self.screen.load(), Marks(), self.marks)

    @property
    def marks(self) -> Marks:
        """Where the action points."""
        return Marks() if self.action is None else drawing.action_marks(self.action)

    @property
    def words(self) -> str:
        """The action in a few words."""
        return in_words(self.action)


@dataclass(frozen=True)
class Recording:
    """One episode of at least one turn."""

    turns: tuple[Turn, ...]
    end: Picture | None  # the screen after the last turn; None: the environment broke, or nobody knows
    outcome: str

    @property
    def last_picture(self) -> Image.Image | None:
        """The screen after the last turn, in the size of the others."""
        return None if self.end is None else drawing.marked(self.end.load(), Marks(), Marks())

    @property
    def total(self) -> float | None:
        """The sum of the rewards; None where one of them is unknown."""
        return self._sums()[-1]

    @property
    def marks(self) -> Marks:
        """The kinds of marks on all screens, for a legend."""
        every = [turn.marks for turn in self.turns]
        return Marks(
            tuple(box for marks in every for box in marks.boxes),
            tuple(point for marks in every for point in marks.points),
            tuple(path for marks in every for path in marks.paths),
        )

    def strip(self) -> Image.Image:
        """Returns all screens with their actions and rewards below, the last screen too, and a legend."""
        cells = [
            Cell(drawing.narrowed(turn.picture), f"{number}. {turn.words}", reward_text(turn.reward))
            for number, turn in enumerate(self.turns, 1)
        ]
        if (last := self.last_picture) is not None:
            cells.append(Cell(last, f"end: {self.outcome.replace('_', ' ')}", reward_text(self.total, "sum ")))
        return drawing.filmstrip(cells, legend_of(self.marks, has_rewards=self.total is not None))

    def save_video(self, file: Path) -> None:
        """Writes an mp4 of `frames`, of which it holds one at a time."""
        write_mp4(file, self.frames(), FPS)

    def frames(self) -> Iterator[torch.Tensor]:
        """Yields frames [3, H, W] uint8 of one size: each screen for 1.5 seconds with its action, and the last one with
        the outcome.

        Of an episode of more than 1,000 turns the first ones are shown.
        """
        shown = self.turns[: MAX_FRAMES // REPEATS - 1]
        sizes = [drawing.marked_size(one.size) for one in (*(turn.screen for turn in shown), self.end) if one]
        width, height = (max(sides) for sides in zip(*((w, h + 2 * _line(w)) for w, h in sizes), strict=True))
        for picture in self._titled_pictures(shown):
            frame = _pixels(picture, width, height)
            yield from repeat(frame, REPEATS)

    def _titled_pictures(self, shown: Sequence[Turn]) -> Iterator[Image.Image]:
        """Yields the screens of some first turns, and the last screen, with their titles."""
        for number, (turn, total) in enumerate(zip(shown, self._sums()[1:], strict=False), 1):
            title = f"{number}/{len(self.turns)}  {turn.words}"
            yield _titled(turn.picture, title, _both(reward_text(turn.reward), reward_text(total, "sum ")))
        if (last := self.last_picture) is not None:
            yield _titled(last, f"end: {self.outcome.replace('_', ' ')}", reward_text(self.total, "sum "))

    def _sums(self) -> list[float | None]:
        """Returns the sum of the rewards before each turn and after the last; None behind an unknown one."""
        sums: list[float | None] = [0.0]
        for turn in self.turns:
            before = sums[-1]
            sums.append(None if before is None or turn.reward is None else before + turn.reward)
        return sums


def in_words(action: Action | None) -> str:
    """Returns an action in a few words, coordinates in whole pixels of the screenshot."""
    if action is None:
        return "no action was understood"
    words = [action.kind.replace("_", " ")]
    if action.point is not None:
        words.append(f"{'from ' if action.kind == 'drag' else ''}{_place(action.point)}")
    if action.end is not None:
        words.append(f"to {_place(action.end)}")
    if action.direction is not None:
        words.append(action.direction)
    if action.amount is not None:
        words.append(f"{action.amount:g}{' s' if action.kind in ('wait', 'long_press') else ' pixels'}")
    if action.keys:
        words.append(" + ".join(action.keys))
    if action.text is not None:
        words.append(f'"{action.text}"')
    return " ".join(words)


def reward_text(value: float | None, before: str = "reward ") -> str:
    """Returns a reward in words; empty where it is unknown."""
    return "" if value is None else f"{before}{value:.4g}"


def legend_of(marks: Marks, *, has_rewards: bool) -> list[tuple[Marks, str]]:
    """Returns the lines of a legend: what the marks mean that are there, and the numbers at the right."""
    kinds = (marks.points, marks.boxes, marks.paths)
    lines = [line for line, is_there in zip(LEGEND, kinds, strict=True) if is_there]
    return [*lines, *([(Marks(), OF_REWARDS)] if has_rewards else [])]


def _both(first: str, second: str) -> str:
    return ", ".join(text for text in (first, second) if text)


def _place(point: Sequence[float]) -> str:
    return f"({point[0]:.0f}, {point[1]:.0f})"


def _letters(width: int) -> int:
    return max(13, width // 36)


def _line(width: int) -> int:
    """Returns the height of one of the two lines above a picture of this width."""
    return round(1.6 * _letters(width))


def _titled(picture: Image.Image, first: str, second: str) -> Image.Image:
    """Returns a picture with a bar of two lines above, since players put their controls over the lower edge."""
    size, line = _letters(picture.width), _line(picture.width)
    font = ImageFont.load_default(size)
    whole = Image.new("RGB", (picture.width, picture.height + 2 * line), PAPER)
    whole.paste(picture, (0, 2 * line))
    pen = ImageDraw.Draw(whole)
    for number, text in enumerate((first, second)):
        at = (size // 2, round((number + 0.5) * line))
        pen.text(at, drawing.cut(text, picture.width - size, font), fill=INK, font=font, anchor="lm")
    return whole


def _pixels(picture: Image.Image, width: int, height: int) -> torch.Tensor:
    """Returns a picture as [3, H, W] uint8 at the top left of a frame."""
    frame = Image.new("RGB", (width, height), PAPER)
    frame.paste(picture, (0, 0))
    return torch.frombuffer(bytearray(frame.tobytes()), dtype=torch.uint8).view(height, width, 3).permute(2, 0, 1)
