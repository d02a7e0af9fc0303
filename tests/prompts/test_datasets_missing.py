"""Data sets that are not on this machine, and rows that lack what a reward needs."""

import json
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.config import DatasetSettings, PromptSettings, check_config
from mmrl.core.plugins import build
from mmrl.core.reward_batches import Demands
from mmrl.prompts.datasets import load_dataset_prompts, write_synthetic
from mmrl.prompts.stream import load_prompts, tiny_prompts
from mmrl.system.errors import ConfigError
from tests.dataset_files import lines, questions, texts

NEEDS_BOX, NEEDS_ANSWER = (Demands(((name, build("rewards", {"name": name})),)) for name in ("box_iou", "exact_answer"))
NEEDS_BOTH = Demands(NEEDS_ANSWER.rewards + NEEDS_BOX.rewards)


def test_a_hub_name_is_loaded_by_its_split_and_subset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets as library

    given: list[Any] = []

    def load(name: str, subset: str | None, **settings: Any) -> Any:
        given.append((name, subset, settings["split"], settings["cache_dir"]))
        return library.Dataset.from_list([{"problem": "?", "answer": "1"}])

    monkeypatch.setattr(library, "load_dataset", load)
    settings = DatasetSettings(path="hiyouga/geometry3k", layout="geometry3k", split="test", subset="b", cache="c")
    assert load_dataset_prompts(settings)[0].target == {"answer": "1"}
    assert given == [("hiyouga/geometry3k", "b", "test", "c")]


def test_a_hub_that_cannot_be_reached_is_the_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets as library

    def load(*given: Any, **settings: Any) -> Any:
        raise ConnectionError("no network")

    monkeypatch.setattr(library, "load_dataset", load)
    with pytest.raises(ConfigError, match=r"cannot load 'some/data' \(neither a file or folder here.*no network"):
        texts("some/data")


def test_a_data_set_that_is_not_here_has_a_synthetic_twin(tmp_path: Path) -> None:
    here = DatasetSettings(path=lines(tmp_path / "here.jsonl", questions(*"abcdefghijkl")), limit=300)
    away = DatasetSettings(
        path="some/data", layout="gui_g2", template="Go: {prompt}", subset="x", split="test", limit=2
    )
    settings = PromptSettings.model_validate(
        {
            "train": [{"source": here}, {"source": away, "weight": 2}, {"source": "lab:shapes/train"}],
            "held_out": away,
        }
    )
    tiny = tiny_prompts(settings, tmp_path / "data", seed=0)
    assert [part.weight for part in tiny.train] == [1, 2, 1]  # type: ignore[union-attr]
    first, second, third = [part.source for part in tiny.train]  # type: ignore[union-attr]
    assert [prompt.text for prompt in load_prompts(first)] == list("abcdefgh")  # the real rows, the first of them
    assert third == "lab:shapes/train"
    for source in (second, tiny.held_out):
        assert source is not None
        prompts = load_prompts(source)
        assert len(prompts) == 8
        assert all(prompt.text.startswith("Go: open the") and "box" in prompt.target for prompt in prompts)


@pytest.mark.parametrize("count", [1, 2])
def test_a_synthetic_row_has_as_many_images_as_the_policy_takes(tmp_path: Path, count: int) -> None:
    settings = PromptSettings(train=DatasetSettings(path="some/data"))
    tiny = tiny_prompts(settings, tmp_path / "data", seed=0, roles=["image"] * count)
    assert isinstance(tiny.train, DatasetSettings)
    assert {len(prompt.media) for prompt in load_prompts(tiny.train)} == {count}


CONFIG: dict[str, Any] = {
    "iterations": 1,
    "group_size": 2,
    "prompts_per_iteration": 2,
    "modality": {"name": "sd3", "model": "lab:shapes", "height": 32, "width": 32, "max_sequence_length": 1},
    "sampler": {"name": "flow_sde", "num_steps": 2, "sigmas": "uniform"},
    "rewards": [{"name": "jpeg_size"}],
    "advantage": {"name": "grpo"},
    "loss": {"name": "grpo"},
}


