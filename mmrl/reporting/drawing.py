"""The image of a question with the true place and the place of the answer rendered on it."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from mmrl.parsing.actions.action import Action
from mmrl.parsing.answers import ParseError, extract, read_place
from mmrl.parsing.coordinates import Box, Canvas, Point

SMALLEST = 320  # pixels of the longer side: a smaller image grows by the largest whole factor that stays within
LARGEST = 1024  # pixels of the longer side: a larger image shrinks to it
ABSURD = 1e9  # pixels: no place on an image
PAPER, INK = (255, 255, 255), (27, 29, 33)

Pen = tuple[ImageDraw.ImageDraw, int]  # where to draw, and how thick in pixels


@dataclass(frozen=True)
class Marks:
    """Places on an image, in its own pixels; points are continuous and boxes half-open."""

    boxes: tuple[Box, ...] = ()
    points: tuple[Point, ...] = ()
    paths: tuple[tuple[Point, Point], ...] = ()  # from where to where

    def __bool__(self) -> bool:
        return bool(self.boxes or self.points or self.paths)


@dataclass(frozen=True)
class Style:
    """Colours of Okabe and Ito's palette, which all kinds of colour vision can distinguish; dashes and
    shapes differ too.
    """

    name: str
    colour: tuple[int, int, int]
    is_dashed: bool  # boxes; the point of a dashed style is a cross, that of the other a ring


TRUE = Style("true", (0, 114, 178), is_dashed=False)
PREDICTED = Style("predicted", (213, 94, 0), is_dashed=True)


def true_marks(target: Mapping[str, Any]) -> Marks:
    """Returns the `box`, `boxes` and `point` of a prompt's target, in pixels of its image, where they have
    that shape.
    """
    listed = target.get("boxes")
    boxes = [target.get("box"), *(listed if isinstance(listed, Sequence) and not isinstance(listed, str) else ())]
    return Marks(
        tuple((x1, y1, x2, y2) for x1, y1, x2, y2 in filter(None, (numbers(box, 4) for box in boxes))),
        tuple((x, y) for x, y in filter(None, [numbers(target.get("point"), 2)])),
    )


def action_marks(action: Action) -> Marks:
    """Returns where an action points: its box, its point, and the way of a drag (its end, if it starts at
    the pointer).
    """
    start, end = action.point, action.end
    point = end if start is None else start
    return Marks(
        () if action.box is None else (action.box,),
        () if point is None else (point,),
        () if start is None or end is None else ((start, end),),
    )


def answer_marks(text: str, canvas: Canvas | None) -> Marks:
    """Returns the one point or box of an answer, in pixels of the original image; nothing for none or several.

    Only the text in `<answer>` tags is read where an answer has them: thoughts may name other places.
    """
    if canvas is None or canvas.convention is None:
        return Marks()
    with suppress(ParseError):
        text = extract(text, "answer")
    try:
        place = read_place(text)
    except ParseError:
        return Marks()
    if len(place) == 2:
        return Marks(points=(canvas.point_to_original(place),))
    return Marks(boxes=(canvas.box_to_original(place),))


def render(image: Image.Image, true: Marks, predicted: Marks) -> Image.Image:
    """Returns a copy of `image` with both kinds of marks, and a legend below where there is any.

    A small image grows by a whole factor, so that its pixels stay sharp; a large one shrinks to `LARGEST` pixels. A
    mark outside of the image is named in the legend.
    """
    picture = marked(image, true, predicted)
    if not (true or predicted):
        return picture
    return _with_legend(picture, _described(true, TRUE, image.size), _described(predicted, PREDICTED, image.size))


def marked(image: Image.Image, true: Marks, predicted: Marks) -> Image.Image:
    """Returns a copy of `image` with both kinds of marks, without the legend."""
    picture = _fitted(image.convert("RGB"))
    scale = picture.width / image.width, picture.height / image.height
    pen = ImageDraw.Draw(picture), max(3, round(max(picture.size) / 170))
    for marks, style in ((true, TRUE), (predicted, PREDICTED)):
        _render_marks(pen, _scaled(marks, scale, picture.size), style)
    return picture


def _fitted(image: Image.Image) -> Image.Image:
    is_large = max(image.size) > LARGEST
    return image.resize(marked_size(image.size), Image.Resampling.LANCZOS if is_large else Image.Resampling.NEAREST)


def marked_size(size: tuple[int, int]) -> tuple[int, int]:
    """Returns the width and height of what `marked` makes of an image of this width and height."""
    width, height = size
    longest = max(size)
    if longest > LARGEST:
        return max(1, round(width * LARGEST / longest)), max(1, round(height * LARGEST / longest))
    factor = max(1, SMALLEST // longest)
    return width * factor, height * factor


def _scaled(marks: Marks, scale: tuple[float, float], size: tuple[int, int]) -> Marks:
    """Returns a place in pixels of the rendered image; far ones are moved near, so that absurd numbers cost no time."""

    def at(point: Point) -> Point:
        x, y = (min(max(one * by, -side), 2.0 * side) for one, by, side in zip(point, scale, size, strict=True))
        return x, y

    return Marks(
        tuple((*at(box[:2]), *at(box[2:])) for box in marks.boxes if _is_finite(*box)),
        tuple(at(point) for point in marks.points if _is_finite(*point)),
        tuple((at(start), at(end)) for start, end in marks.paths if _is_finite(*start, *end)),
    )


def _render_marks(pen: Pen, marks: Marks, style: Style) -> None:
    for box in marks.boxes:
        _render_box(pen, box, style)
    for start, end in marks.paths:
        _render_lines(pen, _dashes(start, end, 4 * pen[1]), style)
        _render_point(pen, end, style, 0.5)
    for point in marks.points:
        _render_point(pen, point, style)


def _render_box(pen: Pen, box: Box, style: Style) -> None:
    """Renders a box around its content, so that the content stays visible."""
    away = pen[1] / 2
    left, right = min(box[0], box[2]) - away, max(box[0], box[2]) + away
    top, bottom = min(box[1], box[3]) - away, max(box[1], box[3]) + away
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    sides = list(zip(corners, [*corners[1:], corners[0]], strict=True))
    dash = 4 * pen[1]
    _render_lines(
        pen, [part for side in sides for part in (_dashes(*side, dash) if style.is_dashed else [side])], style
    )


def _render_point(pen: Pen, at: Point, style: Style, size: float = 1.0) -> None:
    (x, y), (canvas, width) = at, pen
    reach = 3.5 * width * size
    if style.is_dashed:
        arms = [((x - reach, y - reach), (x + reach, y + reach)), ((x - reach, y + reach), (x + reach, y - reach))]
        _render_lines(pen, arms, style)
        return
    ring = (x - reach, y - reach, x + reach, y + reach)
    rim = (ring[0] - 1, ring[1] - 1, ring[2] + 1, ring[3] + 1)
    canvas.ellipse(rim, outline=PAPER, width=width + 2)
    canvas.ellipse(ring, outline=style.colour, width=width)


def _render_lines(pen: Pen, lines: Sequence[tuple[Point, Point]], style: Style) -> None:
    """Renders lines with a light rim, which shows on any ground."""
    canvas, width = pen
    for colour, thickness in ((PAPER, width + 2), (style.colour, width)):
        for start, end in lines:
            canvas.line((start, end), fill=colour, width=thickness)


def _dashes(start: Point, end: Point, length: float) -> list[tuple[Point, Point]]:
    """Returns a line cut into dashes of about `length` pixels and gaps half as long; a dash is first and last."""
    distance = math.dist(start, end)
    count = max(1, round((distance / length + 0.5) / 1.5))
    dash = 1 / (1.5 * count - 0.5)  # share of the line: count dashes and count - 1 gaps of half a dash

    def at(share: float) -> Point:
        return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share

    return [(at(1.5 * number * dash), at(1.5 * number * dash + dash)) for number in range(count)]


def _described(marks: Marks, style: Style, size: tuple[int, int]) -> tuple[Marks, Style, str]:
    """Returns the text of the legend for the marks of one style on an image of `size` pixels."""
    if not marks:
        return marks, style, f"{style.name}: none" if style is PREDICTED else ""
    return marks, style, style.name if _is_seen(marks, size) else f"{style.name}: outside"


def _is_seen(marks: Marks, size: tuple[int, int]) -> bool:
    areas = [*marks.boxes, *((*point, *point) for point in marks.points)]
    return any(
        all(
            max(low, high) >= 0 and min(low, high) <= side
            for low, high, side in zip(area[:2], area[2:], size, strict=True)
        )
        for area in areas
    )


def _with_legend(picture: Image.Image, *entries: tuple[Marks, Style, str]) -> Image.Image:
    size = max(13, max(picture.size) // 40)
    font = ImageFont.load_default(size)
    height, gap, swatch = round(1.8 * size), size, round(1.4 * size)
    shown = [(marks, style, text) for marks, style, text in entries if text]
    lengths = [(swatch + gap // 2 if marks else 0) + math.ceil(font.getlength(text)) for marks, _, text in shown]
    width = max(picture.width, sum(lengths) + gap * len(lengths))
    whole = Image.new("RGB", (width, picture.height + height), PAPER)
    whole.paste(picture, (0, 0))
    pen = ImageDraw.Draw(whole), max(2, size // 7)
    left, middle = gap // 2, picture.height + height / 2
    for (marks, style, text), length in zip(shown, lengths, strict=True):
        if marks.boxes:
            _render_box(pen, (left, middle - 0.3 * size, left + swatch, middle + 0.3 * size), style)
        elif marks:
            _render_point(pen, (left + swatch / 2, middle), style, 0.5 * size / 3.5 / pen[1])
        pen[0].text((left + length, middle), text, fill=INK, font=font, anchor="rm")
        left += length + gap
    return whole


def numbers(value: Any, count: int) -> tuple[float, ...] | None:
    """Returns `count` finite numbers; None for any other value."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != count:
        return None
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in value):
        return None
    return tuple(map(float, value)) if all(abs(one) < ABSURD for one in value) else None


