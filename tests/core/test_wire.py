"""Samples on the wire: what is written is read as it was, and what is broken spoils nothing else."""

import base64
import io
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

from mmrl.core.data import Outputs, Prompt
from mmrl.core.reward_batches import IMAGE, MEDIA
from mmrl.core.rewards import RewardBatch
from mmrl.core.wire import (
    JSON,
    REQUEST,
    SAFETENSORS,
    Limits,
    ReadRequest,
    Sample,
    UnreadItem,
    WireError,
    read_request,
    read_response,
    write_request,
)
from mmrl.core.wire_media import MediaReader, Unreadable, file_medium, pixels_of, safetensors_medium
from mmrl.media.mp4 import write_mp4
from mmrl.media.pictures import StoredPicture
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from tests.parameters import in_one_test

LIMITS = Limits(items=8, item_bytes=2**20)
EVERYTHING = frozenset({*MEDIA, IMAGE})


def png(width: int = 4, height: int = 3, color: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), color).save(file, format="PNG")
    return file.getvalue()


def whole_batch() -> RewardBatch:
    """Two samples with all that a policy can make."""
    rows = torch.arange(2)
    picture = StoredPicture("image 0", content=png())
    prompt = Prompt("où?", (picture,), {"box": [0.1, 1e-17, 3.0, 4.0], "n": {"a": None}}, "Be brief.", roles=("image",))
    outputs = Outputs(
        images=torch.rand(2, 3, 5, 4),
        videos=torch.rand(2, 2, 3, 4, 6),
        fps=(8.0, 7.5),
        audio=torch.rand(2, 1, 9) * 2 - 1,
        audio_rate=(16000, 8000),
        texts=("a\n\U0001f600", ""),
        is_finished=torch.tensor([True, False]),
        num_tokens=torch.tensor([3, 2**40]),
        pieces=(("a", "\n", "\U0001f600"), ()),
        canvases=(Canvas((4, 3), (28, 28), None), None),
        actions=(Action("click", (1 / 3, 2.0)), None),
        step_rewards=torch.tensor([0.1, -1.0]),
        outcomes=("done", None),
        screens=(StoredPicture("the screen", content=png()), None),
        given=torch.tensor([-1, 3]),
    )
    return RewardBatch(
        prompts=(prompt, Prompt("two", target={})),
        outputs=outputs,
        group=rows // 2,
        episode=rows + 5,
        turn=rows,
        seeds=(2**63 + 1, 0),
        iteration=7,
        generator=torch.Generator(),
        is_control=torch.tensor([False, True]),
    )


def samples_of(read: ReadRequest) -> list[Sample]:
    assert all(isinstance(one, Sample) for one in read.samples), read.samples
    return [one for one in read.samples if isinstance(one, Sample)]


def same(left: object, right: object) -> bool:
    return torch.equal(left, right) if isinstance(left, Tensor) and isinstance(right, Tensor) else left == right


def test_what_is_written_is_read_bit_for_bit() -> None:
    batch = whole_batch()
    content, kind = write_request(batch, EVERYTHING, timeout_seconds=3)
    assert kind == SAFETENSORS
    read = read_request(content, kind, LIMITS)
    samples = samples_of(read)
    assert read.iteration == 7 and read.timeout_seconds == 3 and read.ids == (0, 1)
    outputs = Outputs.join([sample.outputs for sample in samples])
    for item in fields(Outputs):
        assert same(getattr(outputs, item.name), getattr(batch.outputs, item.name)), item.name
    assert [sample.seed for sample in samples] == list(batch.seeds)
    assert [(one.group, one.episode, one.turn, one.is_control) for one in samples] == [
        (0, 5, 0, False),
        (0, 6, 1, True),
    ]
    first, written = samples[0].prompt, batch.prompts[0]
    assert (first.text, first.system, first.target, first.roles) == ("où?", "Be brief.", written.target, ("image",))
    assert first.media[0].load().tobytes() == written.media[0].load().tobytes()


