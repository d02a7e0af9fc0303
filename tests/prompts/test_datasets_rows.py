"""Rows that can be parsed but not be meant: they are bad rows, by file and line."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.core.config import DatasetSettings
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.system.errors import ConfigError


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"prompt": "a", "prompt": "b"}', "the key 'prompt' stands twice in an object"),
        ('{"prompt": "a", "more": ' + "[" * 600 + "]" * 600 + "}", "nested too deep"),
        ({"prompt": [{"role": ["user"], "content": "a"}]}, "needs a role"),
        ({"prompt": "half a \ud800"}, "its prompt is no Unicode text: 'utf-8' codec can't encode"),
        ({"prompt": "a", "system": 5}, "the field 'system' must be a text, got 5"),
        ({"prompt": "a", "image": "red.png", "box": [10**400, 0, 1, 1]}, "box needs 4 finite numbers"),
    ],
)
def test_a_row_that_nobody_can_mean_is_a_bad_row(tmp_path: Path, row: Any, message: str) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "red.png")
    path = tmp_path / "bad.jsonl"
    path.write_text(row if isinstance(row, str) else json.dumps(row), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"bad\.jsonl, line 1: .*{message}"):
        load_dataset_prompts(DatasetSettings(path=str(path)))


def test_a_header_that_names_a_column_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,answer,prompt\na,1,b\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"the header of .*a\.csv' has 'prompt' more than once"):
        load_dataset_prompts(DatasetSettings(path=str(tmp_path / "a.csv")))
