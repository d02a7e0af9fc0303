"""Diversity by hand, by sacrebleu, and by embeddings' cosines; what is not compared."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from mmrl.core.contracts import Placement, RewardBatch
from mmrl.rewards.base.networks.text_embedders import load_embedder
from mmrl.rewards.text.response_diversity import ResponseDiversity
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

CPU = Placement(torch.device("cpu"), torch.float32)
SENTENCES = st.lists(st.sampled_from(["a", "cat", "dog", "sits", "on", "mat"]), min_size=1, max_size=8).map(" ".join)


def random_batch(given: random.Random) -> RewardBatch:
    """A group of equal answers, one of answers of more and more words, one that the tiny twin finds most different."""
    mixed = [" ".join(given.choices(["cat", "dog", "sun", "sea", "hat"], k=1 + row)) for row in range(4)]
    return answers(["the red cat"] * 4 + mixed + given.sample(["a", "m", "r", "x"], 4))


# There is no truth: what differs most depends on the model. The other kinds, which load none, are tested here alone.
EXAMPLE = Example(random_batch=random_batch, settings={"kind": "embedding"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embedder")
    ResponseDiversity(kind="embedding").tiny(0, path)
    return path


def judge(texts: list[str], groups: list[int] | None = None, **settings: Any) -> list[float]:
    batch = replace(answers(texts), group=torch.tensor(groups or [0] * len(texts)))
    reward = ResponseDiversity(**settings)
    reward.prepare(CPU)
    found: list[float] = reward.score(batch).tolist()
    return found


def test_distinct_runs_by_hand() -> None:
    # a cat, cat sits | a cat, cat runs | a dog: of each the share that only this one has
    assert judge(["a cat sits", "A cat runs!", "a dog"]) == [0.5, 0.5, 1]
    assert judge(["a cat sits", "a cat runs", "a dog"], n=1) == pytest.approx([1 / 3, 1 / 3, 1 / 2])
    assert judge(["a cat", "a cat", "b"]) == [0, 0, 1]
    assert judge(["a b a b a b", "c"]) == pytest.approx([2 / 5, 1]), "repeating oneself is no variety"
    assert judge(["cat", "cat sits"]) == [1, 1]  # fewer than two words are one run


@pytest.mark.slow
@given(st.lists(SENTENCES, min_size=2, max_size=5))
def test_distinct_shares_sum_to_what_distinct_n_counts_once(texts: list[str]) -> None:
    """Runs that only one answer has, counted over the whole group, in sets."""
    runs = [
        [tuple(t.split()[i : i + min(2, len(t.split()))]) for i in range(max(1, len(t.split()) - 1))] for t in texts
    ]
    own = [set(one) - {run for other in runs[:row] + runs[row + 1 :] for run in other} for row, one in enumerate(runs)]
    assert judge(texts) == pytest.approx([len(new) / len(one) for new, one in zip(own, runs, strict=True)])


@pytest.mark.slow
@given(st.lists(SENTENCES, min_size=2, max_size=5))
def test_self_bleu_is_sacrebleus(texts: list[str]) -> None:
    metric = BLEU(effective_order=True, max_ngram_order=3)
    expected = [
        1 - metric.sentence_score(text, texts[:row] + texts[row + 1 :]).score / 100 for row, text in enumerate(texts)
    ]
    assert judge(texts, kind="self_bleu", n=3) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_embeddings_are_compared_in_pairs(folder: Path) -> None:
    texts = ["a cat", "the dog sits there", "a cat", "sea"]
    known = load_embedder(str(folder), "mean", CPU.device).sentences(texts)
    expected = []
    for row, text in enumerate(texts):
        others = texts[:row] + texts[row + 1 :]
        expected.append(1 - sum(max(0.0, float(known[text] @ known[other])) for other in others) / 3)
    found = judge(texts, kind="embedding", model=str(folder))
    assert found == pytest.approx(expected, abs=1e-5) and found[0] == pytest.approx(found[2])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["distinct", "self_bleu", "embedding"])
def test_edges(kind: Any, folder: Path) -> None:
    settings = {"kind": kind, "model": str(folder)}
    assert judge(["a cat"], **settings) == [0], "alone"
    assert judge(["", " ", ""], **settings) == [0, 0, 0]
    assert judge(["a cat", "", "\n"], **settings) == [0, 0, 0], "nothing is not compared with"
    assert judge(["a cat sits", "a cat sits"], **settings) == pytest.approx([0, 0], abs=1e-6)
    apart = judge(["a cat", "x", "a cat", "y"], [0, 1, 0, 1], **settings)
    assert apart[:3:2] == pytest.approx([0, 0], abs=1e-6) and min(apart[1::2]) > 0, "groups are compared apart"
    tagged = judge(["<answer>a cat</answer> x", "<answer>a cat</answer> y", "a dog"], tag="answer", **settings)
    assert tagged == pytest.approx([0, 0, 0], abs=1e-6)


def test_controls_are_neither_compared_nor_scored() -> None:
    batch = replace(answers(["a cat", "a dog", "a cat"]), is_control=torch.tensor([False, False, True]))
    assert ResponseDiversity().score(batch).tolist() == [1, 1, 0]


def test_only_embeddings_need_a_model(tmp_path: Path) -> None:
    assert ResponseDiversity().needs == {"texts"} and ResponseDiversity(kind="embedding").needs == {"texts", "model"}
    plain = ResponseDiversity()
    assert plain.tiny(0, tmp_path / "none") is plain and not (tmp_path / "none").exists()


@pytest.mark.parametrize("wrong", [{"kind": "bleu"}, {"pooling": "max"}, {"n": 0}, {"n": 10}, {"tag": ""}], ids=str)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be (one of|at least 1 and at most 9|different names)"):
        ResponseDiversity(**wrong)


@pytest.mark.slow
@given(st.lists(TEXTS, min_size=2, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    for reward in (ResponseDiversity(), ResponseDiversity(kind="self_bleu", tag="answer")):
        check_scores(reward, answers(texts))


@pytest.mark.slow
def test_hostile_texts_have_scores(folder: Path) -> None:
    embedding = ResponseDiversity(kind="embedding", model=str(folder))
    embedding.prepare(CPU)
    for reward in (ResponseDiversity(), ResponseDiversity(kind="self_bleu", tag="answer"), embedding):
        check_scores(reward, answers(HOSTILE))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_a_score(piece: str) -> None:
    for kind in ("distinct", "self_bleu"):
        check_scores(ResponseDiversity(kind=kind), answers([*megabytes(piece), piece * 200]))
