"""The contact sheet: before above after, one column per prompt."""

from PIL import Image, ImageDraw, ImageFont

from mmrl._report.samples import Pairs

CELL = 192  # pixels: a multiple of 32, 48, 64 and 96, so that tiny pictures grow by whole factors
GAP = 12
SIDE = 72  # room for "before" and "after" at the left
LINE = 18  # height of a line of the prompt
MAX_LINES = 3
MAX_COLUMNS = 6
MAX_ROWS = 2

PAGE, INK, SOFT = (255, 255, 255), (27, 29, 33), (95, 101, 112)


def contact_sheet(pairs: Pairs) -> Image.Image | None:
    """The sheet of at most 12 pairs in rows of 6; None when no pair has both pictures.

    Column c has its left edge at SIDE + c * (CELL + GAP). A row is the prompts (as many lines of LINE as the longest
    prompt of the sheet needs, at most 3), the pictures before, and those after, each CELL high with GAP below, and
    GAP more before the next row.
    """
    drawn = [
        (before.prompt, first, last)
        for before, after in pairs.pairs
        if (first := before.picture()) is not None and (last := after.picture()) is not None
    ][: MAX_COLUMNS * MAX_ROWS]
    if not drawn:
        return None
    prompts = [_lines(prompt) for prompt, _, _ in drawn]
    room = LINE * max(map(len, prompts))
    columns, height = min(MAX_COLUMNS, len(drawn)), room + 2 * (CELL + GAP) + GAP
    size = (SIDE + columns * (CELL + GAP), GAP + -(-len(drawn) // columns) * height)
    sheet = Image.new("RGB", size, PAGE)
    draw = ImageDraw.Draw(sheet)
    for index, (lines, (_, *shown)) in enumerate(zip(prompts, drawn, strict=True)):
        left, top = SIDE + index % columns * (CELL + GAP), GAP + index // columns * height + room
        for number, line in enumerate(reversed(lines)):
            draw.text((left, top - 4 - number * LINE), line, fill=INK, font=_font(), anchor="ld")
        for name, picture, y in zip(("before", "after"), shown, (top, top + CELL + GAP), strict=True):
            fitted = fit(picture)
            sheet.paste(fitted, (left + (CELL - fitted.width) // 2, y + (CELL - fitted.height) // 2))
            if index % columns == 0:
                draw.text((SIDE - GAP, y + CELL // 2), name, fill=SOFT, font=_font(), anchor="rm")
    return sheet


def fit(picture: Image.Image) -> Image.Image:
    """The picture in a cell: a small one enlarged by the largest whole factor that fits, a large one shrunk."""
    factor = CELL // max(picture.size)
    if factor >= 1:
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    fitted = picture.copy()
    fitted.thumbnail((CELL, CELL), Image.Resampling.LANCZOS)
    return fitted


def _lines(prompt: str) -> list[str]:
    """The prompt's first lines, no wider than a cell, broken between words or inside one that is too long."""
    lines: list[str] = []
    rest = " ".join(prompt[:400].split())
    while rest and len(lines) < MAX_LINES:
        end = _fitting(rest)
        cut = rest.rfind(" ", 0, end + 1) if end < len(rest) else end
        cut = cut if cut > 0 else end
        lines.append(rest[:cut])
        rest = rest[cut:].strip()
    if rest:
        lines[-1] += "..."
    return lines


def _fitting(text: str) -> int:
    """How many characters of `text` fit into a cell beside an ellipsis; at least one."""
    length = 1
    while length < len(text) and _font().getlength(text[: length + 1] + "...") <= CELL:
        length += 1
    return length


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(14)
