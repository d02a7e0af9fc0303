"""Commands on a pipeline that makes videos: train, sample, score, check."""

import json
from pathlib import Path

import av
import pytest
import torch

from mmrl.commands.check import plan_summary
from mmrl.commands.score import score_path
from mmrl.commands.score_results import Seeing
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.media.mp4 import Sound, frames_of, write_mp4
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.tiny.pipelines.families import FAMILIES, write_tiny_pipeline
from mmrl.samplers.ode import ODE
from tests.media.test_mp4 import moving
from tests.tiny_cli import CommandLine, command_line

CONFIG = """
iterations: 1
prompts_per_iteration: 2
rollout_groups: 1
group_size: 2
threads: 1
prompts: {train: words.txt, held_out: words.txt}
modality: {name: diffusers_pipeline, model: twin, output: video, height: 32, width: 32, num_frames: 9, fps: 12,
  arguments: {max_sequence_length: 32}, decode_batch: 1}
sampler: {name: flow_sde, num_steps: 2, sigmas: pipeline}
rewards: [{name: flicker}, {name: motion_smoothness}, {name: frame_mean, reward: {name: jpeg_size}}]
loss: {name: grpo}
advantage: {name: grpo}
optimizer: {learning_rate: 1.0e-3}
evaluation: {every: 1, sampler: {name: ode, num_steps: 2, sigmas: pipeline}, samples_per_prompt: 1}
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """In a folder with a config of a random tiny LTX."""
    made = command_line(tmp_path, monkeypatch, capsys)
    write_tiny_pipeline("ltx", tmp_path / "twin", 0)
    Path("clips.yaml").write_text(CONFIG)
    Path("words.txt").write_text("a cat\na red dog\n")
    return made


@pytest.mark.slow  # 5 s: a run, and its weights loaded again
def test_a_run_saves_clips_and_sample_writes_clips_that_another_reader_plays(cli: CommandLine) -> None:
    ended = cli("train", "clips.yaml", "--out", "run")
    assert ended.code == 0, ended.err
    report = Path("run/report.html").read_text()
    assert report.count("data:video/mp4;base64,") == 8  # two prompts, before and after, and four of training
    ended = cli("sample", "clips.yaml", "--prompt", "a cat", "--count", "2", "--seed", "3", "--out", "drawn")
    assert ended.code == 0, ended.err
    content = json.loads(Path("drawn/samples.json").read_text())
    assert content["kind"] == "video" and [one["file"] for one in content["samples"]] == ["000.mp4", "001.mp4"]
    assert {(one["num_frames"], one["fps"]) for one in content["samples"]} == {(9, 12.0)}

    policy = DiffusersPipeline(
        model="twin", output="video", height=32, width=32, num_frames=9, fps=12, arguments={"max_sequence_length": 32}
    )
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    key = GroupKey(3, 0, 0)
    plans = [ODE(num_steps=2, sigmas="pipeline").plan(policy, key, 2)]
    rollout = policy.rollout([Prompt("a cat")], plans, [key])
    policy.close()
    assert rollout.outputs.videos is not None and rollout.outputs.fps == (12.0, 12.0)
    for row in range(2):
        with av.open(f"drawn/{row:03d}.mp4") as container:
            stream = container.streams.video[0]
            planes = [torch.from_numpy(frame.to_ndarray(format="yuv420p")) for frame in container.decode(stream)]
            read = (torch.stack(planes)[:, :32].float() - 16) / 219 * 255  # the luma of BT.709
            assert float(stream.average_rate or 0) == 12
        frames = frames_of(rollout.outputs.videos[row]).float()
        luma = 0.2126 * frames[:, 0] + 0.7152 * frames[:, 1] + 0.0722 * frames[:, 2]
        assert read.shape == luma.shape
        assert (read - luma).abs().mean() < 3  # what H.264 loses of noise
        assert (read - luma.roll(1, 0)).abs().mean() > 20  # frames in wrong places
    ended = cli("score", "drawn", "--reward", "flicker", "--reward", "motion_smoothness", "--html", "page.html")
    assert ended.code == 0, ended.err
    assert Path("page.html").read_text().count("<video") == 2


@pytest.mark.slow  # 2 s: imports of diffusers
def test_check_says_what_clips_hold_before_weights_are_loaded(cli: CommandLine) -> None:
    shown = plan_summary(load_config("clips.yaml", []))
    one = 4 * 3 * 9 * 32 * 32 / 2**20
    assert shown["videos held at once on a process"] == 4  # two chunks of two: one is scored, one is sampled
    assert shown["memory of these videos, MiB"] == round(4 * one, 2)
    assert 3 * one < shown["memory of decoding beside them, MiB at most"] < 20 * one
    shown = plan_summary(load_config("clips.yaml", ["scoring.overlap=false", "modality.model=ours/clips"]))
    assert shown["videos held at once on a process"] == 2
    assert shown["memory of decoding beside them, MiB at most"] == "unknown until the model is here"


def test_clips_in_a_folder_are_scored_by_all_their_frames(tmp_path: Path) -> None:
    frames = moving(count=9)
    write_mp4(tmp_path / "moves.mp4", frames, 8)
    write_mp4(tmp_path / "stands.mp4", frames[:1].expand(5, -1, -1, -1), 8)
    found = score_path(tmp_path, [{"name": "flicker"}])
    moves, stands = found.scores.values[:, 0].tolist()
    own = 1 - (frames[1:].float() - frames[:-1].float()).abs().mean() / 255
    assert stands > 0.995 and moves == pytest.approx(float(own), abs=0.01)
    # of two frames, the first and the last
    found = score_path(tmp_path, [{"name": "flicker"}], seeing=Seeing(num_frames=2))
    apart = 1 - (frames[-1].float() - frames[0].float()).abs().mean() / 255
    assert found.scores.values[0, 0].item() == pytest.approx(float(apart), abs=0.02)


@pytest.mark.slow
def test_a_reward_of_sound_needs_clips_with_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hearing.py").write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "@dataclass\n"
        "class Loudest:\n"
        "    source = 'a test'; range = (0.0, 2.0); granularity = 'sample'; differentiable = True\n"
        "    needs: ClassVar = frozenset({'audio'}); batch_size = None\n"
        "    def score(self, batch):\n"
        "        assert batch.outputs.audio_rate == (16000,) * len(batch)\n"
        "        return batch.outputs.audio.abs().amax((1, 2))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    clips = tmp_path / "clips"
    clips.mkdir()
    tone = torch.sin(torch.arange(16000) / 10)
    for name, size in (("quiet", 0.1), ("loud", 0.8)):
        write_mp4(clips / f"{name}.mp4", moving(), 9, Sound(size * tone[None], 16000))
    found = score_path(clips, [{"name": "hearing:Loudest"}])
    assert found.scores.values[:, 0].tolist() == pytest.approx([0.8, 0.1], abs=0.1)
    write_mp4(clips / "silent.mp4", moving(), 9)
    with pytest.raises(ConfigError, match=r"'Loudest' needs audio, and 'silent\.mp4' has no sound"):
        score_path(clips, [{"name": "hearing:Loudest"}])
    Path(tmp_path / "words.txt").write_text("a cat\n")
    (tmp_path / "clips.yaml").write_text(CONFIG.replace("words.txt", str(tmp_path / "words.txt")))
    settings = load_config(str(tmp_path / "clips.yaml"), ["rewards=[{name: hearing:Loudest}]"])
    with pytest.raises(ConfigError, match="needs audio, but modality 'diffusers_pipeline' makes videos"):
        plan_summary(settings)
    plan_summary(
        load_config(str(tmp_path / "clips.yaml"), ["rewards=[{name: hearing:Loudest}]", "modality.audio=true"])
    )


@pytest.mark.slow  # 6 s: two pipelines
def test_sound_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    call = {name: value for name, value in FAMILIES["ltx2"].call.items() if name not in ("height", "width")}
    call = {name: value for name, value in call.items() if name not in ("num_frames", "frame_rate")}
    write_tiny_pipeline("ltx2", tmp_path / "ltx2", 0)
    sizes = {"output": "video", "height": 32, "width": 32, "num_frames": 5}
    policy = DiffusersPipeline(model=str(tmp_path / "ltx2"), audio=True, arguments=call, **sizes)  # type: ignore[arg-type]
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    keys = [GroupKey(0, 0, 0), GroupKey(0, 0, 1)]
    plans = [ODE(num_steps=2, sigmas="pipeline").plan(policy, key, 2) for key in keys]
    outputs = policy.rollout([Prompt("a cat"), Prompt("rain")], plans, keys).outputs
    policy.close()
    assert policy.makes == {"videos", "audio", "latents"}
    assert outputs.fps == (24.0,) * 4 and outputs.audio_rate == (16000,) * 4  # the pipeline's own
    assert outputs.audio is not None and outputs.audio.shape[:2] == (4, 2) and bool(outputs.audio.abs().max() <= 1)
    part = outputs.select(torch.tensor([3, 1]))
    assert part.fps == (24.0, 24.0) and part.audio is not None and torch.equal(part.audio[0], outputs.audio[3])
    write_tiny_pipeline("ltx", tmp_path / "ltx", 0)
    silent = DiffusersPipeline(model=str(tmp_path / "ltx"), audio=True, arguments={"max_sequence_length": 32}, **sizes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="makes no sound; leave it out"):
        silent.prepare(Placement(torch.device("cpu"), torch.float32))


@pytest.mark.slow  # 3 s
def test_the_autoencoder_works_in_tiles_where_it_is_asked_to(tmp_path: Path) -> None:
    write_tiny_pipeline("ltx", tmp_path / "ltx", 0)
    given = {"output": "video", "height": 32, "width": 32, "num_frames": 9, "arguments": {"max_sequence_length": 32}}
    policy = DiffusersPipeline(model=str(tmp_path / "ltx"), vae_tiling=True, **given)  # type: ignore[arg-type]
    policy.prepare(Placement(torch.device("cpu"), torch.float32))
    assert policy._pipeline.vae.use_tiling
    policy.close()
