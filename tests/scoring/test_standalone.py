"""Rewards alone: from texts and images in Python to scores."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import mmrl
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs, Prompt
from mmrl.media.pictures import StoredPicture
from mmrl.scoring.standalone import answered, judge, scorer_of
from tests.parameters import in_one_test


@pytest.fixture
def picture(tmp_path: Path) -> StoredPicture:
    Image.new("RGB", (200, 100)).save(tmp_path / "screen.png")
    return StoredPicture("screen.png", path=tmp_path / "screen.png")


def test_answers_are_scored_by_their_targets() -> None:
    answers = ["<answer>4</answer>", "<answer>5</answer>"]
    scores = mmrl.score("exact_answer", ["2 + 2?"] * 2, texts=answers, targets=[{"answer": "4"}] * 2)
    assert scores.tolist() == [1, 0]


def test_images_are_scored() -> None:
    images = torch.stack([torch.zeros(3, 32, 32), torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))])
    plain, noisy = mmrl.score({"name": "jpeg_size"}, ["", ""], images=images).tolist()
    assert noisy < plain < 0


def test_coordinates_are_in_the_unit_that_is_said(picture: StoredPicture) -> None:
    prompt = Prompt("click", (picture,), {"box": [100, 50, 120, 60]})
    texts = ["(110, 55)", "(550, 550)", "(0.55, 0.55)"]
    for unit, right in (("original", [1, 0, 0]), ("thousand", [0, 1, 0]), ("unit", [0, 0, 1])):
        reward = {"name": "point_in_box", "tag": None}
        assert mmrl.score(reward, [prompt] * 3, texts=texts, coordinates=unit).tolist() == right  # type: ignore[arg-type]


def test_targets_may_hold_arrays_and_numbers_of_numpy_torch_and_arrow(picture: StoredPicture) -> None:
    import numpy as np
    import pyarrow

    corners = [100, 50, 120, 60]
    scalars = (np.int64(100), np.float32(50), pyarrow.scalar(120), torch.tensor(60))
    for box in (np.array(corners), torch.tensor(corners), pyarrow.array(corners), scalars, tuple(corners)):
        prompt = Prompt("find", (picture,), {"box": box, "boxes": [box]})
        assert mmrl.score("box_iou", [prompt], texts=["<answer>[100, 50, 120, 60]</answer>"]).item() == 1
    found = mmrl.score("count", ["how many?"], texts=["<answer>3</answer>"], targets=[{"count": np.int64(3)}])
    assert found.item() == 1


def test_texts_are_actions_where_a_dialect_is_named(picture: StoredPicture) -> None:
    prompt = Prompt("click", (picture,), {"action": "click", "box": [100, 50, 120, 60]})
    outputs = answered([prompt] * 2, ["pyautogui.click(x=110, y=55)", "no"], dialect="pyautogui")
    assert judge(scorer_of(["gui_action"]), [prompt] * 2, outputs).scores.values[:, 0].tolist() == [1, 0]


def test_groups_are_prompts_that_are_equal_or_what_is_said() -> None:
    prompts = [Prompt(text) for text in ("a", "b", "a", "b")]
    scorer = scorer_of([{"name": "exact_answer", "weight": 0.0}, "finished"], mix={"name": "gdpo"})
    outputs = Outputs(texts=("x",) * 4, is_finished=torch.tensor([True, False, False, True]))
    asked = [Prompt(one.text, target={"answer": "x"}) for one in prompts]
    assert judge(scorer, asked, outputs).scores.group.tolist() == [0, 1, 0, 1]
    assert judge(scorer, asked, outputs, group=[5, 5, 7, 7]).scores.group.tolist() == [5, 5, 7, 7]
    with pytest.raises(ConfigError, match="a group for each of 4 outputs, got 1"):
        judge(scorer, asked, outputs, group=[0])


def test_what_cannot_be_judged_is_nan_and_said(caplog: pytest.LogCaptureFixture) -> None:
    images = torch.rand(2, 3, 8, 8)
    images[1] = torch.nan
    with caplog.at_level(logging.WARNING):
        scores = mmrl.score("jpeg_size", ["a", "b"], images=images)
    assert scores[0] < 0 and scores[1].isnan()
    assert "1 of 2 outputs could not be judged: jpeg_size: ValueError" in caplog.text


@in_one_test(
    ("reward", "given", "message"),
    [
        ("exact_answr", {"texts": ["a"]}, "did you mean 'exact_answer'"),
        ("exact_answer", {"texts": ["a"]}, "needs 'answer' in the target"),
        ("exact_answer", {"texts": ["a"], "targets": [{"answer": 3}]}, "target.answer must be a text"),
        ("exact_answer", {"targets": [{"answer": "3"}]}, "needs texts, but the policy makes nothing"),
        ("exact_answer", {"texts": ["a", "b"], "targets": [{"answer": "3"}]}, "as many texts as prompts, got 2 for 1"),
        ("point_in_box", {"texts": ["(1, 2)"], "targets": [{"box": [1, 2, 1, 4]}]}, "x1 < x2"),
    ],
)
def test_what_is_wrong_is_said(reward: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mmrl.score(reward, ["?"], **given)
