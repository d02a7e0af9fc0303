"""VisionReward's linear model against the published programs' arithmetic, step by step, and by hand numbers."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.judges.vision_reward import MASKS, VisionReward, frames_by_seconds
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.pictures import CPU, random_pictures, to_pil

# No truth: what is good about a picture, the model says. A random one hardly changes its mind, so it is read softly.
EXAMPLE = Example(random_batch=random_pictures, settings={"soft": True})
TEXTS = ["a red kite", "two dogs, please", "naïve café 🙂"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("vision_reward")
    VisionReward().tiny(0, made)
    return made


def ready(folder: Path, checklist: Sequence[str], weights: Any, **settings: Any) -> VisionReward:
    (folder / "list.txt").write_text("\n".join(checklist) + "\n", encoding="utf-8")
    (folder / "linear.json").write_text(json.dumps(weights), encoding="utf-8")
    files = {"questions": str(folder / "list.txt"), "weights": str(folder / "linear.json"), "model": str(folder)}
    reward = VisionReward(**(files | settings))
    reward.prepare(CPU)
    return reward


def three_images() -> Tensor:
    return (torch.rand(3, 3, 32, 40, generator=torch.Generator().manual_seed(0)) * 255).round() / 255


def batch_of(images: Tensor | None = None, videos: Tensor | None = None) -> RewardBatch:
    return make_batch(Outputs(images=images, videos=videos), TEXTS)


def let_answer(reward: VisionReward, yes: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the model say yes with these probabilities, question by question, and else no."""
    left = list(yes)

    def next_log_probs(vlm: Any, inputs: Any) -> Tensor:
        said = torch.full((len(inputs["input_ids"]), len(vlm.tokenizer)), -1e4)
        for row in said:
            share = torch.tensor(left.pop(0))
            row[reward._words[0][-1]], row[reward._words[1][-1]] = share.log(), (1 - share).log()
        return said

    monkeypatch.setattr(type(reward._vlm), "next_log_probs", next_log_probs)


