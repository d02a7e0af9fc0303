"""Masks as pixels, against pycocotools, scikit-image and a slow loop."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pycocotools import mask as coco
from skimage.draw import polygon2mask

from mmrl.parsing.coordinates import Canvas
from mmrl.rewards.base.masks import RunLengths, fill, pixels_of, read_shape


def run_lengths(pixels: NDArray[np.bool_]) -> dict[str, Any]:
    """A mask as pycocotools writes it."""
    made = coco.encode(np.asfortranarray(pixels.astype(np.uint8)))
    return {"size": list(made["size"]), "counts": made["counts"].decode()}


MASKS = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**144 - 1)).map(
    lambda made: np.array([made[2] >> bit & 1 for bit in range(made[0] * made[1])], dtype=bool).reshape(made[:2])
)


@given(MASKS)
def test_run_lengths_are_those_of_pycocotools(pixels: NDArray[np.bool_]) -> None:
    height, width = pixels.shape
    canvas = Canvas((width, height), (28, 28), "unit")
    packed = run_lengths(pixels)
    plain = {"size": [height, width], "counts": [int(bit) for bit in _runs(pixels)]}
    for said in (packed, packed | {"counts": packed["counts"].encode()}, plain):
        np.testing.assert_array_equal(pixels_of(read_shape(said), canvas, is_answer=True), pixels)


def _runs(pixels: NDArray[np.bool_]) -> list[int]:
    runs, last = [0], False
    for pixel in pixels.flatten(order="F").tolist():
        if pixel != last:
            runs.append(0)
            last = pixel
        runs[-1] += 1
    return runs


def test_run_lengths_of_large_masks_are_those_of_pycocotools() -> None:
    generator = np.random.default_rng(0)
    pixels = np.kron(generator.integers(0, 2, (3, 4)), np.ones((301, 211))).astype(bool)  # runs of five letters' length
    shape = read_shape(run_lengths(pixels))
    assert isinstance(shape, RunLengths) and max(shape.counts) > 600
    canvas = Canvas((pixels.shape[1], pixels.shape[0]), (28, 28), "original")
    np.testing.assert_array_equal(pixels_of(shape, canvas, is_answer=True), pixels)


CORNERS = st.lists(st.tuples(st.floats(-5, 25), st.floats(-5, 15)), min_size=3, max_size=8)


def slowly_filled(ring: list[tuple[float, float]]) -> NDArray[np.bool_]:
    """The even-odd rule on 10 x 20 pixels, edge by edge."""
    slow = np.zeros((10, 20), dtype=bool)
    for row, column in np.ndindex(slow.shape):
        x, y = column + 0.5, row + 0.5
        for (x1, y1), (x2, y2) in zip(ring, [*ring[1:], ring[0]], strict=True):
            if (y1 <= y) != (y2 <= y) and x1 + (y - y1) / (y2 - y1) * (x2 - x1) <= x:
                slow[row, column] ^= True
    return slow


def on_an_edge(ring: list[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which of 10 x 20 centres of pixels lie on an edge: the way over them is no longer than the edge."""
    x, y = np.meshgrid(np.arange(20) + 0.5, np.arange(10) + 0.5)
    near = np.zeros((10, 20), dtype=bool)
    for (x1, y1), (x2, y2) in zip(ring, [*ring[1:], ring[0]], strict=True):
        way = np.hypot(x - x1, y - y1) + np.hypot(x - x2, y - y2)
        near |= way - np.hypot(x2 - x1, y2 - y1) < 1e-9
    return near


@given(CORNERS)
def test_a_polygon_holds_the_pixels_whose_centre_it_holds(ring: list[tuple[float, float]]) -> None:
    np.testing.assert_array_equal(fill(np.array(ring), 10, 20), slowly_filled(ring))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), min_size=3, max_size=3, unique=True))
def test_a_triangle_is_scikit_images(ring: list[tuple[int, int]]) -> None:
    """Theirs counts pixels as points: half a pixel aside they are the same, but for those on an edge."""
    found = fill(np.array(ring, dtype=float), 10, 20)
    theirs = polygon2mask((10, 20), np.array([(y - 0.5, x - 0.5) for x, y in ring]))
    away = ~on_an_edge(ring)
    np.testing.assert_array_equal(found[away], theirs[away])


def test_many_edges_through_one_pixel_keep_their_parity() -> None:
    comb = [(5 + n / 700, 2.0 + 5 * (n % 2)) for n in range(601)]  # 600 edges between two centres of pixels
    ring = [*comb, (15.0, 2.0), (15.0, 9.0), (1.0, 9.0)]
    np.testing.assert_array_equal(fill(np.array(ring), 10, 20), slowly_filled(ring))
