"""CIDEr-D against pycocoevalcap with the same documents, and numbers by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pycocoevalcap.cider.cider_scorer import CiderScorer

from mmrl.core.contracts import ConfigError, Placement
from mmrl.rewards.base.references import MAX_LETTERS
from mmrl.rewards.text.cider import Cider
from tests.rewards.example import answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown
from tests.rewards.sentences import EXAMPLE as SENTENCES_EXAMPLE
from tests.rewards.sentences import TARGET

CPU = Placement(torch.device("cpu"), torch.float32)
VOCABULARY = ["a", "cat", "dog", "sits", "on", "the", "mat", "red"]
SENTENCES = st.lists(st.sampled_from(VOCABULARY), min_size=2, max_size=9).map(" ".join)
PICTURES = st.lists(st.lists(SENTENCES, min_size=1, max_size=3), min_size=2, max_size=6)


EXAMPLE = replace(SENTENCES_EXAMPLE, settings={"corpus": "captions.jsonl"})  # its tiny twin writes one


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cider") / "corpus.jsonl"


def prepared(path: Path, pictures: list[Any], **settings: Any) -> Cider:
    path.write_text("\n".join(json.dumps({"answer": picture}) for picture in pictures))
    reward = Cider(**({"corpus": str(path), "tag": None} | settings))
    reward.prepare(CPU)
    return reward


def judge(reward: Cider, texts: list[str], answer: Any) -> list[float]:
    found: list[float] = reward.score(answers(texts, {"answer": answer})).tolist()
    return found


@pytest.mark.slow
@given(pictures=PICTURES, drawn=st.lists(SENTENCES, min_size=6, max_size=6))
def test_pycocoevalcap_agrees(path: Path, pictures: list[list[str]], drawn: list[str]) -> None:
    theirs = CiderScorer(n=4, sigma=6.0)
    for picture, answered in zip(pictures, drawn, strict=False):
        theirs += (answered, picture)
    expected = theirs.compute_score()[1].tolist()
    reward = prepared(path, pictures)
    for picture, answered, score in zip(pictures, drawn, expected, strict=False):
        words = {word for text in picture for word in text.split()}
        if all(all(word in " ".join(other).split() for other in pictures) for word in words):
            continue  # maybe nothing of this picture is its own: ours cannot judge then
        assert judge(reward, [answered], picture) == pytest.approx([score], abs=1e-4)


def test_numbers_by_hand(path: Path) -> None:
    reward = prepared(path, ["a cat", "a dog", "the sun", "the sea"])
    low, high = math.log(4 / 2), math.log(4 / 1)  # a; cat, a cat
    cosine = low * low / (math.hypot(low, high) * math.hypot(low, high))  # of a dog with a cat: a
    # 3 and 4 words in a row: neither has any
    assert judge(reward, ["a cat", "a dog", "the sun", ""], "a cat") == pytest.approx([5, 10 * cosine / 4, 0, 0])
    halves = judge(reward, ["a cat"], ["a cat", "the sun"])
    assert halves == pytest.approx([2.5]), "the mean over references"


def test_longer_answers_lose(path: Path) -> None:
    reward = prepared(path, ["a cat sits there", "a dog", "the sun"])
    truth, added, repeated = judge(reward, ["a cat sits there", "a cat sits there now", "cat cat cat cat"], TARGET_CAT)
    assert truth == pytest.approx(10) and added < 10 * math.exp(-1 / 72) and repeated < 2.5
    wide = prepared(path, ["a cat sits there", "a dog", "the sun"], sigma=1000.0)
    assert judge(wide, ["a cat sits there now"], TARGET_CAT)[0] > added


TARGET_CAT = "a cat sits there"


def test_a_score_does_not_depend_on_what_is_scored_beside_it(path: Path) -> None:
    """In pycocoevalcap it does: alone, with one picture, the same answer is worth nothing."""
    reward = prepared(path, ["a cat sits there", "a dog", "the sun"])
    assert judge(reward, [TARGET_CAT], TARGET_CAT) == pytest.approx([10])
    alone = CiderScorer()
    alone += (TARGET_CAT, [TARGET_CAT])
    assert alone.compute_score()[0] == 0


def test_what_every_picture_has_cannot_be_judged(path: Path) -> None:
    reward = prepared(path, ["a cat", "cat a cat"])
    with pytest.raises(ValueError, match=r"every picture of .* has the words of target\.answer"):
        judge(reward, ["cat"], "cat")
    with pytest.raises(ValueError, match="must have words"):
        judge(reward, ["cat"], "?")


def test_a_prompt_is_checked_before_the_corpus_is_read() -> None:
    reward = Cider("nowhere.jsonl")
    reward.check(answers(["a"], TARGET).prompts[0])
    with pytest.raises(ValueError, match=r"target\.answer must be a text"):
        reward.check(answers(["a"], {"answer": 3}).prompts[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"at least two pictures, .* has 0"),
        ('{"answer": "a"}\n\n', r"at least two pictures, .* has 1"),
        ("a\n", r"corpus\.jsonl:1 is not JSON"),
        ('{"answer": "a"}\n{"caption": "a"}', r":2 needs references under 'answer', got caption"),
        ('["a"]', "needs references under 'answer', got"),
        ('{"answer": 3}', "must be a text or a list of texts, got '3'"),
        ('{"answer": []}', "must be a text or a list of texts"),
    ],
    ids=range(7),
)
def test_a_corpus_that_is_none_is_the_users_error(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Cider(str(tmp_path / "corpus.jsonl")).prepare(CPU)


def test_a_corpus_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the corpus of cider"):
        Cider(str(tmp_path / "corpus.jsonl")).prepare(CPU)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read the corpus of cider"):
        Cider(str(tmp_path / "bytes")).prepare(CPU)


def test_the_tiny_twin_is_made_by_its_seed(tmp_path: Path) -> None:
    paths = [Path(Cider("x").tiny(seed, tmp_path / name).corpus) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    texts = [path.read_text() for path in paths]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan], ids=str)
def test_wrong_settings_are_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match="sigma must be above 0 and below inf"):
        Cider("x", sigma=sigma)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Cider:
    reward = Cider("x", tag=None).tiny(0, tmp_path_factory.mktemp("tiny"))
    reward.prepare(CPU)
    return reward


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_any_text_has_a_score(tiny: Cider, texts: list[str]) -> None:
    check_scores(tiny, answers(texts, TARGET))


def test_hostile_texts_have_scores(tiny: Cider) -> None:
    check_scores(tiny, answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_a_score(tiny: Cider, piece: str) -> None:
    check_scores(tiny, answers([*megabytes(piece), piece * (MAX_LETTERS // len(piece))], TARGET))
