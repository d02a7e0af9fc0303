import math
import random
from collections import Counter
from itertools import combinations
from typing import get_args

import numpy as np
import pytest

from mmrl.labs.screens import world
from mmrl.labs.screens.drawing import BAR, COLOURS, KINDS, SIZE
from mmrl.labs.screens.questions import Noise, noisy_answer
from tests.parameters import in_one_test

MANY = range(5_000_000, 5_000_200)


def all_inside(numbers: tuple[int, ...]) -> bool:
    return all(0 <= number <= SIZE for number in numbers)


@pytest.mark.slow
def test_every_split_has_its_screens_and_asks_for_one_element_of_each() -> None:
    for split in world.SPLITS:
        asked = world.prompts(split)
        assert len(asked) == (4096 if split.endswith("train") else 512)
        for question in asked[:100]:
            elements = world.screen(question.media[0].seed).elements
            (meant,) = [element for element in elements if element.box == question.target["box"]]
            assert question.text == ("click the " if split.startswith("click") else "box of the ") + meant.name
            assert [element.name for element in elements].count(meant.name) == 1


@pytest.mark.slow  # most of a second each, or more
def test_no_held_out_screen_is_trained_on() -> None:
    held_out = {world.screen(question.media[0].seed) for question in world.prompts("click_held_out")}
    train = {world.screen(question.media[0].seed) for question in world.prompts("click_train")}
    assert len(held_out) == 512 and len(train) == 4096
    assert held_out.isdisjoint(train)
    assert world.FIRST_SEED["held_out"] + 512 <= world.FIRST_SEED["pretrain"]


@pytest.mark.slow
def test_every_pair_of_colour_and_kind_is_asked_for_in_every_split() -> None:
    for split in ("click_train", "click_held_out"):
        counts = Counter(" ".join(question.text.split()[-2:]) for question in world.prompts(split))
        assert len(counts) == len(COLOURS) * len(KINDS) == 24
        assert min(counts.values()) > 0.4 * sum(counts.values()) / 24


def test_an_unknown_split_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no split 'click_heldout' \(did you mean 'click_held_out'\?\)"):
        world.prompts("click_heldout")


def test_a_seed_draws_the_same_screen_again_and_another_seed_another() -> None:
    assert world.screen(7) == world.screen(7) != world.screen(8)
    first, again = world.ScreenPicture(7).load(), world.ScreenPicture(7).load()
    assert first.mode == "RGB" and first.size == (SIZE, SIZE)
    assert first.tobytes() == again.tobytes() != world.ScreenPicture(8).load().tobytes()


def test_elements_lie_below_the_title_bar_inside_of_the_window_and_apart() -> None:
    for seed in MANY:
        elements = world.screen(seed).elements
        assert 3 <= len(elements) <= 5
        for element in elements:
            x1, y1, x2, y2 = element.box
            assert 2 <= x1 < x2 <= SIZE - 2 and BAR + 2 <= y1 < y2 <= SIZE - 2
        for a, b in combinations([element.box for element in elements], 2):
            apart_x = max(a[0], b[0]) - min(a[2], b[2])
            apart_y = max(a[1], b[1]) - min(a[3], b[3])
            assert max(apart_x, apart_y) >= world.GAP


def test_on_every_screen_two_elements_share_a_colour_and_two_a_kind() -> None:
    for seed in MANY:
        elements = world.screen(seed).elements
        assert len({element.name for element in elements}) == len(elements)
        assert len({element.colour for element in elements}) < len(elements)
        assert len({element.kind for element in elements}) < len(elements)


@pytest.mark.slow
def test_the_pixels_of_an_element_have_its_colour_and_fill_its_box_to_the_edges() -> None:
    for seed in list(MANY)[:50]:
        screen = world.screen(seed)
        pixels = np.asarray(screen.render()).astype(int)
        for element in screen.elements:
            x1, y1, x2, y2 = element.box
            is_fill = (pixels == COLOURS[element.colour]).all(axis=2)
            inside = is_fill[y1:y2, x1:x2]
            assert inside.any(axis=0).all() or element.kind in ("checkbox", "dial")
            rows, columns = inside.any(axis=1).nonzero()[0], inside.any(axis=0).nonzero()[0]
            assert (rows[0], rows[-1]) == (0, y2 - y1 - 1) and (columns[0], columns[-1]) == (0, x2 - x1 - 1)


