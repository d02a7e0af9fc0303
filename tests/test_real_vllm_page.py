"""The page of a real vLLM says what its measurements say."""

import importlib
from typing import Any

page: Any = importlib.import_module("benchmarks.real_vllm.page")


def test_the_page_is_made_of_the_results() -> None:
    assert page.FILE.read_text(encoding="utf-8") == page.page(), "run `python -m benchmarks.real_vllm page`"
