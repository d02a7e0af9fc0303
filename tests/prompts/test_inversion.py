"""Choice questions asked the other way round: the verbs, the letters, and the truth of every option."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from mmrl.core.config import DatasetSettings
from mmrl.core.data import Prompt
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.prompts.inversion import inverted, negated
from tests.parameters import in_one_test

OPTIONS = ["(A) lied on", "(B) took", "(C) put down", "(D) washed"]


def question(text: str = "What did the person do with the clothes?", answer: object = "C") -> Prompt:
    return Prompt("\n".join([text, *OPTIONS]), target={"options": OPTIONS, "answer": answer, "task": "choice"})


@in_one_test(
    ("question", "expected"),
    [
        ("What did he take?", "What didn't he take?"),
        ("Which red objects are moving?", "Which red objects aren't moving?"),
        ("Who IS there?", "Who ISN'T there?"),
        ("A man sits down.\nwhere was the cup?", "A man sits down.\nwhere wasn't the cup?"),
        ("<video>Where will he go?", "<video>Where won't he go?"),
        ("Why did he run?", None),
        ("How many are there?", None),
        ("What happened?", None),
        ("What is not there?", None),
        ("What didn't he do, and what did he say?", None),
        ("He knows what is right. Tell me why.", None),
    ],
)
def test_a_question_is_negated_at_its_verb(question: str, expected: str | None) -> None:
    assert negated(question) == expected


def test_every_option_changes_its_truth_and_the_letters_are_in_order() -> None:
    truth, sizes, firsts = {"lied on", "took", "washed"}, set[int](), set[str]()
    for seed in range(60):
        got = inverted(question(), 1.0, seed)
        head, *lines = got.text.split("\n")
        assert head == "What didn't the person do with the clothes?" and lines == got.target["options"]
        assert [line[:4] for line in lines] == [f"({letter}) " for letter in "ABCD"[: len(lines)]]
        named = {line[4:] for line in lines if line[1] in got.target["answer"].split(", ")}
        assert named == {line[4:] for line in lines} & truth and named
        assert "put down" in {line[4:] for line in lines}, "what was right stays, and is wrong"
        assert got.target["is_inverted"] is True and got.target["task"] == "choice"
        sizes.add(len(lines))
        firsts.add(lines[0][4:])
    assert sizes == {2, 3, 4} and len(firsts) == 4


def test_a_question_with_several_right_options_is_inverted_as_well() -> None:
    got = inverted(question(answer="<A>, C".replace("<A>", "A")), 1.0, 3)
    right = {got.target["options"]["ABCD".index(one)][4:] for one in got.target["answer"].split(", ")}
    assert right <= {"took", "washed"} and right


@in_one_test(
    "prompt",
    [
        question("Why did he run?"),
        question(answer="A, B, C, D"),  # nothing would be right
        question(answer="put down"),
        question(answer=("A", 3)),
        question(answer="E"),
        replace(question(), text="What did he do?"),  # its options are not shown
        Prompt("What did he do?", target={"answer": "A"}),
        Prompt("What did he do?", target={"answer": "A", "options": {"A": "x", "B": "y"}}),
        Prompt("What did he do?", target={"answer": "A", "options": []}),
    ],
)
def test_what_cannot_be_inverted_stays_as_it_is(prompt: Prompt) -> None:
    assert inverted(prompt, 1.0, 0) == replace(prompt, target={**prompt.target, "is_inverted": False})


def test_text_behind_the_options_and_options_without_letters_stay() -> None:
    options = ["a cat", "a dog"]
    prompt = Prompt("What is this?\na cat\na dog\nAnswer!", target={"options": options, "answer": "B"})
    got = inverted(prompt, 1.0, 0)
    assert got.text == "\n".join(["What isn't this?", *got.target["options"], "Answer!"])
    assert sorted(got.target["options"]) == options
    assert got.target["options"]["AB".index(got.target["answer"])] == "a cat"


def test_an_article_at_the_beginning_of_an_option_is_no_letter() -> None:
    options = ["A dog", "A cat", "The bird"]
    text = "\n".join(["What is this?", *options])
    for seed in range(8):
        got = inverted(Prompt(text, target={"options": options, "answer": "B"}), 1.0, seed)
        assert got.target["is_inverted"] and set(got.target["options"]) <= set(options)
        right = {got.target["options"]["ABC".index(one)] for one in got.target["answer"].split(", ")}
        assert right <= {"A dog", "The bird"} and right


def rows(folder: Path, count: int, **settings: object) -> list[Prompt]:
    path = folder / "rows.jsonl"
    lines = [
        {"prompt": "\n".join([f"What did person {n} do?", *OPTIONS]), "options": OPTIONS, "answer": "(B)"}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return list(load_dataset_prompts(DatasetSettings.model_validate({"path": str(path)} | settings)))


def test_a_share_of_a_files_questions_is_inverted_whatever_their_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        half = rows(tmp_path, 200, inverted=0.5, template="{prompt}\nThink.")
    count = sum(one.target["is_inverted"] for one in half)
    assert 80 < count < 120 and f"{count} of 200 questions are asked the other way round" in caplog.text
    assert all(one.text.endswith("\nThink.") for one in half)
    assert [one.text for one in rows(tmp_path, 3, inverted=0.5, template="{prompt}\nThink.")] == [
        one.text for one in half[:3]
    ]
    assert all("is_inverted" not in one.target for one in rows(tmp_path, 3))
