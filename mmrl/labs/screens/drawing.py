"""The look of the windows: colours, kinds of elements, themes."""

from functools import cache

from PIL import Image, ImageDraw

SIZE = 112  # pixels, both sides: 8x8 patches of 14, 4x4 image tokens after the 2x2 merge
BAR = 12  # pixels, height of the title bar
COLOURS = {
    "red": (222, 45, 45),
    "orange": (245, 150, 30),
    "green": (40, 165, 70),
    "blue": (45, 95, 225),
    "purple": (150, 60, 190),
    "pink": (245, 130, 190),
}
KINDS = ("button", "switch", "checkbox", "dial")
THEMES = (236, 222, 205, 60, 40)  # grey levels of the desktop
TINT = 36  # red grows by this from left to right, blue from top to bottom: a wallpaper that tells a patch where it is
WHITE = (255, 255, 255)

Box = tuple[int, int, int, int]  # x1, y1, x2, y2 in pixels, x2 and y2 exclusive


def render(elements: list[tuple[str, str, Box]], theme: int) -> Image.Image:
    """Draws a window with elements (colour, kind, box) as an RGB image."""
    image = _wallpaper(theme).copy()
    pen = ImageDraw.Draw(image)
    is_dark = theme < 128
    pen.rectangle((0, 0, SIZE, BAR - 1), fill=(70, 74, 84) if is_dark else (205, 208, 215))
    for number, colour in enumerate(((250, 95, 87), (254, 188, 46), (40, 200, 64))):
        pen.ellipse((4 + 7 * number, 4, 8 + 7 * number, 8), fill=colour)
    for colour_name, kind, box in elements:
        _render_element(pen, COLOURS[colour_name], kind, box, hand=(250, 250, 250) if is_dark else (60, 60, 66))
    return image


@cache
def _wallpaper(theme: int) -> Image.Image:
    slope = [theme + round(TINT * (place / (SIZE - 1) - 0.5)) for place in range(SIZE)]
    down = Image.new("L", (1, SIZE))
    down.putdata(slope)
    down = down.resize((SIZE, SIZE), Image.Resampling.NEAREST)
    return Image.merge("RGB", (down.transpose(Image.Transpose.TRANSPOSE), Image.new("L", (SIZE, SIZE), theme), down))


def _render_element(
    pen: ImageDraw.ImageDraw, fill: tuple[int, int, int], kind: str, box: Box, hand: tuple[int, int, int]
) -> None:
    """Draws one element. `hand` is the colour of a dial's hand, which must stand out from the desktop too."""
    x1, y1, x2, y2 = box[0], box[1], box[2] - 1, box[3] - 1  # PIL includes the last pixel
    height, middle = y2 - y1, (y1 + y2) // 2
    if kind == "button":
        pen.rounded_rectangle((x1, y1, x2, y2), radius=3, fill=fill)
        pen.rectangle((x1 + 6, middle - 1, x2 - 6, middle + 1), fill=WHITE)
    elif kind == "switch":
        pen.rounded_rectangle((x1, y1, x2, y2), radius=height // 2, fill=fill)
        pen.ellipse((x2 - height + 2, y1 + 2, x2 - 2, y2 - 2), fill=WHITE)
    elif kind == "checkbox":
        pen.rectangle((x1, y1, x2, y2), outline=fill, width=3)
        pen.line((x1 + 5, middle, x1 + height // 2, y2 - 5, x2 - 5, y1 + 5), fill=fill, width=2)
    else:
        pen.ellipse((x1, y1, x2, y2), fill=fill)
        centre = (x1 + x2) // 2
        pen.line((centre, y1 + 2, centre, middle), fill=hand, width=2)
