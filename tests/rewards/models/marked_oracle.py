"""Scores at the mark of a question by transformers' own forward, one sample at a time, and names of published files."""

from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer, Qwen2VLImageProcessor

MARK = "<|Reward|>"


def at_mark(folder: str, checkpoint: str, images: Sequence[Tensor], question: str) -> tuple[Tensor, dict[str, Tensor]]:
    """The hidden state [W] at the mark, for images [3, H, W] of sizes that need no resizing, and all weights."""
    weights = load_file(checkpoint)
    own = {
        name.removeprefix("model.") if ".visual." in name or ".language_model." in name
        else name.replace("model.", "language_model.", 1): value
        for name, value in weights.items() if not name.startswith("rm_head")
    }  # fmt: skip
    config: Any = AutoConfig.from_pretrained(folder)
    model: Any = AutoModel.from_config(config).eval()
    model.load_state_dict(own)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([MARK], special_tokens=True)
    size = {"shortest_edge": 784, "longest_edge": 2**28}
    seen = Qwen2VLImageProcessor(size=size, do_rescale=False)(images=list(images), return_tensors="pt")
    pads = ["<|image_pad|>" * int(grid.prod() // 4) for grid in seen["image_grid_thw"]]
    shown = "".join(f"<|vision_start|>{pad}<|vision_end|>" for pad in pads)
    text = f"<|im_start|>user\n{shown}{question}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        states = model(
            input_ids=ids,
            pixel_values=seen["pixel_values"],
            image_grid_thw=seen["image_grid_thw"],
            position_ids=torch.arange(ids.shape[1]).view(1, 1, -1).expand(3, 1, -1),
        ).last_hidden_state[0]
    return states[ids[0].tolist().index(tokenizer.convert_tokens_to_ids(MARK))], weights


def head_by_hand(state: Tensor, weights: dict[str, Tensor], head: str) -> Tensor:
    """mu and sigma [2] of a hidden state [W], by the layers 0, 3 and 5 of the published `nn.Sequential`."""
    for layer in (0, 3, 5):
        state = weights[f"{head}.{layer}.weight"] @ state + weights[f"{head}.{layer}.bias"]
        state = state if layer == 5 else state.clamp(min=0)
    return state


def text_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the 28 layers of Qwen2-VL 7B and Qwen2.5-VL 7B, by their configurations."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(28):
        stem = f"{text}.layers.{layer}"
        shapes |= {f"{stem}.{norm}.weight": (3584,) for norm in ("input_layernorm", "post_attention_layernorm")}
        for name, rows in (("q", 3584), ("k", 512), ("v", 512), ("o", 3584)):
            shapes[f"{stem}.self_attn.{name}_proj.weight"] = (rows, 3584)
            if name != "o":
                shapes[f"{stem}.self_attn.{name}_proj.bias"] = (rows,)
        for name, size in (("gate", (18944, 3584)), ("up", (18944, 3584)), ("down", (3584, 18944))):
            shapes[f"{stem}.mlp.{name}_proj.weight"] = size
    return shapes


def head_shapes(head: str, width: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one head, by qwen2vl_trainer.py of MizzenAI/HPSv3 (`ranknet` without further settings)."""
    sizes = {0: (1024, width), 3: (16, 1024), 5: (2, 16)}
    return {
        f"{head}.{layer}.{part}": shape if part == "weight" else shape[:1]
        for layer, shape in sizes.items() for part in ("weight", "bias")
    }  # fmt: skip
