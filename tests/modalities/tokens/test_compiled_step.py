"""The compiled decoding step samples what the network samples as it is, by few programs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tokens.generation import AnswerGenerator
from mmrl.modalities.tokens.one_token_attention import one_token_attention
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan, SegmentTree
from tests import vision_twins
from tests.parameters import in_one_test

Programs = list[int]


class Compiling(VisionLanguage):
    """Compiles by a backend that makes no kernels, and counts programs."""

    programs: Programs = []  # noqa: RUF012  # of the class


def counting(graph: Any, _inputs: Any, **_given: Any) -> Callable[..., Any]:
    Compiling.programs.append(1)
    found: Callable[..., Any] = graph.forward
    return found


def compiling(family: str = "qwen2_5_vl", backend: Any = counting, **settings: Any) -> Compiling:
    torch.compiler.reset()
    Compiling.programs.clear()
    Compiling.compile_backend = backend if isinstance(backend, str) else staticmethod(backend)
    return vision_twins.prepared(Compiling, family, compile=True, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [counting, "aot_eager"])
@pytest.mark.parametrize("leave_from", [None, 1.0])
def test_answers_are_those_of_the_network_as_it_is_and_programs_are_few(
    backend: Any, leave_from: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnswerGenerator, "_read_every", 4)
    plain, compiled = vision_twins.policy(), compiling(backend=backend)
    for budget in (12, 9):
        expected = vision_twins.rollout(plain, budget, stop=("e", "t")).trace.completions
        found = vision_twins.rollout(compiled, budget, stop=("e", "t")).trace.completions
        assert torch.equal(found.tokens, expected.tokens) and torch.equal(found.is_finished, expected.is_finished)
        torch.testing.assert_close(found.log_prob, expected.log_prob, atol=1e-5, rtol=0)
    if backend is counting:
        first = len(Compiling.programs)
        assert first > 0
        for number in range(3):  # other prompts, other numbers of answers, other weights
            for tensor in compiled.weights.parameters.values():
                tensor.data.mul_(1.01)
            prompts = [Prompt("a longer question about the box" * (number + 1))]
            compiled.rollout(prompts, [AnswerPlan(3 + number, 20)], [GroupKey(1, 0, number)])
        assert len(Compiling.programs) <= 2 * first


@pytest.mark.slow
def test_trees_and_merged_adapters_are_sampled_by_the_compiled_step_too() -> None:
    lora = Lora(rank=2, alpha=4, merge_rollouts=True)
    found = []
    for policy in (vision_twins.policy(lora=lora), compiling(lora=lora)):
        generator = torch.Generator().manual_seed(5)
        for name, tensor in policy.weights.parameters.items():
            if "lora_B" in name:
                tensor.data.copy_(torch.randn(tensor.shape, generator=generator) / 10)
        plan = SegmentTree(4, 6, segment_tokens=3, branch=(2, 2))
        found.append(policy.rollout(vision_twins.PROMPTS[:1], [plan], [GroupKey(1, 0, 0)]).trace.completions)
    assert Compiling.programs and torch.equal(found[0].tokens, found[1].tokens)
    torch.testing.assert_close(found[0].log_prob, found[1].log_prob, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "why"), [("gemma3", "layers with a window"), ("qwen3_5", "layers with a window")])
def test_models_with_windows_or_states_are_refused(family: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"modality\.compile: .* cannot be compiled: .*{why}"):
        compiling(family)


def test_other_attention_engines_and_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match="its attention is eager"):
        compiling(attention="eager")
    with pytest.raises(ValueError, match="compile is for rollouts by transformers, and an engine is set"):
        VisionLanguage(model="x/y", compile=True, engine=Vllm(name="vllm", url="http://localhost:1"))
    sharded = Placement(torch.device("cpu"), torch.float32, maximum=lambda count: count)
    with pytest.raises(ConfigError, match=r"modality\.compile: not with weights that are sharded"):
        VisionLanguage(model="x/y", compile=True).prepare(sharded)


@in_one_test(("heads", "shared"), [(6, 2), (4, 4), (5, 1)])
def test_attention_of_one_token_is_that_of_a_loop_over_heads(heads: int, shared: int) -> None:
    count, length, width = 3, 7, 8
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(count, heads, 1, width, generator=generator)
    key, value = (torch.randn(count, shared, length, width, generator=generator) for _ in range(2))
    seen = torch.rand(count, length, generator=generator) < 0.6
    seen[:, 0] = True
    found, _ = one_token_attention(torch.nn.Module(), query, key, value, seen[:, None, None], scaling=0.3)
    for row in range(count):
        for head in range(heads):
            of = head * shared // heads
            scores = 0.3 * (key[row, of] @ query[row, head, 0])  # [L]
            weights = torch.where(seen[row], scores.exp(), 0)
            expected = (weights / weights.sum()) @ value[row, of]
            torch.testing.assert_close(found[row, 0, head], expected, atol=1e-6, rtol=1e-5)
