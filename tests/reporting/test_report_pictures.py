"""The pictures of the report and the contact sheet: the right pairs, every pixel where it belongs."""

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.core.contracts import ConfigError
from mmrl.reporting.contact_sheet import FRAME
from mmrl.reporting.formatting import breakable
from mmrl.reporting.report import picture, write_report
from mmrl.reporting.theme import STYLE


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"iteration": 1, "reward/mean": 0.5}\n')
    return folder


def _save(run: Path, iteration: int, samples: list[dict[str, Any]], pictures: Mapping[str, Image.Image]) -> None:
    folder = run / "samples" / f"{iteration:06d}"
    folder.mkdir(parents=True)
    (folder / "samples.json").write_text(json.dumps({"kind": "image", "samples": samples}))
    for file, shown in pictures.items():
        shown.save(folder / file)


def _sample(prompt: str, seed: int, **output: Any) -> dict[str, Any]:
    return {"prompt": prompt, "seed": seed, "scores": {"shape": 0.5}, **output}


def test_pairs_are_joined_by_prompt_and_seed_and_capped(run: Path) -> None:
    before = [_sample("a disc", seed, text=f"old {seed}") for seed in range(30)]
    after = [_sample("a disc", seed, text=f"new {seed}") for seed in reversed(range(31))]
    _save(run, 0, before, {})
    _save(run, 2, [], {})
    _save(run, 10, after, {})
    text = write_report(run).read_text()
    assert "at iterations 0 and 10. 24 of 30 are shown." in text
    assert re.findall(r"old (\d+)</pre>.*?new (\d+)</pre>", text) == [(str(seed), str(seed)) for seed in range(24)]


def test_tiny_pictures_are_inlined_exactly_and_large_ones_made_small(run: Path) -> None:
    tiny = Image.new("RGB", (32, 32), "red")
    tiny.putpixel((3, 4), (1, 2, 3))
    samples = [_sample("tiny", 1, file="0.png"), _sample("large", 1, file="1.png"), _sample("lost", 1, file="2.png")]
    for iteration in (0, 3):
        _save(run, iteration, samples, {"0.png": tiny, "1.png": Image.new("RGB", (1024, 512), "green")})
    text = write_report(run).read_text()
    crisp = re.findall(r'<img class="crisp" [^>]*base64,([^"]*)"', text)
    smooth = re.findall(r'<img alt=[^>]*base64,([^"]*)"', text)
    assert [Image.open(BytesIO(b64decode(content))).tobytes() for content in crisp] == [tiny.tobytes()] * 2
    assert [Image.open(BytesIO(b64decode(content))).size for content in smooth] == [(512, 256)] * 2
    assert text.count("no picture") == 2


def test_an_answer_stands_below_the_picture_that_it_is_about(run: Path) -> None:
    hostile = "<script>alert(1)</script>"
    for iteration, answer in ((0, f"old {hostile}"), (3, f"new {hostile}")):
        samples = [_sample("<image>\nwhere?", 1, file="0.png", text=answer, num_images=1)]
        samples += [_sample("<image> or <image>?", 2, file="0.png", text=answer, num_images=2)]
        samples += [_sample("why?", 3, text=answer), _sample("lost", 4, file="1.png", text=answer, num_images=1)]
        _save(run, iteration, samples, {"0.png": Image.new("RGB", (320, 343), "green")})
    text = write_report(run).read_text()
    assert (
        len(re.findall(r'<img alt="(?:before|after): the image of the question[^>]*><pre class="answer">', text)) == 4
    )
    assert text.count("no picture</div><pre") == 2 and text.count("</p><pre") == 2
    assert "<script>alert" not in text and text.count("&lt;script&gt;alert(1)") == 8
    assert '<p class="prompt">where?</p>' in text
    assert '<p class="prompt">&lt;image&gt; or &lt;image&gt;?</p><p class="seed">seed 2, first of 2 images</p>' in text


@pytest.mark.slow
@pytest.mark.parametrize(("width", "room"), [(320, "wide"), (1024, "full")])
def test_large_pictures_with_answers_have_half_of_the_page_each(run: Path, width: int, room: str) -> None:
    for iteration in (0, 3):
        shown = {"0.png": Image.effect_noise((width, width), 60).convert("RGB")}
        _save(run, iteration, [_sample("where?", 1, file="0.png", text="here")], shown)
    text = write_report(run).read_text()
    assert f'<div class="pairs {room}">' in text
    sizes = [Image.open(BytesIO(b64decode(content))).size for content in re.findall(r'base64,([^"]*)"', text)]
    assert sizes == [(min(width, 768), min(width, 768))] * 2


