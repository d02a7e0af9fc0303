"""GenEval's scenes, and whether the objects that a detector found fulfil one: rules without any model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any, Literal, get_args

from torch import Tensor

from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Box

Relation = Literal["left of", "right of", "above", "below"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
_FIELDS = ("class", "count", "color", "position")
# What checkpoints on the hub, or COCO itself, call some of them, without spaces.
_OTHER_NAMES = {
    "motorbike": "motorcycle",
    "aeroplane": "airplane",
    "sofa": "couch",
    "tvmonitor": "tv",
    "mouse": "computermouse",
    "remote": "tvremote",
    "keyboard": "computerkeyboard",
    "hairdryer": "hairdrier",
}


@dataclass(frozen=True)
class DetectedObject:
    """An object of a detector in an image."""

    box: Box  # x1, y1, x2, y2 in pixels of the image
    score: float  # in [0, 1]
    mask: Tensor | None = None  # [H, W] bool; None: the detector knows boxes only


Objects = Mapping[str, Sequence[DetectedObject]]  # by the `same_name` of their class, the surest first
Colors = Callable[[Sequence[DetectedObject], str], Sequence[str]]  # objects of a class -> the colour of each


@dataclass(frozen=True)
class Clause:
    """A number of objects of a class, of a colour, in a place relative to the objects of an earlier clause."""

    name: str
    count: int
    color: str | None = None
    position: tuple[Relation, int] | None = None  # relation, and number of the clause that it is to


@dataclass(frozen=True)
class Scene:
    """The objects that should be in an image, and those that should not."""

    include: tuple[Clause, ...]
    exclude: tuple[Clause, ...]  # fewer than `count` of the class
    is_counting: bool


def read_scene(prompt: Prompt, most: int) -> Scene:
    """Reads the scene of `target.include`, `target.exclude` and `target.tag`, as GenEval's metadata has them.

    Args:
        most: objects of a class that can be told apart; no clause may ask for more.
    Raises ValueError for what is no such list, or a scene that no image could show.
    """
    include = _clauses(prompt, "include", most)
    exclude = _clauses(prompt, "exclude", most) if prompt.target.get("exclude") else ()
    wanted = {same_name(clause.name): clause.count for clause in include}
    if not include or len(wanted) < len(include):
        raise _wrong(prompt, "include", "a list of objects, at least one, each class once: a count says how many")
    for clause in exclude:
        if clause.color or clause.position:
            raise _wrong(prompt, "exclude", "a list of class and count only")
        if wanted.get(same_name(clause.name), 0) >= clause.count:
            raise _wrong(prompt, "exclude", f"fewer than {clause.count} {clause.name!r}, which include asks for")
    tag = prompt.target.get("tag")
    return Scene(include, exclude, any(clause.count > 1 for clause in include) if tag is None else tag == "counting")


def same_name(name: str) -> str:
    """Returns one name for all spellings of a class."""
    plain = "".join(letter for letter in name.casefold() if letter.isalnum())
    return _OTHER_NAMES.get(plain, plain)


def relations(box: Box, other: Box, margin: float) -> set[Relation]:
    """Returns the place of a box relative to another: one relation, two in a diagonal, or none where they are too near.

    The offset of the centres, of which `margin` times the sum of both sizes is taken off in each direction, is compared
    with half the distance of the centres.
    """
    sizes = [box[2 + axis] - box[axis] + other[2 + axis] - other[axis] for axis in (0, 1)]
    offset = [(box[axis] + box[2 + axis] - other[axis] - other[2 + axis]) / 2 for axis in (0, 1)]
    distance = hypot(*offset)
    beyond = [max(abs(one) - margin * size, 0.0) for one, size in zip(offset, sizes, strict=True)]
    names: set[Relation] = set()
    if max(beyond) < 1e-3:  # pixels: GenEval's
        return names
    if beyond[0] > distance / 2:
        names.add("left of" if offset[0] < 0 else "right of")
    if beyond[1] > distance / 2:
        names.add("above" if offset[1] < 0 else "below")
    return names


def graded_parts(objects: Objects, scene: Scene, colors: Colors, margin: float) -> list[float]:
    """Returns a number in [0, 1] for each thing that the scene asks for.

    For each clause of `include`: max(0, 1 - |found - count| / count); then, 0 where that number is not exact, the share
    of the right colour, and whether all objects lie as they should to those of the other clause, which must be
    fulfilled itself. For each clause of `exclude` about a class that is not asked for: whether there are fewer.
    """
    parts: list[float] = []
    matched: list[Sequence[DetectedObject]] = []
    for clause in scene.include:
        detected = objects.get(same_name(clause.name), ())
        own = [max(0.0, 1 - abs(len(detected) - clause.count) / clause.count)]
        if clause.color is not None:
            own.append(list(colors(detected, clause.name)).count(clause.color) / clause.count if own == [1.0] else 0.0)
        if clause.position is not None:
            is_placed = min(own) == 1 and _is_placed(detected, matched, clause.position, margin)
            own.append(float(is_placed))
        matched.append(detected if min(own) == 1 else ())
        parts += own
    wanted = {same_name(clause.name) for clause in scene.include}  # their numbers are judged already
    others = [clause for clause in scene.exclude if same_name(clause.name) not in wanted]
    return parts + [float(len(objects.get(same_name(clause.name), ())) < clause.count) for clause in others]


def is_correct(objects: Objects, scene: Scene, colors: Colors, margin: float) -> bool:
    """Returns GenEval's own verdict: enough objects, of which the surest are judged, and not too many of others."""
    matched: list[Sequence[DetectedObject]] = []
    for clause in scene.include:
        detected = objects.get(same_name(clause.name), ())[: clause.count]
        is_right = len(detected) == clause.count
        if is_right and clause.color is not None:
            is_right = list(colors(detected, clause.name)).count(clause.color) == clause.count
        if is_right and clause.position is not None:
            is_right = _is_placed(detected, matched, clause.position, margin)
        if not is_right:
            return False
        matched.append(detected)
    return all(len(objects.get(same_name(clause.name), ())) < clause.count for clause in scene.exclude)


