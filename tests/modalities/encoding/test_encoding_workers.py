"""Threads that encode prompts: in order, within a budget, with errors where a prompt is used, and none left behind."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.media.pictures import StoredPicture
from mmrl.modalities.encoding.encoding_workers import EncodingWorkers
from mmrl.modalities.encoding.inputs import EncodedPrompt
from mmrl.modalities.gui import Gui
from mmrl.modalities.video import Video
from tests.tiny_texts import clips
from tests.vision_twins import picture, policy, prepared

PICTURED = tuple(Prompt(f"what is in {n}?", (picture(40 + n, 50, n),)) for n in range(6))


def encoded(number: int, size: int = 1) -> EncodedPrompt:
    """A prompt of one token that says its number, with `size` bytes of media beside 24 bytes of tokens."""
    one = torch.tensor([number])
    return EncodedPrompt(one, one, one[None], 1, {"pixels": torch.zeros(size, dtype=torch.uint8)}, None)


class Gate:
    """An encoder that notes which prompts it has begun, and waits until it is opened."""

    def __init__(self, *, is_open: bool = True, size: int = 1) -> None:
        self.begun: list[int] = []
        self.open = threading.Event()
        self.size = size
        if is_open:
            self.open.set()

    def __call__(self, prompt: Prompt) -> EncodedPrompt:
        self.begun.append(int(prompt.text))
        self.open.wait(10)
        if prompt.text == "13":
            raise ConfigError("prompt 13 cannot be read")
        return encoded(int(prompt.text), self.size)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("encoding_")]


def until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(1e-3)


def workers(gate: Gate, count: int = 2, max_bytes: int = 10**6) -> EncodingWorkers:
    return EncodingWorkers(count, max_bytes, lambda: gate)


def test_prompts_are_encoded_once_and_handed_out_once() -> None:
    gate = Gate()
    pool = workers(gate)
    for number in (1, 2, 3, 2):
        pool.submit(number, Prompt(str(number)))
    until(lambda: len(gate.begun) == 3)
    taken = [pool.take(number) for number in (3, 1, 2)]
    assert [int(one.tokens) for one in taken if one is not None] == [3, 1, 2]
    assert pool.take(2) is None and pool.take(7) is None and sorted(gate.begun) == [1, 2, 3]
    assert pool.seconds > 0
    pool.close()


def test_no_thread_begins_a_prompt_beyond_the_budget_until_one_is_taken() -> None:
    gate = Gate(size=100)
    pool = workers(gate, count=1, max_bytes=200)  # 124 bytes each: the second fills it
    for number in range(5):
        pool.submit(number, Prompt(str(number)))
    until(lambda: len(gate.begun) == 2)
    time.sleep(0.05)
    assert gate.begun == [0, 1]
    assert pool.take(4) is None  # not begun: whoever asks encodes it
    assert pool.take(0) is not None
    until(lambda: len(gate.begun) == 3)
    assert gate.begun == [0, 1, 2]
    pool.close()


def test_an_error_is_raised_where_the_prompt_is_taken() -> None:
    pool = workers(Gate())
    pool.submit(13, Prompt("13"))
    with pytest.raises(ConfigError, match="prompt 13 cannot be read"):
        while pool.take(13) is None:  # None only where no thread had begun it
            pool.submit(13, Prompt("13"))
            time.sleep(0.01)
    pool.close()


def test_prompts_that_nobody_wants_any_more_make_room() -> None:
    gate = Gate(size=100)
    pool = workers(gate, count=1, max_bytes=200)
    for number in range(4):
        pool.submit(number, Prompt(str(number)))
    until(lambda: len(gate.begun) == 2)
    pool.forget_others({3})
    until(lambda: 3 in gate.begun)
    assert gate.begun == [0, 1, 3] and pool.take(0) is None
    pool.close()


def test_closing_drops_what_waits_and_the_next_prompt_opens_it_again() -> None:
    gate = Gate(is_open=False)
    pool = workers(gate, count=1)
    for number in range(3):
        pool.submit(number, Prompt(str(number)))
    until(lambda: gate.begun == [0])
    gate.open.set()
    pool.close()
    assert gate.begun == [0] and pool.take(1) is None
    pool.submit(5, Prompt("5"))
    until(lambda: 5 in gate.begun)
    pool.close()


def equal(one: EncodedPrompt, other: EncodedPrompt) -> bool:
    """Whether two encodings are the same in every bit."""
    pairs = [(one.tokens, other.tokens), (one.token_types, other.token_types), (one.positions, other.positions)]
    pairs += [(one.media[name], other.media[name]) for name in {*one.media, *other.media}]
    same = all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    return same and (one.next_position, one.canvas) == (other.next_position, other.canvas)


@pytest.mark.slow
@pytest.mark.parametrize("is_fetched", [False, True])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_a_policy_with_threads_encodes_the_same_bits(family: str, is_fetched: bool) -> None:
    alone, threaded = policy(family), policy(family, prompt_cache=1)
    prompts = [*PICTURED, Prompt("text alone"), PICTURED[0]]
    threaded.use_workers(2, 10**8)
    if is_fetched:
        threaded.prefetch(PICTURED)
        assert threaded.encoder.workers is not None
        until(lambda: all(job.state == "done" for job in threaded.encoder.workers._jobs.values()))
    before = threaded.encoder.seconds
    both = zip(alone.encode(prompts), threaded.encode(prompts), strict=True)
    assert all(equal(*pair) for pair in both)
    waited, worked = threaded.decoding_seconds()
    assert waited > before and worked > 0
    threaded.close()


@pytest.mark.slow
def test_a_screen_is_fetched_with_the_instructions_of_its_size() -> None:
    settings = {"dialect": "qwen", "coordinates": "resized"}
    alone, threaded = prepared(Gui, **settings), prepared(Gui, **settings)
    threaded.use_workers(1, 10**8)
    broken = Prompt("click", (StoredPicture("no.png", content=b"none"),))
    threaded.prefetch([*PICTURED, broken, Prompt("no screen")])
    jobs = threaded.encoder.workers
    assert jobs is not None
    until(lambda: jobs._jobs and all(job.state == "done" for job in jobs._jobs.values()))
    assert len(jobs._jobs) == len(PICTURED)
    assert all(equal(*pair) for pair in zip(alone.encode(PICTURED), threaded.encode(PICTURED), strict=True))
    assert not jobs._jobs  # it was what was asked for
    threaded.close()


@pytest.mark.slow
def test_frames_of_clips_are_the_same_bits() -> None:
    from mmrl.prompts.stream import load_prompts

    settings: dict[str, Any] = {"num_frames": 4, "frame_min_pixels": 784, "frame_max_pixels": 3136}
    alone, threaded = prepared(Video, **settings), prepared(Video, **settings)
    threaded.use_workers(2, 10**8)
    prompts = load_prompts(clips())
    threaded.prefetch(prompts)
    assert all(equal(*pair) for pair in zip(alone.encode(prompts), threaded.encode(prompts), strict=True))
    threaded.close()


def test_a_broken_image_is_the_same_error_and_others_are_read(tmp_path: Path) -> None:
    whole = picture(50, 50, 1).content
    assert whole is not None
    (tmp_path / "cut.png").write_bytes(whole[:1000])
    broken = Prompt("what?", (StoredPicture("cut.png", tmp_path / "cut.png"),), source="rows.jsonl, line 3")
    alone, threaded = policy(), policy()
    threaded.use_workers(2, 10**8)
    threaded.prefetch([PICTURED[0], broken, PICTURED[1]])
    messages = []
    for one in (alone, threaded):
        with pytest.raises(ConfigError) as raised:
            one.encode([PICTURED[0], broken, PICTURED[1]])
        messages.append(str(raised.value))
        assert one.unreadable(broken) == messages[-1] and one.unreadable(PICTURED[1]) is None
    assert messages[0] == messages[1] and "cut.png" in messages[0]
    threaded.close()


def test_it_warns_once_of_prompts_beyond_the_context(caplog: pytest.LogCaptureFixture) -> None:
    threaded = policy()
    threaded.encoder.model.config.get_text_config().max_position_embeddings = 5
    threaded.use_workers(2, 10**8)
    threaded.encode(PICTURED)
    assert len([record for record in caplog.records if "the model is made for 5" in record.getMessage()]) == 1
    threaded.close()
