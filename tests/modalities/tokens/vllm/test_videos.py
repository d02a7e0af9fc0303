"""Videos for a server: the frames that the run chose, as tensors in vLLM's own form, and the same answers by them."""

import math
import re
import struct
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch

from mmrl.commands.check import check_tiny
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.media.pictures import Clip
from mmrl.modalities.encoding.inputs import EncodedPrompt
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.modalities.tokens.vllm.features import MediaItem, features_of, items_of, seconds_of
from mmrl.modalities.tokens.vllm.prompts import question_of
from mmrl.modalities.tokens.vllm.protocol import Question, SamplingParams, body_of
from mmrl.modalities.tokens.vllm.tiny_features import read_items, read_prompt
from mmrl.modalities.tokens.vllm.tiny_server import TinyVllm, serve
from mmrl.modalities.video import Video
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan
from tests.clips import clip
from tests.vision_twins import keys, picture, prepared, twin

QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
SIZES = {"fps": 2.0, "frame_min_pixels": 28 * 28, "frame_max_pixels": 56 * 56}
PROMPTS = (
    Prompt("what is <video> red?", clips=(clip(10),)),
    Prompt("hello"),
    Prompt("is <image> in <video>?", (picture(30, 30, 1),), clips=(clip(40),)),
    Prompt("same?", clips=(clip(40), clip(10))),
    Prompt("<image>?", (picture(60, 40, 2),)),
)


def load(model: str) -> VisionLanguage:
    return prepared(VisionLanguage, model=model)


def policy(family: str, **settings: Any) -> Video:
    return prepared(Video, family, **({} if family == "internvl" else SIZES) | settings)


def started(server: TinyVllm) -> Vllm:
    """The settings of a server, which runs to the end of the tests."""
    return Vllm(name="vllm", url=serve(server.answer, lambda: True), concurrency=2)


