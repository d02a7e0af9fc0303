"""Runs of a driven pipeline: resumed bit for bit, the same in two processes and with shared weights, no thread left."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.commands import train as commands
from mmrl.commands.check import check_tiny
from mmrl.commands.sample import sample
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError, RunError
from mmrl.modalities.tiny.pipelines.families import write_tiny_pipeline
from tests.process_runs import (
    SETTINGS,
    assert_same_run,
    ended_well,
    final_tensors,
    metrics,
    mmrl,
    movement,
    train,
    write_inputs,
)

pytestmark = pytest.mark.slow  # runs of a small FLUX

GRPO = {"name": "grpo", "clip_low": 0.01, "clip_high": 0.01, "kl_coef": 0.1}
SHORT: dict[str, Any] = {
    "iterations": 2,
    "checkpoint": {"every": 1, "keep": 5},
    "optimizer": {"learning_rate": 1e-3, "epsilon": 1e-5},
    "loss": GRPO,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny FLUX."""
    folder = tmp_path_factory.mktemp("flux")
    write_tiny_pipeline("flux", folder, 0)
    return folder


def modality(model: Path, **settings: Any) -> dict[str, Any]:
    given = {"name": "diffusers_pipeline", "model": str(model), "height": 32, "width": 32, "network_batch": 5}
    return given | {"arguments": {"max_sequence_length": 48, "guidance_scale": 2.5}, "family": "flux"} | settings


def sampler(scale: float) -> dict[str, Any]:
    return {"name": "flow_sde", "num_steps": 3, "noise_level": 0.7, "guidance_scale": scale}


def test_two_processes_make_the_run_of_one_also_where_they_share_the_weights(model: Path, tmp_path: Path) -> None:
    lora = modality(model, lora={"rank": 4, "alpha": 8})
    write_inputs(tmp_path, SHORT | {"modality": lora, "sampler": sampler(3.0), "updates": {"micro_batch": 5}})
    one, two = train(tmp_path, "one", 1), train(tmp_path, "two", 2)
    assert_same_run(one, two, 2)
    assert_same_run(one, train(tmp_path, "shared", 2, "sharding=full"), 2)
    assert movement(one, 1, 2) > 1e-4


def test_two_processes_train_on_the_clips_of_one(tmp_path: Path) -> None:
    clips: dict[str, Any] = {"height": 32, "width": 32, "num_frames": 9, "output": "video"}
    given = {"max_sequence_length": 5, "frame_rate": 8}
    of_lab = {"name": "diffusers_pipeline", "model": "lab:motion", "network_batch": 5, "arguments": given} | clips
    changes = {"modality": of_lab, "sampler": sampler(1.0), "rewards": [{"name": "motion"}]}
    changes |= {"prompts": {"train": "lab:motion/train", "held_out": "lab:motion/held_out"}}
    changes |= {"evaluation": SETTINGS["evaluation"] | {"num_prompts": 3}}
    write_inputs(tmp_path, SHORT | changes | {"updates": {"micro_batch": 5}})
    one, two = train(tmp_path, "one", 1), train(tmp_path, "two", 2)
    assert_same_run(one, two, 2)
    assert movement(one, 1, 2) > 1e-4


def test_a_process_without_work_takes_part_where_all_weights_are_shared(model: Path, tmp_path: Path) -> None:
    full = modality(model, gradient_checkpointing=True)
    write_inputs(tmp_path, SHORT | {"modality": full, "sampler": sampler(1.0), "prompts_per_iteration": 1})
    one, two = train(tmp_path, "one", 1), train(tmp_path, "two", 2, "sharding=full")
    assert_same_run(one, two, 2)
    assert movement(one, 1, 2) > 1e-4


def test_a_run_that_was_stopped_goes_on_bit_for_bit(model: Path, tmp_path: Path) -> None:
    write_inputs(tmp_path, SHORT | {"modality": modality(model), "sampler": sampler(3.0)})
    straight = train(tmp_path, "straight", 1)
    train(tmp_path, "again", 1, "iterations=1")
    ended_well(mmrl(tmp_path, ["train", "--resume", "again", "iterations=2"], 1))
    expected, got = final_tensors(straight, 2), final_tensors(tmp_path / "again", 2)
    assert expected.keys() == got.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())
    trained = [[line for line in metrics(run) if "loss/total" in line] for run in (straight, tmp_path / "again")]
    assert trained[0] == trained[1]


def paused() -> int:
    return sum(thread.name == "paused pipeline" for thread in threading.enumerate())


def test_no_thread_is_left_when_a_command_ends(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_inputs(tmp_path, SHORT | {"iterations": 1, "modality": modality(model, lora={"rank": 2})})
    config, before = load_config("run.yaml"), paused()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text((tmp_path / "run.yaml").read_text())
    commands.train(config, Path("run"))
    assert paused() == before
    commands.evaluate("run")
    assert paused() == before
    sample("run", ["a cat"], 1, 0, Path("drawn"))
    assert paused() == before
    assert check_tiny(config)["is_good"]
    assert paused() == before
    failing = load_config("run.yaml", ["rewards.0.raises_for=circle"])
    (tmp_path / "failing").mkdir()
    (tmp_path / "failing" / "config.yaml").write_text(failing.model_dump_json())
    with pytest.raises(RunError):
        commands.train(failing, Path("failing"))
    assert paused() == before
    with pytest.raises(ConfigError, match="keeps no 'old' weights"):
        commands.evaluate("run", "old")
    assert paused() == before
