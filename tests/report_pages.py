"""Runs for reports to be written of, and the pages as a browser would read them."""

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mmrl.reporting.report import write_report

VOID = {"meta", "img", "wbr", "rect", "line", "circle", "path"}  # the SVG ones are written self-closing
TRAINING: list[dict[str, Any]] = [
    {
        "iteration": iteration,
        "reward/mean": 0.1 * iteration,
        "reward/std": 0.2,
        "reward/shape/mean": 0.1 * iteration,
        "loss/ratio": 1.0,
        "calls/rollout": 40,
        "calls/update": 10,
        "time/rollout": 3.0,
        "time/update": 6.0,
        "time/iteration": 10.0,
    }
    for iteration in (1, 2, 3)
]
HELD_OUT: list[dict[str, Any]] = [
    {"iteration": 0, "held_out/score": 0.25, "time/evaluation": 2.0},
    {"iteration": 2, "held_out/score": 0.875, "time/evaluation": 2.0},
    {"iteration": 3, "held_out/score": 0.75, "time/evaluation": 2.0},
]
SUMMARY = {
    "held_out": {"name": "accuracy", "before": 0.251, "after": 0.752, "best": 0.876},
    "train_seconds": 192.0,
    "iterations": 4,
    "is_complete": True,
    "network_calls": 12480,
    "versions": {"torch": "2.15.0"},
}


def run_of(
    root: Path, lines: list[dict[str, Any]], summary: Mapping[str, Any] | None = None, name: str = "a run"
) -> Path:
    run = root / name
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "config.yaml").write_text("group_size: 24\n")
    if summary is not None:
        (run / "summary.json").write_text(json.dumps(summary))
    return run


class Page(HTMLParser):
    """Tags with their attributes, the visible text, and whether every tag was closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "script"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def ids(self) -> set[str | None]:
        return {attributes["id"] for attributes in self.all("section")}


def read_page(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))
