"""Prompts that a model cannot read are refused before the first iteration, or left out and counted."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import ConfigError, RunError
from mmrl.core.data import Prompt
from mmrl.modalities.gui import Gui
from mmrl.prompts.filtering import readable
from tests import vision_twins
from tests.commands.test_bad_input_texts import cli  # noqa: F401
from tests.tiny_cli import CommandLine
from tests.tiny_texts import questions
from tests.toy_runs import collector, stream
from tests.toys import ToyTokens

GOOD = Prompt("what is <image>?", (vision_twins.picture(60, 40, 1),), source="good.jsonl, line 1")
TALL = Prompt("how tall?", (vision_twins.picture(1, 300, 2),), source="tall.jsonl, line 2")
SPELT = Prompt("what is <|image_pad|>?", source="spelt.jsonl, line 3")
SYSTEM = Prompt("what?", system="see <|vision_start|><|image_pad|>", source="system.jsonl, line 4")
HALF = Prompt("what is \ud800?", source="half.jsonl, line 5")
ANSWERED = Prompt("who?", target={"given": ("Ada", "Bob<|im_end|>")}, source="answered.jsonl, line 7")
MARKS = Prompt("<image> or <image>?", GOOD.media, source="marks.jsonl, line 6")


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [TALL, SPELT, SYSTEM, HALF, MARKS], ids=lambda prompt: str(prompt.source[:5]))
def test_what_is_refused_at_once_is_what_cannot_be_encoded(prompt: Prompt) -> None:
    policy = vision_twins.policy()
    refused, unreadable = policy.refusal(prompt), policy.unreadable(prompt)
    assert refused is not None and unreadable is not None
    assert refused.startswith(f"{prompt.source}: prompt ") and unreadable.startswith(f"{prompt.source}: prompt ")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_prompts_that_can_be_encoded_are_not_refused(family: str) -> None:
    policy = vision_twins.policy(family)
    assert [policy.refusal(prompt) for prompt in (GOOD, *vision_twins.PROMPTS)] == [None] * 4
    assert policy.unreadable(GOOD) is None


@pytest.mark.slow
def test_too_many_tokens_are_refused_at_once_as_far_as_they_are_the_prompts_own() -> None:
    policy = vision_twins.policy()
    length = len(policy.encode([GOOD])[0])
    assert policy.refusal(GOOD) is None
    refused = vision_twins.policy(max_prompt_tokens=4).refusal(GOOD)
    assert refused is not None and "tokens with its 1 images, more than max_prompt_tokens 4; raise it" in refused
    assert vision_twins.policy(max_prompt_tokens=length).refusal(GOOD) is None


def test_given_answers_that_spell_tokens_are_refused_before_they_are_learned_from() -> None:
    policy = vision_twins.policy()
    said = "answered.jsonl, line 7: prompt 'who?': the answer 'Bob<|im_end|>' spells an end token, which no text may; "
    assert str(policy.refusal(ANSWERED)).startswith(said)
    assert "spells a media token" in str(policy.refusal(replace(ANSWERED, target={"given": ("a <|image_pad|>",)})))
    assert policy.refusal(replace(ANSWERED, target={"given": ("Ada", "Bob")})) is None


def test_a_gui_prompt_without_a_screenshot_is_refused() -> None:
    policy = vision_twins.prepared(Gui, dialect="plain")
    assert policy.refusal(GOOD) is None
    assert policy.refusal(TALL) is not None
    assert "has no screenshot" in str(policy.refusal(Prompt("what?")))


def test_refused_prompts_are_skipped_where_the_source_says_so(caplog: pytest.LogCaptureFixture) -> None:
    policy = vision_twins.policy()
    source = DatasetSettings(path="x.jsonl", bad_rows="skip")
    with caplog.at_level(logging.WARNING):
        assert readable(policy, [GOOD, TALL, SPELT], source) == (GOOD,)
    assert "skipped tall.jsonl, line 2: prompt 'how tall?'" in caplog.text
    assert "the model cannot read 2 of 3, which are skipped" in caplog.text
    with pytest.raises(ConfigError, match="can read none of 1, the first: tall"):
        readable(policy, [TALL], source)
    for strict in (source.model_copy(update={"bad_rows": "fail"}), "x.jsonl"):
        with pytest.raises(ConfigError, match=r"^prompts: spelt.jsonl, line 3: prompt"):
            readable(policy, [GOOD, SPELT], strict)


class Reading(ToyTokens):
    """Cannot read prompts that say so."""

    def refusal(self, prompt: Prompt) -> str | None:
        return None

    def unreadable(self, prompt: Prompt) -> str | None:
        return f"{prompt.text}: no pixels" if "broken" in prompt.text else None

    def rollout(self, prompts: Any, plans: Any, keys: Any) -> Any:
        if any(self.unreadable(prompt) for prompt in prompts):
            raise ConfigError("no pixels")
        return super().rollout(prompts, plans, keys)


TEXTS = ("one", "two", "broken", "three", "four", "five")


def reading(*texts: str, share: float = 0.5, **settings: Any) -> Any:
    made = collector(stream(*texts), **settings)
    return replace(made, policy=Reading(), scorer=replace(made.scorer, max_failed_share=share))


@pytest.mark.parametrize("chunk", [1, 2, 6])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_group_of_an_unreadable_prompt_is_left_out_and_counted(
    chunk: int, overlap: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = reading(*TEXTS, wanted=6, chunk=chunk, overlap=overlap)
    broken = next(draw for draw, prompt in stream(*TEXTS).take(6) if prompt.text == "broken")
    with caplog.at_level(logging.WARNING):
        found = made(0, "trained")
    assert found.kept == [draw for draw in range(6) if draw != broken]
    assert sorted(set(found.scores.group.tolist())) == found.kept
    assert found.metrics["groups/unread"] == 1.0
    assert "left out: broken: no pixels" in caplog.text
    whole = collector(stream(*TEXTS), wanted=6)(0, "trained")
    rows = whole.scores.group != broken
    assert found.scores.values.tolist() == whole.scores.values[rows].tolist()  # the others are drawn as ever


def test_unreadable_prompts_are_refilled() -> None:
    from mmrl.core.config import GroupSettings

    made = reading(*TEXTS, groups=GroupSettings(degenerate="refill", max_refills=2), wanted=6)
    found = made(0, "trained")
    assert len(found.kept) == 6 and max(found.kept) >= 6


@pytest.mark.slow
def test_too_many_unreadable_prompts_end_the_run_also_over_many_iterations() -> None:
    made = reading(*TEXTS, share=0.1, wanted=6)
    with pytest.raises(ConfigError, match=r"1 of 6 prompts could not be read, scoring.max_failed_share allows 10%"):
        made(0, "trained")
    made = reading(*TEXTS, share=0.17, wanted=4)
    for iteration in range(30):
        made(iteration, "trained")
    assert made.prompts.num_unread == 20
    assert made.prompts.state_dict()["num_unread"] == 20


def test_an_iteration_without_one_readable_prompt_goes_on() -> None:
    made = reading("broken", share=1.0, wanted=2)
    found = made(0, "trained")
    assert (found.rollout, found.kept, len(found.scores.group)) == (None, [], 0)
    assert found.metrics["groups/unread"] == 2.0


def test_other_mistakes_are_no_unreadable_prompts() -> None:
    made = reading(*TEXTS, share=1.0)

    def wrong(*given: Any) -> Any:
        raise RunError("the disk is full")

    made.policy.rollout = wrong
    with pytest.raises(RunError, match="the disk is full"):
        made(0, "trained")


@pytest.mark.slow  # most of a second each, or more
def test_a_run_trains_on_what_can_be_read(cli: CommandLine) -> None:  # noqa: F811
    from PIL import Image

    Image.new("RGB", (1, 300)).save("tall.png")
    good = str(Path(str(questions().images)).resolve() / "0000.png")
    rows: list[dict[str, Any]] = [{"prompt": f"what {n}?", "images": [good]} for n in range(4)]
    rows += [{"prompt": "tall?", "images": ["tall.png"]}, {"prompt": "what is <|image_pad|>?", "images": []}]
    rows += [{"prompt": "cut?", "images": ["cut.png"]}]
    Path("mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = "prompts.train={path: mixed.jsonl, outside: true, bad_rows: skip}"
    settings = ("evaluation=null", "iterations=3", "scoring.max_failed_share=0.3")
    ended = cli.train(prompts, *settings, kind="vision_language")
    assert ended.code == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert sum(line["groups/unread"] for line in lines) == 1  # of five prompts, six draws
    Path("mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    again = cli("train", "--resume", "run", "iterations=4")
    assert again.code == 2
    assert "prompts.train: not the prompts that the run began with: there are 4 of them, 5 when" in again.err


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_a_prompt_beyond_the_models_context_is_told_once(family: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = vision_twins.policy(family)
    config = policy.encoder.model.config.get_text_config()
    length, whole = len(policy.encode([GOOD])[0].tokens), config.max_position_embeddings
    assert caplog.messages == []
    config.max_position_embeddings = length // 2
    try:
        policy.encode([replace(GOOD, text="who is <image>?"), replace(GOOD, text="who was <image>?")])
    finally:
        config.max_position_embeddings = whole
    (said,) = caplog.messages
    assert said.startswith("good.jsonl, line 1: prompt 'who is <image>?' has ")
    assert f"the model is made for {length // 2} with the answer" in said
