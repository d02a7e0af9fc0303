"""`compute_score` with the arguments of verl's reward managers, and taken out of a file as verl does."""

import importlib.util
import logging
import math
import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from mmrl.interop.verl import PictureSize, batch_score_function, score_function
from mmrl.system.errors import ConfigError, RunError
from tests.parameters import in_one_test

GUIDE = Path(__file__).parents[2] / "docs" / "interop.md"
RIGHT, WRONG = "<answer>4</answer>", "<answer>5</answer>"
POINT = {"name": "point_in_box", "tag": None}


def naive(compute_score: Callable[..., Any], text: str, truth: Any, extra: dict[str, Any] | None = None) -> Any:
    """Asked as verl's NaiveRewardManager does, which adds two entries of its own to extra_info."""
    extra_info = {**(extra or {}), "num_turns": None, "rollout_reward_scores": {}}
    return compute_score(data_source="sums", solution_str=text, ground_truth=truth, extra_info=extra_info)


def batch(compute_score: Callable[..., Any], texts: list[str], truths: list[Any], extras: list[Any]) -> Any:
    """Asked as verl's BatchRewardManager does: data sources and entries are arrays of objects."""
    sources = numpy.array(["sums"] * len(texts), dtype=object)
    entries = numpy.empty(len(texts), dtype=object)
    entries[:] = [extra if extra is None else {**extra, "rollout_reward_scores": {}} for extra in extras]
    return compute_score(data_sources=sources, solution_strs=texts, ground_truths=truths, extra_infos=entries)