def test_only_what_is_needed_is_sent() -> None:
    content, kind = write_request(whole_batch(), frozenset({"texts"}))
    assert kind == JSON
    request = json.loads(content)
    assert set(request["items"][0]) == {"id", "prompt", "group", "episode", "turn", "seed", "text"}
    assert request["prompts"][0]["images"] == []
    (sample, _) = samples_of(read_request(content, kind, LIMITS))
    assert sample.outputs.texts == ("a\n\U0001f600",) and sample.outputs.images is None


def test_samples_of_one_prompt_share_it() -> None:
    batch = whole_batch()
    content, _ = write_request(replace(batch, prompts=(batch.prompts[0],) * 2), frozenset({"texts"}))
    assert [item["prompt"] for item in json.loads(content)["items"]] == [0, 0]
    assert len(json.loads(content)["prompts"]) == 1


def test_eight_bits_are_those_of_a_png() -> None:
    media = torch.tensor([0.0, 0.5 / 255, 0.6 / 255, 1.0])
    assert pixels_of(media, "uint8").tolist() == [0, 0, 1, 255]  # ties go to the even number
    batch = whole_batch()
    content, kind = write_request(batch, frozenset({"images"}), pixels="uint8")
    (first, _) = samples_of(read_request(content, kind, LIMITS))
    assert batch.outputs.images is not None and first.outputs.images is not None
    assert torch.equal(first.outputs.images[0], (batch.outputs.images[0] * 255).round() / 255)


def test_a_target_that_is_no_json_is_left_out_unless_it_is_needed() -> None:
    batch = replace(whole_batch(), prompts=(Prompt("a", target={"n": 1, "x": object()}),) * 2)
    content, _ = write_request(batch, frozenset({"texts"}))
    assert json.loads(content)["prompts"][0]["target"] == {"n": 1}
    with pytest.raises(ValueError, match=r"target\.x of 'a' cannot be sent as JSON: object is no JSON"):
        write_request(batch, frozenset({"texts", "target.x"}))


def item(**more: Any) -> dict[str, Any]:
    return {"id": "a", "prompt": {"text": "q"}, "text": "t"} | more


def read(*items: Any, limits: Limits = LIMITS, **more: Any) -> ReadRequest:
    return read_request(json.dumps({"items": list(items)} | more).encode(), JSON, limits)


BROKEN = {
    "no prompt": ({"id": "a"}, "prompt: Field required"),
    "unknown field": (item(txt="t"), "txt: Extra inputs are not permitted"),
    "a wrong type": (item(text=3), "text: Input should be a valid string"),
    "no object": (3, "Input should be a valid dictionary"),
    "a prompt that is not there": (item(prompt=1), "prompt 1 is not among the 0 prompts"),
    "a picture that is none": (item(image={"file": base64.b64encode(b"x").decode()}), "in none of the formats"),
    "no base64": (item(image={"file": "!"}), "is no base64"),
    "another form": (item(image={"url": "http://here"}), "an object with one of file, safetensors, tensor"),
    "a tensor that is not there": (item(image={"tensor": "x"}), "no tensor 'x'"),
    "no safetensors": (item(image={"safetensors": "AAAA"}), "no safetensors file"),
    "a wrong shape": (item(image=safetensors_medium(torch.rand(4, 5))), r"image must be \[3, \*, \*\]"),
    "out of range": (item(image=safetensors_medium(torch.full((3, 1, 1), 2.0))), r"in \[0, 1\], got 2 to 2"),
    "a video without fps": (item(video=safetensors_medium(torch.rand(2, 3, 4, 4))), "needs its fps"),
    "a wrong action": (item(action={"kind": "jump"}), "action.kind"),
    "a prompt's picture": (item(prompt={"text": "q", "images": [{"file": "AA=="}]}), "the prompt cannot be read"),
}


