"""Texts compared with references: the texts, their words and n-grams, and distances between them."""

import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Sequence

from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, extract

MAX_LETTERS = 10_000  # of an answer or a reference: what comparing them may cost is bounded by its square / 64
MAX_MARKS = 30  # accents in a row; Unicode's own bound for streams (UAX 15), beyond it composing is quadratic

# Writing without spaces counts letter by letter; without capitals, other words are runs of letters and digits.
_SCRIPTS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_SCRIPTS}]|[^\W_{_SCRIPTS}]+")


def answer_text(text: str, tag: str | None) -> str:
    """Returns the text in the one `tag` (None: the whole text), composed (NFC), without white space at its ends.

    Raises:
        ParseError: not one such tag, more than MAX_LETTERS letters, or more than MAX_MARKS accents in a row.
    """
    answer = extract(text, tag)
    if len(answer) > MAX_LETTERS:
        raise ParseError(f"an answer may have {MAX_LETTERS} letters, got {len(answer)}")
    return composed(answer).strip()


def composed(text: str) -> str:
    """Returns the text with each letter and its accents as one character, where there is such a character (NFC)."""
    if text.isascii():
        return text
    in_a_row = 0
    for letter in text:
        in_a_row = in_a_row + 1 if unicodedata.combining(letter) else 0
        if in_a_row > MAX_MARKS:
            raise ParseError(f"a letter may have {MAX_MARKS} accents, got more")
    return unicodedata.normalize("NFC", text)


def reference_texts(prompt: Prompt) -> list[str]:
    """Reads `target.answer` of a prompt, one text or several, by the rules for answers.

    Raises ValueError where it is none of these, or one is empty or too long: no answer can be judged by it.
    """
    given = prompt.target["answer"]
    texts = [given] if isinstance(given, str) else given
    is_texts = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
    if not is_texts or not texts or not all(map(str.strip, texts)):
        raise ValueError(f"target.answer must be a text or a list of texts, got {given!r} for {prompt.text!r}")
    try:
        return [answer_text(text, None) for text in texts]
    except ParseError as error:
        raise ValueError(f"target.answer of {prompt.text!r} cannot be compared with: {error}") from None


def reference_words(prompt: Prompt) -> list[list[str]]:
    """Returns the words of each reference (`reference_texts`); raises ValueError as well for one without words."""
    references = [words(text) for text in reference_texts(prompt)]
    if not all(references):
        raise ValueError(f"target.answer must have words, got {prompt.target['answer']!r} for {prompt.text!r}")
    return references


def words(text: str) -> list[str]:
    """Returns the words of a text, without capitals and punctuation.

    Of ASCII text these are the tokens of rouge-score without its stemmer, [a-z0-9]+. It knows no other letters; here
    those of all scripts count, and Chinese and Japanese ones are words of their own.
    """
    return _WORD.findall(text.casefold())


def ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    """Counts each run of n tokens."""
    return Counter(zip(*(tokens[start:] for start in range(n)), strict=False))


def shared_length(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Returns the length of the longest common subsequence, in len(left) * len(right) / 64 steps (Hyyro 2004)."""
    places, every = _places(left), (1 << len(left)) - 1
    row = every  # bit i is 0 where the length grows at left[i]
    for symbol in right:
        matches = row & places.get(symbol, 0)
        row = ((row + matches) | (row - matches)) & every
    return len(left) - row.bit_count()


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Returns the Levenshtein distance: the fewest insertions, deletions and substitutions from left to right.

    In len(left) * len(right) / 64 steps: a column of the table is kept as the bits of its differences (Myers 1999).
    """
    places, every, last = _places(left), (1 << len(left)) - 1, (1 << len(left)) >> 1
    if not left:
        return len(right)
    rises, falls, distance = every, 0, len(left)
    for symbol in right:
        equal = places.get(symbol, 0)
        across = (((equal & rises) + rises) ^ rises) | equal | falls
        up = (falls | ~(across | rises)) & every
        down = rises & across
        distance += bool(up & last) - bool(down & last)
        up, down = (up << 1 | 1) & every, (down << 1) & every
        rises, falls = (down | ~(equal | falls | up)) & every, up & (equal | falls)
    return distance


def _places(symbols: Sequence[Hashable]) -> dict[Hashable, int]:
    """Returns the places of each symbol, as the bits of an integer."""
    by_symbol: dict[Hashable, list[int]] = {}
    for place, symbol in enumerate(symbols):
        by_symbol.setdefault(symbol, []).append(place)
    return {symbol: _bits(places, len(symbols)) for symbol, places in by_symbol.items()}


def _bits(places: list[int], size: int) -> int:
    bits = bytearray(size // 8 + 1)
    for place in places:
        bits[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(bits, "little")
