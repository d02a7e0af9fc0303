"""Functions of users as rewards: what they are given, what they may return, and what is said of mistakes."""

import random
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.actions import Action
from mmrl.asking import ask
from mmrl.contracts import ConfigError, RewardBatch, Segmented
from mmrl.coordinates import Canvas
from mmrl.data import Outputs, Prompt
from mmrl.plugins import build
from mmrl.rewards.python import GIVEN, OUTPUTS, Python
from tests.rewards.example import Example, answers, make_batch

OWN = """
import torch

def close(text, answer):
    return float(answer in text)

def everything(text, image, video, action, canvas, is_finished, num_tokens, pieces, step_reward, outcome, prompt,
               target, seed, iteration, answer):
    seen.append(dict(locals()))
    return 0

seen = []

def scaled(image, factor=2.0):
    return factor * image.mean()

def of_group(batch):
    lengths = torch.tensor([float(len(text)) for text in batch.outputs.texts])
    return torch.stack([(lengths[batch.group == group] <= length).float().mean()
                        for length, group in zip(lengths, batch.group)])

def spoil(image, target, box):
    image.zero_()
    target["box"].append(5)
    box.append(6)
    return 1.0

def as_list(batch):
    return [len(text) for text in batch.outputs.texts]

def returns(text, value=None):
    return VALUES[text]

VALUES = {}

def whatever(batch):
    return VALUES["batch"]

def digits(batch):
    return [[float(piece.isdigit()) for piece in pieces] for pieces in batch.outputs.pieces]

def at_stops(batch):
    return [[piece == "." for piece in pieces[:-1]] + [True] for pieces in batch.outputs.pieces]

def of_sentences(batch):
    return [[0.5 * (piece == ".") for piece in pieces] for pieces in batch.outputs.pieces]

def loose(*args, **kwargs): return 0
def nothing(): return 0
async def later(text): return 0
def by_place(text, /): return 0
number = 3

class Counting:
    def __call__(self, text):
        return len(text)

counting = Counting()
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module my_rewards of a user, in the working folder."""
    (tmp_path / "my_rewards.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("my_rewards")
    del sys.modules["my_rewards"]


def share_of_letter_a(text: str) -> float:
    """For the example."""
    return text.count("a") / max(len(text), 1)


def draw(source: random.Random) -> RewardBatch:
    return answers(["".join(source.choices("ab", [n, 8 - n], k=source.randrange(1, 6))) for n in range(9)][1:])


EXAMPLE = Example(
    draw=draw,
    best=lambda: answers(["a", "aaa", "aa", "aaaa"]),
    settings={"function": f"{__name__}:share_of_letter_a", "range": [0, 1]},
)


def test_a_function_of_two_lines_is_a_reward() -> None:
    reward: Python = build("rewards", {"name": "python", "function": "my_rewards:close", "range": [0, 1]})
    assert reward.needs == {"texts", "target.answer"} and reward.range == (0.0, 1.0) and not reward.differentiable
    batch = answers(["it is red", "it is blue", "", "red red"], {"answer": "red"})
    found = reward.score(batch)
    assert found.tolist() == [1.0, 0.0, 0.0, 1.0] and found.dtype == torch.float32


def test_parameters_are_what_a_sample_has(own: Any) -> None:
    outputs = Outputs(
        images=torch.rand(2, 3, 4, 4),
        videos=torch.rand(2, 5, 3, 4, 4),
        texts=("one", "two"),
        is_finished=torch.tensor([True, False]),
        num_tokens=torch.tensor([4, 5]),
        pieces=(("o", "n", "e", ""), ("t", "w", "", "o", "")),
        canvases=(Canvas((8, 8), (8, 8), "original"), None),
        actions=(None, Action("click", point=(1, 2))),
        step_rewards=torch.tensor([0.5, 1.5]),
        outcomes=("done", None),
    )
    target = {"answer": "red", "text": "not the answer's"}
    batch = make_batch(outputs, ["a", "b"], [target, target], iteration=7)
    reward = Python("my_rewards:everything")
    assert reward.needs == {*OUTPUTS.values(), "target.answer"}
    reward.score(batch)
    first, second = own.seen
    assert torch.equal(second["image"], outputs.images[1]) and torch.equal(first["video"], outputs.videos[0])  # type: ignore[index]
    assert (first["text"], second["text"]) == ("one", "two")
    assert first["is_finished"] is True and second["num_tokens"] == 5 and second["step_reward"] == 1.5
    assert first["pieces"] == ("o", "n", "e", "")
    assert first["canvas"] == Canvas((8, 8), (8, 8), "original") and first["action"] is None
    assert second["action"] == Action("click", point=(1, 2)) and first["outcome"] == "done"
    assert first["prompt"] == Prompt("a", target=target) and first["target"] == target and first["answer"] == "red"
    assert second["seed"] == 1 and second["iteration"] == 7


def test_every_output_of_a_policy_has_a_parameter() -> None:
    assert set(OUTPUTS.values()) <= {item.name for item in fields(Outputs)}
    assert not set(OUTPUTS) & set(GIVEN)


def test_a_default_stands_in_where_the_target_says_nothing() -> None:
    reward = Python("my_rewards:scaled")
    assert reward.needs == {"images"}
    batch = make_batch(Outputs(images=torch.full((2, 3, 4, 4), 0.25)), ["a", "b"], [{}, {"factor": 3.0}])
    assert reward.score(batch).tolist() == [0.5, 0.75]


def test_a_gradient_is_kept_where_it_is_asked_for() -> None:
    images = torch.rand(2, 3, 4, 4, requires_grad=True)
    batch = make_batch(Outputs(images=images), ["a", "b"])
    assert not Python("my_rewards:scaled").score(batch).requires_grad
    (gradient,) = torch.autograd.grad(Python("my_rewards:scaled", differentiable=True).score(batch).sum(), images)
    torch.testing.assert_close(gradient, torch.full_like(images, 2 / 48))


def test_a_function_for_batches_sees_groups() -> None:
    settings = {"name": "python", "function": "my_rewards:of_group", "mode": "batch", "granularity": "group"}
    reward: Python = build("rewards", settings | {"needs": ["texts"]})
    assert reward.needs == {"texts"} and reward.granularity == "group"
    batch = answers(["a", "bb", "ccc", "dddd", "long", "long", "longer", "x"])
    assert reward.score(batch).tolist() == [0.25, 0.5, 0.75, 1.0, 0.75, 0.75, 1.0, 0.25]


def test_a_function_for_batches_may_return_a_list() -> None:
    assert Python("my_rewards:as_list", "batch").score(answers(["a", "bb"])).tolist() == [1.0, 2.0]


def test_an_object_that_can_be_called_is_a_function() -> None:
    reward = Python("my_rewards:counting")
    assert reward.needs == {"texts"} and reward.score(answers(["abc"])).tolist() == [3.0]


@pytest.mark.parametrize(
    ("number", "value", "expected"),
    [(0, True, 1.0), (1, 3, 3.0), (2, torch.tensor([2.5]), 2.5), (3, torch.tensor(2), 2.0), (4, -0.5, -0.5)],
    ids=["bool", "int", "tensor of one", "tensor of an integer", "float"],
)
def test_numbers_of_every_kind_are_scores(number: int, value: Any, expected: float, own: Any) -> None:
    import numpy

    own.VALUES.update({"it": value, "numpy": numpy.float32(0.5), "array": numpy.array([0.25])})
    assert Python("my_rewards:returns").score(answers(["it"])).tolist() == [expected]
    assert Python("my_rewards:returns").score(answers(["numpy", "array"])).tolist() == [0.5, 0.25]


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
        ask(
            "it",
            build("rewards", {"name": "python", "function": "my_rewards:whatever", "mode": "batch"}),
            answers(["a", "b"]),
        )


def test_a_function_may_change_what_it_is_given() -> None:
    batch = make_batch(Outputs(images=torch.ones(1, 3, 2, 2)), ["q"], [{"box": [1]}])
    assert Python("my_rewards:spoil").score(batch).tolist() == [1]
    assert batch.outputs.images is not None and batch.outputs.images.min() == 1
    assert batch.prompts[0].target == {"box": [1]}


def test_an_unbounded_range_takes_any_finite_number(own: Any) -> None:
    own.VALUES.update(it=-1e6, infinite=float("inf"))
    assert Python("my_rewards:returns").score(answers(["it"])).tolist() == [-1e6]
    with pytest.raises(ValueError, match="gave inf"):
        Python("my_rewards:returns").score(answers(["infinite"]))


def test_what_the_function_raises_is_left_as_it_is() -> None:
    with pytest.raises(KeyError, match="unknown"):
        Python("my_rewards:returns").score(answers(["unknown"]))


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"wants 'answer'.*the target, which has box"):
        Python("my_rewards:close").score(answers(["a"], {"box": 3}))
    with pytest.raises(ValueError, match="wants 'image', and there is none"):  # a field of the target is no image
        Python("my_rewards:scaled").score(answers(["a"], {"image": 3}))


