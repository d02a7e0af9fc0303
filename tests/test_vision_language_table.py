"""docs/families_vision_language.md is what the comparison of every twin with its own forward pass found."""

import json
import re

import pytest
import torch
import vision_language_table
from vision_language_table import compared, largest_difference

from mmrl.modalities.encoding.families import FAMILIES
from mmrl.modalities.tiny.vision_language import TWINS
from mmrl.modalities.tokens.log_probs import OutputHead

TEXT = vision_language_table.FILE.read_text(encoding="utf-8")
RESULTS = json.loads(vision_language_table.RESULTS.read_text(encoding="utf-8"))
EXACT = {family: found["float32"] for family, found in RESULTS.items() if "refused" not in found["float32"]}


def test_the_page_is_what_the_script_writes() -> None:
    assert vision_language_table.page(RESULTS) == TEXT, "run: python scripts/vision_language_table.py"


def test_every_family_and_every_twin_has_a_row() -> None:
    assert list(RESULTS) == list(TWINS), "run: python scripts/vision_language_table.py"
    rows = re.findall(r"^\| `(\w+)`", TEXT, flags=re.MULTILINE)
    assert len(rows) == len(TWINS)
    assert {family.name for family in FAMILIES} <= set(rows)


def test_what_is_not_refused_computes_what_the_model_computes() -> None:
    for family, found in EXACT.items():
        assert max(found["rollouts"], found["updates"]) <= 2e-5, family
        in_float64 = RESULTS[family]["float64"]
        assert max(in_float64["updates"], in_float64["gradient"]) <= 1e-7, family
        assert found["gradient"] <= (1e-3 if family == "granite4_vision" else 1e-4), family  # see the page
        assert not found["untrained"], family
        assert found["mean"] > 1, f"the twin of {family} is too sure of its answers to tell anything"
        assert found["sharing"] != "none" or found["reason"], family
    assert len(EXACT) >= 24 and sum(found["sharing"] != "none" for found in EXACT.values()) >= 20


def test_the_largest_difference_is_relative_and_names_its_tensor() -> None:
    expected = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([100.0]), "vision.k_proj.bias": torch.tensor([1e-9])}
    found = {"a": torch.tensor([3.0, 4.5]), "b": torch.tensor([101.0]), "vision.k_proj.bias": torch.tensor([1.0])}
    largest, name = largest_difference(found, expected)
    assert largest == pytest.approx(0.1) and name == "a"  # 0.5 of a norm of 5
    assert largest_difference({}, expected) == (1.0, "a")  # a tensor without a gradient is all wrong
    small = {"a": torch.tensor([1e-5]), "b": torch.tensor([100.0])}
    assert largest_difference({**small, "a": torch.tensor([2e-5])}, small)[0] == pytest.approx(0.01)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param("qwen2_5_vl", marks=pytest.mark.slow),
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in EXACT if one != "qwen2_5_vl"),
    ],
)
def test_the_numbers_of_the_page_come_out_again(family: str) -> None:
    if family in vision_language_table.NEEDS:
        pytest.importorskip(vision_language_table.NEEDS[family])
    found = compared(family, is_double=False)
    assert max(found["rollouts"], found["updates"]) <= 2e-5
    assert found["gradient"] <= max(1e-4, 3 * EXACT[family]["gradient"])
    assert (found["sharing"], found["language"]) == (EXACT[family]["sharing"], EXACT[family]["language"])


@pytest.mark.slow
def test_a_part_of_the_network_that_is_off_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutputHead, "cap", lambda head, raw: raw * 1.01)
    found = compared("qwen2_5_vl", is_double=False)
    assert found["updates"] > 1e-3 and found["rollouts"] > 1e-3 and found["gradient"] > 1e-3
