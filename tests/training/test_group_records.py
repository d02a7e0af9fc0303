"""What a run records of its groups: numbers and choices against slow loops, and names gathered from processes."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from mmrl.core.data import Outputs, Prompt, Scores
from mmrl.core.keys import GroupKey
from mmrl.media.mp4 import Video
from mmrl.training.group_records import (
    LARGEST,
    MEMBERS,
    TEXT,
    chosen_samples,
    groups_of,
    named_prompts,
    prompt_name,
    saved_of,
    shortened,
)
from mmrl.training.rollouts import Collected

PROMPTS = tuple(Prompt(f"prompt {number}") for number in range(9))
NAMED = [(number, f"name {number}", prompt.text) for number, prompt in enumerate(PROMPTS)]
WEIGHTS = (1.0, -0.5)


def scores_of(*groups: list[float | None]) -> Scores:
    """Groups of single answers by prompt index 0, 1 ...; None could not be judged."""
    values = [value for group in groups for value in group]
    return Scores(
        values=torch.tensor([[math.nan if value is None else value] for value in values]),
        names=("a",),
        weights=(1.0,),
        valid=torch.tensor([value is not None for value in values]),
        group=torch.tensor([number for number, group in enumerate(groups) for _ in group]),
        episode=torch.arange(len(values)),
        turn=torch.zeros(len(values), dtype=torch.long),
    )


def random_scores(seed: int) -> Scores:
    """Two rewards of episodes of up to three turns, some not judged, and controls; rows in any order."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, bool, bool, list[float]]] = []
    episode = 0
    for prompt in rng.choice(9, rng.integers(1, 6), replace=False).tolist():
        for _ in range(rng.integers(1, 8)):
            is_judged, is_control = rng.random() < 0.8, rng.random() < 0.1
            for turn in range(rng.integers(1, 4)):
                own = rng.normal(size=2).tolist()
                is_known = is_judged or turn > 0
                rows.append((prompt, episode, turn, is_judged and not is_control, is_control, own if is_known else
                             [math.nan, own[1]]))  # fmt: skip
            episode += 1
    rng.shuffle(cast(Any, rows))
    prompts, episodes, turns, valid, control, values = zip(*rows, strict=True)
    return Scores(
        values=torch.tensor(values),
        names=("a", "b"),
        weights=WEIGHTS,
        valid=torch.tensor(valid),
        group=torch.tensor(prompts),
        episode=torch.tensor(episodes),
        turn=torch.tensor(turns),
        is_control=torch.tensor(control),
    )


def turns_of(scores: Scores, prompt: int, is_counted: Any) -> list[tuple[int, list[int]]]:
    """The rows of each episode of a prompt that count."""
    rows = [row for row in range(len(scores.group)) if int(scores.group[row]) == prompt and is_counted(row)]
    episodes = sorted({int(scores.episode[row]) for row in rows})
    return [(one, [row for row in rows if int(scores.episode[row]) == one]) for one in episodes]


def mean_and_std(values: np.ndarray, episodes: list[tuple[int, list[int]]]) -> tuple[float, float]:
    """Each episode counts alike, whatever its number of turns."""
    if not episodes:
        return math.nan, math.nan
    mean = float(np.mean([np.mean(values[rows]) for _, rows in episodes]))
    return mean, math.sqrt(np.mean([np.mean((values[rows] - mean) ** 2) for _, rows in episodes]))


