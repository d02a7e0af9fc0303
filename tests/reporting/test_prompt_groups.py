"""The groups of a run on its page: what is read of the log, the order, the badges, and the histories of prompts."""

import json
import re
from typing import Any

import pytest

from mmrl.reporting.group_log import Group
from mmrl.reporting.prompt_groups import (
    ENDS,
    MAX_PROMPTS,
    GroupRecord,
    groups_about,
    groups_table,
    prompt_histories,
)
from tests.report_pages import Page


def line(iteration: int, **means: float | None) -> bytes:
    groups: list[dict[str, Any]] = [
        {"prompt": number, "name": name, "text": f"text {name}", "size": 2, "mean": mean, "std": 0.1, "rewards": {}}
        for number, (name, mean) in enumerate(means.items())
    ]
    return json.dumps({"iteration": iteration, "groups": groups}).encode()


def record_of(*lines: bytes) -> GroupRecord:
    record = GroupRecord()
    record.add(lines)
    return record


def group(name: str, mean: float | None, std: float | None = 0.1, **more: Any) -> Group:
    return Group(0, name, f"text {name}", 2, mean, std, **more)


def rows_of(html: str) -> list[str]:
    return re.findall(r"<tr><td.*?</tr>", html)


def test_the_newest_groups_stay_and_all_means_of_a_prompt() -> None:
    record = record_of(line(1, a=0.5, b=None), line(4, a=0.25), line(9, a=None, c=1.0))
    assert record.iteration == 9 and [one.name for one in record.newest] == ["a", "c"]
    histories = {name: (list(one.iterations), list(one.means)) for name, one in record.prompts.items()}
    assert histories == {"a": ([1, 4], [0.5, 0.25]), "b": ([], []), "c": ([9], [1.0])}


@pytest.mark.parametrize(
    "damaged",
    [b"", b"no", b"[" * 10**5, b"[1]", b'{"groups": []}', b'{"iteration": "1", "groups": []}'],
    ids=["empty", "words", "deep", "list", "no iteration", "text"],
)
def test_a_line_that_is_none_changes_nothing(damaged: bytes) -> None:
    assert record_of(line(1, a=0.5), damaged) == record_of(line(1, a=0.5))


def test_a_group_that_is_none_is_left_out_and_wrong_fields_are_nothing() -> None:
    odd = {"prompt": 1, "name": 3, "text": None, "size": "x", "mean": True, "std": "0", "rewards": {"r": "1", "s": 2}}
    record = record_of(json.dumps({"iteration": 1, "groups": [1, {}, {"prompt": "0"}, odd]}).encode())
    (only,) = record.newest
    assert (only.name, only.text, only.size, only.mean, only.std) == ("3", "None", 0, None, None)
    assert only.rewards == {"r": None, "s": 2.0} and only.is_degenerate is False
    assert record_of(b'{"iteration": 2, "groups": 3}').newest == []


def test_groups_stand_from_the_best_to_the_worst_with_their_badges() -> None:
    record = GroupRecord(3, [group("low", 0.1), group("none", None), group("high", 0.9), group("wide", 0.5, 0.4)])
    rows = rows_of(groups_table(record))
    assert [re.findall(r"text (\w+)", row) for row in rows] == [["high"], ["wide"], ["low"]]
    badges = [re.findall(r'badge place">([\w ]+)<', row) for row in rows]
    assert badges == [["best"], ["widest"], ["worst"]]
    assert "The 3 groups of iteration 3, from the best to the worst. 1 more could not be judged." in groups_about(
        record
    )


def test_a_group_whose_samples_score_alike_says_so() -> None:
    record = GroupRecord(1, [group("a", 0.5, 0.0, is_degenerate=True), group("b", 0.4)])
    assert "no spread" in rows_of(groups_table(record))[0] and "1 of them teach nothing" in groups_about(record)


def test_of_many_groups_both_ends_stand_open_and_the_others_fold() -> None:
    few = GroupRecord(1, [group(str(number), number / 20) for number in range(2 * ENDS + 2)])
    assert "<details" not in groups_table(few) and len(rows_of(groups_table(few))) == 2 * ENDS + 2
    many = GroupRecord(1, [group(str(number), number / 20) for number in range(2 * ENDS + 3)])
    top, between, bottom = groups_table(many).partition("<details")[0], *re.split("</?details", groups_table(many))[1:]
    assert (len(rows_of(top)), len(rows_of(between)), len(rows_of(bottom))) == (ENDS, 3, ENDS)
    assert "3 groups between" in between
    Page(groups_table(many))  # every tag is closed


def test_rewards_have_columns_where_there_are_several() -> None:
    one, two = ({"r": 0.25}, {"r": 0.25, "s": None})
    assert "0.250" not in groups_table(GroupRecord(1, [group("a", 0.5, rewards=one)]))
    table = groups_table(GroupRecord(1, [group("a", 0.5, rewards=two)]))
    assert "0.250" in table and ">s</th>" in table


def test_nothing_is_shown_of_no_groups() -> None:
    nothing = GroupRecord()
    assert groups_about(nothing) == groups_table(nothing) == prompt_histories(nothing) == ""


def test_prompts_of_one_time_have_no_history() -> None:
    assert prompt_histories(record_of(line(1, a=0.5, b=0.5))) == ""
    assert prompt_histories(record_of(line(1, a=0.5), line(2, a=None))) == "", "one mean is no curve"


def test_histories_begin_with_the_hardest_prompt_and_mark_their_way() -> None:
    html = prompt_histories(record_of(line(1, a=0.2, b=0.9, c=0.5, d=0.0), line(10, a=0.8, b=0.1, c=0.5)))
    assert "3 of 4 prompts were sampled" in html and "The history of 3 prompts" in html
    rows = rows_of(html)
    assert [re.findall(r"text (\w)", row)[0] for row in rows] == ["b", "c", "a"]
    assert ["right down" in row for row in rows] == [True, False, False]
    assert ["right up" in row for row in rows] == [False, False, True]
    curves = [re.findall(r'points="([^"]*)"', row)[0] for row in rows]
    assert curves[0] == "13.6,2.0 118.0,26.0", (
        "of 120 x 28 pixels: iteration 1 and 10 of 10, the highest and the lowest"
    )
    assert curves[1] == "13.6,14.0 118.0,14.0"
    Page(html)


def test_more_prompts_than_are_shown_are_counted() -> None:
    means = {f"n{number}": number / 1000 for number in range(MAX_PROMPTS + 5)}
    html = prompt_histories(record_of(line(1, **means), line(2, **means)))
    assert len(rows_of(html)) == MAX_PROMPTS and f"The {MAX_PROMPTS} hardest ones are shown." in html
    assert f"{MAX_PROMPTS + 5} of {MAX_PROMPTS + 5} prompts" in html
    assert "text n0<" in html and f"text n{MAX_PROMPTS}<" not in html
    assert "hardest ones" not in prompt_histories(record_of(line(1, a=1.0), line(2, a=1.0)))
