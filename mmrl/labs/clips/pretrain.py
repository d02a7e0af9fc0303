"""Trains the lab's checkpoint from nothing: a tower that knows what two frames show, then answers, then noisy labels.

1. tower: learns what lies in each quarter of the frame, in which state (`targets.py`), and is frozen from then on;
2. bind, settle: the language model learns which event is meant, and to name its span;
3. spoil: labels of another event and spans that are off, so that RL has something to mend.

The checkpoint before stage 3 is kept beside it as FOLDER_unspoilt, since RL cannot be asked for much more than that.
"""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.labs.clips import grading, networks, world
from mmrl.labs.clips.questions import PER_CLIP, Batch, Noise, prompt_positions, questions, shared_head, soft_labels
from mmrl.labs.clips.targets import PointerHeads, TimeHeads, TowerHeads, seen_in
from mmrl.labs.screens.networks import WIDTH
from mmrl.labs.teaching import Course, Optimizer, Stage, command_line, cosine, forward, make_checkpoint, warm

CLIPS = 16  # of a step
POOL = 60  # batches of clips that are shown again, each about three times
TOWER_SECONDS = 6  # of each clip, of a step that trains the tower
TIME_LAYER, POINTER_LAYER = 1, 3  # of four: what is found there, the layers after it can use
TOWER_STEPS = 500
TOWER_RATE = 1.5e-3


STAGES = (
    Stage("bind", 850, 2e-3, Noise()),
    Stage("settle", 500, 1.5e-3, Noise(), is_falling=True, hints=0.2),
)
SPOIL = Stage("spoil", 100, 5e-4, Noise(wrong=0.35, jitter=0.7, shift=0.5), is_falling=True, hints=0.0)


def pretrain(folder: Path, *, seed: int, scale: float = 1.0) -> None:
    """Trains everything from one seed; writes the checkpoint, and the one before spoiling. `scale` is of all steps."""
    torch.manual_seed(seed)
    processor = networks.new_processor()
    teacher = Teacher(networks.new_model(processor), processor, seed)
    make_checkpoint(folder, teacher, Course(TOWER_STEPS, STAGES, SPOIL, num_graded=512), grading.report, scale)


@dataclass(frozen=True)
class Shown:
    """Clips of one length: the patches of their frames from the processor, and their features from the frozen tower."""

    clips: list[world.Clip]
    patches: Tensor | None  # [S, T, 16, N], until the tower is frozen
    tokens: Tensor | None = None  # [S, T, 4, H], from then on


