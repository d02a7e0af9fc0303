"""Four processes and two inference engines make the same run as one of each."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mmrl.modalities.tokens.vllm.tiny_server import TinyVllm, serve
from tests.modalities.tokens.vllm.test_vllm_runs import load
from tests.process_runs import assert_same_run, metrics, mmrl, train
from tests.training.test_processes_texts import FULL, LORA, grpo, write_questions
from tests.vision_twins import twin


def counting_server(asked: Counter[str]) -> str:
    """The address of a server that counts its requests by their path."""
    server = TinyVllm(twin("qwen2_5_vl"), load)

    def answer(method: str, path: str, body: Any) -> Any:
        asked[path] += 1
        return server.answer(method, path, body)

    return serve(answer, lambda: True)


@pytest.mark.slow  # five processes that train
@pytest.mark.parametrize("modality", [FULL, LORA])
def test_four_processes_with_two_servers_make_the_run_of_one_with_one(modality: dict[str, Any], tmp_path: Path) -> None:
    asked: list[Counter[str]] = [Counter() for _ in range(3)]
    urls = [counting_server(counter) for counter in asked]
    write_questions(tmp_path, {"modality": modality, "loss": grpo("decision")})
    one = train(tmp_path, "one", 1, f"modality.engine={json.dumps({'name': 'vllm', 'url': urls[0]})}")
    four = train(tmp_path, "four", 4, f"modality.engine={json.dumps({'name': 'vllm', 'url': urls[1:]})}")
    assert_same_run(one, four, processes=4)
    sent = "/collective_rpc" if modality is FULL else "/v1/load_lora_adapter"
    assert asked[1][sent] == asked[2][sent] == asked[0][sent] > 2, "once for all processes"
    assert min(asked[number]["/inference/v1/generate"] for number in (1, 2)) > 10, "both sample"


@pytest.mark.slow  # three processes that train
@pytest.mark.parametrize("modality", [FULL, LORA])
def test_processes_that_share_the_weights_send_them_and_make_the_run_of_one(
    modality: dict[str, Any], tmp_path: Path
) -> None:
    asked: list[Counter[str]] = [Counter() for _ in range(2)]
    urls = [counting_server(counter) for counter in asked]
    idle = {"prompts_per_iteration": 1} if modality is LORA else {}  # one of the two has no group
    write_questions(tmp_path, {"modality": modality, "loss": grpo("decision"), **idle})
    engines = [f"modality.engine={json.dumps({'name': 'vllm', 'url': url})}" for url in urls]
    one = train(tmp_path, "one", 1, engines[0])
    two = train(tmp_path, "two", 2, engines[1], "sharding=full")
    assert_same_run(one, two)
    sent = "/collective_rpc" if modality is FULL else "/v1/load_lora_adapter"
    assert asked[0][sent] == asked[1][sent] > 2, "once for both"


def breaking_server(asked: Counter[str], broken: int) -> str:
    """The address of a server that ends in the middle of its `broken`-th answer, and is at once another one."""
    servers = [TinyVllm(twin("qwen2_5_vl"), load)]

    def answer(method: str, path: str, body: Any) -> Any:
        asked[path] += 1
        if path == "/inference/v1/generate" and asked[path] == broken:
            servers.append(TinyVllm(twin("qwen2_5_vl"), load))
            raise ConnectionResetError("the server ends")
        return servers[-1].answer(method, path, body)

    return serve(answer, lambda: True)


@pytest.mark.slow  # five processes that train
def test_processes_wait_together_for_a_server_that_is_started_anew(tmp_path: Path) -> None:
    whole, broken = Counter[str](), Counter[str]()
    urls = {"whole": counting_server(whole), "broken": breaking_server(broken, 30)}
    write_questions(tmp_path, {"modality": LORA, "loss": grpo("decision")})
    engines = {
        name: f"modality.engine={json.dumps({'name': 'vllm', 'url': url, 'outage_seconds': 60.0})}"
        for name, url in urls.items()
    }
    one = train(tmp_path, "whole", 1, engines["whole"])
    two = train(tmp_path, "broken", 2, engines["broken"])
    assert_same_run(one, two)
    assert broken["/v1/load_lora_adapter"] == whole["/v1/load_lora_adapter"] + 1, "sent once more"
    ends = mmrl(tmp_path, ["train", "run.yaml", "--out", "lost", engine_of(breaking_server(Counter(), 30))], 2)
    assert [end.code for end in ends] == [1, 1]
    said = " ".join(" ".join(end.said for end in ends).split())
    lost = ("broke off while it answered", "no longer has the adapter of this run")  # whichever process says it first
    assert any(words in said for words in lost), "nobody waits where no time is set"


def engine_of(url: str) -> str:
    return f"modality.engine={json.dumps({'name': 'vllm', 'url': url})}"


@pytest.mark.slow  # three processes that train
def test_two_processes_that_sample_ahead_make_the_run_of_one(tmp_path: Path) -> None:
    asked: list[Counter[str]] = [Counter() for _ in range(2)]
    urls = [counting_server(counter) for counter in asked]
    write_questions(tmp_path, {"modality": FULL, "loss": grpo("decision")})
    engines = [f"modality.engine={json.dumps({'name': 'vllm', 'url': url})}" for url in urls]
    one = train(tmp_path, "one", 1, engines[0], "rollout.ahead=1")
    two = train(tmp_path, "two", 2, engines[1], "rollout.ahead=1")
    assert_same_run(one, two)
    assert [line["rollout/staleness"] for line in metrics(two) if "rollout/staleness" in line] == [0, 1, 1]
    assert asked[0]["/collective_rpc"] == asked[1]["/collective_rpc"]
