"""vLLM's protocol against recorded exchanges: what is asked, what an answer must hold, how weights are handed over."""

import copy
import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from mmrl.core.contracts import ConfigError, RunError
from mmrl.modalities.tokens.vllm.engine import Vllm, VllmEngine
from mmrl.modalities.tokens.vllm.protocol import Question, SamplingParams
from mmrl.modalities.tokens.vllm.replica import GENERATE
from mmrl.modalities.tokens.vllm.weights import PREFIX, fingerprint, temporary_folder
from mmrl.system.json_server import BrokenOff
from tests.recorded_server import LOST, Exchange, replaying

MODELS = Exchange(
    "/v1/models",
    None,
    {
        "object": "list",
        "data": [
            {"id": "old-adapter", "object": "model", "parent": "/models/tiny", "root": "/adapters/old"},
            {"id": "/models/tiny", "object": "model", "owned_by": "vllm", "parent": None, "max_model_len": 512},
        ],
    },
)
QUESTION = Question((5, 6, 7), (5, 6, 6, 6, 7), ("data:image/png;base64,AAAA",))
SAMPLING = SamplingParams(0.9, 0.95, 40, 0.0, 4, ("</a>",), (2, 3), (6, 9))


def parameters(**changes: Any) -> dict[str, Any]:
    return {
        "n": 1, "temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.0, "seed": 11, "max_tokens": 4,
        "stop": ["</a>"], "stop_token_ids": [2, 3], "logprobs": 0, "logit_bias": {"6": -100.0, "9": -100.0},
        "skip_special_tokens": False, "include_stop_str_in_output": True,
    } | changes  # fmt: skip


def request(model: str = "/models/tiny", **changes: Any) -> dict[str, Any]:
    return {
        "model": model,
        "token_ids": [5, 6, 7],
        "sampling_params": parameters(**changes),
        "return_token_ids": True,
        "stream": False,
        "content_parts": [{"type": "image_url", "url": "data:image/png;base64,AAAA"}],
    }


def said(tokens: list[int], log_probs: list[float], prompt: list[int], **changes: Any) -> dict[str, Any]:
    """An answer as vLLM 0.33 gives it, with all its fields."""
    content = [
        {"token_id": token, "logprob": value, "rank": 1, "top_logprobs": []}
        for token, value in zip(tokens, log_probs, strict=True)
    ]
    choice = {
        "index": 0, "finish_reason": "stop", "stop_reason": None, "token_ids": tokens, "routed_experts": None,
        "sampling_mask": None, "weight_versions": None, "logprobs": {"content": content},
    }  # fmt: skip
    return {
        "request_id": "generate-tokens-1", "model": "/models/tiny", "created": 1, "usage": {"prompt_tokens": 5},
        "prompt_logprobs": None, "prompt_token_id_logprobs": None, "prompt_token_ids": prompt, "mm_placeholders": None,
        "metrics": None, "kv_transfer_params": None, "ec_transfer_params": None, "output_mode": "tokens",
        "choices": [choice | changes],
    }  # fmt: skip


