"""Votes of people as pairs, as `mmrl vote` writes them: each chosen output beats each one that is not chosen."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.voted_rows import checked_vote, example_vote, question_of, voted_prompt


@dataclass(frozen=True)
class Votes:
    """Pairs, the preferred output first with score 1; ties and skipped answers give none.

    A pair on which two people vote is two pairs. The outputs are files below the folder of the votes, or texts.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("prompt", "images", "shown", "chosen")

    def parts(self, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the pairs that a vote implies. Raises BadRow for what is no vote."""
        vote = checked_vote(values)
        for number, (winner, loser) in enumerate(vote.pairs(), 1):
            pair = {"chosen": vote.shown[winner].output, "rejected": vote.shown[loser].output}
            yield f"pair {number}", question_of(vote) | pair

    def prompt(self, row: Row) -> Prompt:
        return voted_prompt(row)

    def row(self, example: Example) -> dict[str, Any]:
        return example_vote(example)
