"""Draws the filmstrips of docs/lab.md: `mmrl export RUN --out FOLDER`, then `python scripts/motion_picture.py FOLDER`.

RUN is one of `quickstart_text_to_video`. The stock pipeline of diffusers makes the clips, with the weights before and
those after, from the same noise; every second frame is shown.
"""

import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from mmrl import labs
from mmrl.labs.motion import networks, pretrain, world
from mmrl.labs.shapes.world import SIZE
from mmrl.reporting.contact_sheet import GAP, INK, PAGE, SOFT

OUT = Path(__file__).parents[1] / "docs" / "images" / "motion_before_after.png"
SHOWN = (  # held out; all colours, shapes and directions
    "red circle moves right",
    "green square moves left",
    "blue triangle moves up",
    "yellow cross moves down",
    "purple square moves left",
    "white triangle moves up",
)
ZOOM = 2
NAMES, HEADING = 216, 30  # pixels: width of the prompts, height of the headings


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/motion_picture.py FOLDER   (a pipeline that mmrl export wrote)")
    torch.set_num_threads(1)
    prompts = list(SHOWN)
    assert set(prompts) <= set(world.prompts("held_out"))
    side, num_shown = ZOOM * SIZE + 2, (world.NUM_FRAMES + 1) // 2
    width = num_shown * side + GAP
    sheet = Image.new("RGB", (NAMES + 2 * width, HEADING + len(prompts) * (side + 4)), PAGE)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(16)
    for half, (name, folder) in enumerate((("before", labs.checkpoint("motion")), ("after", Path(sys.argv[1])))):
        clips, left = made(folder, prompts), NAMES + half * width
        num_correct = int(world.verify(clips, prompts).is_correct.sum())
        pen.text((left, 6), f"{name}: {num_correct} of {len(prompts)} correct", fill=SOFT, font=font)
        for row, clip in enumerate(clips):
            for column, frame in enumerate(clip[::2]):
                sheet.paste(picture(frame), (left + column * side, HEADING + row * (side + 4)))
    for row, prompt in enumerate(prompts):
        pen.text((4, HEADING + row * (side + 4) + side // 2), prompt, fill=INK, font=font, anchor="lm")
    sheet.save(OUT, optimize=True)
    print(OUT, OUT.stat().st_size)


def made(folder: Path, prompts: list[str]) -> Tensor:
    """Returns clips [B, 9, 3, 32, 32] of the stock pipeline in ten steps."""
    noise = torch.randn(len(prompts), *networks.LATENT_SHAPE, generator=torch.Generator().manual_seed(5))
    clips: Tensor = pretrain.load(folder)(
        prompts,
        height=SIZE,
        width=SIZE,
        num_frames=world.NUM_FRAMES,
        frame_rate=world.FRAME_RATE,
        num_inference_steps=10,
        guidance_scale=1.0,
        max_sequence_length=networks.MAX_SEQUENCE_LENGTH,
        latents=noise,
        output_type="pt",
    ).frames
    return clips


def picture(frame: Tensor) -> Image.Image:
    """Returns a frame [3, 32, 32] enlarged, in 32 levels a channel so that the file stays small."""
    pixels = (8 * (31 * frame.permute(1, 2, 0)).round()).byte().numpy()
    side = ZOOM * SIZE
    return Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)


if __name__ == "__main__":
    main()
