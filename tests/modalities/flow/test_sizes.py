"""Which size a prompt gets."""

from typing import Any

import pytest
from PIL import Image

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.modalities.flow.sizes import Size, size_of, sizes_in, small_sizes
from mmrl.modalities.sd3 import StableDiffusion3
from tests.parameters import in_one_test

SIZES = sizes_in("sizes", [[1024, 1024], [832, 1216], [1216, 832], [512, 512]])
CLIPS = sizes_in("sizes", [[832, 480, 81], [480, 832, 81], [832, 480, 33]])


class Picture:
    def __init__(self, width: int, height: int) -> None:
        self.size = (width, height)

    def load(self) -> Any:
        return Image.new("RGB", self.size)


@in_one_test(
    ("row", "picture", "size"),
    [
        ({}, None, (1024, 1024)),
        ({"width": 1216, "height": 832}, None, (1216, 832)),
        ({"width": 1216, "height": 832}, (100, 300), (1216, 832)),  # the row comes before the image
        ({"width": 1000, "height": 1030}, None, (1024, 1024)),
        ({"width": 500.0, "height": 530}, None, (512, 512)),  # near in width and height, not in ratio alone
        ({"width": 700}, (640, 960), (832, 1216)),  # half a size says nothing
        ({}, (400, 300), (1216, 832)),  # 1.33 is nearer to 1.46 than to 1, in ratio
        ({}, (4000, 4010), (1024, 1024)),  # both squares are equally near: the nearer area
        ({}, (300, 300), (512, 512)),
    ],
)
def test_a_prompt_gets_the_nearest_size(row: Any, picture: Any, size: tuple[int, int]) -> None:
    media = () if picture is None else (Picture(*picture),)
    assert size_of(Prompt("a cat", media, row), SIZES) == Size(*size)


@pytest.mark.parametrize(
    ("row", "size"),
    [
        ({}, (832, 480, 81)),
        ({"num_frames": 30}, (832, 480, 33)),
        ({"num_frames": 30, "width": 480, "height": 832}, (480, 832, 81)),  # no short clip of this width and height
    ],
)
def test_a_row_may_ask_for_a_number_of_frames(row: Any, size: tuple[int, int, int]) -> None:
    assert size_of(Prompt("a cat", target=row), CLIPS) == Size(*size)


@in_one_test("value", ["wide", 0, 10.5, True])
def test_a_size_in_a_row_that_is_no_size_is_named(value: Any) -> None:
    prompt = Prompt("a cat", target={"width": value, "height": 512}, source="train.jsonl:7")
    with pytest.raises(ConfigError, match=r"train.jsonl:7: width must be a whole number above 0, got "):
        size_of(prompt, SIZES)


@in_one_test(
    ("sizes", "words"),
    [
        ([[512]], "lists of width and height"),
        ([[512, 0]], "lists of width and height"),
        ([[512, 512, 9], [512, 512]], "all have a number of frames"),
        ([[512, 512], [512, 512]], "has 512 x 512 twice"),
        ([[512, 512], [512, 520]], "multiples of 16 pixels, got 520 x 512"),
        ([[512, 512, 9]], "sizes of images are width and height"),
    ],
)
def test_wrong_sizes_are_refused(sizes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StableDiffusion3(model="m", sizes=tuple(map(tuple, sizes)))


def test_the_first_size_is_that_of_the_settings() -> None:
    policy = StableDiffusion3(model="m", sizes=((832, 1216), (512, 512)))
    assert (policy.width, policy.height) == (832, 1216)


def test_a_twin_has_small_sizes_in_the_same_order() -> None:
    assert small_sizes(SIZES, Size(32, 32)) == ((32, 32), (32, 64), (64, 32))
    assert small_sizes(CLIPS[::-1], Size(32, 32, 5)) == ((32, 32, 5), (32, 64, 9), (32, 32, 9))
