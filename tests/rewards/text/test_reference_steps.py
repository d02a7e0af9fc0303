"""Findings by hand, against a plain count, and thoughts that state nothing."""

import random
from typing import Any

import pytest
from hypothesis import given

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.rewards.text.reference_steps import MAX_STEPS, ReferenceSteps
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

FINDINGS = {"pleural effusion": "present", "pneumothorax": "absent"}
RIGHT = ("pleural effusion: present", "pneumothorax: absent")


def thinking(*steps: str) -> str:
    lines = "\n".join(steps)
    return f"<think>\n{lines}\n</think>\n<answer>yes</answer>"


def judge(text: str, findings: Any = FINDINGS, **settings: Any) -> float:
    return float(
        ReferenceSteps(**{"others": ("nodule", "heart"), **settings}).score(answers([text], {"findings": findings}))
    )


def parts(text: str, findings: Any = FINDINGS, **settings: Any) -> list[float]:
    """Factuality, completeness and effectiveness, each alone."""
    names = ("factuality_weight", "completeness_weight", "effectiveness_weight")
    return [judge(text, findings, **settings, **{name: float(name == one) for name in names}) for one in names]


def random_batch(source: random.Random) -> RewardBatch:
    steps = [*RIGHT, "pneumothorax: present", "nodule: absent", "nodule: present", "I look at the lungs."]
    texts = [thinking(*source.choices(steps, k=source.randint(1, 5))) for _ in range(6)]
    return answers([*texts, "", thinking(*RIGHT)], {"findings": FINDINGS})


EXAMPLE = Example(random_batch=random_batch, best=lambda: answers([thinking(*RIGHT)] * 4, {"findings": FINDINGS}))


@in_one_test(
    ("steps", "factual", "complete", "effective"),
    [
        (RIGHT, 1, 1, 1),
        (RIGHT[::-1], 1, 1, 1),
        (("- Pleural  Effusion : PRESENT.", "2) pneumothorax: absent"), 1, 1, 1),
        (("\u2022 pleural effusion: present", "", "* pneumothorax: absent"), 1, 1, 1),
        (RIGHT[:1], 1, 1 / 2, 1),
        ((*RIGHT, "So it is an effusion."), 1, 1, 2 / 3),
        ((*RIGHT, "nodule: absent"), 1, 1, 2 / 3),  # what the reference leaves out is normal
        ((*RIGHT, "heart: normal"), 1, 1, 2 / 3),
        ((*RIGHT, "nodule: present"), 2 / 3, 1, 2 / 3),
        ((*RIGHT, "unicorn: present"), 1, 1, 2 / 3),  # neither the reference nor `others` names it
        (("pleural effusion: absent", *(f"x{n}: absent" for n in range(30))), 0, 0, 0),  # invented ones are not right
        ((RIGHT[0], "pneumothorax: present"), 1 / 2, 1 / 2, 1 / 2),
        ((RIGHT[0], RIGHT[0], RIGHT[1]), 1, 1, 2 / 3),  # again: the same finding, one more step
        ((*RIGHT, "pneumothorax: present"), 1 / 2, 1 / 2, 1 / 3),  # once right, once wrong: wrong
        ((*RIGHT, "nodule: absent", "nodule: present"), 2 / 3, 1, 2 / 4),
        ((*RIGHT, "nodule: absent", "nodule: normal"), 2 / 3, 1, 2 / 4),
        (("There is a pleural effusion.",), 0, 0, 0),
        (("pleural effusion:", ": present"), 0, 0, 0),
        (("pleural effusion: present: left",), 0, 0, 0),
        ((), 0, 0, 0),
    ],
)
def test_parts_by_hand(steps: tuple[str, ...], factual: float, complete: float, effective: float) -> None:
    expected = [factual, complete, effective]
    assert parts(thinking(*steps)) == pytest.approx(expected)
    assert judge(thinking(*steps)) == pytest.approx(sum(expected) / 3)


def test_weights_and_what_is_normal_are_settings() -> None:
    text = thinking(*RIGHT, "nodule: none")
    assert judge(text, factuality_weight=2, completeness_weight=1, effectiveness_weight=1) == pytest.approx(
        (2 * 2 / 3 + 1 + 2 / 3) / 4
    )
    assert judge(text, normal=["None"]) == pytest.approx((1 + 1 + 2 / 3) / 3)


def test_steps_stand_in_their_tag() -> None:
    lines = "\n".join(RIGHT)
    assert judge(lines) == judge(f"<think>{lines}</think><think></think>") == judge(f"<answer>{lines}</answer>") == 0
    assert judge(lines, tag=None) == judge(f"<answer>{lines}</answer>", tag="answer") == 1


def test_random_thoughts_against_a_plain_count() -> None:
    source, names, statuses = random.Random(0), "abcdef", ("present", "absent")
    seen = set()
    for _ in range(50):
        findings = {name: source.choice(statuses) for name in source.sample(names, source.randint(1, 4))}
        said = [(name, source.choice(statuses)) for name in source.sample(names, source.randint(1, 6))]
        idle = source.randint(0, 2)
        agree = [name for name, status in said if findings.get(name) == status]
        also = [name for name, status in said if name in "abc" and name not in findings and status == "absent"]
        known = [name for name, _ in said if name in findings or name in "abc"]
        expected = (len(agree + also) / max(1, len(known)), len(agree) / len(findings), len(agree) / (len(said) + idle))
        text = thinking(*(f"{name}: {status}" for name, status in said), *["hm"] * idle)
        assert parts(text, findings, others=("a", "b", "c")) == pytest.approx(expected)
        seen.add(expected)
    assert len(seen) > 20


def test_too_many_steps_score_nothing() -> None:
    findings = {f"f{number}": "present" for number in range(MAX_STEPS)}
    steps = [f"{name}: present" for name in findings]
    assert judge(thinking(*steps), findings) == 1
    assert judge(thinking(*steps, "one more"), findings) == 0


@in_one_test(
    ("findings", "message"),
    [
        (3, r"target\.findings must have findings with a status each, .* got 3"),
        ({}, "findings with a status each"),
        (["pneumothorax"], "findings with a status each"),
        ({"pneumothorax": True}, "findings with a status each"),
        ({"pneumothorax": " "}, "findings with a status each"),
        ({"a: b": "present"}, "without colons"),
        ({"a\nb": "present"}, "in one line"),
        ({"Nodule": "present", "nodule.": "absent"}, "at most 200 different findings"),
        ({"e" + "\u0301" * 40: "present"}, "findings with a status each"),
    ],
)
def test_a_target_without_findings_is_refused(findings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReferenceSteps().check(Prompt("?", target={"findings": findings}))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="must not all be 0"):
        ReferenceSteps(factuality_weight=0, completeness_weight=0, effectiveness_weight=0)
    with pytest.raises(ValueError, match="tags must be"):
        ReferenceSteps(tag="<think>")
    with pytest.raises(ValueError, match="factuality_weight must be at least 0"):
        ReferenceSteps(factuality_weight=-1)


@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    check_scores(ReferenceSteps(tag=None), answers([text], {"findings": FINDINGS}))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    check_scores(ReferenceSteps(tag=None), answers(HOSTILE, {"findings": FINDINGS}))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", [*REPEATED, ":", "a:b\n", "- "], ids=shown)
def test_a_megabyte_is_scored(piece: str) -> None:
    thoughts = [f"<think>{piece * (count // len(piece))}</think>" for count in (9_000, 900_000)]
    check_scores(ReferenceSteps(), answers([*megabytes(piece), *thoughts], {"findings": FINDINGS}))
