"""VideoScore's network: transformers' Idefics2 with five numbers as its head, and a random small twin."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrl.core.contracts import ConfigError, Placement

from .loading import loading
from .tiny import byte_tokenizer, randomise
from .value_head import HeadedModel

TINY_PIXELS, _PATCH = 28, 14
_SPECIAL = ("<pad>", "<s>", "</s>", "<fake_token_around_image>", "<image>", "<end_of_utterance>")


def network_class() -> Any:
    """Returns the class of the network, whose names are `model.` and `score.`, as in the published one of Mantis."""
    from transformers import Idefics2Model, Idefics2PreTrainedModel

    class Idefics2ForScores(Idefics2PreTrainedModel):  # type: ignore[misc]  # transformers has no types for it
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = Idefics2Model(config)
            self.score = nn.Linear(config.text_config.hidden_size, config.num_labels)
            self.post_init()

    return Idefics2ForScores


def load_video_score(model: str, num_scores: int, placement: Placement) -> HeadedModel:
    """Loads the model in the precision of the run, its head in float32.

    Raises ConfigError where there is none, or where its head has another number of scores.
    """
    from transformers import AutoProcessor

    with loading("VideoScore", model, "an Idefics2 of transformers with a head `score`"):
        processor: Any = AutoProcessor.from_pretrained(model)
        network, report = network_class().from_pretrained(model, dtype=placement.dtype, output_loading_info=True)
    if missing := sorted(report["missing_keys"]):
        raise ConfigError(f"{model!r} is no VideoScore: it lacks {missing[0]}")
    if network.score.out_features != num_scores:
        raise ConfigError(f"{model!r} gives {network.score.out_features} scores, not {num_scores}")
    network.to(placement.device).eval().requires_grad_(False)
    return HeadedModel(network.model, processor, network.score.float())


def write_tiny_video_score(folder: Path, seed: int, num_scores: int) -> None:
    """Writes a random model of small sizes with its processor as transformers saves one."""
    from transformers import Idefics2Config, Idefics2ImageProcessor, Idefics2Processor

    tokenizer = byte_tokenizer(_SPECIAL, eos="</s>", pad="<pad>")
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {
        **tower,
        "model_type": "mistral",
        "num_key_value_heads": 2,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    perceiver = {
        "hidden_size": 32,
        "resampler_n_latents": 4,
        "resampler_depth": 1,
        "resampler_n_heads": 2,
        "resampler_head_dim": 16,
        "num_key_value_heads": 1,
    }
    config = Idefics2Config(
        text_config=text,
        vision_config={**tower, "image_size": 2 * TINY_PIXELS, "patch_size": _PATCH},
        perceiver_config=perceiver,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        num_labels=num_scores,
    )
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        network = network_class()(config)
    randomise(network, torch.Generator().manual_seed(seed))
    network.save_pretrained(folder)
    images = Idefics2ImageProcessor(
        size={"shortest_edge": TINY_PIXELS, "longest_edge": 2 * TINY_PIXELS}, do_image_splitting=False
    )
    Idefics2Processor(images, tokenizer, image_seq_len=4).save_pretrained(folder)
