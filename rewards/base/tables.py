"""Tables written as HTML or LaTeX, as trees of rows and cells; and how far two trees are apart."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from mmrl.parsing.answers import ParseError, shown

MAX_NODES = 500  # of a table: the distance takes the product of both counts, times a few
MAX_SPAN = 1000  # columns or rows of one cell, as HTML bounds columns

_SECTIONS = ("thead", "tbody", "tfoot")
_VOID = ("br", "hr", "img", "wbr", "input")  # elements without an end
_TABULAR = r"(?:tabular\*?|tabularx|tabulary|array|longtable)"
_BEGIN = re.compile(rf"\\begin{{({_TABULAR})}}")
_LINE_ENDS = r"((?<!\\)(?:\\\\)*+)"  # before a command or a sign: what is behind them is no part of an end of a row
_RULE = re.compile(
    rf"{_LINE_ENDS}(?:"
    r"\\(?:hline|toprule|midrule|bottomrule|endhead|endfirsthead|endfoot|endlastfoot)(?![A-Za-z])"
    r"|\\(?:cline|cdashline)\s*+\{[^{}]*+\}|\\cmidrule\s*+(?:\([^()]*+\))?+\s*+\{[^{}]*+\}"
    r"|\\addlinespace(?![A-Za-z])\s*+(?:\[[^\[\]]*+\])?+)"
)
_COMMENT = re.compile(rf"{_LINE_ENDS}%[^\n]*+\n?")
# What ends a cell or a row, or opens and closes a group; other commands and signs in backslashes are stepped over
_PIECE = re.compile(r"\\\\\*?+(?:\[[^\[\]]*+\])?+|\\tabularnewline(?![A-Za-z])|\\[A-Za-z]++|\\.|[{}&]", re.DOTALL)
_TOKEN = re.compile(r"\\[A-Za-z]++|\\.|\s++|.", re.DOTALL)


@dataclass
class Node:
    """A part of a table: the table, a section, a row or a cell."""

    tag: str  # table, thead, tbody, tfoot, tr or td
    spans: tuple[int, int] = (1, 1)  # columns and rows of a cell
    content: tuple[str, ...] = ()  # of a cell: characters, and tags or commands as one token each
    children: list["Node"] = field(default_factory=list)

    def in_postorder(self) -> Iterator["Node"]:
        """Yields the nodes of the tree, children before their parent."""
        for child in self.children:
            yield from child.in_postorder()
        yield self


def html_table(text: str) -> Node:
    """Returns the one table of a text in HTML; what stands around it does not count.

    A heading cell is a cell. Rows and cells need no end tags, as in HTML. White space in cells is one space, none at
    their ends; captions and descriptions of columns are left out.

    Raises:
        ParseError: not one table that is closed, a table in a table, a cell outside of a row, text outside of cells,
            spans that are no whole numbers from 1 to MAX_SPAN, no cell, or more than MAX_NODES nodes.
    """
    if "<![" in text:
        raise ParseError(f"a table may hold no marked section, got {shown(text)}")
    reader = _HtmlReader()
    reader.feed(text)
    reader.close()
    if reader.table is None or reader.path:
        raise ParseError(f"needs a table that is closed, got {shown(text)}")
    return _bounded(reader.table)


def latex_table(text: str) -> Node:
    r"""Returns the one table of a text in LaTeX, `\begin{tabular}` to its end; what stands around it does not count.

    Also tabular*, tabularx, tabulary, array and longtable. Rules and comments are left out. A cell that is all
    `\multicolumn` or `\multirow` (or one in the other) spans columns and rows; an empty cell below such a row is no
    cell, as in HTML. A last row without text is no row. Other commands are part of a cell's content, one token each.

    Raises:
        ParseError: not one table that is closed, a table in a table, braces that do not match, spans that are no
            numbers from 1 to MAX_SPAN, no cell, or more than MAX_NODES nodes.
    """
    rows = [[_latex_cell(cell) for cell in row] for row in _latex_rows(_latex_body(text))]
    if rows and len(rows[-1]) == 1 and not rows[-1][0].content:
        rows.pop()  # behind the last row's end
    table, covered = Node("table"), dict[int, int]()  # by column: the last row that a cell above reaches
    for number, cells in enumerate(rows):
        row, column = Node("tr"), 0
        for cell in cells:
            columns, height = cell.spans
            places = range(column, column + columns)
            is_below = not cell.content and all(covered.get(place, -1) >= number for place in places)
            row.children += [] if is_below else [cell]
            if height > 1:
                covered |= dict.fromkeys(places, number + height - 1)
            column += columns
        table.children.append(row)
    return _bounded(table)


class _HtmlReader(HTMLParser):
    """Builds the tree of a table while its tags come by."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.table: Node | None = None
        self.path: list[Node] = []  # from the table to the open node
        self._content: list[str] | None = None  # of the open cell
        self._is_left_out = False  # in a caption or the descriptions of columns

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            if self.table is not None:
                raise ParseError("an answer may have one table, without tables in it")
            self.table = Node("table")
            self.path = [self.table]
        elif not self.path:
            return
        elif tag in ("caption", "colgroup"):
            self._is_left_out = True
        elif tag in _SECTIONS:
            self._close("tr")
            self._close(*_SECTIONS)
            self._open(Node(tag))
        elif tag == "tr":
            self._close("tr")
            self._open(Node("tr"))
        elif tag in ("td", "th"):
            self._close("td")
            if self.path[-1].tag != "tr":
                raise ParseError("a cell must be in a row")
            given = dict(attributes)
            self._open(Node("td", (_span(given.get("colspan", "1")), _span(given.get("rowspan", "1")))))
            self._content = []
        elif self._content is not None:
            self._content += [f"<{tag}>", f"</{tag}>"] if tag in _VOID else [f"<{tag}>"]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("caption", "colgroup"):
            self._is_left_out = False
        elif tag in ("table", "tr", "td", "th", *_SECTIONS):
            self._close("td" if tag == "th" else tag)
        elif self._content is not None and tag not in _VOID:
            self._content.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self._content is not None:
            self._content += data
        elif self.path and data.strip() and not self._is_left_out:
            raise ParseError(f"text must be in a cell, got {shown(data)}")

    def _open(self, node: Node) -> None:
        self.path[-1].children.append(node)
        self.path.append(node)

    def _close(self, *tags: str) -> None:
        """Closes the innermost open node with one of these tags, and what is open in it; none: nothing."""
        for place in range(len(self.path) - 1, -1, -1):
            if self.path[place].tag in tags:
                if self._content is not None:
                    self.path[-1].content, self._content = _plain(self._content), None
                del self.path[place:]
                return


