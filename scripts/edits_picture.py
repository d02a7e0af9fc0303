"""Draws the picture of the edits lab in docs/lab.md from a trained model: `python scripts/edits_picture.py FOLDER`.

The folder is that of `mmrl export RUN --out FOLDER` after a run of `quickstart_edit`. Shown are source, before and
after of the first prompt of each held-out instruction, not chosen; the frame is green where the edit is correct, else
red.
"""

import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from mmrl import labs
from mmrl.labs.edits import networks, pretrain, world
from mmrl.labs.edits.verifier import verify
from mmrl.labs.shapes.world import SIZE
from mmrl.media.pictures import as_tensor

OUT = Path(__file__).parents[1] / "docs" / "images" / "edits.png"
ZOOM, GAP, LINE = 3, 8, 18  # the size of a pixel; pixels between pictures; height of an instruction
ACROSS = 3  # instructions in a row
RIGHT, WRONG, INK, PAGE = "#1a7f37", "#cf222e", "#1f2328", "#ffffff"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/edits_picture.py FOLDER   (of mmrl export RUN --out FOLDER)")
    asked = world.prompts("held_out")[: len(world.edits("held_out"))]
    texts = [question.text for question in asked]
    sources = torch.stack([as_tensor(question.media[0].load()) for question in asked])
    shown = [sources, *(edited(folder, texts, sources) for folder in (labs.checkpoint("edits"), Path(sys.argv[1])))]
    is_correct = [verify(pictures, sources, texts).is_correct.tolist() for pictures in shown]
    side = ZOOM * SIZE
    width, height = 3 * (side + GAP) + 2 * GAP, LINE + side + 2 * GAP
    sheet = Image.new("RGB", (ACROSS * width, -(-len(texts) // ACROSS) * height), PAGE)
    draw = ImageDraw.Draw(sheet)
    for index, text in enumerate(texts):
        left, top = index % ACROSS * width + GAP, index // ACROSS * height + GAP
        draw.text((left, top - 2), text, fill=INK, font=ImageFont.load_default(13))
        for column, pictures in enumerate(shown):
            x, y = left + column * (side + GAP), top + LINE
            if column:
                frame = RIGHT if is_correct[column][index] else WRONG
                draw.rectangle((x - 2, y - 2, x + side + 1, y + side + 1), outline=frame, width=2)
            sheet.paste(enlarged(pictures[index], side), (x, y))
    sheet.save(OUT, optimize=True)
    print(OUT)


def edited(folder: Path, texts: list[str], sources: Tensor) -> Tensor:
    """Returns the edits [B, 3, 32, 32] that a pipeline makes in ten steps from fixed noise."""
    noise = torch.randn(
        len(texts), networks.NUM_TOKENS, networks.TOKEN_WIDTH, generator=torch.Generator().manual_seed(123)
    )
    return pretrain.sample(pretrain.load(folder), texts, sources, noise, num_steps=10)


def enlarged(picture: Tensor, side: int) -> Image.Image:
    pixels = picture.mul(255).round().byte().permute(1, 2, 0).numpy()
    return Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)


if __name__ == "__main__":
    main()