@in_one_test("kind", BROKEN)
def test_an_item_that_cannot_be_read_says_why_and_spoils_no_other(kind: str) -> None:
    broken, reason = BROKEN[kind]
    found = read(item(id=1), broken, item(id=2))
    assert isinstance(found.samples[0], Sample) and isinstance(found.samples[2], Sample)
    unread = found.samples[1]
    assert isinstance(unread, UnreadItem)
    with pytest.raises(ValueError, match=reason):
        raise ValueError(unread.reason)
    assert found.ids == (1, "a" if isinstance(broken, dict) else None, 2)


@in_one_test(
    ("content", "reason"),
    [
        (b"", "no request"),
        (b"\xff", "no request"),
        (b"[" * 100_000, "no request"),
        (b'{"items": 3}', "items: Input should be a valid list"),
        (b'{"items": [], "x": 1}', "x: Extra inputs"),
        (json.dumps({"items": [{}] * 9}).encode(), "may have 8 items, got 9"),
        (json.dumps({"items": [item(), item()]}).encode(), "an id of its own, got 'a' twice"),
    ],
)
def test_a_body_that_is_no_request_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read_request(content, JSON, LIMITS)


@in_one_test(
    "content",
    [
        b"",
        b"\x80\x04N.",
        (10**9).to_bytes(8, "little") + b"{}",
        safetensors.torch.save({"x": torch.zeros(1)}),
        safetensors.torch.save({"x": torch.zeros(1)}, {REQUEST: "["}),
    ],
)
def test_a_safetensors_body_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(WireError):
        read_request(content, SAFETENSORS, LIMITS)


def test_media_have_a_limit_as_files_and_as_pixels() -> None:
    small = Limits(8, 10_000)
    fits, large = item(id=0, image=file_medium(png(20, 20))), item(id=1, image=file_medium(png(30, 30)))
    many = item(id=2, prompt={"text": "q", "images": [file_medium(png(20, 20))] * 3})
    found = read(fits, large, many, limits=small)  # 30 * 30 * 12 bytes = 10,800; 3 * 4,800 are too many
    assert isinstance(found.samples[0], Sample)
    for unread in found.samples[1:]:
        assert isinstance(unread, UnreadItem) and "more than 10,000 bytes" in unread.reason


def test_a_video_is_read_from_its_file(tmp_path: Path) -> None:
    frames = torch.zeros(4, 3, 16, 16, dtype=torch.uint8)
    frames[2:] = 255
    write_mp4(tmp_path / "a.mp4", frames, 8.0)
    medium = file_medium((tmp_path / "a.mp4").read_bytes())
    (sample,) = samples_of(read(item(video=medium)))
    assert sample.outputs.videos is not None and sample.outputs.fps == (8.0,)
    torch.testing.assert_close(sample.outputs.videos[0], frames.float() / 255, rtol=0, atol=0.05)
    with pytest.raises(Unreadable, match="more than 5,000 bytes"):
        MediaReader({}, 5_000).video(medium)  # 4 * 16 * 16 * 12 = 12,288 bytes of pixels


def test_text_about_an_image_counts_in_its_pixels() -> None:
    (sample,) = samples_of(read(item(prompt={"text": "q", "images": [file_medium(png())]})))
    assert sample.outputs.canvases == (Canvas((4, 3), (4, 3), "original"),)


def reply(*scores: tuple[Any, Any]) -> dict[str, Any]:
    return {"reward": "r", "scores": [{"id": name, "score": score, "reason": None} for name, score in scores]}


def test_scores_are_matched_by_id() -> None:
    assert [one.score for one in read_response(reply((1, 0.5), (2, None), (0, 1)), 3)] == [1, 0.5, None]


@in_one_test(
    "wrong",
    [
        None,
        {},
        {"scores": [3]},
        reply((0, 1.0)),
        reply((0, 1.0), (0, 1.0)),
        reply((0, 1.0), (2, 1.0)),
        reply((0, 1.0), ("1", 1.0)),
        reply((0, 1.0), (1, "1")),
        reply((0, 1.0), (1, True)),
        reply((0, 1.0), (1, 0.0), (2, 0.0)),
    ],
)
def test_a_response_with_a_score_lost_or_swapped_is_refused(wrong: Any) -> None:
    with pytest.raises(WireError):
        read_response(wrong, 2)
