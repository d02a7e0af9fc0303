"""Encoded prompts and batches of them, and the messages with media from which prompts are encoded."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Canvas

MARK = "<image>"
Kind = Literal["text", "image", "video"]
MARKS: dict[Kind, str] = {"image": MARK, "video": "<video>"}
Side = Literal["left", "right"]
Axes = Mapping[str, int]  # the axis along which tensors of media are joined, by name; the first where it is not named


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt of L tokens. Its media are never split: some processors keep all patches of a prompt on one axis."""

    tokens: Tensor  # [L] int64
    token_types: Tensor  # [L] int64: 1 where an image stands, 2 where a video does, else 0
    positions: Tensor  # [A, L] int64: A = 3 axes (time, height, width) for M-RoPE, else 1
    next_position: int  # position of the first token of an answer, on all axes
    media: Mapping[str, Tensor]  # the processor's tensors of its images and videos; empty where it has none
    canvas: Canvas | None  # of its first image

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_bytes(self) -> int:
        """Returns the bytes of its tensors."""
        tensors = (self.tokens, self.token_types, self.positions, *self.media.values())
        return sum(tensor.nbytes for tensor in tensors)


@dataclass(frozen=True)
class PromptBatch:
    """P prompts padded to one length L, on the network's device."""

    tokens: Tensor  # [P, L] int64
    mask: Tensor  # [P, L] int64: 0 = padding
    token_types: Tensor  # [P, L] int64
    positions: Tensor  # [A, P, L] int64
    next_position: Tensor  # [P] int64
    last: Tensor  # [P] int64: index of each prompt's last token
    media: Mapping[str, Any]  # the network's arguments for the media of all prompts
    is_padded: bool  # whether the mask holds a 0

    @classmethod
    def of(
        cls,
        prompts: Sequence[EncodedPrompt],
        device: torch.device,
        pad: int,
        side: Side,
        media: Mapping[str, Any],
    ) -> "PromptBatch":
        """Joins prompts, padded with the token `pad` on one side; positions of padding are 0.

        Sliding windows count padding between a prompt and its answer, so models with windows need the left side.
        """
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        last = torch.full_like(lengths, longest - 1) if side == "left" else lengths - 1
        return cls(
            tokens=pad_rows([prompt.tokens for prompt in prompts], pad, side).to(device),
            mask=pad_rows([torch.ones_like(prompt.tokens) for prompt in prompts], 0, side).to(device),
            token_types=pad_rows([prompt.token_types for prompt in prompts], 0, side).to(device),
            positions=pad_rows([prompt.positions for prompt in prompts], 0, side).transpose(0, 1).to(device),
            next_position=torch.tensor([prompt.next_position for prompt in prompts]).to(device),
            last=last.to(device),
            media=media,
            is_padded=bool((lengths < longest).any()),
        )


def pad_rows(rows: Sequence[Tensor], value: int, side: Side) -> Tensor:
    """Stacks rows [..., L_i] to [n, ..., L], padded at the end of the last axis or before its start."""
    last_first = [row.movedim(-1, 0) for row in rows]
    return pad_sequence(last_first, batch_first=True, padding_value=value, padding_side=side).movedim(1, -1)


def runs(counts: Sequence[int], size: int) -> list[range]:
    """Returns runs of prompts whose counts, of answers or patches, sum up to `size` at most; one with more is alone."""
    ranges, start, total = [], 0, 0
    for number, count in enumerate(counts):
        if number > start and total + count > size:
            ranges.append(range(start, number))
            start, total = number, 0
        total += count
    return [*ranges, range(start, len(counts))] if counts else []


def join_media(parts: Sequence[Mapping[str, Tensor]], axes: Axes = MappingProxyType({})) -> dict[str, Tensor]:
    """Joins the media of several prompts in order.

    Tensors are joined along their first axis, of patches, tiles, images, or prompts with images, if `axes` names no
    other. Other axes of different lengths (numbers of tiles) are padded with zeros, which the families with such axes
    take for no tile.
    """
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _cat_padded([part[name] for part in parts if name in part], axes.get(name, 0)) for name in names}


