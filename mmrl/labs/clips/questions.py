"""Questions about clips to train the language model on, with answers that may be wrong on purpose."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrl.labs.clips import networks, world
from mmrl.labs.screens.questions import bells

PER_CLIP = 6  # questions about each clip of a step
BLUR = 0.5  # half seconds: a time's label is a bell around it, so that 2.5 is nearly right where 3.0 is
END_OF_VIDEO = "<|vision_end|>"
VIDEO_STARTS = 4  # tokens before it: <|im_start|>, user, a line break, <|vision_start|>


@dataclass(frozen=True)
class Noise:
    """Errors of the training labels."""

    wrong: float = 0.0  # share of labels that belong to another event of the clip
    jitter: float = 0.0  # standard deviation in seconds, each end by itself
    shift: float = 0.0  # the same for both ends: seconds later


@dataclass(frozen=True)
class Batch:
    """B questions with their answers, all of one length, without the video that the questions of a clip share."""

    events: list[tuple[world.Lamp, world.Event]]  # B, those that are meant
    tokens: Tensor  # [B, T]
    num_before: int  # tokens before the answer


def questions(processor: Any, clips: Sequence[world.Clip], noise: Noise, rng: random.Random) -> Batch:
    """Returns `PER_CLIP` questions about each clip; the questions of one clip are neighbors."""
    asked, before, answers = [], [], []
    for clip in clips:
        events = [(lamp, event) for lamp in clip.lamps for event in lamp.events]
        for number in range(PER_CLIP):
            lamp, event = events[number] if number < len(events) else rng.choice(events)
            asked.append((lamp, event))
            before.append(prompt_text(processor, world.ask(lamp, event)).partition(END_OF_VIDEO)[2])
            span = noisy_span(clip, event, noise, rng)
            answers.append(world.answer(span) + processor.tokenizer.eos_token)
    head, tail = (torch.tensor(processor.tokenizer(texts)["input_ids"]) for texts in (before, answers))
    return Batch(asked, torch.cat([head, tail], 1), head.shape[1])


def noisy_span(clip: world.Clip, event: world.Event, noise: Noise, rng: random.Random) -> world.Span:
    """Returns the span of the event, or of another, off by jitter and shift; in the clip, at least a second long."""
    others = [other for lamp in clip.lamps for other in lamp.events if other is not event]
    if rng.random() < noise.wrong:
        event = rng.choice(others)
    start, end = (seconds + noise.shift + noise.jitter * rng.gauss(0, 1) for seconds in event.span)
    start = min(max(start, 0.0), clip.duration - 2 * world.TIME_STEP)
    return start, min(max(end, start + 2 * world.TIME_STEP), float(clip.duration))


def prompt_text(processor: Any, text: str) -> str:
    """Returns the chat of one clip and one question, up to the start of the assistant's answer."""
    content = [{"type": "video"}, {"type": "text", "text": text}]
    chat: str = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return chat


def shared_head(processor: Any, seconds: int) -> Tensor:
    """Returns the tokens [1, L] of the chat through the video of that length, the same for every question."""
    text = prompt_text(processor, "").partition(END_OF_VIDEO)[0] + END_OF_VIDEO
    text = text.replace(processor.video_token, processor.video_token * networks.TOKENS_PER_STEP * seconds)
    tokens: Tensor = processor.tokenizer(text, return_tensors="pt")["input_ids"]
    return tokens


def prompt_positions(length: int, seconds: int) -> Tensor:
    """Returns the positions [3, L] (time, height, width) of the first L tokens of a prompt with its answer.

    A second of the video is two positions in time; what follows stands behind the whole video, as it did when the
    published models were trained (transformers 5 lets it begin in the middle of a long one).
    """
    positions = torch.arange(length).expand(3, -1).clone()
    first, step = VIDEO_STARTS, torch.arange(networks.TOKENS_PER_STEP * seconds)
    end = first + len(step)
    positions[:, first:end] = first + torch.stack([step // 4 * 2, step % 4 // 2, step % 2])
    positions[:, end:] += int(positions[:, first:end].max()) + 1 - end
    return positions


def soft_labels(num_tokens: int, processor: Any) -> Tensor:
    """Returns label distributions [V, V] of the tokens: one-hot, but a bell of sd BLUR around a time."""
    return bells(num_tokens, processor.tokenizer.convert_tokens_to_ids(networks.time_words()), BLUR)
