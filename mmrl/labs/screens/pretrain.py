"""Makes the lab's checkpoint: the vision tower first, then the language model on its image tokens, then noisy labels.

1. tower: learns what lies in each 28-pixel cell, and where (`targets.py`), and is frozen from then on;
2. localise: one, two, three elements on a screen; bind: five; settle: the same, with a falling learning rate;
3. spoil: labels of another element and labels off the centre, so that RL has something to mend.

The checkpoint before stage 3 is kept beside it, as FOLDER_unspoilt, since RL cannot be asked for much more than that.
"""

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, AutoProcessor, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mmrl.labs.screens import networks, world
from mmrl.labs.screens.drawing import SIZE
from mmrl.labs.screens.targets import PointerHeads, TowerHeads

SCREENS = 32  # of a step
QUESTIONS = 6  # about each screen of a step
POOL = 80  # batches of screens that are asked again, each about three times
BLUR = 1.0  # pixels: a coordinate's label is a bell around it, so that 33 is nearly right where 34 is


@dataclass(frozen=True)
class Noise:
    """Errors of labels, in sides of the element."""

    wrong: float = 0.0  # share of labels that belong to another element of the screen
    jitter: float = 0.05  # standard deviation, each coordinate by itself
    shift: float = 0.0  # the same for all: right and down


@dataclass(frozen=True)
class Stage:
    """One part of the language model's training."""

    name: str
    num_steps: int
    max_elements: int
    learning_rate: float
    is_falling: bool = False  # cosine to a tenth, else constant
    pointer: float = 1.0  # weight of PointerHeads
    noise: dict[world.Task, Noise] = field(default_factory=lambda: {"click": Noise(), "box": Noise()})


TOWER_STEPS = 1200
TOWER_RATE = 1.5e-3
STAGES = (
    Stage("localise 1", 100, 1, 2e-3),
    Stage("localise 3", 150, 3, 2e-3),
    Stage("bind", 700, 5, 2e-3),
    Stage("settle", 700, 5, 1.5e-3, is_falling=True, pointer=0.1),
)
SPOIL = Stage(
    "spoil",
    120,
    5,
    5e-4,
    is_falling=True,
    pointer=0.0,
    noise={"click": Noise(wrong=0.4, jitter=0.25, shift=0.2), "box": Noise(wrong=0.3, jitter=0.15, shift=0.1)},
)


@dataclass(frozen=True)
class Seen:
    """Screens, and what the frozen tower made of them."""

    screens: list[world.Screen]
    image_tokens: Tensor  # [S, 16, H]


@dataclass(frozen=True)
class Batch:
    """Questions with their answers, right-padded."""

    elements: list[world.Element]  # B, those that are meant
    tokens: Tensor  # [B, T]
    is_label: Tensor  # [B, T] bool: the answer and its end token
    last: Tensor  # [B] place of the last token before the answer


def pretrain(folder: Path, *, seed: int, scale: float = 1.0) -> None:
    """Trains everything from one seed and writes the checkpoint, and the one before spoiling; `scale` shortens all."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    processor = networks.new_processor()
    model = networks.new_model(processor)
    first = world.FIRST_SEED["pretrain"] + seed * 1_000_000
    seeds = itertools.count(first)
    train_tower(model, processor, seeds, max(1, round(TOWER_STEPS * scale)))
    heads = PointerHeads(networks.WIDTH)
    for stage in STAGES:
        train_language(model, processor, heads, stage, seeds, rng, max(1, round(stage.num_steps * scale)))
    unspoilt = folder.with_name(f"{folder.name}_unspoilt")
    save(model, processor, unspoilt)
    report(unspoilt, scale)
    train_language(model, processor, heads, SPOIL, seeds, rng, max(1, round(SPOIL.num_steps * scale)))
    save(model, processor, folder)
    report(folder, scale)


def train_tower(model: Any, processor: Any, seeds: Iterator[int], num_steps: int) -> None:
    """Trains the vision tower alone on dense targets of fresh screens, then freezes it."""
    heads = TowerHeads(networks.WIDTH)
    step_optimizer = _Optimizer([*model.model.visual.parameters(), *heads.parameters()])
    start = time.monotonic()
    for step in range(num_steps):
        screens = [world.screen(next(seeds)) for _ in range(SCREENS)]
        loss = heads.loss(look(model, processor, screens), screens)
        step_optimizer(loss, TOWER_RATE * min(1.0, (step + 1) / 30) * _cosine(step / num_steps))
        if step % 100 == 99 or step == num_steps - 1:
            print(f"tower {step + 1} {time.monotonic() - start:.0f}s loss {loss.item():.3f}", flush=True)
    model.model.visual.requires_grad_(False)


def look(model: Any, processor: Any, screens: Sequence[world.Screen]) -> Tensor:
    """Image tokens [S, 16, H] of screens."""
    pixels = processor.image_processor([screen.draw() for screen in screens], return_tensors="pt")
    seen = model.model.visual(pixels["pixel_values"], grid_thw=pixels["image_grid_thw"]).pooler_output
    tokens: Tensor = seen.unflatten(0, (len(screens), networks.NUM_IMAGE_TOKENS))
    return tokens


class _Optimizer:
    """AdamW with gradients clipped to norm 1."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.adamw = torch.optim.AdamW(parameters, betas=(0.9, 0.98), weight_decay=0.01)

    def __call__(self, loss: Tensor, learning_rate: float) -> None:
        self.adamw.param_groups[0]["lr"] = learning_rate
        self.adamw.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.adamw.step()


