"""Answers of the data whose makers' log-probs the data brings: losses on ratios, and what is refused."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.assembly.build import build, make_trainer
from mmrl.commands.check import check_tiny
from mmrl.core.config import DatasetSettings, RunConfig, check_config
from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.lab_models import resolve_lab
from mmrl.core.plugins import build as build_plugin
from mmrl.core.views import DecisionView
from mmrl.plans.offline import check_behaviour
from mmrl.prompts.datasets import load_dataset_prompts
from tests import vision_twins
from tests.vision_twins import PROMPTS, keys

GUI = {"name": "gui", "model": "lab:screens", "dialect": "plain", "instructions": "none"}
SHAPES = {"name": "sd3", "model": "lab:shapes", "height": 32, "width": 32, "max_sequence_length": 1}
ANSWERS = ("<answer>(10, 20)</answer>", "(3, 4)")


def config(data: Any, loss: dict[str, Any], **changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "iterations": 1,
        "group_size": 2,
        "prompts_per_iteration": 1,
        "prompts": {"train": data.model_dump(exclude_defaults=True) if isinstance(data, DatasetSettings) else data},
        "modality": GUI,
        "sampler": {"name": "given"},
        "rewards": [{"name": "given_score"}],
        "advantage": {"name": "grpo"},
        "loss": loss,
        "optimizer": {"learning_rate": 1e-4},
    }
    return check_config(settings | changes)


@cache
def policy() -> Any:
    made = build_plugin("modalities", resolve_lab(GUI))
    made.prepare(Placement(torch.device("cpu"), torch.float32))
    return made


def data(folder: Path, **fields: Any) -> DatasetSettings:
    """One question about a grey screen with a good and a bad answer."""
    Image.new("RGB", (64, 64), "grey").save(folder / "grey.png")
    row = {"prompt": "red?", "image": "grey.png", "chosen": ANSWERS[0], "rejected": ANSWERS[1], **fields}
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    return DatasetSettings(path=str(folder / "rows.jsonl"), layout="given_answers")


def row_with_log_probs(log_prob: Callable[[int], float] = lambda n: -1.0) -> dict[str, Any]:
    """The tokens of both answers, and made up log-probs of whoever drew them."""
    ids = [list(policy().tokens_of(text)) for text in ANSWERS]
    return {"token_ids": ids, "log_probs": [[log_prob(n) for n in range(len(one))] for one in ids]}


def test_tokens_and_log_probs_of_the_data_are_those_of_the_rollout() -> None:
    twin = vision_twins.policy()
    texts = ("red", "the box")
    tokens = [twin.tokens_of("red"), tuple(twin.tokenize("the box"))]  # the second was cut before its end token
    log_probs = [[-0.5] * len(tokens[0]), [-0.1 * (n + 1) for n in range(len(tokens[1]))]]
    rollout = twin.offline_tokens(PROMPTS[:2], tokens, log_probs, keys(2))
    assert rollout.outputs.texts == texts and rollout.num_calls == 0
    assert rollout.outputs.is_finished is not None and rollout.outputs.is_finished.tolist() == [True, False]
    recorded = twin.recorded(rollout, DecisionView(torch.arange(2))).values
    for row, values in enumerate(log_probs):
        assert recorded[row, : len(values)].tolist() == pytest.approx(values)
    logits = vision_twins.slow_logits(twin, rollout, 1)
    logits[:, list(twin.banned)] = -torch.inf
    expected = logits.log_softmax(1).gather(1, torch.tensor(tokens[1])[:, None])[:, 0]
    evaluated = twin.forward(rollout, DecisionView(torch.arange(2))).values.detach()[1, : len(expected)]
    torch.testing.assert_close(evaluated, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_ratio_is_to_whoever_made_the_answers(tmp_path: Path, minibatches: int) -> None:
    """exp(log-prob now - log-prob of the row) of each token, in the first optimizer step and whatever follows it."""
    row = row_with_log_probs(lambda n: -0.5 * (n + 1))
    source = data(tmp_path, **row)
    (tmp_path / "rows.jsonl").write_text((tmp_path / "rows.jsonl").read_text("utf-8") * minibatches, "utf-8")
    settings = config(
        source,
        {"name": "grpo", "clip_low": 0.2, "clip_high": 0.2},
        prompts_per_iteration=minibatches,
        updates={"minibatches": minibatches},
        optimizer={"learning_rate": 1e-12},  # so that the second step is of the same weights
    )
    metrics = make_trainer(settings, build(settings), tmp_path)._iterate(0)
    prompt = load_dataset_prompts(source)[0]
    rollout = policy().offline_tokens([prompt] * 2, row["token_ids"], row["log_probs"], keys(2))
    values = policy().forward(rollout, DecisionView(torch.arange(2))).values.detach()
    ratios = [
        math.exp(float(values[answer, n]) - old)
        for answer, one in enumerate(row["log_probs"])
        for n, old in enumerate(one)
    ]
    assert metrics["loss/ratio"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-4)
    assert abs(metrics["loss/ratio"] - 1) > 0.1 and metrics["optimizer/steps"] == minibatches


@pytest.mark.slow
def test_what_is_held_near_this_iterations_weights_may_say_so(tmp_path: Path) -> None:
    """REBEL's old weights are what it is held near: those of the data, or with `recomputed` those of now."""
    source = data(tmp_path, **row_with_log_probs())
    sizes = {}
    for old in ("recorded", "recomputed"):
        settings = config(source, {"name": "rebel"}, updates={"old": old})
        sizes[old] = make_trainer(settings, build(settings), tmp_path)._iterate(0)["loss/log_ratio_size"]
    assert sizes["recomputed"] == 0 and sizes["recorded"] > 0.1


