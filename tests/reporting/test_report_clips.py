"""Videos and condition images in the report."""

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.core.contracts import ConfigError
from mmrl.media.mp4 import Video
from mmrl.reporting.players import Players
from mmrl.reporting.report import picture, write_report
from tests.media.test_mp4 import moving


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "reward/mean": 0.5}\n')
    return tmp_path


def save(run: Path, **entry: Any) -> None:
    for iteration in (0, 4):
        folder = run / "samples" / f"{iteration:06d}"
        folder.mkdir(parents=True)
        listed = [{"prompt": "a cat", "seed": 1, "scores": {"flicker": 0.5}, **entry}]
        (folder / "samples.json").write_text(json.dumps({"kind": "video", "samples": listed}))
        clip = Video(moving(), 8)
        clip.save(folder / "000.mp4")
        clip.strip(6).save(folder / "000.png")
    (run / "samples/questions").mkdir()
    Image.new("RGB", (8, 8), (9, 99, 199)).save(run / "samples/questions/one.png")


def test_clips_play_in_the_page_beside_their_frames(run: Path) -> None:
    save(run, file="000.mp4", strip="000.png")
    text = write_report(run).read_text()
    inside = re.findall(r'<video class="crisp" controls[^>]*src="data:video/mp4;base64,([^"]*)"', text)
    assert [b64decode(one) for one in inside] == [(run / "samples/000000/000.mp4").read_bytes()] * 2
    assert text.count('<img class="strip"') == 2 and "media-src data:" in text and '<div class="pairs wide">' in text
    sheet = picture(run, run / "sheet.png")
    with Image.open(sheet) as shown:
        assert shown.width < 500  # one column: a strip of six frames


def test_large_clips_are_named_and_not_put_into_the_page(run: Path) -> None:
    save(run, file="000.mp4", strip="000.png")
    file = run / "samples/000000/000.mp4"
    players = Players(room=file.stat().st_size + 10)
    assert players.player(file, "a", is_tiny=True).startswith("<video")
    assert "as it is large: 000.mp4" in players.player(file, "a", is_tiny=True)  # no room is left
    assert "no video" in players.player(run / "absent.mp4", "a", is_tiny=True)


def test_condition_before_and_after_stand_side_by_side(run: Path) -> None:
    save(run, file="000.png", images=["../questions/one.png"], num_images=1)
    text = write_report(run).read_text()
    assert re.findall(r'<p class="side">(\w+)</p>', text) == ["condition", "before", "after"]
    assert '<div class="sides three">' in text and "data:video" not in text


def test_condition_images_have_the_names_of_their_roles(run: Path) -> None:
    images = ["../questions/one.png", "../questions/absent.png", "../questions/one.png"]
    save(run, file="000.png", images=images, roles=["image", "mask", "last_image"])
    text = write_report(run).read_text()
    captions = ["condition: image", "condition: last image", "before", "after"]
    assert re.findall(r'<p class="side">([^<]+)</p>', text) == captions
    assert 'alt="condition: last image: a cat"' in text


@pytest.mark.parametrize("roles", [["image", "mask"], "image", [3]])
def test_each_condition_image_has_one_role(run: Path, roles: Any) -> None:
    save(run, file="000.png", images=["../questions/one.png"], roles=roles)
    with pytest.raises(ConfigError, match=r"of a sample 'roles' must be a list, one of image, .* for each image"):
        write_report(run)


@pytest.mark.parametrize("images", [["../../../secret.png"], "one.png", [3]])
def test_condition_images_lie_in_the_run(run: Path, images: Any) -> None:
    save(run, file="000.png", images=images)
    with pytest.raises(ConfigError, match="'images'"):
        write_report(run)


def test_a_score_that_fell_is_not_marked_as_good(run: Path) -> None:
    for after, verb, is_worse in (
        (0.25, "fell from", True),
        (0.75, "rose from", False),
        (0.5000001, "stayed at", False),
    ):
        (run / "summary.json").write_text(json.dumps({"held_out": {"before": 0.5, "after": after}}))
        text = write_report(run).read_text()
        assert f"Held-out score {verb}" in text
        assert ('class="worse"' in text) is is_worse
