"""MathVista: `query`, `decoded_image`, `question_type`, `answer_type`, `choices`, `answer`, `metadata`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NUMBERS = ("integer", "float")


@dataclass(frozen=True)
class MathVista:
    """Problems of `AI4Math/MathVista`, whose prompt is `query`: the question with its choices and a hint.

    Lu et al. 2023, arXiv 2310.02255. `target.answer` is the letter of the right choice, a number or a list as text;
    `target.kind` is `choice`, `number` or `text`, by which the reward `router` can choose, and `target.options` has the
    choices. `target.task` is the task of `metadata`. Rows without an answer (of the split `test`) are bad rows.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = (
        "query", "decoded_image", "image", "question_type", "answer_type", "choices", "answer", "metadata",
    )  # fmt: skip

    def prompt(self, row: Row) -> Prompt:
        media = (row.needed_image(["decoded_image" if "decoded_image" in row.values else "image"]),)
        row.take("image")  # beside the decoded image, its path
        answer, options = row.text("answer"), row.take("choices")
        target: dict[str, Any] = {"question_type": row.text("question_type"), "answer_type": row.text("answer_type")}
        if target["question_type"] == "multi_choice":
            options = row_values.texts(options, "choices")
            if options.count(answer) != 1 or len(options) > len(LETTERS):
                raise BadRow(f"answer must be one of the choices {list(options)!r:.80}, got {answer!r:.80}")
            target |= {"kind": "choice", "answer": LETTERS[options.index(answer)], "options": options}
        else:
            kind = "number" if target["answer_type"] in NUMBERS else "text"
            target |= {"kind": kind, "answer": row_values.answer(answer)}
        about = row.take("metadata") or {}
        if not isinstance(about, dict):
            raise BadRow(f"the field 'metadata' needs an object, got {about!r:.80}")
        return row.prompt(row.text("query"), media, about | target)

    def row(self, example: Example) -> dict[str, Any]:
        kind = example.number % 3
        question = f"How many {example.name}s are there?"
        return {
            "pid": str(example.number),
            "question": question,
            "image": f"images/{example.image}",
            "decoded_image": {"bytes": example.content, "path": None},
            "choices": list(example.names) if kind == 1 else None,
            "unit": None,
            "precision": 1.0 if kind == 2 else None,
            "answer": (example.answer, example.name, f"{example.answer}.0")[kind],
            "question_type": "multi_choice" if kind == 1 else "free_form",
            "answer_type": ("integer", "text", "float")[kind],
            "query": question if kind != 1 else f"{question}\n(A) {example.names[0]}\n(B) {example.names[1]}",
            "metadata": {"task": "figure question answering" if kind else "visual question answering", "grade": "x"},
        }
