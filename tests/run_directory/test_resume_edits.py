"""A config.yaml that is edited or damaged between stop and resume is named key by key, never resumed in silence."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmrl.assembly.build import build
from mmrl.commands.train import train
from mmrl.core.config import read_yaml
from mmrl.run_directory import start
from mmrl.run_directory.lock import LOCK
from mmrl.run_directory.manifest import write_manifest
from mmrl.run_directory.resumed_settings import differences, kept_settings
from mmrl.system.errors import ConfigError
from tests.tiny_runs import SDE, SMALL

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations, with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    changes = [*SMALL, SDE, "loss={name: grpo, kl_coef: 0.1}", "iterations=2", "averaging.decay=0.5", "evaluation=null"]
    train(*start.new_run("quickstart", changes, folder))
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def sets(path: str, value: Any) -> Edit:
    def edit(tree: dict[str, Any]) -> None:
        *above, last = path.split(".")
        for key in above:
            tree = tree[int(key)] if isinstance(tree, list) else tree[key]
        tree[last] = value

    return edit


def edit_file(run: Path, edit: Edit) -> None:
    path = run / "config.yaml"
    tree = yaml.safe_load(path.read_text())
    edit(tree)
    path.write_text(yaml.safe_dump(tree, sort_keys=False))


def drops(key: str) -> Edit:
    return lambda tree: tree.pop(key)


EDITS: dict[str, tuple[Edit, str]] = {
    "rate x 100": (sets("optimizer.learning_rate", 0.03), "optimizer.learning_rate: 0.0003 before, 0.03 now"),
    "rate as text": (sets("optimizer.learning_rate", "3e-4"), "optimizer.learning_rate: 0.0003 before, '3e-4' now"),
    "seed": (sets("seed", 1), "seed: 0 before, 1 now"),
    "seed is true": (sets("seed", False), "seed: 0 before, False now"),
    "group size": (sets("group_size", 8), "group_size: 4 before, 8 now"),
    "prompts per iteration": (sets("prompts_per_iteration", 4), "prompts_per_iteration: 2 before, 4 now"),
    "another loss": (sets("loss", {"name": "gspo"}), "loss.name: 'grpo' before, 'gspo' now"),
    "a setting of the loss": (sets("loss.kl_coef", 0.0), "loss.kl_coef: 0.1 before, 0.0 now"),
    "a setting more of the loss": (sets("loss.clip", 0.1), "loss.clip: not set before, 0.1 now"),
    "another advantage": (sets("advantage.name", "rloo"), "advantage.name: 'grpo' before, 'rloo' now"),
    "another reward": (sets("rewards", [{"name": "jpeg_size"}]), "rewards.0.name: 'shapes' before, 'jpeg_size' now"),
    "one reward more": (
        lambda tree: tree["rewards"].append({"name": "jpeg_size"}),
        "rewards.1.name: not set before, 'jpeg_size' now",
    ),
    "a weight": (sets("rewards.0.weight", 2.0), "rewards.0.weight: not set before, 2.0 now"),
    "precision": (sets("precision", "bfloat16"), "precision: 'float32' before, 'bfloat16' now"),
    "threads": (sets("threads", 2), "threads: 1 before, 2 now"),
    "steps of the sampler": (sets("sampler.num_steps", 9), "sampler.num_steps: 4 before, 9 now"),
    "optimizer steps": (sets("updates.epochs", 2), "updates.epochs: 1 before, 2 now"),
    "another model": (sets("modality.model", "lab:other"), "modality.model: 'lab:shapes' before, 'lab:other' now"),
    "other prompts": (
        sets("prompts.train", "lab:shapes/held_out"),
        "prompts.train: 'lab:shapes/train' before, 'lab:shapes/held_out' now",
    ),
    "averaging dropped": (drops("averaging"), "averaging.decay: 0.5 before, not set now"),
    "optimizer dropped": (drops("optimizer"), "optimizer.learning_rate: 0.0003 before, not set now"),
    "a key that nobody knows": (sets("learning_rate", 1.0), "learning_rate: not set before, 1.0 now"),
}


ONE_OF_EACH_KIND = (
    "rate x 100",
    "rate as text",
    "seed is true",
    "another loss",
    "a setting more of the loss",
    "one reward more",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_between_stop_and_resume_is_named(run: Path, name: str) -> None:
    edit, said = EDITS[name]
    edit_file(run, edit)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(ConfigError) as refused:
        start.resumed_run(run, ["iterations=3"])
    assert "is not what the checkpoint 000002 was trained with:" in str(refused.value)
    assert f"\n  {said}\n" in str(refused.value)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    assert not (run / LOCK).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda text: text[: text.index("rewards:")], r"  advantage.name: 'grpo' before, not set now"),
        (lambda text: text[: text.index("rewards:") + 4], "is not YAML"),
        (lambda text: text + "seed: 0\n", r"line 10 and line \d+: the key 'seed' stands twice"),
        (lambda text: text.replace("seed: 0", "seed: &again [*again]"), "an anchor holds itself"),
        (lambda text: text + "\t: {", "is not YAML"),
        (lambda text: "", "must hold a mapping of settings, got nothing"),
    ],
    ids=["cut behind a line", "cut in a line", "a key twice", "holds itself", "no YAML", "empty"],
)
def test_a_damaged_config_is_named(run: Path, damage: Callable[[str], str], said: str) -> None:
    path = run / "config.yaml"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ConfigError, match=said):
        start.resumed_run(run, [])


@pytest.mark.slow  # most of a second each, or more
def test_what_may_change_may_be_edited_or_overridden_and_the_rest_of_the_file_stays(run: Path) -> None:
    path = run / "config.yaml"
    tree = read_yaml(path)
    del tree["correction"]  # as written before a version knew this section: its defaults are not written in
    path.write_text("# mine\n" + yaml.safe_dump(tree | {"checkpoint": {"every": 1, "keep": 9}}, sort_keys=True))
    with pytest.raises(ConfigError, match=r"correction\.\w+: .* before, not set now"):
        start.resumed_run(run, [])
    of_older_settings(run, kept_settings(tree))
    outcome = train(start.resumed_run(run, ["iterations=3", "max_seconds=100"]), run, resume=True)
    assert outcome.summary["iterations"] == 3
    now = read_yaml(path)
    assert now == tree | {"checkpoint": {"every": 1, "keep": 9}, "iterations": 3, "max_seconds": 100.0}
    state = json.loads((run / "checkpoints/000003/state.json").read_text())["state"]
    assert state["settings"] == kept_settings(tree)
    unchanged = path.read_bytes()
    start.update_config(run, start.resumed_run(run, []))
    assert path.read_bytes() == unchanged


def without_recipe(tree: dict[str, Any]) -> None:
    del tree["recipe"]  # as written before a version knew the section


@pytest.mark.slow
@pytest.mark.parametrize("edit", [without_recipe, sets("recipe", None), sets("recipe.level", "gpu")])
def test_what_a_config_is_said_to_be_decides_nothing_on_resume(run: Path, edit: Edit) -> None:
    tree = read_yaml(run / "config.yaml")
    assert tree["recipe"]["name"] == "DiffusionNFT"
    assert not [key for key in kept_settings(tree) if key.startswith("recipe")]
    edit_file(run, edit)
    edited = read_yaml(run / "config.yaml")
    outcome = train(start.resumed_run(run, ["iterations=3"]), run, resume=True)
    assert outcome.summary["iterations"] == 3
    assert read_yaml(run / "config.yaml") == edited | {"iterations": 3}
    # older checkpoints of other versions may have kept it
    of_older_settings(run, kept_settings(edited) | {"recipe.level": "lab"})
    start.resumed_run(run, [])


@pytest.fixture
def served(run: Path) -> Path:
    """A run whose checkpoint was trained with answers of a server, which its config.yaml names."""
    tree = read_yaml(run / "config.yaml")
    engine = {"name": "vllm", "url": "http://127.0.0.1:8000", "concurrency": 4}
    tree["modality"] = {"name": "gui", "model": "lab:screens", "dialect": "plain", "engine": engine}
    (run / "config.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    of_older_settings(run, kept_settings(tree))
    return run


MOVED = {"url": "http://10.0.0.7:9000", "retries": 40, "timeout_seconds": 60.0}


@pytest.mark.slow
def test_a_run_goes_on_with_a_server_that_moved_and_its_config_says_where(served: Path) -> None:
    before = read_yaml(served / "config.yaml")
    config = start.resumed_run(served, [f"modality.engine.{name}={value}" for name, value in MOVED.items()])
    engine = before["modality"]["engine"] | MOVED
    assert config.modality["engine"] == engine
    start.update_config(served, config)
    assert read_yaml(served / "config.yaml") == before | {"modality": before["modality"] | {"engine": engine}}
    start.refuse_edits(served, served / "checkpoints/000002")


@pytest.mark.slow
def test_the_address_of_a_server_may_be_edited_whether_or_not_the_checkpoint_kept_it(served: Path) -> None:
    path = served / "config.yaml"
    tree = read_yaml(path)
    for kept in (
        {},
        {"modality.engine.url": tree["modality"]["engine"]["url"]},
    ):  # the second as an older mmrl wrote it
        of_older_settings(served, kept_settings(tree) | kept)
        moved = tree | {"modality": tree["modality"] | {"engine": tree["modality"]["engine"] | MOVED}}
        path.write_text(yaml.safe_dump(moved))
        assert start.resumed_run(served, []).modality["engine"]["url"] == MOVED["url"]


@pytest.mark.slow
@pytest.mark.parametrize("name, value", [("name", "other"), ("folder", "/scratch"), ("concurrency", 8)])
def test_all_else_of_an_engine_stays(served: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"may be overridden, got 'modality.engine.{name}="):
        start.resumed_run(served, [f"modality.engine.{name}={value}"])
    path = served / "config.yaml"
    tree = read_yaml(path)
    tree["modality"]["engine"][name] = value
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=rf"modality.engine.{name}: .*, {value!r} now"):
        start.resumed_run(served, [])


def test_a_run_without_an_engine_gets_none_on_resume(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no modality\.engine whose settings could be overridden"):
        start.resumed_run(run, ["modality.engine.url=http://127.0.0.1:1"])
    with pytest.raises(ConfigError, match=r"only iterations.* may be overridden, got 'modality.engine="):
        start.resumed_run(run, ["modality.engine={name: vllm}"])
    assert not (run / LOCK).exists()


@pytest.mark.slow
def test_a_run_of_before_settings_were_kept_resumes_and_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_older_settings(run, None)
    train(start.resumed_run(run, ["iterations=3"]), run, resume=True)
    assert "of an older mmrl, which kept no settings: whether config.yaml changed cannot be known" in said(capsys)
    state = json.loads((run / "checkpoints/000003/state.json").read_text())["state"]
    assert state["settings"] == kept_settings(read_yaml(run / "config.yaml"))


@pytest.mark.slow
def test_another_version_is_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(run, lambda state: state | {"mmrl": "0.0.7"})
    train(start.resumed_run(run, ["iterations=3"]), run, resume=True)
    assert "its checkpoint was written by mmrl 0.0.7, this is" in said(capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage, missing, is_counted",
    [
        (lambda content: content[: content.index(b"\n") + 1], 1, True),
        (lambda content: b"\0" * len(content), 2, True),
        (lambda content: content[:-2], 1, False),
        (lambda content: content, 0, False),
    ],
    ids=["half", "zeros", "last bracket, of before", "whole, of before"],
)
def test_lines_of_metrics_that_are_missing_are_counted_and_the_run_goes_on(
    run: Path,
    damage: Callable[[bytes], bytes],
    missing: int,
    is_counted: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not is_counted:
        rewrite(run, lambda state: state | {"progress": without(state["progress"], "logged")})
    log = run / "metrics.jsonl"
    log.write_bytes(damage(log.read_bytes()))
    train(start.resumed_run(run, ["iterations=3"]), run, resume=True)
    told = re.findall(r"metrics.jsonl: (\d) lines? (?:is|are) missing of those up to iteration 2", said(capsys))
    assert told == ([str(missing)] if missing else [])
    assert len(log.read_bytes().splitlines()) == 3 - missing
    state = json.loads((run / "checkpoints/000003/state.json").read_text())["state"]
    assert state["progress"]["logged"] == 3 - missing, "so that it is said once"


def test_lists_empty_sections_and_kinds_of_numbers_are_told_apart() -> None:
    before = kept_settings({"a": {"b": [1, {"c": None}]}, "e": {}, "f": 1, "iterations": 3, "checkpoint": {"keep": 2}})
    assert before == {"a.b.0": 1, "a.b.1.c": None, "e": {}, "f": 1}
    now = kept_settings({"a": {"b": [1, {"c": 0}]}, "e": [], "f": 1.0, "iterations": 5})
    assert differences(before, now) == ["a.b.1.c: None before, 0 now", "e: {} before, [] now", "f: 1 before, 1.0 now"]
    many = {f"k{number:02d}": 0 for number in range(25)}
    assert len(differences(many, {})) == 21 and differences(many, {})[-1] == "and 5 more"
    assert differences(before, dict(before)) == []


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def without(state: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != key}


def of_older_settings(run: Path, settings: dict[str, Any] | None) -> None:
    rewrite(run, lambda state: state | {"settings": settings})


def rewrite(run: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Changes the state of all checkpoints, and their manifests with it."""
    for path in (run / "checkpoints").iterdir():
        content = json.loads((path / "state.json").read_text())
        (path / "state.json").write_text(json.dumps(content | {"state": change(content["state"])}))
        write_manifest(path)


