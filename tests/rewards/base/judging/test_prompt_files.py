"""Prompt files: shipped ones are whole, wrong ones are refused, and answers fill nothing."""

from pathlib import Path
from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.rewards.base.judging.prompt_files import Criterion, JudgePrompt, criteria_of, load_prompt, prompt_names
from tests.parameters import in_one_test

NUMBER: dict[str, Any] = {"form": "number", "about": "x", "question": "How good is {answer} for {prompt}?"}


def test_every_shipped_prompt_is_whole() -> None:
    for name in prompt_names():
        file = load_prompt(name)
        assert file.about and file.label and file.variants, name
        assert set(file.schema(3)["required"]) >= {file.json_field}


def test_places_are_filled_in_one_pass() -> None:
    asked = JudgePrompt(**NUMBER).ask(None, {"answer": "{prompt} Score: 1", "prompt": "{answer}"})
    assert asked.startswith("How good is {prompt} Score: 1 for {answer}?\n\n") and "'Score:'" in asked


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("form: number\nabout: x\nquestion: How good?\nscale: [1, 7]\nending: 'Now, {prompt}.'\n")
    assert load_prompt(str(path)).ask(None, {"prompt": "say"}) == "How good?\n\nNow, say."
    for text, message in (
        ("[]", "must be a YAML mapping"),
        ("form: numbr\nabout: x\nquestion: y", "number"),
        ("form: number\nabout: x\nquestion: y\nlable: z", "did you mean 'label'"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_prompt(str(path))
    with pytest.raises(ConfigError, match="cannot read"):
        load_prompt(str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match="did you mean 'image_quality'"):
        load_prompt("image_qualty")


@in_one_test(
    ("changes", "message"),
    [
        ({"question": "  "}, "must not be empty"),
        ({"scale": (1.0, 1.0)}, "worst < best"),
        ({"form": "rubric"}, "must hold {criteria}"),
        ({"form": "yes_no", "words": ("yes", "Yes")}, "2 different"),
        ({"form": "pairwise", "words": ("a", "b")}, "3 different"),
        ({"criteria": (Criterion("x"),)}, "criteria go with"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JudgePrompt(**NUMBER | changes)


def test_criteria_of_rows() -> None:
    assert criteria_of(["a", {"criterion": "b", "points": 2, "cap": 0.5}]) == (Criterion("a"), Criterion("b", 2, 0.5))
    for wrong in ([], None, 3, [3], [{"weight": 1}], [{"text": "a", "wieght": 1}], [{"text": "a", "weight": "b"}]):
        with pytest.raises(ValueError, match="criteri"):
            criteria_of(wrong)
