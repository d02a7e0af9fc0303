"""Answers that begin alike are drawn once, by the numbers that their paths name."""

from dataclasses import replace

import pytest
import torch

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Rollout, count_calls
from mmrl.modalities.tokens.completions import uniforms
from mmrl.modalities.tokens.sampling import SamplingDistribution, sample_tokens, sampling_log_probs
from mmrl.modalities.tokens.tree_generation import fork_points
from mmrl.modalities.tokens.vllm.engine import Vllm
from mmrl.plans.answers import AnswerPlan, AnswerTree, ForkTree, SegmentTree
from tests import vision_twins
from tests.modalities.grown_trees import FORKS, PLANS, SEGMENTS, everything, grown, tree, twin
from tests.vision_twins import PROMPTS, keys


def assert_same(found: Rollout, expected: Rollout) -> None:
    for name in ("tokens", "length", "log_prob", "entropy", "is_finished"):
        assert torch.equal(getattr(found.trace.completions, name), getattr(expected.trace.completions, name)), name
    for name in ("call", "edge", "weight"):
        assert torch.equal(getattr(found.blocks[0], name), getattr(expected.blocks[0], name)), name
    assert found.outputs.texts == expected.outputs.texts and found.num_calls == expected.num_calls


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        SegmentTree(4, 7, segment_tokens=3, branch=(4,)),
        SegmentTree(4, 7, segment_tokens=2, branch=(4, 1, 1)),
        ForkTree(4, 7, chains=4, rounds=0),
    ],
)
def test_a_tree_without_forks_is_the_plain_answers_bit_for_bit(plan: AnswerTree) -> None:
    assert_same(grown(twin(), plan), grown(twin(), AnswerPlan(4, 7)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANS)
def test_the_first_leaves_of_a_tree_are_the_plain_answers(kind: str) -> None:
    plain = grown(twin(), AnswerPlan(2, 7)).trace.completions.tokens.view(3, 2, 7)
    rollout = tree(kind)
    leaves = rollout.trace.completions.tokens.view(3, 2, -1, 7)  # of each root
    assert torch.equal(leaves[:, :, 0], plain)


@pytest.mark.slow
def test_every_segment_draws_by_the_stream_of_its_path() -> None:
    policy, rollout = twin(), tree()
    for sample in (0, 3, 6, 13, 23):
        root, *path = ((sample % 8) >> shift & 1 for shift in (2, 1, 0))
        names = [(root,), (root, path[0])[: 1 + path[0]], (root, *path) if path[1] else (root, path[0])[: 1 + path[0]]]
        streams = uniforms([keys(3)[sample // 8].seed_for("tokens", *name) for name in names], 7)
        uniform = torch.cat([streams[0, :2], streams[1, 2:4], streams[2, 4:]])
        log_probs = sampling_log_probs(
            vision_twins.slow_logits(policy, rollout, sample), SamplingDistribution(1.0, banned=policy.banned)
        )
        assert torch.equal(sample_tokens(log_probs, uniform), rollout.trace.completions.tokens[sample])
        entropy = torch.distributions.Categorical(logits=log_probs.double()).entropy().float()
        torch.testing.assert_close(rollout.blocks[0].facts["entropy"][sample], entropy, atol=1e-5, rtol=0)
        of_tokens = log_probs.gather(1, rollout.trace.completions.tokens[sample][:, None])[:, 0]
        torch.testing.assert_close(rollout.blocks[0].facts["log_prob"][sample], of_tokens, atol=1e-5, rtol=0)


def test_leaves_share_the_segments_up_to_where_they_part() -> None:
    edge = tree().blocks[0].edge.view(3, 8, 7)
    for one in range(8):
        for other in range(8):
            parts_at = next((2 * n for n, bit in enumerate((4, 2, 1)) if (one ^ other) & bit), 7)
            same = edge[:, one] == edge[:, other]
            assert same[:, :parts_at].all() and not same[:, parts_at:].any()
    assert len(edge.unique()) == 3 * (2 * 2 + 4 * 2 + 8 * 3)


@pytest.mark.parametrize("kind", PLANS)
def test_each_draw_counts_once_and_each_stretch_is_one_call_as_planned(kind: str) -> None:
    rollout, plan = tree(kind), PLANS[kind]
    block = rollout.blocks[0]
    totals = torch.zeros(int(block.edge.max()) + 1).index_add(0, block.edge.flatten(), block.weight.flatten())
    torch.testing.assert_close(totals, torch.ones_like(totals))
    assert rollout.num_samples == 3 * plan.num_samples
    assert rollout.num_calls == count_calls(block) == 3 * plan.num_rollout_calls == 3 * plan.num_update_calls
    assert rollout.counts["calls/prompt_reads"] == 3 * plan.shared_work["prompt_reads"]
    assert rollout.counts["tokens/sampled"] == len(totals) <= 3 * plan.max_sampled_tokens
    assert rollout.counts["tokens/without_sharing"] == 3 * plan.num_samples * 7
    for call in range(rollout.num_calls):  # a stretch is passed by the same leaves from its first token to its last
        rows = (block.call == call).any(1)
        assert torch.equal(block.call[rows] == call, (block.call[rows][:1] == call).expand(int(rows.sum()), -1))
        assert block.weight[block.call == call].unique().tolist() == [pytest.approx(1 / int(rows.sum()))]


def test_forks_leave_each_tree_where_its_entropy_was_highest() -> None:
    rollout = tree("forks")
    drawn, edge = rollout.trace.completions, rollout.blocks[0].edge
    for group in range(3):
        for chain in range(2):
            first = group * 10 + chain * 5
            forked: list[int] = []
            known = [first]
            for turn in range(2):
                open_places = {
                    int(edge[row, at]): (float(drawn.entropy[row, at]), at)
                    for row in known
                    for at in range(1, 7)
                    if int(edge[row, at]) not in forked
                }
                best = max(open_places, key=lambda name: open_places[name][0])
                at = open_places[best][1]
                children = [first + 1 + 2 * turn, first + 2 + 2 * turn]
                parent = next(row for row in known if int(edge[row, at]) == best)
                for child in children:
                    assert torch.equal(edge[child, :at], edge[parent, :at]) and edge[child, at] != edge[parent, at]
                forked += [best, *(int(edge[child, at]) for child in children)]
                known += children


def test_forks_may_go_by_probability_and_take_the_least_certain_of_each_tree() -> None:
    drawn = tree("forks").trace.completions.select(torch.tensor([0, 5]))
    drawn = replace(
        drawn,
        length=torch.tensor([4, 7]),
        log_prob=-torch.tensor([[9.0, 1, 3, 2, 8, 8, 8], [9, 1, 1, 5, 1, 4, 6]]),
        name=torch.arange(14).view(2, 7),
    )
    forks = fork_points(drawn, torch.tensor([0, 1]), torch.tensor([13]), 2, "probability")
    assert (forks.row.tolist(), forks.column.tolist(), forks.rank.tolist()) == (
        [0, 0, 1, 1],
        [2, 3, 3, 5],
        [0, 1, 0, 1],
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANS)
def test_neighbours_and_batches_change_no_draw(kind: str) -> None:
    plan, together = PLANS[kind], tree(kind)
    parts = [twin().rollout([prompt], [plan], [key]) for prompt, key in zip(PROMPTS, keys(3), strict=True)]
    narrow = grown(twin(answer_batch=3), plan)
    for found in (Rollout.join(parts), narrow):
        assert torch.equal(found.trace.completions.tokens, together.trace.completions.tokens)
        assert torch.equal(found.blocks[0].edge, together.blocks[0].edge)
        assert found.counts["tokens/sampled"] == together.counts["tokens/sampled"]


@pytest.mark.parametrize("kind", PLANS)
def test_what_has_ended_does_not_fork(kind: str) -> None:
    policy = twin()
    free = tree(kind)
    assert free.outputs.texts is not None
    stop = free.outputs.texts[0][0]  # the first character of the first leaf
    rollout = grown(policy, replace(PLANS[kind], stop=(stop,)))
    length, block = rollout.trace.completions.length, rollout.blocks[0]
    assert rollout.num_samples < free.num_samples and (length < 7).any()
    assert rollout.num_calls == count_calls(block) < free.num_calls
    assert torch.equal((block.edge >= 0).sum(1), length)
    totals = torch.zeros(int(block.edge.max()) + 1).index_add(
        0, block.edge[block.edge >= 0], block.weight[block.edge >= 0]
    )
    torch.testing.assert_close(totals, torch.ones_like(totals))
    with torch.no_grad():
        found = policy.forward(rollout, everything(rollout)).values
    torch.testing.assert_close(found, rollout.trace.completions.log_prob, atol=1e-5, rtol=0)


def test_of_leaves_that_the_budget_cut_nothing_is_learned_but_by_others() -> None:
    free = tree()
    assert free.outputs.texts is not None
    plan = replace(SEGMENTS, stop=(free.outputs.texts[0][4:6],), masks_truncated=True)
    rollout = grown(twin(), plan)
    finished, block = rollout.trace.completions.is_finished, rollout.blocks[0]
    assert finished.any() and not finished.all()
    assert torch.equal((block.edge >= 0).any(1), finished)
    totals = torch.zeros(int(block.edge.max()) + 1).index_add(
        0, block.edge.clamp(min=0).flatten(), block.weight.flatten()
    )
    torch.testing.assert_close(totals, torch.ones_like(totals))


@pytest.mark.slow
def test_truncated_distributions_keep_the_support_of_shared_draws() -> None:
    policy, distribution = twin(), {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.01}
    for plan in PLANS.values():
        rollout = grown(policy, replace(plan, **distribution))  # type: ignore[arg-type]
        with torch.no_grad():
            found = policy.forward(rollout, everything(rollout)).values
        torch.testing.assert_close(found, rollout.trace.completions.log_prob, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_another_engine_and_sharded_processes_draw_no_trees() -> None:
    policy = vision_twins.policy(engine=Vllm(name="vllm", url="http://127.0.0.1:9"))
    with pytest.raises(ConfigError, match="the engine samples no trees of answers; use sampler 'autoregressive'"):
        grown(policy, SEGMENTS)
    policy = vision_twins.policy()
    policy.prepare(Placement(torch.device("cpu"), torch.float32, maximum=lambda count: count))
    with pytest.raises(ConfigError, match="sharded processes sample no trees"):
        grown(policy, FORKS)
