"""Video-R1's data: `problem`, `data_type` (image or video), `problem_type`, `options`, `path`, `solution` in tags."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

CHOICE = "multiple choice"
INSTRUCTIONS = {  # what the answer to each kind of question looks like
    CHOICE: "Answer with the letter of one option.",
    "numerical": "Answer with a number, such as 42 or 3.14.",
    "OCR": "Answer with the text exactly as it is written there.",
    "free-form": "Answer in your own words.",
    "regression": "Answer with a number, as near as you can, such as 42 or 3.14.",
}


@dataclass(frozen=True)
class VideoR1:
    """Problems, followed by the options of a multiple choice; `problem_type` and all other fields join the target.

    `target.instruction`, for `{row.instruction}` of a template, says in our words what the answer to such a kind of
    question looks like; Video-R1 has a sentence for each of its five kinds too.
    """

    file: ClassVar[FileType] = "json"
    fields: ClassVar[tuple[str, ...]] = ("problem", "data_type", "options", "path", "solution")
    has_clips: ClassVar[bool] = True

    def prompt(self, row: Row) -> Prompt:
        text, kind = row.text("problem"), row.need("data_type")
        options = row_values.texts(row.take("options") or [], "options")
        if row.values.get("problem_type") == CHOICE and options:
            text = "\n".join([text, "Options:", *options])
        target = {
            "answer": row_values.answer(row.text("solution")),
            "options": options or None,
            "instruction": INSTRUCTIONS.get(row.values.get("problem_type", "")),
        }
        if kind == "video":
            return row.prompt(text, (), target, clips=(row.needed_clip(["path"]),))
        if kind == "image":
            return row.prompt(text, (row.needed_image(["path"]),), target)
        raise BadRow(f"data_type must be 'image' or 'video', got {kind!r:.80}")

    def row(self, example: Example) -> dict[str, Any]:
        is_video, is_choice = example.number % 2 == 0, example.number % 3 == 0
        letters = [f"{letter}. {name}" for letter, name in zip("AB", example.names, strict=True)]
        return {
            "problem_id": example.number,
            "problem": f"How many {example.name}s are there?" if not is_choice else "What is shown?",
            "data_type": "video" if is_video else "image",
            "problem_type": CHOICE if is_choice else "numerical",
            "options": letters if is_choice else [],
            "path": f"./{example.clip if is_video else example.image}",
            "data_source": "synthetic",
            "solution": f"<answer>{'A' if is_choice else example.answer}</answer>",
        }
