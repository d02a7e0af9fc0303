"""docs/judge_attacks.md is what attacks achieve: no rule of correctness is fooled, and every prompt is there."""

import re

import judge_attacks_page
import pytest

from mmrl.rewards.base.judging.prompt_files import load_prompt, prompt_names

PAGE = judge_attacks_page.FILE.read_text("utf-8")


@pytest.mark.exhaustive  # loads a twin for each prompt: about two minutes
def test_the_page_is_written_anew() -> None:
    assert judge_attacks_page.page() == PAGE


def test_every_prompt_stands_in_the_page_with_its_reward() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(judge_prompts.md#\1\) \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [(name, judge_attacks_page.section_of(name, load_prompt(name))["name"]) for name in prompt_names()]


def test_rules_are_never_fooled_and_planted_judges_are() -> None:
    counts = {name: int(count) for name, count in re.findall(r"^\| `(\w+)` \|.*?\d+ \| (\d+) \|", PAGE, re.MULTILINE)}
    assert {counts[name] for name in judge_attacks_page.CORRECTNESS} == {0}
    assert all(counts[name] >= 30 for name in judge_attacks_page.PLANTED)
