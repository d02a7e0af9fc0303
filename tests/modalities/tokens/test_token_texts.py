"""The texts of tokens: joined they are the answer, and a character is the token's that completes it."""

import random
from functools import cache
from typing import Any

import pytest

from mmrl.core.data import Outputs
from mmrl.modalities.tiny.vision_language import BUILDERS
from mmrl.modalities.tokens.token_texts import TokenTexts
from tests import vision_twins
from tests.parameters import in_one_test


def read_bytes(tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def read_words(tokens: list[int]) -> str:
    """As sentencepiece: the space in front of the first word is no part of a text."""
    return "".join(f" w{token}" for token in tokens)[1:]


def test_a_character_of_several_tokens_is_the_last_ones() -> None:
    tokens = list("aé☃😀b".encode())
    found = TokenTexts(read_bytes)(tokens, "aé☃😀b")
    assert found == ("a", "", "é", "", "", "☃", "", "", "", "😀", "b")


def test_bytes_that_are_no_character_go_with_what_follows_and_an_unfinished_end_with_the_last_token() -> None:
    tokens = [0xFF, 0xF0, ord("a"), ord("b"), 0xE2, 0x98]
    assert TokenTexts(read_bytes)(tokens, read_bytes(tokens)) == ("", "", "��a", "b", "", "�")


@in_one_test("seed", range(20))
def test_joined_they_are_the_text_for_any_bytes(seed: int) -> None:
    source = random.Random(seed)
    characters = [*"é☃😀ab".encode(), 0xFF, 0xC3]
    tokens = [source.choice(characters) for _ in range(200)]
    text = read_bytes(tokens)
    found = TokenTexts(read_bytes)(tokens, text)
    assert len(found) == 200 and "".join(found) == text
    for number, piece in enumerate(found):  # one that ends in a character ends where the text up to it does
        if piece and not piece.endswith("�"):
            assert read_bytes(tokens[: number + 1]) == "".join(found[: number + 1])


def test_a_tokenizer_that_reads_the_first_word_otherwise_is_right_too() -> None:
    assert TokenTexts(read_words)([3, 5, 3], "w3 w5 w3") == ("w3", " w5", " w3")


def test_no_token_has_no_piece() -> None:
    assert TokenTexts(read_bytes)([], "") == ()


@pytest.mark.slow
def test_a_long_answer_of_broken_bytes_takes_linear_time() -> None:
    asked = 0

    def counted(tokens: list[int]) -> str:
        nonlocal asked
        asked += len(tokens)
        return read_bytes(tokens)

    TokenTexts(counted)([0xFF] * 3000, "�" * 3000)
    assert asked < 6 * 3000


@cache
def rollout(family: str) -> Any:
    return vision_twins.rollout(vision_twins.policy(family), 10)


@pytest.mark.slow
@pytest.mark.parametrize("family", BUILDERS)
def test_the_answers_of_a_policy_have_a_piece_for_each_token(family: str) -> None:
    outputs = rollout(family).outputs
    assert tuple("".join(pieces) for pieces in outputs.pieces) == outputs.texts
    assert [len(pieces) for pieces in outputs.pieces] == outputs.num_tokens.tolist()
    assert any(sum(map(bool, pieces)) > 3 for pieces in outputs.pieces)


def test_an_end_token_has_an_empty_piece() -> None:
    policy = vision_twins.policy()
    given = policy.offline(vision_twins.PROMPTS[:1], Outputs(texts=("so ☃",)), vision_twins.keys(1)).outputs
    assert given.pieces is not None and given.num_tokens is not None
    assert given.pieces[0][-1] == "" and "".join(given.pieces[0]) == "so ☃"
    assert len(given.pieces[0]) == given.num_tokens[0]
