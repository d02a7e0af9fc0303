"""The spread of a group's answers, against a loop over positions and tokens, and against transformers' own forward."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mmrl.assembly.build import build, make_trainer
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError
from mmrl.modalities.tokens.log_probs import OutputHead
from mmrl.modalities.tokens.sampling import SamplingDistribution
from mmrl.modalities.tokens.spread import group_spread
from mmrl.training.thought import ThoughtReader
from tests import vision_twins
from tests.parameters import in_one_test


def slow(log_p: list[list[list[float]]]) -> list[float]:
    """The spreads of answers, as lists of positions, each with the log-probs of its tokens; by plain loops."""
    num_tokens, found = len(log_p[0][0]), []
    for position in range(max(map(len, log_p))):
        every = [one[position] if position < len(one) else [-math.log(num_tokens)] * num_tokens for one in log_p]
        total = 0.0
        for own in every:
            for token in range(num_tokens):
                mean = sum(one[token] for one in every) / len(every)
                gap = min(11.0, max(-11.0, mean - own[token]))
                total += math.exp(gap) - gap - 1
        found.append(total / len(every))
    return found


def log_probs(states: Tensor, weight: Tensor, temperature: float, banned: tuple[int, ...]) -> list[list[float]]:
    may = [token for token in range(len(weight)) if token not in banned]
    rows: list[list[float]] = (states @ weight.T / temperature)[:, may].log_softmax(1).tolist()
    return rows


@in_one_test("chunk", [1, 60, 10_000])
@in_one_test("banned", [(), (2, 5)])
def test_the_spread_is_that_of_plain_loops(banned: tuple[int, ...], chunk: int) -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(7, 4, generator=random, dtype=torch.float64)
    states = [3 * torch.randn(count, 4, generator=random, dtype=torch.float64) for count in (3, 5, 1)]
    found = group_spread(states, OutputHead(weight), SamplingDistribution(0.5, banned=banned), chunk)
    expected = slow([log_probs(one, weight, 0.5, banned) for one in states])
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=1e-9)
    assert not found.requires_grad


def test_answers_that_expect_the_same_have_none_until_one_ends() -> None:
    weight, state = torch.eye(3), torch.tensor([[2.0, 0.0, 0.0]])
    found = group_spread([state.expand(2, 3), state], OutputHead(weight), SamplingDistribution(1.0), 100)
    assert found.shape == (2,) and found[0] == 0 and found[1] > 0


def test_unlikely_tokens_are_cut_where_they_would_overflow() -> None:
    far = [torch.tensor([[500.0, 0.0]]), torch.tensor([[0.0, 500.0]])]
    found = group_spread(far, OutputHead(torch.eye(2)), SamplingDistribution(1.0), 9)
    # both means are -250: gaps of -250 and 250, cut to -11 and 11
    assert found.item() == pytest.approx(math.exp(11.0) + math.exp(-11.0) - 2)


@pytest.mark.slow
def test_a_policy_reads_the_spread_of_its_groups_and_calls_its_network_once_for_each_answer() -> None:
    policy = vision_twins.policy()
    rollout = vision_twins.rollout(policy, 8, temperature=0.7)
    before = policy.num_calls
    found = ThoughtReader(2).with_spread(policy, rollout).blocks[0].facts["spread"]
    assert policy.num_calls == before + rollout.num_samples
    may = [token for token in range(len(policy.head.weight)) if token not in policy.banned]
    length = rollout.trace.completions.length.tolist()
    for group in rollout.group.unique().tolist():
        rows = (rollout.group == group).nonzero()[:, 0].tolist()
        log_p = [
            (vision_twins.slow_logits(policy, rollout, row)[: length[row], may] / 0.7).log_softmax(1).tolist()
            for row in rows
        ]
        expected = torch.tensor(slow(log_p))
        for row in rows:
            torch.testing.assert_close(found[row, : length[row]], expected[: length[row]], atol=1e-4, rtol=1e-4)
            assert not found[row, length[row] :].any()


SMALL = [
    "group_size=4", "prompts_per_iteration=2", "updates.minibatches=1", "iterations=1", "sampler.max_tokens=8",
    "evaluation=null", "prompts.held_out=null", "checkpoint.every=0",
]  # fmt: skip


def parameters_of(folder: Path, *overrides: str) -> tuple[dict[str, Tensor], int]:
    """The trained weights of a lab's run after one iteration, and its network calls."""
    config = load_config("lab/grpo", [*SMALL, *overrides])
    trainer = make_trainer(config, build(config), folder)
    assert trainer.train()
    trained = trainer.policy.weights.tensors("trained")
    return {name: one.clone() for name, one in trained.items()}, trainer.progress.network_calls


@pytest.mark.slow
def test_a_run_with_weights_of_one_is_a_run_of_grpo_and_reads_each_answer_once_more(tmp_path: Path) -> None:
    plain, calls = parameters_of(tmp_path / "plain")
    ones, more = parameters_of(tmp_path / "ones", "advantage={name: token_weighted, max_weight: 1}")
    weighted, _ = parameters_of(tmp_path / "weighted", "advantage={name: token_weighted, max_weight: 3}")
    assert more == calls + 8
    assert all(torch.equal(plain[name], ones[name]) for name in plain)
    assert any(not torch.equal(plain[name], weighted[name]) for name in plain)


@in_one_test(
    ("config", "overrides", "message"),
    [
        ("lab/flow_grpo", [], "requires spread of each decision"),
        ("lab/grpo", ["sharding=full"], "not read by sharded weights; set sharding to none"),
        (
            "lab/grpo",
            ["groups.more={budget: 4, per_prompt: 2, exploration: 0.1}"],
            "groups.more samples them in parts",
        ),
    ],
)
def test_where_no_spread_can_be_read_it_is_refused(config: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        build(load_config(config, ["advantage={name: token_weighted}", *overrides]))
