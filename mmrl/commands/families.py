"""The rows of `mmrl list families`: pipelines of diffusers that are driven, and what the proof of each said."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from mmrl.core.config import load_config

PROVEN = "proven.json"  # which scripts/families_page.py writes


def rows() -> list[dict[str, Any]]:
    """Returns one row per family: `name`, `summary` (the model of its config), `makes` (image, video), `condition`
    (whether a prompt carries an image), `stock_difference` (largest difference of pixels in [0, 1], the worse of
    guidance off and on), `batch_difference` (relative), `config` (a shipped one), and what else was measured.
    """
    text = files("mmrl.modalities.tiny.pipelines").joinpath(PROVEN).read_text(encoding="utf-8")
    return [{"name": row["name"], "summary": _model(row["config"])} | row for row in json.loads(text)]


def _model(config: str) -> str:
    """Returns the model of a shipped config."""
    return str(load_config(config).modality["model"])


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a line for each family: what it makes, how far it is from the stock pipeline, and its config."""
    longest = max(len(row["name"]) for row in rows)
    for row in rows:
        made = f"{row['makes']}{' from images' if row['condition'] else ''}"
        found = f"pixels {row['stock_difference']:.0e}, batch {row['batch_difference']:.0e}"
        yield f"{row['name']:{longest}}  {made:17}  {found}  {row['config']}: {row['summary']}"
