"""The text of each token of an answer."""

from collections.abc import Callable, Sequence

BROKEN = "\ufffd"  # what bytes are read as that are not, or not yet, a character
LONGEST = 4  # bytes of a character in UTF-8, and so the most tokens that it is spread over


class Pieces:
    """Splits answers into the texts of their tokens; what most tokens say alone is remembered.

    A character of several tokens is the last one's, the others have the empty text before it; so is a run of bytes
    that are no character, up to the next one or the end.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._alone: dict[int, str] = {}

    def __call__(self, tokens: Sequence[int], text: str) -> tuple[str, ...]:
        """A text for each token; joined they are `text`, which all the tokens are decoded to. In linear time.

        A tokenizer whose tokens read differently at the beginning of a text takes quadratic time.
        """
        pieces: list[str] = []
        first = 0  # of the tokens that no piece has yet
        for number, token in enumerate(tokens):
            is_whole = first == number and BROKEN not in self._text_of(token)
            if is_whole:
                pieces.append(self._text_of(token))
            elif number == len(tokens) - 1 or self._ends_here(tokens[max(first, number - LONGEST + 1) : number + 1]):
                pieces.append(self._decode(list(tokens[first : number + 1])))
            else:
                pieces.append("")
                continue
            first = number + 1
        return tuple(pieces) if "".join(pieces) == text else self._by_prefixes(tokens, text)

    def _text_of(self, token: int) -> str:
        if token not in self._alone:
            self._alone[token] = self._decode([token])
        return self._alone[token]

    def _ends_here(self, tail: Sequence[int]) -> bool:
        """Whether a character ends with these tokens: one that is whole lies in the last few, whatever is before."""
        return not self._decode(list(tail)).endswith(BROKEN)

    def _by_prefixes(self, tokens: Sequence[int], text: str) -> tuple[str, ...]:
        """What each token adds to the text of those before it."""
        pieces, done = [], 0
        for number in range(len(tokens)):
            read = text if number == len(tokens) - 1 else self._decode(list(tokens[: number + 1]))
            is_there = not read.endswith(BROKEN) and text.startswith(read) and len(read) > done
            end = len(text) if number == len(tokens) - 1 else len(read) if is_there else done
            pieces.append(text[done:end])
            done = end
        return tuple(pieces)
