"""T-GRPO's bonus: only for right answers, only where ordered frames are as good as shuffled ones allow."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.assembly.build import build as build_parts
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.core.keys import generator
from mmrl.core.plugins import build
from mmrl.rewards.text.cider import Cider
from mmrl.rewards.text.exact_answer import ExactAnswer
from mmrl.rewards.video.temporal_contrast import TemporalContrast
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers


def random_batch(given: random.Random) -> RewardBatch:
    """Answers of which some are right, the last one of each group a control."""
    texts = given.choices(["<answer>red</answer>", "<answer>blue</answer>", "red"], k=12)
    return replace(answers(texts, {"answer": "red"}), is_control=torch.arange(12) % 4 == 3)


# No batch scores 1 throughout: a group needs controls, and these score 0.
EXAMPLE = Example(random_batch=random_batch, settings={"reward": {"name": "exact_answer"}})


def batch(answers: str, controls: str, groups: str) -> RewardBatch:
    """One letter per sample: `r`ight or `w`rong; `c` for a control; the name of its group."""
    count = len(answers)
    return RewardBatch(
        prompts=(Prompt("?", target={"answer": "r"}),) * count,
        outputs=Outputs(texts=tuple(f"<answer>{letter}</answer>" for letter in answers)),
        group=torch.tensor([ord(letter) for letter in groups]),
        episode=torch.arange(count),
        turn=torch.zeros(count, dtype=torch.int64),
        seeds=tuple(range(count)),
        iteration=0,
        generator=generator(0),
        is_control=torch.tensor([letter == "c" for letter in controls]),
    )


@in_one_test(
    ("answers", "controls", "bonus"),
    [
        ("rrwwrw", "....cc", [1, 1, 0, 0, 0, 0]),  # 0.5 >= 0.8 * 0.5
        ("rwwwrw", "....cc", [0, 0, 0, 0, 0, 0]),  # 0.25 < 0.8 * 0.5
        ("rrrwrr", "....cc", [0, 0, 0, 0, 0, 0]),  # 0.75 < 0.8 * 1
        ("rrrrrr", "....cc", [1, 1, 1, 1, 0, 0]),
        ("wwwwww", "....cc", [0, 0, 0, 0, 0, 0]),  # helped, but nobody is right
        ("rwwwww", "....cc", [1, 0, 0, 0, 0, 0]),
        ("crwrwr".replace("c", "r"), "c.....", [0, 0, 0, 0, 0, 0]),  # one control: 0.6 < 0.8
    ],
)
def test_the_rule_by_hand(answers: str, controls: str, bonus: list[int]) -> None:
    assert TemporalContrast(ExactAnswer()).score(batch(answers, controls, "aaaaaa")).tolist() == bonus


def test_groups_do_not_mix_and_one_about_images_gets_nothing() -> None:
    both = batch("rwrrrw", ".c.c..", "aabbcc")
    assert TemporalContrast(ExactAnswer()).score(both).tolist() == [1, 0, 1, 0, 0, 0]
    order = torch.tensor([5, 2, 0, 3, 1, 4])
    mixed = batch(
        "".join("rwrrrw"[n] for n in order), "".join(".c.c.."[n] for n in order), "".join("aabbcc"[n] for n in order)
    )
    assert TemporalContrast(ExactAnswer()).score(mixed).tolist() == [[1, 0, 1, 0, 0, 0][n] for n in order]


def test_the_share_and_the_threshold_are_settings() -> None:
    made = batch("rwwwrw", "....cc", "aaaaaa")
    assert TemporalContrast(ExactAnswer(), share=0.5).score(made).tolist() == [1, 0, 0, 0, 0, 0]
    assert TemporalContrast(ExactAnswer(), share=0.5, threshold=1.0).score(made).tolist() == [0] * 6


def test_without_controls_nobody_gets_a_bonus() -> None:
    assert not TemporalContrast(ExactAnswer()).score(replace(batch("rr", "..", "aa"), is_control=None)).any()


def test_it_needs_what_the_reward_needs_that_it_holds() -> None:
    held = build("rewards", {"name": "temporal_contrast", "reward": {"name": "exact_answer", "tag": None}})
    assert held.needs == {"controls", "texts", "target.answer"}
    assert held.reward == ExactAnswer(tag=None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reward": {"name": "exact_anser"}}, "unknown reward 'exact_anser'.*exact_answer"),
        ({"reward": {"name": "exact_answer"}, "share": -1}, "share must be at least 0"),
        ({"reward": {"name": "episode_success"}}, "must judge samples, got one that judges episodes"),
        ({}, "reward is needed"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("rewards", {"name": "temporal_contrast"} | wrong)


@pytest.mark.slow
def test_a_run_without_controls_is_refused_before_anything_is_loaded() -> None:
    held = "{name: temporal_contrast, reward: {name: format_tags, tags: [answer]}}"
    with pytest.raises(ConfigError, match=r"set sampler\.controls"):
        build_parts(load_config("quickstart_gui", [f"rewards=[{held}]", "evaluation=null"]))


def test_the_reward_that_it_holds_is_prepared_and_checked(tmp_path: Path) -> None:
    twin = TemporalContrast(Cider("nowhere.jsonl")).tiny(0, tmp_path)
    assert isinstance(twin.reward, Cider) and twin.reward.corpus.startswith(str(tmp_path))
    with pytest.raises(ValueError, match=r"target\.answer must be a text"):
        twin.check(Prompt("?", target={"answer": 3}))
    assert twin.needs == {"controls", "model", "texts", "target.answer"}
