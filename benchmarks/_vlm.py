"""A tiny Qwen2.5-VL with prompts of about 1,024 tokens, and the loops that a training script would run on it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from mmrl.core.data import Prompt
from mmrl.media.pictures import StoredPicture
from mmrl.modalities.tiny.qwen import qwen2_5_vl
from mmrl.modalities.vision_language import VisionLanguage

SIDE, PATCH, WORD = 31, 14, " box"  # image tokens on a side; each covers 2 x 2 patches of 14 pixels
TEXT = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]},
}
VISION = {
    "depth": 4,
    "hidden_size": 96,
    "intermediate_size": 240,
    "num_heads": 4,
    "out_hidden_size": 128,
    "patch_size": PATCH,
    "window_size": 112,
    "fullatt_block_indexes": [0, 1, 2, 3],
}


def write_model(folder: Path, vocabulary: int | None = None, *, is_endless: bool = False) -> None:
    """A model with random weights and its processor.

    `vocabulary`: so many tokens, those beyond the tokenizer's own under names that nobody spells. `is_endless`: its
    answers end at their budget, never before.
    """
    model, processor = qwen2_5_vl()
    config, tokens = model.config, processor.tokenizer
    size = vocabulary or (len(tokens) + 7) // 8 * 8
    media = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ends = {"eos_token_id": tokens.eos_token_id, "pad_token_id": tokens.pad_token_id, "bos_token_id": None}
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config={**TEXT, **ends, "vocab_size": size, "initializer_range": 0.06},
            vision_config={**VISION, "initializer_range": 0.06},
            tie_word_embeddings=True,
            **{name: getattr(config, name) for name in media},
        )
    )
    end = config.video_token_id if is_endless else tokens.eos_token_id  # no answer may hold a media token
    model.generation_config.eos_token_id = [end]
    model.generation_config.pad_token_id = tokens.pad_token_id
    model.save_pretrained(folder)
    pixels = (2 * PATCH * SIDE) ** 2
    processor.image_processor.size = {"shortest_edge": pixels, "longest_edge": pixels}
    processor.save_pretrained(folder)
    path = folder / "tokenizer.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    stored["model"]["vocab"] |= {f"<unspelt {n}>": n for n in range(len(tokens), size)}
    path.write_text(json.dumps(stored), encoding="utf-8")


def make_prompts(policy: VisionLanguage, count: int, length: int = 1024) -> list[Prompt]:
    """Prompts of `length` tokens with one image each."""

    def prompt(number: int, num_words: int) -> Prompt:
        noise = torch.randint(256, (28, 28, 3), generator=torch.Generator().manual_seed(number), dtype=torch.uint8)
        stream = BytesIO()
        Image.fromarray(noise.numpy()).resize((2 * PATCH * SIDE, 2 * PATCH * SIDE)).save(stream, "png")
        picture = StoredPicture(f"noise {number}", content=stream.getvalue())
        return Prompt("click" + WORD * num_words, (picture,))

    without = len(policy.encode([prompt(0, 0)])[0])
    return [prompt(number, length - without) for number in range(count)]


@dataclass(frozen=True)
class Question:
    """One prompt as a processor gives it."""

    tokens: Tensor  # [1, L]
    pixels: Tensor  # [patches, 1176]
    grid: Tensor  # [1, 3]
    types: Tensor  # [1, L]

    def repeated(self, count: int) -> dict[str, Tensor]:
        """A batch of `count` rows, each with an image of its own."""
        return {
            "input_ids": self.tokens.repeat(count, 1),
            "attention_mask": torch.ones_like(self.tokens).repeat(count, 1),
            "mm_token_type_ids": self.types.repeat(count, 1),
            "pixel_values": self.pixels.repeat(count, 1),
            "image_grid_thw": self.grid.repeat(count, 1),
        }


@dataclass
class Plain:
    """GRPO as a training script does it: every answer runs its own image and prompt through the model."""

    model: Any
    questions: Sequence[Question]
    banned: list[int]  # media tokens, which no answer holds

    @classmethod
    def of(cls, policy: VisionLanguage, folder: Path, prompts: Sequence[Prompt]) -> "Plain":
        """On a copy of the weights, all of them trained, and on the same tokens and pixels."""
        encoded = policy.encode(prompts)
        questions = [
            Question(e.tokens[None], e.media["pixel_values"], e.media["image_grid_thw"], e.token_types[None])
            for e in encoded
        ]
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        return cls(model, questions, list(policy.banned))

    def backward(self, answers: Tensor, advantages: Tensor, micro_batch: int) -> None:
        """Adds the gradient of the mean over tokens, `micro_batch` answers [P * G, K] of a prompt at a time."""
        num_tokens, size = answers.shape[1], len(answers) // len(self.questions)
        for start in range(0, len(answers), micro_batch):
            rows = slice(start, start + micro_batch)
            batch = self.questions[start // size].repeated(len(answers[rows]))
            ones = torch.ones_like(answers[rows])
            batch["input_ids"] = torch.cat([batch["input_ids"], answers[rows]], 1)
            batch["attention_mask"] = torch.cat([batch["attention_mask"], ones], 1)
            batch["mm_token_type_ids"] = torch.cat([batch["mm_token_type_ids"], torch.zeros_like(ones)], 1)
            logits = self.model(**batch, use_cache=False, logits_to_keep=num_tokens + 1).logits[:, :-1]
            logits[..., self.banned] = -torch.inf
            log_prob = logits.float().log_softmax(-1).gather(-1, answers[rows, :, None])[..., 0]
            ratio = (log_prob - log_prob.detach()).exp()
            worth = advantages[rows, None]
            loss = torch.maximum(-worth * ratio, -worth * ratio.clamp(0.8, 1.2)).sum() / answers.numel()
            loss.backward()

    @torch.no_grad()
    def generate(self, num_answers: int, num_tokens: int, *, is_repeated: bool) -> None:
        """Answers by transformers: the batch repeated, or `num_return_sequences`."""
        copies = num_answers if is_repeated else 1
        parts = [question.repeated(copies) for question in self.questions]
        batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self.model.generate(
            **batch,
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            num_return_sequences=num_answers // copies,
        )
