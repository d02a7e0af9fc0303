"""Data sets as sources of prompts: files and folders, bad rows, limits, templates."""

import csv
import hashlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.config import DatasetSettings, MixedPrompts, PromptSettings
from mmrl.core.templates import TEMPLATES
from mmrl.prompts import datasets
from mmrl.prompts.datasets import load_dataset_prompts, write_synthetic
from mmrl.prompts.stream import template_metrics
from mmrl.system.errors import ConfigError
from tests.dataset_files import lines, questions, texts


def test_json_lines_json_and_csv_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [{"prompt": "one\u2028line, \u00e9", "answer": "007"}, {"prompt": "two\nlines", "answer": "2024-01-02"}]
    (tmp_path / "b.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "c.json").write_text("\ufeff" + "\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    with (tmp_path / "d.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["prompt", "answer"], *(list(row.values()) for row in rows)])
    for path in (lines(tmp_path / "a.jsonl", rows), *(str(tmp_path / name) for name in ("b.json", "c.json", "d.csv"))):
        prompts = load_dataset_prompts(DatasetSettings(path=path))
        assert [prompt.text for prompt in prompts] == [row["prompt"] for row in rows]
        assert [prompt.target for prompt in prompts] == [{"answer": "007"}, {"answer": "2024-01-02"}]  # as written


def test_files_of_a_list_follow_each_other_each_beside_its_images(tmp_path: Path) -> None:
    first = write_synthetic("vlm_r1", tmp_path / "a", 2, 0)
    second = write_synthetic("vlm_r1", tmp_path / "b", 1, 1)
    for part in ("a", "b"):
        for image in (tmp_path / part / "images").iterdir():
            shutil.move(image, tmp_path / part)
    together = load_dataset_prompts(DatasetSettings(path=(str(first.path), str(second.path)), layout="vlm_r1"))
    assert len(together) == 3
    assert together[2].target["box"] != together[0].target["box"]


def test_an_image_folder_is_read_by_its_metadata(tmp_path: Path) -> None:
    made = write_synthetic("columns", tmp_path / "source", 3, 0)
    rows = [json.loads(line) for line in Path(str(made.path)).read_text().splitlines()]
    folder = tmp_path / "source" / "images"
    lines(folder / "metadata.jsonl", [{"file_name": row["images"][0], "prompt": row["prompt"]} for row in rows])
    prompts = load_dataset_prompts(DatasetSettings(path=str(folder)))
    assert [len(prompt.media) for prompt in prompts] == [1, 1, 1]
    lines(folder / "metadata.jsonl", [{"file_name": "0000.png", "prompt": "a"}, {"file_name": "9.png", "prompt": "b"}])
    with pytest.raises(ConfigError, match=r"images/metadata\.jsonl, line 2: there is no image file '9\.png'"):
        texts(str(folder))


@pytest.mark.slow
def test_a_folder_of_parquet_files_is_a_data_set_with_splits(tmp_path: Path) -> None:
    for split, rows in (("train", 3), ("test", 2)):
        made = write_synthetic("screenspot_hf", tmp_path / split, rows, 0)
        (tmp_path / "all" / "data").mkdir(parents=True, exist_ok=True)
        shutil.copy(str(made.path), tmp_path / "all" / "data" / f"{split}-00000-of-00001.parquet")
    settings = DatasetSettings(path=str(tmp_path / "all"), layout="screenspot_hf", cache=str(tmp_path / "cache"))
    before = sorted(path.name for path in (tmp_path / "all").rglob("*"))
    for asked_for, count in ((None, 3), ("test", 2), ("train[:1]", 1)):
        assert len(load_dataset_prompts(settings.model_copy(update={"split": asked_for}))) == count
    with pytest.raises(ConfigError, match=r"cannot load .*Unknown split"):
        load_dataset_prompts(settings.model_copy(update={"split": "validation"}))
    assert sorted(path.name for path in (tmp_path / "all").rglob("*")) == before  # nothing is written beside the data


@pytest.mark.slow
def test_images_of_parquet_stay_in_the_file(tmp_path: Path) -> None:
    settings = write_synthetic("r1_v", tmp_path / "odd [name]*", 2, 0)
    first, second = (prompt.media[0] for prompt in load_dataset_prompts(settings))
    assert first.content.obj is second.content.obj, "two views of the same mapped memory"  # type: ignore[attr-defined]
    assert first.load().mode == "RGB" and first.load().size != second.load().size


@pytest.mark.slow
def test_keys_that_arrow_filled_with_none_are_dropped(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    image = (write_synthetic("columns", tmp_path, 1, 0), (tmp_path / "images" / "0000.png").read_bytes())[1]
    rows = [
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "What is 1 + 1?"}]}], "depth": None},
        {"prompt": [{"role": "user", "content": [{"type": "image", "image": {"bytes": image}}]}], "depth": 3},
    ]
    rows[1]["prompt"][0]["content"].append({"type": "text", "text": "What is this?"})  # type: ignore[index]
    table = pyarrow.Table.from_pylist(rows)
    assert table.to_pylist()[0]["prompt"][0]["content"][0].keys() == {"type", "text", "image"}  # filled
    pyarrow.parquet.write_table(table, tmp_path / "mixed.parquet")
    first, second = load_dataset_prompts(
        DatasetSettings(path=str(tmp_path / "mixed.parquet"), layout="trl", cache=str(tmp_path / "cache"))
    )
    assert (first.text, first.media, first.target) == ("What is 1 + 1?", (), {})
    assert (second.text, len(second.media), second.target) == ("<image>What is this?", 1, {"depth": 3})


