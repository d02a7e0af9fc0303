"""One process or two: the same update, the same numbers, one run directory, and nobody waits for ever."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.process_runs import (
    PROMPTS,
    SETTINGS,
    assert_same_metrics,
    assert_same_run,
    ended_well,
    final_tensors,
    metrics,
    mmrl,
    movement,
    train,
    write_inputs,
)

LORA = SETTINGS["modality"] | {"lora": {"rank": 4, "alpha": 8}}
# Adam divides a gradient by its own size, so that rounding alone moves an entry without gradient; not with a larger
# epsilon, nor with momentum
ADAMW = {"learning_rate": 1e-3, "epsilon": 1e-5}
MOMENTUM = {"name": "sgd", "learning_rate": 0.3, "max_grad_norm": None}


def grpo(**settings: Any) -> dict[str, Any]:
    return {"name": "grpo", "clip_low": 0.01, "clip_high": 0.01, **settings}


def advantage(std: str) -> dict[str, Any]:
    return {"name": "grpo", "std": std}


NFT: dict[str, Any] = {
    "loss": {"name": "nft", "draws": 2, "decay": {"start": 0.5, "maximum": 0.5}, "reference_weight": 0.1},
    "sampler": {"name": "ode", "num_steps": 3, "sigmas": "uniform"},
    "advantage": advantage("batch"),
}

# a few steps at a low rate, since its Adam magnifies rounding
SURROGATE: dict[str, Any] = {
    "name": "latent_surrogate",
    "reward": {"name": "my_rewards:Redness"},
    "warm_up": 1,
    "fit_steps": 3,
    "learning_rate": 1e-4,
}

CASES: dict[str, dict[str, Any]] = {
    "full, decision, batch": {"loss": grpo(normalise="decision"), "advantage": advantage("batch")},
    "full, sample, momentum": {"loss": grpo(normalise="sample", kl_coef=0.1), "optimizer": MOMENTUM},
    "full, group, one empty process": {"loss": grpo(normalise="group"), "prompts_per_iteration": 1},
    "full, constant, centred": {"loss": grpo(normalise="constant"), "advantage": advantage("centred_batch")},
    "lora, decision": {"modality": LORA, "loss": grpo(normalise="decision", kl_coef=0.1)},
    "lora, sample, batch": {"modality": LORA, "loss": grpo(normalise="sample"), "advantage": advantage("batch")},
    "lora, group, 5 prompts in chunks": {
        "modality": LORA,
        "loss": grpo(normalise="group"),
        "prompts_per_iteration": 5,
        "rollout_groups": 2,
    },
    "lora, constant, one empty process": {
        "modality": LORA,
        "loss": grpo(normalise="constant"),
        "prompts_per_iteration": 1,
    },
    "full, a process without a group in each minibatch": {
        "updates": {"epochs": 2, "minibatches": 3, "micro_batch": 3},
        "optimizer": MOMENTUM,
    },
    "draft": {
        "loss": {"name": "draft", "num_steps": [1, 3]},
        "optimizer": MOMENTUM | {"learning_rate": 0.05},
        "rewards": [{"name": "soft_shapes", "weight": 0.1}],  # gradients through the sampler are large
        "prompts": {"train": "lab:shapes/train", "held_out": "lab:shapes/held_out"},
        "updates": {"micro_batch": 5},
    },
    "adjoint_matching": {
        "loss": {"name": "adjoint_matching", "strength": 2.0},  # a larger one magnifies the rounding of the first step
        "sampler": {"name": "memoryless", "num_steps": 3, "sigmas": "uniform"},
        "rewards": [{"name": "soft_shapes"}],
        "prompts": {"train": "lab:shapes/train", "held_out": "lab:shapes/held_out"},
    },
    "fitted, from its second iteration on": {"rewards": [SURROGATE | {"every": 2}]},
    "fitted, one empty process": {"rewards": [SURROGATE], "prompts_per_iteration": 1},
    "nft, full": NFT,
    "nft, lora": NFT | {"modality": LORA},
    "nft, one empty process": NFT | {"prompts_per_iteration": 1},
    "drop": {"groups": {"degenerate": "drop"}, "rewards": [{"name": "my_rewards:Redness", "dull": "red"}]},
    "refill": {
        "groups": {"degenerate": "refill", "max_refills": 2},
        "rewards": [{"name": "my_rewards:Redness", "dull": "red"}],
        "prompts_per_iteration": 2,
    },
    "further members": {
        "groups": {"more": {"budget": 5, "per_prompt": 4, "rounds": 2, "exploration": 0.01}, "degenerate": "drop"},
        "rewards": [{"name": "my_rewards:Redness", "dull": "red"}],
        "updates": {"epochs": 2, "minibatches": 2},
        "loss": grpo(normalise="group"),
    },
    "failed samples": {
        "rewards": [{"name": "my_rewards:Redness", "raises_for": "green"}],
        "scoring": {"max_failed_share": 0.5},
        "advantage": advantage("batch"),
    },
}


@pytest.mark.slow  # two runs of the lab each
@pytest.mark.parametrize("name", CASES)
def test_two_processes_make_the_run_of_one(name: str, tmp_path: Path) -> None:
    write_inputs(tmp_path, {"optimizer": ADAMW} | CASES[name])
    before = {path.name for path in tmp_path.iterdir()}
    one, two = train(tmp_path, "one", 1), train(tmp_path, "two", 2)
    assert_same_run(one, two)
    assert movement(one, 2, 3) > 1e-4  # ten times the tolerance
    written = {path.name for path in tmp_path.iterdir() if path.suffix != ".txt"} - before
    assert written - {"__pycache__"} == {"one", "two"}


@pytest.mark.parametrize(("how", "kept"), [("drop", [1, 1, 1]), ("refill", [1, 2, 1])])
@pytest.mark.slow  # one run of the lab each
def test_a_process_that_loses_all_its_groups_goes_on(how: str, kept: list[float], tmp_path: Path) -> None:
    dull = {"rewards": [{"name": "my_rewards:Redness", "dull": "red"}], "prompts_per_iteration": 2}
    write_inputs(tmp_path, dull | {"groups": {"degenerate": how, "max_refills": 1}}, ("red circle left", PROMPTS[1]))
    lines = [line for line in metrics(train(tmp_path, "two", 2)) if "groups/kept" in line]
    assert [line["groups/kept"] for line in lines] == kept  # of two groups, one on each process, and a refill
    assert [line["optimizer/steps"] for line in lines] == [1.0] * 3


@pytest.mark.slow  # one run of the lab
def test_an_iteration_in_which_nobody_keeps_a_group_makes_no_step(tmp_path: Path) -> None:
    dull = {"rewards": [{"name": "my_rewards:Redness", "dull": ""}], "groups": {"degenerate": "drop"}}
    write_inputs(tmp_path, dull)
    two = train(tmp_path, "two", 2)
    assert [line["optimizer/steps"] for line in metrics(two) if "groups/kept" in line] == [0.0] * 3
    assert movement(two, 2, 3) == 0.0


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.slow  # three runs of the lab
def test_a_run_can_be_resumed_by_another_number_of_processes(first: int, tmp_path: Path) -> None:
    write_inputs(tmp_path, {"optimizer": ADAMW, "iterations": 4} | {"loss": grpo(normalise="group")})
    straight = train(tmp_path, "straight", 1)
    train(tmp_path, "broken", first, "iterations=2")
    ended_well(mmrl(tmp_path, ["train", "--resume", "broken", "iterations=4"], 3 - first))
    expected, got = final_tensors(straight, 4), final_tensors(tmp_path / "broken", 4)
    assert expected.keys() == got.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, atol=1e-5, rtol=0, msg=name.__add__)
    for line, other in zip(metrics(straight), metrics(tmp_path / "broken"), strict=True):
        assert_same_metrics(line, other)


@pytest.mark.slow  # two runs of the lab
def test_a_signal_to_one_process_stops_all_with_a_checkpoint(tmp_path: Path) -> None:
    write_inputs(tmp_path, {"iterations": 100_000, "evaluation": None, "checkpoint": {"every": 0}})

    def stop_the_second(pids: list[int]) -> None:
        deadline = time.monotonic() + 60
        while not (tmp_path / "two" / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(pids[1], signal.SIGTERM)

    ends = mmrl(tmp_path, ["train", "run.yaml", "--out", "two"], 2, stop_the_second)
    assert [end.code for end in ends] == [1, 1], ends
    done = json.loads((tmp_path / "two" / "summary.json").read_text(encoding="utf-8"))["iterations"]
    assert (tmp_path / "two" / "checkpoints" / f"{done:06d}").is_dir()
    ended_well(mmrl(tmp_path, ["train", "--resume", "two", f"iterations={done + 1}"], 2))


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.parametrize(("fault", "code", "message"), [
    ("wrong_shape_for", 2, "must return a torch.float32 tensor"),
    ("raises_for", 1, "2 of 6 samples could not be judged"),
])  # fmt: skip
def test_an_error_on_one_process_ends_all_and_is_said_once(fault: str, code: int, message: str, tmp_path: Path) -> None:
    write_inputs(tmp_path, {"rewards": [{"name": "my_rewards:Redness", fault: "blue"}]})  # judged by the second
    ends = mmrl(tmp_path, ["train", "run.yaml", "--out", "two"], 2)
    assert [end.code for end in ends] == [code, code]
    start, *said = [line for end in ends for line in end.output.splitlines()]
    assert start.startswith("two: iterations 1 to 3")
    assert len(said) == 1 and said[0].startswith("mmrl: ") and message in said[0], said


@pytest.mark.slow  # two processes, one of which is killed
def test_a_process_that_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    write_inputs(tmp_path, {"iterations": 3000, "evaluation": None})
    metrics = tmp_path / "two" / "metrics.jsonl"

    def kill_the_second(processes: list[int]) -> None:
        while not metrics.exists() or metrics.read_text().count("\n") < 2:
            time.sleep(0.01)
        os.kill(processes[1], signal.SIGKILL)

    first, _ = mmrl(tmp_path, ["train", "run.yaml", "--out", "two"], 2, kill_the_second)
    said = [line for line in first.output.splitlines() if not line.startswith(("two: iterations", *"0123456789"))]
    assert first.code == 1 and len(said) == 1, first.output
    assert said[0].startswith("mmrl: another process of this run is gone: its own message says why; resume the run")
    assert not (tmp_path / "two" / "lock.json").exists()


def launched(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`accelerate launch` of two processes; nothing tells it that there is no GPU."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1"]
    settings = ["--multi_gpu", "--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no"]
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": root}
    environment.pop("ACCELERATE_USE_CPU", None)
    return subprocess.run(
        [*launcher, *settings, "-m", "mmrl", "train", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.slow  # the real launcher: two processes that import everything
def test_accelerate_launch_divides_a_run_and_ends_it_when_one_process_fails(tmp_path: Path) -> None:
    write_inputs(tmp_path, {"optimizer": ADAMW})
    done = launched(tmp_path, "run.yaml", "--out", "two")
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same_run(train(tmp_path, "one", 1), tmp_path / "two")
    assert done.stdout.count("report: two/report.html") == 1
    again = launched(tmp_path, "run.yaml", "--out", "two")  # a mistake that the first process alone sees
    assert again.returncode != 0
    said = [line for line in again.stderr.splitlines() if line.startswith("mmrl: ")]
    assert len(said) == 1 and "two exists already" in said[0], again.stderr[-3000:]