@pytest.mark.parametrize(
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


def test_the_same_settings_are_equal() -> None:
    assert Python("my_rewards:close") == Python("my_rewards:close") != Python("my_rewards:scaled")


def test_no_sample_has_no_score() -> None:
    empty: Tensor = Python("my_rewards:close").score(answers([]))
    assert empty.shape == (0,)


PIECES = (("1", "a", ".", ""), ("b",), (".", "22"))


def tokens(**changes: Any) -> RewardBatch:
    """Three answers of 4, 1 and 2 tokens."""
    batch = answers(["1a.", "b", ".22"], pieces=PIECES)
    return replace(batch, num_decisions=torch.tensor([4, 1, 2]), **changes)


def test_a_function_of_one_line_judges_every_token() -> None:
    settings = {"name": "python", "function": "my_rewards:digits", "mode": "batch", "granularity": "token"}
    reward: Python = build("rewards", settings | {"needs": ["pieces"], "range": [0, 1]})
    assert reward.score(tokens()).tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert "pieces" in Python("my_rewards:everything").needs


def test_a_function_of_segments_has_another_that_says_where_they_end() -> None:
    reward = Python("my_rewards:of_sentences", "batch", granularity="segment", segments="my_rewards:at_stops")
    assert isinstance(reward, Segmented)
    assert reward.score(tokens()).tolist() == [[0, 0, 0.5, 0], [0, 0, 0, 0], [0.5, 0, 0, 0]]
    ends = reward.ends(tokens())
    assert ends.dtype == torch.bool
    assert ends.tolist() == [[False, False, True, True], [True, *[False] * 3], [True, True, False, False]]


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


def test_zeros_behind_the_last_token_are_no_scores(own: Any) -> None:
    own.VALUES["batch"] = [[1.0] * 4, [0.5], [1, 1]]
    found = Python("my_rewards:whatever", "batch", (0.5, 1), "token").score(tokens())
    assert found.tolist() == [[1, 1, 1, 1], [0.5, 0, 0, 0], [1, 1, 0, 0]]


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
