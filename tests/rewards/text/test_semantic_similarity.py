"""Similarity of embeddings against forwards of one's own: layout, pooling, BMAS, texts that are too long."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import AutoTokenizer, BertModel

from mmrl.core.contracts import ConfigError, Placement, RewardBatch
from mmrl.rewards.base.networks.text_embedders import Embedder, Pooling, load_embedder, write_tiny_embedder
from mmrl.rewards.text import semantic_similarity
from mmrl.rewards.text.semantic_similarity import SemanticSimilarity
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

CPU = Placement(torch.device("cpu"), torch.float32)
TRUTH = "two men ride over the wide river"
TARGET = {"answer": TRUTH}


def random_batch(given: random.Random) -> RewardBatch:
    """The truth with more and more words of it replaced by others, and nothing."""
    texts = ["<answer></answer>"]
    for row in range(7):
        words = [given.choice(["cat", "sun"]) if given.random() < row / 6 else word for word in TRUTH.split()]
        texts.append(f"<answer>{' '.join(words)}</answer>")
    return answers(texts, TARGET)


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers([f"<think>so</think><answer>{TRUTH}</answer>"] * 4, TARGET)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embedder")
    write_tiny_embedder(path, 0)
    return path


def prepared(folder: Path, **settings: Any) -> SemanticSimilarity:
    reward = SemanticSimilarity(**({"model": str(folder), "tag": None} | settings))
    reward.prepare(CPU)
    return reward


def judge(reward: SemanticSimilarity, texts: list[str], answer: Any) -> list[float]:
    found: list[float] = reward.score(answers(texts, {"answer": answer})).tolist()
    return found


def embeddings_of(embedder: Embedder, texts: set[str]) -> dict[str, Tensor]:
    return {text: one[None] for text, one in embedder.sentences(list(texts)).items()}


def hidden(folder: Path, text: str) -> Tensor:
    """[K, D] of one text alone, without padding."""
    model, tokenizer = BertModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        found: Tensor = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        ("model", lambda states: states.mean(0)),
        ("mean", lambda states: states.mean(0)),
        ("cls", lambda states: states[0]),
        ("last", lambda states: states[-1]),
    ],
    ids=["model", "mean", "cls", "last"],
)
def test_sentences_are_pooled_hidden_states(pooling: Pooling, pool: Callable[[Tensor], Tensor], folder: Path) -> None:
    texts = ["a cat", "two men ride over a wide river", "something else"]
    left, right = [pool(hidden(folder, text)) for text in texts], pool(hidden(folder, TRUTH))
    expected = [max(0.0, float(cosine_similarity(one, right, dim=0))) for one in left]
    found = judge(prepared(folder, pooling=pooling), texts, TRUTH)
    assert found == pytest.approx(expected, abs=1e-5) and max(expected) > 0.1


@pytest.mark.slow
def test_bmas_by_a_loop(folder: Path) -> None:
    table = BertModel.from_pretrained(folder).get_input_embeddings().weight.detach()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def bmas(left: str, right: str) -> float:
        rows, columns = ([table[n] for n in tokenizer(text)["input_ids"]] for text in (left, right))
        best = [max(float(cosine_similarity(a, b, dim=0)) for b in columns) for a in rows]
        back = [max(float(cosine_similarity(a, b, dim=0)) for a in rows) for b in columns]
        return (sum(best) / len(best) + sum(back) / len(back)) / 2

    reward = prepared(folder, kind="tokens")
    texts = ["abc", "cab", "abcabc", "abd", "xyz"]
    assert judge(reward, texts, "abc") == pytest.approx([bmas(text, "abc") for text in texts], abs=1e-5)
    assert judge(reward, texts[:3], "abc") == pytest.approx([1, 1, 1], abs=1e-5), "it knows no order"
    assert max(judge(prepared(folder), texts[1:3], "abc")) < 0.99, "sentences do"


def test_a_reference_is_embedded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward, seen = prepared(folder), list[str]()
    embedder = load_embedder(str(folder), "mean", CPU.device)
    monkeypatch.setattr(semantic_similarity, "KEPT", 2)

    def embed(texts: set[str]) -> dict[str, Tensor]:
        seen.extend(sorted(texts))
        return embeddings_of(embedder, texts)

    monkeypatch.setattr(reward, "_embed", embed)
    first = judge(reward, ["a cat", "a dog"], ["the sea", "a hill"])
    assert seen == ["a cat", "a dog", "a hill", "the sea"]
    seen.clear()
    assert judge(reward, ["a cat", "the sea"], ["the sea", "a hill"]) == pytest.approx([first[0], 1.0])
    assert seen == ["a cat"], "of an answer that is a reference, that embedding serves"
    seen.clear()
    judge(reward, ["a cat"], "a lake")
    assert seen == ["a cat", "a lake"]
    seen.clear()
    judge(reward, ["a cat"], ["the sea", "a hill", "a lake"])
    assert len(seen) == 2 and "a lake" not in seen, "two are kept, the newest"


def test_of_several_references_the_best_counts(folder: Path) -> None:
    reward = prepared(folder)
    one, two = judge(reward, ["a cat"], "a dog"), judge(reward, ["a cat"], "the sea")
    assert judge(reward, ["a cat"], ["a dog", "the sea"]) == pytest.approx([max(one + two)], abs=1e-6)


def test_a_prefix_stands_before_both_texts(folder: Path) -> None:
    plain, led = prepared(folder), prepared(folder, prefix="query: ")
    assert judge(led, ["a cat"], "a dog") == pytest.approx(judge(plain, ["query: a cat"], "query: a dog"), abs=1e-5)
    assert judge(led, ["", " "], "a dog") == [0, 0]


def test_a_text_longer_than_the_model_reads_is_not_cut(folder: Path) -> None:
    reward, truth = prepared(folder), "a" * 256
    found = judge(reward, [truth, truth + " or not", truth[:-1]], truth)
    assert found[0] == pytest.approx(1) and found[1] == 0 and found[2] > 0.5
    with pytest.raises(ValueError, match="has more than the 256 tokens that"):
        judge(reward, ["a"], truth + "a")
    with pytest.raises(ValueError, match="has more than the 256 tokens that"):
        reward.check(answers(["a"], {"answer": truth + "a"}).prompts[0])
    SemanticSimilarity().check(answers(["a"], {"answer": truth + "a"}).prompts[0])  # nobody knows yet


def test_marks_of_the_models_own_are_text_in_an_answer(folder: Path) -> None:
    reward = prepared(folder)
    assert judge(reward, ["<eos>" * 51, "<eos>" * 52], "sea")[1] == 0, "5 tokens each, of 256"
    assert judge(reward, ["<eos>" * 51], "sea")[0] > 0


def test_the_answer_stands_in_its_one_tag(folder: Path) -> None:
    texts = ["<answer>cat</answer>", "cat", "<answer>cat</answer><answer>cat</answer>", "<answer></answer>"]
    assert judge(prepared(folder, tag="answer"), texts, "cat") == pytest.approx([1, 0, 0, 0])


def test_scores_are_in_full_precision_under_autocast(folder: Path) -> None:
    reward = prepared(folder)
    plain = judge(reward, ["a cat", "a dog"], "the sea")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert judge(reward, ["a cat", "a dog"], "the sea") == plain


def test_the_tiny_twin_is_made_by_its_seed(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    for name, seed in (("first", 0), ("same", 0), ("other", 1)):
        SemanticSimilarity().tiny(seed, tmp_path / name)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "same", "other")]
    assert files[0] == files[1] and files[0] != files[2]
    assert torch.equal(torch.random.get_rng_state(), state), "nobody else's randomness moved"


def changed(folder: Path, place: Path, name: str, value: Any) -> Path:
    """The same model with one JSON file changed (None: left out)."""
    for file in folder.rglob("*.*"):
        (place / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
        (place / file.relative_to(folder)).write_bytes(file.read_bytes())
    (place / name).unlink()
    if value is not None:
        (place / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return place


DENSE = [{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "2_Dense", "type": "a.b.Dense"}]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("modules.json", None, "does not say how its tokens are pooled: set pooling"),
        ("modules.json", DENSE, "has a module Dense; allowed are Transformer, Pooling and Normalize"),
        ("modules.json", "{", "cannot read modules.json of the text encoder"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pools by pooling_mode_max_tokens; allowed is"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "pools by nothing"),
        ("config.json", None, "cannot load the text encoder"),
    ],
    ids=range(6),
)
def test_a_model_that_does_not_fit_is_the_users_error(
    name: str, value: Any, message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(changed(folder, tmp_path, name, value))


@pytest.mark.slow
def test_a_plain_model_needs_a_pooling_only_where_it_is_pooled(folder: Path, tmp_path: Path) -> None:
    plain = changed(folder, tmp_path, "modules.json", None)
    assert judge(prepared(plain, pooling="mean"), ["a cat"], "a dog") == judge(prepared(folder), ["a cat"], "a dog")
    assert judge(prepared(plain, kind="tokens"), ["a cat"], "a cat") == pytest.approx([1])


def test_a_model_in_a_folder_of_its_own_is_found(folder: Path, tmp_path: Path) -> None:
    inner = tmp_path / "0_Transformer"
    inner.mkdir()
    for file in folder.glob("*.*"):
        (inner / file.name).write_bytes(file.read_bytes())
    kind = "sentence_transformers.models"
    modules = [
        {"path": "0_Transformer", "type": f"{kind}.Transformer"},
        {"path": "1_Pooling", "type": f"{kind}.Pooling"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps([*modules, {"path": "2_Normalize", "type": f"{kind}.Normalize"}]))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    found = load_embedder(str(tmp_path), "model", CPU.device)
    assert found.pooling == "cls" and found.context == 256


def test_a_model_that_is_not_there_is_the_users_error() -> None:
    with pytest.raises(ConfigError, match="of the text encoder '/no/such/folder'"):
        SemanticSimilarity(model="/no/such/folder").prepare(CPU)


@pytest.mark.parametrize("wrong", [{"kind": "bmas"}, {"pooling": "max"}], ids=str)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be one of"):
        SemanticSimilarity(**wrong)


def test_each_different_text_is_embedded_once(folder: Path) -> None:
    reward = prepared(folder)
    assert reward._embedder is not None
    asked: list[list[str]] = []
    inner = reward._embedder

    class Counted(type(inner)):  # type: ignore[misc]  # its class is known here
        def _pooled(self, texts: list[str]) -> Tensor:
            asked.append(texts)
            return inner._pooled(texts)

    reward._embedder = Counted(inner.tokenizer, inner.model, inner.pooling, inner.context)
    judge(reward, ["a", "b", "a", "c"], "b")
    assert asked == [["a", "b", "c"]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sentence", "tokens"])
def test_hostile_texts_have_scores(kind: Any, folder: Path) -> None:
    for tag in ("answer", None):
        check_scores(prepared(folder, kind=kind, tag=tag), answers(HOSTILE, TARGET))


@pytest.mark.slow
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_any_text_has_a_score(texts: list[str], embedded: SemanticSimilarity) -> None:
    check_scores(embedded, answers(texts, TARGET))


@pytest.fixture(scope="module")
def embedded(folder: Path) -> SemanticSimilarity:
    return prepared(folder)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_a_score(piece: str, embedded: SemanticSimilarity) -> None:
    check_scores(embedded, answers(megabytes(piece), TARGET))
