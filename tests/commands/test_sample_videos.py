"""`mmrl sample --video`: answers about videos from the command line."""

import json
from pathlib import Path

import pytest
from PIL import Image

from mmrl.modalities.video import Video
from mmrl.reporting.timeline import CELL, GAP
from tests.clips import encoded, in_file
from tests.commands.test_sample_images import CONFIG
from tests.tiny_cli import CommandLine, command_line


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """In a folder with a config of a random tiny model that reads videos, and a video."""
    made = command_line(tmp_path, monkeypatch, capsys)
    Video(model="Qwen/Qwen2.5-VL-3B-Instruct").tiny(0, tmp_path / "twin")
    in_file(tmp_path, encoded(20))
    Path("asked.yaml").write_text(CONFIG.replace("gui, model: twin, dialect: plain", "video, model: twin"))
    Path("rows.jsonl").write_text('{"prompt": "when?", "video": "clip.mp4"}\n')
    return made


@pytest.mark.slow
def test_answers_about_a_video_are_saved_with_its_key_frames(cli: CommandLine) -> None:
    ended = cli("sample", "asked.yaml", "--prompt", "when?", "--video", "clip.mp4", "--count", "2", "--out", "drawn")
    assert ended.code == 0, ended.err
    listed = json.loads(Path("drawn/samples.json").read_text())["samples"]
    assert len(listed) == 2 and all(isinstance(one["text"], str) for one in listed)
    with Image.open(Path("drawn", listed[0]["file"])) as picture:
        assert picture.width == 8 * CELL + 7 * GAP


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["asked.yaml", "--prompt", "a", "--video", "absent.mp4"], "--video: there is no file 'absent.mp4'"),
        (["asked.yaml", "--prompt", "a", "--video", "asked.yaml"], "cannot read the video asked.yaml"),
        (["asked.yaml", "--prompt", "a", "--prompt", "b", "--video", "clip.mp4"], "--video belongs to one prompt"),
        (["quickstart", "--prompt", "a", "--video", "clip.mp4"], "takes no video; leave --video out"),
    ],
    ids=["absent", "no video", "two prompts", "draws images"],
)
def test_a_video_that_cannot_be_asked_about_is_named(cli: CommandLine, given: list[str], message: str) -> None:
    ended = cli("sample", *given)
    assert ended.code == 2 and message in ended.err
    assert not Path("samples").exists()
