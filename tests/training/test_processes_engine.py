"""Four processes and two inference engines make the same run as one of each."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mmrl.modalities.tokens.vllm.tiny_server import TinyVllm, serve
from tests.modalities.tokens.vllm.test_vllm_runs import load
from tests.parameters import slow_but
from tests.process_runs import assert_same_run, metrics, train
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
@pytest.mark.parametrize("modality", slow_but([FULL, LORA], FULL))
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
