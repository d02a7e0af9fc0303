"""UniGenBench's csv: `prompt_en`, and `sub_dims_en` with the theme and the test points of each prompt as JSON."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

THEME, SUBTHEME = "Primary Categories", "Secondary Categories"
POINTS, DESCRIPTIONS = "Testpoints", "Testpoint Description"


@dataclass(frozen=True)
class UniGenBench:
    """The test prompts of github.com/CodeGoat24/UniGenBench (Wang et al. 2025, arXiv 2508.20751), as they are.

    The target gets `theme`, `subtheme`, and `criteria`: a text for each test point, its dimension and what it is about
    in this prompt, which a judge grades (`prompt: unigenbench, criteria: criteria`).
    """

    file: ClassVar[FileType] = "csv"
    fields: ClassVar[tuple[str, ...]] = ("prompt_en", "sub_dims_en")

    def prompt(self, row: Row) -> Prompt:
        text, points = row.text("prompt_en"), row_values.parsed(row.need("sub_dims_en"))
        if not isinstance(points, dict):
            raise BadRow(f"the field 'sub_dims_en' needs a JSON object, got {points!r:.80}")
        lists = [row_values.texts(points.get(name), name) for name in (POINTS, DESCRIPTIONS)]
        themes = [points.get(name) for name in (THEME, SUBTHEME)]
        if not lists[0] or len(lists[0]) != len(lists[1]):
            raise BadRow(f"it has {len(lists[0])} test points and {len(lists[1])} descriptions; each point needs one")
        if not all(isinstance(theme, str) and theme for theme in themes):
            raise BadRow(f"{THEME} and {SUBTHEME} must be texts, got {themes!r:.80}")
        criteria = tuple(f"{point}: {about}" for point, about in zip(*lists, strict=True))
        return row.prompt(text, (), {"theme": themes[0], "subtheme": themes[1], "criteria": criteria})

    def row(self, example: Example) -> dict[str, Any]:
        points = {
            THEME: ("Design", "Art", "Illustration")[example.number % 3],
            SUBTHEME: "Graphic Art",
            POINTS: ["Attribute - Color", "Entity Layout - Two-Dimensional Space"],
            DESCRIPTIONS: [example.name, f"left of the {example.names[1]}"],
        }
        text = f"A {example.name} left of a {example.names[1]}"
        return {"index": str(example.number), "prompt_en": text, "sub_dims_en": json.dumps(points)}