UNKNOWN_PROBABILITY = "weighs outputs by their probability now over .* which is unknown of outputs that the data brings"


@pytest.mark.parametrize("name", ["topr", "grpo", "gspo"])
def test_a_ratio_to_nobody_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"loss '{name}' {UNKNOWN_PROBABILITY}.* may bring log_probs with token_ids"):
        build(config(data(tmp_path), {"name": name}))


@pytest.mark.parametrize("sampler", [{"name": "given"}, {"name": "given_and_drawn", "num_steps": 2}])
@pytest.mark.parametrize("loss", [{"name": "awm", "sigmas": "uniform"}, {"name": "elbo"}])
def test_no_image_has_a_ratio(sampler: dict[str, Any], loss: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=UNKNOWN_PROBABILITY):
        build(config("lab:shapes/pairs", loss, modality=SHAPES, sampler=sampler))


@pytest.mark.parametrize(
    "loss", [{"name": "flow_dpo", "refresh_every": 3}, {"name": "nft"}, {"name": "kto", "threshold": 0.5}]
)
def test_losses_that_need_no_ratio_take_plain_images(loss: dict[str, Any]) -> None:
    build(config("lab:shapes/pairs", loss, modality=SHAPES))


@pytest.mark.parametrize(
    "loss", [{"name": "sft", "of": "decisions"}, *({"name": name} for name in ("dpo", "rebel", "gvpo", "reinforce"))]
)
def test_losses_that_need_no_ratio_take_plain_answers(tmp_path: Path, loss: dict[str, Any]) -> None:
    build(config(data(tmp_path), loss))


@pytest.mark.slow
def test_a_loss_that_does_not_say_is_taken_to_correct_by_what_it_compares_with(tmp_path: Path) -> None:
    given, full = (
        build_plugin("samplers", {"name": "given"}),
        load_dataset_prompts(data(tmp_path, **row_with_log_probs())),
    )
    own: Any = SimpleNamespace(needs=frozenset({"old"}))
    with pytest.raises(ConfigError, match="loss 'mine:Own' weighs outputs"):
        check_behaviour(own, "mine:Own", "recorded", given, load_dataset_prompts(data(tmp_path)))
    check_behaviour(own, "mine:Own", "recorded", given, full)
    other: Any = SimpleNamespace(needs=frozenset({"reference"}))
    check_behaviour(other, "mine:Own", "recomputed", given, full)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"updates": {"old": "recomputed"}}, "'recomputed' takes the probability under the weights of this iteration"),
        (
            {"advantage": {"name": "entropy_advantage"}},
            "requires entropy of each decision, of which sampler 'given' provides",
        ),
        (
            {"modality": {**GUI, "engine": {"name": "vllm", "url": "http://localhost:1"}}},
            "modality.engine samples answers, and sampler takes those of the data",
        ),
    ],
)
def test_what_goes_with_no_given_answers_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(config(data(tmp_path, **row_with_log_probs()), {"name": "topr"}, **changes))


