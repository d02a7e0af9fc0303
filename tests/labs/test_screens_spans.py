"""The two numbers of a click are judged one by one, each at the token that ends it."""

from types import SimpleNamespace
from typing import Any

from mmrl.labs.screens import spans
from tests.parameters import in_one_test


def batch(*answers: list[str], box: tuple[int, int, int, int] = (10, 20, 30, 40)) -> Any:
    prompts = [SimpleNamespace(target={"box": box}) for _ in answers]
    return SimpleNamespace(prompts=prompts, outputs=SimpleNamespace(pieces=answers))


RIGHT = ["<answer>", "(", "1", "5", ",", " 3", "9", ")", "</answer>"]


def test_each_number_ends_at_its_mark_and_the_rest_at_the_last_token() -> None:
    assert spans.ends(batch(RIGHT)) == [[0, 0, 0, 0, 1, 0, 0, 1, 1]]


@in_one_test(
    ("numbers", "across", "down"),
    [
        (("1", "5", "3", "9"), 1, 1),
        (("3", "0", "2", "0"), 0, 1),
        (("1", "0", "4", "0"), 1, 0),
        (("0", "9", "1", "9"), 0, 0),
    ],
)
def test_a_number_is_right_inside_of_the_box_whose_far_edges_are_outside(
    numbers: tuple[str, str, str, str], across: int, down: int
) -> None:
    a, b, c, d = numbers
    one = batch(["(", a, b, ",", " ", c, d, ")"])
    assert spans.across(one) == [[0, 0, 0, across, 0, 0, 0, 0]]
    assert spans.down(one) == [[0, 0, 0, 0, 0, 0, 0, down]]


def test_each_step_is_right_or_wrong_by_itself() -> None:
    wrong_across = ["<answer>", "(", "5", ",", " 3", "9", ")", "</answer>", ""]
    unfinished = ["<answer>", "(", "1", "5", ",", " 3", "9", ")"]
    found = spans.steps(batch(RIGHT, wrong_across, unfinished, ["15", " 39"]))
    assert found[0] == [0, 0, 0, 0, 1, 0, 0, 1, 1]
    assert found[1] == [0, 0, 0, 0, 0, 0, 1, 0, 1]
    assert found[2] == [0, 0, 0, 0, 1, 0, 0, 0]  # the bracket is the last token, and the answer is not whole
    assert found[3] == [0, 0]


def test_what_is_no_click_earns_nothing_and_ends_at_the_last_token() -> None:
    none = batch(["15", " 39"], ["(", "15", ","])
    assert spans.across(none) == spans.down(none) == [[0, 0], [0, 0, 0]]
    assert spans.ends(none) == [[0, 1], [0, 0, 1]]
