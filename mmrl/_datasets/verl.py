"""verl's data: `prompt` messages with marks inside the text, `images`, `reward_model.ground_truth`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl._datasets import _values
from mmrl._datasets._layout import Example, FileType
from mmrl._datasets._messages import question
from mmrl._datasets._pictures import BadRow
from mmrl._datasets._row import Row
from mmrl.data import Prompt


@dataclass(frozen=True)
class Verl:
    """`data_source`, `ability` and `extra_info` join the target as they are."""

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("prompt", "images", "reward_model")

    def prompt(self, row: Row) -> Prompt:
        asked = question(row.need("prompt"), "prompt")
        judged = row.need("reward_model")
        if not isinstance(judged, dict) or "ground_truth" not in judged:
            raise BadRow(f"the field 'reward_model' must hold 'ground_truth', got {judged!r:.80}")
        return row.prompt(asked.text, row.images(), {"answer": _values.answers(judged["ground_truth"])}, asked.system)

    def row(self, example: Example) -> dict[str, Any]:
        return {
            "data_source": "synthetic",
            "prompt": [
                {"role": "system", "content": "You count."},
                {"role": "user", "content": f"<image>How many {example.name}s are there?"},
            ],
            "images": [{"bytes": example.content}],
            "ability": "counting",
            "reward_model": {"style": "rule", "ground_truth": example.answer},
            "extra_info": {"split": "train", "index": example.number},
        }
