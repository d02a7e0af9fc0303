"""Votes by meaning against clusters by hand, and the model against forwards of one's own."""

import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel

from mmrl.core.contracts import ConfigError, Placement, RewardBatch
from mmrl.core.data import Prompt
from mmrl.rewards.base.networks.entailment import load_entailment_model, write_tiny_entailment_model
from mmrl.rewards.text.majority_vote import MajorityVote
from mmrl.rewards.text.semantic_vote import SemanticVote
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, TEXTS, check_scores

CPU = Placement(torch.device("cpu"), torch.float32)


def random_batch(source: random.Random) -> RewardBatch:
    texts = ["<answer>red</answer>", "<answer>blue</answer>", "<answer>3</answer>", "<answer>3.0</answer>", "red"]
    return answers(source.choices(texts, k=12))


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers(["<answer>red</answer>", "<answer> RED</answer>"] * 4)
)


class Synonyms:
    """Says that a text follows from another where both are in one of some sets; remembers what it was asked."""

    context = 100

    def __init__(self, *sets: str) -> None:
        self.sets, self.asked = [one.split() for one in sets], list[tuple[str, str]]()

    def fits(self, first: str, second: str) -> bool:
        return len(first) + len(second) <= self.context

    def entails(self, pairs: list[tuple[str, str]]) -> list[bool]:
        self.asked += pairs
        return [any(one in words and other in words for words in self.sets) for one, other in pairs]


def judge(model: Any, texts: list[str], groups: list[int] | None = None, **settings: Any) -> list[float]:
    reward = SemanticVote(**({"tag": None, "question": False} | settings))
    reward._entailment = model
    batch = replace(answers(texts), group=torch.tensor(groups or [0] * len(texts)))
    found: list[float] = reward.score(batch).tolist()
    return found


def test_answers_that_mean_the_same_are_one_cluster() -> None:
    model = Synonyms("car auto", "auto automobile")
    texts = ["car", "auto", "automobile", "boat", ""]
    assert judge(model, texts) == pytest.approx([0.75, 0.75, 0.75, 0.25, 0])  # by a chain of two pairs
    for order in permutations(range(5)):
        found = judge(model, [texts[n] for n in order])
        assert found == pytest.approx([[0.75, 0.75, 0.75, 0.25, 0][n] for n in order])
    assert judge(model, ["car", "auto"], [0, 1]) == [1, 1], "groups vote apart"


def test_one_direction_is_not_enough() -> None:
    class OneWay(Synonyms):
        def entails(self, pairs: list[tuple[str, str]]) -> list[bool]:
            return [pair == ("a dog", "an animal") for pair in pairs]

    assert judge(OneWay(), ["a dog", "an animal"]) == [0.5, 0.5]


def test_equal_answers_ask_nothing_and_each_pair_is_asked_once() -> None:
    model = Synonyms()
    assert judge(model, ["3", "3.0", " 3", "Red", "red"]) == pytest.approx([0.6, 0.6, 0.6, 0.4, 0.4])
    assert model.asked == [("3", "Red"), ("Red", "3")]
    model = Synonyms()
    assert judge(model, ["a", "A", "a "]) == [1, 1, 1] and model.asked == []


def test_both_texts_of_a_pair_begin_with_the_question() -> None:
    model = Synonyms()
    judge(model, ["red", "blue"], question=True)
    assert model.asked == [("What is it? blue", "What is it? red"), ("What is it? red", "What is it? blue")]


def test_a_group_without_a_large_cluster_scores_nothing() -> None:
    texts = ["a", "a", "b", "c", "d"]
    assert judge(Synonyms(), texts, min_majority=0.4) == pytest.approx([0.4, 0.4, 0.2, 0.2, 0.2])
    assert judge(Synonyms(), texts, min_majority=0.5) == [0] * 5
    assert judge(Synonyms(), ["", ""], min_majority=0.5) == [0, 0]


