"""Mistakes in configs of video and of agents: exit code 2, words that help, nothing lost."""

import json
from pathlib import Path

import pytest

from tests.tiny_cli import CommandLine, command_line
from tests.tiny_texts import clips


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """A working folder with rows about videos that are missing, empty, cut off, or no video."""
    good = (Path(str(clips().images)) / "0000.mp4").read_bytes()
    for name, content in (("empty", b""), ("text", b"no video"), ("cut", good[: len(good) // 2])):
        (tmp_path / f"{name}.mp4").write_bytes(content)
    for name in ("empty", "text", "cut", "nowhere"):
        row = {"video": f"{name}.mp4", "timestamp": [0, 1], "sentence": "it rains", "duration": 4}
        (tmp_path / f"{name}.json").write_text(json.dumps([row]))
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    "override, message",
    [
        ("modality.num_frame=4", "modalities.video has no field 'num_frame' (did you mean 'num_frames'?)"),
        ("modality.fps=2", "frames are chosen by fps or by num_frames, one of the two"),
        ("modality.frame_min_pixels=9999", "frame_min_pixels must be at most frame_max_pixels (3136), got 9999"),
        ("sampler.controls=0", "compares with samples that are not learned from: set sampler.controls"),
        ("sampler.controls=-1", "controls must be at least 0 and at most 10,000, got -1"),
        ("prompts.train={path: nowhere.json, layout: time_r1}", "row 1: there is no video file 'nowhere.mp4'"),
        ("prompts.train={path: empty.json, layout: time_r1}", "row 1: the video 'empty.mp4' is an empty file"),
    ],
)
def test_a_wrong_setting_of_video_is_named_before_anything_is_loaded(
    cli: CommandLine, override: str, message: str
) -> None:
    ended = cli.train(override, kind="video")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert not Path("run").exists()


@pytest.mark.parametrize("name", ["text", "cut"])
def test_a_broken_video_is_named(cli: CommandLine, name: str) -> None:
    ended = cli.train(f"prompts.train={{path: {name}.json, layout: time_r1}}", "evaluation=null", kind="video")
    assert ended.code == 2
    assert f"{name}.mp4" in ended.err and "video" in ended.err


@pytest.mark.slow
def test_a_model_that_reads_no_video_refuses_clips(cli: CommandLine) -> None:
    ended = cli.train(f"modality={{name: vision_language, model: {_model()}}}", "evaluation=null", kind="video")
    assert ended.code == 2 and "video" in ended.err


@pytest.mark.parametrize(
    "override, message",
    [
        ("modality.environment={name: corridor}", "unknown environment 'corridor'"),
        ("modality.environment.place=3", "has no field 'place' (did you mean 'places'?)"),
        ("modality.step_seconds=0", "step_seconds must be above 0, got 0"),
        ("sampler={name: autoregressive, max_tokens: 4}", "'autoregressive' samples tokens, but modality"),
        ("sampler.max_turns=0", "max_turns must be at least 1 and at most 10,000, got 0"),
        ("evaluation.sampler={name: autoregressive, max_tokens: 4}", "evaluation.sampler 'autoregressive' samples"),
        ("advantage.discount=1.5", "discount must be at least 0 and at most 1, got 1.5"),
        ("group_size=1", "group_size must be at least 2, got 1"),
    ],
)
def test_a_wrong_setting_of_an_agent_is_named_before_anything_is_loaded(
    cli: CommandLine, override: str, message: str
) -> None:
    ended = cli.train(override, kind="agent")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_world_that_never_begins_ends_the_run_with_its_reason(cli: CommandLine) -> None:
    Path("closed.jsonl").write_text('{"prompt": "go", "trouble": "closed"}\n')
    ended = cli.train("prompts.train=closed.jsonl", "evaluation=null", kind="agent")
    assert ended.code == 1
    assert "no episode could begin" in ended.err and "the door is closed" in ended.err


def _model() -> str:
    from tests.vision_twins import twin

    return str(twin("qwen2_5_vl"))
