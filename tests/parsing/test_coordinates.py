"""Coordinates there and back: original pixels, the model's unit, the text of an answer."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from mmrl.parsing.coordinates import Canvas, Convention, format_box, format_point, resized_size
from tests.parameters import in_one_test

SIZES = st.tuples(st.integers(1, 8000), st.integers(1, 8000))
CONVENTIONS = st.sampled_from(["original", "resized", "thousand", "unit"])
SHARES = st.floats(-0.2, 1.2)  # of a side; outside of the image too
GRID = {"original": 1.0, "resized": 1.0, "thousand": 1.0, "unit": 0.001}


def numbers(text: str) -> list[float]:
    """The numbers of a formatted text, read by hand."""
    return [float(part) for part in text.split(", ")]


@given(SIZES, SIZES, CONVENTIONS, SHARES, SHARES)
@example((1, 1), (28, 28), "thousand", 0.5, 1.0)
@example((8000, 50), (700, 28), "resized", 0.333, 0.777)
@example((8000, 50), (8008, 56), "unit", 1.0, 0.0)
def test_a_point_comes_back_from_its_text_within_half_a_unit_and_half_a_model_pixel(
    original: tuple[int, int], resized: tuple[int, int], convention: Convention, x_share: float, y_share: float
) -> None:
    canvas = Canvas(original, resized, convention)
    point = x_share * original[0], y_share * original[1]
    x, y = numbers(format_point(point, canvas))
    back = canvas.point_to_original((x, y))
    for axis in (0, 1):
        span = {"original": original[axis], "resized": resized[axis], "thousand": 1000, "unit": 1}[convention]
        half_unit = GRID[convention] * original[axis] / span / 2
        half_pixel = original[axis] / resized[axis] / 2
        assert abs(back[axis] - point[axis]) <= half_unit * (1 + 1e-9) + 1e-9  # more than is asked for
        assert abs(back[axis] - point[axis]) <= half_unit + half_pixel


@given(SIZES, SIZES, CONVENTIONS, st.tuples(SHARES, SHARES, SHARES, SHARES))
def test_a_box_keeps_the_order_of_its_corners_and_is_its_two_points(
    original: tuple[int, int], resized: tuple[int, int], convention: Convention, shares: tuple[float, ...]
) -> None:
    canvas = Canvas(original, resized, convention)
    (left, right), (top, bottom) = sorted(shares[:2]), sorted(shares[2:])
    width, height = original
    box = left * width, top * height, right * width, bottom * height
    x1, y1, x2, y2 = numbers(format_box(box, canvas))
    assert x1 <= x2 and y1 <= y2
    assert format_box(box, canvas) == ", ".join([format_point(box[:2], canvas), format_point(box[2:], canvas)])
    assert canvas.box_to_original((x1, y1, x2, y2)) == (
        *canvas.point_to_original((x1, y1)),
        *canvas.point_to_original((x2, y2)),
    )


@given(SIZES, SIZES, CONVENTIONS, SHARES, SHARES)
def test_without_rounding_nothing_is_lost(
    original: tuple[int, int], resized: tuple[int, int], convention: Convention, x: float, y: float
) -> None:
    canvas = Canvas(original, resized, convention)
    point = x * original[0], y * original[1]
    assert canvas.point_to_original(canvas.point_to_model(point)) == pytest.approx(point, rel=1e-12, abs=1e-12)


def test_the_two_axes_scale_by_themselves() -> None:
    screen = Canvas((1920, 1080), (1932, 1092), "resized")
    assert screen.point_to_original((1932, 1092)) == (1920, 1080)
    assert screen.point_to_model((960, 270)) == (966, 273)
    assert format_point((100, 100), screen) == "101, 101"  # 100.625, 101.111
    assert Canvas((1920, 1080), (1932, 1092), "thousand").point_to_model((480, 810)) == (250, 750)
    assert format_box((480, 270, 1440, 810), Canvas((1920, 1080), (9, 9), "unit")) == "0.250, 0.250, 0.750, 0.750"
    assert format_point((480, 270), Canvas((1920, 1080), (9, 9), "original")) == "480, 270"


def test_zero_has_no_sign_as_text() -> None:
    assert format_point((-0.4, -0.0), Canvas((10, 10), (10, 10), "original")) == "0, 0"
    assert format_point((-0.001, 0), Canvas((10, 10), (10, 10), "unit")) == "0.000, 0.000"


@in_one_test(
    ("convention", "words"),
    [
        ("original", "x runs from 0 to 1920 and y from 0 to 1080 (pixels)"),
        ("resized", "x runs from 0 to 1932 and y from 0 to 1092 (pixels)"),
        ("thousand", "x runs from 0 to 1000 and y from 0 to 1000"),
        ("unit", "x runs from 0 to 1 and y from 0 to 1, with three decimals"),
    ],
)
def test_the_unit_is_told_in_words(convention: Convention, words: str) -> None:
    assert Canvas((1920, 1080), (1932, 1092), convention).range_in_words == words


@pytest.mark.parametrize(
    ("original", "resized", "convention", "message"),
    [
        ((0, 5), (28, 28), "unit", "at least one pixel a side"),
        ((5, 5), (28, 0), "unit", "at least one pixel a side"),
        ((5, 5), (28, 28), "pixels", "convention must be one of original, resized, thousand, unit, got 'pixels'"),
    ],
)
def test_an_impossible_canvas_is_refused(
    original: tuple[int, int], resized: tuple[int, int], convention: Convention, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Canvas(original, resized, convention)


LIMITS = [(28, 3136, 1003520), (28, 3136, 12845056), (28, 262144, 4194304), (32, 4096, 65536)]


@pytest.mark.slow
def test_resizing_is_that_of_the_processors_and_a_second_time_changes_nothing() -> None:
    draw = random.Random(0)
    num_checked = 0
    for _ in range(20_000):
        factor, min_pixels, max_pixels = draw.choice(LIMITS)
        longest = draw.choice([40, 300, 8000])
        width, height = draw.randint(1, longest), draw.randint(1, longest)
        if max(width, height) > 200 * min(width, height):
            continue
        size = resized_size(width, height, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels)
        assert size == smart_resize(height, width, factor, min_pixels, max_pixels)[::-1], (width, height)
        assert min(size) >= factor and size[0] % factor == size[1] % factor == 0
        if min(size) > factor:  # else a side may have been kept from vanishing
            assert min_pixels <= size[0] * size[1] <= max_pixels
            assert size == resized_size(*size, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels)
            num_checked += 1
    assert num_checked > 10_000


@in_one_test(
    ("size", "factor", "max_pixels", "resized"),
    [
        ((42, 70), 28, 10**7, (56, 56)),  # ties go to the even multiple: 1.5 up, 2.5 down
        ((1920, 1080), 28, 10**7, (1932, 1092)),
        ((1920, 1080), 32, 10**7, (1920, 1088)),
        ((1, 1), 28, 10**7, (56, 56)),
        ((8000, 50), 28, 3136, (700, 28)),  # where others give a height of 0
    ],
)
def test_resizing_by_hand(size: tuple[int, int], factor: int, max_pixels: int, resized: tuple[int, int]) -> None:
    assert resized_size(*size, factor=factor, min_pixels=3136, max_pixels=max_pixels) == resized


@pytest.mark.parametrize(("size", "message"), [((403, 2), "at most 200 times"), ((0, 5), "at least one pixel")])
def test_what_no_processor_takes_is_refused(size: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resized_size(*size, factor=28, min_pixels=3136, max_pixels=10**6)
