"""A clip in a report: key frames in a row, and below them the true and the predicted spans of time."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from mmrl.media.pictures import Clip
from mmrl.media.video import key_frames
from mmrl.parsing.answers import ParseError, Span, extract, read_span
from mmrl.reporting.drawing import INK, PAPER, PREDICTED, TRUE, Style, numbers

NUM_FRAMES = 8
# Pixels: width of a frame, between frames, height of a line, of its letters; a report shows them at half the size.
CELL, GAP, LINE, SIZE = 128, 4, 32, 23


def true_spans(target: Mapping[str, Any]) -> tuple[Span, ...]:
    """Returns the `span` and the `spans` of a prompt's target, in seconds, where they have that shape."""
    listed = target.get("spans")
    values = [target.get("span"), *(listed if isinstance(listed, Sequence) and not isinstance(listed, str) else ())]
    spans = (numbers(value, 2) for value in values)
    return tuple((span[0], span[1]) for span in spans if span is not None)


def answer_spans(text: str | None) -> tuple[Span, ...]:
    """Returns the last span of an answer, in its `<answer>` tags where it has them; nothing where there is none."""
    if text is None:
        return ()
    with suppress(ParseError):
        text = extract(text, "answer")
    try:
        return (read_span(text),)
    except ParseError:
        return ()


def answered(clip: Clip, target: Mapping[str, Any], text: str | None) -> Image.Image:
    """Returns key frames of a clip, with the spans of target and answer where the target has any."""
    frames = key_frames(clip, NUM_FRAMES)
    true = true_spans(target)
    return timeline(frames, true, answer_spans(text)) if true else timeline(frames)


def timeline(
    frames: Sequence[tuple[float, Image.Image]],
    true: Sequence[Span] | None = None,
    predicted: Sequence[Span] | None = None,
) -> Image.Image:
    """Returns at least one frame with its second, and the spans below the frames that they cover.

    A span with its ends in the wrong order is labelled as it was written.
    """
    cells = [picture.resize((CELL, max(1, round(picture.height * CELL / picture.width)))) for _, picture in frames]
    height = max(cell.height for cell in cells)
    rows = [(spans, style) for spans, style in ((true, TRUE), (predicted, PREDICTED)) if spans is not None]
    width = len(cells) * CELL + (len(cells) - 1) * GAP
    whole = Image.new("RGB", (width, height + LINE * (1 + 2 * len(rows))), PAPER)
    pen, font = ImageDraw.Draw(whole), ImageFont.load_default(SIZE)
    for number, ((second, _), cell) in enumerate(zip(frames, cells, strict=True)):
        left = number * (CELL + GAP)
        whole.paste(cell, (left, 0))
        pen.text((left + CELL / 2, height + LINE / 2), f"{second:.1f} s", fill=INK, font=font, anchor="mm")
    top = height + LINE
    for spans, style in rows:
        words = ", ".join(f"{start:g} to {end:g} s" for start, end in spans[:4]) or "none"
        pen.text((2, top + LINE / 2), f"{style.name}: {words}", fill=style.colour, font=font, anchor="lm")
        for span in spans:
            _render_span(pen, _placed(span, [second for second, _ in frames], width), top + LINE, style)
        top += 2 * LINE
    return whole


def _placed(span: Span, seconds: Sequence[float], width: int) -> tuple[float, float]:
    """Returns left and right in pixels: each frame's second is the middle of its cell."""
    first, last = seconds[0], seconds[-1]
    step = (last - first) / (len(seconds) - 1) if last > first else 1.0
    middle, cell = CELL / 2, CELL + GAP
    left, right = (min(max(middle + (time - first) / step * cell, 0.0), width - 1.0) for time in sorted(span))
    return left, max(right, left + 1)


def _render_span(pen: ImageDraw.ImageDraw, place: tuple[float, float], top: float, style: Style) -> None:
    """Renders a full bar, or a hollow one for the style that is dashed elsewhere."""
    area = (place[0], top + 3, place[1], top + LINE - 6)
    pen.rectangle(area, outline=style.colour, width=3, fill=None if style.is_dashed else style.colour)
