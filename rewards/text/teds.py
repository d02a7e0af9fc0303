"""Is a written table the right one? The similarity of two tables by the edits of their trees: TEDS."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from rapidfuzz.distance import Levenshtein
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError

from ..base.answers import TagReward, judge_answers
from ..base.references import answer_text
from ..base.tables import Node, html_table, latex_table, tree_distance

Markup = Literal["html", "latex"]


@dataclass(frozen=True)
class Teds(TagReward):
    r"""The tree-edit-distance similarity of the answered table and `target.table`, in [0, 1], the best over several:

      TEDS = 1 - edit distance(T_a, T_b) / max(|T_a|, |T_b|)

    Zhong et al. 2019, "Image-based table recognition: data, model, and evaluation", arXiv 1911.10683, section V. A
    tree has a node for the table, each section, row and cell. Inserting or deleting a node costs 1. Changing a node
    costs 1 where the kind or the spans differ, else 0; of cells it costs the normalised Levenshtein distance of their
    contents, in which a character, a tag or a command is one token. With `structure_only` contents do not count
    (TEDS-Structure). Ling et al. 2025, "Table2LaTeX-RL", arXiv 2509.17589, reward a structure above 0.9: that is
    `{name: threshold, threshold: 0.9, reward: {name: teds, markup: latex, structure_only: true}}`.

    Differences to the code of both papers: a heading cell (`<th>`) is a cell, and its text counts; white space counts
    once in a cell and not at its ends; captions count nothing; an empty cell of LaTeX below a `\multirow` is no cell,
    as in HTML; and |T| counts the nodes of the tree, where that of PubTabNet's code leaves out the table itself and
    takes tags inside of cells for nodes, so that a table without such tags scores lower there.

    The score is 0 without exactly one `tag` (None: the whole text), and for an answer that is not one closed table
    (`rewards/base/tables.py` says what is read), has more than 500 nodes or 10,000 letters.
    """

    source: ClassVar[str] = "Zhong et al. 2019 (PubTabNet), arXiv 1911.10683"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.table"})
    batch_size: ClassVar[int | None] = None

    markup: Markup = "html"  # what tables are written in, of answers and targets
    structure_only: bool = False  # whether the contents of cells do not count
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no table or list of tables."""
        self._references(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that `check` refuses."""
        return judge_answers(batch, self.tag, self._references, self._judge)

    def _judge(self, answer: str, references: list[Node]) -> float:
        table = self._table(answer)
        return max(self._similarity(table, one) for one in references)

    def _similarity(self, one: Node, other: Node) -> float:
        size = max(sum(1 for _ in tree.in_postorder()) for tree in (one, other))
        return max(0.0, 1 - tree_distance(one, other, self._change) / size)

    def _change(self, one: Node, other: Node) -> float:
        if one.tag != other.tag or one.spans != other.spans:
            return 1.0
        return 0.0 if self.structure_only else float(Levenshtein.normalized_distance(one.content, other.content))

    def _table(self, text: str) -> Node:
        return html_table(text) if self.markup == "html" else latex_table(text)

    def _references(self, prompt: Prompt) -> list[Node]:
        """Reads `target.table` of a prompt, one table or several, by the rules for answers."""
        given = prompt.target["table"]
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"target.table must be a text or a list of texts, got {given!r:.80} for {prompt.text!r}")
        try:
            return [self._table(answer_text(text, None)) for text in texts]
        except ParseError as error:
            raise ValueError(f"target.table of {prompt.text!r} is no table in {self.markup}: {error}") from None
