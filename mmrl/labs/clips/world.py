"""A world of short clips: their events, the questions, the answers as text, and a verifier."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from PIL import Image

from mmrl.labs import check_split
from mmrl.labs.clips.drawing import CELL, COLOURS, RATE, RISE, SHADES, SHAPES, Box, encode, render

State = Literal["there", "lit", "up"]
Span = tuple[float, float]  # start and end in seconds, the end not included

STATES = get_args(State)
SPLITS = ("train", "held_out")
NUM_CLIPS = {"train": 4096, "held_out": 512}
FIRST_SEED = {"train": 0, "held_out": 1_000_000, "pretrain": 2_000_000}  # of clips: one range for each use
DURATIONS = (8, 9, 10, 11, 12)  # seconds; the next seed has the next
TIME_STEP = 0.5  # seconds: spans begin and end on multiples
LENGTHS = tuple(TIME_STEP * ticks for ticks in range(2, 9))  # seconds of a span
MOST_ALIKE = 0.4  # IoU of two spans of a clip, at most: a wrong event is a wrong answer
ANSWER = re.compile(r"<answer>([0-9]{1,2}\.[05]) to ([0-9]{1,2}\.[05])</answer>")


@dataclass(frozen=True)
class Event:
    """An event: a lamp is in a state from start to end, and not before or after."""

    state: State
    span: Span


@dataclass(frozen=True)
class Lamp:
    """A lamp that can be named: no other lamp of the clip has its colour and its shape."""

    colour: str
    shape: str
    box: Box  # where it hangs when it is not up
    events: tuple[Event, ...]  # of different states

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def cell(self) -> int:
        """The quarter of the frame in which the lamp hangs: 0 and 1 above, 2 and 3 below."""
        return self.box[1] // CELL * 2 + self.box[0] // CELL

    def is_in(self, state: State, seconds: float) -> bool:
        """Returns whether the lamp is in a state at a time; without such an event it is there, not lit and not up."""
        spans = [event.span for event in self.events if event.state == state]
        return any(start <= seconds < end for start, end in spans) if spans else state == "there"


@dataclass(frozen=True)
class Clip:
    """A clip: the events on a wall with three lamps."""

    lamps: tuple[Lamp, ...]
    duration: int  # seconds
    shade: int  # grey level of the wall

    @property
    def times(self) -> list[float]:
        """The time of each frame in seconds."""
        return [number / RATE for number in range(self.duration * RATE)]

    def render(self, seconds: float) -> Image.Image:
        """Draws the frame at a time."""
        shown = []
        for lamp in self.lamps:
            if lamp.is_in("there", seconds):
                x1, y1, x2, y2 = lamp.box
                rise = RISE if lamp.is_in("up", seconds) else 0
                shown.append((lamp.colour, lamp.shape, (x1, y1 - rise, x2, y2 - rise), lamp.is_in("lit", seconds)))
        return render(shown, self.shade)

    def encode(self) -> bytes:
        """Encodes the clip as an mp4 file."""
        return encode([self.render(seconds) for seconds in self.times])


@dataclass(frozen=True)
class ClipVideo:
    """The video of a seed's clip, written as an mp4 file when it is loaded, and read like any other video."""

    seed: int

    @property
    def name(self) -> str:
        """The name of the clip in errors."""
        return f"lab:clips, seed {self.seed}"

    def load(self, sampling: Any) -> Any:
        """Returns the `Frames` of `mmrl.media.video` that a `FrameSampling` chooses."""
        from mmrl.media.video import StoredClip

        return StoredClip(self.name, content=clip(self.seed).encode()).load(sampling)


@dataclass(frozen=True)
class Question:
    """A question about one clip, which `mmrl.prompts.stream` turns into a prompt."""

    text: str
    clips: tuple[ClipVideo, ...]
    target: dict[str, Any]  # span: [start, end], and duration of the clip, both in seconds


def prompts(split: str) -> list[Question]:
    """Returns the questions of `train` (4,096 clips) or `held_out` (512 others).

    The split is by clips, not names: every colour, shape, pair and state occurs in both.
    Raises ValueError for another split.
    """
    check_split(split, SPLITS)
    return [question(FIRST_SEED[split] + number) for number in range(NUM_CLIPS[split])]


def question(seed: int) -> Question:
    """Returns the question about the clip of a seed."""
    shown = clip(seed)
    lamp = shown.lamps[0]  # their order is random, and that of their events
    target = {"span": list(lamp.events[0].span), "duration": shown.duration}
    return Question(ask(lamp, lamp.events[0]), (ClipVideo(seed),), target)


def ask(lamp: Lamp, event: Event) -> str:
    """Returns the question in words."""
    return f"when is the {lamp.name} {event.state}"


def clip(seed: int) -> Clip:
    """Returns the clip of a seed.

    The first lamp lights up and rises, at different times; the second has its colour and the third its shape, and each
    has one event: all three words of a question count.
    """
    rng = random.Random(seed)
    duration = DURATIONS[seed % len(DURATIONS)]
    first: list[State] = ["lit", "up"]
    rng.shuffle(first)
    states: list[list[State]] = [first, [rng.choice(STATES)], [rng.choice(STATES)]]
    spans = _spans(rng, duration, sum(map(len, states)))
    cells = rng.sample(range(4), k=3)
    lamps = [
        Lamp(colour, shape, _hang(rng, cell), tuple(Event(state, next(spans)) for state in own))
        for (colour, shape), cell, own in zip(_names(rng), cells, states, strict=True)
    ]
    rng.shuffle(lamps)
    return Clip(tuple(lamps), duration, rng.choice(SHADES))


def _names(rng: random.Random) -> list[tuple[str, str]]:
    """Returns three colours with shapes; the second has the first one's colour, the third the first one's shape."""
    colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
    same_colour = (colour, rng.choice([other for other in SHAPES if other != shape]))
    same_shape = (rng.choice([other for other in COLOURS if other != colour]), shape)
    return [(colour, shape), same_colour, same_shape]


def _spans(rng: random.Random, duration: int, count: int) -> Iterator[Span]:
    """Returns spans of random length and start that overlap little."""
    spans: list[Span] = []
    while len(spans) < count:
        length = rng.choice(LENGTHS)
        start = TIME_STEP * rng.randint(0, round((duration - length) / TIME_STEP))
        span = (start, start + length)
        if all(iou(span, other) <= MOST_ALIKE for other in spans):
            spans.append(span)
    return iter(spans)


def _hang(rng: random.Random, cell: int) -> Box:
    """Returns a lamp's place in its quarter, with room to rise."""
    side = rng.randint(15, 17)
    x = cell % 2 * CELL + rng.randint(1, CELL - side - 1)
    y = cell // 2 * CELL + rng.randint(RISE + 1, CELL - side - 1)
    return x, y, x + side, y + side


def answer(span: Span) -> str:
    """Returns the answer that names a span, its ends rounded to half seconds."""
    return f"<answer>{' to '.join(f'{TIME_STEP * round(seconds / TIME_STEP):.1f}' for seconds in span)}</answer>"


def score(text: str, span: Span) -> float:
    """Returns the temporal IoU of an answer with a span; 0 for a text that is more or less than an answer."""
    match = ANSWER.fullmatch(text)
    return 0.0 if match is None else iou((float(match[1]), float(match[2])), span)


def iou(a: Span, b: Span) -> float:
    """Returns the intersection over union of two spans; 0 where the first does not end after its start."""
    if a[1] <= a[0]:
        return 0.0
    overlap = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    return overlap / (a[1] - a[0] + b[1] - b[0] - overlap)