def _cosine(done: float) -> float:
    """From 1 to a tenth."""
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def train_language(
    model: Any,
    processor: Any,
    heads: PointerHeads,
    stage: Stage,
    seeds: Iterator[int],
    rng: random.Random,
    num_steps: int,
) -> None:
    """Trains the language model on questions about screens that the frozen tower looked at."""
    step_optimizer = _Optimizer([*model.model.language_model.parameters(), *heads.parameters()])
    labels = soft_labels(model, processor)
    pool: list[Seen] = []
    start = time.monotonic()
    for step in range(num_steps):
        if len(pool) < 8 or step % 3 == 0:
            screens = [
                world.screen(next(seeds), min(3, stage.max_elements), stage.max_elements) for _ in range(SCREENS)
            ]
            with torch.no_grad():
                pool = [*pool[1 - POOL :], Seen(screens, look(model, processor, screens))]
            seen = pool[-1]
        else:
            seen = rng.choice(pool)
        batch = questions(processor, seen.screens, stage, rng)
        answer_loss, pointer_loss = language_loss(model, processor, heads, seen, batch, labels)
        fall = _cosine(step / num_steps) if stage.is_falling else 1.0
        rate = stage.learning_rate * min(1.0, (step + 1) / 30) * fall
        step_optimizer(answer_loss + stage.pointer * pointer_loss, rate)
        if step % 50 == 49 or step == num_steps - 1:
            losses = f"{answer_loss.item():.3f}, pointer {pointer_loss.item():.3f}"
            print(f"{stage.name} {step + 1} {time.monotonic() - start:.0f}s loss {losses}", flush=True)


def questions(processor: Any, screens: Sequence[world.Screen], stage: Stage, rng: random.Random) -> Batch:
    """As many clicks as boxes about each screen, with noisy answers."""
    elements, asked, answers = [], [], []
    for screen in screens:
        for number in range(QUESTIONS):
            task: world.Task = get_args(world.Task)[number % 2]
            element = rng.choice(screen.elements)
            elements.append(element)
            asked.append(prompt_text(processor, world.ask(element, task)).partition("<|vision_end|>")[2])
            answers.append(noisy_answer(screen, element, task, stage.noise[task], rng) + processor.tokenizer.eos_token)
    before, after = processor.tokenizer(asked)["input_ids"], processor.tokenizer(answers)["input_ids"]
    length = max(len(b) + len(a) for b, a in zip(before, after, strict=True))
    tokens = torch.full((len(elements), length), processor.tokenizer.pad_token_id)
    is_label = torch.zeros(len(elements), length, dtype=torch.bool)
    for row, (b, a) in enumerate(zip(before, after, strict=True)):
        tokens[row, : len(b) + len(a)] = torch.tensor(b + a)
        is_label[row, len(b) : len(b) + len(a)] = True
    return Batch(elements, tokens, is_label, torch.tensor([len(b) - 1 for b in before]))


def noisy_answer(
    screen: world.Screen, element: world.Element, task: world.Task, noise: Noise, rng: random.Random
) -> str:
    """The answer about the element, or about another one, off by jitter and shift."""
    others = [other for other in screen.elements if other is not element]
    if others and rng.random() < noise.wrong:
        element = rng.choice(others)
    x1, y1, x2, y2 = element.box
    sides = (x2 - x1, y2 - y1) * 2
    errors = [(noise.shift + noise.jitter * rng.gauss(0, 1)) * side for side in sides]
    if task == "click":
        return world.click_answer((x1 + x2 - 1) / 2 + errors[0], (y1 + y2 - 1) / 2 + errors[1])
    return world.box_answer((x1 + errors[0], y1 + errors[1], x2 + errors[2], y2 + errors[3]))


def prompt_text(processor: Any, text: str) -> str:
    """The chat of one screen and one question, up to where the assistant begins."""
    content = [{"type": "image"}, {"type": "text", "text": text}]
    chat: str = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return chat


def soft_labels(model: Any, processor: Any) -> Tensor:
    """Label distributions [V, V] of the tokens: itself, but a bell of sd BLUR over the neighbours of a number."""
    labels = torch.eye(model.config.text_config.vocab_size)
    ids = torch.tensor(processor.tokenizer.convert_tokens_to_ids(networks.number_words()))
    numbers = torch.arange(len(ids), dtype=torch.float32)
    bell = torch.softmax(-(numbers[:, None] - numbers).square() / (2 * BLUR**2), dim=1)
    labels[ids[:, None], ids] = bell
    return labels


