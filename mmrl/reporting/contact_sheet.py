"""The contact sheets: before above after, one column per prompt; and the samples of many prompts in a grid."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from PIL import Image, ImageDraw, ImageFont

from mmrl.reporting.samples import Pairs, Sample

GAP = 12
SIDE = 72  # room for "before" and "after" at the left
LINE = 18  # height of a line of the prompt or of an answer
MAX_LINES = 3
MAX_SAMPLED = 48  # pictures of a grid

PAGE, INK, SOFT = (255, 255, 255), (27, 29, 33), (95, 101, 112)
FRAME = (182, 186, 193)  # around pictures, of which some are as white as the page


@dataclass(frozen=True)
class Layout:
    """The size of the pictures, the number of them in a row, and the number of lines for the answer below each."""

    width: int  # pixels of the room for a picture
    height: int  # pixels
    columns: int
    rows: int
    num_answer_lines: int


PICTURES = Layout(192, 192, 6, 2, 0)  # a multiple of 32, 48, 64 and 96, so that tiny pictures grow by whole factors
STRIPS = Layout(420, 96, 2, 4, 0)  # frames of videos side by side
ANSWERED = Layout(320, 344, 4, 1, 2)  # at most: a picture of 320 pixels with its legend fits as it is


@dataclass(frozen=True)
class _Column:
    prompt: list[str]
    pictures: list[Image.Image]  # before, after
    answers: list[list[str]]  # before, after


def contact_sheet(pairs: Pairs) -> Image.Image | None:
    """Returns the sheet of the first pairs; None when no pair has both pictures.

    There are two rows of 6 columns, one of 4 where answers stand below, or four of 2 for the frames of videos. Column
    c has its left edge at SIDE + c * (width + GAP). A row is the prompts (as many lines of LINE as the longest prompt
    of the sheet needs, at most 3), the pictures before, and those after, each with room for an answer and GAP below,
    and GAP more before the next row.
    """
    shown = [
        (before, after, [first, last])
        for before, after in pairs.pairs
        if (first := before.picture()) is not None and (last := after.picture()) is not None
    ]
    if not shown:
        return None
    is_answered = any(sample.text is not None for before, after, _ in shown for sample in (before, after))
    is_video = any(sample.video is not None for before, after, _ in shown for sample in (before, after))
    layout = ANSWERED if is_answered else STRIPS if is_video else PICTURES
    shown = shown[: layout.columns * layout.rows]
    if is_answered or is_video:  # no room that no picture takes
        fitted = [fit(picture, layout.width, layout.height) for *_, both in shown for picture in both]
        layout = replace(layout, width=max(p.width for p in fitted), height=max(p.height for p in fitted))
    columns = [
        _Column(
            _lines(before.question, layout.width, MAX_LINES),
            [fit(picture, layout.width, layout.height) for picture in pictures],
            [_answer(sample, layout) for sample in (before, after)],
        )
        for before, after, pictures in shown
    ]
    return _sheet(columns, layout)


def sampled_sheet(samples: Sequence[Sample]) -> Image.Image | None:
    """Returns a grid of the pictures of the first samples with their prompts below; None where none has a picture.

    A cell is `width` wide with GAP around it, and has two lines of LINE for the prompt below the picture.
    """
    shown = [(sample, picture) for sample in samples[:MAX_SAMPLED] if (picture := sample.picture()) is not None]
    if not shown:
        return None
    is_answered = any(sample.text is not None for sample, _ in shown)
    is_video = any(sample.video is not None for sample, _ in shown)
    layout = ANSWERED if is_answered else STRIPS if is_video else PICTURES
    pictures = [fit(picture, layout.width, layout.height) for _, picture in shown]
    width, height = max(layout.width // 2, *(p.width for p in pictures)), max(p.height for p in pictures)
    across = min(layout.columns, len(shown))
    step = width + GAP, height + 2 * LINE + 2 * GAP
    sheet = Image.new("RGB", (GAP + across * step[0], GAP + -(-len(shown) // across) * step[1]), PAGE)
    draw = ImageDraw.Draw(sheet)
    for index, ((sample, _), picture) in enumerate(zip(shown, pictures, strict=True)):
        left, top = GAP + index % across * step[0], GAP + index // across * step[1]
        x, y = left + (width - picture.width) // 2, top + (height - picture.height) // 2
        draw.rectangle((x - 1, y - 1, x + picture.width, y + picture.height), outline=FRAME)
        sheet.paste(picture, (x, y))
        for number, line in enumerate(_lines(sample.question, width, 2)):
            draw.text((left, top + height + 4 + number * LINE), line, fill=INK, font=_font(), anchor="la")
    return sheet


def _sheet(columns: list[_Column], layout: Layout) -> Image.Image:
    room = LINE * max(len(column.prompt) for column in columns)
    part = layout.height + LINE * layout.num_answer_lines + GAP  # height of a picture and what is below
    across, height = min(layout.columns, len(columns)), room + 2 * part + GAP
    size = (SIDE + across * (layout.width + GAP), GAP + -(-len(columns) // across) * height)
    sheet = Image.new("RGB", size, PAGE)
    draw = ImageDraw.Draw(sheet)
    for index, column in enumerate(columns):
        left, top = SIDE + index % across * (layout.width + GAP), GAP + index // across * height + room
        for number, line in enumerate(reversed(column.prompt)):
            draw.text((left, top - 4 - number * LINE), line, fill=INK, font=_font(), anchor="ld")
        for name, picture, answer in zip(("before", "after"), column.pictures, column.answers, strict=True):
            free = layout.width - picture.width, layout.height - picture.height
            x, y = left + free[0] // 2, top + free[1] // 2
            draw.rectangle((x - 1, y - 1, x + picture.width, y + picture.height), outline=FRAME)
            sheet.paste(picture, (x, y))
            for number, line in enumerate(answer):
                draw.text((left, top + layout.height + 4 + number * LINE), line, fill=SOFT, font=_font(), anchor="la")
            if index % across == 0:
                draw.text((SIDE - GAP, top + layout.height // 2), name, fill=SOFT, font=_font(), anchor="rm")
            top += part
    return sheet


def fit(picture: Image.Image, width: int, height: int) -> Image.Image:
    """Returns the picture in a cell: a small one enlarged by the largest whole factor that fits, a large one shrunk."""
    factor = min(width // picture.width, height // picture.height)
    if factor >= 1:
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    fitted = picture.copy()
    fitted.thumbnail((width, height), Image.Resampling.LANCZOS)
    return fitted


def _answer(sample: Sample, layout: Layout) -> list[str]:
    return _lines(sample.text or "", layout.width, layout.num_answer_lines)


def _lines(text: str, width: int, most: int) -> list[str]:
    """Returns the text's first lines, no wider than a cell, broken between words or inside one that is too long."""
    lines: list[str] = []
    rest = " ".join(text[:400].split())
    while rest and len(lines) < most:
        end = _fitting(rest, width)
        cut = rest.rfind(" ", 0, end + 1) if end < len(rest) else end
        cut = cut if cut > 0 else end
        lines.append(rest[:cut])
        rest = rest[cut:].strip()
    if rest and lines:
        lines[-1] += "..."
    return lines


def _fitting(text: str, width: int) -> int:
    """Returns how many characters of `text` fit into `width` pixels beside an ellipsis; at least one."""
    length = 1
    while length < len(text) and _font().getlength(text[: length + 1] + "...") <= width:
        length += 1
    return length


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(14)
