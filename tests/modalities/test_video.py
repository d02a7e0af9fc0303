"""Clips in prompts: positions in time, what reaches the network, frames in disorder, what is decoded when."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.views import DecisionView
from mmrl.media.video import Frames, FrameSampling, ShuffledClip, StoredClip
from mmrl.modalities.encoding.frames import FrameCache
from mmrl.modalities.video import Video
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan
from tests.clips import clip, numbers
from tests.parameters import in_one_test
from tests.vision_twins import keys, picture, twin

SIZES = {"frame_min_pixels": 28 * 28, "frame_max_pixels": 56 * 56}
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
FAMILIES = (*QWEN, "internvl")


def policy(family: str = "qwen2_5_vl", **settings: Any) -> Video:
    """A prepared policy on the tiny twin; frames of 64 x 48 become 56 x 56: 2 x 2 tokens for a step of time."""
    given = {"model": str(twin(family)), "vision": "trained"} | (SIZES if family in QWEN else {}) | settings
    made = Video(**given)
    made.prepare(Placement(torch.device("cpu"), torch.float32))
    return made


@cache
def four_seconds() -> StoredClip:
    return clip(40)


@cache
def one_second() -> StoredClip:
    return clip(10)


def mixed() -> tuple[Prompt, ...]:
    """With a video, neither, both, and two videos."""
    return (
        Prompt("what is <video> red?", clips=(one_second(),)),
        Prompt("hello"),
        Prompt("is <image> in <video>?", (picture(30, 30, 1),), clips=(four_seconds(),)),
        Prompt("same?", clips=(four_seconds(), one_second())),
    )


def log_probs(made: Video, prompts: list[Prompt], answer: str = "it is red") -> Tensor:
    """[P, K] of an answer's tokens to each prompt, in one batch."""
    count = len(prompts)
    given = made.offline(prompts, Outputs(texts=(answer,) * count), keys(count))
    with torch.no_grad():
        return made.forward(given, DecisionView(torch.arange(count))).values


def by_hand(is_video: list[bool], steps: list[list[int]]) -> Tensor:
    """[3, L]: text counts on; each stretch of video tokens has 2 x 2 tokens at each of its times."""
    found: list[tuple[int, int, int]] = []
    following, number, at = 0, 0, 0
    while at < len(is_video):
        if not is_video[at]:
            found.append((following,) * 3)
            following, at = following + 1, at + 1
            continue
        for time in steps[number]:
            found += [(following + time, following + row, following + column) for row in (0, 1) for column in (0, 1)]
            at += 4
        following = max(max(place) for place in found) + 1
        number += 1
    return torch.tensor(found).T


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fps", "times"),
    # 40 frames at 10 frames a second; 2 steps a second; 2 frames a step
    [(1.0, [0, 4]), (2.0, [0, 2, 4, 6]), (4.0, [0, 1, 2, 3, 4, 5, 6, 7])],
)
def test_steps_of_time_of_qwen2_5_vl_are_seconds_apart(fps: float, times: list[int]) -> None:
    encoded = policy(fps=fps).encode([Prompt("red <video>?", clips=(four_seconds(),))])[0]
    expected = by_hand((encoded.token_types == 2).tolist(), [times])
    assert torch.equal(encoded.positions, expected)
    assert encoded.next_position == int(expected.max()) + 1


@pytest.mark.slow
def test_a_clip_under_two_seconds_does_not_stand_still() -> None:
    """At least 4 frames of one second: 4 a second, half a second for each step."""
    made = policy(fps=2.0)
    prompt = Prompt("<video> or <video>?", clips=(one_second(), four_seconds()))
    encoded = made.encode([prompt])[0]
    expected = by_hand((encoded.token_types == 2).tolist(), [[0, 1], [0, 2, 4, 6]])
    assert torch.equal(encoded.positions, expected)


@pytest.mark.slow
def test_steps_of_time_are_rounded_down_one_by_one() -> None:
    """4 of 30 frames at 10 a second: 4/3 frames a second, 1.5 seconds and 3 positions a step; 6 of 30: 1 second."""
    made = clip(30)
    for count, times in ((4, [0, 3]), (6, [0, 2, 4]), (8, [0, 1, 3, 4]), (10, [0, 1, 2, 3, 4])):
        encoded = policy(num_frames=count).encode([Prompt("x", clips=(made,))])[0]
        assert torch.equal(encoded.positions, by_hand((encoded.token_types == 2).tolist(), [times]))


@pytest.mark.slow
def test_steps_of_time_of_qwen2_vl_count_and_text_stands_behind_them() -> None:
    encoded = policy("qwen2_vl", fps=4.0).encode([Prompt("red <video>?", clips=(four_seconds(),))])[0]
    assert torch.equal(encoded.positions, by_hand((encoded.token_types == 2).tolist(), [list(range(8))]))


