"""Hashed words against the hashes of each word by hand."""

import zlib

import torch
from torch.testing import assert_close

from mmrl.rewards.base.hashed_words import hashed_words


def test_words_and_pairs_add_a_sign_to_their_places() -> None:
    expected = torch.zeros(16)
    for word in ("red", "circle", "red", "red circle", "circle red"):
        number = zlib.crc32(word.encode())
        expected[number % 16] += 1 if number >= 2**31 else -1
    assert_close(hashed_words(["Red, circle red!"], 16)[0], expected / expected.norm())


def test_order_counts_and_no_word_is_nothing() -> None:
    vectors = hashed_words(["left of right", "right of left", "left of right", "..."], 512)
    assert_close(vectors[0], vectors[2])
    assert 0.2 < float(vectors[0] @ vectors[1]) < 0.9  # the same words in other pairs
    assert_close(vectors.norm(dim=1), torch.tensor([1.0, 1.0, 1.0, 0.0]))
