"""UnifiedReward: its prompt files, its published replies, and that it is `vlm_judge` else."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.judging.memory import Ledger, Memory
from mmrl.rewards.base.judging.panel import Panel
from mmrl.rewards.base.judging.prompt_files import load_prompt
from mmrl.rewards.base.judging.questions import Reply, UnansweredError
from mmrl.rewards.judges.unified_reward import PROMPTS, UnifiedReward
from mmrl.rewards.judges.vlm_judge import VlmJudge
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.judges.test_vlm_judge import Noting
from tests.rewards.pictures import random_images, random_pictures, shown

# No truth: which points a picture has, the model says.
EXAMPLE = Example(random_batch=random_pictures)


def by(said: str, **settings: Any) -> tuple[UnifiedReward, Noting]:
    """The reward whose judge says the same to all, and that judge."""
    reward, judge = UnifiedReward(**settings), Noting(said)
    asking = [(reward.judges[0], judge)]
    reward._panel = Panel(asking, 1, "mean", Memory(None), Ledger(None, None, None), None)
    return reward, judge


def two_of_a_group() -> RewardBatch:
    """Two samples of one group: pictures, videos and answers, with the picture that is asked about."""
    images = random_images(random.Random(0), 2)
    videos = torch.stack([random_images(random.Random(seed), 4) for seed in (1, 2)])
    outputs = Outputs(images=images, videos=videos, texts=("A cat.", "A dog, I think."))
    media = [*shown(random_images(random.Random(3), 1))] * 2
    return make_batch(outputs, ["What is it?"] * 2, group_size=2, media=media)


@in_one_test(
    ("task", "points", "expected"),
    [
        ("image", "1", 0.0), ("image", "4", 0.75), ("image", "3.5", 0.625), ("image", "5/5", 1.0),
        ("video", "1", 0.0), ("video", "6", 5 / 9), ("video", "10", 1.0),
        ("answer", "0", 0.0), ("answer", "85", 0.85), ("answer", "100", 1.0),
    ],
)  # fmt: skip
def test_points_are_scaled_by_the_published_ends(task: Any, points: str, expected: float) -> None:
    reward, _ = by(f"cat (object): 1\nred (colour): 0\nFinal Score: {points}", task=task)
    assert reward.score(two_of_a_group()).tolist() == pytest.approx([expected] * 2)


@in_one_test(
    ("task", "said", "expected"),
    [
        ("image", "<think>...</think>\n<answer>Image 1 is better</answer>", "Image 1"),
        ("image", "<answer>Image 1 is better</answer> no: <answer> Image 2 is better. </answer>", "Image 2"),
        ("video", "<answer>\nVideo 2 is better\n</answer>", "Video 2"),
        ("answer", "<answer>Answer 1 is better</answer>", "Answer 1"),
        ("image", "Both have faults.\nBetter: Image 2", "Image 2"),
    ],
)
def test_the_published_verdict_of_a_pair_is_read(task: Any, said: str, expected: str) -> None:
    reward = UnifiedReward(task=task, think=True)
    assert reward.verdict(Reply(said)) == expected
    assert expected in load_prompt(reward.prompt).words


@in_one_test("task", ["image", "video", "answer"])
def test_a_judge_that_always_prefers_the_first_prefers_none(task: Any) -> None:
    first = {"image": "Image 1", "video": "Video 1", "answer": "Answer 1"}[task]
    reward, judge = by(f"<answer>{first} is better</answer>", task=task, think=True)
    assert reward.score(two_of_a_group()).tolist() == [0.5, 0.5]
    assert len(judge.questions) == 2, "both orders"
    pictures = {"image": 2, "video": 8, "answer": 1}[task]
    assert all(len(question.images) == pictures for question in judge.questions)
    if task == "answer":
        assert judge.questions[0].text.index("A cat.") < judge.questions[0].text.index("A dog, I think.")
        assert judge.questions[1].text.index("A dog, I think.") < judge.questions[1].text.index("A cat.")


@in_one_test("said", ["<answer>neither</answer>", "Image 1", ""])
def test_a_reply_without_a_verdict_raises(said: str) -> None:
    with pytest.raises(UnansweredError):
        by(said, think=True)[0].score(two_of_a_group())
    with pytest.raises(UnansweredError):
        by("Final Score: 7", task="image")[0].score(two_of_a_group())  # of 1 to 5


def test_it_asks_as_vlm_judge_does() -> None:
    def questions(reward: VlmJudge) -> tuple[Tensor, list[str]]:
        judge = Noting("Final Score: 2")
        reward._panel = Panel([(reward.judges[0], judge)], 1, "mean", Memory(None), Ledger(None, None, None), None)
        return reward.score(two_of_a_group()), [question.digest() for question in judge.questions]

    ours = questions(UnifiedReward(task="video"))
    theirs = questions(VlmJudge("unified_reward_video", of="videos"))
    assert torch.equal(ours[0], theirs[0]) and ours[1] == theirs[1]


def test_what_is_judged_follows_from_the_task() -> None:
    assert UnifiedReward().needs == {"images", "model"}
    assert UnifiedReward(task="video").needs == {"videos", "model"}
    assert UnifiedReward(task="answer").needs == {"texts", "prompt.image", "model"}
    assert UnifiedReward(think=True).granularity == "group" and UnifiedReward().granularity == "sample"
    assert UnifiedReward().judges[0].model == "CodeGoat24/UnifiedReward-qwen-7b"
    assert UnifiedReward(think=True).judges[0].model == "CodeGoat24/UnifiedReward-Think-qwen-7b"
    assert {think for _, think in PROMPTS} == {False, True} and len(PROMPTS) == 6
    with pytest.raises(ValueError, match="of follows from task: videos for video, got texts"):
        UnifiedReward(task="video", of="texts")


@pytest.mark.slow
def test_a_twin_judges_each_task(tmp_path: Path) -> None:
    from tests.rewards.pictures import CPU

    for task, think in PROMPTS:
        reward = UnifiedReward(task=task, think=think).tiny(0, tmp_path / f"{task}{think}")
        reward.prepare(CPU)
        scores = reward.score(two_of_a_group())
        assert scores.shape == (2,) and ((scores >= 0) & (scores <= 1)).all()