@pytest.mark.slow
def test_qwen3_vl_reads_when_each_step_is_shown() -> None:
    made = policy("qwen3_vl", fps=2.0)
    encoded = made.encode([Prompt("red<video>?", clips=(four_seconds(),))])[0]
    step = "<|vision_start|>" + "<|video_pad|>" * 4 + "<|vision_end|>"
    # frames 0 6 11 17 22 28 33 39, ten a second; a step is shown in the middle of its two
    shown = "".join(f"<{second} seconds>{step}" for second in (0.3, 1.4, 2.5, 3.6))
    assert made.decode(encoded.tokens.tolist()) == f"<|im_start|>user\nred{shown}?<|im_end|>\n<|im_start|>assistant\n"
    assert torch.equal(encoded.positions, by_hand((encoded.token_types == 2).tolist(), [[0]] * 4))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_videos_images_and_text_go_into_one_batch_and_no_prompt_sees_its_neighbours(family: str) -> None:
    made = policy(family, sharing="none")
    prompts = list(mixed() if family in QWEN else mixed()[:3])
    together = log_probs(made, prompts)
    for number, prompt in enumerate(prompts):
        torch.testing.assert_close(log_probs(made, [prompt])[0], together[number], rtol=0, atol=2e-5)
    torch.testing.assert_close(log_probs(made, prompts[::-1]).flip(0), together, rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_frames_their_order_and_the_video_itself_reach_the_answer(family: str) -> None:
    made = policy(family)
    asked = Prompt("what is <video> red?", clips=(four_seconds(),))
    others = (
        asked,
        made.control(asked, keys(1)[0]) or asked,
        replace(asked, clips=(one_second(),)),
        replace(asked, text="what is  red?", clips=()),
    )
    found = [log_probs(made, [prompt])[0] for prompt in others]
    for number, one in enumerate(found):
        assert one.isfinite().all()
        assert all(float((one - other).abs().max()) > 1e-4 for other in found[:number])


@pytest.mark.slow
@pytest.mark.parametrize("family", QWEN)
def test_video_tokens_are_as_many_as_the_features_that_replace_them(family: str) -> None:
    made = policy(family)
    encoded = made.encode([mixed()[2]])[0]
    assert int((encoded.token_types == 1).sum()) == 1 and int((encoded.token_types == 2).sum()) == 4 * 4
    assert encoded.media["video_grid_thw"].tolist() == [[4, 4, 4]]
    assert encoded.media["pixel_values_videos"].shape == (64, 3 * 2 * 14 * 14)
    assert encoded.canvas is not None and encoded.canvas.original == (30, 30)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_answer_holds_a_token_of_a_video(family: str) -> None:
    made = policy(family)
    vocabulary = made.encoder.processor.tokenizer.get_vocab()
    assert {number for text, number in vocabulary.items() if "video" in text} <= set(made.banned)
    token = next(text for text in vocabulary if "video" in text)
    with pytest.raises(ConfigError, match=r"spells the model's own media token|marks <video> for 0 videos"):
        made.encode([Prompt(f"look {token}")])


@pytest.mark.slow
def test_a_control_is_the_same_prompt_with_its_frames_in_disorder() -> None:
    made, (first, second) = policy(fps=2.0), keys(2)
    asked = mixed()[2]
    told = made.control(asked, first)
    assert told is not None and told == made.control(asked, first) != made.control(asked, second)
    assert replace(told, clips=asked.clips) == asked
    assert made.control(Prompt("hello"), first) is None
    twice = made.control(replace(asked, clips=asked.clips * 2), first)
    assert twice is not None and twice.clips[0] != twice.clips[1], "each clip has a disorder of its own"
    reads: Any = made.encoder.read_clip
    plain, shuffled = reads(asked.clips[0]), reads(told.clips[0])
    assert sorted(numbers_of(plain)) == sorted(numbers_of(shuffled)) and numbers_of(plain) != numbers_of(shuffled)
    assert torch.equal(plain.seconds, shuffled.seconds) and reads.num_decoded == 1
    encoded = made.encode([asked, told])
    assert torch.equal(encoded[0].tokens, encoded[1].tokens)
    assert torch.equal(encoded[0].positions, encoded[1].positions)
    assert not torch.equal(encoded[0].media["pixel_values_videos"], encoded[1].media["pixel_values_videos"])


def numbers_of(frames: Frames) -> list[int]:
    return numbers(torch.nn.functional.interpolate(frames.pixels.float(), (48, 64)))


@pytest.mark.slow
def test_controls_are_drawn_beside_the_answers_from_one_decoding() -> None:
    made = policy(fps=2.0)
    drawn: Rollout = made.rollout([mixed()[0], mixed()[2]], [AnswerPlan(2, 4, num_controls=1)] * 2, keys(2))
    assert drawn.is_control.tolist() == [False, False, True] * 2
    assert drawn.blocks[0].weight.any(1).tolist() == [True, True, False] * 2, "nothing is learned from a control"
    assert [isinstance(prompt.clips[0], ShuffledClip) for prompt in drawn.prompts] == [False, True] * 2
    reads: Any = made.encoder.read_clip
    assert reads.num_decoded == 2
    found = made.forward(drawn, DecisionView(torch.arange(4))).values
    recorded = made.recorded(drawn, DecisionView(torch.arange(4))).values
    torch.testing.assert_close(found, recorded, rtol=0, atol=1e-5)


class CountedClip:
    """A clip of one number, of 4 frames of 4 x 4 pixels: 192 bytes."""

    def __init__(self, number: int) -> None:
        self.number, self.loads, self.name = number, 0, f"clip {number}"

    def load(self, sampling: FrameSampling) -> Frames:
        self.loads += 1
        pixels = torch.full((4, 3, 4, 4), self.number, dtype=torch.uint8)
        return Frames(pixels, torch.arange(4).double(), torch.arange(4), 1.0, 4)


def test_frames_used_longest_ago_leave_the_cache_first() -> None:
    kept = FrameCache(FrameSampling(fps=1.0), 2 * 192)
    clips = [CountedClip(number) for number in range(3)]
    for number in (0, 1, 0, 2, 0, 1):  # 2 drops 1, as 0 was used since
        assert int(kept(clips[number]).pixels[0, 0, 0, 0]) == number
        assert kept.num_bytes <= 2 * 192
    assert [made.loads for made in clips] == [1, 2, 1] and kept.num_decoded == 4
    none = FrameCache(FrameSampling(fps=1.0), 0)
    assert none(clips[0]).total == none(clips[0]).total == 4 and none.num_decoded == 2 and none.num_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["idefics3", "gemma3"])