def language_loss(
    model: Any, processor: Any, heads: PointerHeads, seen: Seen, batch: Batch, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross entropy of the answers, and of PointerHeads; a screen and its chat's head run once for all its questions."""
    head = prompt_text(processor, "").partition("<|vision_end|>")
    ids = processor.tokenizer(
        (head[0] + head[1]).replace("<|image_pad|>", "<|image_pad|>" * networks.NUM_IMAGE_TOKENS), return_tensors="pt"
    )["input_ids"]  # [1, L]
    across = SIZE // 14
    positions, _ = model.model.get_rope_index(
        ids,
        mm_token_type_ids=(ids == model.config.image_token_id).int(),
        image_grid_thw=torch.tensor([[1, across, across]]),
    )  # [3, 1, L]
    num_screens, num_questions = len(seen.screens), len(batch.tokens) // len(seen.screens)
    cache = DynamicCache(config=model.config.text_config)
    model.model(
        input_ids=ids.expand(num_screens, -1),
        position_ids=positions.expand(-1, num_screens, -1),
        mm_encoder_outputs={"image": BaseModelOutputWithPooling(pooler_output=(seen.image_tokens.flatten(0, 1),))},
        past_key_values=cache,
        use_cache=True,
    )
    cache.batch_repeat_interleave(num_questions)
    own = int(positions.max()) + 1 + torch.arange(batch.tokens.shape[1])
    hidden = model.model(
        input_ids=batch.tokens,
        position_ids=own.expand(3, len(batch.tokens), -1),
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state  # [B, T, H]
    is_next_label = batch.is_label[:, 1:]
    log_prob = model.lm_head(hidden[:, :-1][is_next_label]).log_softmax(-1)  # [number of labels, V]
    answer_loss = -(labels[batch.tokens[:, 1:][is_next_label]] * log_prob).sum(-1).mean()
    shown = seen.image_tokens.repeat_interleave(num_questions, 0)
    return answer_loss, heads.loss(hidden[torch.arange(len(hidden)), batch.last], shown, batch.elements)


def save(model: Any, processor: Any, folder: Path) -> None:
    """Writes the model in half precision and the processor; loading gives float32."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = model.generation_config
    copy.half().save_pretrained(folder)
    processor.save_pretrained(folder)
    for path in folder.glob("*.json"):
        settings = json.loads(path.read_text(encoding="utf-8"))
        if "dtype" in settings:
            settings["dtype"] = "float32"
            path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@torch.no_grad()
def answer(model: Any, processor: Any, asked: Sequence[world.Question], *, is_greedy: bool) -> list[str]:
    """One answer to each question, greedy or sampled at temperature 1 from the torch seed."""
    texts = [
        prompt_text(processor, question.text).replace("<|image_pad|>", processor.image_token) for question in asked
    ]
    images = [question.media[0].load() for question in asked]
    encoded = processor(text=texts, images=images, padding=True, return_tensors="pt")
    choice = {"do_sample": False} if is_greedy else {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0}
    output = model.generate(**encoded, max_new_tokens=16, **choice)
    rows: list[str] = processor.tokenizer.batch_decode(output[:, encoded["input_ids"].shape[1] :])
    return [row.partition(processor.tokenizer.eos_token)[0] for row in rows]


def evaluate(model: Any, processor: Any, task: world.Task, *, is_greedy: bool, num_questions: int = 512) -> list[float]:
    """Scores of held-out questions: hits of clicks, IoU of boxes."""
    asked = world.prompts(f"{task}_held_out")[:num_questions]
    scores: list[float] = []
    for start in range(0, len(asked), 128):
        part = asked[start : start + 128]
        answers = answer(model, processor, part, is_greedy=is_greedy)
        scores += [world.score(a, q.target["box"], task) for a, q in zip(answers, part, strict=True)]
    return scores


def report(folder: Path, scale: float) -> None:
    """Prints what the checkpoint in the folder scores on held-out screens."""
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    for task in get_args(world.Task):
        for is_greedy in (False, True):
            torch.manual_seed(0)
            scores = evaluate(
                model, processor, task, is_greedy=is_greedy, num_questions=max(8, round(512 * min(1.0, scale)))
            )
            how = "greedy" if is_greedy else "sampled"
            print(f"{folder.name} {task} {how}: {sum(scores) / len(scores):.4f}", flush=True)


def main() -> None:
    """Command line: one thread, so that a seed gives the same weights again on the same machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="of every stage's steps; 0.01 is a smoke test")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pretrain(arguments.out, seed=arguments.seed, scale=arguments.scale)


if __name__ == "__main__":
    main()