def probe(only: int, log_prob: float = 0.0, drawn: int | None = None) -> Exchange:
    """The question whether a token that a bias makes the only one has a log-prob of 0."""
    sampling = {
        "n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 1, "min_p": 0.0, "seed": 0, "max_tokens": 1, "stop": [],
        "stop_token_ids": [], "logprobs": 0, "logit_bias": {str(only): 100.0}, "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }  # fmt: skip
    body = {"model": "/models/tiny", "token_ids": [2], "sampling_params": sampling, "return_token_ids": True}
    answer = said([only if drawn is None else drawn], [log_prob], [2], finish_reason="length")
    return Exchange(GENERATE, body | {"stream": False}, answer)


START = (MODELS, probe(2), probe(0))
ANSWER = said([8, 4, 2], [-0.5, -1.25, -0.125], [5, 6, 6, 6, 7])
HEALTHY = Exchange("/health", None, "")
RESET = Exchange("/reset_prefix_cache", {}, {"success": True})


def reloaded(made: VllmEngine, number: int = 0) -> tuple[Exchange, ...]:
    """What follows a reload: caches are emptied, and the weights are named."""
    name = f"{made._name}-{number}"
    named = Exchange("/update_weight_version", {"new_version": name}, {"success": True, "new_version": name})
    return (Exchange("/reset_encoder_cache", {}, ""), RESET, named)


def engine(url: str, folder: Path, **settings: Any) -> VllmEngine:
    return VllmEngine(Vllm(name="vllm", url=url, folder=str(folder), concurrency=1, retries=0, **settings), 10)


def whole_model(folder: Path) -> None:
    (folder / "model.safetensors").write_text("weights")


def adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


def reload(made: VllmEngine, folder: Path, number: int) -> Exchange:
    path = str(folder / f"{made._name}-{number}")
    body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
    return Exchange("/collective_rpc", body, {"results": [None]})


def test_answers_are_asked_for_and_read_as_recorded(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        second = said([4], [-2.0], [5, 6, 6, 6, 7], finish_reason="length", sampling_mask=[[1, 4]])
        recorded.add(
            reload(made, tmp_path, 0),
            *reloaded(made),
            Exchange(GENERATE, request(), copy.deepcopy(ANSWER)),
            Exchange(GENERATE, request(seed=13), second),
        )
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        drawn = made.generate([QUESTION], [0, 0], [11, 13], SAMPLING)
    assert drawn.tokens.tolist() == [[8, 4, 2], [4, 0, 0]] and drawn.length.tolist() == [3, 1]
    assert drawn.log_prob.tolist() == [[-0.5, -1.25, -0.125], [-2.0, 0, 0]]
    assert drawn.is_finished.tolist() == [True, False] and drawn.support is None, "one of them says no support"


def several(*numbered: tuple[int, list[int]]) -> dict[str, Any]:
    """One answer of the server with several choices, each with its number."""
    answers = [(number, said(tokens, [-1.0] * len(tokens), [5, 6, 6, 6, 7])) for number, tokens in numbered]
    return {**ANSWER, "choices": [answer["choices"][0] | {"index": number} for number, answer in answers]}


def test_answers_to_one_prompt_by_seeds_that_count_up_come_in_one_request(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        recorded.add(
            reload(made, tmp_path, 0),
            *reloaded(made),
            Exchange(GENERATE, request(n=3), several((2, [7]), (0, [8, 4, 2]), (1, [5, 1]))),
            Exchange(GENERATE, request(seed=15), several((0, [1]))),
            Exchange(GENERATE, request(seed=16), several((0, [4]))),  # to the other prompt
            Exchange(GENERATE, request(seed=15), several((0, [3]))),
        )
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        drawn = made.generate([QUESTION, QUESTION], [0, 0, 0, 0, 1, 1], [11, 12, 13, 15, 16, 15], SAMPLING)
    assert drawn.tokens.tolist() == [[8, 4, 2], [5, 1, 0], [7, 0, 0], [1, 0, 0], [4, 0, 0], [3, 0, 0]]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (several((0, [8])), "gave 1 answers where 2 were requested"),
        (several((0, [8]), (0, [7])), r"numbers its 2 answers \[0, 0\]"),
        (several((1, [8]), (2, [7])), r"numbers its 2 answers \[1, 2\]"),
    ],
)
def test_answers_of_one_request_must_be_those_that_were_requested(
    answer: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        recorded.add(reload(made, tmp_path, 0), *reloaded(made), Exchange(GENERATE, request(n=2), answer))
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        with pytest.raises(RunError, match=message):
            made.generate([QUESTION], [0, 0], [11, 12], SAMPLING)


@pytest.mark.slow
def test_a_request_that_is_lost_is_made_again_for_all_of_its_answers(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path, outage_seconds=30.0)
        again = [HEALTHY, *START, reload(made, tmp_path, 0), *reloaded(made, 1)]
        recorded.add(reload(made, tmp_path, 0), *reloaded(made, 0), Exchange(GENERATE, request(n=2), LOST), *again)
        recorded.add(Exchange(GENERATE, request(n=2), several((0, [8]), (1, [7]))))
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        assert made.generate([QUESTION], [0, 0], [11, 12], SAMPLING).tokens.tolist() == [[8], [7]]


def test_the_support_of_a_truncated_distribution_is_kept(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        masks = [[8, 1], [4], [2, 3, 9]]
        answer = said([8, 4, 2], [-0.5, 0.0, -0.1], [5, 6, 6, 6, 7], sampling_mask=masks)
        recorded.add(reload(made, tmp_path, 0), *reloaded(made, 0), Exchange(GENERATE, request(), answer))
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        support = made.generate([QUESTION], [0], [11], SAMPLING).support
    assert support is not None
    assert support.ids.tolist() == [1, 8, 4, 2, 3, 9] and support.sizes.tolist() == [2, 1, 3]


@pytest.mark.slow
def test_weights_are_sent_when_they_change_and_only_then(tmp_path: Path) -> None:
    weight, other = torch.arange(4.0), torch.arange(4.0)
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        for number in range(3):
            recorded.add(reload(made, tmp_path, number), *reloaded(made, number))
        made.follow({"w": weight}, whole_model, 2)
        made.follow({"w": weight}, whole_model, 2)
        weight[2] += 1e-6  # as an optimizer does
        made.follow({"w": weight}, whole_model, 2)
        assert [path.name for path in tmp_path.iterdir()] == [f"{made._name}-1"], "what was sent before is removed"
        made.follow({"w": other}, whole_model, 2)  # as the averaged weights in the place of the trained ones
    assert made._num_syncs == 3


@pytest.mark.slow
def test_an_adapter_is_loaded_under_a_new_name_and_the_one_before_unloaded(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        names = [f"{made._name}-{number}" for number in range(2)]
        bodies = [{"lora_name": name, "lora_path": str(tmp_path / name)} for name in names]
        recorded.add(
            Exchange("/v1/load_lora_adapter", bodies[0], "Success: LoRA adapter added successfully."),
            Exchange(GENERATE, request(names[0]), ANSWER),
            Exchange("/v1/load_lora_adapter", bodies[1], "Success: LoRA adapter added successfully."),
            Exchange("/v1/unload_lora_adapter", {"lora_name": names[0]}, "Success: LoRA adapter removed successfully."),
            Exchange(GENERATE, request(names[1]), ANSWER),
        )
        for number in range(2):
            made.follow({"w": torch.full((2,), float(number))}, adapter, 2)
            made.generate([QUESTION], [0], [11], SAMPLING)


def without(*path: str | int) -> dict[str, Any]:
    """The answer without one of its fields."""
    answer: Any = copy.deepcopy(ANSWER)
    holder = answer
    for part in path[:-1]:
        holder = holder[part]
    del holder[path[-1]]
    return dict(answer)


def masked(mask: Any) -> dict[str, Any]:
    return said([8], [-1.0], [5, 6, 6, 6, 7], sampling_mask=mask)


def two_choices() -> dict[str, Any]:
    return {**ANSWER, "choices": ANSWER["choices"] * 2}


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (two_choices, RunError, "gave 2 answers where 1 were requested"),
        (lambda: without("choices", 0, "logprobs"), RunError, "no logprobs"),
        (lambda: without("choices", 0, "logprobs", "content", 1), RunError, "log-probs are of other tokens"),
        (lambda: without("choices", 0, "token_ids"), RunError, "no token_ids .list., got NoneType"),
        (lambda: without("prompt_token_ids"), RunError, "no prompt_token_ids"),
        (lambda: said([8], [-9999.0], [5, 6, 6, 6, 7]), RunError, "gave -9999.0 for the log-prob"),
        (lambda: said([8], [0.5], [5, 6, 6, 6, 7]), RunError, "gave 0.5 for the log-prob"),
        (lambda: said([8], [10**400], [5, 6, 6, 6, 7]), RunError, "gave 10+ for the log-prob"),
        (lambda: said([8], [-(10**400)], [5, 6, 6, 6, 7]), RunError, "gave -10+ for the log-prob"),
        (lambda: said([8], [float("nan")], [5, 6, 6, 6, 7]), RunError, "gave nan for the log-prob"),
        (lambda: said([8], [float("-inf")], [5, 6, 6, 6, 7]), RunError, "gave -inf for the log-prob"),
        (lambda: said([10], [-1.0], [5, 6, 6, 6, 7]), RunError, "sampled token 10, and the model has 10"),
        (lambda: said([10**30], [-1.0], [5, 6, 6, 6, 7]), RunError, "sampled token 10+, and the model has 10"),
        (lambda: said([-1], [-1.0], [5, 6, 6, 6, 7]), RunError, "token_ids of .* must hold token numbers, got -1"),
        (lambda: said([8, 3, 4], [-1.0] * 3, [5, 6, 6, 6, 7]), RunError, "went on behind the end token 3"),
        (lambda: said([8], [-1.0], [5, 6, 6, 6, 7], finish_reason="abort"), RunError, "ended an answer with 'abort'"),
        (lambda: said([], [], [5, 6, 6, 6, 7]), RunError, "an answer of 0 tokens"),
        (lambda: said([8] * 5, [-1.0] * 5, [5, 6, 6, 6, 7]), RunError, "an answer of 5 tokens"),
        (lambda: said([9], [-1.0], [5, 6, 6, 6, 7]), RunError, "sampled the banned token 9"),
        (lambda: said([8], [-1.0], [5, 6, 6, 6, 7], sampling_mask=[[1]]), RunError, "sampling_mask does not hold"),
        (lambda: masked(8), RunError, "sampling_mask must hold a list for each of 1 tokens"),
        (lambda: masked([8]), RunError, "sampling_mask must hold a list for each of 1 tokens"),
        (lambda: masked([[8], [8]]), RunError, "sampling_mask must hold a list for each of 1 tokens"),
        (lambda: masked([[8, -1]]), RunError, "sampling_mask of .* must hold token numbers, got -1"),
        (lambda: masked([[8, 1.5]]), RunError, "sampling_mask of .* must hold token numbers, got 1.5"),
        (lambda: masked([[8, "1"]]), RunError, "sampling_mask of .* must hold token numbers, got '1'"),
        (lambda: masked([[8, True]]), RunError, "sampling_mask of .* must hold token numbers, got True"),
        (lambda: masked([[8, None]]), RunError, "sampling_mask of .* must hold token numbers, got None"),
        (lambda: masked([[8, 10]]), RunError, r"only those of the model \(it has 10\), got \[8, 10"),
        (lambda: masked([[8, 10**400]]), RunError, r"only those of the model \(it has 10\), got \[8, 10"),
        (lambda: masked([[8, 1, 8]]), RunError, r"must hold each token once, .* got \[8, 1, 8"),
        (lambda: said([8], [-1.0], [5, 6, 6, 7]), ConfigError, "of 4 tokens where .* 5, and they differ .* token 3"),
        (lambda: said([8], [-1.0], [5, 6, 6, 6]), ConfigError, "one begins as the other; its images"),
        (lambda: [1], RunError, "no choices .list., got NoneType"),
        (lambda: "all is well", RunError, "no choices"),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_one_is_an_error(
    answer: Callable[[], Any], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        recorded.add(reload(made, tmp_path, 0), *reloaded(made, 0), Exchange(GENERATE, request(), answer()))
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        with pytest.raises(kind, match=message):
            made.generate([QUESTION], [0], [11], SAMPLING)


def test_a_server_that_fails_is_asked_once_and_its_words_are_shown(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        broken = Exchange(GENERATE, request(), {"error": {"message": "EngineCore died", "code": 500}}, 500)
        recorded.add(reload(made, tmp_path, 0), *reloaded(made, 0), broken)
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        with pytest.raises(RunError, match="answered HTTP 500: EngineCore died"):
            made.generate([QUESTION], [0], [11], SAMPLING)


@pytest.mark.slow
def test_a_lost_server_is_waited_for_and_its_answers_are_sampled_anew_with_the_weights_sent_again(
    tmp_path: Path,
) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path, outage_seconds=30.0)
        lost = Exchange(GENERATE, request(), LOST)
        sick = Exchange("/health", None, {"detail": "starting"}, 503)
        again = [sick, HEALTHY, *START, reload(made, tmp_path, 0), *reloaded(made, 1)]
        answer = Exchange(GENERATE, request(), copy.deepcopy(ANSWER))
        recorded.add(reload(made, tmp_path, 0), *reloaded(made, 0), lost, *again, answer)
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        assert made.generate([QUESTION], [0], [11], SAMPLING).tokens.tolist() == [[8, 4, 2]]


def test_a_server_that_comes_back_with_another_model_is_an_error(tmp_path: Path) -> None:
    other = {"object": "list", "data": [{"id": "/models/other", "parent": None}]}
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path, outage_seconds=30.0)
        recorded.add(
            reload(made, tmp_path, 0),
            *reloaded(made, 0),
            Exchange(GENERATE, request(), LOST),
            HEALTHY,
        )
        recorded.add(replace(MODELS, answer=other))
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        with pytest.raises(ConfigError, match=r"serves '/models/other' now, and served '/models/tiny' before"):
            made.generate([QUESTION], [0], [11], SAMPLING)


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_a_run_ends_where_a_lost_server_does_not_come_back(seconds: float, tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path, outage_seconds=seconds)
        recorded.add(reload(made, tmp_path, 0), *reloaded(made, 0), Exchange(GENERATE, request(), LOST))
        recorded.add(*([Exchange("/health", None, {"detail": "gone"}, 503)] * (1 if seconds else 0)))
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        with pytest.raises(RunError, match="broke off while it answered"):
            made.generate([QUESTION], [0], [11], SAMPLING)


def test_requests_go_to_the_shortest_queue_and_those_of_a_prompt_to_one_server(tmp_path: Path) -> None:
    made = VllmEngine(Vllm(name="vllm", url=["http://a:1", "http://b:1", "http://c:1"]), 10)
    with ExitStack() as stack:
        places = [stack.enter_context(made._shortest(0, {})) for _ in range(30)]
    assert places[:9] == [0] * 9 and [places.count(place) for place in range(3)] == [16, 7, 7]
    with ExitStack() as stack:
        places = [stack.enter_context(made._shortest(row, {})) for row in (0, 1, 2, 3, 4, 4)]
    assert places == [0, 1, 2, 0, 1, 1]
    lost = {1: BrokenOff("gone")}
    with ExitStack() as stack:
        places = [stack.enter_context(made._shortest(row, lost)) for row in (0, 1, 2, 3)]
    assert places == [0, 2, 0, 2]
    with made._shortest(0, dict.fromkeys(range(3), BrokenOff("gone"))) as nowhere:
        assert nowhere is None


@pytest.mark.slow
def test_a_server_sleeps_between_rollouts_and_wakes_for_the_next(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path, sleep=1)
        recorded.add(reload(made, tmp_path, 0), *reloaded(made, 0), Exchange("/sleep?level=1", {}, ""))
        recorded.add(Exchange("/wake_up", {}, ""), Exchange("/sleep?level=1", {}, ""))
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        for _ in range(2):
            made.rest()
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        made.rest()


@pytest.mark.slow
def test_weights_are_sent_again_to_a_server_that_dropped_them_in_its_sleep(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path, sleep=2)
        recorded.add(reload(made, tmp_path, 0), *reloaded(made, 0), Exchange("/sleep?level=2", {}, ""))
        recorded.add(Exchange("/wake_up", {}, ""), reload(made, tmp_path, 1), *reloaded(made, 1))
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        made.rest()
        made.follow({"w": torch.zeros(2)}, whole_model, 2)


@pytest.mark.slow
def test_a_server_without_sleep_mode_is_told_how_to_be_started(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path, sleep=1)
        refused = Exchange("/sleep?level=1", {}, {"detail": "Not Found"}, 404)
        recorded.add(reload(made, tmp_path, 0), *reloaded(made, 0), refused)
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        with pytest.raises(ConfigError, match=r"HTTP 404: Not Found; start it with VLLM_SERVER_DEV_MODE=1 and --enab"):
            made.rest()


def test_weights_that_another_process_sent_are_sampled_with_and_not_sent_again(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        recorded.add(
            *(
                [
                    Exchange(GENERATE, request(), said([8], [-1.0], [5, 6, 6, 6, 7], weight_versions=version))
                    for version in (
                        [{"version": "theirs-3", "start": 0, "end": 1}],
                        [{"version": "mine", "start": 0, "end": 1}],
                    )
                ]
            )
        )
        made.share({"w": torch.zeros(2)}, "theirs-3", 2)
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
        made.generate([QUESTION], [0], [11], SAMPLING)
        with pytest.raises(RunError, match=r"sampled by weights called 'mine', not by those .* 'theirs-3'"):
            made.generate([QUESTION], [0], [11], SAMPLING)


@pytest.mark.slow
def test_an_adapter_that_a_server_no_longer_has_is_sent_again(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path, outage_seconds=30.0)
        names = [f"{made._name}-{number}" for number in range(2)]
        loads = [
            Exchange("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(tmp_path / names[0])}, "Success")
            for name in names
        ]
        gone = Exchange(GENERATE, request(names[0]), {"error": {"message": "does not exist", "code": 404}}, 404)
        answer = Exchange(GENERATE, request(names[1]), copy.deepcopy(ANSWER))
        unload = Exchange("/v1/unload_lora_adapter", {"lora_name": names[1]}, "Success")
        recorded.add(loads[0], gone, HEALTHY, *START, loads[1], answer, unload)
        made.follow({"w": torch.zeros(2)}, adapter, 2)
        assert made.generate([QUESTION], [0], [11], SAMPLING).tokens.tolist() == [[8, 4, 2]]
        del made
        gc.collect()  # an error that was caught holds frames of the engine


@pytest.mark.slow
def test_log_probs_of_another_distribution_are_found_out_at_the_start(tmp_path: Path) -> None:
    for raw in ([probe(2, -3.5)], [probe(2), probe(0, -0.7)]):  # the second model nearly always repeats the prompt
        with replaying([MODELS, *raw] * 2) as recorded:
            made = engine(recorded.url, tmp_path)
            for _ in range(2):  # it does not pass the second time either
                with pytest.raises(ConfigError, match="--logprobs-mode processed"):
                    made.follow({"w": torch.zeros(2)}, whole_model, 2)


def test_a_server_that_ignores_a_bias_is_an_error(tmp_path: Path) -> None:
    with replaying([MODELS, probe(2, drawn=8)]) as recorded, pytest.raises(RunError, match="sampled token 8 for 2"):
        engine(recorded.url, tmp_path).follow({"w": torch.zeros(2)}, whole_model, 2)


@pytest.mark.parametrize(
    ("status", "hint"), [(403, "Scale-out .*; start it with --enable-scale-out"), (404, "is there from vLLM 0.32 on")]
)
def test_a_server_without_the_endpoint_is_told_how_to_be_started(status: int, hint: str, tmp_path: Path) -> None:
    words = {"error": {"message": "Scale-out endpoints are disabled.", "code": status}}
    refused = replace(probe(2), answer=words, status=status)
    with replaying([MODELS, refused]) as recorded, pytest.raises(ConfigError, match=hint):
        engine(recorded.url, tmp_path).follow({"w": torch.zeros(2)}, whole_model, 2)


@pytest.mark.parametrize("models", [5, {"data": 5}, {"data": [5]}, {"data": [{"id": 5}]}, "all is well"])
def test_a_server_that_names_no_model_is_none(models: Any, tmp_path: Path) -> None:
    found = Exchange("/v1/models", None, models)
    with replaying([found]) as recorded, pytest.raises(ConfigError, match="names no model; is it a vLLM server"):
        engine(recorded.url, tmp_path).follow({"w": torch.zeros(2)}, whole_model, 2)


@pytest.mark.slow
def test_a_failed_sync_is_made_again_under_another_name(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        broken = replace(reload(made, tmp_path, 0), answer={"detail": "no memory"}, status=500)
        recorded.add(broken, reload(made, tmp_path, 1), *reloaded(made, 1))
        with pytest.raises(ConfigError, match=r"does not reload its weights: .* HTTP 500: no memory"):
            made.follow({"w": torch.zeros(2)}, whole_model, 2)
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
    assert [path.name for path in tmp_path.iterdir()] == [f"{made._name}-1"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")])
def test_weights_that_cannot_be_written_are_named_and_sent_again(error: Exception, tmp_path: Path) -> None:
    def full(_folder: Path) -> None:
        raise error

    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        recorded.add(reload(made, tmp_path, 1), *reloaded(made, 1))
        with pytest.raises(RunError, match=f"cannot write the weights for the server into {tmp_path}: .*No space left"):
            made.follow({"w": torch.zeros(2)}, full, 2)
        made.follow({"w": torch.zeros(2)}, whole_model, 2)
    assert [path.name for path in tmp_path.iterdir()] == [f"{made._name}-1"]


def test_what_a_run_leaves_is_taken_away_at_its_end(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        name = f"{made._name}-0"
        loaded = Exchange("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(tmp_path / name)}, "Success")
        recorded.add(loaded, Exchange("/v1/unload_lora_adapter", {"lora_name": name}, "Success"))
        made.follow({"w": torch.zeros(2)}, adapter, 2)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        del made
    assert not list(tmp_path.iterdir())


def test_a_folder_of_weights_that_a_killed_process_left_is_removed_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmrl.modalities.tokens.vllm.weights.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = [f"{PREFIX}{name}" for name in ("killed", "unfinished")] + ["another"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / ("weights" if name.endswith("unfinished") else "lock")).touch()
    first, second = temporary_folder.__wrapped__(), temporary_folder.__wrapped__()
    assert {path.name for path in tmp_path.iterdir()} == {*names[1:], first.name, second.name}


@pytest.mark.parametrize(
    ("export", "path", "status", "hint"),
    [
        (whole_model, "/collective_rpc", 404, "VLLM_SERVER_DEV_MODE=1"),
        (adapter, "/v1/load_lora_adapter", 404, "--enable-lora"),
        (adapter, "/v1/load_lora_adapter", 500, "--max-lora-rank"),  # which is vLLM's word for too large a rank
    ],
)
def test_a_server_that_takes_no_weights_says_how_to_start_it(
    export: Callable[[Path], None], path: str, status: int, hint: str, tmp_path: Path
) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        body: Any = reload(made, tmp_path, 0).body
        if export is adapter:
            name = f"{made._name}-0"
            body = {"lora_name": name, "lora_path": str(tmp_path / name)}
        recorded.add(Exchange(path, body, {"detail": "Not Found"}, status))
        with pytest.raises(ConfigError, match=f"HTTP {status}: Not Found; start it with .*{hint}"):
            made.follow({"w": torch.zeros(2)}, export, 2)
    assert made._weights is None, "they are sent again"


def test_a_prefix_cache_that_stays_is_an_error(tmp_path: Path) -> None:
    with replaying(START) as recorded:
        made = engine(recorded.url, tmp_path)
        recorded.add(reload(made, tmp_path, 0), reloaded(made)[0], replace(RESET, answer={"success": False}))
        with pytest.raises(RunError, match="keeps its prefix cache"):
            made.follow({"w": torch.zeros(2)}, whole_model, 2)


def test_each_command_of_the_docs_has_the_flags_without_which_no_answer_is_drawn() -> None:
    text = (Path(__file__).parents[4] / "docs/engines.md").read_text().replace("\\\n", "")
    commands = [line for line in text.splitlines() if line.startswith("VLLM_")]
    assert len(commands) == 2
    assert all("--enable-scale-out " in one and "--logprobs-mode processed_logprobs " in one for one in commands)


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"concurrency": 0}, {"retries": -1}, {"timeout_seconds": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            Vllm(name="vllm", **wrong)
    for urls in ([], ["http://a:1", "http://a:1"]):
        with pytest.raises(ValueError, match="url must name one server or several different ones"):
            Vllm(name="vllm", url=urls)
    elsewhere: list[str | list[str]] = ["http://gpu:8000", ["http://127.0.0.1:1", "http://127.0.0.1:2"]]
    for url in elsewhere:
        with pytest.raises(ValueError, match="start needs one url of this machine"):
            Vllm(name="vllm", start=True, url=url)
    with pytest.raises(ConfigError, match=r"must be 0, or at least 0.01 for vLLM, got 0.001"):
        replace(SAMPLING, temperature=0.001)


def test_a_fingerprint_tells_every_change() -> None:
    first = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    last_bit, swapped, signs = first.clone(), first.clone(), first.clone()
    last_bit[1, 7] = torch.nextafter(last_bit[1, 7], torch.tensor(9.0))
    swapped[0, [3, 4]] = first[0, [4, 3]]
    signs[2, 1] *= -1
    kinds = [first, last_bit, swapped, signs, first.bfloat16(), first.double()]
    assert len({fingerprint([kind]) for kind in kinds}) == len(kinds)
    assert fingerprint([first]) == fingerprint([first.clone()]) == fingerprint([first.t().contiguous().t()])
    assert fingerprint([first, signs]) != fingerprint([signs, first]) and fingerprint([]) == ()
