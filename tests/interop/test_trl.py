"""Reward functions as TRL calls them; and TRL's own GRPOTrainer with three of them, in an environment of its own."""

import json
import logging
import math
import os
import pickle
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from PIL import Image

from mmrl.interop.trl import RewardFunction, reward_function
from mmrl.system.errors import ConfigError
from tests.parameters import in_one_test

ROOT = Path(__file__).parents[2]
TRL = "trl==1.16.0"


def call(function: RewardFunction, completions: list[Any], prompts: list[Any] | None = None, **given: Any) -> Any:
    """The scores, asked for as GRPOTrainer does; without prompts all answers are to one."""
    extra: dict[str, Any] = {
        "trainer_state": SimpleNamespace(global_step=0),
        "log_extra": print,
        "log_metric": lambda *_: None,
    }
    return function(
        prompts=prompts or ["2 + 2?"] * len(completions),
        completions=completions,
        completion_ids=given.pop("completion_ids", [[1, 2, 3]] * len(completions)),
        **(extra | given),
    )


def messages(text: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


def screen(width: int = 200, height: int = 100, mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (width, height))


def test_a_column_of_its_own_name_or_of_another_one_is_the_target() -> None:
    completions = ["<answer>4</answer>", "<answer>5</answer>"]
    assert call(reward_function("exact_answer"), completions, answer=["4", "4"]) == [1.0, 0.0]
    renamed = reward_function("exact_answer", target={"answer": "solution"})
    assert call(renamed, completions, solution=["5", "5"]) == [0.0, 1.0]
    assert call(renamed, completions, solution=["5", "5"], answer=["4", "4"]) == [0.0, 1.0], "what is named wins"


@pytest.mark.parametrize(
    "completion",
    [
        "<answer>4</answer>",
        messages("<answer>4</answer>"),
        messages([{"type": "text", "text": "<answer>"}, {"type": "text", "text": "4</answer>"}]),
        [
            {"role": "assistant", "content": "<answer>3</answer>", "tool_calls": []},
            {"role": "tool", "name": "sum", "content": "4"},
            *messages("<answer>4</answer>"),
        ],
    ],
    ids=["text", "message", "parts", "tools"],
)
def test_an_answer_is_a_text_or_the_last_message_of_the_assistant(completion: Any) -> None:
    assert call(reward_function("exact_answer"), [completion], answer=["4"]) == [1.0]


@pytest.mark.parametrize("completion", [[], [{"role": "assistant", "content": None}], [{"role": "assistant"}]])
def test_an_answer_that_says_nothing_is_an_empty_one(completion: Any) -> None:
    assert call(reward_function("exact_answer"), [completion], answer=["4"]) == [0.0]


def test_columns_of_arrays_are_read_as_lists() -> None:
    function = reward_function("exact_answer")
    assert call(function, ["<answer>b</answer>"], answer=[numpy.array(["a", "b"])]) == [1.0]
    box = reward_function({"name": "point_in_box", "tag": None})
    given: dict[str, Any] = {"box": [numpy.array([1, 2, 9, 8])], "image": [screen()]}
    assert call(box, ["(5, 5)"], **given) == [1.0]


@pytest.mark.parametrize("unit", ["original", "thousand", "unit"])
@pytest.mark.parametrize("place", ["images", "image", "screenshot", "message"])
def test_coordinates_are_those_of_the_image_in_the_unit_that_is_said(unit: Any, place: str) -> None:
    function = reward_function(
        {"name": "point_in_box", "tag": None}, coordinates=unit, images=place if place == "screenshot" else None
    )
    parts = [{"type": "image", "image": screen()}, {"type": "text", "text": "click"}]
    prompt = [{"role": "user", "content": parts if place == "message" else "click"}]
    columns: dict[str, Any] = {} if place == "message" else {place: [[screen()] if place == "images" else screen()] * 3}
    texts = ["(110, 55)", "(550, 550)", "(0.55, 0.55)"]
    scores = call(function, list(map(messages, texts)), [prompt] * 3, box=[[100, 50, 120, 60]] * 3, **columns)
    assert scores == [float(name == unit) for name in ("original", "thousand", "unit")]


def test_an_image_may_be_a_file_bytes_or_of_another_mode(tmp_path: Path) -> None:
    file = tmp_path / "screen.png"
    screen().save(file)
    forms = [str(file), {"bytes": file.read_bytes(), "path": None}, screen(mode="L"), [screen(mode="RGBA")]]
    function = reward_function({"name": "point_in_box", "tag": None}, coordinates="unit")
    prompts = [f"click {number}" for number in range(4)]
    scores = call(function, ["(0.55, 0.55)"] * 4, prompts, box=[[100, 50, 120, 60]] * 4, image=forms)
    assert scores == [1.0] * 4
    with pytest.raises(ConfigError, match="must be a path, bytes, base64 or an image, got int"):
        call(function, ["(0.55, 0.55)"], box=[[100, 50, 120, 60]], image=[3])


def test_answers_are_actions_where_a_dialect_is_named() -> None:
    function = reward_function("gui_action", dialect="pyautogui")
    columns: dict[str, Any] = {"action": ["click"] * 2, "box": [[100, 50, 120, 60]] * 2, "image": [screen()] * 2}
    assert call(function, ["pyautogui.click(x=110, y=55)", "no"], **columns) == [1.0, 0.0]


def test_groups_are_runs_of_equal_prompts_and_seen_whole() -> None:
    function = reward_function({"name": "majority_vote", "tag": None})
    prompts = [[{"role": "user", "content": text}] for text in "aaabbb"]
    completions = list(map(messages, ["1", "1", "2", "2", "2", "1"]))
    assert call(function, completions, prompts) == [1, 1, 0, 1, 1, 0]
    pictures = [screen(8, 8), screen(8, 8), screen(8, 8), *[Image.new("RGB", (8, 8), "red")] * 3]
    assert call(function, completions, ["?"] * 6, image=pictures) == [1, 1, 0, 1, 1, 0], "the images tell them apart"


def test_neighbours_that_ask_the_same_are_kept_apart_by_their_number() -> None:
    completions = ["1", "1", "2", "2", "2", "1"]
    together = reward_function({"name": "majority_vote", "tag": None})
    assert call(together, completions) == [0] * 6, "a tie of three and three"
    apart = reward_function({"name": "majority_vote", "tag": None}, num_generations=3)
    assert call(apart, completions) == [1, 1, 0, 1, 1, 0]


def test_a_cut_group_is_refused() -> None:
    prompts = ["a", "a", "b"]  # what the first of two processes sees with 3 rows each and 2 generations
    with pytest.raises(ConfigError, match=r"equally many.*got \[2, 1\]"):
        call(reward_function("majority_vote"), ["1"] * 3, prompts)
    with pytest.raises(ConfigError, match=r"needs 2 answers to each prompt.*got \[2, 1\]"):
        call(reward_function("finished", num_generations=2, end_tokens=[3]), ["1"] * 3, prompts)
    assert call(reward_function("exact_answer"), ["1"] * 3, prompts, answer=["1"] * 3) == [0.0] * 3, "compares nothing"


def test_tokens_are_counted_and_an_end_is_seen() -> None:
    ids = [[5] * 4, [5] * 7 + [2], [5] * 6]
    long = reward_function({"name": "overlong", "max_tokens": 8, "buffer": 4})
    assert call(long, ["a"] * 3, completion_ids=ids) == [0.0, -1.0, -0.5]
    assert call(reward_function("finished", end_tokens=[2, 0]), ["a"] * 3, completion_ids=ids) == [0, 1, 0]


def test_the_iteration_is_the_step_of_the_trainer() -> None:
    fading = {"name": "annealed", "reward": {"name": "exact_answer", "tag": None}, "last": 10}
    function = reward_function(fading)
    for step, expected in ((0, 1.0), (4, 0.6), (10, 0.0)):
        scores = call(function, ["4"], answer=["4"], trainer_state=SimpleNamespace(global_step=step))
        assert scores == [pytest.approx(expected)]


def test_what_cannot_be_judged_is_none_said_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    def half(text: str) -> float:
        if text == "bad":
            raise OSError("no answer")
        return 0.5

    function = reward_function("finished", end_tokens=[1])
    broken = SimpleNamespace(name="half", granularity="sample", needs=frozenset(), range=(0, 1), batch_size=None)
    broken.score = lambda batch: numpy_scores(list(map(half, batch.outputs.texts)))
    object.__setattr__(function.judge.scorer.terms[0], "reward", broken)
    metrics: dict[str, float] = {}
    with caplog.at_level(logging.WARNING):
        scores = call(function, ["good", "bad", "good", "good"], log_metric=metrics.__setitem__)
    assert scores == [0.5, None, 0.5, 0.5]
    assert metrics == {"rewards/finished/failed": 0.25}
    assert "1 of 4 answers could not be judged: finished: OSError: no answer" in caplog.text


def numpy_scores(values: list[float]) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.float32)