@pytest.mark.slow
def test_a_picture_is_inlined_exactly_where_that_is_smaller(run: Path) -> None:
    for iteration in (0, 3):
        shown = {"0.png": Image.new("RGB", (320, 320)), "1.png": Image.effect_noise((320, 320), 60).convert("RGB")}
        _save(run, iteration, [_sample("a", n, file=f"{n}.png") for n in (0, 1)], shown)
    assert re.findall(r"data:image/(\w+)", write_report(run).read_text()) == ["png", "png", "jpeg", "jpeg"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"samples": [{"prompt": "a", "seed": 1, "file": "../../secret.png"}]}', "must name a file beside"),
        ('{"samples": [{"seed": 1}]}', "a sample needs a text 'prompt' and a whole"),
        ('{"samples": 3}', "needs a list 'samples', got int"),
        ("[]", "must hold a JSON object, got list"),
    ],
)
def test_samples_that_no_run_writes_are_named(run: Path, content: str, message: str) -> None:
    _save(run, 0, [], {})
    _save(run, 3, [], {})
    (run / "samples" / "000003" / "samples.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        write_report(run)


@pytest.mark.slow
def test_the_contact_sheet_has_before_above_after_enlarged_by_whole_pixels(run: Path) -> None:
    for iteration, colour in ((0, (200, 0, 0)), (3, (0, 200, 0))):
        tiny = Image.new("RGB", (32, 32), colour)
        tiny.putpixel((0, 0), (0, 0, 250))
        samples = [_sample("a disc", seed, file="0.png") for seed in range(8)]
        _save(run, iteration, samples, {"0.png": tiny})
    sheet = Image.open(picture(run, run / "docs" / "before_after.png"))
    # 6 columns of 192 + 12 after 72 for the names; 2 rows of 18 (prompt) + 2 * (192 + 12) + 12, after 12
    assert sheet.format == "PNG"
    assert sheet.size == (72 + 6 * 204, 12 + 2 * 438)
    blue, red, green, white = (0, 0, 250), (200, 0, 0), (0, 200, 0), (255, 255, 255)
    for left, top in ((72, 30), (72 + 5 * 204, 30), (72, 468)):
        assert [sheet.getpixel((left + x, top)) for x in (-1, 0, 5, 6, 191, 192)] == [
            FRAME,
            blue,
            blue,
            red,
            red,
            FRAME,
        ]
        assert [sheet.getpixel((left, top + 204 + y)) for y in (-1, 0, 5, 6, 191)] == [FRAME, blue, blue, green, green]
    assert sheet.getpixel((72 + 2 * 204 + 50, 468 + 50)) == white  # 8 pairs leave the rest of the second row empty
    assert min(sheet.crop((0, 30, 60, 222)).convert("L").tobytes()) < 128, "the name of the row is written"


@pytest.mark.slow
def test_the_contact_sheet_fits_large_pictures_and_cuts_long_prompts(run: Path) -> None:
    for iteration in (0, 3):
        shown = {"0.png": Image.new("RGB", (1024, 512), "navy")}
        _save(run, iteration, [_sample("word " * 99 + "x" * 999, 1, file="0.png")], shown)
    sheet = Image.open(picture(run, run / "sheet.png"))
    top = 12 + 3 * 18
    assert sheet.size == (72 + 204, top + 2 * 204 + 12)
    column = [sheet.getpixel((72 + 96, top + y)) for y in (47, 48, 143, 144)]  # 96 high, in the middle of 192
    assert column == [FRAME, (0, 0, 128), (0, 0, 128), FRAME]
    assert min(sheet.crop((264, 0, 276, top)).convert("L").tobytes()) == 255, "the prompt stays inside its column"


def test_the_contact_sheet_centres_a_tall_picture(run: Path) -> None:
    for iteration in (0, 3):
        _save(run, iteration, [_sample("a", 1, file="0.png")], {"0.png": Image.new("RGB", (16, 64), "navy")})
    sheet = Image.open(picture(run, run / "sheet.png"))
    row = [sheet.getpixel((72 + x, 100)) for x in (71, 72, 119, 120)]  # 48 wide, in the middle of 192
    assert row == [FRAME, (0, 0, 128), (0, 0, 128), FRAME]


@pytest.mark.slow
def test_the_contact_sheet_of_answers_has_them_below_their_pictures(run: Path) -> None:
    for iteration, colour in ((0, (200, 0, 0)), (3, (0, 200, 0))):
        shown = {"0.png": Image.new("RGB", (320, 343), colour)}
        _save(run, iteration, [_sample("a", seed, file="0.png", text="word " * 99) for seed in range(5)], shown)
    sheet = Image.open(picture(run, run / "sheet.png"))
    part = 343 + 2 * 18 + 12  # a picture, two lines of its answer, a gap
    assert sheet.size == (72 + 4 * (320 + 12), 12 + 18 + 2 * part + 12)  # one row, no larger than its pictures
    column = [sheet.getpixel((72, 30 + y)) for y in (0, 342, 343, part, part + 342)]
    assert column == [(200, 0, 0), (200, 0, 0), FRAME, (0, 200, 0), (0, 200, 0)]  # as large as they were
    for top in (30 + 343, 30 + part + 343):
        assert min(sheet.crop((72, top, 392, top + 36)).convert("L").tobytes()) < 128, "the answer is written"
        assert min(sheet.crop((392, top + 1, 403, top + 36)).convert("L").tobytes()) == 255, "and stays in its column"


def test_a_run_without_two_pictures_has_no_contact_sheet(run: Path) -> None:
    for iteration in (0, 3):
        _save(run, iteration, [_sample("a", 1, text="an answer")], {})
    with pytest.raises(ConfigError, match="no pictures of the same prompts"):
        picture(run, run / "sheet.png")


def test_pictures_as_white_as_the_page_have_a_frame(run: Path) -> None:
    for iteration in (0, 3):
        _save(run, iteration, [_sample("a", 1, file="0.png")], {"0.png": Image.new("RGB", (32, 32), "white")})
    sheet = Image.open(picture(run, run / "sheet.png"))
    assert [sheet.getpixel((72 + x, 100)) for x in (-2, -1, 0, 191, 192, 193)] == [
        *((255, 255, 255), FRAME, (255, 255, 255)),
        *((255, 255, 255), FRAME, (255, 255, 255)),
    ]
    assert ".pair img, .output img { outline: 1px solid" in STYLE


def test_long_names_break_behind_their_parts_and_stay_text() -> None:
    assert breakable("my_rewards:Red & blue") == "my_<wbr>rewards:<wbr>Red &amp; blue"
    assert breakable("<b>") == "&lt;b&gt;"
