"""Which steps are random: golden lists, and that only the key decides."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.keys import GroupKey
from mmrl.samplers.base.window import Window, sample_subset
from tests.parameters import in_one_test


def at(iteration: int = 0, *, draw: int = 0, seed: int = 0) -> GroupKey:
    return GroupKey(seed, iteration, draw)


def starts(window: Window, num_steps: int, iterations: int) -> list[int]:
    return [window.steps(num_steps, at(iteration))[0] for iteration in range(iterations)]


def stays(window: Window, num_steps: int, iterations: int) -> list[int]:
    """How many iterations the window spends at each place, the unfinished last one left out."""
    return list(Counter(starts(window, num_steps, iterations)).values())[:-1]


def test_by_default_every_step_but_the_last_is_random() -> None:
    assert Window().steps(5, at()) == (0, 1, 2, 3)


def test_a_range_is_fixed() -> None:
    assert Window("range", first=1, last=4).steps(10, at()) == (1, 2, 3)
    assert Window("range", first=7).steps(10, at()) == (7, 8)


def test_the_sliding_window_of_mixgrpo_reaches_every_step_and_is_never_empty() -> None:
    """25 steps, window 4, 25 iterations at a place: docs/maths/traps.md#windows-without-steps."""
    window = Window("sliding", last=23, size=4)
    places = [window.steps(25, at(25 * place)) for place in range(22)]
    assert places[:2] == [(0, 1, 2, 3), (1, 2, 3, 4)]
    assert places[18:] == [(18, 19, 20, 21), (19, 20, 21, 22), (0, 1, 2, 3), (1, 2, 3, 4)]
    assert window.steps(25, at(24)) == (0, 1, 2, 3)


def test_the_last_place_is_reached_when_the_stride_does_not_divide() -> None:
    assert starts(Window("sliding", size=3, stride=2, every=1), 9, 8) == [0, 2, 4, 5, 0, 2, 4, 5]


def test_without_roll_back_the_window_stays_at_its_end() -> None:
    assert starts(Window("sliding", first=1, size=2, every=2, roll_back=False), 6, 9) == [1, 1, 2, 2, 3, 3, 3, 3, 3]
    assert starts(Window("sliding", size=2, every=1, roll_back=False), 5, 5) == [0, 1, 2, 2, 2]


def test_a_decaying_window_hurries_towards_the_end() -> None:
    """11 iterations at place 0 falling to 1 at place 10 of 10: 11 - place."""
    window = Window("sliding", size=1, every=11, schedule="decay")
    assert stays(window, 11, 65) == [11, 10, 9, 8, 7, 6, 5, 4, 3]


def test_decay_falls_towards_its_minimum_rounded_down() -> None:
    window = Window("sliding", size=1, every=8, min_every=5, schedule="decay")  # 8, 7.25, 6.5, 5.75
    assert stays(window, 5, 26) == [8, 7, 6]
    assert starts(window, 5, 27)[-6:] == [3, 3, 3, 3, 3, 0]


def test_an_exponentially_decaying_window_stays_long_before_its_threshold() -> None:
    """ceil(20 exp(-0.1 max(0, place - 13))), by hand for places 11 to 17."""
    window = Window("sliding", first=11, size=1, schedule="exp_decay", every=20)
    assert stays(window, 20, 127) == [20, 20, 20, 19, 17, 15, 14]


def test_a_window_that_decays_to_nothing_still_visits_every_place() -> None:
    window = Window("sliding", size=1, schedule="exp_decay", every=3, decay_start=0, decay_rate=2000.0)
    assert starts(window, 5, 8) == [0, 0, 0, 1, 2, 3, 0, 0]


@in_one_test("schedule", ["progressive", "random", "decay", "exp_decay"])
def test_a_resumed_run_finds_its_window_from_the_iteration_alone(schedule: Any) -> None:
    def window() -> Window:
        return Window("sliding", size=3, every=4, schedule=schedule)

    whole_run = starts(window(), 12, 100)
    assert [window().steps(12, at(n))[0] for n in reversed(range(100))] == whole_run[::-1]


def test_a_randomly_placed_sliding_window_is_the_same_for_all_groups() -> None:
    window = Window("sliding", size=2, every=3, schedule="random")
    by_group = [[window.steps(8, at(n, draw=draw)) for n in range(60)] for draw in (0, 1)]
    assert by_group[0] == by_group[1]
    assert by_group[0][0] == by_group[0][1] == by_group[0][2]
    assert {steps[0] for steps in by_group[0]} == {0, 1, 2, 3, 4, 5}
    assert by_group[0] != [window.steps(8, at(n, seed=1)) for n in range(60)]


