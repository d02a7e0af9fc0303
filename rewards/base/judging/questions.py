"""A question to a judge, and what comes back."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image


class UnansweredError(RuntimeError):
    """A question without an answer that counts: no reply, half a reply, or one that cannot be read."""


@dataclass(frozen=True)
class Question:
    """What a judge is asked: the images, in their order, stand before the text."""

    text: str
    system: str = ""  # the system message; empty: none
    images: "tuple[Image, ...]" = ()  # in RGB
    words: tuple[str, ...] = ()  # the probabilities of these first words are asked for; (): the reply is written
    schema: Mapping[str, Any] | None = None  # JSON schema of the reply, for a judge that keeps to one

    def digest(self) -> str:
        """Returns a name that is equal for equal questions, pixel for pixel."""
        return self._digest

    @cached_property  # each judge and each vote asks for it
    def _digest(self) -> str:
        hashed = blake2b(digest_size=20)
        for part in (self.text, self.system, repr(self.words), repr(self.schema)):
            hashed.update(f"{len(part)}:{part}".encode(errors="surrogatepass"))
        for image in self.images:
            hashed.update(f"{image.mode} {image.size}".encode())
            hashed.update(image.tobytes())
        return hashed.hexdigest()


@dataclass(frozen=True)
class Reply:
    """What a judge replied."""

    text: str  # what it wrote; empty where probabilities were asked for
    log_probs: tuple[float, ...] | None = None  # of the question's words, -inf: too unlikely to be told
    prompt_tokens: int = 0  # of the question, its images included
    reply_tokens: int = 0