def _span(text: str | None) -> int:
    if text is None or not re.fullmatch(r"[0-9]{1,4}", text.strip()) or not 1 <= int(text) <= MAX_SPAN:
        raise ParseError(f"a span must be a whole number from 1 to {MAX_SPAN}, got {text!r:.40}")
    return int(text)


def _plain(tokens: list[str]) -> tuple[str, ...]:
    """Returns tokens with one space for each run of white space, and none at the ends."""
    plain: list[str] = []
    for token in tokens:
        if not token.isspace():
            plain.append(token)
        elif plain and plain[-1] != " ":
            plain.append(" ")
    return tuple(plain[:-1] if plain[-1:] == [" "] else plain)


def _bounded(table: Node) -> Node:
    count = sum(1 for _ in table.in_postorder())
    if count > MAX_NODES or not any(node.tag == "td" for node in table.in_postorder()):
        raise ParseError(f"a table must have a cell, and at most {MAX_NODES} nodes, got {count}")
    return table


def _latex_body(text: str) -> str:
    """Returns what stands between the columns of the one tabular of a text and its end."""
    text = _COMMENT.sub(r"\1", text)
    begin = _BEGIN.search(text)
    if begin is None:
        raise ParseError(f"needs a tabular, got {shown(text)}")
    end = text.find(f"\\end{{{begin[1]}}}", begin.end())
    if end < 0 or _BEGIN.search(text, begin.end()):
        raise ParseError("an answer may have one tabular that is closed, without a tabular in it")
    rest = text[begin.end() : end]
    for _ in range(2 if begin[1] in ("tabular*", "tabularx", "tabulary") else 1):  # a width, then the columns
        rest = re.sub(r"^\s*+\[[^\[\]]*+\]", "", rest)
        _, rest = _group(rest)
    return _RULE.sub(r"\1 ", rest)


def _group(text: str) -> tuple[str, str]:
    """Returns the group `{...}` at the beginning of a text, without its braces, and what follows it."""
    text = text.lstrip()
    depth = 0
    for piece in re.finditer(r"\\.|[{}]", text, re.DOTALL) if text.startswith("{") else ():
        depth += {"{": 1, "}": -1}.get(piece[0], 0)
        if not depth:
            return text[1 : piece.start()], text[piece.end() :]
    raise ParseError(f"needs a group in braces, got {shown(text)}")


