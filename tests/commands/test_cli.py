"""The commands on a small run of the shapes lab, and how fast the command line starts."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import mmrl
from mmrl.commands import listing
from mmrl.core.config import load_config, to_yaml
from mmrl.reporting.metric_names import VARYING
from mmrl.run_directory import start
from mmrl.run_directory.manifest import write_manifest
from mmrl.training import checkpoint
from tests.tiny_cli import CommandLine, command_line
from tests.tiny_runs import KINDS, SMALL, tensors


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five iterations, evaluated after 2, 4 and 5; only an evaluation that is the best so far makes it save earlier."""
    out = tmp_path_factory.mktemp("run") / "run"
    changes = ["iterations=5", "evaluation.every=2", "checkpoint.every=100", "evaluation.num_prompts=8"]
    mmrl.train("quickstart", [*SMALL, *KINDS["nft"], *changes, "checkpoint.keep=1"], out=out)
    return out


def held_out(run: Path) -> dict[int, dict[str, Any]]:
    """The metrics of the evaluations of a run, by iteration, without times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if "held_out/score" in line]
    return {line.pop("iteration"): {k: v for k, v in line.items() if not k.startswith(VARYING)} for line in kept}


@pytest.mark.slow
def test_the_command_line_imports_nothing_heavy_before_a_command_needs_it() -> None:
    heavy = {"torch", "numpy", "diffusers", "transformers", "accelerate", "pydantic", "yaml", "PIL"}
    code = f"import sys, mmrl.cli; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow
def test_the_run_directory_is_written_before_heavy_imports(tmp_path: Path) -> None:
    code = (
        "import sys; from mmrl.run_directory.start import new_run; "
        f"new_run('quickstart', [], {str(tmp_path / 'run')!r}); "
        "print(*({'torch', 'numpy', 'diffusers', 'transformers', 'accelerate'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    assert (tmp_path / "run" / "config.yaml").is_file()


@pytest.mark.slow  # most of a second each, or more
def test_the_package_is_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "mmrl", "list", "configs"], capture_output=True, text=True)
    assert done.returncode == 0 and "quickstart" in done.stdout
    done = subprocess.run([sys.executable, "-m", "mmrl", "list", "loses"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "mmrl: there is nothing called 'loses' to list (did you mean 'losses'?)\n"


@pytest.mark.parametrize(
    "kind", [kind for kind in listing.KINDS if kind not in ("recipes", "systems")]
)  # those: test_recipes.py, test_systems.py
def test_a_list_is_json_alone(cli: CommandLine, kind: str) -> None:
    ended = cli("list", kind, "--json")
    assert ended.code == 0
    rows = json.loads(ended.out)
    assert all(row["name"] and row["summary"] for row in rows)
    shown = cli("list", kind)
    names = [line.split()[0] for line in shown.out.splitlines() if not line.startswith(" ")]
    assert names == [row["name"] for row in rows]


@pytest.mark.slow
def test_a_list_of_rewards_says_what_each_is(cli: CommandLine) -> None:
    rows = {row["name"]: row for row in json.loads(cli("list", "rewards", "--json").out)}
    assert {"shapes", "jpeg_size", "clip_score", "aesthetic"} <= set(rows)
    assert all(
        set(row)
        == {
            *("name", "summary", "source", "range", "granularity", "needs", "differentiable", "batch_size", "holds"),
            *("license", "commercial"),
        }
        for row in rows.values()
    )
    shapes = rows["shapes"]
    assert (shapes["range"], shapes["granularity"]) == ([0, 1], "sample")
    assert (shapes["needs"], shapes["differentiable"]) == (["images"], False)
    shown = cli("list", "rewards").out
    assert "judges each sample; 0 to 1; needs images; " + shapes["source"] in shown
    assert f"64 at once; weights: Apache-2.0; {rows['hps_v2']['source']}" in shown
    assert (
        f"64 at once; weights: unknown licence, not known to allow commercial use; {rows['pick_score']['source']}"
        in shown
    )
    assert f"16 at once; weights: CC-BY-NC-4.0, not for commercial use; {rows['geneval']['source']}" in shown
    assert "wraps another reward, whose range and needs count too; " + rows["cached"]["source"] in shown


def test_a_check_is_json_alone(cli: CommandLine) -> None:
    ended = cli("check", "quickstart", "group_size=4", "prompts_per_iteration=3", "sampler.num_steps=5", "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found["samples per iteration"] == 12
    assert found["training prompts"].endswith(", all of text alone")
    assert found["network calls of a rollout"] == 12 * 5


@pytest.mark.slow
def test_training_ends_with_one_line_that_says_what_improved_and_where_the_report_is(cli: CommandLine) -> None:
    ended = cli.train("iterations=1")
    assert ended.code == 0
    last = ended.out.splitlines()[-1]
    assert last.startswith("held-out correct ") and " -> " in last and last.endswith("report: run/report.html")
    assert Path("run/report.html").is_file()


def test_a_summary_holds_what_scripts_read(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    scores = {iteration: metrics["held_out/score"] for iteration, metrics in held_out(run).items()}
    assert summary["held_out"]["before"] == scores[0]
    assert summary["held_out"]["after"] == scores[5]
    assert summary["held_out"]["best"] == max(scores[n] for n in (2, 4, 5))
    assert summary["iterations"] == 5 and summary["is_complete"] is True
    assert summary["train_seconds"] > 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    calls = sum(line.get("calls/rollout", 0) + line.get("calls/update", 0) for line in lines)
    # old and trained weights and the reference look at 8 samples in each of 5 updates, after 3 steps each of sampling
    assert summary["network_calls"] == calls == 5 * 8 * (3 + 3)
    assert {"python", "torch", "diffusers", "mmrl"} <= set(summary["versions"])


def warned(cli: CommandLine, caplog: pytest.LogCaptureFixture, *given: str) -> list[str]:
    """Runs a command that ends well; returns its warnings, which it would write to stderr."""
    caplog.clear()
    assert cli(*given).code == 0
    return caplog.messages


@pytest.mark.slow  # most of a second each, or more
def test_weights_that_are_not_the_best_are_never_taken_in_silence(
    cli: CommandLine, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = shutil.copytree(run, tmp_path / "copied")
    last, earlier = copied / "checkpoints" / "000005", copied / "checkpoints" / "000002"
    if not earlier.exists():
        shutil.copytree(last, earlier)
    state = json.loads((last / "state.json").read_text())
    state["state"]["progress"] |= {"latest": 0.25, "best": 0.75, "best_iteration": 2}
    (last / "state.json").write_text(json.dumps(state))
    write_manifest(last)
    told = (
        "these are the last weights, of iteration 5, with 0.250 on the held-out prompts; "
        "iteration 2 was better than the last, 0.750 on the held-out prompts: --checkpoint best takes it"
    )
    assert told in warned(cli, caplog, "export", str(copied), "--out", "last")
    state["state"]["progress"] |= {"latest": 0.75, "best_iteration": 5}
    (last / "state.json").write_text(json.dumps(state))
    write_manifest(last)
    said = warned(cli, caplog, "export", str(copied), "--out", "also_best")
    assert not [one for one in said if one.startswith("these are the last weights")]


def test_the_best_and_the_last_iteration_are_saved(run: Path) -> None:
    scores = {iteration: metrics["held_out/score"] for iteration, metrics in held_out(run).items() if iteration}
    best = min(n for n in scores if scores[n] == max(scores.values()))
    assert set(checkpoint.saved(run / "checkpoints")) == {best, 5}


@pytest.mark.slow
def test_an_evaluation_is_json_alone_and_repeats_what_training_found(cli: CommandLine, run: Path) -> None:
    ended = cli("evaluate", str(run), "--json")
    assert ended.code == 0
    assert json.loads(ended.out) == held_out(run)[5]
    best = json.loads((run / "summary.json").read_text())["held_out"]["best_iteration"]
    assert json.loads(cli("evaluate", str(run), "--checkpoint", "best", "--json").out) == held_out(run)[best]


@pytest.mark.slow
def test_an_evaluation_of_a_config_is_that_of_its_untrained_model(cli: CommandLine, run: Path) -> None:
    Path("untrained.yaml").write_text(
        to_yaml(load_config("quickstart", [*SMALL, *KINDS["nft"], "evaluation.num_prompts=8"]))
    )
    assert json.loads(cli("evaluate", "untrained.yaml", "--json").out) == held_out(run)[0]
    assert json.loads(cli("evaluate", str(run), "--weights", "reference", "--json").out) == held_out(run)[0]


@pytest.mark.slow
def test_samples_are_drawn_for_each_prompt(cli: CommandLine, run: Path) -> None:
    prompts = ["red circle top left", "blue cross bottom right"]
    given = [word for prompt in prompts for word in ("--prompt", prompt)]
    ended = cli("sample", str(run), *given, "--count", "3", "--seed", "5", "--out", "drawn")
    assert (ended.code, ended.out) == (0, "drawn\n")
    listed = json.loads(Path("drawn/samples.json").read_text())["samples"]
    assert [sample["prompt"] for sample in listed] == [prompts[0]] * 3 + [prompts[1]] * 3
    pictures = [Path("drawn", sample["file"]).read_bytes() for sample in listed]
    assert len(set(pictures)) == 6
    with Image.open("drawn/000.png") as picture:
        assert picture.size == (32, 32)
    assert cli("sample", str(run), *given, "--count", "3", "--seed", "5", "--out", "again").code == 0
    assert [Path("again", sample["file"]).read_bytes() for sample in listed] == pictures


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--prompt", "a"], "modality 'sd3' makes images and takes no image; leave --image out"),
        (["--prompt", "a", "--prompt", "b"], "--image belongs to one prompt: give one --prompt, got 2"),
    ],
)
def test_an_image_that_no_prompt_can_have_is_refused(cli: CommandLine, given: list[str], message: str) -> None:
    Image.new("RGB", (8, 8)).save("asked.png")
    ended = cli("sample", "quickstart", *given, "--image", "asked.png")
    assert ended.code == 2 and message in ended.err
    assert not Path("samples").exists()


@pytest.mark.slow  # most of a second each, or more
def test_samples_come_from_the_sampler_and_checkpoint_that_are_named(cli: CommandLine, run: Path) -> None:
    given = ["--prompt", "red circle top left", "--count", "1"]
    assert cli("sample", str(run), *given, "--sampler", "train", "--checkpoint", "best", "--out", "drawn").code == 0
    ended = cli("sample", str(run), *given, "--sampler", "greedy", "--out", "none")
    assert ended.code == 2 and "there is no sampler 'greedy'; known are evaluation, train" in ended.err
    two_steps = "{name: ode, num_steps: 2, sigmas: uniform}"
    steered = f"evaluation.sampler={{name: best_of_n, n: 2, reward: {{name: shapes}}, proposal: {two_steps}}}"
    assert cli("sample", str(run), steered, *given, "--out", "steered").code == 0
    assert Path("steered/000.png").is_file()
    ended = cli("sample", str(run), "seed=4", *given, "--out", "none")
    assert ended.code == 2 and "of a run only evaluation." in ended.err
    ended = cli("sample", "runs/none", *given, "--out", "none")
    assert ended.code == 2 and "there is no run 'runs/none', and no config" in ended.err
    ended = cli("sample", "quickstart_gui", "--prompt", "click", "--image", "nothere.png")
    assert (ended.code, ended.err) == (2, "mmrl: --image: there is no file 'nothere.png'\n")


@pytest.mark.slow
def test_an_evaluation_takes_settings_of_its_own(cli: CommandLine, run: Path) -> None:
    small = [*SMALL, *KINDS["nft"], "evaluation.num_prompts=8"]
    found = json.loads(cli("evaluate", "quickstart", *small, "--json").out)
    assert found == held_out(run)[0]
    ended = cli("evaluate", str(run), "evaluation.rewards=[{name: jpeg_size}]", "--json")
    assert ended.code == 0 and "held_out/jpeg_size/mean" in json.loads(ended.out)
    ended = cli("evaluate", str(run), "group_size=2")
    assert ended.code == 2 and "prompts.held_out, scoring., modality.engine may be overridden" in ended.err


@pytest.mark.slow
def test_help_names_debug(cli: CommandLine) -> None:
    assert "--debug" in cli("--help").out


def test_a_directory_without_a_number_is_forgotten_and_any_other_kept(tmp_path: Path) -> None:
    for name, metrics, is_kept in (("none", None, False), ("empty", "", False), ("begun", "{}\n", True)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.yaml").write_text("seed: 0\n")
        if metrics is not None:
            (folder / "metrics.jsonl").write_text(metrics)
        start.forget(folder)
        assert folder.exists() == is_kept
    assert (tmp_path / "begun" / "config.yaml").exists()


@pytest.mark.slow
def test_an_export_is_a_plain_diffusers_folder_with_the_run_s_weights(cli: CommandLine, run: Path) -> None:
    from diffusers import SD3Transformer2DModel

    ended = cli("export", str(run), "--out", "exported", "--weights", "trained")
    assert (ended.code, ended.out) == (0, "exported\n")
    transformer = SD3Transformer2DModel.from_pretrained("exported", subfolder="transformer").state_dict()
    trained = tensors(run / "checkpoints" / "000005")["trained"]
    assert trained
    for name, tensor in trained.items():
        assert tensor.equal(transformer[name.removeprefix("transformer.")])


def test_a_report_is_written_again(cli: CommandLine, run: Path) -> None:
    (run / "report.html").unlink()
    ended = cli("report", str(run))
    assert (ended.code, ended.out) == (0, f"{run / 'report.html'}\n")
    assert (run / "report.html").read_text().startswith("<!")


@pytest.mark.slow
def test_a_user_s_own_reward_is_found_in_the_working_folder(cli: CommandLine) -> None:
    ended = cli.train("rewards=[{name: my_rewards:Constant, value: 0.25}]", "evaluation=null", "iterations=1")
    assert ended.code == 0
    line = json.loads(Path("run/metrics.jsonl").read_text())
    assert line["reward/mean"] == 0.25


@pytest.mark.slow  # most of a second each, or more
def test_only_settings_that_leave_the_numbers_alone_change_on_resume(cli: CommandLine) -> None:
    assert cli.train("iterations=1").code == 0
    config = Path("run/config.yaml").read_bytes()
    for override in ("seed=1", "group_size=8", "optimizer.learning_rate=1.0"):
        ended = cli("train", "--resume", "run", override)
        assert ended.code == 2, override
        assert "only iterations, max_seconds, checkpoint, trackers, sharding, modality.engine.url" in ended.err
        assert f"may be overridden, got {override!r}" in ended.err
        assert Path("run/config.yaml").read_bytes() == config, override
    assert cli("train", "--resume", "run", "iterations=3").code == 0
    assert set(held_out(Path("run"))) == {0, 1, 3}
    assert load_config("run/config.yaml").iterations == 3


@pytest.mark.slow  # most of a second each, or more
def test_a_resume_that_fails_leaves_the_settings_of_the_run(cli: CommandLine) -> None:
    assert cli.train("iterations=1").code == 0
    config = Path("run/config.yaml").read_bytes()
    assert cli("train", "--resume", "run", "trackers=[tensorbord]").code == 2
    assert Path("run/config.yaml").read_bytes() == config


@pytest.mark.slow  # most of a second each, or more
def test_settings_of_null_outlive_a_resume(cli: CommandLine) -> None:
    """The default of these is a number, so a file without them would say something else."""
    assert cli.train("iterations=1", "optimizer.max_grad_norm=null", "advantage.clip=null").code == 0
    assert cli("train", "--resume", "run", "iterations=2").code == 0
    config = load_config("run/config.yaml")
    assert config.optimizer.max_grad_norm is None
    assert config.advantage["clip"] is None