@pytest.mark.parametrize("loss", ["topr", "rebel"])
def test_all_rows_bring_log_probs_or_none_does(loss: str, tmp_path: Path) -> None:
    data(tmp_path, **row_with_log_probs())
    full = (tmp_path / "rows.jsonl").read_text("utf-8")
    source = data(tmp_path)
    (tmp_path / "rows.jsonl").write_text((tmp_path / "rows.jsonl").read_text("utf-8") + full, "utf-8")
    with pytest.raises(ConfigError, match=r"1 of 2 bring log_probs with token_ids, and .*rows\.jsonl, line 1 has none"):
        build(config(source, {"name": loss}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"log_probs": [[-1.0], [-1.0]]}, "it has no field 'token_ids'"),
        ({"token_ids": [[1], [2]]}, "it has no field 'log_probs'"),
        ({"token_ids": [[1], [2]], "log_probs": None}, "its field 'log_probs' is null"),
        ({"token_ids": [[1, 2], [3]], "log_probs": [[-1], [-1]]}, "answer 1 has 2 token_ids and 1 log_probs"),
        ({"token_ids": [[1], [2]], "log_probs": [[-1], [0.1]]}, "log_probs are finite numbers of at most 0, got 0.1"),
        ({"token_ids": [[1], [2]], "log_probs": [[-1], [math.nan]]}, "at most 0, got nan"),
        ({"token_ids": [[1], [-2]], "log_probs": [[-1], [-1]]}, "token_ids are whole numbers of at least 0, got -2"),
        ({"token_ids": [[1]], "log_probs": [[-1], [-1]]}, "'token_ids' must be one list of numbers for each of 2"),
        ({"token_ids": [[], [1]], "log_probs": [[], [-1]]}, "'token_ids' must be one list of numbers for each of 2"),
    ],
)  # fmt: skip
def test_rows_without_clear_log_probs_are_bad_rows(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"rows\.jsonl, line 1: .*{message}"):
        load_dataset_prompts(data(tmp_path, **fields))


def test_one_answer_needs_no_list_around_its_tokens(tmp_path: Path) -> None:
    row = {"prompt": "p", "output": "x", "token_ids": [5, 6], "log_probs": "[-1, -0.5]"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row), "utf-8")
    (made,) = load_dataset_prompts(DatasetSettings(path=str(tmp_path / "rows.jsonl"), layout="given_answers"))
    assert (made.target["given_token_ids"], made.target["given_log_probs"]) == (((5, 6),), ((-1.0, -0.5),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: [ids[0][1:], ids[1]], "its token_ids spell .* by this model's tokenizer, and the answer is '<ans"),
        (lambda ids: [[10**9], ids[1]], "token_ids has 1000000000, and the model has"),
        (lambda ids: [[ids[0][-1], *ids[0]], ids[1]], "an end token before its last, which no answer may"),
    ],
)
def test_tokens_of_another_answer_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    row = row_with_log_probs()
    ids = change(row["token_ids"])
    source = data(tmp_path, token_ids=ids, log_probs=[[-1.0] * len(one) for one in ids])
    (prompt,) = load_dataset_prompts(source)
    why = policy().refusal(prompt)
    assert why is not None and "line 1" in why
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(why)


@pytest.mark.slow
def test_a_dry_run_learns_from_made_up_rows_by_their_log_probs() -> None:
    source = DatasetSettings(path="not_here.jsonl", layout="given_answers")
    found = check_tiny(config(source, {"name": "topr"}, prompts_per_iteration=2))
    assert found["is_good"], found


@pytest.mark.slow  # writes and loads a twin of a model twice
def test_a_dry_run_puts_answers_into_the_tokens_of_the_twin(tmp_path: Path) -> None:
    modality = {"name": "vision_language", "model": "Qwen/Qwen2.5-VL-3B-Instruct"}
    found = check_tiny(config(data(tmp_path, **row_with_log_probs()), {"name": "topr"}, modality=modality))
    assert found["is_good"], found