def _is_finite(*values: float) -> bool:
    return all(-math.inf < value < math.inf for value in values)  # math.isfinite raises for an integer of 400 digits


WIDTH = 320  # pixels of a cell at most
PER_ROW = 3  # as many as are read at half the width of a report
GAP, LINE = 8, 30  # pixels between cells, and below each for its caption


@dataclass(frozen=True)
class Cell:
    """A picture of a strip, with what stands below it."""

    picture: Image.Image
    caption: str  # at the left, cut where it is too long
    note: str = ""  # at the right, whole


def filmstrip(cells: Sequence[Cell], legend: Sequence[tuple[Marks, str]] = ()) -> Image.Image:
    """Returns at least one picture with captions as one image, row by row; larger pictures shrink to the cell.

    `legend`: marks of which kind mean what, below all rows.
    """
    pictures = [narrowed(cell.picture) for cell in cells]
    per_row = math.ceil(len(cells) / math.ceil(len(cells) / PER_ROW))  # rows of like length: four are 2 and 2
    rows = [range(start, min(start + per_row, len(cells))) for start in range(0, len(cells), per_row)]
    heights = [max(pictures[n].height for n in row) + LINE for row in rows]
    width = max(sum(pictures[n].width for n in row) + GAP * (len(row) - 1) for row in rows)
    size = max(13, max(one.width for one in pictures) // 15)  # letters grow with the cells: a report shrinks both
    font = ImageFont.load_default(size)
    below = _legend(legend, width, font) if legend else None
    strip = Image.new("RGB", (width, sum(heights) + GAP * (len(rows) - 1) + (below.height if below else 0)), PAPER)
    pen, top = ImageDraw.Draw(strip), 0
    for row, height in zip(rows, heights, strict=True):
        left = 0
        for n in row:
            cell, picture = cells[n], pictures[n]
            strip.paste(picture, (left, top))
            middle, note = top + picture.height + LINE // 2, cut(cell.note, picture.width, font)
            room = picture.width - math.ceil(font.getlength(f"  {note}" if note else ""))
            pen.text((left, middle), cut(cell.caption, room, font), fill=INK, font=font, anchor="lm")
            pen.text((left + picture.width, middle), note, fill=INK, font=font, anchor="rm")
            left += picture.width + GAP
        top += height + GAP
    if below is not None:
        strip.paste(below, (0, strip.height - below.height))
    return strip


def _legend(
    lines: Sequence[tuple[Marks, str]], width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont
) -> Image.Image:
    """Returns the lines of a legend, each with a swatch of its kind of mark."""
    height, swatch = LINE, LINE
    whole = Image.new("RGB", (width, height * len(lines)), PAPER)
    pen = ImageDraw.Draw(whole), 3
    for number, (marks, text) in enumerate(lines):
        middle, reach = (number + 0.5) * height, 0.3 * height
        if marks.boxes:
            _render_box(pen, (4, middle - reach, swatch - 4, middle + reach), PREDICTED)
        elif marks.paths:
            _render_marks(pen, Marks(paths=(((3, middle), (swatch - 6, middle)),)), PREDICTED)
        elif marks.points:
            _render_point(pen, (swatch / 2, middle), PREDICTED, 0.7)
        left = swatch + GAP if marks else 0
        pen[0].text((left, middle), cut(text, width - left, font), fill=INK, font=font, anchor="lm")
    return whole


def narrowed(picture: Image.Image) -> Image.Image:
    """Returns a picture that is no wider than a cell of a strip."""
    if picture.width <= WIDTH:
        return picture
    height = max(1, round(picture.height * WIDTH / picture.width))
    return picture.resize((WIDTH, height), Image.Resampling.LANCZOS)


def cut(text: str, width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    """Returns the text as one line no wider than `width` pixels, with an ellipsis where something is missing."""
    text = " ".join(text[:200].split())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
