"""CrowdVLM-R1's json: `image`, `problem`, `solution` with the number of people."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class CrowdVlmR1:
    """Images of crowds with a whole number, as its loader (that of VLM-R1) reads them."""

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("image", "problem", "solution")

    def prompt(self, row: Row) -> Prompt:
        media, count = (row.needed_image(["image"]),), row.need("solution")
        if (
            isinstance(count, bool)
            or not isinstance(count, int | float)
            or not 0 <= count <= 1e9
            or count != int(count)
        ):
            raise BadRow(f"the field 'solution' needs a whole number of at least 0, got {count!r:.80}")
        return row.prompt(row.text("problem"), media, {"count": int(count)})

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "image": example.image,
            "problem": f"How many people stand around the {example.name}?",
            "solution": int(example.answer),
        }