def test_a_family_without_video_is_refused(family: str) -> None:
    with pytest.raises(ConfigError, match=r"modality\.model: .* takes no video: its \w+ has no processor of videos"):
        policy(family)


@pytest.mark.slow
def test_settings_that_a_model_cannot_follow_are_refused() -> None:
    with pytest.raises(ConfigError, match="videos of llava_onevision are not supported"):
        policy("llava_onevision")
    with pytest.raises(ConfigError, match="the model's processor refuses it"):
        policy("internvl").encode([mixed()[3]])  # of two lengths
    with pytest.raises(ConfigError, match="InternVLVideoProcessor has no pixel budget; remove them"):
        policy("internvl", frame_max_pixels=1000)
    images = VisionLanguage(model=str(twin("qwen2_5_vl")))
    images.prepare(Placement(torch.device("cpu"), torch.float32))
    with pytest.raises(ConfigError, match="has a video, which this modality does not read; 'video' does"):
        images.encode([Prompt("x", clips=(one_second(),))])
    with pytest.raises(ConfigError, match="the video short has 3 frames where 4 are needed"):
        policy(num_frames=4).encode([Prompt("x", clips=(replace(clip(3), name="short"),))])
    with pytest.raises(ConfigError, match="tokens with its 0 images and 1 videos, more than max_prompt_tokens 20"):
        policy(max_prompt_tokens=20).encode([Prompt("x", clips=(four_seconds(),))])


@in_one_test(
    ("settings", "message"),
    [({"fps": 2.0, "num_frames": 4}, "by fps or by num_frames, one"), ({"fps": -1.0}, "fps must be above 0"),
     ({"frame_min_pixels": 9, "frame_max_pixels": 8}, "frame_min_pixels must be at most frame_max_pixels .8., got 9"),
     ({"total_pixels": 0}, "total_pixels must be at least 1"),
     ({"frame_cache_bytes": -1}, "frame_cache_bytes must be at least 0, got -1")],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Video(model="Qwen/Qwen2.5-VL-7B-Instruct", **settings)


@pytest.mark.slow
def test_a_twin_keeps_the_settings_of_a_large_run(tmp_path: Path) -> None:
    large = Video(model="Qwen/Qwen2.5-VL-7B-Instruct", num_frames=16, frame_max_pixels=128 * 28 * 28)
    small = large.tiny(0, tmp_path)
    assert small.num_frames == 8 and small.frame_max_pixels == 56 * 56
    small.prepare(Placement(torch.device("cpu"), torch.float32))
    assert small.encode([Prompt("x", clips=(four_seconds(),))])[0].media["video_grid_thw"].tolist() == [[4, 4, 4]]
