"""verl's data: `prompt` messages with marks inside the text, `images`, `reward_model.ground_truth`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts import row_values
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.messages import question
from mmrl.prompts.row import Row
from mmrl.prompts.row_pictures import BadRow


@dataclass(frozen=True)
class Verl:
    """Questions whose `data_source`, `ability` and `extra_info` join the target unchanged."""

    file: ClassVar[FileType] = "parquet"
    fields: ClassVar[tuple[str, ...]] = ("prompt", "images", "reward_model")

    def prompt(self, row: Row) -> Prompt:
        conversation = question(row.need("prompt"), "prompt")
        judged = row.need("reward_model")
        if not isinstance(judged, dict) or "ground_truth" not in judged:
            raise BadRow(f"the field 'reward_model' must hold 'ground_truth', got {judged!r:.80}")
        return row.prompt(
            conversation.text, row.images(), {"answer": row_values.answers(judged["ground_truth"])}, conversation.system
        )

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
