"""How much of the code of a reference an answer has: its pairs of tokens, or its names."""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward, judge_answers
from ..base.references import reference_texts

Measure = Literal["tokens", "names"]
# A text in quotes, a name, a number, an operator of several characters, or any other sign
_TOKEN = re.compile(
    r"'(?:[^'\\]|\\.|'')*+'|\"(?:[^\"\\]|\\.)*+\"|`[^`]*+`|[^\W\d]\w*+|\d[\w.]*+|[<>=!:|&]{1,3}+|[^\w\s]"
)
_NAME = re.compile(r"[^\W\d]\w*")
_SQL = """
add all alter and any as asc avg between by case cast coalesce count cross current_date date datetime delete desc
distinct drop else end escape except exists false from full glob group having ifnull iif in inner insert instr
intersect into is join julianday lag lead left length like limit lower max min natural not now null nullif nulls
offset on or order outer over partition rank real replace right round row_number select set strftime substr substring
sum table text then total true union unique update upper using values view when where with integer int float numeric
blob
"""


@dataclass(frozen=True)
class CodeSimilarity(TagReward):
    """The Jaccard similarity |A and B| / |A or B|, in [0, 1], of what an answer's code and `target.answer` hold.

      tokens  A and B are the sets of all runs of `n` tokens
      names   A and B are the sets of names: of tables and columns, where the code is SQL

    Pourreza et al. 2025, "Reasoning-SQL", arXiv 2503.23157: partial rewards for queries that do not yet return what
    they should: n-grams (pairs of tokens) and schema items. No database is asked, and nothing is run. Capitals do not
    count, nor do fences around the code; texts in quotes are one token each, and names in quotes or backticks are names
    too. A name is any word that is not among `keywords`. Of several references the best counts. Two codes without
    names have the same ones: 1. An answer without code, without exactly one `tag` (None: the whole text), or longer
    than 10,000 letters scores 0.
    """

    source: ClassVar[str] = "Pourreza et al. 2025 (Reasoning-SQL), arXiv 2503.23157"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer"})
    batch_size: ClassVar[int | None] = None

    measure: Measure = "tokens"  # what is compared
    n: Annotated[int, Field(ge=1, le=9)] = 2  # tokens of a run; of a code with fewer, all of them
    keywords: tuple[str, ...] | None = None  # words that are no names; null: those of SQL
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a target that is no text or list of texts, or that has no token."""
        self._references(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that `check` refuses."""
        return judge_answers(batch, self.tag, self._references, self._score)

    def _score(self, answer: str, references: list[frozenset[tuple[str, ...]]]) -> float:
        answered = self._parts(answer)
        return max(len(answered & one) / len(answered | one) if answered | one else 1.0 for one in references)

    def _references(self, prompt: Prompt) -> list[frozenset[tuple[str, ...]]]:
        texts = reference_texts(prompt)
        if not all(map(tokens_of, texts)):
            raise ValueError(f"target.answer must be code, got {prompt.target['answer']!r}")
        return [self._parts(text) for text in texts]

    def _parts(self, code: str) -> frozenset[tuple[str, ...]]:
        tokens = tokens_of(code)
        if self.measure == "names":
            words = frozenset(_SQL.split()) if self.keywords is None else {word.casefold() for word in self.keywords}
            names = (token.strip('"`') for token in tokens)
            return frozenset((name,) for name in names if _NAME.fullmatch(name) and name not in words)
        size = min(self.n, len(tokens))
        return frozenset(tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1) if size)


def tokens_of(code: str) -> list[str]:
    """Returns the tokens of code in small letters, without a fence around it and without a semicolon at its end."""
    text = code.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    return [token.casefold() for token in _TOKEN.findall(text.strip().rstrip("; \n"))]