def _cat_padded(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    padded = []
    for tensor in tensors:
        ends = [
            (0, 0 if number == axis else most - size)
            for number, (size, most) in enumerate(zip(tensor.shape, shape, strict=True))
        ]
        padded.append(torch.nn.functional.pad(tensor, [n for end in reversed(ends) for n in end]))
    return torch.cat(padded, axis)


def axis_of(first: Tensor, second: Tensor, both: Tensor) -> int | None:
    """Returns the axis along which two tensors of media make the one of both prompts; None where no axis does."""
    for axis in range(first.ndim):
        joined = _cat_padded([first, second], axis) if first.ndim == second.ndim == both.ndim else None
        if joined is not None and joined.shape == both.shape and torch.equal(joined, both):
            return axis
    return None


def parts_of(text: str, num_images: int, num_clips: int = 0) -> list[tuple[Kind, str]]:
    """Splits a text at its `<image>` and `<video>` marks.

    Media of a kind without marks come first, videos before images. Raises ValueError where the number of marks of a
    kind differs from that of its media.
    """
    parts: list[tuple[Kind, str]] = []
    kinds: tuple[tuple[Kind, int], ...] = (("video", num_clips), ("image", num_images))
    for kind, count in kinds:
        mark = MARKS[kind]
        num_marks = text.count(mark)
        if num_marks and num_marks != count:
            raise ValueError(f"its text has {num_marks} marks {mark} for {count} {kind}s")
        parts += [] if num_marks else [(kind, "")] * count
    for piece in re.split(f"({'|'.join(MARKS.values())})", text):
        kind = next((kind for kind, mark in MARKS.items() if piece == mark), "text")
        parts += [(kind, piece if kind == "text" else "")] if piece else []
    return parts


def messages_of(
    prompt: Prompt, template: str, system: str | None, videos: Sequence[Tensor] = ()
) -> list[dict[str, Any]]:
    """Returns a system message, if any, and the user's message, in the form of chat templates; opens images.

    `videos`: the frames [F, 3, H, W] of each clip. Raises ValueError where marks and media differ in number, and for a
    text that is no Unicode.
    """
    text = template.replace("{prompt}", prompt.text)
    media: dict[Kind, Iterator[Any]] = {"image": (image.load() for image in prompt.media), "video": iter(videos)}
    content = [
        {"type": kind, kind: piece if kind == "text" else next(media[kind])}
        for kind, piece in parts_of(text, len(prompt.media), len(prompt.clips))
    ]
    messages = [{"role": "user", "content": content}]
    own = prompt.system if prompt.system is not None else system
    if own is not None:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": own}]})
    for checked in (text, own or ""):
        checked.encode()  # half a surrogate pair, which JSON can spell, makes tokenizers raise many kinds of errors
    return messages


def called(prompt: Prompt) -> str:
    """Returns the name of a prompt in errors."""
    place = f"{prompt.source}: " if prompt.source else ""
    return f"{place}prompt {prompt.text[:60]!r}" + ("..." if len(prompt.text) > 60 else "")


def refuse_media_tokens(prompt: Prompt, messages: Sequence[Mapping[str, Any]], media_tokens: Iterable[str]) -> None:
    """Raises ConfigError for a text that spells a media token: the network would expect one image more.

    `<image>` and `<video>`, the media tokens of some families, are our marks and already removed from the message.
    """
    texts = [part["text"] for message in messages for part in message["content"] if part["type"] == "text"]
    if spelt := [token for token in media_tokens if any(token in text for text in texts)]:
        raise ConfigError(
            f"{called(prompt)} spells the model's own media token {spelt[0]!r} where no image or video stands"
        )
