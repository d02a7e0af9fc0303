"""TRL's GRPO data: `prompt` (messages or text), `image` or `images`, `solution`; other columns go to the rewards."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl._datasets import _values
from mmrl._datasets._layout import Example, FileType
from mmrl._datasets._messages import media_of, question
from mmrl._datasets._row import Row
from mmrl.data import Prompt


@dataclass(frozen=True)
class Trl:
    """The right answer is `solution`, as in TRL's accuracy reward, or `answer`."""

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("prompt", "images", "image", "solution", "answer")

    def prompt(self, row: Row) -> Prompt:
        asked = question(row.need("prompt"), "prompt")
        media = media_of(row, asked)
        solution, answer = row.take("solution"), row.take("answer")
        right = next((one for one in (solution, answer, asked.answer) if one is not None), None)
        return row.prompt(asked.text, media, {"answer": _values.answers(right)}, asked.system)

    def row(self, example: Example) -> dict[str, Any]:
        parts = [{"type": "image", "text": None}, {"type": "text", "text": f"How many {example.name}s are there?"}]
        return {
            "prompt": [{"role": "user", "content": parts}],
            "images": [{"bytes": example.content, "path": None}],
            "solution": example.answer,
            "subject": "counting",
        }
