"""Tokens of a part of an answer, and the weights that rewards ask for, by hand."""

from mmrl.core.likelihoods import tokens_between, weights_read


def test_tokens_of_characters_are_those_with_a_part_of_their_text_there() -> None:
    pieces = ("<answer>", "r", "ed", "", "é</", "answer>", "")  # `é` is of two tokens; the last ends the answer
    assert tokens_between(pieces, 8, 12) == [1, 2, 3, 4], "a token with a part of its text there counts"
    assert tokens_between(pieces, 8, 11) == [1, 2]
    assert tokens_between(pieces, 9, 10) == [2]
    assert tokens_between(pieces, 11, 21) == [3, 4, 5], "the end token has no character"
    assert tokens_between(pieces, 8, 8) == []
    assert tokens_between((), 0, 5) == []


def test_each_set_of_weights_is_read_once_and_the_recorded_ones_not_at_all() -> None:
    needs = {"texts", "likelihoods.sampled", "likelihoods.reference", "right_answer.reference", "right_answer.averaged"}
    assert weights_read(needs) == ("averaged", "reference")
    assert weights_read({"self_certainty.old", "turn_answer.trained"}) == ("old", "trained")
    assert weights_read({"texts", "target.answer"}) == ()