def test_rows_of_another_task_are_none() -> None:
    texts, answers = ["<answer>4</answer>"] * 4, ["4", None, "5", None]
    prompts = ["a", "b", "c", "d"]
    assert call(reward_function("exact_answer"), texts, prompts, answer=answers) == [1.0, None, 0.0, None]
    assert call(reward_function("exact_answer"), texts, prompts, answer=[None] * 4) == [None] * 4
    function = reward_function({"name": "point_in_box", "tag": None})
    given: dict[str, Any] = {
        "images": [[screen()], None, [], [screen()]],
        "box": [[1, 1, 9, 9], [1, 1, 9, 9], [1, 1, 9, 9], None],
    }
    assert call(function, ["(5, 5)"] * 4, prompts, **given) == [1.0, None, None, None]


def test_the_lengths_are_those_of_the_answers_that_are_judged() -> None:
    function = reward_function({"name": "length_penalised", "reward": {"name": "exact_answer", "tag": None}})
    ids = [[1] * length for length in (9, 7, 2, 4)]
    scores = call(function, ["4"] * 4, ["a", "a", "b", "b"], answer=[None, None, "4", "4"], completion_ids=ids)
    assert scores == [None, None, 1.25, 0.75], "the shortest gains half of the weight 0.5, the longest loses it"