def _latex_rows(body: str) -> list[list[str]]:
    """Returns the cells of each row as they are written."""
    rows: list[list[str]] = [[]]
    start, depth = 0, 0
    for piece in _PIECE.finditer(body):
        if piece[0] in "{}":
            depth += 1 if piece[0] == "{" else -1
        if depth < 0:
            raise ParseError("the braces of a table must match")
        is_row = piece[0].startswith(("\\\\", "\\tabularnewline"))
        if depth == 0 and (is_row or piece[0] == "&"):
            rows[-1].append(body[start : piece.start()])
            start = piece.end()
            rows += [[]] if is_row else []
    if depth:
        raise ParseError("the braces of a table must match")
    rows[-1].append(body[start:])
    return rows


def _latex_cell(text: str) -> Node:
    """Returns a cell of LaTeX, with the spans of the commands that are all of it."""
    columns, height = 1, 1
    for _ in range(2):
        text = text.strip()
        if match := re.match(r"\\multicolumn(?![A-Za-z])", text):
            count, rest = _group(text[match.end() :])
            _, rest = _group(rest)
        elif match := re.match(r"\\multirow(?![A-Za-z])\s*+(?:\[[^\[\]]*+\])?+", text):
            count, rest = _group(text[match.end() :])
            rest = re.sub(r"^\s*+\[[^\[\]]*+\]", "", rest)  # how many rules it crosses
            if rest.lstrip().startswith("*"):
                rest = rest.lstrip()[1:]
            else:
                _, rest = _group(rest)
            rest = re.sub(r"^\s*+\[[^\[\]]*+\]", "", rest)  # how far it is moved
        else:
            break
        content, behind = _group(rest)
        if behind.strip():
            break
        if match[0].startswith("\\multicolumn"):
            columns *= _span(count)
        else:
            height *= _span(count)
        text = content
    return Node("td", (columns, height), _plain([" " if one.isspace() else one for one in _TOKEN.findall(text)]))


def tree_distance(one: Node, other: Node, change: Callable[[Node, Node], float]) -> float:
    """Returns the least cost of making one tree of the other: 1 for each inserted or deleted node, else `change`.

    Zhang and Shasha 1989, "Simple Fast Algorithms for the Editing Distance between Trees and Related Problems", SIAM
    Journal on Computing 18, 1245-1262.

    Args:
        one, other: the trees. change: the cost of making one node of another, in [0, 1].
    """
    (nodes, first, roots), (others, other_first, other_roots) = _keyed(one), _keyed(other)
    costs = [[change(left, right) for right in others] for left in nodes]
    whole = [[0.0] * len(others) for _ in nodes]  # distances of the trees below two nodes
    for i in roots:
        for j in other_roots:
            top, left = first[i], other_first[j]
            if (top, left) == (i, j):  # both are leaves, and a change is no dearer than the way around
                whole[i][j] = costs[i][j]
                continue
            above = [float(number) for number in range(j - left + 2)]  # the forest of `one` is empty
            table = [above]
            for x in range(top, i + 1):
                row, up = [above[0] + (x - top + 1)], table[-1]
                own, behind = first[x], table[first[x] - top]
                for y in range(left, j + 1):
                    place = y - left
                    if own == top and other_first[y] == left:  # both forests are trees
                        kept = up[place] + costs[x][y]
                        row.append(min(up[place + 1] + 1, row[place] + 1, kept))
                        whole[x][y] = row[-1]
                    else:
                        kept = behind[other_first[y] - left] + whole[x][y]
                        row.append(min(up[place + 1] + 1, row[place] + 1, kept))
                table.append(row)
    return whole[-1][-1]


def _keyed(tree: Node) -> tuple[list[Node], list[int], list[int]]:
    """Returns the nodes in postorder, the first leaf below each, and the highest node above each first leaf."""
    nodes: list[Node] = []
    first: list[int] = []

    def walk(node: Node) -> int:
        leaves = [walk(child) for child in node.children]
        first.append(leaves[0] if leaves else len(nodes))
        nodes.append(node)
        return first[-1]

    walk(tree)
    highest = {leaf: place for place, leaf in enumerate(first)}
    return nodes, first, sorted(highest.values())