def read_by(made: Video, *clips: Clip, images: int = 0) -> tuple[Prompt, EncodedPrompt]:
    prompt = Prompt("red?", tuple(picture(30, 30, number) for number in range(images)), clips=clips)
    return prompt, made.encode([prompt])[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", QWEN)
def test_answers_about_videos_are_those_of_the_own_rollout(family: str) -> None:
    here, there = policy(family), policy(family, engine=started(TinyVllm(twin(family), load)))
    plans = [AnswerPlan(2, 6)] * len(PROMPTS)
    own, drawn = (one.rollout(PROMPTS, plans, keys(len(PROMPTS))) for one in (here, there))
    assert drawn.outputs.texts == own.outputs.texts
    log_prob = own.trace.completions.log_prob
    torch.testing.assert_close(drawn.trace.completions.log_prob, log_prob, atol=1e-5, rtol=0)
    others = [replace(prompt, clips=tuple(clip(20) for _ in prompt.clips)) for prompt in PROMPTS]
    control = here.rollout(others, plans, keys(len(PROMPTS))).trace.completions.log_prob
    is_other = (control[:, 0] - log_prob[:, 0]).abs() > 1e-4
    assert is_other.reshape(-1, 2).all(1).tolist() == [bool(prompt.clips) for prompt in PROMPTS]


@pytest.mark.slow  # a whole dry run
def test_a_config_of_videos_with_an_engine_runs_small_without_vllm() -> None:
    found = check_tiny(load_config("quickstart_video", ["threads=1", "modality.engine={name: vllm}"]))
    assert found.pop("is_good"), found


@pytest.mark.slow
@pytest.mark.parametrize("family", QWEN)
@pytest.mark.parametrize("fps", [2.0, 0.7])
def test_a_server_reads_the_tensors_and_positions_of_the_run(family: str, fps: float) -> None:
    made = policy(family, fps=fps)
    prompt, own = read_by(made, clip(40), clip(10), images=2)
    items = question_of(prompt, own, made.served).items
    read = read_prompt(own.tokens.tolist(), read_items(features_of(items)), made.modules()["model"].config)
    assert torch.equal(read.positions, own.positions) and read.next_position == own.next_position
    assert torch.equal(read.token_types, own.token_types) and set(read.media) == set(own.media)
    for name in ("pixel_values", "pixel_values_videos", "image_grid_thw"):
        assert torch.equal(read.media[name], own.media[name])
    steps = [[1, *size[1:]] for size in own.media["video_grid_thw"].tolist() for _ in range(size[0])]
    assert read.media["video_grid_thw"].tolist() == (
        steps if family == "qwen3_vl" else own.media["video_grid_thw"].tolist()
    )


def test_a_request_holds_media_in_the_form_of_vllm() -> None:
    pixels = torch.arange(8, dtype=torch.bfloat16).reshape(4, 2)
    items = (MediaItem("video", 3, 2, pixels, (2, 1, 2), 0.75), MediaItem("image", 7, 1, pixels[:1], (1, 1, 1)))
    question = Question((5,) * 9, (5,) * 9, (), items)
    body = body_of("model", question, SamplingParams(1.0, 1.0, None, 0.0, 4, (), (2,), ()), seed=0)
    assert "content_parts" not in body and body["token_ids"] == [5] * 9
    found = body["features"]
    assert found["mm_placeholders"] == {"image": [{"offset": 7, "length": 1}], "video": [{"offset": 3, "length": 2}]}
    names = [*found["mm_hashes"]["image"], *found["mm_hashes"]["video"]]
    assert len(set(names)) == 2 and all(len(bytes.fromhex(name)) == 32 for name in names)
    (content,) = found["kwargs_data"]["video"]
    # bfloat16 is the upper half of float32, the low byte first
    raw = b"".join(struct.pack("<f", value)[2:] for value in range(8))
    batched = ["batched", {"keep_on_cpu": True}]
    assert msgpack.unpackb(b64decode(content)) == {
        "pixel_values_videos": {
            "data": ["bfloat16", [4, 2], msgpack.ExtType(3, raw)],
            "field": ["flat", {"keep_on_cpu": False, "slices": [[[0, 4, None]]], "dim": 0}],
        },
        "video_grid_thw": {"data": ["int64", [3], msgpack.ExtType(3, struct.pack("<3q", 2, 1, 2))], "field": batched},
        "second_per_grid_ts": {"data": ["float64", [], msgpack.ExtType(3, struct.pack("<d", 0.75))], "field": batched},
    }


def test_the_name_of_an_item_is_that_of_its_content() -> None:
    one = MediaItem("image", 7, 1, torch.zeros(4, 2), (1, 2, 2))
    moved, other = replace(one, offset=9), replace(one, pixels=torch.full((4, 2), 1e-6))
    names = [features_of([item])["mm_hashes"]["image"][0] for item in (one, moved, other)]
    assert names[0] == names[1] != names[2]


@pytest.mark.slow
def test_the_seconds_of_a_step_give_the_positions_of_the_run_whatever_its_rounding() -> None:
    for clock in (1.0, 2.0, 25.0):
        for number in range(1, 400, 3):
            seconds = torch.tensor(number / 97)
            for num_steps in (2, 3, 50):
                times = (torch.arange(num_steps) * (clock * seconds)).long()  # as the trainer rounds, in float32
                sent = seconds_of(times.repeat_interleave(3) + 11, num_steps, clock)
                server = [math.floor(step * ((1.0 if sent is None else sent) * clock)) for step in range(num_steps)]
                assert server == times.tolist(), (clock, number, num_steps)


def test_steps_of_time_at_positions_of_no_constant_rate_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"stand at \[0, 1, 5, 6\], which no number of seconds gives"):
        seconds_of(torch.tensor([0, 1, 5, 6]), 4, 2.0)


def test_pixels_are_sent_in_the_precision_of_the_run() -> None:
    made = policy("qwen2_5_vl", dtype=torch.bfloat16)
    prompt, own = read_by(made, clip(10))
    (item,) = question_of(prompt, own, made.served).items
    assert item.pixels.dtype is torch.bfloat16
    assert torch.equal(item.pixels, own.media["pixel_values_videos"].bfloat16())


