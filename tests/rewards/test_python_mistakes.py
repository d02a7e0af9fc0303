"""Mistakes in functions of users as rewards, and in their settings: what is said of each."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.plugins import build
from mmrl.rewards.wrappers.python import Python
from mmrl.scoring.calls import call_reward
from tests.parameters import in_one_test
from tests.rewards.example import answers
from tests.rewards.own_rewards import tokens

pytestmark = pytest.mark.usefixtures("own")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"my_rewards:returns returned None for 'What is it\?'; a score is one number"),
        ("0.5", "returned '0.5'"),
        ([1.0], r"returned \[1.0\]"),
        (torch.zeros(2), r"returned tensor\(\[0., 0.\]\)"),
        (1j, "returned 1j"),
        (float("nan"), "gave nan.*finite numbers from 0 to 1, its range"),
        (float("inf"), "gave inf"),
        (10**400, "gave inf"),
        (1.5, r"gave 1.5 for 'What is it\?'"),
        (-1, "gave -1.0"),
    ],
    ids=["none", "text", "list", "two", "complex", "nan", "inf", "huge", "above", "below"],
)
def test_what_is_no_score_raises(value: Any, message: str, own: Any) -> None:
    own.VALUES["it"] = value
    with pytest.raises(ValueError, match=message):
        Python("my_rewards:returns", range=(0, 1)).score(answers(["it"]))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned None; a score is one number for each sample"),
        ("ab", "returned 'ab'"),
        ([1.0, None], r"returned \[1.0, None\]"),
        (1.0, r"shape \[\] for a batch of 2 samples; allowed is \[2\]"),
        ([1.0], r"shape \[1\]"),
        (torch.zeros(2, 1), r"shape \[2, 1\]"),
        ([1.0, float("nan")], "gave nan"),
    ],
    ids=["none", "text", "half", "scalar", "one", "matrix", "nan"],
)
def test_what_is_no_column_of_scores_raises(value: Any, message: str, own: Any) -> None:
    own.VALUES["batch"] = value
    with pytest.raises(ValueError, match=message):
        Python("my_rewards:whatever", "batch").score(answers(["a", "b"]))


def test_too_few_numbers_of_a_function_for_batches_do_not_pass_for_those_of_each_sample_alone(own: Any) -> None:
    own.VALUES["batch"] = [1.0]
    with pytest.raises(ConfigError, match=r"shape \[1\] for a batch of 2 samples"):
        call_reward(
            "it",
            build("rewards", {"name": "python", "function": "my_rewards:whatever", "mode": "batch"}),
            answers(["a", "b"]),
        )


def test_what_the_function_raises_is_left_as_it_is() -> None:
    with pytest.raises(KeyError, match="unknown"):
        Python("my_rewards:returns").score(answers(["unknown"]))


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"wants 'answer'.*the target, which has box"):
        Python("my_rewards:close").score(answers(["a"], {"box": 3}))
    with pytest.raises(ValueError, match="wants 'image', and there is none"):  # a field of the target is no image
        Python("my_rewards:scaled").score(answers(["a"], {"image": 3}))


@in_one_test(
    ("function", "message"),
    [
        ("my_rewards", "must be written module:function"),
        ("my_rewards.close", "must be written module:function"),
        ("my_rewards:__import__('os')", "must be written module:function"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("my_rewards:colse", "has no function 'colse'; its functions are close, everything"),
        ("my_rewards:number", "has no function 'number'"),
        ("my_rewards:later", "is asynchronous"),
        ("my_rewards:loose", r"must name what it wants, such as \(text, answer\), got \(\*args, \*\*kwargs\)"),
        ("my_rewards:by_place", r"got \(text\)"),
        ("my_rewards:nothing", r"got \(\)"),
    ],
)
def test_what_is_no_function_is_the_users_error(function: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("rewards", {"name": "python", "function": function})


def test_a_module_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken_rewards.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="importing broken_rewards failed: ZeroDivisionError: division by zero"):
        Python("broken_rewards:f")


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"range must be \[low, high\] with low < high, got \[1, 1\]"):
        Python("my_rewards:close", range=(1, 1))
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        Python("my_rewards:close", batch_size=0)
    with pytest.raises(ValueError, match="granularity group needs mode batch"):
        Python("my_rewards:close", granularity="group")
    with pytest.raises(ConfigError, match="function is needed"):
        build("rewards", {"name": "python"})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(3), r"returned numbers \[3\]; allowed are \[3, 4\]"),
        ([[1.0] * 4, [1.0], [1.0]], r"allowed are lists of \[4, 1, 2\] numbers"),
        ([1.0, 2.0, 3.0], r"returned \[1.0, 2.0, 3.0\]; allowed are lists"),
        (None, "returned None; allowed are lists"),
        ([[1.0] * 4, [None], [1.0] * 2], r"returned \[None\] for sample 1; a score is a number"),
        ([[1.0] * 4, [1.0], [1.0, float("nan")]], "gave nan for 'What is it"),
        ([[1.0] * 4, [1.5], [1.0] * 2], "gave 1.5 for 'What is it.*from 0.5 to 1, its range"),
        (torch.ones(3, 4), "gave sample 1 of the batch numbers where there must be 0"),
    ],
    ids=["column", "ragged", "plain", "none", "half", "nan", "above", "behind"],
)
def test_what_is_no_number_for_each_token_raises(value: Any, message: str, own: Any) -> None:
    own.VALUES["batch"] = value
    with pytest.raises(ValueError, match=message):
        Python("my_rewards:whatever", "batch", (0.5, 1), "token").score(tokens())


def test_ends_of_segments_are_true_or_false(own: Any) -> None:
    own.VALUES["batch"] = [[0, 0, 0.5, 1], [1], [0, 1]]
    with pytest.raises(ValueError, match="my_rewards:whatever must say true or false of each token"):
        Python("my_rewards:digits", "batch", granularity="segment", segments="my_rewards:whatever").ends(tokens())


def test_segments_are_named_where_they_are_judged_and_nowhere_else() -> None:
    with pytest.raises(ValueError, match="granularity segment and `segments` go together, got segment, None"):
        Python("my_rewards:digits", "batch", granularity="segment")
    with pytest.raises(ValueError, match="go together, got token, my_rewards:at_stops"):
        Python("my_rewards:digits", "batch", granularity="token", segments="my_rewards:at_stops")
    with pytest.raises(ValueError, match="granularity token needs mode batch"):
        Python("my_rewards:close", granularity="token")
    with pytest.raises(ConfigError, match="has no function 'stops'"):
        Python("my_rewards:digits", "batch", granularity="segment", segments="my_rewards:stops")