def test_random_windows_of_groups_cover_all_places_alike() -> None:
    window = Window("random", first=1, last=6, size=3)
    counts = Counter(window.steps(10, at(draw=draw)) for draw in range(900))
    assert sorted(counts) == [(1, 2, 3), (2, 3, 4), (3, 4, 5)]
    assert all(abs(count - 300) < 5 * 14.2 for count in counts.values())  # std of a count: sqrt(900 * 1/3 * 2/3)


def test_random_subsets_of_groups_are_equally_likely() -> None:
    window = Window("subset", first=1, last=5, size=2)
    counts = Counter(window.steps(10, at(draw=draw)) for draw in range(1200))
    assert sorted(counts) == [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]
    assert all(abs(count - 200) < 5 * 12.9 for count in counts.values())  # sqrt(1200 * 1/6 * 5/6)


def test_subsets_for_different_purposes_differ() -> None:
    keys = [at(draw=draw) for draw in range(20)]
    assert [sample_subset(range(9), 4, k, "window") for k in keys] != [
        sample_subset(range(9), 4, k, "trained") for k in keys
    ]


@pytest.mark.parametrize("mode", ["random", "subset"])
def test_the_window_of_a_group_changes_with_every_part_of_its_key(mode: Any) -> None:
    window = Window(mode, size=3)
    keys = [GroupKey(0, n, 0) for n in range(20)]
    base = [window.steps(20, key) for key in keys]
    assert base == [window.steps(20, GroupKey(0, n, 0)) for n in range(20)]
    assert base != [window.steps(20, GroupKey(1, n, 0)) for n in range(20)]
    assert base != [window.steps(20, GroupKey(0, n, 1)) for n in range(20)]
    assert base != [window.steps(20, GroupKey(0, n, 0, 1)) for n in range(20)]


@pytest.mark.slow
@given(
    mode=st.sampled_from(["random", "subset", "sliding"]),
    schedule=st.sampled_from(["progressive", "random", "decay", "exp_decay"]),
    first=st.integers(0, 5),
    width=st.integers(1, 8),
    size=st.integers(1, 8),
    stride=st.integers(1, 4),
    every=st.integers(1, 9),
    roll_back=st.booleans(),
    iteration=st.integers(0, 10_000),
)
def test_the_window_has_its_size_and_stays_inside(
    mode: Any,
    schedule: Any,
    first: int,
    width: int,
    size: int,
    stride: int,
    every: int,
    roll_back: bool,
    iteration: int,
) -> None:
    size = min(size, width)
    settings: dict[str, Any] = {"first": first, "last": first + width, "size": size}
    if mode == "sliding":
        settings |= {"stride": stride, "every": every, "schedule": schedule, "roll_back": roll_back}
    steps = Window(mode, **settings).steps(first + width + 1, at(iteration))
    assert len(steps) == size
    assert first <= steps[0] and steps[-1] < first + width
    assert list(steps) == sorted(set(steps))
    if mode != "subset":
        assert steps[-1] - steps[0] == size - 1


@in_one_test(
    ("settings", "message"),
    [
        ({"mode": "random"}, "'random' needs a size"),
        ({"mode": "range", "size": 2}, "'range' does not use 'size'; it uses first, last"),
        ({"first": 1}, "'all' does not use 'first'; it uses nothing else"),
        ({"mode": "sliding", "size": 0}, "size must be at least 1, or null, got 0"),
        ({"mode": "sliding", "size": 2, "stride": 0}, "stride must be at least 1, got 0"),
        ({"mode": "sliding", "size": 2, "every": 0}, "every must be at least 1, got 0"),
        ({"mode": "sliding", "size": 2, "every": 3, "min_every": 4}, r"min_every must be at most every \(3\), got 4"),
        ({"mode": "sliding", "size": 2, "decay_rate": -0.1}, "decay_rate must be at least 0, got -0.1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Window(**settings)


@in_one_test(
    ("window", "message"),
    [
        (Window("range", last=11), "first < last <= 9 with 10 steps.*got first 0, last 11"),
        (Window("range", first=4, last=4), "got first 4, last 4"),
        (Window("range", first=-1), "got first -1, last 9"),
        (Window("random", last=5, size=6), r"size 6 does not fit in the steps \[0, 5\)"),
    ],
)
def test_windows_that_do_not_fit_the_steps_are_refused(window: Window, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        window.bounds(10)
