"""TRL's GRPO data: `prompt` (messages or text), `image` or `images`, `solution`; other columns go to the rewards."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.messages import media_of, question
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class Trl:
    """Questions whose right answer is `solution`, as in TRL's accuracy reward, or `answer`."""

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("prompt", "images", "image", "solution", "answer")

    def prompt(self, row: Row) -> Prompt:
        conversation = question(row.need("prompt"), "prompt")
        media = media_of(row, conversation)
        solution, answer = row.take("solution"), row.take("answer")
        right = next((one for one in (solution, answer, conversation.answer) if one is not None), None)
        return row.prompt(conversation.text, media, {"answer": row_values.answers(right)}, conversation.system)

    def row(self, example: Example) -> dict[str, Any]:
        parts = [{"type": "image", "text": None}, {"type": "text", "text": f"How many {example.name}s are there?"}]
        return {
            "prompt": [{"role": "user", "content": parts}],
            "images": [{"bytes": example.content, "path": None}],
            "solution": example.answer,
            "subject": "counting",
        }
