"""Tasks of several clicks: every state has a way to the end that can be seen, and guessing does not find it."""

import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from mmrl.labs.screens.drawing import BAR, SIZE
from mmrl.labs.screens.world import Element, Screen
from mmrl.labs.tasks import world
from mmrl.labs.tasks.pages import BACK, GAP, MARK, PAIRS, Look, PagePicture, new_screen
from mmrl.labs.tasks.world import ENDS, NOTHING, SETS, Page, State, Task

MANY = range(5_000_000, 5_000_150)
BUTTON, DIAL, OTHER = (
    Element("green", "button", (60, 20, 92, 36)),
    Element("red", "dial", (20, 20, 40, 40)),
    Element("blue", "button", (60, 60, 92, 76)),
)


def middle(element: Element) -> tuple[float, float]:
    x1, y1, x2, y2 = element.box
    return (x1 + x2) / 2, (y1 + y2) / 2


def form() -> Task:
    """Set the red dial, then press the green button; the blue one leads astray, and so does a form sent too early."""
    first = Page(Screen((DIAL, BUTTON, OTHER), 236), (SETS, ENDS, 1), needs=frozenset({0}), otherwise=1)
    astray = Page(Screen((OTHER,), 60), (NOTHING,), back=0, depth=1)
    return Task("form", (("red", "dial"), ("green", "button")), (first, astray))


@pytest.mark.slow
def test_every_split_has_its_tasks_and_no_task_of_another() -> None:
    seeds = {split: {one.target["task"] for one in world.prompts(split)} for split in world.SPLITS}
    assert {split: len(found) for split, found in seeds.items()} == {"train": 4096, "held_out": 512}
    assert not seeds["train"] & seeds["held_out"]
    assert max(seeds["held_out"]) < world.FIRST_SEED["pretrain"]
    for split in world.SPLITS:
        for one in world.prompts(split)[:100]:
            task, (picture,) = world.task(one.target["task"]), one.media
            assert one.text == task.goal and picture.size == (112, 112)
            assert picture.load().tobytes() == task.look(State()).render().tobytes()
    goals = {split: {one.text for one in world.prompts(split)} for split in world.SPLITS}
    assert len(goals["held_out"] - goals["train"]) > 300  # most differ in their words too


def test_a_split_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no split 'held-out' \(did you mean 'held_out'\?\); the splits are train, "):
        world.prompts("held-out")


def test_goals_say_what_to_do_in_words() -> None:
    one, two, three = ("red", "dial"), ("blue", "switch"), ("green", "button")
    assert world.goal("form", (one, three)) == "set the red dial, then press the green button"
    assert world.goal("form", (one, two, three)) == (
        "set the red dial and the blue switch, then press the green button"
    )
    assert world.goal("menu", (one, two, three)) == (
        "open the red dial, then the blue switch, then choose the green button"
    )
    assert world.goal("wizard", (one, two)) == "choose the red dial, then the blue switch"


@pytest.mark.slow
def test_tasks_are_of_all_sorts_and_of_two_to_five_clicks() -> None:
    lengths = Counter((world.task(seed).sort, len(world.task(seed).names)) for seed in range(200))
    expected = {"form": {2, 3, 4}, "menu": {2, 3}, "wizard": {2, 3, 4, 5}}
    for sort, counts in expected.items():
        assert {length for found, length in lengths if found == sort} == counts


@pytest.mark.slow
def test_the_oracle_ends_every_task_from_every_state_that_clicks_lead_to() -> None:
    for seed in MANY:
        task = world.task(seed)
        for state in world.reachable(task):
            clicks = 0
            while not state.is_done:
                state = task.after(state, *middle(world.oracle(task.names, task.look(state))))
                clicks += 1
                assert clicks <= 2 * len(task.names) + 1, (seed, state)


def test_from_the_start_the_oracle_needs_one_click_for_each_name() -> None:
    for seed in MANY:
        task, state = world.task(seed), State()
        for name in task.names:
            assert not state.is_done
            element = world.oracle(task.names, task.look(state))
            assert (element.colour, element.kind) == name
            state = task.after(state, *middle(element))
        assert state.is_done


def test_random_clicks_end_few_tasks() -> None:
    rng, ended = random.Random(0), 0
    for seed in range(1_000_000, 1_000_200):
        state = State()
        for _ in range(8):
            state = world.task(seed).after(state, rng.randrange(SIZE), rng.randrange(SIZE))
        ended += state.is_done
    assert ended <= 6


def test_a_form_is_set_and_sent() -> None:
    task, start = form(), State()
    assert task.after(start, 5, 100) == start  # nothing is there
    is_set = task.after(start, *middle(DIAL))
    assert is_set == State(0, frozenset({0}))
    assert task.after(is_set, *middle(DIAL)) == start  # a second click takes it back
    assert task.after(is_set, *middle(BUTTON)) == State(0, frozenset({0}), is_done=True)


