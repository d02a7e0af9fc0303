"""Functions of users as rewards: what they are given, and what they may return."""

import random
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import RewardBatch, Segmented
from mmrl.core.data import Outputs, Prompt
from mmrl.core.plugins import build
from mmrl.media.pictures import StoredPicture
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from mmrl.rewards.wrappers.python import ALWAYS, OUTPUTS, Python
from tests.rewards.example import Example, answers, make_batch
from tests.rewards.own_rewards import tokens

pytestmark = pytest.mark.usefixtures("own")


def share_of_letter_a(text: str) -> float:
    """For the example."""
    return text.count("a") / max(len(text), 1)


def random_batch(source: random.Random) -> RewardBatch:
    return answers(["".join(source.choices("ab", [n, 8 - n], k=source.randrange(1, 6))) for n in range(9)][1:])


EXAMPLE = Example(
    random_batch=random_batch,
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
        screens=(StoredPicture("a screen", content=b""), None),
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
    assert first["screen"] == StoredPicture("a screen", content=b"") and second["screen"] is None
    assert first["prompt"] == Prompt("a", target=target) and first["target"] == target and first["answer"] == "red"
    assert second["seed"] == 1 and second["iteration"] == 7


def test_every_output_of_a_policy_has_a_parameter() -> None:
    assert set(OUTPUTS.values()) <= {item.name for item in fields(Outputs)}
    assert not set(OUTPUTS) & set(ALWAYS)


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


def test_the_same_settings_are_equal() -> None:
    assert Python("my_rewards:close") == Python("my_rewards:close") != Python("my_rewards:scaled")


def test_no_sample_has_no_score() -> None:
    empty: Tensor = Python("my_rewards:close").score(answers([]))
    assert empty.shape == (0,)


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


def test_zeros_behind_the_last_token_are_no_scores(own: Any) -> None:
    own.VALUES["batch"] = [[1.0] * 4, [0.5], [1, 1]]
    found = Python("my_rewards:whatever", "batch", (0.5, 1), "token").score(tokens())
    assert found.tolist() == [[1, 1, 1, 1], [0.5, 0, 0, 0], [1, 1, 0, 0]]
