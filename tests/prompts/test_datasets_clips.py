"""Videos of rows: broken ones and spans beyond them are bad rows, by file and line, seen by their headers."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.media import video
from mmrl.media.file_headers import read_header
from mmrl.media.header_index import Header
from mmrl.media.matroska import announced_length
from mmrl.media.video import StoredClip
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.prompts.filtering import readable
from tests.clips import HEIGHT, WIDTH, encoded, in_file, sound
from tests.parameters import in_one_test
from tests.tiny_cli import CommandLine, command_line
from tests.vision_twins import policy as vision_policy


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def four_seconds() -> bytes:
    return encoded(40)


def rows_file(folder: Path, *rows: Any, name: str = "rows.jsonl") -> Path:
    text = json.dumps(rows) if name.endswith("json") else "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / name).write_text(text)
    return folder / name


def loaded(path: Path, layout: str = "columns", **settings: Any) -> tuple[Prompt, ...]:
    return load_dataset_prompts(DatasetSettings(path=str(path), layout=layout, **settings))


@pytest.mark.parametrize(
    ("form", "codec"),
    [("mp4", "libx264"), ("webm", "libvpx-vp9"), ("matroska", "libx264"), ("avi", "mpeg4"), ("mpegts", "libx264")],
)
def test_a_header_says_how_long_a_video_is(form: str, codec: str) -> None:
    clip = StoredClip("a", content=memoryview(encoded(40, form=form, codec=codec)))
    assert clip.header().seconds == pytest.approx(4.0, abs=0.1) and clip.header().size == (WIDTH, HEIGHT)
    assert clip.duration() == pytest.approx(4.0, abs=0.1)


@in_one_test(
    ("start", "end", "expected"), [(None, None, 4), (1.5, None, 2.5), (None, 3, 3), (1, 3, 2), (3, 9, 1), (5, 6, 0)]
)
def test_a_part_is_as_long_as_the_file_reaches(
    start: float | None, end: float | None, expected: float, four_seconds: bytes
) -> None:
    assert StoredClip("a", content=four_seconds, start=start, end=end).duration() == pytest.approx(expected)


def test_where_a_header_says_no_duration_the_frames_are_counted(
    four_seconds: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = StoredClip("a", content=four_seconds)
    monkeypatch.setattr(StoredClip, "_read_header", lambda clip: Header(size=(WIDTH, HEIGHT)))
    assert clip.duration() == 4.0
    with pytest.raises(ConfigError, match="the video a: it is no video of the formats"):
        read_header("a", b"no video at all")


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "its index is lost": (lambda whole: whole[: len(whole) // 2], r"cannot read the video clip.mp4 \(pyav\)"),
    "no video": (lambda whole: b"not a video at all", "it is no video of the formats"),
    "sound alone": (lambda whole: sound(), "it has no video stream, perhaps sound alone"),
    "empty": (lambda whole: b"", "the video 'clip.mp4' is an empty file"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_video_is_a_bad_row(
    kind: str, tmp_path: Path, four_seconds: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    change, message = BROKEN[kind]
    in_file(tmp_path, change(four_seconds))
    in_file(tmp_path, four_seconds, "good.mp4")
    path = rows_file(tmp_path, {"prompt": "a?", "video": "good.mp4"}, {"prompt": "b?", "video": "clip.mp4"})
    with pytest.raises(ConfigError, match=rf"rows\.jsonl, line 2: .*{message}"):
        loaded(path)
    with caplog.at_level(logging.WARNING):
        (prompt,) = loaded(path, bad_rows="skip")
    assert prompt.text == "a?" and "skipped 1 of 2 rows" in caplog.text


@pytest.mark.parametrize(("form", "codec"), [("matroska", "libx264"), ("webm", "libvpx-vp9")])
def test_a_matroska_video_that_is_cut_off_is_a_bad_row(form: str, codec: str, tmp_path: Path) -> None:
    whole = encoded(20, form=form, codec=codec)
    for name, content in (("whole.mkv", whole), ("longer.mkv", whole + b"0"), ("cut.mkv", whole[:-1])):
        in_file(tmp_path, content, name)
    path = rows_file(tmp_path, *({"prompt": "a?", "video": f"{name}.mkv"} for name in ("whole", "longer", "cut")))
    with pytest.raises(ConfigError, match=r"line 3: the video cut.mkv is cut off: it has [\d,]+ of [\d,]+ bytes"):
        loaded(path)
    assert len(loaded(path, bad_rows="skip")) == 2
    with pytest.raises(ConfigError, match="the video cut is cut off"):
        StoredClip("cut", content=whole[: len(whole) * 2 // 3]).load(video.FrameSampling(num_frames=2))


def test_a_matroska_video_may_leave_its_length_open() -> None:
    header = b"\x1aE\xdf\xa3\x82ab"  # two bytes
    assert announced_length(header + b"\x18S\x80g\x01" + bytes(6) + b"\x05") == len(header) + 12 + 5
    assert announced_length(header + b"\x18S\x80g\x85") == len(header) + 5 + 5
    for unknown in (b"\x18S\x80g\xff", b"\x18S\x80g\x01" + 7 * b"\xff", b"\x18S\x80g\x00", b"\x18S\x80g", b"else"):
        assert announced_length(header + unknown) is None
    assert announced_length(b"\x1aE\xdf\xa3") is None and announced_length(b"RIFF") is None


def test_a_video_that_is_cut_off_behind_its_index_is_found_with_decode(tmp_path: Path) -> None:
    whole = encoded(40, options={"movflags": "faststart"})  # the index first
    in_file(tmp_path, whole[: len(whole) * 2 // 3])
    path = rows_file(tmp_path, {"prompt": "a?", "video": "clip.mp4"})
    assert len(loaded(path)) == 1
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 1: .*clip.mp4"):
        loaded(path, decode=True)


def test_each_file_is_opened_once_and_no_frame_is_decoded(
    tmp_path: Path, four_seconds: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def noted(*given: Any) -> Header:
        opened.append(given)
        return read_header(*given)

    monkeypatch.setattr(video, "read_header", noted)
    monkeypatch.setattr(video, "opened", None)
    in_file(tmp_path, four_seconds)
    row = {"video": "clip.mp4", "sentence": "it is lit", "timestamp": [0.5, 1]}
    parts: tuple[dict[str, float], ...] = ({}, {"video_start": 1}, {"video_start": 2, "video_end": 4})
    prompts = loaded(rows_file(tmp_path, *(row | part for part in parts), name="rows.json"), "time_r1")
    assert len(prompts) == 3 and len(opened) == 1
    assert [clip.header().size for prompt in prompts for clip in prompt.clips] == [(WIDTH, HEIGHT)] * 3  # type: ignore[attr-defined]
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("layout", "row", "message"),
    [
        ("columns", {"prompt": "?", "video": "clip.mp4", "span": [1, 6]}, "span needs start < end, within 4 seconds"),
        ("columns", {"prompt": "?", "videos": ["clip.mp4"], "span": [7, 9], "duration": 20}, "within 4 seconds"),
        ("columns", {"prompt": "?", "video": "clip.mp4", "span": [1, 3.9], "duration": 2}, "within 2 seconds"),
        ("time_r1", {"video": "clip.mp4", "sentence": "a", "timestamp": [5, 6]}, "timestamp needs .* within 4 seconds"),
        (
            "time_r1",
            {"video": "clip.mp4", "sentence": "a", "timestamp": [2, 3], "video_start": 2.5},
            "within 1.5 seconds",
        ),
        (
            "time_r1",
            {"video": "clip.mp4", "sentence": "a", "timestamp": [1, 3], "video_start": 5},
            "the part of the video clip.mp4 begins at 5 seconds; it is 4 seconds long",
        ),
        (
            "charades_sta",
            "clip 4.0 5.3##a person sits.",
            r"the line needs start < end, within 4 seconds .*\[4.0, 5.3\]",
        ),
    ],
)
def test_a_span_beyond_its_video_is_a_bad_row(
    layout: str, row: Any, message: str, tmp_path: Path, four_seconds: bytes
) -> None:
    in_file(tmp_path, four_seconds)
    suffix = {"columns": "jsonl", "time_r1": "json", "charades_sta": "txt"}[layout]
    path = rows_file(tmp_path, row, name=f"rows.{suffix}")
    if suffix == "txt":
        path.write_text(row + "\n")
    with pytest.raises(ConfigError, match=rf"rows\.{suffix}, (line|row) 1: .*{message}"):
        loaded(path, layout)


def test_a_span_may_end_within_a_second_of_its_videos_end(tmp_path: Path, four_seconds: bytes) -> None:
    in_file(tmp_path, four_seconds)
    (prompt,) = loaded(rows_file(tmp_path, {"prompt": "?", "video": "clip.mp4", "span": [1, 4.9]}))
    assert prompt.target["span"] == (1.0, 4.9)


@pytest.mark.parametrize(
    ("layout", "name", "row"),
    [
        ("charades_sta", "rows.txt", "clip 2.0 9.5##a person sits."),
        ("time_r1", "rows.json", {"video": "clip.mp4", "sentence": "A person sits.", "timestamp": [2, 9.5]}),
        ("tvgbench", "rows.json", {"path": "clip.mp4", "question": "a person sits", "answer": "2.0-9.5"}),
    ],
)
def test_annotations_of_charades_may_end_behind_their_video(
    layout: str, name: str, row: Any, tmp_path: Path, four_seconds: bytes
) -> None:
    in_file(tmp_path, four_seconds)
    path = rows_file(tmp_path, row, name=name)
    if name.endswith("txt"):
        path.write_text(row + "\n")
    (prompt,) = loaded(path, layout)
    assert (prompt.text, prompt.target["span"]) == ("a person sits", (2.0, 9.5))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"video": None}, "the field 'video' is null, and the row has no image either"),
        ({"videos": None, "image": None}, "the field 'videos' is null, and the row has no image either"),
        ({"video": ""}, "the field 'video' is empty; leave it out where there is no video"),
        ({"videos": [None]}, "videos 1 must be a path, bytes, base64 or an image, got NoneType"),
    ],
)
def test_a_video_that_is_nothing_is_a_bad_row(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"rows\.jsonl, line 1: {message}"):
        loaded(rows_file(tmp_path, {"prompt": "?"} | row))


def test_a_null_video_beside_an_image_is_a_row_of_a_mixed_table(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "red.png")
    (prompt,) = loaded(rows_file(tmp_path, {"prompt": "?", "image": "red.png", "video": None}))
    assert len(prompt.media) == 1 and not prompt.clips


@pytest.mark.slow
def test_a_policy_refuses_prompts_whose_videos_have_no_header(four_seconds: bytes) -> None:
    from tests.modalities.test_video import policy

    good, cut = (StoredClip(name, content=four_seconds[:end]) for name, end in (("good", None), ("cut", 900)))
    prompts = [Prompt(text, clips=(clip,), source=text) for text, clip in (("a", good), ("b", cut))]
    made = policy()
    assert made.refusal(prompts[0]) is None
    refused = made.refusal(prompts[1])
    assert refused is not None and refused.startswith("b: prompt 'b': cannot read the video cut (pyav): ")
    with pytest.raises(ConfigError, match="prompts: b: prompt 'b': cannot read the video cut"):
        readable(made, prompts, "a.jsonl")
    assert readable(made, prompts, DatasetSettings(path="a.jsonl", bad_rows="skip")) == (prompts[0],)
    assert "which this modality does not read; 'video' does" in str(vision_policy().refusal(prompts[0]))


@pytest.mark.slow
def test_check_names_the_row_of_a_broken_video(cli: CommandLine, four_seconds: bytes) -> None:
    in_file(Path(), four_seconds[:900], "cut.mp4")
    in_file(Path(), four_seconds, "good.mp4")
    rows = [{"prompt": "when?", "video": f"{name}.mp4", "span": [1, 2]} for name in ("good", "cut")]
    rows_file(Path(), *rows)
    ended = cli("check", "quickstart_video", "prompts.train={path: rows.jsonl}")
    assert ended.code == 2 and ended.err.startswith("mmrl: prompts: rows.jsonl, line 2: cannot read the video cut.mp4")
    assert cli("check", "quickstart_video", "prompts.train={path: rows.jsonl, bad_rows: skip}").code == 0