def taken_from(file: Path, name: str) -> Any:
    """A function out of a file, with the keyword arguments of a config merged in, as verl's loader makes it."""
    spec = importlib.util.spec_from_file_location("custom_module", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return partial(lambda function, extra, **given: function(**{**given, **extra}), getattr(module, name), {})


def guide_files(folder: Path) -> list[Path]:
    """The guide's files for verl."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    files = []
    for number, block in enumerate(block for block in blocks if "interop.verl" in block):
        files.append(folder / f"rewards_{number}.py")
        files[-1].write_text(block)
    return files


def test_the_files_of_the_guide_are_taken_by_verl(tmp_path: Path) -> None:
    one, whole = guide_files(tmp_path)
    scores = naive(taken_from(one, "compute_score"), f"<think>2 + 2</think>{RIGHT}", "4")
    assert scores == {"score": pytest.approx(1.2), "exact_answer": 1.0, "format_tags": 1.0}
    texts = [RIGHT, WRONG, RIGHT, WRONG, WRONG, RIGHT]
    extras = [{"index": number} for number in (7, 7, 7, 8, 8, 8)]
    assert batch(taken_from(whole, "compute_score"), texts, [None] * 6, extras) == [1, 0, 1, 1, 1, 0]


def test_one_reward_gives_a_number() -> None:
    function = score_function("exact_answer", target="answer")
    assert naive(function, RIGHT, "4") == 1.0
    assert isinstance(naive(function, WRONG, "4"), float)
    assert function("sums", RIGHT, "4") == 1.0, "verl's own functions can be called without extra_info"
    assert function("sums", RIGHT, "4", None, reward_router_address="here", reward_model_tokenizer=None) == 1.0
    assert naive(score_function({"name": "exact_answer", "weight": 0.5}, target="answer"), RIGHT, "4") == 0.5


def test_several_rewards_are_mixed_and_each_is_told() -> None:
    both: list[Any] = [
        {"name": "exact_answer", "label": "right"},
        {"name": "format_tags", "weight": 0.5, "label": "form"},
    ]
    summed, product = (score_function(both, target="answer", mix=mix) for mix in (None, {"name": "product"}))
    text = f"<think>a</think>{WRONG}"
    assert naive(summed, text, "4") == {"score": 0.5, "right": 0.0, "form": 1.0}
    assert naive(product, text, "4")["score"] == 0.0


@in_one_test(
    ("target", "truth", "extra"),
    [
        ("answer", "4", {}),
        ("answer", numpy.array(["3", "4"]), {}),
        (None, {"answer": "4"}, {}),
        (None, '{"answer": ["4"]}', {}),
        (None, "nothing", {"answer": "4"}),
        ({"answer": "ground_truth"}, "4", {"answer": "5"}),
        ({"answer": "solution"}, "5", {"solution": "4"}),
    ],
)
def test_the_target_is_found_where_it_is_said_to_be(target: Any, truth: Any, extra: dict[str, Any]) -> None:
    function = score_function("exact_answer", target=target)
    assert (naive(function, RIGHT, truth, extra), naive(function, WRONG, truth, extra)) == (1.0, 0.0)


@pytest.mark.slow
@in_one_test("image", [[200, 100], numpy.array([200, 100]), Image.new("RGB", (200, 100)), [Image.new("L", (200, 100))]])
def test_coordinates_are_those_of_an_image_or_a_size_in_extra_info(image: Any) -> None:
    texts = ["(110, 55)", "(550, 550)", "(0.55, 0.55)"]
    for unit, right in (("original", [1, 0, 0]), ("thousand", [0, 1, 0]), ("unit", [0, 0, 1])):
        function = score_function(POINT, target="box", image="picture", coordinates=unit)  # type: ignore[arg-type]
        assert [naive(function, text, [100, 50, 120, 60], {"picture": image}) for text in texts] == right


def test_a_size_has_no_pixels() -> None:
    with pytest.raises(ConfigError, match="extra_info holds only its size"):
        PictureSize((200, 100)).load()


def test_a_group_is_the_samples_of_a_source_with_one_index() -> None:
    function = batch_score_function({"name": "majority_vote", "tag": None})
    extras = [{"index": index} for index in (0, 1, 0, 1, 0, 1)]
    assert batch(function, ["1", "2", "1", "2", "2", "1"], [None] * 6, extras) == [1, 1, 1, 1, 0, 0]
    scores = function(
        data_sources=["a", "a", "b", "b", "a", "b"],
        solution_strs=["1", "1", "2", "2", "2", "1"],
        ground_truths=[None] * 6,
        extra_infos=[{"index": 0}] * 6,
    )
    assert scores == [1, 1, 1, 1, 0, 0]


def test_a_batch_is_judged_as_its_samples_alone() -> None:
    settings: dict[str, Any] = {"target": "answer"}
    rewards: list[Any] = ["exact_answer", {"name": "format_tags", "weight": 0.5}]
    texts = [RIGHT, WRONG, f"<think>a</think>{RIGHT}", ""]
    alone = [naive(score_function(rewards, **settings), text, "4") for text in texts]
    assert batch(batch_score_function(rewards, **settings), texts, ["4"] * 4, [{}, None, {}, {}]) == alone
    assert batch_score_function(rewards, **settings)([], [], []) == []


def test_a_sample_that_cannot_be_judged_is_an_error_or_what_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def score(judged: Any) -> torch.Tensor:
        if "bad" in judged.outputs.texts:
            raise OSError("no answer")
        return torch.ones(len(judged))

    def broken(function: Any) -> Any:
        attributes: dict[str, Any] = {
            "granularity": "sample",
            "needs": frozenset(),
            "range": (0, 1),
            "batch_size": None,
        }
        object.__setattr__(function.judge.scorer.terms[0], "reward", SimpleNamespace(**attributes, score=score))
        return function

    with pytest.raises(RunError, match="1 of 1 samples could not be judged"):
        naive(broken(score_function("exact_answer", target="answer")), "bad", "4")
    with caplog.at_level(logging.WARNING):
        assert naive(broken(score_function("exact_answer", target="answer", unjudged=-1.0)), "bad", "4") == -1.0
    assert "exact_answer: OSError: no answer" in caplog.text
    both: list[Any] = ["exact_answer", {"name": "format_tags", "weight": 0}]
    function = broken(batch_score_function(both, target="answer", unjudged=0.0))
    good, bad = batch(function, ["good", "bad"], ["4"] * 2, [{}, {}])
    assert good == {"score": 1.0, "exact_answer": 1.0, "format_tags": 0.0}
    assert bad["score"] == bad["format_tags"] == 0.0 and math.isnan(bad["exact_answer"])


def test_functions_can_be_sent_to_processes() -> None:
    function = pickle.loads(pickle.dumps(score_function("exact_answer", target="answer")))
    assert naive(function, RIGHT, "4") == 1.0


def later(iteration: int) -> float:
    return float(iteration > 5)


def test_a_judge_of_groups_that_fades_is_refused() -> None:
    trusted = {"name": "trusted", "reward": {"name": "exact_answer"}, "accuracy": {"name": "exact_answer"}}
    batch_score_function(trusted)
    with pytest.raises(ConfigError, match="changes over the iterations"):
        batch_score_function({"name": "clip_range", "reward": trusted | {"decay": 500}})


@in_one_test(
    ("rewards", "settings", "message"),
    [
        ("majority_vote", {}, "'majority_vote' compares the answers .* batch_score_function"),
        (["exact_answer", "finished"], {}, "'finished' needs is_finished; verl provides texts, canvases"),
        (["exact_answer", "format_tags"], {"mix": {"name": "gdpo"}}, "mix Gdpo compares the answers"),
        (["exact_answer", "format_tags"], {"mix": {"name": "advantage_weighted"}}, "give verl each reward alone"),
        ({"name": "exact_answer", "weight": {"start": 0, "end": 1, "last": 9}}, {}, "changes over the iterations"),
        ({"name": "annealed", "reward": {"name": "exact_answer"}, "last": 9}, {}, "changes over the iterations"),
        ({"name": "python", "function": f"{__name__}:later"}, {}, "changes over the iterations"),
        ({"name": "cached", "reward": {"name": "exact_answr"}}, {}, "did you mean 'exact_answer'"),
        (["exact_answer", {"name": "format_tags", "label": "score"}], {}, "cannot be labelled 'score'"),
        ("exact_answer", {"unjudged": math.nan}, "unjudged must be a finite number"),
        (POINT, {"coordinates": "resized"}, "resized_size"),
        ([], {}, "at least one reward"),
    ],
)
def test_what_cannot_work_is_said_when_it_is_made(rewards: Any, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        score_function(rewards, **settings)


@in_one_test(
    ("rewards", "settings", "truth", "extra", "message"),
    [
        ("exact_answer", {}, "4", {}, "need 'answer' in the target.*target='answer' makes it"),
        ("exact_answer", {}, '{"answer": ', {}, "ground_truth .* is not JSON"),
        ("exact_answer", {"target": "answer"}, 4, {}, "target.answer must be a text"),
        ("exact_answer", {"target": {"answer": "solution"}}, "4", {"solutions": "4"}, "did you mean 'solutions'"),
        (POINT, {"target": "box"}, [1, 1, 9, 9], {}, "needs an image in every prompt"),
        (POINT, {"target": "box", "image": "size"}, [1, 1, 9, 9], {}, "the image is read from 'size'"),
        (POINT, {"target": "box", "image": "size"}, [1, 1, 9, 9], {"size": [1, 2, 3]}, "got int"),
    ],
)
def test_what_verl_gives_and_does_not_fit_is_an_error(
    rewards: Any, settings: Any, truth: Any, extra: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        naive(score_function(rewards, **settings), RIGHT, truth, extra)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ([0, 0], r"'page' of extra_info must be \[width, height\] in pixels, got \[0, 0\]"),
        ([float("nan"), 3], r"must be \[width, height\] in pixels"),
        (None, "the image is read from 'page', which is null in extra_info$"),
    ],
    ids=["nothing", "nan", "null"],
)
def test_a_size_that_is_none_is_refused(image: Any, message: str) -> None:
    score = score_function("box_iou", image="page")
    with pytest.raises(ConfigError, match=message):
        score("any", "<answer>[0, 0, 10, 10]</answer>", {"box": [0, 0, 10, 10]}, {"page": image})


def test_a_batch_of_other_lengths_or_without_groups_is_an_error() -> None:
    function = batch_score_function("majority_vote")
    with pytest.raises(ConfigError, match="one of 'ground_truths' for each of 2 solution_strs, got 1"):
        batch(function, ["a", "b"], [None], [{"index": 0}] * 2)
    with pytest.raises(ConfigError, match="the same 'index' in extra_info; a sample has none"):
        batch(function, ["a", "b"], [None] * 2, [{"index": 0}, None])
