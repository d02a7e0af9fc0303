"""How the clips look: colours and shapes of lamps, where they hang, what a state changes; and the mp4 made of it."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image, ImageDraw

SIZE = 56  # pixels, both sides: 4x4 patches of 14, 2x2 video tokens after the merge
CELL = 28  # pixels: each quarter holds at most one lamp
COLOURS = {
    "red": (225, 40, 40),
    "yellow": (240, 205, 40),
    "green": (40, 170, 70),
    "blue": (50, 95, 230),
    "purple": (165, 60, 200),
}
SHAPES = ("square", "circle", "triangle", "cross")
SHADES = (20, 45, 70, 95)  # grey levels of the wall
WHITE = (255, 255, 255)
RISE = 8  # pixels that a lamp is higher while it is up
RATE = 4  # frames per second
# one thread and no time or version of a library in the file: the same frames give the same bytes
ENCODING = {"preset": "ultrafast", "crf": "16", "threads": "1", "fflags": "+bitexact"}

Box = tuple[int, int, int, int]  # x1, y1, x2, y2 in pixels, x2 and y2 exclusive


def render(lamps: Sequence[tuple[str, str, Box, bool]], shade: int) -> Image.Image:
    """Draws one frame, lamps (colour, shape, box, is lit) on a wall, as an RGB image."""
    image = Image.new("RGB", (SIZE, SIZE), (shade, shade, shade))
    pen = ImageDraw.Draw(image)
    for colour, shape, box, is_lit in lamps:
        _render_lamp(pen, COLOURS[colour], shape, box)
        if is_lit:
            x, y = (box[0] + box[2] - 1) // 2, (box[1] + box[3] - 1) // 2 + (2 if shape == "triangle" else 0)
            pen.rectangle((x - 2, y - 2, x + 3, y + 3), fill=WHITE)
    return image


def _render_lamp(pen: ImageDraw.ImageDraw, fill: tuple[int, int, int], shape: str, box: Box) -> None:
    x1, y1, x2, y2 = box[0], box[1], box[2] - 1, box[3] - 1  # PIL includes the last pixel
    third = (x2 - x1) // 3
    if shape == "square":
        pen.rectangle((x1, y1, x2, y2), fill=fill)
    elif shape == "circle":
        pen.ellipse((x1, y1, x2, y2), fill=fill)
    elif shape == "triangle":
        pen.polygon(((x1, y2), (x2, y2), ((x1 + x2) // 2, y1)), fill=fill)
    else:
        pen.rectangle((x1 + third, y1, x2 - third, y2), fill=fill)
        pen.rectangle((x1, y1 + third, x2, y2 - third), fill=fill)


def encode(frames: Sequence[Image.Image]) -> bytes:
    """Encodes frames, `RATE` a second, as an mp4 file of H.264; the same frames give the same bytes."""
    import av
    from av.video.reformatter import VideoReformatter

    file = BytesIO()
    converter = VideoReformatter()  # one for all frames, on one thread: else it costs more than the encoding
    with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=RATE, options=ENCODING)
        stream.width, stream.height, stream.pix_fmt = SIZE, SIZE, "yuv420p"
        for number, image in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")
            frame = converter.reformat(frame, format="yuv420p", threads=1)
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()
