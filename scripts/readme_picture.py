"""Draws the README's picture from a run of each quickstart: `python scripts/readme_picture.py IMAGES_RUN CLICKS_RUN`.

The runs are those of `mmrl train quickstart` and `mmrl train quickstart_gui`, 100 seconds in all on one core. Shown are
the first prompts whose score rose, or the first of all where fewer rose.
"""

import json
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from mmrl.reporting.contact_sheet import FRAME, GAP, INK, PAGE, SIDE, SOFT, fit
from mmrl.reporting.samples import Sample, read_pairs

OUT = Path(__file__).parents[1] / "docs" / "images" / "before_after.png"
WIDTH = 1200  # pixels
HEADING, LINE = 40, 24  # pixels: heights of a band's heading, and of a prompt


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(
            "usage: python scripts/readme_picture.py IMAGES_RUN CLICKS_RUN   (directories of two full quickstarts)"
        )
    images, clicks = (Path(run) for run in sys.argv[1:])
    bands = (
        band(images, "Stable Diffusion 3, tiny: paint what the prompt says", columns=6),
        band(clicks, "Qwen2.5-VL, tiny: click the named element", columns=5),
    )
    picture = Image.new("RGB", (WIDTH, sum(part.height for part in bands)), PAGE)
    top = 0
    for part in bands:
        picture.paste(part, (0, top))
        top += part.height
    picture.save(OUT, optimize=True)
    print(OUT)


def band(run: Path, title: str, columns: int) -> Image.Image:
    """Returns pictures before above pictures after, one column for each prompt, below a heading with the scores."""
    pairs = read_pairs(run)
    if pairs is None:
        sys.exit(f"{run} has no samples of two iterations")
    risen = sorted(pairs.pairs, key=lambda pair: score(pair[1]) <= score(pair[0]))[:columns]
    side = (WIDTH - SIDE) // columns - GAP
    shown = [[fit(picture, side, side) for sample in pair if (picture := sample.picture())] for pair in risen]
    height = max(picture.height for pictures in shown for picture in pictures)
    band = Image.new("RGB", (WIDTH, HEADING + LINE + 2 * (height + GAP) + GAP), PAGE)
    draw = ImageDraw.Draw(band)
    held_out = json.loads((run / "summary.json").read_text(encoding="utf-8"))["held_out"]
    scores = f"{held_out['before']:.2f} before, {held_out['after']:.2f} after"
    draw.text((SIDE, HEADING // 2 + 4), title, fill=INK, font=ImageFont.load_default(20), anchor="lm")
    draw.text((WIDTH - GAP, HEADING // 2 + 4), scores, fill=SOFT, font=ImageFont.load_default(20), anchor="rm")
    for index, (pair, pictures) in enumerate(zip(risen, shown, strict=True)):
        left, top = SIDE + index * (side + GAP), HEADING
        draw.text((left, top + 2), pair[0].question, fill=SOFT, font=ImageFont.load_default(14))
        top += LINE
        for name, picture in zip(("before", "after"), pictures, strict=True):
            draw.rectangle((left - 1, top - 1, left + picture.width, top + picture.height), outline=FRAME)
            band.paste(picture, (left, top))
            if index == 0:
                place = (SIDE - GAP, top + height // 2)
                draw.text(place, name, fill=SOFT, font=ImageFont.load_default(14), anchor="rm")
            top += height + GAP
    return band


def score(sample: Sample) -> float:
    """Returns the sum of a sample's scores."""
    return sum(value for value in sample.scores.values() if value is not None)


if __name__ == "__main__":
    main()