@pytest.mark.parametrize("seed", range(12))
def test_numbers_and_choices_are_those_of_a_slow_loop(seed: int) -> None:
    scores = random_scores(seed)
    values = scores.values.double().numpy()
    totals = values @ np.array(WEIGHTS)
    flat = torch.tensor([int(group) % 2 == 0 for group in scores.group])
    expected: dict[int, tuple[float, float]] = {}
    groups = groups_of(scores, flat, NAMED)
    assert [group.prompt for group in groups] == sorted(set(scores.group.tolist()))
    for group in groups:
        number = group.prompt
        valid = turns_of(scores, number, lambda row: bool(scores.valid[row]))
        mean, std = mean_and_std(totals, valid)
        assert (group.mean, group.std) == pytest.approx((mean, std), abs=1e-6, nan_ok=True)
        if valid:
            expected[number] = mean, std
        for column, name in enumerate(("a", "b")):
            judged = turns_of(
                scores, number,
                lambda row, c=column: not math.isnan(values[row, c]) and not bool(scores.is_control[row]),
            )  # fmt: skip
            assert group.rewards[name] == pytest.approx(
                mean_and_std(values[:, column], judged)[0], abs=1e-6, nan_ok=True
            )
        assert (group.name, group.text) == NAMED[number][1:]
        every = turns_of(scores, number, lambda row: not bool(scores.is_control[row]))
        assert group.size == len(every) and group.is_degenerate is (number % 2 == 0)

    chosen = chosen_samples(scores)
    by_place: dict[str, set[int]] = {}
    for one in chosen:
        for word in one.places:
            by_place.setdefault(word, set()).add(int(scores.group[one.row]))
    best = max(expected, key=lambda number: expected[number][0])
    worst = min(expected, key=lambda number: expected[number][0])
    widest = max(expected, key=lambda number: expected[number][1])
    wanted = {"best": {best}, "worst": {worst}, "widest": {widest}}
    assert by_place == {word: wanted[word] for word in list(wanted)[: len(expected)]}
    for number in {int(scores.group[one.row]) for one in chosen}:
        own = [one for one in chosen if int(scores.group[one.row]) == number]
        ranked = [
            (float(np.mean(totals[rows])), next(row for row in range(len(totals)) if
             int(scores.episode[row]) == episode and int(scores.turn[row]) == 0))
            for episode, rows in turns_of(scores, number, lambda row: bool(scores.valid[row]))
        ]  # fmt: skip
        ranked.sort(reverse=True)
        assert len(own) == min(MEMBERS, len(ranked)), "from the highest to the lowest, with both ends"
        assert own[0].total == pytest.approx(ranked[0][0], abs=1e-6)
        assert own[-1].total == pytest.approx(ranked[-1][0], abs=1e-6)
        places = [next(n for n, (_, row) in enumerate(ranked) if row == one.row) for one in own]
        assert places == sorted(set(places)), "no sample stands twice"
        assert [one.total for one in own] == pytest.approx([ranked[place][0] for place in places], abs=1e-6)


def places_of(scores: Scores) -> dict[int, tuple[str, ...]]:
    return {int(scores.group[one.row]): one.places for one in chosen_samples(scores)}


def test_of_equal_groups_the_first_is_taken() -> None:
    tied = scores_of([0.0, 0.0], [1.0, 1.0], [0.0, 2.0], [2.0, 0.0], [0.0, 0.0])
    assert places_of(tied) == {1: ("best",), 0: ("worst",), 2: ("widest",)}
    assert places_of(scores_of([0.5, 0.5], [0.5, 0.5], [0.5, 0.5])) == {0: ("best", "worst", "widest")}


def test_a_group_may_be_two_things_and_few_groups_are_fewer_things() -> None:
    assert places_of(scores_of([1.0, 3.0], [0.0, 0.0], [1.0, 1.0])) == {0: ("best", "widest"), 1: ("worst",)}
    assert places_of(scores_of([0.0], [1.0])) == {1: ("best",), 0: ("worst",)}
    assert places_of(scores_of([0.0, 1.0])) == {0: ("best",)}


def test_what_could_not_be_judged_is_neither_best_nor_worst_and_has_no_mean() -> None:
    scores = scores_of([None, None], [1.0, None, 3.0], [0.0], [None])
    assert places_of(scores) == {1: ("best",), 2: ("worst",)}
    assert [one.row for one in chosen_samples(scores)] == [4, 2, 5]
    assert chosen_samples(scores_of([None], [None])) == []
    nothing, some, *_ = groups_of(scores, torch.ones(len(scores.group), dtype=torch.bool), NAMED)
    assert (nothing.entry()["mean"], nothing.entry()["std"], nothing.entry()["rewards"]) == (None, None, {"a": None})
    assert (some.size, some.mean, some.std) == (3, 2.0, 1.0)


def test_a_group_is_degenerate_where_all_its_samples_are() -> None:
    flat = torch.tensor([True, True, True, False])
    groups = groups_of(scores_of([1.0, 1.0], [1.0, 2.0]), flat, NAMED)
    assert [group.is_degenerate for group in groups] == [True, False]


def test_equal_scores_have_no_spread_of_rounding() -> None:
    groups = groups_of(scores_of([0.1] * 7, [1e9 + 64.0] * 3), torch.zeros(10, dtype=torch.bool), NAMED)
    assert [group.std for group in groups] == [0.0, 0.0]


def test_of_a_large_group_both_ends_and_two_between_are_saved() -> None:
    chosen = chosen_samples(scores_of([float(number) for number in range(10)]))
    assert [one.total for one in chosen] == [9.0, 6.0, 3.0, 0.0]


