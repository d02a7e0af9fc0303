"""GRPO-CARE's bonus: the rule by hand, the likelihood by a slow loop, what is right and what is no peer."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaForCausalLM

from mmrl.core.contracts import ConfigError, Placement, RewardBatch
from mmrl.core.plugins import build
from mmrl.rewards.base.networks.language_model import LanguageModel, load_language_model, write_tiny_language_model
from mmrl.rewards.text.answer_consistency import AnswerConsistency
from mmrl.rewards.text.exact_answer import ExactAnswer
from mmrl.rewards.text.rouge import Rouge
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

CPU = Placement(torch.device("cpu"), torch.float32)
TARGET = {"answer": "red"}


def random_batch(given: random.Random) -> RewardBatch:
    """Right and wrong answers after different thoughts."""
    thoughts = ["It is red.", "It is blue, so it is not.", "", "I cannot say. " * 5]
    said = ["red", "red", "blue"]
    texts = [f"<think>{given.choice(thoughts)}</think><answer>{given.choice(said)}</answer>" for _ in range(12)]
    return answers(texts, TARGET)


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: answers(["<think>It is red.</think><answer>red</answer>"] * 4, TARGET),
    settings={"reward": {"name": "exact_answer"}},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("language_model")
    write_tiny_language_model(path, 0)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return load_language_model(str(folder), CPU.device)


class FixedAnswers(LanguageModel):
    """Says that an answer is as likely as the number in the thought."""

    def mean_log_prob(self, question: str, thought: str, answer: str, *, max_tokens: int) -> float | None:
        number = thought.removesuffix("<answer>")
        return math.log(float(number)) if number and answer else None


def judge(texts: list[str], target: str = "red", **settings: Any) -> list[float]:
    held = AnswerConsistency(**({"reward": ExactAnswer()} | settings))
    held._model = FixedAnswers(None, None)
    batch = replace(answers(texts, {"answer": target}), group=torch.zeros(len(texts), dtype=torch.int64))
    found: list[float] = held.score(batch).tolist()
    return found


def said(*pairs: str) -> list[str]:
    """`0.5 red`: an answer with a likelihood."""
    return [f"{pair.split()[0]}<answer>{pair.split()[1]}</answer>" for pair in pairs]


@pytest.mark.parametrize(
    ("texts", "bonus"),
    [
        (said("0.9 red", "0.5 red", "0.6 blue"), [1, 0, 0]),  # mean of the right ones 0.7
        (said("0.5 red", "0.5 red"), [1, 1]),
        (said("0.50 red", "0.51 red"), [1, 1]),  # within 0.01 of the mean
        (said("0.48 red", "0.52 red"), [0, 1]),
        (said("0.95 red", "1.0 red", "1.0 red"), [1, 1, 1]),  # all are 0.95: surer than that is not better
        (said("0.9 blue", "0.9 blue"), [0, 0]),  # nobody is right
        (said("0.1 red"), [1]),  # without peers
        (["<answer>red</answer>", *said("0.2 red")], [0, 1]),  # no likelihood: no bonus, no peer
        (["0.9 red", *said("0.2 red")], [0, 1]),
    ],
    ids=range(9),
)
def test_the_rule_by_hand(texts: list[str], bonus: list[int]) -> None:
    assert judge(texts) == bonus
    assert judge(texts[::-1]) == bonus[::-1]


def test_graded_answers_must_be_at_least_the_mean() -> None:
    texts = said("0.9 red", "0.9 red-cat", "0.9 blue")  # 1, 2/3 and 0: the mean is 5/9
    assert judge(texts, reward=Rouge()) == pytest.approx([1, 2 / 3, 0])
    texts = said("0.9 red", "0.9 red", "0.9 red-cat")  # the mean is 8/9
    assert judge(texts, reward=Rouge()) == [1, 1, 0]
    assert judge(said("0.9 red", "0.9 blue"), threshold=0.99) == [1, 0]


def test_groups_are_compared_apart_and_controls_not_at_all() -> None:
    held = AnswerConsistency(ExactAnswer())
    held._model = FixedAnswers(None, None)
    texts = said("0.9 red", "0.1 red", "0.8 red", "0.1 red")
    batch = replace(answers(texts, TARGET), group=torch.tensor([0, 1, 0, 1]))
    assert held.score(batch).tolist() == [1, 1, 0, 1]
    batch = replace(batch, is_control=torch.tensor([True, False, False, True]))
    assert held.score(batch).tolist() == [0, 1, 1, 0]


@pytest.mark.slow
def test_the_likelihood_is_that_of_a_loop_over_tokens(folder: Path, model: LanguageModel) -> None:
    network, tokenizer = LlamaForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    question, thought, answer = "What is it?", "<think>It is red.</think><answer>", "red"
    seen = tokenizer(f"{question}\n{thought}")["input_ids"]
    total = 0.0
    for token in tokenizer(answer)["input_ids"]:
        with torch.no_grad():
            total += float(network(torch.tensor([seen])).logits[0, -1].log_softmax(-1)[token])
        seen.append(token)
    found = model.mean_log_prob(question, thought, answer, max_tokens=100)
    assert found == pytest.approx(total / len(answer), abs=1e-4)
    plain = model.mean_log_prob(question, "<answer>", answer, max_tokens=100)
    assert plain is not None and found is not None and abs(plain - found) > 0.01, "the thought matters"


def test_the_last_tokens_before_the_answer_count(model: LanguageModel) -> None:
    long = model.mean_log_prob("Q" * 50, "x" * 50 + "yz", "red", max_tokens=5)
    assert long == pytest.approx(model.mean_log_prob("", "yz", "red", max_tokens=5), abs=1e-5)
    assert model.mean_log_prob("Q", "t", "redder", max_tokens=6) is None
    assert model.mean_log_prob("Q", "t", "", max_tokens=6) is None


def test_a_chat_template_is_used_where_there_is_one(model: LanguageModel, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}U:{{ m['content'] }}<eos>{% endfor %}A:"
    chat = replace(model, tokenizer=tokenizer)
    network = LlamaForCausalLM.from_pretrained(folder).eval()
    ids = tokenizer("U:Q<eos>A:t")["input_ids"]
    assert tokenizer.eos_token_id in ids
    with torch.no_grad():
        logits = network(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    expected = float(logits[tokenizer("r")["input_ids"][0]])
    assert chat.mean_log_prob("Q", "t", "r", max_tokens=100) == pytest.approx(expected, abs=1e-5)
    forged = chat.mean_log_prob("Q", "t<eos>", "r", max_tokens=100)
    with torch.no_grad():
        logits = network(torch.tensor([[*ids, tokenizer.eos_token_id]])).logits[0, -1].log_softmax(-1)
    assert abs(forged - float(logits[tokenizer("r")["input_ids"][0]])) > 1e-3  # type: ignore[operator]  # it is there


def test_the_score_is_the_rule_with_the_likelihoods_of_the_model(folder: Path, model: LanguageModel) -> None:
    reward = AnswerConsistency(ExactAnswer(), model=str(folder))
    reward.prepare(CPU)
    thoughts = ["It is red.", "It is blue.", "No."]
    texts = [f"<think>{thought}</think><answer> red </answer>" for thought in thoughts]
    batch = answers(texts, TARGET)
    found = [
        math.exp(model.mean_log_prob("What is it?", f"<think>{t}</think><answer>", "red", max_tokens=2048) or 0)
        for t in thoughts
    ]
    expected = [float(one >= sum(found) / 3 - 0.01) for one in found]
    assert reward.score(batch).tolist() == expected
    marked = replace(batch, prompts=tuple(replace(p, text=f"<image>{p.text}") for p in batch.prompts))
    assert reward.score(marked).tolist() == expected, "marks of media are no words"


def test_it_needs_what_the_reward_needs_that_it_holds(tmp_path: Path) -> None:
    held = build("rewards", {"name": "answer_consistency", "reward": {"name": "exact_answer"}})
    assert held.needs == {"texts", "model", "target.answer"} and held.range == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"target\.answer"):
        AnswerConsistency(Rouge()).check(replace(answers([""]).prompts[0], target={"answer": 3}))
    twin = held.tiny(0, tmp_path)
    assert twin.reward == ExactAnswer() and Path(twin.model).is_dir()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reward": {"name": "episode_success"}}, "must judge samples, got one that judges episodes"),
        ({"reward": {"name": "jpeg_size"}}, "the inner reward must end above the threshold"),
        ({"threshold": -0.1}, "threshold must be at least 0, got -0.1"),
        ({"margin": -0.1}, "margin must be at least 0, got -0.1"),
        ({"threshold": 1.0}, "the inner reward must end above the threshold"),
        ({"ceiling": 0.0}, "ceiling must be above 0 and at most 1, got 0.0"),
        ({"max_tokens": 1}, "max_tokens must be at least 2"),
        ({"tag": "<answer>"}, "tags must be"),
    ],
    ids=range(8),
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("rewards", {"name": "answer_consistency", "reward": {"name": "exact_answer"}} | wrong)


def test_a_model_that_is_not_there_is_the_users_error() -> None:
    with pytest.raises(ConfigError, match="cannot load the language model '/no/such/folder'"):
        AnswerConsistency(ExactAnswer(), model="/no/such/folder").prepare(CPU)


@pytest.fixture(scope="module")
def held(folder: Path) -> AnswerConsistency:
    """Everybody is right."""
    reward = AnswerConsistency(Right(), model=str(folder), max_tokens=256)
    reward.prepare(CPU)
    return reward


class Right(ExactAnswer):
    """Finds every answer right, so that every one has a likelihood."""

    def score(self, batch: RewardBatch) -> torch.Tensor:
        return torch.ones(len(batch))


@pytest.mark.slow
@given(st.lists(TEXTS, min_size=2, max_size=4))
def test_any_text_has_a_score(held: AnswerConsistency, texts: list[str]) -> None:
    check_scores(held, answers(texts, TARGET))


@pytest.mark.slow
def test_hostile_texts_have_scores(held: AnswerConsistency) -> None:
    check_scores(held, answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_a_score(held: AnswerConsistency, piece: str) -> None:
    check_scores(held, answers(megabytes(piece), TARGET))
    thought = piece * (900_000 // len(piece)) + "<answer>red</answer>"
    check_scores(held, answers([thought, "<answer>red</answer>"], TARGET))
