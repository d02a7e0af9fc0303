"""docs/serving.md: its example is answered as it says, its configs are read, its file for flow_grpo's server works."""

import json
import re
import sys
import threading
from http.server import HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
import torch
import yaml

from mmrl.core.config import ScoringSettings
from mmrl.core.data import Outputs
from mmrl.core.wire import Item, Request, WirePrompt
from mmrl.rewards.text.exact_answer import ExactAnswer
from mmrl.scoring.scorer import build_scorer
from mmrl.scoring.server import RewardServer, serving
from tests.rewards.example import make_batch

PAGE = (Path(__file__).parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.timeout(60)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_example_is_answered_as_the_page_says() -> None:
    request, response = map(json.loads, blocks("json"))
    with serving(RewardServer({"exact_answer": ExactAnswer()}), "127.0.0.1", 0) as url:
        assert httpx2.post(f"{url}/v1/rewards/exact_answer/scores", json=request).json() == response


def test_the_rewards_of_the_page_are_built() -> None:
    for block in blocks("yaml"):
        scorer = build_scorer(yaml.safe_load(block)["rewards"], ScoringSettings())
        assert scorer.terms[0].reward.needs == {"images", "service"}


def test_the_page_has_every_field_of_a_request() -> None:
    protocol = PAGE.partition("## The protocol")[2].partition("## Servers of other trainers")[0]
    named = set(re.findall(r"`(\w+)`", protocol))
    fields = {*Request.model_fields, *Item.model_fields, *WirePrompt.model_fields}
    assert fields <= named, fields - named


def test_the_file_beside_the_server_of_flow_grpo_answers_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("python")
    package, module = ModuleType("reward_server"), ModuleType("reward_server.gen_eval")
    seen: list[Any] = []

    def judge(images: list[Any], targets: list[Any], only_strict: bool) -> Any:
        seen.extend([targets, only_strict])
        return [image.convert("L").getpixel((0, 0)) / 255 for image in images], None, None, None, None

    module.load_geneval = lambda: judge  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reward_server", package)
    monkeypatch.setitem(sys.modules, "reward_server.gen_eval", module)
    names: dict[str, Any] = {"__name__": "json_server"}
    exec(compile(code, "json_server.py", "exec"), names)
    handler = type("Quiet", (names["Handler"],), {"log_message": lambda *_: None})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        section = {"name": "http", "url": url, "protocol": "flow_grpo", "needs": ["images", "target.tag"]}
        reward = build_scorer([section], ScoringSettings()).terms[0].reward
        images = torch.stack([torch.zeros(3, 16, 16), torch.ones(3, 16, 16)])
        values = reward.score(make_batch(Outputs(images=images), ["a", "b"], [{"tag": "x"}, {"tag": "y"}]))
        server.shutdown()
        thread.join()
    assert values.tolist() == [0.0, 1.0]
    assert seen == [[{"prompt": "a", "tag": "x"}, {"prompt": "b", "tag": "y"}], True]
