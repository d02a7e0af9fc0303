"""Votes of people as labels, as `mmrl vote` writes them: chosen outputs are good, the others bad."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.core.data import Prompt
from mmrl.prompts.layout import Example, FileType
from mmrl.prompts.row import Row
from mmrl.prompts.voted_rows import checked_vote, example_vote, question_of, voted_prompt


@dataclass(frozen=True)
class VoteLabels:
    """All outputs of a vote, chosen ones with score 1 and others with 0: what `kto` learns from.

    A grid in which none was chosen has bad outputs alone, and one in which all were chosen good ones alone. Ties of
    pairs, of which both may be good or bad, and skipped answers give no row.
    """

    file: ClassVar[FileType] = "jsonl"
    fields: ClassVar[tuple[str, ...]] = ("prompt", "images", "shown", "chosen")

    def parts(self, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the row of a vote, or nothing. Raises BadRow for what is no vote."""
        vote = checked_vote(values)
        if labels := vote.labels():
            yield "labels", question_of(vote) | {"outputs": [one.output for one in vote.shown], "scores": labels}

    def prompt(self, row: Row) -> Prompt:
        return voted_prompt(row)

    def row(self, example: Example) -> dict[str, Any]:
        return example_vote(example)
