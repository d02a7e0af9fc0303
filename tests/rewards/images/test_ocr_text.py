"""Text in images: the formula with a reader that is put in, the reader itself on rendered text, what is asked for."""

import random
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from mmrl.core.contracts import ConfigError, Placement, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.media.pictures import as_tensor
from mmrl.rewards.base.ocr import MAX_LETTERS, distance_score, letters, load_reader, recall_score, wanted_texts
from mmrl.rewards.images.ocr_text import Measure, OcrText
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.tables import edits

CPU = Placement(torch.device("cpu"), torch.float32)


@cache
def picture(*lines: str, size: int = 24) -> Tensor:
    """[3, H, W]: lines of black text on white."""
    image = Image.new("RGB", (112, 32 * max(len(lines), 1)), "white")
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((6, 32 * number + 1), line, fill="black", font=ImageFont.load_default(size))
    return as_tensor(image)


def batch_of(images: Sequence[Tensor], prompts: Sequence[str], targets: Any = ()) -> RewardBatch:
    return make_batch(Outputs(images=torch.stack(list(images))), prompts, targets)


def random_batch(source: random.Random) -> RewardBatch:
    """Few of the images have text: the others are read much faster."""
    images = [picture("red cat"), *(picture() * source.random() for _ in range(7))]
    said = source.choice(["red cat", "red hat", "bed", "quick fox", "!?"])
    source.shuffle(images)
    return batch_of(images, [f'a sign that says "{said}"'] * 8)


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: batch_of([picture("red cat"), picture("Open 24")], ['a sign, "Red Cat"', "“open 24” on a door"]),
)


def flow_grpo(lines: Sequence[str], text: str) -> float:
    """The formula of its code, for one text."""
    read, text = "".join(lines).replace(" ", "").lower(), text.replace(" ", "").lower()
    return 1.0 if text in read else 1 - min(edits(read, text), len(text)) / len(text)


@in_one_test(
    ("lines", "text", "expected"),
    [
        ((), "cat", 0.0),
        (("cat",), "cat", 1.0),
        (("C A T",), "cat", 1.0),
        (("cut",), "cat", 2 / 3),
        (("ca",), "cat", 2 / 3),
        (("cart",), "cat", 2 / 3),
        (("concatenate",), "cat", 1.0),  # whole, whatever is around it
        (("cut", "out"), "cat", 0.0),  # cutout: 1 substitution and 3 too many
        (("Hello", "World"), "hello world", 1.0),
        (("Hello", "World", "and more of it"), "hello world", 1.0),
        (("x" * 50,), "cat", 0.0),
        (("ＣＡＴ",), "cat", 1.0),  # noqa: RUF001  # letters of double width
        (("STRASSE",), "Straße", 1.0),
        (("日本語",), "日本", 1.0),
        (("", " "), "a", 0.0),
    ],
)
def test_hand_numbers_of_one_text(lines: tuple[str, ...], text: str, expected: float) -> None:
    assert distance_score(lines, [text]) == pytest.approx(expected)


@given(st.lists(st.text("abc A", max_size=6), max_size=4), st.text("abc A", min_size=1, max_size=6))
def test_one_text_is_judged_as_flow_grpo_does(lines: list[str], text: str) -> None:
    if letters(text):
        assert distance_score(lines, [text]) == pytest.approx(flow_grpo(lines, text))


