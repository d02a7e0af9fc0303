"""Data and settings of strangers: depth, digits, twins, quotes, boxes at the edge; each is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.config import DatasetSettings, check_config, read_yaml
from mmrl.labs.shapes.world import attributes
from mmrl.prompts.datasets import load_dataset_prompts, read_json
from mmrl.prompts.stream import load_prompts
from mmrl.system import spelling
from mmrl.system.errors import ConfigError
from tests.core.test_config import SMALLEST
from tests.vision_twins import picture


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("levels", [150, 400, 900, 100_000])
def test_a_row_that_is_nested_too_deep_is_a_bad_row(levels: int, tmp_path: Path) -> None:
    rows = f'{{"prompt": "a"}}\n{{"prompt": "b", "extra": {nested(levels)}}}\n'
    (tmp_path / "deep.jsonl").write_text(rows)
    settings = DatasetSettings(path=str(tmp_path / "deep.jsonl"), bad_rows="skip")
    assert [prompt.text for prompt in load_dataset_prompts(settings)] == ["a"]
    with pytest.raises(ConfigError, match=r"deep.jsonl, line 2"):
        load_prompts(str(tmp_path / "deep.jsonl"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"prompt": "a", "answer": ' + "9" * 5000 + "}", "line 1 cannot be read: Exceeds the limit"),
        ('{"prompt": "a", "prompt": "b"}', "line 1 cannot be read: the key 'prompt' stands twice"),
        ('{"prompt": "a", "box": [1, NaN, 3, 4]}', "line 1 cannot be read: Out of range float values"),
        ('{"prompt": "a \\ud800"}', "line 1: its prompt is no Unicode text"),
        ('{"prompt": "<image> a"}', "line 1: its text has 1 marks <image>, but it has 0 images"),
    ],
)
def test_a_plain_file_is_read_as_strictly(row: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_text(row + "\n")
    with pytest.raises(ConfigError, match=message):
        load_prompts(str(tmp_path / "plain.jsonl"))


def located(tmp_path: Path, box: list[float]) -> Any:
    (tmp_path / "image.png").write_bytes(bytes(picture(100, 50, 0).content or b""))
    row = {"prompt": "where?", "image": "image.png", "box": box}
    (tmp_path / "boxes.jsonl").write_text(json.dumps(row) + "\n")
    return load_dataset_prompts(DatasetSettings(path=str(tmp_path / "boxes.jsonl")))[0].target["box"]


def test_a_box_that_has_no_area_on_the_image_is_bad(tmp_path: Path) -> None:
    assert located(tmp_path, [99, 1, 100.9, 30]) == (99, 1, 100, 30)
    for box in ([100, 1, 100.9, 30], [-0.9, 1, 0, 30], [1, 50, 30, 50.5]):
        with pytest.raises(ConfigError, match="lies outside of the image of 100 x 50 pixels"):
            located(tmp_path, box)


def table(tmp_path: Path, text: str, **settings: Any) -> list[str]:
    (tmp_path / "table.csv").write_text(text)
    prompts = load_dataset_prompts(DatasetSettings(path=str(tmp_path / "table.csv"), **settings))
    return [prompt.text for prompt in prompts]


def test_a_cell_may_be_long(tmp_path: Path) -> None:
    assert table(tmp_path, f"prompt,answer\n{'x' * 200_000},1\n") == ["x" * 200_000]


def test_a_quote_that_is_never_closed_swallows_nothing(tmp_path: Path) -> None:
    text = 'prompt,answer\na,1\n"b,2\nc,3\nd,4\n'
    for bad_rows in ("fail", "skip"):
        with pytest.raises(ConfigError, match=r"table.csv', line 3: .*is a quote never closed\?"):
            table(tmp_path, text, bad_rows=bad_rows)


def test_text_behind_a_quote_is_a_bad_row(tmp_path: Path) -> None:
    text = 'prompt,answer\na,1\n"b"b,2\nc,3\n'
    assert table(tmp_path, text, bad_rows="skip") == ["a", "c"]
    with pytest.raises(ConfigError, match=r"table.csv, line 3: it is not CSV"):
        table(tmp_path, text)


def test_an_image_without_a_name_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "image": ""}\n')
    with pytest.raises(ConfigError, match="line 1: the field 'image' is empty; leave it out where there is no image"):
        load_dataset_prompts(DatasetSettings(path=str(tmp_path / "rows.jsonl")))


@pytest.mark.parametrize("path", ["", " "])
def test_a_data_set_without_a_path_is_not_the_working_folder(path: str) -> None:
    with pytest.raises(ConfigError, match="prompts: path is empty"):
        load_dataset_prompts(DatasetSettings(path=path))


@pytest.mark.parametrize(
    ("name", "content"), [("folder.py", "import datasets\n"), ("README.md", "---\nconfigs: [a: {\n---\n")]
)
def test_a_folder_that_datasets_cannot_load_is_named(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).write_text(content)
    (tmp_path / "folder" / "rows.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(ConfigError, match=r"prompts: cannot load '.*folder'"):
        load_dataset_prompts(DatasetSettings(path=str(tmp_path / "folder")))


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.parametrize("text", ["[" * 1000 + "]" * 1000, "9" * 5000])
def test_settings_that_yaml_cannot_read_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"seed: {text}\n")
    with pytest.raises(ConfigError, match=r"config.yaml is not YAML"):
        read_yaml(tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match="is not YAML"):
        check_config(SMALLEST, [f"seed={text}"])


@pytest.mark.parametrize("betas", ["[2, 3]", "[0.9, 1]", "[-0.1, 0.9]"])
def test_betas_have_a_range(betas: str) -> None:
    with pytest.raises(ConfigError, match=r"config.optimizer.betas"):
        check_config(SMALLEST, [f"optimizer.betas={betas}"])


@pytest.mark.slow
@pytest.mark.timeout(10)  # in the square of their number it would be minutes
def test_names_without_number_or_end_are_read_in_time(tmp_path: Path) -> None:
    keys = ",".join(f'"{number}": 0' for number in range(50_000))
    with pytest.raises(ConfigError, match="the key 'twice' stands twice in an object"):
        read_json(f'{{{keys}, "twice": 0, "twice": 0}}')
    (tmp_path / "wide.csv").write_text(",".join(["prompt", *map(str, range(50_000)), "7"]) + "\n")
    with pytest.raises(ConfigError, match="has '7' more than once"):
        load_dataset_prompts(DatasetSettings(path=str(tmp_path / "wide.csv")))
    assert (
        spelling.nearest("a" * 10**6, ["b" * 10**6]) is None
        and spelling.nearest("promt", ["prompt", "x" * 10**6]) == "prompt"
    )


def test_a_prompt_without_end_is_compared_with_those_of_a_lab_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def nearest(text: str, known: object, **settings: object) -> list[str]:
        compared.append(text)
        return ["red"]

    monkeypatch.setattr("difflib.get_close_matches", nearest)
    with pytest.raises(ValueError, match=r"\(did you mean 'red'\?\)"):
        attributes(["a" * 10**6])
    assert compared == ["a" * 100]


@pytest.mark.parametrize("name", ["some.jsonl", "section"])
def test_a_file_that_takes_long_to_read_is_told_of(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mmrl.prompts.row_files.SILENCE", 0.0)
    path = tmp_path / "some.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert len(load_prompts(DatasetSettings(path=str(path)) if name == "section" else str(path))) == 2
    assert f"prompts: {path}: 1 rows read so far" in caplog.text
