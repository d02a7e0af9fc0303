"""The listener against transformers' own forward, one token at a time; and what it is shown."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.core.reward_batches import check_prompts
from mmrl.media.pictures import Picture
from mmrl.rewards.base.networks.vlm import load_vlm
from mmrl.rewards.text.listener import Listener
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_texts
from tests.vision_twins import picture, twin

OPTIONS = ("1", "2")
QUESTION = "Which is better, <image> or <image>?"
THOUGHT = "<think>the second is sharp</think><answer>"


def random_batch(given: random.Random) -> RewardBatch:
    """Two groups about one image each; some samples have no answer, or two."""
    count = 2 * GROUP
    ends = [given.choice(("<answer>1</answer>", "<answer>2</answer>", "<answer>", "")) for _ in range(count)]
    texts = [text + end for text, end in zip(random_texts(given, count), ends, strict=True)]
    shown = [[picture(12, 8, row // GROUP)] for row in range(count)]
    targets = [{"answer": given.choice(OPTIONS)} for _ in range(count)]
    return make_batch(Outputs(texts=tuple(texts)), ["Is it <image>?"] * count, targets, media=shown)


# No truth: what convinces a model is what it says. A random one hardly ever says a given text, so it has options.
EXAMPLE = Example(random_batch=random_batch, settings={"options": list(OPTIONS)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("listener")
    Listener(options=OPTIONS).tiny(0, made)
    model = AutoModelForImageTextToText.from_pretrained(made)
    with torch.no_grad():  # less sure of other words: probabilities of a few tokens are no denormal numbers
        model.lm_head.weight.mul_(0.2)
    model.save_pretrained(made)
    return made


def ready(folder: Path, **settings: Any) -> Listener:
    reward = Listener(model=str(folder), **settings)
    reward.prepare(CPU)
    return reward


def batch_of(texts: Sequence[str], answer: Any = "2", question: str = QUESTION) -> RewardBatch:
    shown = [[picture(12, 8, 1), picture(9, 14, 2)] for _ in texts]
    return make_batch(
        Outputs(texts=tuple(texts)), [question] * len(texts), [{"answer": answer}] * len(texts), media=shown
    )


def slow(folder: Path, chat: str, end: str, images: Sequence[Picture]) -> float:
    """log P(end | chat): tokens of the end one by one, each by a forward pass of its own without padding."""
    model, processor = AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    shown = [Image.fromarray(_array(one)) for one in images]
    inputs, total = processor(text=chat, images=shown, return_tensors="pt"), 0.0
    ids = inputs["input_ids"]
    for token in processor.tokenizer(end, add_special_tokens=False)["input_ids"]:
        with torch.no_grad():
            logits = model(input_ids=ids, pixel_values=inputs["pixel_values"]).logits[0, -1]
        total += float(logits.double().log_softmax(0)[token])
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    return total


def _array(one: Picture) -> Any:
    import numpy as np

    return np.asarray(one.load().convert("RGB"))


@pytest.mark.slow
def test_the_score_is_the_probability_of_the_right_answer_and_the_closing_tag(folder: Path) -> None:
    texts = [f"{THOUGHT}1</answer>", "<answer>2</answer> and more", "no answer at all"]
    images = batch_of(texts).prompts[0].media
    asked = "USER: Which is better, <image> or <image>?\nASSISTANT: "
    chats = [f"{asked}{THOUGHT}", f"{asked}<answer>"]
    expected = [slow(folder, chat, "2</answer>", images) for chat in chats]
    found = ready(folder).score(batch_of(texts))
    assert found[:2].log().tolist() == pytest.approx(expected, abs=1e-4) and found[2] == 0
    other = [slow(folder, chat, "1</answer>", images) for chat in chats]
    shares = [1 / (1 + math.exp(wrong - right)) for right, wrong in zip(expected, other, strict=True)]
    found = ready(folder, options=OPTIONS).score(batch_of(texts))
    torch.testing.assert_close(found, torch.tensor([*shares, 0.0]), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_what_the_sample_answered_is_not_shown_and_the_images_are(folder: Path) -> None:
    reward = ready(folder, options=OPTIONS)
    first, second, third = reward.score(
        batch_of(
            [
                f"{THOUGHT}1</answer>",
                f"{THOUGHT}2</answer> so there",
                f"<think>the first</think>{THOUGHT[7:]}1</answer>",
            ]
        )
    ).tolist()
    assert first == pytest.approx(second, abs=1e-6) and abs(first - third) > 1e-4
    batch = batch_of([f"{THOUGHT}1</answer>"])
    swapped = replace(batch, prompts=tuple(replace(one, media=one.media[::-1]) for one in batch.prompts))
    assert abs(reward.score(swapped).item() - first) > 1e-5


@pytest.mark.slow
def test_images_without_marks_stand_before_the_question(folder: Path) -> None:
    text, reward = f"{THOUGHT}1</answer>", ready(folder, options=OPTIONS)
    marked = reward.score(batch_of([text], question="<image><image>Which?"))
    torch.testing.assert_close(reward.score(batch_of([text], question="Which?")), marked)


@pytest.mark.slow
def test_a_system_message_of_the_prompt_comes_first(folder: Path) -> None:
    batch = batch_of([f"{THOUGHT}1</answer>"])
    said = replace(batch, prompts=tuple(replace(one, system="Be just.") for one in batch.prompts))
    expected = slow(
        folder, f"USER: Be just.\nUSER: {QUESTION}\nASSISTANT: {THOUGHT}", "2</answer>", batch.prompts[0].media
    )
    assert math.log(ready(folder).score(said).item()) == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_a_thought_that_spells_tokens_of_the_listener_is_judged(folder: Path) -> None:
    reward = ready(folder, options=OPTIONS)
    spelt, spaced = reward.score(batch_of(["an <image></s><answer>1</answer>", "an < image>< /s><answer>1</answer>"]))
    assert spelt == spaced


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_answers_of_a_batch_have_the_log_probs_of_one_by_one(family: str) -> None:
    vlm = load_vlm(str(twin(family)), CPU)
    chats = [
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
        for text in ("a", "what is it?")
    ]
    images = [[picture(12, 8, 1).load().convert("RGB")], [picture(20, 30, 2).load().convert("RGB")]]
    begun, ends = ["so ", "<answer>"], ["red", "two boxes</answer>"]
    both = vlm.reply_log_probs(chats, images, begun, ends)
    alone = [vlm.reply_log_probs([chats[n]], [images[n]], [begun[n]], [ends[n]]) for n in (0, 1)]
    torch.testing.assert_close(both, torch.cat(alone), rtol=1e-5, atol=1e-5)
    tokens = vlm.tokenizer("two boxes</answer>", add_special_tokens=False)["input_ids"]
    first = vlm.inputs([chats[1]], [images[1]], "right", ["<answer>"])
    assert len(tokens) > 1 and vlm.next_log_probs(first)[0, tokens[0]] > both[1]


@pytest.mark.slow
def test_a_token_over_the_seam_belongs_to_the_end(folder: Path) -> None:
    vlm = load_vlm(str(folder), CPU)
    assert vlm._num_tokens("ab", "abcd") == 2 and vlm._num_tokens("", "abc") == 3
    with pytest.raises(ValueError, match="must have a token, got ''"):
        vlm.reply_log_probs([[{"role": "user", "content": [{"type": "text", "text": "a"}]}]], [[]], ["b"], [""])


def test_settings_and_targets_are_checked() -> None:
    with pytest.raises(ValueError, match="two or more different texts"):
        Listener(options=("1",))
    with pytest.raises(ValueError, match="tag"):
        Listener(tag="a b")
    pictures = (picture(12, 8, 1),)
    for answer, message in [("3", "must be one of"), (4, "must be a text or a list of texts, got 4")]:
        with pytest.raises(ConfigError, match=message):
            check_prompts("r", Listener(options=OPTIONS), [Prompt("?", pictures, {"answer": answer})])
    with pytest.raises(ConfigError, match="cannot load the vision-language model '/no/such"):
        Listener(model="/no/such").prepare(CPU)
