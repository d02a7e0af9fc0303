"""A server that speaks vLLM's protocol and runs the tiny model: answers and training are the same as without it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.assembly.build import build, make_trainer
from mmrl.commands.check import check_tiny
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError, Placement, RunError
from mmrl.core.views import DecisionView
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.modalities.tokens.vllm.tiny_server import TinyVllm, serve
from mmrl.modalities.tokens.vllm.tower_check import Trial, check_tower
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.reporting.tracking import Tracking
from tests.tiny_runs import SMALL
from tests.tiny_texts import vision_language
from tests.vision_twins import GROUPS, policy, rollout, twin


def load(model: str, max_pixels: int | None = None) -> VisionLanguage:
    """The policy on a tiny twin that a server answers with."""
    loaded = VisionLanguage(model=model, min_pixels=max_pixels, max_pixels=max_pixels)
    loaded.prepare(Placement(torch.device("cpu"), torch.float32))
    return loaded


@pytest.fixture
def served() -> Vllm:
    """The settings of a server of its own that runs the tiny model."""
    return Vllm(name="vllm", concurrency=4).tiny(twin("qwen2_5_vl"), load)


def started(server: TinyVllm) -> Vllm:
    """The settings of such a server, which runs to the end of the tests."""
    return Vllm(name="vllm", url=serve(server.answer, lambda: True), concurrency=4)


@pytest.mark.slow
def test_answers_of_two_servers_are_those_of_one(served: Vllm) -> None:
    asked: list[list[str]] = [[], []]

    def noting(number: int) -> str:
        server = TinyVllm(twin("qwen2_5_vl"), load)

        def answer(method: str, path: str, body: Any) -> Any:
            asked[number].append(path)
            return server.answer(method, path, body)

        return serve(answer, lambda: True)

    both_servers = Vllm(name="vllm", url=[noting(0), noting(1)], concurrency=4)
    one, two = policy(engine=served), policy(engine=both_servers)
    for policy_of_two in (one, two):
        with torch.no_grad():
            next(iter(policy_of_two.weights.parameters.values())).mul_(1.1)
    assert rollout(two).outputs.texts == rollout(one).outputs.texts
    for paths in asked:
        assert paths.count("/collective_rpc") == 1, "each of them gets the weights"
        assert paths.count("/inference/v1/generate") > 2, "and samples answers"


@pytest.mark.slow
@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.7, "top_k": 20}], ids=["all", "top_k"])
def test_a_group_in_one_request_has_the_answers_of_requests_one_by_one(distribution: dict[str, Any]) -> None:
    bodies: list[Any] = []
    server = TinyVllm(twin("qwen2_5_vl"), load)

    def answer(method: str, path: str, body: Any) -> Any:
        if path == "/inference/v1/generate":
            bodies.append(json.loads(json.dumps(body)))  # the server takes the images out
        return server.answer(method, path, body)

    there = policy(engine=Vllm(name="vllm", url=serve(answer, lambda: True), one_request=True))
    drawn = rollout(there, **distribution)
    asked = [body for body in bodies if body["sampling_params"]["logprobs"] == 0][-len(GROUPS) :]
    assert sorted(body["sampling_params"]["n"] for body in asked) == sorted(GROUPS), "a request for each group"
    place = 0
    for prompt, count in enumerate(GROUPS):
        body = next(body for body in asked if body["sampling_params"]["n"] == count)
        for number in range(count):
            parameters = body["sampling_params"] | {"n": 1, "seed": body["sampling_params"]["seed"] + number}
            images = {"content_parts": list(body["content_parts"])} if "content_parts" in body else {}
            alone = server.answer("POST", "/inference/v1/generate", body | images | {"sampling_params": parameters})
            (choice,) = alone["choices"]
            length = int(drawn.trace.completions.length[place])
            assert drawn.trace.completions.tokens[place, :length].tolist() == choice["token_ids"], prompt
            place += 1


def both(served: Vllm, **settings: Any) -> tuple[VisionLanguage, VisionLanguage]:
    return policy(**settings), policy(engine=served, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "distribution",
    [{}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}, {"stop": ("e", "ab")}],
)
def test_another_engine_draws_the_same_answers(served: Vllm, distribution: dict[str, Any]) -> None:
    here, there = both(served)
    own, drawn = rollout(here, **distribution), rollout(there, **distribution)
    assert drawn.outputs.texts == own.outputs.texts
    assert torch.equal(drawn.trace.completions.is_finished, own.trace.completions.is_finished)
    torch.testing.assert_close(drawn.trace.completions.log_prob, own.trace.completions.log_prob, atol=1e-5, rtol=1e-5)
    view = DecisionView(torch.arange(9))
    again = there.recompute(drawn, 4)
    torch.testing.assert_close(
        there.recorded(again, view).values, there.recorded(drawn, view).values, atol=1e-5, rtol=0
    )
    assert there.num_calls == here.num_calls + 9, "recomputing is counted"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 2, "alpha": 4}}])
def test_the_engine_follows_the_weights_in_place(served: Vllm, settings: dict[str, Any]) -> None:
    made = {"lora": Lora(**settings["lora"])} if settings else {}
    here, there = both(served, **made)
    for one in (here, there):
        one.weights.keep("averaged")
        with torch.no_grad():
            for number, parameter in enumerate(one.weights.parameters.values()):
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    trained = rollout(there).outputs.texts
    assert trained == rollout(here).outputs.texts
    with there.weights("averaged"), here.weights("averaged"):
        averaged = rollout(there).outputs.texts
        assert averaged == rollout(here).outputs.texts
    assert averaged != trained and rollout(there).outputs.texts == trained
    num_trials = len(settings)  # of the adapter's part that reads images
    assert there._service is not None and there._service._num_syncs == 3 + num_trials


def test_a_server_without_scale_out_endpoints_is_told_to_enable_them() -> None:
    with pytest.raises(ConfigError, match=r"HTTP 403: Scale-out .*; start it with --enable-scale-out"):
        rollout(policy(engine=started(TinyVllm(twin("qwen2_5_vl"), load, has_scale_out=False))))


@pytest.mark.slow  # most of a second each, or more
def test_a_server_is_right_where_two_tokens_are_always_equally_likely(tmp_path: Path) -> None:
    here = policy()
    with torch.no_grad():
        head, end = here.head.weight, here.end_tokens[0]
        head[:] = head[end]  # every token, the end token included, is as likely as every other
    here.export(tmp_path)
    there = policy(model=str(tmp_path), engine=started(TinyVllm(tmp_path, load)))
    assert rollout(there).outputs.texts


@pytest.mark.slow  # networks are loaded three times
def test_the_small_server_dies_as_vllm_does_where_it_counts_on_images_that_a_reload_emptied(served: Vllm) -> None:
    there = policy(engine=served)
    rollout(there)
    assert there._service is not None
    replica = there._service._replicas[0]
    replica._reload = lambda name, folder: replica.server.post(  # type: ignore[method-assign]
        "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    )
    there._service._weights = None
    for _ in range(2):
        with pytest.raises(RunError, match="HTTP 500: EngineCore encountered an issue"):
            rollout(there)


@pytest.mark.slow  # networks are loaded five times
def test_a_server_that_leaves_the_towers_adapter_out_is_refused_at_the_start(tmp_path: Path) -> None:
    engine = started(TinyVllm(twin("qwen2_5_vl"), load, adapts_tower=False))
    lora = Lora(rank=2, alpha=4)
    there = policy(engine=engine, lora=lora)
    before = {name: tensor.clone() for name, tensor in there.weights.parameters.items()}
    with pytest.raises(ConfigError, match=r"leaves out the adapter's part .* start it with --enable-tower-connector"):
        rollout(there)
    assert all(torch.equal(tensor, before[name]) for name, tensor in there.weights.parameters.items())
    assert rollout(policy(engine=engine, lora=lora, vision="frozen")).outputs.texts
    there.export(tmp_path)
    with pytest.raises(ConfigError, match="leaves out the adapter's part"):
        rollout(policy(engine=engine, lora=replace(lora, path=str(tmp_path)), vision="frozen"))


def test_the_tower_is_moved_for_one_trial_and_what_was_trained_stays() -> None:
    tower = [torch.zeros(3), torch.ones(2, 2)]
    before = [tensor.clone() for tensor in tower]
    is_used = True

    def trial() -> Trial:
        assert not any(torch.equal(tensor, old) for tensor, old in zip(tower, before, strict=True))
        said = tower[0].clone() if is_used else before[0]
        return Trial(said, lambda: tower[0].clone())

    check_tower(tower, trial)
    is_used = False
    with pytest.raises(ConfigError, match=r"leaves out the adapter's part .* --enable-tower-connector-lora"):
        check_tower(tower, trial)
    assert all(torch.equal(tensor, old) for tensor, old in zip(tower, before, strict=True))
    check_tower([], lambda: pytest.fail("there is nothing to try"))


@pytest.mark.slow
def test_a_prompt_that_the_server_reads_otherwise_is_an_error() -> None:
    folder = twin("qwen2_5_vl")
    smaller = Vllm(name="vllm").tiny(folder, partial(load, max_pixels=28 * 28))  # without the run's pixel limits
    with pytest.raises(ConfigError, match=r"read a prompt of \d+ tokens where this run has \d+.*--mm-processor-kwargs"):
        rollout(policy(engine=smaller))


@pytest.mark.slow
def test_a_truncated_distribution_whose_support_is_not_known_cannot_be_learned_from(
    served: Vllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmrl.modalities.tokens.vllm import tiny_server

    respond = tiny_server._response

    def without_mask(*given: Any) -> dict[str, Any]:
        said = respond(*given)
        said["choices"][0]["sampling_mask"] = None
        return said

    monkeypatch.setattr(tiny_server, "_response", without_mask)
    there = policy(engine=served)
    drawn = rollout(there, top_p=0.9)
    with pytest.raises(ConfigError, match="start vLLM with --return-sampling-mask"):
        there.recompute(drawn, 4)


@pytest.mark.slow
def test_an_engine_rests_while_its_answers_are_learned_from(served: Vllm) -> None:
    there = policy(engine=served)
    drawn = rollout(there)
    assert there._service is not None
    rests: list[None] = []
    there._service.rest = lambda: rests.append(None)  # type: ignore[method-assign]
    there.forward(drawn, DecisionView(torch.arange(2)))
    assert rests


def test_a_lora_keeps_the_base_that_it_needs_on_the_server() -> None:
    with pytest.raises(ValueError, match=r"engine\.sleep must be 0 or 1 with a lora"):
        VisionLanguage(model="a/b", lora=Lora(rank=2, alpha=4), engine=Vllm(name="vllm", sleep=2))


@dataclass(frozen=True)
class Kept(Tracking):
    """Keeps what is logged."""

    logged: list[dict[str, float]] = field(default_factory=list)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.logged.append(dict(metrics))


def trained(folder: Path, *overrides: str) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """The weights after two iterations, and all metrics."""
    settings = (
        *SMALL, *vision_language(), "iterations=2", "loss={name: grpo}", "updates={minibatches: 2, old: recomputed}",
        "optimizer={name: sgd, learning_rate: 0.5}", "averaging.decay=0.8", "checkpoint.every=0",
        "sampler={name: autoregressive, max_tokens: 8}",
    )  # fmt: skip
    config = load_config("quickstart", [*settings, *overrides])
    torch.manual_seed(0)
    trainer = make_trainer(config, build(config), folder)
    tracking = Kept()
    trainer.tracking = tracking
    trainer.train()
    weights = {name: tensor.clone() for name, tensor in trainer.policy.weights.tensors("trained").items()}
    return weights, tracking.logged


@pytest.mark.slow  # two training runs
@pytest.mark.parametrize("lora", [(), ("modality.lora={rank: 2, alpha: 4}",)], ids=["full", "lora"])
def test_a_run_with_another_engine_trains_the_same_weights(served: Vllm, lora: tuple[str, ...], tmp_path: Path) -> None:
    own, _ = trained(tmp_path / "own", *lora)
    other, logged = trained(
        tmp_path / "other", *lora, f"modality.engine={{name: vllm, url: '{served.url}'}}", "correction.level=sequence"
    )
    moved, _ = trained(tmp_path / "moved", *lora, "seed=1")
    for name, tensor in own.items():
        torch.testing.assert_close(other[name], tensor, atol=1e-5, rtol=1e-4)
    assert any(not torch.allclose(moved[name], own[name], atol=1e-4) for name in own), "something was learned"
    engines = [metrics for metrics in logged if "engine/difference" in metrics]
    assert len(engines) == 2
    for metrics in engines:
        assert 0 <= metrics["engine/difference"] <= metrics["engine/difference_max"] < 1e-4
        assert metrics["engine/effective"] == pytest.approx(1) and metrics["engine/truncated"] == 0


@pytest.mark.slow  # a whole dry run
@pytest.mark.parametrize("model", ["lab:screens", "Qwen/Qwen2.5-VL-3B-Instruct"])
def test_a_config_with_an_engine_runs_small_without_vllm(model: str) -> None:
    engine = "modality.engine={name: vllm, url: 'http://gpu:8000'}"
    found = check_tiny(load_config("quickstart_gui", ["threads=1", f"modality.model={model}", engine]))
    assert found.pop("is_good"), found


def test_the_small_server_refuses_what_vllm_has_no_field_for() -> None:
    server = TinyVllm(twin("qwen2_5_vl"), load)
    with pytest.raises(Exception, match="unknown field or wrong type: top_kk"):
        body = {"model": "", "token_ids": [], "return_token_ids": True, "stream": False}
        server.answer("POST", "/inference/v1/generate", body | {"sampling_params": {"top_kk": 3}})
    with pytest.raises(Exception, match="Not Found"):
        server.answer("GET", "/v2/models", None)