def test_a_family_whose_videos_no_server_is_given_is_refused() -> None:
    made = policy("internvl", engine=Vllm(name="vllm"), num_frames=2)
    prompt = Prompt("when?", clips=(clip(10),))
    message = r"'when\?' has a video: modality.engine is given the videos of Qwen2-VL, Qwen2.5-VL and Qwen3-VL alone"
    assert re.search(message, str(made.refusal(prompt))), "said before a run begins"
    with pytest.raises(ConfigError, match=message):
        made.rollout([prompt], [AnswerPlan(1, 4)], keys(1))


def changed(**changes: Any) -> EncodedPrompt:
    """A prompt with a video of two steps, each of four patches and one token, and what is changed."""
    media = {"pixel_values_videos": torch.zeros(8, 2), "video_grid_thw": torch.tensor([[2, 2, 2]])}
    types = torch.tensor([0, 2, 2, 0])
    made = EncodedPrompt(torch.arange(4), types, torch.arange(4).expand(3, -1), 4, media, None)
    return replace(made, **{"media": {**media, **changes.pop("media", {})}} | changes)


def test_steps_of_time_with_texts_between_them_are_images_to_the_server() -> None:
    kinds = {(0, 2, 2, 0): [("video", 1, 2)], (2, 0, 2, 0): [("image", 0, 1), ("image", 2, 1)]}
    for token_types, expected in kinds.items():
        items = items_of(changed(token_types=torch.tensor(token_types)), 1.0, torch.float32)
        assert [(item.kind, item.offset, item.length) for item in items] == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"media": {"image_sizes": torch.zeros(1)}}, "its media are also image_sizes"),
        ({"media": {"video_grid_thw": torch.tensor([[1, 2, 2]] * 3)}}, "3 videos of 3 steps of time are 1 runs"),
        ({"token_types": torch.tensor([2, 0, 2, 2])}, "other numbers of tokens than patches"),
    ],
)
def test_media_that_do_not_fit_their_tokens_are_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        items_of(changed(**changes), 1.0, torch.float32)


CONFIG = SimpleNamespace(
    model_type="qwen2_5_vl",
    image_token_id=8,
    video_token_id=9,
    vision_config=SimpleNamespace(spatial_merge_size=2, tokens_per_second=2),
)
TOKENS = (1, 9, 9, 1, 8)


def sent() -> dict[str, Any]:
    """A request with a video of two steps and an image, each of one token a step."""
    video = MediaItem("video", 1, 2, torch.zeros(8, 2), (2, 2, 2), 1.0)
    return features_of([video, MediaItem("image", 4, 1, torch.zeros(4, 2), (1, 2, 2))])


def test_the_small_server_places_media_as_vllm_does() -> None:
    read = read_prompt(TOKENS, read_items(sent()), CONFIG)
    # a text, a video whose steps are two positions apart, a text, an image
    assert read.positions.tolist() == [[0, 1, 3, 4, 5], [0, 1, 1, 4, 5], [0, 1, 1, 4, 5]]


def refused(message: str, tokens: Sequence[int] = TOKENS, config: Any = CONFIG, **fields: Any) -> None:
    with pytest.raises(ValueError, match=message):
        read_prompt(tokens, read_items(sent() | fields), config)


def test_the_small_server_refuses_what_vllm_would_not_read_as_it_is_meant() -> None:
    place = {"image": [{"offset": 4, "length": 1}]}
    refused("features has", mm_metadata=None)
    refused("same modalities", mm_hashes={"image": ["a"]})
    refused("zip", mm_hashes={"image": ["a", "b"], "video": ["c"]})
    refused("non-overlapping", mm_placeholders={**place, "video": [{"offset": 3, "length": 2}]})
    refused("8 patches of 8 for 1 tokens", mm_placeholders={**place, "video": [{"offset": 1, "length": 1}]})
    refused("stand outside", tokens=(*TOKENS, 9))
    refused("of kinds", tokens=(1, 9, 1, 1, 8))
    refused("places of their own", config=SimpleNamespace(**vars(CONFIG) | {"model_type": "qwen3_vl"}))


def test_a_request_has_media_of_one_form() -> None:
    server = TinyVllm(twin("qwen2_5_vl"), load)
    body = {"content_parts": [{"type": "image_url", "url": "a"}], "features": sent()}
    with pytest.raises(Exception, match="mutually exclusive"):
        server.answer("POST", "/inference/v1/generate", body)
