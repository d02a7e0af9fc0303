"""Pictures side by side with a line below each: the turns of an episode."""

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from mmrl.drawing import INK, PAPER

WIDTH = 320  # pixels of a cell at most
PER_ROW = 3  # as many as are read at half the width of a report
GAP, LINE = 8, 30  # pixels between cells, and below each for its caption


def filmstrip(pictures: Sequence[Image.Image], captions: Sequence[str]) -> Image.Image:
    """At least one picture and as many captions as one image, row by row; larger pictures shrink to the cell."""
    cells = [_fitted(picture) for picture in pictures]
    per_row = math.ceil(len(cells) / math.ceil(len(cells) / PER_ROW))  # rows of like length: four are 2 and 2
    rows = [range(start, min(start + per_row, len(cells))) for start in range(0, len(cells), per_row)]
    heights = [max(cells[n].height for n in row) + LINE for row in rows]
    width = max(sum(cells[n].width for n in row) + GAP * (len(row) - 1) for row in rows)
    strip = Image.new("RGB", (width, sum(heights) + GAP * (len(rows) - 1)), PAPER)
    size = max(13, max(cell.width for cell in cells) // 15)  # letters grow with the cells, since a report shrinks both
    pen, font, top = ImageDraw.Draw(strip), ImageFont.load_default(size), 0
    for row, height in zip(rows, heights, strict=True):
        left = 0
        for n in row:
            strip.paste(cells[n], (left, top))
            caption = _cut(captions[n], cells[n].width, font)
            pen.text((left, top + cells[n].height + LINE // 2), caption, fill=INK, font=font, anchor="lm")
            left += cells[n].width + GAP
        top += height + GAP
    return strip


def _fitted(picture: Image.Image) -> Image.Image:
    if picture.width <= WIDTH:
        return picture
    height = max(1, round(picture.height * WIDTH / picture.width))
    return picture.resize((WIDTH, height), Image.Resampling.LANCZOS)


def _cut(text: str, width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    """The text as one line no wider than `width` pixels, with an ellipsis where something is missing."""
    text = " ".join(text[:200].split())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."
