"""Every setting that the doctor names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTIONS = (
    "optimizer|updates|loss|sampler|modality|rollout|groups|evaluation|scoring|correction|data|prompts|checkpoint"
)
OPEN = {"modality.arguments", "prompts.train", "prompts.held_out"}  # of any shape


def test_every_setting_that_a_remedy_names_is_in_the_reference() -> None:
    known = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE))
    sources = [*(ROOT / "mmrl" / "diagnosis").glob("*.py"), ROOT / "mmrl" / "commands" / "doctor.py"]
    named = {
        name
        for source in sources
        for text in re.findall(r'"[^"\n]*"', source.read_text())
        for name in re.findall(rf"\b(?:{SECTIONS})(?:\.[a-z][a-z_]*)+\b", text)
    }
    assert len(named) > 30
    assert {name for name in named - OPEN if not {*name.split(".")[1:]} <= known} == set()
