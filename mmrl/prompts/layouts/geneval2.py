"""GenEval 2's prompts: `prompt`, and a question with its answer for each atom of it (`vqa_list`)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class GenEval2:
    """The layout of geneval2_data.jsonl of github.com/facebookresearch/GenEval2 (arXiv 2512.16853), as it is.

    `atom_count` and the `skills` of the questions join the target.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("prompt", "vqa_list")

    def prompt(self, row: Row) -> Prompt:
        return row.prompt(row.text("prompt"), (), {"vqa_list": row.need("vqa_list")})

    def row(self, example: Example) -> dict[str, Any]:
        questions = [[f"Is there a {example.name}?", "Yes"], ["How many are there?", "two"]]
        prompt = f"two of a {example.name}"
        return {"prompt": prompt, "atom_count": 3, "vqa_list": questions, "skills": ["object", "count"]}
