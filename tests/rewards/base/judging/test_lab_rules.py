"""A rule behind a judge's address trains a lab as the rule itself does, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.data import Prompt
from tests.rewards.base.judging.lab_rules import (
    CLICKS,
    IMAGES,
    Judged,
    closeness,
    likeness,
    num_different,
    reply_by_closeness,
    trained,
)
from tests.rewards.base.judging.openai_server import chat, serving


def test_the_rules_by_hand() -> None:
    assert closeness("<answer>(20, 30)</answer>", [10, 20, 30, 40]) == 1
    assert closeness("<answer>(30, 30)</answer>", [10, 20, 30, 40]) == 0.5  # ten pixels away
    assert closeness("there", [10, 20, 30, 40]) == 0
    assert likeness(torch.full((3, 32, 32), 0.08), Prompt("red circle top left")) < 0.5
    question = "box [10, 20, 30, 40]\nanswer <answer>(30, 30)</answer>\nend\n\nAnswer with ..."
    assert reply_by_closeness({"messages": [{"content": question}]}) == (200, chat("Score: 0.500000"))


@pytest.mark.slow  # trains three times
@pytest.mark.parametrize(
    "lab", [pytest.param(CLICKS, id="clicks"), pytest.param(IMAGES, id="images", marks=pytest.mark.exhaustive)]
)
def test_training_by_a_rule_at_an_address_gives_the_weights_of_the_rule(lab: Judged, tmp_path: Path) -> None:
    def reversed_rule(body: dict[str, Any]) -> tuple[int, Any]:
        score = float(lab.answer(body)[1]["choices"][0]["message"]["content"].removeprefix("Score: "))
        return 200, chat(f"Score: {1 - score:.6f}")

    weights = trained(lab, lab.direct(), 0, 3, tmp_path / "direct")
    with serving(lab.answer) as served:
        over_api = trained(lab, lab.over_api(served.url, tmp_path), 0, 3, tmp_path / "api")
    assert len(served.bodies) > 100 and num_different(weights, over_api) == 0
    with serving(reversed_rule) as served:
        other = trained(lab, lab.over_api(served.url, tmp_path), 0, 3, tmp_path / "reversed")
    assert num_different(weights, other) > 1000  # the scores matter
