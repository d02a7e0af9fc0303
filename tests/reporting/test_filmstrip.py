"""Filmstrips: where the pictures stand, how many to a row, and that captions are cut to their cell."""

import pytest
from PIL import Image

from mmrl.reporting.drawing import GAP, LINE, PER_ROW, WIDTH, Cell, filmstrip
from tests.parameters import in_one_test


def plain(width: int, height: int, grey: int) -> Image.Image:
    return Image.new("RGB", (width, height), (grey, grey, grey))


def test_pictures_stand_side_by_side_in_order() -> None:
    strip = filmstrip([Cell(plain(40, 30, 10), ""), Cell(plain(50, 20, 90), "")])
    assert strip.size == (40 + GAP + 50, 30 + LINE)
    assert strip.getpixel((39, 29)) == (10, 10, 10) and strip.getpixel((40 + GAP, 0)) == (90, 90, 90)
    assert strip.getpixel((42, 10)) == (255, 255, 255)


@in_one_test(
    ("count", "columns", "num_rows"), [(1, 1, 1), (3, 3, 1), (4, 2, 2), (5, 3, 2), (6, 3, 2), (7, 3, 3), (8, 3, 3)]
)
def test_rows_are_of_like_length(count: int, columns: int, num_rows: int) -> None:
    assert PER_ROW == 3
    strip = filmstrip([Cell(plain(10, 10, n), "") for n in range(count)])
    assert strip.size == (columns * 10 + (columns - 1) * GAP, num_rows * (10 + LINE) + (num_rows - 1) * GAP)
    for n in range(count):
        row, column = divmod(n, columns)
        assert strip.getpixel((column * (10 + GAP), row * (10 + LINE + GAP))) == (n,) * 3


def test_large_pictures_shrink_to_the_cell_and_keep_their_shape() -> None:
    assert filmstrip([Cell(plain(3 * WIDTH, 300, 5), "x")]).size == (WIDTH, 100 + LINE)


@pytest.mark.parametrize("caption", ["1. click", "w" * 500, "two\nlines", ""], ids=["short", "long", "lines", "none"])
def test_captions_stay_below_their_own_cell(caption: str) -> None:
    strip = filmstrip([Cell(plain(60, 40, 128), caption), Cell(plain(60, 40, 128), "")])
    beside = strip.crop((60, 40, strip.width, strip.height))
    assert beside.getextrema() == ((255, 255),) * 3, "nothing is written beyond the first cell"
    below = strip.crop((0, 40, 60, strip.height))
    assert (below.getextrema() != ((255, 255),) * 3) == bool(caption)