def test_noise_is_the_same_for_the_same_answers_and_another_for_others() -> None:
    function = reward_function({"name": "dithered", "reward": {"name": "exact_answer", "tag": None}, "std": 0.1})
    first, again, other = (call(function, ["4", text], answer=["4", "4"]) for text in ("a", "a", "b"))
    assert first == again and first[0] != other[0]


def test_its_name_is_that_of_the_reward_or_its_label_and_it_can_be_sent_to_a_process() -> None:
    assert reward_function("exact_answer").__name__ == "exact_answer"
    function = reward_function({"name": "exact_answer", "label": "right"})
    assert pickle.loads(pickle.dumps(function)).__name__ == function.__name__ == "right"


@in_one_test(
    ("reward", "settings", "message"),
    [
        ("exact_answr", {}, "did you mean 'exact_answer'"),
        ({"name": "exact_answer", "tg": None}, {}, "did you mean 'tag'"),
        ({"name": "exact_answer", "weight": 2}, {}, "reward_weights"),
        ("jpeg_size", {}, "'jpeg_size' needs images; TRL provides texts, num_tokens, canvases"),
        ("finished", {}, "needs is_finished"),
        ("gui_action", {}, "needs actions; .*; name a dialect"),
        ("gui_action", {"dialect": "pyautogi"}, "did you mean 'pyautogui'"),
        ({"name": "temporal_contrast", "reward": {"name": "exact_answer"}}, {}, "needs controls"),
        ({"name": "running_normalised", "reward": {"name": "exact_answer"}}, {}, "keeps a state"),
        ("point_in_box", {"coordinates": "resized"}, "resized_size"),
        ("exact_answer", {"num_generations": 0}, "at least 1, got 0"),
    ],
)
def test_what_cannot_work_is_said_when_it_is_made(reward: Any, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reward_function(reward, **settings)


@in_one_test(
    ("reward", "settings", "given", "message"),
    [
        ("exact_answer", {}, {"anwser": ["4"] * 2}, "from the column 'answer'.*did you mean 'anwser'"),
        ("exact_answer", {"target": {"answer": "solution"}}, {"answer": ["4"] * 2}, "from the column 'solution'"),
        ("exact_answer", {"images": "photo"}, {"answer": ["4"] * 2}, "reads 'images' from the column 'photo'"),
        ("exact_answer", {}, {"answer": ["4"]}, "one of 'answer' for each of 2 prompts, got 1"),
        ("exact_answer", {}, {"answer": ["4"] * 2, "completion_ids": [[1]]}, "one of 'completion_ids' for each of 2"),
        ("exact_answer", {}, {"answer": [4, 4]}, "target.answer must be a text"),
        ("point_in_box", {}, {"box": [[1, 1, 9, 9]] * 2}, "needs an image in every prompt"),
    ],
)
def test_a_data_set_that_does_not_fit_is_an_error(reward: str, settings: Any, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(reward_function(reward, **settings), ["a", "b"], **given)
    with pytest.raises(ConfigError, match="one of 'completions' for each of 2 prompts, got 1"):
        call(reward_function("exact_answer"), ["a"], ["a", "b"])


@pytest.fixture
def python_with_trl(tmp_path: Path) -> Path:
    """The interpreter of an environment that holds TRL, and sees the packages of this one and the repository."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    # TRL's own dependencies are among those of mmrl.
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--retries", "1", TRL]
    result = subprocess.run(install, capture_output=True, text=True)
    if result.returncode and ("Retrying (" in result.stderr or "No matching distribution" in result.stderr):
        pytest.skip(f"no package index offers {TRL} here: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "running.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    return python


@pytest.mark.slow  # makes an environment, installs TRL and imports it
@pytest.mark.timeout(300)
def test_the_trainer_of_trl_runs_two_steps_with_the_rewards_of_the_guide(python_with_trl: Path, tmp_path: Path) -> None:
    script, guide = Path(__file__).with_name("trl_steps.py"), ROOT / "docs" / "interop.md"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [str(python_with_trl), str(script), str(guide), str(tmp_path / "run")]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    steps = [log for log in json.loads(result.stdout.splitlines()[-1]) if "loss" in log]
    assert [log["step"] for log in steps] == [1, 2]
    for log in steps:
        means = {name: log[f"rewards/{name}/mean"] for name in ("exact_answer", "variety", "overlong")}
        assert all(map(math.isfinite, (log["loss"], log["reward"], *means.values())))
        assert {name for name in log if name.startswith("rewards/") and name.endswith("/mean")} == {
            f"rewards/{name}/mean" for name in means
        }
        assert log["reward"] == pytest.approx(sum(means.values()), abs=1e-6)
        assert means["overlong"] == pytest.approx(-log["completions/mean_length"] / 256), "the ids of each answer"
        assert 0 < means["variety"] <= 1, "random answers of a group differ, and each has a group"
        assert all(log[f"rewards/{name}/failed"] == 0 for name in means)
