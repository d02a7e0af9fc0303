"""The csv of DSG-1k and DPG-Bench: a row for each question about a prompt, with the questions that it depends on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow

NO_PARENT = 0


@dataclass(frozen=True)
class Dsg:
    """Prompts with questions about what they name, as `question_graph` needs them.

    dsg-1k-anns.csv of github.com/j-min/DSG (Cho et al. 2023, arXiv 2310.18235) and dpg_bench.csv of
    github.com/TencentQQGYLab/ELLA (Hu et al. 2024, arXiv 2403.05135), as they are. All rows of an `item_id` are one
    prompt. The target gets `questions`; `parents`, of each question the numbers, from 0, of those that it depends on;
    `source`, the `item_id` without its number; and the lists of all other fields.
    """

    file: ClassVar[FileType] = "csv"
    joined_by: ClassVar[str] = "item_id"
    fields: ClassVar[tuple[str, ...]] = (
        "item_id",
        "text",
        "proposition_id",
        "dependency",
        "question_natural_language",
    )

    def prompt(self, row: Row) -> Prompt:
        texts, ids, dependencies, questions = (_texts(row, name) for name in self.fields[1:])
        numbers = [_numbers(one, "proposition_id", 1)[0] for one in ids]
        if len({*numbers, NO_PARENT}) <= len(numbers):
            raise BadRow(f"the proposition_id of its questions must differ and not be {NO_PARENT}, got {numbers}")
        place = {number: position for position, number in enumerate(numbers)}
        parents = tuple(_places(_numbers(one, "dependency"), place) for one in dependencies)
        source = re.sub(r"[\W_]*\d+$", "", str(row.need("item_id")))
        return row.prompt(texts[0], (), {"source": source, "questions": questions, "parents": parents})

    def row(self, example: Example) -> dict[str, Any]:
        name, other = example.names
        questions = [f"Is there a {name}?", f"Is there a {other}?", f"Is the {name} left of the {other}?"]
        return {
            "item_id": f"synthetic_{example.number}",
            "text": [f"a {name} left of a {other}"] * 3,
            "keywords": [name, other, f"{name}, {other}, left of"],
            "proposition_id": ["1", "2", "3"],
            "dependency": ["0", "0", "1,2"],
            "category_broad": ["entity", "entity", "relation"],
            "question_natural_language": questions,
        }


def _texts(row: Row, name: str) -> tuple[str, ...]:
    """Returns the values of a field in all rows; numbers, as files other than csv have them, as texts."""
    values = row.need(name)
    plain = [str(one) if type(one) is int else one for one in values] if isinstance(values, list) else values
    return row_values.texts(plain, name)


def _numbers(text: str, name: str, count: int | None = None) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d{1,9}", part, re.ASCII) for part in parts) or count not in (None, len(parts)):
        raise BadRow(
            f"{name} must be {'numbers with commas between them' if count is None else 'a number'}, got {text!r:.80}"
        )
    return [int(part) for part in parts]


def _places(parents: Sequence[int], place: dict[int, int]) -> tuple[int, ...]:
    """Returns the positions of the questions with these numbers; NO_PARENT stands for none."""
    if unknown := {*parents} - {*place, NO_PARENT}:
        raise BadRow(f"dependency names the questions {sorted(unknown)}, and there are {sorted(place)}")
    return tuple(place[parent] for parent in parents if parent != NO_PARENT)
