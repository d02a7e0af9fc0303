"""Similarity of embeddings against forwards of one's own: layout, pooling, BMAS, texts that are too long."""

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from transformers import AutoModel, AutoTokenizer, BertModel

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
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
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
def test_a_language_model_reads_texts_without_its_chat_template() -> None:
    folder = Path(__file__).parents[3] / "mmrl" / "labs" / "tasks" / "checkpoint"
    found = load_embedder(str(folder), "last", CPU.device).sentences(["a red cat", "the blue dog sits"])
    for text, embedding in found.items():
        torch.testing.assert_close(embedding, normalize(hidden(folder, text)[-1], dim=0), atol=1e-5, rtol=0)


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


@pytest.mark.slow
def test_a_reference_is_embedded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward, seen = prepared(folder), list[str]()
    embedder = load_embedder(str(folder), "mean", CPU.device)
    monkeypatch.setattr(semantic_similarity, "KEPT", 2)

    def embed(texts: set[str]) -> dict[str, Tensor]:
        seen.extend(sorted(texts))
        return embeddings_of(embedder, texts)

    monkeypatch.setattr(reward, "_embed", embed)
    first = judge(reward, ["a cat", "a dog"], ["the sea", "a hill"])
    assert seen == ["a hill", "the sea", "a cat", "a dog"]
    seen.clear()
    assert judge(reward, ["a cat", "the sea"], ["the sea", "a hill"]) == pytest.approx([first[0], 1.0])
    assert seen == ["a cat"], "of an answer that is a reference, that embedding serves"
    seen.clear()
    judge(reward, ["a cat"], "a lake")
    assert seen == ["a lake", "a cat"]
    seen.clear()
    judge(reward, ["a cat"], ["the sea", "a hill", "a lake"])
    assert len(seen) == 2 and "a lake" not in seen, "two are kept, the newest"


@pytest.mark.slow
def test_of_several_references_the_best_counts(folder: Path) -> None:
    reward = prepared(folder)
    one, two = judge(reward, ["a cat"], "a dog"), judge(reward, ["a cat"], "the sea")
    assert judge(reward, ["a cat"], ["a dog", "the sea"]) == pytest.approx([max(one + two)], abs=1e-6)


@pytest.mark.slow
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


@pytest.mark.slow
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
    shutil.copytree(folder, place, dirs_exist_ok=True)
    (place / name).unlink(missing_ok=True)
    if value is not None:
        (place / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return place


def modules(*kinds: str, first: str = "") -> list[dict[str, Any]]:
    """What `modules.json` holds of these modules; the first one's files lie in the folder `first`."""
    return [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}" if number else first, "type": kind}
        for number, kind in enumerate(f"sentence_transformers.models.{kind}" for kind in kinds)
    ]


FOREIGN = [{"idx": 0, "name": "0", "path": "", "type": "of_its_own.Encoder"}]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("modules.json", "{", "cannot load the text encoder"),
        ("modules.json", FOREIGN, "which is not part of Sentence Transformers"),
        ("modules.json", modules("Normalize"), "begins with Normalize; allowed is a Transformer of texts"),
        ("config.json", None, "cannot load the text encoder"),
    ],
    ids=["damaged", "own_code", "no_transformer", "not_whole"],
)
def test_a_model_that_does_not_fit_is_the_users_error(
    name: str, value: Any, message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(changed(folder, tmp_path, name, value))


def test_without_the_package_an_error_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ConfigError, match=r"package sentence-transformers: `pip install 'mmrl\[embeddings\]'`"):
        prepared(folder)


@pytest.mark.slow
def test_a_folder_of_sentence_transformers_is_read_as_it_says(folder: Path, tmp_path: Path) -> None:
    """Its layout since version 2: the encoder in a folder of its own, a flag for each pooling, a limit, a prompt."""
    changed(folder, tmp_path / "0_Transformer", "README.md", None)
    kinds = modules("Transformer", "Pooling", "Normalize", first="0_Transformer")
    kinds[1]["path"] = "1_Pooling"
    (tmp_path / "1_Pooling").mkdir()
    for name, value in {
        "modules.json": kinds,
        "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_cls_token": True},
        "0_Transformer/sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
    }.items():
        (tmp_path / name).write_text(json.dumps(value))
    found = load_embedder(str(tmp_path), "model", CPU.device)
    assert found.context == 20 and found.fits("a" * 20) and not found.fits("a" * 21)
    expected = normalize(hidden(folder, "a cat")[0], dim=0)
    torch.testing.assert_close(found.sentences(["a cat"])["a cat"], expected, atol=1e-5, rtol=0)


def test_a_model_that_is_not_there_is_the_users_error() -> None:
    with pytest.raises(ConfigError, match="cannot load the text encoder '/no/such/folder'"):
        SemanticSimilarity(model="/no/such/folder").prepare(CPU)


@pytest.mark.parametrize("wrong", [{"kind": "bmas"}, {"pooling": "max"}], ids=str)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be one of"):
        SemanticSimilarity(**wrong)


def test_each_different_text_is_embedded_once(folder: Path) -> None:
    reward = prepared(folder)
    assert reward._embedder is not None
    asked: list[list[str]] = []
    encode = reward._embedder.model.encode

    def counted(texts: list[str], **settings: Any) -> Any:
        asked.append(texts)
        return encode(texts, **settings)

    reward._embedder.model.encode = counted
    judge(reward, ["a", "b", "a", "c"], "b")
    assert asked == [["b"], ["a", "c"]]
    judge(reward, ["d", "b", "d"], "b")
    assert asked[2:] == [["d"]], "the reference is remembered"


@pytest.mark.slow
def test_scores_are_bit_by_bit_those_without_a_memory(folder: Path) -> None:
    """A run that is resumed has no memory, and must find the same scores."""
    texts = ["a cat", "a very long answer about two men who ride over the wide river, and much beside it " * 2, "x"]
    batches = [([text, *texts[: n % 3]], [text, "the sea" * (1 + n)]) for n, text in enumerate(texts * 4)]
    used = prepared(folder)
    for answered, references in batches[::-1]:
        judge(used, answered, references)  # remembered beside other texts
    for answered, references in batches:
        assert judge(used, answered, references) == judge(prepared(folder), answered, references)


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
