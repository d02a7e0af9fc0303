"""docs/judge_prompts.md is what the files say, and every setting of docs/judges.md is there."""

import re
from pathlib import Path

import judge_prompts_page
import yaml

from mmrl.commands.judge_agree import LAYOUTS
from mmrl.rewards.base.judging.prompt_files import LABELS, JudgePrompt

GUIDE = (Path(__file__).parents[1] / "docs" / "judges.md").read_text("utf-8")


def test_the_page_is_written_anew() -> None:
    assert judge_prompts_page.FILE.read_text("utf-8") == judge_prompts_page.page()


def test_the_guide_knows_every_form_and_layout() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE)) >= {*LABELS, *LAYOUTS}


def test_the_file_of_the_guide_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(about.*?)```", GUIDE, re.DOTALL)
    asked = JudgePrompt(**yaml.safe_load(text) | {"scale": (1, 5)}).ask(None, {"prompt": "a stove"})
    assert "made for: a stove" in asked and "'Score:'" in asked