def collected(numbers: list[int], rows: list[int], scores: Scores, **changes: Any) -> Collected:
    """What one process has: groups of two samples each, at these rows of all scores."""
    side = changes.pop("side", 8)
    images = torch.stack([torch.full((3, side // 2, side), row / 10) for row in rows])
    rollout = SimpleNamespace(
        prompts=tuple(PROMPTS[number] for number in numbers),
        keys=tuple(GroupKey(0, 0, number) for number in numbers),
        prompt=torch.arange(len(numbers)).repeat_interleave(2),
        outputs=Outputs(images=images),
        num_samples=len(rows),
    )
    made = Collected(cast(Any, rollout), scores, torch.tensor(rows), numbers, None, 0, {})
    return replace(made, **changes)


def test_two_processes_name_and_save_what_one_does() -> None:
    scores = scores_of([0.0, 0.2], [0.5, 0.1], [0.9, 0.4], [0.3, 0.3])
    whole = collected([0, 1, 2, 3], list(range(8)), scores)
    parts = [collected([3, 1], [6, 7, 2, 3], scores), collected([0, 2], [0, 1, 4, 5], scores)]
    flat, chosen = torch.zeros(8, dtype=torch.bool), chosen_samples(scores)
    gathered = [named for part in parts for named in named_prompts(part)]
    assert groups_of(scores, flat, gathered) == groups_of(scores, flat, named_prompts(whole))
    assert [one.prompt for one in groups_of(scores, flat, gathered[:2])] == [1, 3], "others have no name"
    one = saved_of(whole, chosen)
    two = sorted((saved for part in parts for saved in saved_of(part, chosen)), key=lambda pair: pair[0])
    assert [place for place, _ in one] == [place for place, _ in two] == list(range(len(chosen)))
    described = [[(s.prompt, s.seed, s.scores, s.total, s.places) for _, s in each] for each in (one, two)]
    assert described[0] == described[1]
    assert [s.prompt for _, s in one] == ["prompt 2"] * 2 + ["prompt 0"] * 2  # the best is the widest too
    for (_, sample), (_, same), from_row in zip(one, two, chosen, strict=True):
        assert sample.image is not None and same.image is not None
        assert sample.image.getpixel((0, 0)) == same.image.getpixel((0, 0)) == (round(from_row.row / 10 * 255),) * 3
        assert sample.total == pytest.approx(float(scores.values[from_row.row, 0]))


def test_a_process_without_a_group_has_nothing_to_name_or_save() -> None:
    scores = scores_of([0.0, 1.0])
    nobody = Collected(None, scores, torch.zeros(0, dtype=torch.long), [], None, 0, {})
    assert named_prompts(nobody) == [] and saved_of(nobody, chosen_samples(scores)) == []


def test_large_pictures_are_saved_smaller_and_small_ones_as_they_are() -> None:
    scores = scores_of([0.0, 1.0])
    for side, expected in ((1000, (LARGEST, LARGEST // 2)), (LARGEST, (LARGEST, LARGEST // 2)), (8, (8, 4))):
        for _, sample in saved_of(collected([0], [0, 1], scores, side=side), chosen_samples(scores)):
            assert sample.image is not None and sample.image.size == expected


def test_a_video_that_was_copied_is_saved_in_the_place_of_the_pixels() -> None:
    scores = scores_of([0.0, 1.0])
    videos = tuple(Video(torch.full((3, 3, 4, 4), 10 * number, dtype=torch.uint8), 8.0) for number in range(2))
    (_, best), (_, least) = saved_of(collected([0], [0, 1], scores, videos=videos), chosen_samples(scores))
    assert best.video is videos[1] and least.video is videos[0]
    assert best.image is not None and best.image.getpixel((0, 0)) == (10, 10, 10)


def test_a_name_is_of_all_that_a_prompt_is() -> None:
    prompt = Prompt("a cat", target={"answer": 3}, system="be short", source="a.jsonl, line 1")
    others = [
        replace(prompt, text="a dog"),
        replace(prompt, target={"answer": 4}),
        replace(prompt, system=None),
        replace(prompt, source="a.jsonl, line 2"),
    ]
    assert prompt_name(prompt) == prompt_name(replace(prompt)) == prompt_name(replace(prompt, target={"answer": 3}))
    assert len({prompt_name(one) for one in (prompt, *others)}) == 5


def test_an_episode_has_the_name_of_its_task() -> None:
    first, second = Prompt("the task"), Prompt("the screen after a click")
    rollout = SimpleNamespace(prompts=(first, second), keys=(GroupKey(0, 0, 7), GroupKey(0, 0, 7)))
    assert named_prompts(cast(Any, SimpleNamespace(rollout=rollout))) == [(7, prompt_name(first), "the task")]


def test_a_text_is_one_line_of_bounded_length() -> None:
    assert shortened(" a\n b\t c ") == "a b c"
    assert shortened("x" * TEXT) == "x" * TEXT
    assert shortened("x" * (TEXT + 1)) == "x" * (TEXT - 3) + "..."
    assert len(shortened("word " * 10**6)) <= TEXT