def test_what_the_model_cannot_read_does_not_vote() -> None:
    assert judge(Synonyms(), ["a" * 51, "b", "b", "c"]) == pytest.approx([0, 2 / 3, 2 / 3, 1 / 3])
    batch = replace(answers(["a", "b", "b"]), is_control=torch.tensor([False, True, True]))
    reward = SemanticVote(tag=None)
    reward._entailment = Synonyms()  # type: ignore[assignment]
    assert reward.score(batch).tolist() == [1, 0, 0]


@pytest.mark.slow
@given(st.lists(st.sampled_from(["a", "A", "b", "3", "3.0", ""]), min_size=1, max_size=9))
def test_without_synonyms_it_is_the_soft_majority_vote(texts: list[str]) -> None:
    expected = MajorityVote(tag=None, soft=True).score(answers(texts))
    batch = answers(texts)
    reward = SemanticVote(tag=None)
    reward._entailment = Synonyms()  # type: ignore[assignment]
    assert reward.score(batch).tolist() == pytest.approx(expected.tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("entailment")
    write_tiny_entailment_model(path, 0)
    return path


def prepared(folder: Path, **settings: Any) -> SemanticVote:
    reward = SemanticVote(**({"model": str(folder), "tag": None} | settings))
    reward.prepare(CPU)
    return reward


@pytest.mark.slow
def test_the_likeliest_class_of_each_pair_alone_decides(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["a cat", "the blue dog sits on a chair", "3", "two men ride over a wide river", "no", "<sep>"]
    pairs = list(permutations(texts, 2))
    expected = []
    for first, second in pairs:
        ids = [
            tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            for text in (first, second)
        ]
        cls, sep = tokenizer.convert_tokens_to_ids(["<cls>", "<sep>"])
        with torch.no_grad():
            logits = model(torch.tensor([[cls, *ids[0], sep, *ids[1], sep]])).logits[0]
        expected.append(model.config.id2label[int(logits.argmax())] == "ENTAILMENT")
    loaded = load_entailment_model(str(folder), CPU.device)
    assert loaded.entails(pairs) == expected and len(set(expected)) == 2
    assert loaded.fits("<sep>" * 50, "<sep>" * 50) and not loaded.fits("<sep>" * 51, "<sep>" * 51), "5 tokens each"


def test_a_question_that_leaves_no_room_cannot_be_judged(folder: Path) -> None:
    def of_length(length: int) -> RewardBatch:
        batch = answers(["<answer>red</answer>"] * 4)
        return replace(batch, prompts=(Prompt("a" * length),) * 4)

    with pytest.raises(ValueError, match="are more than the 512 tokens that"):
        prepared(folder).score(of_length(300))
    assert prepared(folder, question=False).score(of_length(300)).tolist() == [1] * 4
    assert prepared(folder).score(of_length(200)).tolist() == [1] * 4


def test_the_tiny_twin_is_made_by_its_seed(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    for name, seed in (("first", 0), ("same", 0), ("other", 1)):
        SemanticVote().tiny(seed, tmp_path / name)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "same", "other")]
    assert files[0] == files[1] and files[0] != files[2]
    assert torch.equal(torch.random.get_rng_state(), state), "nobody else's randomness moved"


def test_a_model_that_does_not_fit_is_the_users_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot load the entailment model '/no/such/folder'"):
        SemanticVote(model="/no/such/folder").prepare(CPU)
    BertModel(BertConfig(vocab_size=300, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                         intermediate_size=8)).save_pretrained(tmp_path)  # fmt: skip
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"must have a class named entailment.*its classes are label_0, label_1"):
        SemanticVote(model=str(tmp_path)).prepare(CPU)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")], ids=str)
def test_wrong_settings_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="min_majority must be at least 0 and at most 1, got"):
        SemanticVote(min_majority=share)


@pytest.mark.slow
def test_hostile_texts_have_scores(folder: Path) -> None:
    for reward in (prepared(folder), prepared(folder, boxed=True), prepared(folder, tag="answer")):
        check_scores(reward, answers(HOSTILE))


@pytest.mark.slow
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_any_text_has_a_score(texts: list[str], loaded: SemanticVote) -> None:
    check_scores(loaded, answers(texts))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> SemanticVote:
    return prepared(folder)