@pytest.mark.slow
def test_images_score_as_the_published_program_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 questions, 3 of them masks, and 28 weights: the arithmetic of inference-image.py, written out."""
    rng = random.Random(0)
    yes = [[round(rng.random(), 3) for _ in range(31)] for _ in TEXTS]  # the alignment first
    weights = [rng.gauss(0, 1) for _ in range(28)]
    checklist = [f"Is part {number} right?" for number in range(30)]
    reward = ready(folder, checklist, {"coef": [weights], "intercept": [0.25]})
    let_answer(reward, [one for own in yes for one in own], monkeypatch)
    expected = []
    for own in yes:
        answers = [1 if one > 0.5 else -1 for one in own[1:]]
        for mask, lines in {0: [22, 23, 24, 28, 29], 1: [25, 26], 2: [27]}.items():
            for line in lines:
                answers[line] *= int(answers[mask] > 0)
        features = [own[0], *answers[3:]]
        expected.append(sum(c * one for c, one in zip(weights, features, strict=True)) + 0.25)
    torch.testing.assert_close(reward.score(batch_of(images=three_images())), torch.tensor(expected))


@pytest.mark.slow
@in_one_test(
    ("soft", "expected"),
    # 3 * alignment + 4 * mask * answer + 5 * answer - 1, with P(yes) of 0.5, 0.7, 0.9 and 0.4
    [(False, 1.5 + 4 - 5 - 1), (True, 1.5 + 4 * 0.7 * 0.8 - 5 * 0.2 - 1)],
)
def test_hand_numbers(soft: bool, expected: float, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checklist = ["Is there a hand?", "Is the hand right?", "Is it sharp?"]
    reward = ready(folder, checklist, {"coef": [3, 4, 5], "intercept": -1}, masks={0: (1,)}, soft=soft)
    let_answer(reward, [0.5, 0.7, 0.9, 0.4] * 3, monkeypatch)
    assert reward.score(batch_of(images=three_images())).tolist() == pytest.approx([expected] * 3, abs=1e-5)


@pytest.mark.slow
def test_videos_score_by_the_mean_of_weighted_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = ready(folder, ["Is it [[prompt]]?", "Does it move?"], [2.0, -3.0], of="videos", video_fps=2.0)
    let_answer(reward, [0.9, 0.9, 0.9, 0.1, 0.2, 0.3], monkeypatch)
    scores = reward.score(batch_of(videos=torch.rand(3, 5, 3, 32, 32)))
    assert scores.tolist() == pytest.approx([(2 - 3) / 2, (2 + 3) / 2, (-2 + 3) / 2])


@pytest.mark.slow
def test_the_model_sees_the_frames_and_the_questions(folder: Path) -> None:
    """Each question alone, by the plain use of transformers, with the frames at 0, 1 and 2 seconds."""
    videos = (torch.rand(3, 5, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 255).round() / 255
    model, processor = AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    words = {word: processor.tokenizer.convert_tokens_to_ids([word, word.capitalize()]) for word in ("yes", "no")}
    expected = []
    for video, text in zip(videos, TEXTS, strict=True):
        answers = []
        for question in (f"Is it {text}?", "Does it move?"):
            chat = "USER: <image><image><image>" + question + "\nASSISTANT: "
            with torch.no_grad():
                inputs = processor(text=chat, images=to_pil(video[[0, 2, 4]]), return_tensors="pt")
                said = model(**inputs).logits[0, -1].softmax(0)
            yes, no = (sum(float(said[token]) for token in words[word]) for word in ("yes", "no"))
            answers.append(2 * yes / (yes + no) - 1)
        expected.append((2 * answers[0] - 3 * answers[1]) / 2)
    checklist = ["Is it [[prompt]]?", "", "Does it move?"]
    reward = ready(folder, checklist, [2.0, -3.0], of="videos", video_fps=2.0, soft=True, questions_at_once=4)
    found = reward.score(batch_of(videos=videos))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-3, atol=1e-4)
    assert found.std() > 1e-3


@in_one_test(
    ("num_frames", "fps", "expected"),
    [
        (1, 16.0, [0]),
        (16, 16.0, [0, 15]),  # the last frame is at 0.94 s, nearest to 1 s
        (24, 16.0, [0, 16]),
        (81, 16.0, [0, 16, 32, 48, 64, 80]),
        (5, 2.0, [0, 2, 4]),
        (100, 1.0, list(range(24))),
    ],
)
def test_frames_are_those_nearest_to_whole_seconds(num_frames: int, fps: float, expected: list[int]) -> None:
    assert frames_by_seconds(num_frames, fps) == expected


def test_the_published_masks_are_three_over_eight_questions() -> None:
    assert sorted(MASKS) == [0, 1, 2] and sorted(line for lines in MASKS.values() for line in lines) == list(
        range(22, 30)
    )


@pytest.mark.slow
@in_one_test(
    ("weights", "settings", "message"),
    [
        (
            {"coef": [1, 2], "intercept": 0},
            {"masks": {}},
            "2 weights for 2 questions, 0 of them masks; there must be 3",
        ),
        ({"coef": [1, 2, 3], "intercept": 0}, {}, "3 weights for 2 questions, 3 of them masks"),
        ({"coef": [1, 2], "intercept": 0}, {"masks": {0: (5,)}}, "the masks must be among the questions"),
        ([1, 2, 3], {"masks": {}}, "a JSON object with a list `coef`"),
        ({"coef": [1, 2, "x"], "intercept": 0}, {"masks": {}}, "a JSON object with a list `coef`"),
        ({"coef": [1, 2, float("nan")], "intercept": 0}, {"masks": {}}, "all finite"),
        ({"coef": [1], "intercept": 0}, {"of": "videos"}, "a JSON list of numbers"),
        ([1, 2, 3], {"of": "videos"}, "3 weights for 2 questions, 0 of them masks; there must be 2"),
    ],
)
def test_files_that_do_not_fit_are_the_users_error(
    weights: Any, settings: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        ready(folder, ["One?", "Two?"], weights, **settings)


@pytest.mark.slow
def test_what_is_missing_is_the_users_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"take it from github.com/THUDM/VisionReward"):
        VisionReward().prepare(CPU)
    with pytest.raises(ConfigError, match="cannot load the vision-language model '/no/such"):
        ready(folder, ["One?"], [1.0], of="videos", model="/no/such")
    reward = ready(folder, ["One?"], {"coef": [1.0, 1.0], "intercept": 0}, masks={})
    with pytest.raises(ValueError, match="NaN or infinity"):
        reward.score(batch_of(images=three_images() / 0))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="masks go with images"):
        VisionReward(of="videos", masks={0: (1,)})
    with pytest.raises(ValueError, match="a question has one mask at most"):
        VisionReward(masks={0: (1,), 2: (1,)})
    with pytest.raises(ValueError, match="a question has one mask at most"):
        VisionReward(masks={0: (1,), 1: (2,)})
    with pytest.raises(ValueError, match=r"question must hold \{prompt\}"):
        VisionReward(alignment="Is it good?")
    assert VisionReward(of="videos").needs == {"videos", "model"}
