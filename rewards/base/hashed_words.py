"""Texts as vectors without a model: the hashed words of each."""

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

_WORD = re.compile(r"\w+")


def hashed_words(texts: Sequence[str], size: int) -> Tensor:
    """Returns vectors [n, size] float32 of length 1, the signed hashes of words and of pairs of neighboring words.

    Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning", arXiv 0902.2206, section 2: a word
    adds a sign to one of `size` places, both by its hash (CRC-32 here), so that other words are noise of mean 0. A text
    without a word is 0.
    """
    vectors = torch.zeros(len(texts), size)
    for row, text in enumerate(texts):
        words = _WORD.findall(text.lower())
        for word in [*words, *map(" ".join, pairwise(words))]:
            number = zlib.crc32(word.encode())
            vectors[row, number % size] += 1 if number >> 31 else -1
    return torch.nn.functional.normalize(vectors, dim=1)
