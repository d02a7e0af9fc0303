"""The share of questions with yes, against a plain use of a model of transformers, hand numbers and a slow walk."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.rewards.judges.question_graph import QuestionGraph
from tests.parameters import in_one_test
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images, random_texts, to_pil

QUESTIONS = ["Is there a motorcycle?", "Is the motorcycle blue?", "Is there a door?", "Is the motorcycle by the door?"]
PARENTS = [[], [0], [], [0, 2]]


def random_scenes(rng: random.Random) -> RewardBatch:
    """8 random images of two prompts, of one random question and of four."""
    prompts = [text for text in random_texts(rng, 2) for _ in range(GROUP)]
    texts = [[f"Is it {text}?" for text in random_texts(rng, n)] for n in (1, 4) for _ in range(GROUP)]
    targets = [{"questions": own, "parents": PARENTS[: len(own)]} for own in texts]
    return make_batch(Outputs(images=random_images(rng, 2 * GROUP)), prompts, targets)


# No truth: what an image shows, the model says.
EXAMPLE = Example(random_batch=random_scenes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("question_graph")
    QuestionGraph().tiny(0, made)
    return made


def ready(folder: Path, **settings: Any) -> QuestionGraph:
    reward = QuestionGraph(model=str(folder), **settings)
    reward.prepare(CPU)
    return reward


def pictures(count: int) -> Tensor:
    return (torch.rand(count, 3, 32, 40, generator=torch.Generator().manual_seed(0)) * 255).round() / 255


def reached(answers: list[bool], parents: list[list[int]], number: int) -> bool:
    """Whether a question and all that it comes from are answered with yes, one after the other."""
    return answers[number] and all(reached(answers, parents, parent) for parent in parents[number])


@in_one_test(
    ("answers", "parents", "passes_on", "expected"),
    [
        ([True, True, True, True], PARENTS, True, 1.0),
        ([False, True, True, True], PARENTS, True, 0.25),  # no motorcycle: neither its colour nor its place count
        ([True, False, True, True], PARENTS, True, 0.75),  # nothing depends on its colour
        ([True, True, False, True], PARENTS, True, 0.5),
        ([False, False, False, False], PARENTS, True, 0.0),
        ([False, True, True], [[], [0], [1]], True, 0.0),  # the last one's parent does not count
        ([False, True, True], [[], [0], [1]], False, 1 / 3),  # but was answered with yes
        ([True, True, False], [[1], [2], []], True, 1 / 3),  # in the order of the file the first comes too early
    ],
)
def test_hand_numbers(answers: list[bool], parents: list[list[int]], passes_on: bool, expected: float) -> None:
    assert QuestionGraph(passes_on=passes_on)._share(answers, parents) == pytest.approx(expected, abs=1e-12)


def test_a_question_counts_where_all_before_it_do() -> None:
    rng = random.Random(0)
    for _ in range(200):
        count = rng.randint(1, 8)
        parents = [rng.sample(range(number), rng.randint(0, min(number, 2))) for number in range(count)]
        answers = [rng.random() < 0.6 for _ in range(count)]
        slow = sum(reached(answers, parents, number) for number in range(count)) / count
        assert QuestionGraph()._share(answers, parents) == pytest.approx(slow, abs=1e-12)


@pytest.mark.slow
def test_an_answer_is_the_likelier_of_yes_and_no(folder: Path) -> None:
    """Each question alone, without padding; with random weights both answers come."""
    model, processor = AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    shown, counts = pictures(12), [1 + number % 4 for number in range(12)]
    yes, no = processor.tokenizer.convert_tokens_to_ids(["yes", "no"])
    expected, seen = [], set()
    for image, count in zip(to_pil(shown), counts, strict=True):
        answers = []
        for question in QUESTIONS[:count]:
            inputs = processor(
                text=f"USER: <image>{question} One word.\nASSISTANT: ", images=image, return_tensors="pt"
            )
            with torch.no_grad():
                logits = model(**inputs).logits[0, -1]
            answers.append(bool(logits[yes] > logits[no]))
        seen |= set(answers)
        expected.append(sum(reached(answers, PARENTS, number) for number in range(count)) / count)
    assert seen == {True, False}
    targets = [{"questions": QUESTIONS[:count], "parents": PARENTS[:count]} for count in counts]
    scores = ready(folder, ending="One word.", questions_at_once=5).score(
        make_batch(Outputs(images=shown), [""] * 12, targets)
    )
    torch.testing.assert_close(scores, torch.tensor(expected))


@in_one_test(
    ("changes", "message"),
    [
        ({"questions": []}, "target.questions must list texts"),
        ({"questions": "Is it?"}, "target.questions must list texts"),
        ({"questions": ["Is it?", 3]}, "target.questions must list texts"),
        ({"parents": [[], [0]]}, "target.parents must be 4 lists of numbers from 0 to 3"),
        ({"parents": [[], [0], [], [0, 4]]}, "target.parents must be 4 lists"),
        ({"parents": [[], [-1], [], []]}, "target.parents must be 4 lists"),
        ({"parents": [[], ["0"], [], []]}, "target.parents must be 4 lists"),
        ({"parents": None}, "target.parents must be 4 lists"),
    ],
)
def test_questions_or_parents_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    target = {"questions": QUESTIONS, "parents": PARENTS}
    QuestionGraph().check(Prompt("a motorcycle", target=target))
    with pytest.raises(ValueError, match=message):
        QuestionGraph().check(Prompt("a motorcycle", target=target | changes))


@pytest.mark.slow
def test_what_cannot_be_judged_raises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot load the vision-language model '/no/such"):
        QuestionGraph(model="/no/such").prepare(CPU)
    batch = make_batch(Outputs(images=pictures(1) / 0), [""], [{"questions": QUESTIONS, "parents": PARENTS}])
    reward = ready(folder)
    with pytest.raises(ValueError, match="NaN or infinity"):
        reward.score(batch)
    monkeypatch.setattr(type(reward._vlm), "spellings", lambda vlm, word: [])
    with pytest.raises(ConfigError, match="yes and no must each be one token"):
        ready(folder)
