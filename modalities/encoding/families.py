"""The families of vision-language models: what mmrl needs of each beside its transformers class."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mmrl.parsing.coordinates import Convention


@dataclass(frozen=True)
class Family:
    """One architecture of transformers."""

    name: str  # `model_type` in config.json
    patterns: tuple[str, ...]  # of hub names, lower case
    # of the coordinates that its models were trained to write; None: unknown, the user says it where it is needed
    convention: Convention | None = None
    language: str | None = None  # `model_type` of the language model that tests run it with; None: no test runs it
    sees_ahead: bool = False  # the tokens of one image see each other in both directions


FAMILIES = (
    Family(
        "qwen2_5_vl",
        (r"qwen2[._]5-?vl", r"ui-tars-1\.5", r"gui-?(r1|g1|g2)", r"infigui", r"vlm-r1"),
        "resized",
        "qwen2_5_vl_text",
    ),
    Family("qwen2_vl", (r"qwen2-?vl", r"ui-tars", r"os-atlas-base-7b", r"showui"), "thousand", "qwen2_vl_text"),
    Family("qwen3_vl", (r"qwen3-?vl",), "thousand", "qwen3_vl_text"),
    Family("internvl", (r"internvl",), "thousand", "qwen2"),
    Family("smolvlm", (r"smolvlm",), "unit"),
    Family("idefics3", (r"idefics3",), "unit", language="llama"),
    Family("llava_onevision", (r"llava-?(onevision|ov)",), "unit", language="qwen2"),
    Family("gemma3", (r"gemma-?3",), "unit", language="gemma3_text", sees_ahead=True),
)

# of families that are not listed: the general rules fit them, but for the convention of coordinates
_CONVENTIONS: dict[str, Convention] = dict.fromkeys(
    ("qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm46v"), "thousand"
)


def family_of(model_type: str) -> Family:
    """Returns the family of a `model_type`; an unlisted one has the general rules."""
    unlisted = Family(model_type, (), _CONVENTIONS.get(model_type))
    return next((family for family in FAMILIES if family.name == model_type), unlisted)


def is_tested(config: Any) -> bool:
    """Returns whether tests run models of this type: by the `model_type` of the model and of its language model."""
    return bool(family_of(config.model_type).language == config.get_text_config().model_type)


def types_with_tests() -> list[str]:
    """Returns the types that tests run, each with the type of its language model where its name differs."""
    return [
        family.name if family.language.startswith(family.name) else f"{family.name} (with {family.language})"
        for family in FAMILIES
        if family.language is not None
    ]


# whose videos a server of vLLM takes as tensors (read in its sources, 0.32 and 0.33)
_SERVED_VIDEOS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def video_clock(config: Any) -> float | None:
    """Returns how many positions a second of video has, 1 where steps of time count; None for a family whose videos no
    inference engine is given."""
    if config.model_type not in _SERVED_VIDEOS:
        return None
    return float(getattr(config.vision_config, "tokens_per_second", 1.0))


def family_of_name(model: str) -> Family | None:
    """Returns the family that a hub name contains; None where it contains none."""
    name = model.lower()
    return next((family for family in FAMILIES if any(re.search(found, name) for found in family.patterns)), None)


_MEDIA_WORDS = ("image", "video", "vision", "audio", "boi", "eoi")


def media_tokens(config: Any, processor: Any) -> dict[str, int]:
    """Returns text and id of every token that stands for media or frames it, and that no answer may hold."""
    tokenizer = processor.tokenizer
    found = {
        value
        for name, value in _settings(config)
        if isinstance(value, int) and name.startswith(_MEDIA_WORDS) and name.endswith(("_token_id", "_token_index"))
    }
    texts = {
        str(value)
        for name, value in vars(processor).items()
        if any(word in name for word in (*_MEDIA_WORDS, "fake")) and name.endswith("_token")
    }
    vocabulary = tokenizer.get_vocab()
    found |= {vocabulary[text] for text in texts if text in vocabulary}
    found |= {vocabulary[text] for text in vocabulary if re.fullmatch(r"<row_\d+_col_\d+>|<global-img>", text)}
    names = tokenizer.convert_ids_to_tokens(sorted(found))
    return {text: number for text, number in zip(names, sorted(found), strict=True) if text is not None}


def without_text(vocabulary_size: int, tokenizer: Any) -> Iterable[int]:
    """Returns the rows of the embedding beyond the tokenizer's last token: padding to a round size, never trained."""
    return range(max(tokenizer.get_vocab().values()) + 1, vocabulary_size)


def unread(name: str, config: Any) -> bool:
    """Returns whether a parameter lies behind the layer of the vision tower that is read, so it never gets a gradient.

    LLaVA and related families read the hidden states of one layer, and never the pooling head.
    """
    tower = re.search(r"\.vision_tower\.(.*)", name)
    if tower is None:
        return False
    layers = getattr(config, "vision_feature_layer", None)
    number = re.search(r"layers?\.(\d+)\.", tower[1])
    is_head = re.search(r"(^|\.)head\.", tower[1]) is not None
    if layers is None or (layers == -1 and config.model_type == "internvl"):  # the last, normalised
        return is_head
    if number is not None:
        depth = config.vision_config.num_hidden_layers
        last: int = max(layer % (depth + 1) for layer in ([layers] if isinstance(layers, int) else layers))
        return int(number[1]) >= last
    return is_head or re.search(r"(^|\.)(post_)?layernorm\.", tower[1]) is not None


def _settings(config: Any) -> Iterable[tuple[str, Any]]:
    """Yields names and values of the settings of a model and of its language model."""
    yield from vars(config).items()
    text = config.get_text_config()
    if text is not config:
        yield from vars(text).items()
