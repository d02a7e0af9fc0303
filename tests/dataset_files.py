"""Files of rows for tests of data sets."""

import json
from pathlib import Path
from typing import Any

from mmrl.core.config import DatasetSettings
from mmrl.prompts.datasets import load_dataset_prompts


def lines(path: Path, rows: list[Any]) -> str:
    """A jsonl file of objects, or of lines of text as they are; returns its path."""
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return str(path)


def texts(path: Any, **settings: Any) -> list[str]:
    return [prompt.text for prompt in load_dataset_prompts(DatasetSettings(path=path, **settings))]


def questions(*names: str) -> list[Any]:
    return [{"prompt": name} for name in names]
