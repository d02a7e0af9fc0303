"""Random models of the Qwen-VL families, as large as vLLM's kernels need, and prompts for them."""

from pathlib import Path
from typing import Any

import torch

from mmrl.modalities.tiny import qwen
from mmrl.modalities.tiny.text import randomise
from mmrl.modalities.tiny.vision_language import save

_HEADS, _HEAD_SIZE = 4, 32  # vLLM's kernels know heads of 32 channels and more
_SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": _HEAD_SIZE, "num_attention_heads": _HEADS}
_ROPE = {"mrope_section": [6, 5, 5]}  # half of a head's channels
_TOWER = {"hidden_size": 64, "out_hidden_size": 128, "num_heads": 2}
# of each family: the sizes of its tower
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"embed_dim": 64, "hidden_size": 128, "num_heads": 2},
    "qwen2_5_vl": _TOWER,
    "qwen3_vl": _TOWER,
}


def write(family: str, folder: Path) -> None:
    """Writes the family's tiny twin with wider layers."""
    twin, processor = getattr(qwen, family)()
    text, vision = twin.config.text_config.to_dict(), twin.config.vision_config.to_dict()
    rope = text["rope_parameters"] | _ROPE
    config = type(twin.config)(
        **{name: value for name, value in twin.config.to_dict().items() if name.endswith("token_id")},
        text_config=text | _SIZES | {"rope_parameters": rope},
        vision_config=vision | FAMILIES[family],
    )
    model = type(twin)(config)
    randomise(model, torch.Generator().manual_seed(0))
    save(model, processor, folder)