@in_one_test(
    ("lines", "texts", "expected"),
    [
        (("open", "closed"), ("open", "closed"), (1 + 1) / 2),
        (("closed", "open"), ("open", "closed"), (1 + 1) / 2),  # in any order
        (("opened",), ("open", "opened"), (1 + 0) / 2),  # one reading serves one text: the longer
        (("open",), ("open", "open"), (1 + 0) / 2),
        (("open", "open"), ("open", "open"), 1.0),
        (("upen", "clsed"), ("open", "closed"), (3 / 4 + 5 / 6) / 2),
        (("good", "mornin", "tea"), ("good morning", "tea"), (10 / 11 + 1) / 2),  # a text on two lines
        (("good", "mornin", "x" * 40, "tea"), ("good morning", "tea"), (10 / 11 + 1) / 2),
        ((), ("a", "b"), 0.0),
        (("zzzz",), ("open", "tea"), 0.0),
        (("opxn",), ("open", "opun"), (3 / 4 + 0) / 2),  # what is nearly read serves one text too
    ],
)
def test_hand_numbers_of_several_texts(lines: tuple[str, ...], texts: tuple[str, ...], expected: float) -> None:
    assert distance_score(lines, texts) == pytest.approx(expected)


@pytest.mark.parametrize("texts", [("cat",), ("cat", "dog")])
def test_repeating_a_text_earns_nothing(texts: tuple[str, ...]) -> None:
    for line in ("cat", "cut", "ca"):
        assert distance_score([line] * 5, texts) <= distance_score([line], texts)


@in_one_test(
    ("lines", "texts", "expected"),
    [
        (("Hello, World!",), ("hello world",), 1.0),
        (("world", "hello"), ("hello world",), 1.0),
        (("hello",), ("hello world",), 0.5),
        (("helloworld",), ("hello world",), 0.0),
        (("yes",), ("yes yes",), 0.5),
        (("no no no",), ("yes no",), 0.5),
        (("open", "24"), ("open", "closed 24"), 2 / 3),
        ((), ("a",), 0.0),
    ],
)
def test_hand_numbers_of_recall(lines: tuple[str, ...], texts: tuple[str, ...], expected: float) -> None:
    assert recall_score(lines, texts) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("line", ["a", "ab" * 5, "a" * 10_000])
def test_much_text_is_compared_in_bounded_time(line: str) -> None:
    for texts in (["b" * MAX_LETTERS], ["b" * 100, "ba" * 50, "c"]):
        assert 0 <= distance_score([line] * 1000, texts) <= 1
        assert 0 <= recall_score([line] * 1000, texts) <= 1


@in_one_test(
    ("prompt", "target", "expected"),
    [
        ('a sign "Hello World" and "Bye"', {}, ["Hello World", "Bye"]),
        ("a sign “Hello”", {}, ["Hello"]),
        ('New York, "one', {"text": "two"}, ["two"]),
        ('"one"', {"text": ["two", "three"]}, ["two", "three"]),
    ],
)
def test_what_should_be_read_is_quoted_or_in_the_target(prompt: str, target: Any, expected: list[str]) -> None:
    assert wanted_texts(Prompt(prompt, target=target)) == expected


@in_one_test(
    ("prompt", "target", "message"),
    [
        ("a sign", {}, "needs a text in double quotes in the prompt, or target.text"),
        ("a 12\" pizza that says 'hi'", {}, "a quotation mark is left over in .*target.text"),
        ('a sign ""', {}, r"with letters in it, got \[''\]"),
        ('a sign " "', {}, r"with letters in it, got \[' '\]"),
        ("a sign", {"text": ""}, "needs target.text, with letters"),
        ("a sign", {"text": []}, "needs target.text, with letters"),
        ("a sign", {"text": ["a", 3]}, "target.text must be a text or a list of texts, got"),
        ("a sign", {"text": {"a": 1}}, "target.text must be a text or a list of texts, got"),
        ("a sign", {"text": "a" * 1001}, "may have 1000 letters, got 1001"),
    ],
)
def test_a_prompt_that_does_not_say_it_is_refused_before_training(prompt: str, target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OcrText().check(Prompt(prompt, target=target))


def test_recall_refuses_texts_without_words() -> None:
    OcrText().check(Prompt('"!?"'))
    with pytest.raises(ValueError, match=r"recall needs texts with words, got \['!\?'\]"):
        OcrText(measure="recall").check(Prompt('"!?"'))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ['"', '""', '"a"', "“", "“a”", '"\u0301', "a"], ids=ascii)
