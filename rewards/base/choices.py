"""The letters of multiple choices, as models and datasets write them."""

import re
import unicodedata
from collections.abc import Mapping
from string import ascii_uppercase

from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, shown

MAX_OPTIONS = len(ascii_uppercase)

_LEAD = re.compile(
    r"(?:the )?+(?:(?:correct|right|best|final) )?+(?:answer|option|choice)s?+(?: is| are)?+(?: ?+: ?+| )",
    re.IGNORECASE,
)
_MARKED = r"\([A-Za-z]\)|\[[A-Za-z]\]|[A-Za-z][.):]"  # (B), [B], B., B), B:
_ONE = re.compile(rf"(?:{_MARKED}|[A-Za-z])")
_LIST = re.compile(rf"(?:{_MARKED}|[A-Z])(?:(?: ?[,;/&] ?(?:and )?| and | )(?:{_MARKED}|[A-Z]))++\.?+")
_RUN = re.compile(r"[A-Z]{2,26}+")  # ABD
_WITH_TEXT = re.compile(rf"({_MARKED}) ?(.++)")
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")  # of a list, the word "and" is none
_OTHER = re.compile(rf"(?<!\w)(?:{_MARKED}|(?![AI] [a-z])[A-Z](?!\w))")  # a second choice beside words; "A cat" is none


def read_options(prompt: Prompt) -> tuple[str, ...]:
    """Reads `target.options` of a prompt as plain texts, in the order of their letters; empty without options.

    A list, or a mapping of the letters in order. Texts may begin with their own letter, "B. cat". Raises ValueError
    where it is neither, or has fewer than 2 or more than 26.
    """
    given = prompt.target.get("options")
    if given is None:
        return ()
    texts = list(given.values()) if isinstance(given, Mapping) else given
    is_ordered = not isinstance(given, Mapping) or list(given) == list(ascii_uppercase[: len(given)])
    is_texts = isinstance(texts, list | tuple) and all(isinstance(text, str) and text.strip() for text in texts)
    if not is_texts or not is_ordered or not 2 <= len(texts) <= MAX_OPTIONS:
        raise ValueError(f"target.options must be 2 to {MAX_OPTIONS} texts, got {given!r} for {prompt.text!r}")
    return tuple(_without_own_letter(text, letter) for text, letter in zip(texts, ascii_uppercase, strict=False))


def right_choices(prompt: Prompt) -> tuple[frozenset[str], tuple[str, ...]]:
    """Reads the letters of `target.answer`, one text or a list of texts, and the options (`read_options`).

    Raises ValueError where it is not one of the letters, or several: no answer can be judged by it.
    """
    options, given = read_options(prompt), prompt.target["answer"]
    answers = [given] if isinstance(given, str) else given
    try:
        if not isinstance(answers, list | tuple) or not answers or not all(isinstance(one, str) for one in answers):
            raise ParseError("it must be a text or a list of texts")
        return frozenset().union(*(read_choices(one, options) for one in answers)), options
    except ParseError as error:
        raise ValueError(
            f"target.answer must be letters of choices, such as 'B', got {given!r} for {prompt.text!r}: {error}"
        ) from None


def read_choices(text: str, options: tuple[str, ...]) -> frozenset[str]:
    """Reads the letters that an answer names: `B`, `(b)`, `B.`, `B. cat`, `The answer is B`, `A, C`, `AC`, `cat`.

    Letters in a row or in a list without marks are capitals. The text behind `B.` must be that of the option, as far as
    options are known, else it must not name another letter. ASCII only: letters that look alike are none.

    Raises:
        ParseError: it names none, one that is no option, or an option's text that two options have.
    """
    whole = " ".join(text.split())
    lead = _LEAD.match(whole)
    text = whole[lead.end() :] if lead else whole
    match = _WITH_TEXT.fullmatch(text)
    same = _saying(_plain(whole), options) | _saying(_plain(text), options)
    if _ONE.fullmatch(text):
        letters = {text.strip("()[].:").upper()}
    elif len(same) == 1:
        letters = same
    elif _LIST.fullmatch(text) and not (match and _letter(match) in _saying(_plain(match[2]), options)):
        letters = {letter.upper() for letter in _LETTER.findall(text)}
    elif _RUN.fullmatch(text) and len(set(text)) == len(text):
        letters = set(text)
    elif match and not same:
        letters = {_described(_letter(match), match[2], options)}
    else:
        raise ParseError(f"{'several options say' if same else 'names no choice:'} {shown(text)}")
    allowed = ascii_uppercase[: len(options) or MAX_OPTIONS]
    if unknown := letters - set(allowed):
        raise ParseError(f"{min(unknown)} is none of the options {allowed[0]} to {allowed[-1]}")
    return frozenset(letters)


def _described(letter: str, words: str, options: tuple[str, ...]) -> str:
    """Returns the letter. Raises ParseError where the words behind it are not, or cannot be, those of its option."""
    if options and letter not in _saying(_plain(words), options):
        raise ParseError(f"the option {letter} does not say {shown(words)}")
    if not options and _OTHER.search(words):
        raise ParseError(f"names another choice beside {letter}: {shown(words)}")
    return letter


def _letter(marked: re.Match[str]) -> str:
    return marked[1].strip("()[].:").upper()


def _saying(plain: str, options: tuple[str, ...]) -> set[str]:
    """Returns the letters of the options that have this plain text."""
    return {letter for letter, option in zip(ascii_uppercase, options, strict=False) if option == plain}


def _without_own_letter(text: str, letter: str) -> str:
    """Returns the plain text of an option, without "B." in front of it."""
    match = _WITH_TEXT.fullmatch(" ".join(text.split()))
    return _plain(match[2] if match and _letter(match) == letter else text)


def _plain(text: str) -> str:
    # Answers come composed, with few accents in a row (`references.answer_text`); options are as the data has them.
    return " ".join(unicodedata.normalize("NFC", text).casefold().split()).rstrip(". ")
