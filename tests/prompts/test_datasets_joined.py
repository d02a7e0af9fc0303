"""Data sets that have several rows for each prompt: DSG-1k and DPG-Bench."""

import json
from pathlib import Path

import pytest

from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.prompts.datasets import load_dataset_prompts

# fields as in dsg-1k-anns.csv of j-min/DSG, 3f844c1
HEADER = "item_id,text,keywords,proposition_id,dependency,category_broad,question_natural_language\n"
BENCH = """vrd_57,bench near trees,bench,1,0,entity,Is there a bench?
vrd_57,bench near trees,trees,2,0,entity,Are there trees?
vrd_57,bench near trees,"bench, trees, near",3,"1,2",relation,Is the bench near the trees?
"""
PHOTO = "midjourney_41,Disney graveyard photo,photo,1,0,global,Is this a photo?\n"


def read(folder: Path, rows: str, **settings: object) -> tuple[Prompt, ...]:
    (folder / "rows.csv").write_text(HEADER + rows)
    return load_dataset_prompts(
        DatasetSettings.model_validate({"path": str(folder / "rows.csv"), "layout": "dsg", **settings})
    )


def test_the_rows_of_a_prompt_are_one(tmp_path: Path) -> None:
    bench, photo = read(tmp_path, BENCH + PHOTO)
    assert (bench.text, photo.text) == ("bench near trees", "Disney graveyard photo")
    assert bench.target["questions"] == ("Is there a bench?", "Are there trees?", "Is the bench near the trees?")
    assert bench.target["parents"] == ((), (), (0, 1)) and photo.target["parents"] == ((),)
    assert bench.target["category_broad"] == ["entity", "entity", "relation"]
    assert (bench.target["source"], photo.target["source"]) == ("vrd", "midjourney")


def test_rows_of_a_prompt_need_not_follow_each_other(tmp_path: Path) -> None:
    first, *rest = BENCH.splitlines(keepends=True)
    assert [len(one.target["questions"]) for one in read(tmp_path, first + PHOTO + "".join(rest))] == [3, 1]
    assert [one.text for one in read(tmp_path, first + PHOTO + "".join(rest), limit=1)] == ["bench near trees"]


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text((HEADER + BENCH).replace("item_id", "id").replace("text", "caption"))
    columns = {"item_id": "id", "text": "caption"}
    (bench,) = load_dataset_prompts(DatasetSettings(path=str(tmp_path / "rows.csv"), layout="dsg", columns=columns))
    assert bench.text == "bench near trees" and len(bench.target["questions"]) == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('3,"1,2"', '3,"1,4"', r"rows.csv, line 2 and 2 more: dependency names the questions \[4\], and there are"),
        ("2,0", "1,0", r"proposition_id of its questions must differ and not be 0, got \[1, 1, 3\]"),
        ("1,0", "0,0", "must differ and not be 0"),
        ("1,0", "one,0", "proposition_id must be a number, got 'one'"),
        ("2,0", "2,none", "dependency must be numbers with commas between them, got 'none'"),
        ("Are there trees?", "", "question_natural_language"),
        (
            "vrd_57,bench near trees,trees",
            ",bench near trees,trees",
            "it needs a text or a number as 'item_id'",
        ),
    ],
)
def test_broken_rows_are_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, BENCH.replace(old, new, 1))


def test_rows_of_json_may_have_numbers_and_a_key_that_is_none_is_named(tmp_path: Path) -> None:
    rows = [{"item_id": 7, "text": "a", "proposition_id": n, "dependency": n - 1, "question_natural_language": "Is it?"}
            for n in (1, 2)]  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (one,) = load_dataset_prompts(DatasetSettings(path=str(file), layout="dsg"))
    assert one.target["parents"] == ((), (0,))
    file.write_text(json.dumps(rows[0] | {"item_id": ["a"]}))
    with pytest.raises(ConfigError, match=r"rows.jsonl, line 1: it needs a text or a number .* got \['a'\]"):
        load_dataset_prompts(DatasetSettings(path=str(file), layout="dsg"))
