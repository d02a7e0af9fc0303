"""The screens lab's model taught to judge whether a window shows an element, and a server that answers with it."""

import base64
import io
import random
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.labs.screens import world
from mmrl.labs.screens.drawing import COLOURS, KINDS
from tests.rewards.base.judging.openai_server import Answering, chat, first_words

LAB = Path(world.__file__).parent / "checkpoint"
YES, NO = "1", "0"  # one token each of the lab's tokenizer
FIRST_SEED = 5_000_000  # of screens that neither the lab nor its pretraining draws
LIKELIEST = 20


def question_of(name: str) -> str:
    """Returns what the judge is asked about an element."""
    return f"the {name}"


def examples(count: int, seed: int) -> tuple[list[Image.Image], list[str], list[bool]]:
    """Returns windows, names of elements, and whether each window shows its element, half of them."""
    rng = random.Random(seed)
    images, names, labels = [], [], []
    for number in range(count):
        screen = world.screen(FIRST_SEED + 100_000 * seed + number)
        there = [one.name for one in screen.elements]
        others = [name for colour in COLOURS for kind in KINDS if (name := f"{colour} {kind}") not in there]
        is_there = number % 2 == 0
        images.append(screen.render())
        names.append(rng.choice(there if is_there else others))
        labels.append(is_there)
    return images, names, labels


def taught(folder: Path, steps: int, seed: int = 0) -> Path:
    """Teaches the lab's language model to say 1 or 0, and saves it into a folder."""
    processor: Any = AutoProcessor.from_pretrained(LAB)
    model: Any = AutoModelForImageTextToText.from_pretrained(LAB)
    model.model.visual.requires_grad_(False)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], 1e-3)
    for step in range(steps):
        images, names, labels = examples(32, seed=1 + step)
        inputs = _inputs(processor, names, images, [YES if one else NO for one in labels])  # padded on the left
        end = torch.full((len(labels), 1), processor.tokenizer.eos_token_id)
        wanted = torch.cat([inputs["input_ids"][:, -1:], end], 1)
        loss = torch.nn.functional.cross_entropy(model(**inputs).logits[:, -2:].flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _inputs(processor: Any, names: list[str], images: list[Image.Image], answers: list[str]) -> Any:
    start, middle = (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>",
        "<|im_end|>\n<|im_start|>assistant\n",
    )
    pairs = zip(names, answers, strict=True)
    chats = [f"{start}{question_of(name)}{middle}{answer}" for name, answer in pairs]
    return processor(text=chats, images=images, return_tensors="pt", padding=True)


def answering(folder: Path) -> Answering:
    """Returns a server's answers: those of the plain model of transformers, one request at a time."""
    processor: Any = AutoProcessor.from_pretrained(folder)
    model: Any = AutoModelForImageTextToText.from_pretrained(folder)
    lock = Lock()

    def answer(body: Mapping[str, Any]) -> tuple[int, Any]:
        picture, question = body["messages"][-1]["content"]
        image = Image.open(io.BytesIO(base64.b64decode(picture["image_url"]["url"].partition(",")[2])))
        conversation = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question["text"]}]}]
        text = processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        inputs = processor(text=[text], images=[image], return_tensors="pt")
        with lock, torch.no_grad():
            if body.get("logprobs"):
                top = model(**inputs).logits[0, -1].log_softmax(0).topk(LIKELIEST)
                pairs = zip(processor.batch_decode(top.indices[:, None]), top.values.tolist(), strict=True)
                return 200, first_words(dict(pairs))
            made = model.generate(**inputs, max_new_tokens=body["max_tokens"], do_sample=False)[0]
        written = made[inputs["input_ids"].shape[1] :].tolist()
        end = processor.tokenizer.eos_token_id
        is_whole = end in written
        said = processor.tokenizer.decode(written[: written.index(end)] if is_whole else written)
        return 200, chat(said, "stop" if is_whole else "length")

    return answer
