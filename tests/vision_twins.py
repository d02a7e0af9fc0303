"""Tiny vision-language policies, prompts with pictures of noise, and rollouts that several test files share."""

from copy import deepcopy
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.core.contracts import Placement
from mmrl.core.data import Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.media.pictures import StoredPicture
from mmrl.modalities.loading.vision_language import load
from mmrl.modalities.tiny.vision_language import write_tiny
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan

Kind = TypeVar("Kind", bound=VisionLanguage)
_FOLDERS = TemporaryDirectory(prefix="mmrl-twins-")  # removed when the tests end


@cache
def twin(family: str) -> Path:
    """The folder of a family's tiny twin, written once."""
    folder = Path(_FOLDERS.name) / family
    write_tiny(family, 1, folder)
    return folder


def policy(family: str = "qwen2_5_vl", **settings: Any) -> VisionLanguage:
    """A prepared policy on the tiny twin, vision trained unless the settings say otherwise."""
    return prepared(VisionLanguage, family, **settings)


def prepared(kind: type[Kind], family: str = "qwen2_5_vl", **settings: Any) -> Kind:
    """The same of another class."""
    torch.manual_seed(0)
    dtype = settings.pop("dtype", torch.float32)
    made = kind(**{"model": str(twin(family)), "vision": "trained"} | settings)
    with pytest.MonkeyPatch.context() as patch:
        if "model" not in settings:
            patch.setattr("mmrl.modalities.vision_language.load", lambda *given: deepcopy(_loaded(*given)))
        made.prepare(Placement(torch.device("cpu"), dtype))
    return made


_loaded = cache(load)  # reading the folder of a twin takes five times as long as a copy


def picture(width: int, height: int, seed: int) -> StoredPicture:
    """An image of noise."""
    pixels = torch.randint(256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    content = BytesIO()
    Image.fromarray(pixels.numpy()).save(content, "PNG")
    return StoredPicture(f"noise {seed}", content=content.getvalue())


PROMPTS = (
    Prompt("what is red?"),
    Prompt("click the <image> box", (picture(60, 40, 1),)),
    Prompt("<image> and <image> or <image>?", (picture(30, 30, 2), picture(60, 60, 3), picture(40, 20, 4)), {}, "look"),
)  # fmt: skip
GROUPS = (3, 2, 4)


def keys(count: int, first: int = 0) -> list[GroupKey]:
    return [GroupKey(1, 0, first + number) for number in range(count)]


def rollout(policy: VisionLanguage, max_tokens: int = 10, **distribution: Any) -> Rollout:
    """Groups of 3, 2 and 4 answers to prompts with no, one and three images."""
    plans = [AnswerPlan(count, max_tokens, **distribution) for count in GROUPS]
    return policy.rollout(PROMPTS, plans, keys(3))


@torch.no_grad()
def slow_logits(policy: VisionLanguage, rollout: Rollout, sample: int) -> Tensor:
    """[length, V] by transformers' own forward: the sample alone, one token more each time, no cache, no positions.

    The model finds the positions by itself.
    """
    model: Any = policy.modules()["model"]
    prompt = rollout.trace.prompts[int(rollout.prompt[sample])]
    length = int(rollout.trace.completions.length[sample])
    answer = rollout.trace.completions.tokens[sample, :length]
    kind = "token_type_ids" if model.config.model_type == "gemma3" else "mm_token_type_ids"
    reads_kinds = kind == "token_type_ids" or hasattr(model.model, "get_rope_index")
    found = []
    for count in range(length):
        tokens = torch.cat([prompt.tokens, answer[:count]])[None]
        kinds = torch.cat([prompt.token_types, torch.zeros(count, dtype=torch.int64)])[None]
        extra = {kind: kinds} if reads_kinds else {}
        output = model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **extra, **prompt.media
        )
        found.append(output.logits[0, -1])
    return torch.stack(found)
