"""Makes the lab's checkpoint: a model that writes prompts for requests, and takes many of their words for others.

A label is the prompt that a request asks for, but a share of its words is random, and of the two words for a thing the
second is mostly taken for the thing that comes next: that is what RL has to repair.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.labs.rewriting import networks, world
from mmrl.labs.shapes import world as shapes
from mmrl.labs.teaching import Optimizer, command_line, cosine, save, warm

NUM_STEPS = 400
BATCH_SIZE = 128
RATE = 2e-3
RANDOM = 0.2  # share of words that are any word of their kind
MISTAKEN = 0.6  # share of the second words that are taken for the thing that comes next
NUM_GRADED = 144


def noisy_prompt(prompt: str, way: int, rng: random.Random) -> str:
    """Returns a prompt of the shapes lab with the errors of the labels: `world.request(prompt, way)` is its request."""
    written = []
    for place, (kind, word) in enumerate(zip(world.KINDS, prompt.split(), strict=True)):
        known = list(kind)
        if rng.random() < RANDOM:
            word = rng.choice(known)
        elif way >> place & 1 and rng.random() < MISTAKEN:
            word = known[(known.index(word) + 1) % len(known)]
        written.append(word)
    return " ".join(written)


def chats(processor: Any, asked: Sequence[str]) -> list[str]:
    """Returns the chat of each request, up to the start of the answer."""
    return [
        processor.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True) for text in asked
    ]


def tokens_of(processor: Any, pairs: Sequence[tuple[str, str]]) -> tuple[Tensor, int]:
    """Returns requests with their prompts and end tokens, [B, T], and where the prompts begin: all are as long."""
    asked = chats(processor, [request for request, _ in pairs])
    whole = [chat + prompt + processor.tokenizer.eos_token for chat, (_, prompt) in zip(asked, pairs, strict=True)]
    tokens: Tensor = processor.tokenizer(whole, return_tensors="pt")["input_ids"]
    return tokens, len(processor.tokenizer(asked[0])["input_ids"])


def pretrain(folder: Path, *, seed: int, scale: float = 1.0) -> None:
    """Trains everything from one seed and writes the checkpoint. `scale` is of all steps."""
    torch.manual_seed(seed)
    processor = networks.new_processor()
    model: Any = networks.new_model(processor)
    model.model.visual.requires_grad_(False)
    rng, known = random.Random(seed), shapes.all_prompts()
    step_optimizer = Optimizer([one for one in model.parameters() if one.requires_grad])
    num_steps = max(1, round(NUM_STEPS * scale))
    start = time.process_time()
    for step in range(num_steps):
        drawn = [(rng.choice(known), rng.randrange(world.NUM_WAYS)) for _ in range(BATCH_SIZE)]
        pairs = [(world.request(prompt, way), noisy_prompt(prompt, way, rng)) for prompt, way in drawn]
        tokens, first = tokens_of(processor, pairs)
        logits = model(input_ids=tokens[:, :-1]).logits[:, first - 1 :]  # [B, L, V]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, first:].flatten())
        step_optimizer(loss, warm(RATE, step) * cosine(step / num_steps))
        if step % 100 == 99 or step == num_steps - 1:
            print(f"write {step + 1} {time.process_time() - start:.0f}s loss {loss.item():.3f}", flush=True)
    save(model, processor, folder)
    report(folder, max(8, round(NUM_GRADED * min(1.0, scale))))


@torch.no_grad()
def answers(model: Any, processor: Any, asked: Sequence[str], *, is_greedy: bool) -> list[str]:
    """Returns one answer to each request, greedy, or sampled at temperature 1 from torch's global generator."""
    tokens = processor.tokenizer(chats(processor, asked), return_tensors="pt")
    how: dict[str, Any] = {"do_sample": False} if is_greedy else {"do_sample": True, "top_k": 0, "top_p": 1.0}
    output = model.generate(**tokens, max_new_tokens=8, **how)
    rows: list[str] = processor.tokenizer.batch_decode(output[:, tokens["input_ids"].shape[1] :])
    return [row.partition(processor.tokenizer.eos_token)[0] for row in rows]


def report(folder: Path, num_requests: int) -> None:
    """Prints the share of held-out requests whose prompt the checkpoint in a folder writes, sampled and greedy."""
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    asked = world.prompts("held_out")[:num_requests]
    for is_greedy in (False, True):
        torch.manual_seed(0)
        written = answers(model, processor, [one.text for one in asked], is_greedy=is_greedy)
        right = [text == one.target["answer"] for text, one in zip(written, asked, strict=True)]
        how = "greedy" if is_greedy else "sampled"
        print(f"{folder.name}: {how} {sum(right) / len(right):.4f}", flush=True)


if __name__ == "__main__":
    command_line(__doc__, pretrain)
