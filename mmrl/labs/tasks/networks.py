"""The lab's model and its processor: those of the screens lab, with the words of the goals."""

from tokenizers import AddedToken
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from mmrl.labs.screens import networks

WORDS = ("set", " and", "open", "choose", " choose", "then", " press")


def new_processor() -> Qwen2_5_VLProcessor:
    """Returns the processor of the screens lab, in which each word of a goal is one token."""
    processor = networks.new_processor()
    processor.tokenizer.add_tokens([AddedToken(word, normalized=False, special=False) for word in WORDS])
    return processor


def new_model(processor: Qwen2_5_VLProcessor) -> Qwen2_5_VLForConditionalGeneration:
    """Returns the screens lab's Qwen2.5-VL, with 1.49 million random weights."""
    return networks.new_model(processor)