@pytest.mark.slow  # a whole run, small
def test_a_plain_check_names_missing_data_and_a_tiny_one_runs_without() -> None:
    from mmrl.commands.check import check_tiny, plan_summary

    config = check_config(CONFIG | {"prompts": {"train": {"path": "no/data.parquet", "layout": "easyr1"}}})
    assert plan_summary(config)["data that is not here, which train needs"] == "no/data.parquet"
    assert check_tiny(config)["is_good"]


def test_a_row_without_what_a_reward_needs_is_a_bad_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It names the file, the line and the column that was probably meant."""
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "box": [1, 1, 3, 3]},
        {"prompt": "b", "bbox": [1, 1, 3, 3]},
        {"prompt": "c"},
    ]
    write_synthetic("columns", tmp_path, 1, 0)  # an image for the boxes
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row | {"image": "images/0000.png"}) + "\n" for row in rows), encoding="utf-8")
    settings = DatasetSettings(path=str(path))
    assert len(load_dataset_prompts(settings)) == 3
    with pytest.raises(ConfigError) as failure:
        load_dataset_prompts(settings, NEEDS_BOX)
    assert f"{path}, line 2: reward 'box_iou' needs 'box' in the target" in str(failure.value)
    assert "the row's fields are bbox, image, prompt; map one with columns: {box: bbox}" in str(failure.value)
    skipping = settings.model_copy(update={"bad_rows": "skip"})
    (prompt,) = load_dataset_prompts(skipping, NEEDS_BOX)
    assert prompt.text == "a" and "skipped 2 of 3 rows" in caplog.text
    mapped = settings.model_copy(update={"columns": {"box": "bbox"}, "bad_rows": "skip"})
    assert [prompt.text for prompt in load_dataset_prompts(mapped, NEEDS_BOX)] == ["b"]


def test_an_answer_that_is_no_box_is_a_bad_row_where_a_box_is_needed(tmp_path: Path) -> None:
    """VLM-R1's rows hold answers of every kind: one with an inverted box has no box, and says nothing by itself."""
    settings = write_synthetic("vlm_r1", tmp_path, 2, 0)
    path = tmp_path / "rows.jsonl"
    row, other = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    row["conversations"][1]["value"] = "[9, 7, 5, 3]"
    path.write_text("".join(json.dumps(one) + "\n" for one in (row, other)), encoding="utf-8")
    assert len(load_dataset_prompts(settings, NEEDS_ANSWER)) == 2
    with pytest.raises(ConfigError, match="line 1: reward 'box_iou' needs 'box' in the target, which layout 'vlm_r1'"):
        load_dataset_prompts(settings, NEEDS_BOTH)


def test_a_field_that_a_reward_needs_and_that_is_null_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "answer": null}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"line 2: its field 'answer', which reward 'exact_answer' needs, is null$"):
        load_dataset_prompts(DatasetSettings(path=str(path)), NEEDS_ANSWER)


def test_a_missing_field_is_answered_with_all_fields_of_the_row(tmp_path: Path) -> None:
    """Those read before it too, by their names in the file."""
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"picture": "images/0000.png", "instruction": "go"}) + "\n", encoding="utf-8")
    write_synthetic("columns", tmp_path, 1, 0)
    settings = DatasetSettings(path=str(path), layout="gui_g2", columns={"image_path": "picture"})
    with pytest.raises(ConfigError, match="it has no field 'abs_box'; its fields are instruction, picture"):
        load_dataset_prompts(settings)


def test_a_bare_file_of_prompts_names_the_line_that_lacks_a_target(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "anser": "2"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"line 2: reward 'exact_answer' needs 'answer'.*\(did you mean 'anser'\?\)"):
        load_prompts(str(path), NEEDS_ANSWER)