@pytest.mark.parametrize("task", get_args(world.Task))
def test_the_right_answer_scores_1_for_its_element_and_not_for_another(task: world.Task) -> None:
    for seed in list(MANY)[:50]:
        for element in world.screen(seed).elements:
            answer = world.right_answer(element, task)
            assert world.score(answer, element.box, task) == 1.0
            others = [other for other in world.screen(seed).elements if other != element]
            assert all(world.score(answer, other.box, task) == 0.0 for other in others)


@in_one_test(
    ("answer", "score"),
    [
        ("<answer>(10, 20)</answer>", 1.0),  # a corner
        ("<answer>(30, 30)</answer>", 1.0),  # the other
        ("<answer>(31, 25)</answer>", 0.0),
        ("<answer>(15, 31)</answer>", 0.0),
        ("<answer>(15,25)</answer>", 0.0),
        (" <answer>(15, 25)</answer>", 0.0),
        ("<answer>(15, 25)</answer>\n", 0.0),
        ("<answer>(\u0661\u0665, 25)</answer>", 0.0),  # Arabic digits
        ("<answer>[15, 25, 16, 26]</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_a_click_hits_the_box_or_its_border_if_it_is_wholly_an_answer(answer: str, score: float) -> None:
    assert world.score(answer, (10, 20, 30, 30), "click") == score


def test_the_score_of_a_box_is_its_overlap_counted_in_pixels() -> None:
    rng = random.Random(0)
    for _ in range(50):
        boxes = []
        for _ in range(2):
            x1, y1 = rng.randint(0, 20), rng.randint(0, 20)
            boxes.append((x1, y1, x1 + rng.randint(1, 20), y1 + rng.randint(1, 20)))
        a, b = ({(x, y) for x in range(c[0], c[2]) for y in range(c[1], c[3])} for c in boxes)
        expected = len(a & b) / len(a | b)
        assert math.isclose(world.score(world.box_answer(boxes[0]), boxes[1], "box"), expected)


@pytest.mark.parametrize("box", [(5, 5, 5, 9), (9, 5, 5, 9), (5, 9, 9, 5)])
def test_a_box_without_an_area_scores_0(box: tuple[int, int, int, int]) -> None:
    assert world.score(world.box_answer(box), (0, 0, 10, 10), "box") == 0.0


def test_answers_are_whole_numbers_on_the_screen() -> None:
    assert world.click_answer(-3.0, 111.6) == "<answer>(0, 111)</answer>"
    assert world.box_answer((-1.0, 2.4, 112.2, 57.5)) == "<answer>[0, 2, 112, 58]</answer>"


@pytest.mark.slow
def test_labels_are_as_wrong_as_they_are_told_to_be() -> None:
    """Of 4,000 labels; the standard errors are about 0.008 for the share and 0.006 sides for the others."""
    rng, screens = random.Random(1), [world.screen(seed) for seed in range(6_000_000, 6_001_000)]
    is_other, errors = [], []
    for screen in screens * 4:
        element = screen.elements[0]
        answer = noisy_answer(screen, element, "click", Noise(wrong=0.4, jitter=0.0), rng)
        is_other.append(world.score(answer, element.box, "click") == 0.0)
        x1, y1, x2, _ = element.box
        if not (30 < x1 < 60 and 30 < y1 < 60):  # where the screen's edge cuts nothing off
            continue
        match = world.CLICK.fullmatch(noisy_answer(screen, element, "click", Noise(jitter=0.25, shift=0.2), rng))
        assert match is not None
        errors.append((int(match[1]) - (x1 + x2) / 2) / (x2 - x1))
    assert abs(np.mean(is_other) - 0.4) < 0.03
    assert abs(np.mean(errors) - 0.2) < 0.05 and abs(np.std(errors) - 0.25) < 0.05