def _is_placed(
    detected: Sequence[DetectedObject],
    matched: Sequence[Sequence[DetectedObject]],
    position: tuple[Relation, int],
    margin: float,
) -> bool:
    """Returns whether each object has that relation to each of the other clause's objects, at least one."""
    relation, number = position
    pairs = [(one.box, other.box) for one in detected for other in matched[number]]
    return bool(pairs) and all(relation in relations(*pair, margin) for pair in pairs)


def _clauses(prompt: Prompt, name: str, most: int) -> tuple[Clause, ...]:
    given = prompt.target[name]
    if not isinstance(given, list | tuple):
        raise _wrong(prompt, name, "a list of {class, count, color, position}")
    return tuple(_clause(prompt, name, entry, number, most) for number, entry in enumerate(given))


def _clause(prompt: Prompt, name: str, entry: Any, number: int, most: int) -> Clause:
    """Reads one entry of the metadata; files with columns hold None for what an entry does not have."""
    if not isinstance(entry, Mapping) or any(key not in _FIELDS for key in entry):
        raise _wrong(prompt, name, f"a list of {{{', '.join(_FIELDS)}}}, and nothing else")
    kind, count, color, position = (entry.get(key) for key in _FIELDS)
    if not isinstance(kind, str) or not kind.strip():
        raise _wrong(prompt, name, "a list whose every entry names a class")
    largest = most if name == "include" else most + 1  # fewer than that is always so
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= largest:
        raise _wrong(prompt, name, f"a list whose counts are whole numbers from 1 to {largest}")
    if color is not None and color not in COLORS:
        raise _wrong(prompt, name, f"a list whose colors are of {', '.join(COLORS)}")
    return Clause(kind, count, color, None if position is None else _position(prompt, name, position, number))


def _position(prompt: Prompt, name: str, position: Any, number: int) -> tuple[Relation, int]:
    if isinstance(position, list | tuple) and len(position) == 2:
        relation, other = position
        is_number = isinstance(other, int | str) and not isinstance(other, bool) and str(other).isdecimal()
        if relation in RELATIONS and is_number and int(other) < number:
            return relation, int(other)
    allowed = f"a list whose positions are [relation, number of an earlier entry], relation of {', '.join(RELATIONS)}"
    raise _wrong(prompt, name, allowed)


def _wrong(prompt: Prompt, name: str, allowed: str) -> ValueError:
    return ValueError(f"target.{name} must be {allowed}; got {prompt.target[name]!r} for {prompt.text!r}")
