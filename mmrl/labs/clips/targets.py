"""Dense targets: they teach the tower what is seen when, and the language model where and when to look.

Without them a model of this size does not learn to look: it answers with the most frequent span. The heads that read
the targets off are thrown away.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmrl.labs.clips.drawing import COLOURS, SHAPES
from mmrl.labs.clips.networks import FRAMES_PER_SECOND, time_words
from mmrl.labs.clips.world import DURATIONS, STATES, TIME_STEP, Clip, Event, Lamp, State

NUM_NAMES = len(COLOURS) + len(SHAPES) + len(COLOURS) * len(SHAPES)
NUM_TIMES = len(time_words())


class TowerHeads(nn.Module):
    """Heads that read from video tokens [..., H] what each of two frames shows: colour, shape, pair, lit, up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.seen = nn.Linear(width, 2 * (NUM_NAMES + len(STATES)))

    def loss(self, tokens: Tensor, seen: Tensor) -> Tensor:
        """Returns the cross entropy as a scalar; tokens: [..., H], seen: [..., 2, N] of `seen_in`."""
        return 3 * F.binary_cross_entropy_with_logits(self.seen(tokens), seen.flatten(-2))


def seen_in(clip: Clip) -> Tensor:
    """Returns what each token's two frames show, [T, 4, 2, N] of 0 and 1: colours, shapes, pairs; there, lit, up."""
    seen = torch.zeros(clip.duration, 4, 2, NUM_NAMES + len(STATES))
    for lamp in clip.lamps:
        colour, shape = list(COLOURS).index(lamp.colour), SHAPES.index(lamp.shape)
        pair = len(COLOURS) + len(SHAPES) + colour * len(SHAPES) + shape
        states = torch.tensor([_when(clip, lamp, state) for state in STATES])  # [3, 2T]
        is_there = states[STATES.index("there")].view(-1, 2)  # [T, 2]
        for name in (colour, len(COLOURS) + shape, pair):
            seen[:, lamp.cell, :, name] = is_there
        for number, state in enumerate(states):
            seen[:, lamp.cell, :, NUM_NAMES + number] = state.view(-1, 2) * is_there
    return seen


def _when(clip: Clip, lamp: Lamp, state: State) -> list[float]:
    """Returns 1 for the half seconds in which the lamp is in the state, else 0."""
    count = clip.duration * FRAMES_PER_SECOND
    return [float(lamp.is_in(state, number / FRAMES_PER_SECOND)) for number in range(count)]


class TimeHeads(nn.Module):
    """Heads that read from the language model's state of a video token the second that the token shows.

    The tower sees two frames and no time; the language model has it from the positions alone.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.second = nn.Linear(width, max(DURATIONS))

    def loss(self, hidden: Tensor) -> Tensor:
        """Returns the cross entropy of the second as a scalar; hidden: [S, T, 4, H] of S clips of T seconds."""
        seconds = torch.arange(hidden.shape[1])[None, :, None].expand(hidden.shape[:3])
        return F.cross_entropy(self.second(F.layer_norm(hidden, hidden.shape[-1:])).flatten(0, 2), seconds.flatten())


class PointerHeads(nn.Module):
    """Heads that read from the state before the answer the tokens that show the event, and the span."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, 2 * 64)
        self.key = nn.Linear(width, 64)
        self.ends = nn.Linear(width, 2 * NUM_TIMES)

    def where_loss(self, hidden: Tensor, video_tokens: Tensor, asked: Sequence[tuple[Lamp, Event]]) -> Tensor:
        """Returns the cross entropy of the frames and tokens that show the event, as a scalar.

        Args:
            hidden: [B, H], of the last token of B questions.
            video_tokens: [B, T, 4, H], of their clips.
            asked: B lamps and events, those that are meant.
        """
        shows = torch.stack([_shows(lamp, event, video_tokens.shape[1]) for lamp, event in asked])  # [B, T, 4, 2]
        hidden, keys = (F.layer_norm(states, states.shape[-1:]) for states in (hidden, video_tokens))
        logits = torch.einsum("bfh,btch->btcf", self.query(hidden).unflatten(-1, (2, 64)), self.key(keys)) / 8
        return F.binary_cross_entropy_with_logits(logits - 2, shows)  # few frames of few tokens do

    def when_loss(self, hidden: Tensor, asked: Sequence[tuple[Lamp, Event]]) -> Tensor:
        """Returns the cross entropy of start and end as a scalar; hidden: [B, H], of the last token of B questions."""
        ticks = torch.tensor([[round(seconds / TIME_STEP) for seconds in event.span] for _, event in asked])  # [B, 2]
        ends = self.ends(F.layer_norm(hidden, hidden.shape[-1:])).unflatten(-1, (2, NUM_TIMES))
        return F.cross_entropy(ends.flatten(0, 1), ticks.flatten())


def _shows(lamp: Lamp, event: Event, seconds: int) -> Tensor:
    """Returns [T, 4, 2] of 0 and 1: the frames of the lamp's tokens that show the event."""
    ticks = torch.arange(2 * seconds) / FRAMES_PER_SECOND
    shows = torch.zeros(seconds, 4, 2)
    shows[:, lamp.cell] = ((ticks >= event.span[0]) & (ticks < event.span[1])).float().view(-1, 2)
    return shows
