"""MMMU: `question` and `options` with marks <image 1> to <image 7>, `image_1` ..., `question_type`, `answer`."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, read_literal
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import IMAGE_MARK, Row
from mmrl.prompts.row_pictures import BadRow

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MARK = re.compile(r"<image ([1-7])>")
ID = re.compile(r"[a-z]+_(\w+)_\d+")  # validation_Accounting_1
NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


@dataclass(frozen=True)
class Mmmu:
    """Questions of the subjects of `MMMU/MMMU` and of `lmms-lab/MMMU`, with the lettered options below.

    Yue et al. 2023, arXiv 2311.16502. Each mark `<image n>` shows `image_n` where it stands; images without a mark come
    first. `target.answer` is a letter, or the text (or texts) of an open answer; `target.kind` is `choice`, `number` or
    `text`, by which the reward `router` can choose. `target.subject` is taken from the `id`.
    """

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = (
        "id", "question", "options", "question_type", "answer", *(f"image_{n}" for n in range(1, 8)),
    )  # fmt: skip

    def prompt(self, row: Row) -> Prompt:
        match = ID.fullmatch(name := row.text("id"))
        if match is None:
            raise BadRow(f"id must be SPLIT_SUBJECT_NUMBER, got {name!r:.80}")
        is_choice = row.text("question_type") == "multiple-choice"
        options = _texts(row.take("options") or [], "options")
        lines = [row.text("question")]
        if is_choice:
            lines += [f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False)]
        text = "\n".join(lines)
        images = {n: row.needed_image([f"image_{n}"]) for n in range(1, 8) if f"image_{n}" in row.values}
        shown = [int(one) for one in MARK.findall(text)]
        if missing := sorted({*shown} - {*images}):
            raise BadRow(f"it shows <image {missing[0]}>, but has no field 'image_{missing[0]}'")
        before = [n for n in images if n not in shown]
        text = IMAGE_MARK * len(before) + MARK.sub(IMAGE_MARK, text)
        target: dict[str, Any] = {"id": name, "subject": match[1], "question_type": "open"}
        if is_choice:
            target |= {"question_type": "multiple-choice", "kind": "choice", "options": options}
            target["answer"] = row.text("answer")
        else:
            target |= _open_answer(row.text("answer"))
        return row.prompt(text, [images[n] for n in (*before, *shown)], target)

    def row(self, example: Example) -> dict[str, Any]:
        is_choice = example.number % 2 == 0
        picture = {"bytes": example.content, "path": None}
        return {
            "id": f"validation_{('Accounting', 'Art_Theory')[example.number // 2 % 2]}_{example.number + 1}",
            "question": f"<image 1> How many {example.name}s are there?",
            "options": str([example.answer, "none"]) if is_choice else "[]",
            "explanation": "",
            **{f"image_{n}": picture if n == 1 else None for n in range(1, 8)},
            "img_type": "['Diagrams']",
            "answer": "A" if is_choice else example.answer,
            "topic_difficulty": "Easy",
            "question_type": "multiple-choice" if is_choice else "open",
            "subfield": "Synthetic",
        }


def _texts(value: Any, name: str) -> tuple[str, ...]:
    """Returns a list of texts, which the files write as a list of Python in a text."""
    if isinstance(value, str):
        try:
            value = read_literal(value)
        except ParseError as error:
            raise BadRow(f"{name} needs a list of texts: {error}") from error
    return row_values.texts(value, name)


def _open_answer(text: str) -> dict[str, Any]:
    """Returns `answer` and `kind` of an open question: one right text, or a list of them in brackets."""
    texts = _texts(text, "answer") if text.startswith("['") or text.startswith('["') else (text.strip(),)
    if len(texts) == 1:
        return {"answer": texts[0], "kind": "number" if NUMBER.fullmatch(texts[0]) else "text"}
    return {"answer": texts, "kind": "text"}