def test_rows_without_an_image_stand_among_rows_with_one(tmp_path: Path) -> None:
    made = write_synthetic("columns", tmp_path, 1, 0)
    rows = [json.loads(Path(str(made.path)).read_text()), {"prompt": "1 + 1?", "images": []}, {"prompt": "2 + 2?"}]
    mixed = DatasetSettings(path=lines(tmp_path / "mixed.jsonl", rows), images=made.images)
    assert [len(prompt.media) for prompt in load_dataset_prompts(mixed)] == [1, 0, 0]


BAD = [*questions("a"), "{", "", "[1]", {"prompt": 3}, *questions("b"), '"x"', {"answer": 3}]


def test_the_first_bad_row_fails_by_file_and_line(tmp_path: Path) -> None:
    path = lines(tmp_path / "bad.jsonl", BAD)
    with pytest.raises(ConfigError, match=r"prompts: .*bad\.jsonl, line 2: it is not JSON: .* at character 2"):
        texts(path)
    (tmp_path / "bad.json").write_text(json.dumps([{"prompt": "a"}, {"prompt": ""}]))
    with pytest.raises(ConfigError, match=r"bad\.json, row 2: its prompt is empty"):
        texts(str(tmp_path / "bad.json"))
    (tmp_path / "bad.csv").write_text('prompt,answer\n"two\nlines",1\nb\n')
    with pytest.raises(ConfigError, match=r"bad\.csv, line 4: it has 1 cells, the header has 2"):
        texts(str(tmp_path / "bad.csv"))


def test_bad_rows_can_be_skipped_and_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = lines(tmp_path / "bad.jsonl", BAD)
    with caplog.at_level(logging.WARNING):
        assert texts(path, bad_rows="skip") == ["a", "b"]
    said = [record.message for record in caplog.records]
    assert [message.split(f"skipped {path}, ")[-1].split(":")[0] for message in said[:-1]] == [
        "line 2", "line 4", "line 5", "line 7", "line 8",
    ]  # fmt: skip
    assert said[-1] == f"prompts: skipped 5 of 7 rows of {path}"


def test_many_bad_rows_are_not_all_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = lines(tmp_path / "bad.jsonl", [*questions("a"), *["{"] * 50])
    assert texts(path, bad_rows="skip") == ["a"]
    assert len(caplog.records) == datasets.LISTED + 1
    assert caplog.records[-1].message.startswith("prompts: skipped 50 of 51 rows")


def test_a_file_without_a_good_row_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl holds no prompt$"):
        texts(lines(tmp_path / "none.jsonl", ["", ""]))
    with pytest.raises(
        ConfigError, match=r"holds no prompt; all of 2 rows are bad, the first: .*line 1: it is not JSON"
    ):
        texts(lines(tmp_path / "all.jsonl", ["{", "{"]), bad_rows="skip")


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe{", b"[" * 100_000, b'{"prompt": ' + b"9" * 5000 + b"}", b'[{"prompt": "a", "prompt": "b"}]'],
)
def test_what_cannot_be_parsed_is_a_bad_row(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b'{"prompt": "a"}\n' + content)
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 2: "):
        texts(str(tmp_path / "bad.jsonl"))
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.json"):
        texts(str(tmp_path / "bad.json"))


