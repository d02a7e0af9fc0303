"""`mmrl filter --variance`: rows whose answers differ in worth, written as the data has them."""

import base64
import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.commands import filter_rows as own
from mmrl.commands import sample_many
from mmrl.commands.filter_rows import chosen, filter_rows
from mmrl.commands.sample_many import Request
from mmrl.core.config import DatasetSettings, load_config
from mmrl.core.contracts import ConfigError
from mmrl.prompts.datasets import load_dataset_prompts
from tests.commands.test_sample_images import CONFIG
from tests.tiny_cli import CommandLine, command_line

REWARD = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from my_rewards import Constant

@dataclass(frozen=True)
class Apart(Constant):
    needs: ClassVar[frozenset[str]] = frozenset({"target.apart"})

    def score(self, batch):
        place = [batch.group[:row].eq(group).sum() for row, group in enumerate(batch.group)]
        apart = [prompt.target["apart"] for prompt in batch.prompts]
        return torch.tensor([size * (number % 2) for size, number in zip(apart, place)], dtype=torch.float32)
"""
ROWS = [
    {"prompt": "a", "image": "one/a.png", "apart": 0.5},
    {"prompt": "b", "image": "one/a.png", "apart": 0.0, "more": None},
    {"prompt": "ü", "image": "one/a.png", "apart": 1.0, "more": {"list": [1, 2.5]}},
    {"prompt": "d", "image": "one/gone.png", "apart": 1.0},
    {"prompt": "e", "image": "one/a.png"},
    {"prompt": "f", "image": "one/a.png", "apart": 1.0},
]
SETTINGS = """prompts:
  train: {path: data/rows.jsonl, bad_rows: skip, limit: 9, template: "{prompt}?"}
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """In a folder with a random tiny model and rows about a picture, which lies beside them."""
    from mmrl.modalities.gui import Gui

    made = command_line(tmp_path, monkeypatch, capsys)
    Gui(model="Qwen/Qwen2.5-VL-3B-Instruct", dialect="plain").tiny(0, tmp_path / "twin")
    Path("data/one").mkdir(parents=True)
    Image.new("RGB", (64, 40), "red").save("data/one/a.png")
    Path("data/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("apart.py").write_text(REWARD)
    text = CONFIG.replace("prompts: {train: {path: rows.jsonl}}\n", SETTINGS).replace(
        "my_rewards:Constant", "apart:Apart"
    )
    Path("mine.yaml").write_text(text)
    return made


@pytest.mark.slow
def test_rows_of_equal_answers_are_left_out_and_the_rest_is_trained_on(cli: CommandLine) -> None:
    given = ("filter", "mine.yaml", "--variance", "0.01", "--count", "4", "--out", "kept")
    ended = cli(*given)
    assert ended.code == 0, ended.err
    assert "3 of 4 rows kept; all answers were worth the same for 1, and 0 could not be judged" in ended.out
    lines = [json.loads(line) for line in Path("kept/train.jsonl").read_text().splitlines()]
    assert lines == [ROWS[0], ROWS[2], ROWS[5]], "as the data has them"
    totals = [json.loads(line)["totals"] for line in Path("kept/samples.jsonl").read_text().splitlines()]
    assert totals == [[0, 0.5, 0, 0.5], [0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 0, 1]]
    assert [float(np.var(one)) for one in totals] == [own._variance(one) for one in totals] == [0.0625, 0, 0.25, 0.25]

    settings = ended.out.splitlines()[-1].removeprefix("train on the rest with: ").split()
    assert settings == ["prompts.train.path=kept/train.jsonl", "prompts.train.images=data", "prompts.train.limit=null"]
    (source,) = [load_config("mine.yaml", settings).prompts.train]
    assert isinstance(source, DatasetSettings)
    assert [prompt.text for prompt in load_dataset_prompts(source)] == ["a?", "ü?", "f?"]

    ended = cli("filter", "mine.yaml", "--variance", "0.01", "--count", "4", "--out", "kept", "--most", "1")
    assert ended.code == 0 and "1 of 4 rows kept" in ended.out, ended.err
    assert json.loads(Path("kept/train.jsonl").read_text()) == ROWS[2], "of equal ones the first"
    ended = cli("filter", "mine.yaml", "--variance", "0.25", "--count", "4", "--out", "kept")
    assert ended.code == 1 and "no row has rewards of a variance above 0.25; the largest is 0.25" in ended.err
    assert not Path("kept/train.jsonl").exists(), "rows of a smaller variance"
    ended = cli("filter", "mine.yaml", "--variance", "0.1", "--count", "3", "--out", "kept")
    assert ended.code == 2 and "samples of another request, which differs in count 4, now 3" in ended.err


@pytest.mark.slow
def test_what_was_stopped_goes_on_and_what_cannot_be_read_is_left_out(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path("data/one/gone.png").write_bytes(Path("data/one/a.png").read_bytes()[:60])  # a header without a picture
    ended = cli("filter", "mine.yaml", "--variance", "0", "--count", "2", "--out", "whole")
    assert ended.code == 0 and "3 of 5 rows kept; all answers were worth the same for 1, and 1 could not" in ended.out
    assert "left out: " in caplog.text and "gone.png" in caplog.text
    given = ("filter", "mine.yaml", "--variance", "0", "--count", "2", "--out", "kept")
    index, whole = Path("kept/samples.jsonl"), Path("whole/samples.jsonl").read_text()
    real, sampled = sample_many.rolled_out, list[int]()

    def counted(request, trainer, sampler, numbered, counter):  # type: ignore[no-untyped-def]
        if len(sampled) == 2:
            raise KeyboardInterrupt
        sampled.extend(number for number, _ in numbered)
        return real(request, trainer, sampler, numbered, counter)

    monkeypatch.setattr(sample_many, "rolled_out", counted)
    assert cli(*given).code == 130 and index.read_text() == "".join(whole.splitlines(keepends=True)[:2])
    sampled.append(-1)
    assert cli(*given).code == 0 and sampled == [0, 1, -1, 2, 3, 4] and index.read_text() == whole


def test_of_equal_variances_the_first_are_chosen_and_a_bound_is_left_out() -> None:
    assert chosen([0.1, None, 0.3, 0.2, 0.3], 0.1, None) == {2, 3, 4}
    assert chosen([0.1, None, 0.3, 0.2, 0.3], 0.0, 1) == {2}
    assert chosen([0.0, None], 0.0, None) == set()
    assert own._variance([1.0, None]) is None and own._variance([1.0, None, 3.0]) == 1.0


def test_rows_with_bytes_are_written_as_texts_that_rows_may_have() -> None:
    row = {"image": {"bytes": b"xy", "path": None}, "images": [b"z"], "box": (1, 2), "n": None}
    text = base64.b64encode(b"xy").decode()
    assert own._plain(row, "here") == {"image": text, "images": ["eg=="], "box": [1, 2], "n": None}
    with pytest.raises(ConfigError, match="rows, row 3 holds a date, which a line of JSON cannot"):
        own._plain({"n": date(2020, 1, 1)}, "rows, row 3")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("lab:shapes/train", "writes rows of files with columns again, and 'lab:shapes/train' has none"),
        (DatasetSettings(path="x.csv", layout="dsg"), "makes prompts of more or less than a row of a file"),
    ],
)
def test_data_whose_rows_cannot_be_written_is_refused(source: str | DatasetSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        own._data_set(source)


def test_lines_of_a_text_are_written_as_rows_that_the_same_layout_reads(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("red\n\nblue\ngreen\n")
    source = DatasetSettings(path=str(tmp_path / "one.txt"), layout="lines", limit=3, seed=1)
    prompts = load_dataset_prompts(source)
    found = own._written([source], [prompts], {0, 2}, tmp_path, [0.5, 0.0, 0.5])
    again = load_dataset_prompts(DatasetSettings(path=str(found.files[0]), layout="lines"))
    assert [prompt.text for prompt in again] == [prompts[0].text, prompts[2].text]
    assert [one.partition("=")[0] for one in found.settings][-2:] == ["prompts.train.limit", "prompts.train.seed"]
    assert (found.num_kept, found.num_rows, found.num_unjudged, found.num_equal) == (2, 3, 0, 1)


def test_questions_that_are_inverted_stay_so_on_the_rows_that_are_left(tmp_path: Path) -> None:
    options = ["(A) ran", "(B) sat", "(C) slept"]
    lines = [
        {"prompt": "\n".join([f"What did person {n} do?", *options]), "options": options, "answer": "B"}
        for n in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = DatasetSettings(path=str(tmp_path / "rows.jsonl"), seed=7, inverted=0.5)
    prompts = load_dataset_prompts(source)
    found = own._written([source], [prompts], set(range(20)), tmp_path, [0.5] * 20)
    assert not any("seed" in setting for setting in found.settings)
    again = load_dataset_prompts(source.model_copy(update={"path": str(found.files[0])}))
    assert {one.text for one in again} == {one.text for one in prompts}


@pytest.mark.parametrize(
    "entry",
    [
        {"number": 2, "totals": [1.0, 0.0]},
        {"number": -1, "totals": [1.0, 0.0]},
        {"number": 0},
        {"number": 0, "totals": "<b>"},
        {"number": 0, "totals": [1.0]},
        {"number": 0, "totals": [float("inf"), 1.0]},
        {"number": 0, "totals": [True, None]},
    ],
)
def test_a_damaged_line_of_totals_is_named(entry: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"samples\.jsonl, line 2 is damaged: it needs a 'number' below 2 and 'totals'"
    ):
        own._totals_before(Path("out"), [{"number": 1, "totals": [0.5, None]}, entry], 2, 2)


def test_one_answer_has_no_variance() -> None:
    with pytest.raises(ConfigError, match="--count must be at least 2, for a variance, got 1"):
        filter_rows(Request("lab/grpo", 1, 0), Path("none"), 0.0)