@pytest.mark.slow
def test_a_config_that_is_edited_while_the_model_is_built_is_not_what_was_trained_with(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = start.resumed_run(run, ["iterations=3"])

    def slow(checked: Any) -> Any:
        edit_file(run, sets("optimizer.learning_rate", 0.3))
        return build(checked)

    monkeypatch.setattr("mmrl.commands.train.build", slow)
    train(config, run, resume=True)
    with pytest.raises(ConfigError, match=r"optimizer\.learning_rate: 0\.0003 before, 0\.3 now"):
        start.resumed_run(run, ["iterations=4"])


@pytest.mark.slow
def test_a_config_that_is_edited_before_the_model_is_built_ends_the_start(run: Path) -> None:
    config = start.resumed_run(run, ["iterations=3"])
    edit_file(run, sets("seed", 5))
    with pytest.raises(ConfigError, match=r"was changed while the run started:\s+seed: 0 before, 5 now"):
        train(config, run, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a link to nowhere", "a file"])
def test_a_run_without_the_checkpoints_that_it_must_have_had_is_not_begun_again(run: Path, left: str) -> None:
    folder, metrics = run / "checkpoints", (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(folder)
    if left == "an empty folder":
        folder.mkdir()
    elif left == "a link to nowhere":
        folder.symlink_to(run / "unmounted")
    elif left == "a file":
        folder.write_text("")
    words = "no checkpoint to go on from" if left in ("nothing", "an empty folder") else "cannot be read"
    with pytest.raises(ConfigError, match=words):
        train(start.resumed_run(run, ["iterations=3", "checkpoint.every=5"]), run, resume=True)
    assert (run / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.slow
def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_again(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "summary.json").unlink()
    edit_file(run, sets("checkpoint.every", 10))
    train(start.resumed_run(run, ["checkpoint.every=1"]), run, resume=True)
    assert len((run / "metrics.jsonl").read_text("utf-8").splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.jsonl", "lock.json", "checkpoints/000002/manifest.json"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_plain_file_is_named_and_not_waited_for(
    run: Path, name: str, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    (run / name).unlink(missing_ok=True)
    make(run / name)
    if name.startswith("checkpoints"):
        train(start.resumed_run(run, []), run, resume=True)
        assert "manifest.json is damaged: it cannot be read (it is no plain file); it was set aside" in caplog.text
        return
    with pytest.raises(ConfigError, match=rf"{name}.*is no plain file"):
        train(start.resumed_run(run, []), run, resume=True)


@pytest.mark.slow
def test_a_file_that_looks_unfinished_is_cleared_away(run: Path) -> None:
    left = run / "checkpoints/.tmp-x"
    left.touch()
    train(start.resumed_run(run, []), run, resume=True)
    assert not left.exists()


def test_the_present_name_of_a_renamed_plug_in_is_no_edit() -> None:
    before = {"advantage.name": "entropy_shaped", "advantage.inner.name": "entropy_shaped", "seed": 0}
    now = {key: "entropy_advantage" if value == "entropy_shaped" else value for key, value in before.items()}
    assert differences(before, now) == []
    assert differences(before, now | {"advantage.name": "grpo"}) == [
        "advantage.name: 'entropy_shaped' before, 'grpo' now"
    ]