def test_a_wrong_button_or_a_form_sent_too_early_leads_astray_and_back() -> None:
    task, start = form(), State()
    for button in (BUTTON, OTHER):
        astray = task.after(start, *middle(button))
        assert astray == State(1)
        assert task.after(astray, *middle(OTHER)) == astray
        assert world.oracle(task.names, task.look(astray)) is BACK
        assert task.after(astray, *middle(BACK)) == start
    assert task.after(State(0, frozenset({0})), *middle(OTHER)) == State(1)  # what was set is lost


def test_after_the_end_nothing_changes() -> None:
    task, end = form(), State(0, frozenset({0}), is_done=True)
    assert task.after(end, *middle(DIAL)) == end


def test_the_oracle_says_where_a_goal_cannot_be_reached() -> None:
    with pytest.raises(ValueError, match="nothing that the goal names is here, and there is no way back"):
        world.oracle((("pink", "dial"),), Look(Screen((DIAL,), 236)))


def test_the_border_of_an_element_belongs_to_it() -> None:
    task = form()
    x1, y1, x2, y2 = DIAL.box
    for x, y, is_hit in ((x1, y1, True), (x2, y2, True), (x1 - 1, y1, False), (x2, y2 + 1, False)):
        assert (task.after(State(), x, y) != State()) == is_hit


def test_states_of_a_task_that_differ_look_different() -> None:
    """Nothing is hidden: what is right can be told from the screen."""
    for seed in MANY[:40]:
        task = world.task(seed)
        looks = [np.asarray(task.look(state).render()).tobytes() for state in world.reachable(task)]
        assert len(set(looks)) == len(looks)


def test_a_page_holds_what_is_named_once_and_nothing_that_other_pages_are_for() -> None:
    for seed in MANY:
        task = world.task(seed)
        for number, page in enumerate(task.pages):
            pairs = [(one.colour, one.kind) for one in page.screen.elements]
            assert len(set(pairs)) == len(pairs) == len(page.leads)
            named = [pair for pair in pairs if pair in task.names]
            if task.sort == "form":
                assert set(named) == (set(task.names) if number == 0 else set())
            else:
                assert named == ([task.names[number]] if number < len(task.names) else [])


def test_elements_leave_room_for_frames_and_for_the_way_back() -> None:
    for seed in MANY:
        screen = new_screen(random.Random(seed), (), 5, ())
        for one in screen.elements:
            x1, y1, x2, y2 = one.box
            assert x1 >= 3 and y1 >= BAR + 3 and x2 <= SIZE - 3 and y2 <= SIZE - 3
        for one, other in combinations((*screen.elements, BACK), 2):
            apart = max(
                one.box[0] - other.box[2],
                other.box[0] - one.box[2],
                one.box[1] - other.box[3],
                other.box[1] - one.box[3],
            )
            assert apart >= GAP


def test_of_two_elements_more_one_shares_the_colour_and_one_the_kind_of_a_wanted_one() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        wanted = rng.choice(PAIRS)
        screen = new_screen(rng, (wanted,), 3, ())
        others = [(one.colour, one.kind) for one in screen.elements if (one.colour, one.kind) != wanted]
        assert {(pair[0] == wanted[0], pair[1] == wanted[1]) for pair in others} == {(True, False), (False, True)}


def test_marks_depth_and_the_way_back_are_drawn() -> None:
    plain, everything = Look(Screen((DIAL,), 236)), Look(Screen((DIAL,), 236), frozenset({0}), True, 2)
    before, after = (np.asarray(look.render()).astype(int) for look in (plain, everything))
    x1, y1, x2, y2 = DIAL.box
    for x, y in ((x1 - 3, y1 - 3), (x2 + 2, y2 + 2), (x1 - 2, y1 + 5)):
        assert tuple(after[y, x]) == MARK
    changed = {(int(x), int(y)) for y, x in zip(*np.nonzero((before != after).any(-1)), strict=True)}
    back = {(x, y) for x in range(BACK.box[0], BACK.box[2]) for y in range(BACK.box[1], BACK.box[3])}
    assert back <= changed
    rest = {(x, y) for x, y in changed - back if not (x1 - 3 <= x < x2 + 3 and y1 - 3 <= y < y2 + 3)}
    assert rest and all(y < BAR for _, y in rest)  # the ticks of the depth


def test_a_larger_picture_has_the_same_layout() -> None:
    look = world.task(3).look(State())
    small, large = PagePicture(look), PagePicture(look, 448)
    assert small.load().size == small.size == (112, 112) and large.load().size == large.size == (448, 448)
    shrunk = np.asarray(large.load().resize((112, 112), 4)).astype(int)  # 4: each pixel the mean of sixteen
    assert np.abs(shrunk - np.asarray(small.load()).astype(int)).mean() < 4
    assert small == PagePicture(world.task(3).look(State())) and hash(small) != hash(large)
