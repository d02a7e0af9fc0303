"""Texts compared with references: which texts, their words and n-grams."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, extract

MAX_LETTERS = 10_000  # of an answer or a reference: rapidfuzz compares two in their product / 64 steps
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
