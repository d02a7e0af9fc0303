"""The form of an answer without its content: tags, code, JSON, formulas, lists, and prose between them."""

import re
from itertools import groupby

MAX_CHARACTERS = 20_000  # of an answer that are looked at
MAX_PIECES = 64  # of a form

# Each kind of piece: what it looks like. A line of a list or of code is one piece with all that it says.
_PIECES = {
    "fence": r"^[ \t]*```[ \t]*(?P<language>[A-Za-z0-9+#]{0,20})",
    "tag": r"<(?P<tag>/?[A-Za-z][A-Za-z0-9_|-]{0,39})(?:[ \t][^<>\n]{0,200})?/?>",
    "box": r"\\boxed\b",
    "formula": r"\$\$?|\\[\[\]()]|\\begin\{[A-Za-z*]{1,20}\}",
    "code": r"^[ \t]*(?:(?:def|class|for|while|if|elif|else|try|with)\b[^\n]*:[ \t]*$|import[ \t]+\w+|"
    r"from[ \t]+\w+[ \t]+import\b|return\b|print\()[^\n]*",
    "heading": r"^#{1,6} [^\n]*",
    "item": r"^[ \t]*(?:[-*+]|[0-9]{1,3}[.)])[ \t][^\n]*",
    "key": r"\"(?P<key>[A-Za-z_][A-Za-z0-9_ ]{0,39})\"[ \t]*:",
    "bracket": r"[{}\[\]]",
    "prose": r"[^\W\d_]++(?:[ ,.;:!?'-]++[^\W\d_]++)*+",
    "number": r"\d+",
}
_PIECE = re.compile("|".join(f"(?P<{kind}_>{pattern})" for kind, pattern in _PIECES.items()), re.MULTILINE)


def format_of(text: str) -> str:
    """Returns the form of an answer: its pieces in order, equal neighbours once; empty for a text without any.

    Tags, keys of JSON and languages of code have their names, all else only its kind: `<think> prose </think> box`.
    Numbers within prose belong to it. Two answers with the same form differ in what they say alone.
    """
    words = [name for name, _ in groupby(map(_name, _PIECE.finditer(text[:MAX_CHARACTERS])))]
    if "prose" in words:
        words = [name for name, _ in groupby(name for name in words if name != "number")]
    return " ".join(words[:MAX_PIECES])


def _name(match: re.Match[str]) -> str:
    kind = str(match.lastgroup).removesuffix("_")
    if match["tag"] is not None:
        return f"<{match['tag'].lower()}>"
    if match["key"] is not None:
        return f'"{match["key"]}"'
    if match["language"] is not None:
        return f"```{match['language'].lower()}"
    return match[0] if kind == "bracket" else kind