def test_any_prompt_is_read_in_linear_time(piece: str) -> None:
    try:
        wanted_texts(Prompt(piece * (1_000_000 // len(piece))))
    except ValueError as error:
        assert len(str(error)) < 1000


@pytest.mark.slow
@given(st.text(max_size=50), st.lists(st.text(max_size=20), max_size=5))
def test_any_text_is_judged_within_the_range(prompt: str, lines: list[str]) -> None:
    try:
        texts = wanted_texts(Prompt(prompt, target={"text": prompt}))
    except ValueError:
        return
    assert 0 <= distance_score(lines, texts) <= 1
    assert distance_score(texts, texts) == 1


@pytest.mark.parametrize(("measure", "expected"), [("distance", [1.0, 0.75]), ("recall", [1.0, 0.0])])
def test_each_image_is_read_once_in_8_bits(measure: Measure, expected: list[float]) -> None:
    seen: list[Tensor] = []

    def read(image: Tensor) -> list[str]:
        seen.append(image)
        return ["open" if len(seen) == 1 else "upen"]

    reward = OcrText(measure=measure)
    reward._read = read
    images = torch.tensor([[0.0, 0.5, 1.0], [1.2, -0.2, 0.1]])[:, :, None, None].expand(2, 3, 4, 6)
    found = reward.score(batch_of(list(images), ['"open"', "a sign"], [{}, {"text": "open"}]))
    assert found.tolist() == pytest.approx(expected) and found.dtype == torch.float32
    assert [image.shape for image in seen] == [(4, 6, 3)] * 2 and seen[0].dtype == torch.uint8
    assert seen[0][0, 0].tolist() == [0, 128, 255] and seen[1][0, 0].tolist() == [255, 0, 26]


def test_an_image_of_no_numbers_cannot_be_judged() -> None:
    reward = OcrText()
    reward._read = lambda image: []
    with pytest.raises(ValueError, match="NaN or infinity"):
        reward.score(batch_of([torch.full((3, 4, 4), float("nan"))], ['"a"']))


@pytest.mark.slow  # most of a second each, or more
def test_rendered_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("nothing is downloaded")

    monkeypatch.setattr("socket.socket.connect", refused)
    reward = OcrText().tiny(0, tmp_path)
    reward.prepare(CPU)
    two_lines = picture("Hello", "World")
    blank = torch.ones_like(two_lines)
    prompts = ['a wall with "Hello World"', 'doors, "Word" and "Hello"', 'a wall with "Hello"']
    found = reward.score(batch_of([two_lines, two_lines, blank], prompts))
    assert found.tolist() == pytest.approx([1.0, (1 + 3 / 4) / 2, 0.0])


@pytest.mark.slow
def test_red_text_is_read_as_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes the colours in OpenCV's order."""
    seen: list[Any] = []

    class Processes:
        def __init__(self, params: dict[str, Any]) -> None:
            self.params = params

        def __call__(self, image: Any) -> Any:
            seen.append((self.params, image))
            return type("Found", (), {"txts": None})()

    monkeypatch.setattr("rapidocr.RapidOCR", Processes)
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).expand(2, 3, 3)
    assert load_reader(0.25, 100)(red) == ()
    params, image = seen[0]
    assert image[0, 0].tolist() == [0, 0, 255] and image.flags["C_CONTIGUOUS"]
    assert params["Global.text_score"] == 0.25 and params["Det.limit_side_len"] == 100


@pytest.mark.parametrize("package", ["rapidocr", "onnxruntime"])
def test_a_missing_package_names_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"package {package}.*mmrl\[ocr\]"):
        OcrText().prepare(CPU)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="min_confidence must be at least 0 and below 1, got 1"):
        OcrText(min_confidence=1.0)
    with pytest.raises(ValueError, match="detector_side must be at least 32, got 8"):
        OcrText(detector_side=8)