class Teacher:
    """A teacher that trains a model stage by stage, on clips that no split holds."""

    def __init__(self, model: Any, processor: Any, seed: int) -> None:
        self.model, self.processor = model, processor
        self.rng = random.Random(seed)
        self.next_seed = world.FIRST_SEED["pretrain"] + seed * 1_000_000
        self.labels = soft_labels(model.config.text_config.vocab_size, processor)  # [V, V]
        self.in_tokens = TowerHeads(WIDTH)
        torch.manual_seed(seed)  # the language model's stages do not depend on what the tower's drew
        self.times, self.pointer = TimeHeads(WIDTH), PointerHeads(WIDTH)
        self.pool: list[Shown] = []

    def train_tower(self, num_steps: int) -> None:
        """Trains the vision tower alone on dense targets of fresh clips, then freezes it."""
        step_optimizer = Optimizer([*self.model.model.visual.parameters(), *self.in_tokens.parameters()])
        start = time.process_time()
        for step in range(num_steps):
            shown = self._next(step)
            assert shown.patches is not None, "the tower is not frozen yet"
            chosen = torch.tensor([self.rng.sample(range(shown.patches.shape[1]), TOWER_SECONDS) for _ in shown.clips])
            rows = torch.arange(len(shown.clips))[:, None]
            seen = torch.stack([seen_in(clip) for clip in shown.clips])[rows, chosen]  # [S, t, 4, 2, N]
            loss = self.in_tokens.loss(self.look(shown.patches[rows, chosen]), seen)
            step_optimizer(loss, warm(TOWER_RATE, step) * cosine(step / num_steps))
            if step % 50 == 49 or step == num_steps - 1:
                print(f"tower {step + 1} {time.process_time() - start:.0f}s loss {loss.item():.4f}", flush=True)
        self.model.model.visual.requires_grad_(False)
        with torch.no_grad():
            self.pool = [Shown(one.clips, None, self.look(one.patches)) for one in self.pool if one.patches is not None]

    def look(self, patches: Tensor) -> Tensor:
        """Returns the tower's video tokens [S, T, 4, H] of patches [S, T, 16, N]."""
        grid = torch.tensor([[patches.shape[1], 4, 4]]).expand(len(patches), -1)
        seen = self.model.model.visual(patches.flatten(0, 2), grid_thw=grid).pooler_output
        tokens: Tensor = seen.unflatten(0, (*patches.shape[:2], networks.TOKENS_PER_STEP))
        return tokens

    def _next(self, step: int) -> Shown:
        """Returns fresh clips in every third step, else clips of the pool."""
        if len(self.pool) >= 8 and step % 3:
            return self.rng.choice(self.pool)
        self.pool = [*self.pool[1 - POOL :], self._fresh()]
        return self.pool[-1]

    @torch.no_grad()
    def _fresh(self) -> Shown:
        """Returns the next clips of one length, read from their mp4 files."""
        lengths = len(world.DURATIONS)
        first = self.next_seed + self.rng.randrange(lengths)
        seeds = range(first, first + lengths * CLIPS, lengths)
        self.next_seed += lengths * CLIPS
        pixels = self.processor.video_processor(
            [grading.frames(seed).pixels for seed in seeds], return_tensors="pt", do_sample_frames=False
        )["pixel_values_videos"]
        clips = [world.clip(seed) for seed in seeds]
        patches = pixels.view(CLIPS, clips[0].duration, 16, -1)
        is_frozen = not any(parameter.requires_grad for parameter in self.model.model.visual.parameters())
        return Shown(clips, None, self.look(patches)) if is_frozen else Shown(clips, patches)

    def train_language(self, stage: Stage[Noise], num_steps: int) -> None:
        """Trains the language model on questions about clips, with features of the frozen tower."""
        heads = [*self.times.parameters(), *self.pointer.parameters()]
        step_optimizer = Optimizer([*self.model.model.language_model.parameters(), *heads])
        start = time.process_time()
        for step in range(num_steps):
            shown = self._next(step)
            losses = self.losses(shown, questions(self.processor, shown.clips, stage.noise, self.rng))
            answers, second, where, when = losses
            loss = answers + stage.hints * (0.3 * second + 3 * where + 0.5 * when)
            step_optimizer(loss, stage.rate(step, num_steps))
            if step % 25 == 24 or step == num_steps - 1:
                found = " ".join(f"{value.item():.3f}" for value in losses)
                print(f"{stage.name} {step + 1} {time.process_time() - start:.0f}s losses {found}", flush=True)

    def losses(self, shown: Shown, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the cross entropy of the answers and the losses of the heads; the shared part of a clip runs once."""
        assert shown.tokens is not None, "the tower comes first"
        tokens = shown.tokens
        head = shared_head(self.processor, tokens.shape[1])
        positions = prompt_positions(head.shape[1] + batch.tokens.shape[1], tokens.shape[1])[:, None]  # [3, 1, L]
        before, output = forward(self.model, "video", tokens, head, batch.tokens, positions)
        is_video = head[0] == self.model.config.video_token_id
        second = self.times.loss(before.hidden_states[TIME_LAYER][:, is_video].unflatten(1, tokens.shape[1:3]))
        last = batch.num_before - 1
        log_prob = self.model.lm_head(output.last_hidden_state[:, last:-1]).log_softmax(-1)  # [B, answer, V]
        answers = -(self.labels[batch.tokens[:, last + 1 :]] * log_prob).sum(-1).mean()
        hidden = output.hidden_states[POINTER_LAYER][:, last]  # [B, H]
        shown_tokens = tokens.repeat_interleave(PER_CLIP, 0)
        return (
            answers,
            second,
            self.pointer.where_loss(hidden, shown_tokens, batch.events),
            self.pointer.when_loss(hidden, batch.events),
        )


if __name__ == "__main__":
    command_line(__doc__, pretrain)
