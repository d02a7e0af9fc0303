"""The likelihood of an answer: by hand on given log-probs; inside GRPO-CARE's rule."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError, Likelihoods, RewardBatch
from mmrl.core.data import Prompt
from mmrl.core.plugins import build
from mmrl.rewards.text.answer_likelihood import AnswerLikelihood
from mmrl.scoring.standalone import scorer_of
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers

Piece = tuple[str, float]  # the text of a token and its log-prob


def tokens(*rows: Sequence[Piece], weights: str = "averaged") -> RewardBatch:
    """Answers of these tokens; all are answers to one question, whose right answer is red."""
    log_prob = torch.zeros(len(rows), max(map(len, rows)))
    for number, row in enumerate(rows):
        log_prob[number, : len(row)] = torch.tensor([value for _, value in row])
    batch = answers(
        ["".join(text for text, _ in row) for row in rows],
        {"answer": "red"},
        pieces=tuple(tuple(text for text, _ in row) for row in rows),
    )
    return replace(batch, likelihoods={weights: Likelihoods(log_prob)})


def said(answer: float, thought: float = -3.0) -> list[Piece]:
    """A thought and an answer of two tokens, with the log-prob of each of its tokens, and an end token."""
    return [("I think ", thought), ("<answer>", thought), ("re", answer), ("d", answer), ("</answer>", -9), ("", -9)]


def random_batch(given: random.Random) -> RewardBatch:
    firm = [0.0, -0.01, -8.0]
    return tokens(*(said(given.choice(firm) + -given.random() / 9, -given.random()) for _ in range(12)))


EXAMPLE = Example(random_batch=random_batch, best=lambda: tokens(*[said(0.0)] * 4))


def test_only_the_answers_own_tokens_count() -> None:
    batch = tokens(
        [("<answer>", -5), ("r", -1.0), ("ed", -2.0), ("</answer>", -7), ("", -7)],
        [("<answer>r", -1.0), ("ed</", -2.0), ("answer>", -7)],  # a token with a part of the answer counts
        said(-0.01),  # 0.99 is above the ceiling
        [("red", -0.1)],
        [("<answer>", 0), ("red", -0.5)],
        [("<answer>", 0), ("red", -0.5), ("</answer>", 0), ("<answer>red</answer>", 0)],
        [("<answer>", 0), ("</answer>", 0)],
    )
    expected = [math.exp(-1.5), math.exp(-1.5), 0.95, 0, 0, 0, 0]
    assert AnswerLikelihood().score(batch).tolist() == pytest.approx(expected)
    assert AnswerLikelihood(ceiling=0.1).score(batch).tolist() == pytest.approx([0.1, 0.1, 0.1, 0, 0, 0, 0])


def test_the_right_answer_is_judged_by_what_the_policy_said_of_it() -> None:
    reward = AnswerLikelihood(of="right", weights="reference", ceiling=1.0)
    assert reward.needs == {"texts", "target.answer", "right_answer.reference"}
    batch = answers(["a", "b", "c"], {"answer": "red"})
    batch = replace(batch, right_answer={"reference": torch.tensor([-0.5, torch.nan, 0.0])})
    assert reward.score(batch).tolist() == pytest.approx([math.exp(-0.5), 0, 1])


def test_the_weights_are_those_that_the_setting_names() -> None:
    reward = AnswerLikelihood(weights="trained")
    assert reward.needs == {"texts", "pieces", "likelihoods.trained"}
    assert reward.score(tokens(said(-1), weights="trained")).tolist() == pytest.approx([math.exp(-1)])
    with pytest.raises(ConfigError, match="weights"):
        build("rewards", {"name": "answer_likelihood", "weights": "sampled"})
    with pytest.raises(ConfigError, match="ceiling must be"):
        build("rewards", {"name": "answer_likelihood", "ceiling": 0})


def consistency(**likelihood: Any) -> Any:
    inner = {"name": "answer_likelihood"} | likelihood
    return build("rewards", {"name": "answer_consistency", "reward": {"name": "exact_answer"}, "likelihood": inner})


def test_grpo_care_by_the_policys_own_averaged_weights() -> None:
    reward = consistency()
    assert reward.needs == {"texts", "pieces", "target.answer", "likelihoods.averaged"}, "and no language model"
    batch = tokens(said(-0.1), said(-0.9), said(-0.2), [("<answer>", 0.0), ("blue", 0.0), ("</answer>", 0.0)])
    # 0.90, 0.41 and 0.82 have the mean 0.71; the wrong one is no peer
    assert reward.score(batch).tolist() == [1, 0, 1, 0]
    sure = tokens(said(-0.01), said(-0.03), said(-0.04))  # all at the ceiling
    assert reward.score(sure).tolist() == [1, 1, 1]
    assert reward.score(tokens(*[said(-2.0)] * 2, [("red", 0.0)])).tolist() == [1, 1, 0], "no tag: no peer"


def test_a_likelihood_outside_of_0_to_1_or_of_groups_is_refused() -> None:
    held: dict[str, Any] = {"name": "answer_consistency", "reward": {"name": "exact_answer"}}
    with pytest.raises(ConfigError, match="likelihood must be a reward between 0 and 1, got"):
        build("rewards", held | {"likelihood": {"name": "self_certainty"}})
    with pytest.raises(ConfigError, match="likelihood must judge samples, got one that judges groups"):
        build("rewards", held | {"likelihood": {"name": "majority_vote"}})


@in_one_test("answer", [5, [], "", {"a": 1}, None])
def test_a_right_answer_that_is_no_text_is_refused_with_the_data(answer: Any) -> None:
    reward, prompt = AnswerLikelihood(of="right", weights="reference"), Prompt("?", target={"answer": answer})
    with pytest.raises(ValueError, match=r"target\.answer must be a text or a list of texts, got"):
        reward.check(prompt)
    AnswerLikelihood().check(prompt)  # its own answer needs no right one
    reward.check(Prompt("?", target={"answer": ["red", "crimson"]}))


RIGHT = {"name": "answer_likelihood", "of": "right", "weights": "trained"}


@in_one_test(
    "settings",
    [
        {"name": "cached", "reward": {"name": "self_certainty"}},  # equal answers are not equally likely tomorrow
        {"name": "text_norm", "reward": RIGHT},
        {"name": "par", "reward": RIGHT, "references": "answers"},
    ],
)
def test_what_judges_other_samples_than_the_policy_read_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"must judge by outputs and prompts alone, got one that needs"):
        build("rewards", settings)


def test_servers_and_scores_of_files_are_refused_before_they_begin() -> None:
    with pytest.raises(
        ConfigError, match=r"needs self_certainty\.trained, which a score of outputs alone does not read"
    ):
        scorer_of(["self_certainty"])
    with pytest.raises(ConfigError, match="what the policy thinks of its answers is not sent to servers"):
        build("rewards", {"name": "http", "url": "http://x", "reward": "r", "needs": ["texts", "likelihoods.trained"]})


def test_a_tag_that_the_policy_does_not_read_is_refused() -> None:
    held = {"name": "answer_consistency", "reward": {"name": "exact_answer"}, "tag": "final"}
    with pytest.raises(ConfigError, match="the policy finds answers in the tag 'answer' likely, got tag 'final'"):
        build("rewards", held | {"likelihood": {"name": "answer_likelihood"}})