def test_a_limit_takes_the_first_rows_or_random_ones(tmp_path: Path) -> None:
    names = [f"p{number}" for number in range(30)]
    path = lines(tmp_path / "many.jsonl", [*questions(*names), "{"])  # the bad one is never read
    assert texts(path, limit=4) == names[:4]
    path = lines(tmp_path / "many.jsonl", questions(*names))
    drawn = texts(path, limit=10, seed=1)
    assert len(set(drawn)) == 10 and set(drawn) <= set(names) and drawn != names[:10]
    assert drawn == texts(path, limit=10, seed=1) != texts(path, limit=10, seed=2)
    assert sorted(texts(path, seed=1)) == sorted(names)


def test_a_template_stands_around_every_prompt(tmp_path: Path) -> None:
    rows = [{"prompt": "What {prompt} is {row.answer}?", "history": "none {prompt}", "answer": "secret"}]
    path = lines(tmp_path / "a.jsonl", rows)
    template = "Before {row.history}: {prompt} Answer in \\boxed{answer} or {'x': 1}."
    assert texts(path, template=template) == [
        "Before none {prompt}: What {prompt} is {row.answer}? Answer in \\boxed{answer} or {'x': 1}."
    ]


def test_a_template_has_a_name_or_is_a_text(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"prompt": "How many?", "answer": "3"}])
    for name in ("think", "plan", "code", "knowledge", "examples"):
        (text,) = texts(path, template=name)
        assert text.startswith("How many?\n\n") and f"<{name}> </{name}>" in text
        assert "<answer> </answer>" in text and "\\boxed{}" in text and "{prompt}" not in text
    with pytest.raises(ValueError, match=r"or a name of think, plan, code, knowledge, examples"):
        DatasetSettings(path=str(path), template="thinks")


def test_a_run_logs_the_hash_of_each_sources_template(tmp_path: Path) -> None:
    def digest(text: str) -> float:
        return float(int(hashlib.sha256(text.encode()).hexdigest()[:6], 16))

    one = DatasetSettings(path="a.jsonl", template="Q: {prompt}")
    assert template_metrics(PromptSettings(train=one)) == {"prompts/template": digest("Q: {prompt}")}
    assert template_metrics(PromptSettings(train="lab:shapes/train")) == {}
    named = one.model_copy(update={"template": "examples"})
    parts = tuple(MixedPrompts(source=source) for source in (named, "lab:shapes/train", one))
    found = template_metrics(PromptSettings(train=parts))
    assert found == {
        "prompts/template_0": digest(TEMPLATES["examples"]),
        "prompts/template_2": digest("Q: {prompt}"),
    }


def test_a_template_shows_neither_the_answer_nor_what_is_not_there(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"prompt": "?", "answer": "secret", "history": "x"}])
    for name in ("answer", "histroy"):
        with pytest.raises(ConfigError, match=f"line 1: the template names the field '{name}' of the row"):
            texts(path, template=f"{{row.{name}}} {{prompt}}")


def test_marks_of_a_template_count_too(tmp_path: Path) -> None:
    made = write_synthetic("screenspot", tmp_path, 2, 0)
    marked = made.model_copy(update={"template": "First <image> then {prompt}"})
    assert load_dataset_prompts(marked)[0].text.startswith("First <image> then open the")
    with pytest.raises(ConfigError, match="its text has 2 marks <image>, but it has 1 images"):
        load_dataset_prompts(made.model_copy(update={"template": "<image><image>{prompt}"}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layout": "screen_spot"}, r"unknown layout 'screen_spot' \(did you mean 'screenspot'\?\)"),
        ({"columns": {"promt": "q"}}, r"layout 'columns' has no field 'promt' \(did you mean 'prompt'\?\)"),
        ({"path": "missing.jsonl"}, "there is no file 'missing.jsonl'"),
        ({"path": "missing.parquet"}, "there is no file 'missing.parquet'"),
        ({"path": "a.xlsx"}, "path needs a .jsonl, .json, .csv, .parquet, .txt file, a folder or the name owner/name"),
        ({"path": "https://example.org/a.jsonl"}, "there is no file 'https://example.org/a.jsonl'"),
        ({"path": ()}, "holds no prompt"),
        ({"split": "test"}, "split and subset are for folders and hub names"),
        ({"images": "nowhere"}, "images: there is no folder 'nowhere'"),
    ],
)
def test_settings_that_cannot_work_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "a.jsonl", questions("a"))
    with pytest.raises(ConfigError, match=message):
        load_dataset_prompts(DatasetSettings(**({"path": "a.jsonl"} | settings)))
