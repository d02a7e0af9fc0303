"""The text of each token of an answer."""

from collections.abc import Callable, Sequence

BROKEN = "\ufffd"  # the text of bytes that are not, or not yet, a character
LONGEST = 4  # bytes of a character in UTF-8, and so the maximum number of its tokens


class TokenTexts:
    """A splitter of answers into the texts of their tokens; texts of single tokens are cached.

    A character of several tokens belongs to the last of them, and the tokens before have the empty text. The same holds
    for a run of bytes that are no character, up to the next character or the end.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._alone: dict[int, str] = {}

    def __call__(self, tokens: Sequence[int], text: str) -> tuple[str, ...]:
        """Returns a text for each token; joined they are `text`, the decoded answer. Takes linear time.

        With a tokenizer whose tokens have another text at the beginning of an answer, it takes quadratic time.
        """
        pieces: list[str] = []
        first = 0  # the first token without a piece
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
        """Returns whether a whole character ends with these tokens, whatever stands before them."""
        return not self._decode(list(tail)).endswith(BROKEN)

    def _by_prefixes(self, tokens: Sequence[int], text: str) -> tuple[str, ...]:
        """Returns the text that each token adds to the text of the tokens before it."""
        pieces, done = [], 0
        for number in range(len(tokens)):
            read = text if number == len(tokens) - 1 else self._decode(list(tokens[: number + 1]))
            is_there = not read.endswith(BROKEN) and text.startswith(read) and len(read) > done
            end = len(text) if number == len(tokens) - 1 else len(read) if is_there else done
            pieces.append(text[done:end])
            done = end
        return tuple(pieces)
