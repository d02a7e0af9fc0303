"""Answers to prompts: `prompt`, and `chosen` with `rejected`, or `output(s)` with `score(s)`, or a conversation."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.offline_rows import FIELDS, RECORDED, offline_prompt, text_of
from mmrl.prompts.row import Row


@dataclass(frozen=True)
class GivenAnswers:
    """Preferences as TRL and others write them, texts or messages, or `messages` that end with the assistant's.

    `token_ids` with `log_probs`: the tokens of each answer as they were sampled, with the end token if any,
    and the log-prob of each under the policy that sampled it.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = (*FIELDS, *RECORDED)

    def prompt(self, row: Row) -> Prompt:
        return offline_prompt(row, text_of, has_tokens=True)

    def row(self, example: Example) -> dict[str, Any]:
        answers = example.answer, str(int(example.answer) + 1)
        return {
            "prompt": f"How many {example.name}s?",
            "images": [example.image],
            "chosen": answers[0],
            "rejected": answers[1],
            "token_ids": [list(answer.encode()) for answer in answers],  # whose vocabulary it is nobody knows here
            "log_probs": [[-0.5] * len(answer) for answer in answers],
        }
