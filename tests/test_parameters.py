"""What gives a test several values gives it each of them, and says at which one it fails."""

import inspect

import pytest

from tests.parameters import in_one_test


def test_every_value_is_tried_and_fixtures_are_handed_on() -> None:
    tried = []

    @in_one_test("left, right", [(1, 2), (3, 4)])
    @in_one_test("sign", [-1, 1])
    def check(left: int, right: int, sign: int, fixture: str) -> None:
        tried.append((left, right, sign, fixture))

    assert list(inspect.signature(check).parameters) == ["fixture"]
    check(fixture="f")
    assert tried == [(1, 2, -1, "f"), (1, 2, 1, "f"), (3, 4, -1, "f"), (3, 4, 1, "f")]


def test_what_fails_says_at_which_value() -> None:
    @in_one_test("number", [1, 0])
    def check(number: int) -> None:
        assert number

    with pytest.raises(AssertionError) as caught:
        check()
    assert caught.value.__notes__ == ["with {'number': 0}"]


def test_a_value_that_the_test_does_not_take_is_refused() -> None:
    with pytest.raises(AssertionError, match="takes no"):
        in_one_test("other", [1])(lambda number: None)
    with pytest.raises(AssertionError, match="no value"):
        in_one_test("number", [])
