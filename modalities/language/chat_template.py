"""The round trip of a chat template: a prompt ends where answers begin."""

from collections.abc import Sequence
from typing import Any

from ..encoding.inputs import messages_of
from ..encoding.prompt_encoder import PromptEncoder
from .probes import IMAGES

ANSWER = "On the left is a red box."


def fault_of_template(encoder: PromptEncoder) -> str | None:
    """Returns what a conversation with an answer shows of a prompt for it; None where prompt and answer make it.

    The conversation must begin with the prompt's tokens, and go on with the answer's.
    """
    processor = encoder.processor
    messages = messages_of(IMAGES[0], encoder.template, encoder.system)
    answer = {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]}

    def text(conversation: Sequence[Any], *, is_prompt: bool) -> str:
        return str(processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=is_prompt))

    prompt = text(messages, is_prompt=True)
    if prompt == text(messages, is_prompt=False):
        return "it marks no place where an answer begins (add_generation_prompt changes nothing)"
    try:
        conversation = text([*messages, answer], is_prompt=False)
    except Exception as error:  # a template is a program of others, and raises what it likes
        return f"it renders no answer: {type(error).__name__}: {error}"
    if not conversation.startswith(prompt):
        return "a conversation with an answer does not begin with the prompt for it"
    if not conversation[len(prompt) :].lstrip().startswith(ANSWER):
        return "the answer does not stand right behind the prompt"
    tokenizer = processor.tokenizer
    before, both = (tokenizer(one, add_special_tokens=False)["input_ids"] for one in (prompt, conversation))
    if both[: len(before)] != before:
        return "the prompt's last tokens are others where an answer follows"
    return None
