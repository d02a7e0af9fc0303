"""The right answer before and after each turn of an agent: by transformers' own forward, and as a reward of a run."""

import math
from pathlib import Path

import pytest

from mmrl.assembly.build import build, make_trainer
from mmrl.assembly.compatibility import example_plan
from mmrl.assembly.reward_checks import check_thought
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs, Rollout
from mmrl.core.likelihoods import right_answer_of
from mmrl.labs.tasks import world
from mmrl.modalities.agent import Agent
from mmrl.rewards.episodes.information_gain import InformationGain
from mmrl.scoring.scorer import RewardTerm, Scorer
from mmrl.training.thought import ThoughtReader
from tests import vision_twins

SMALL = ["group_size=4", "prompts_per_iteration=2", "iterations=2", "evaluation=null", "prompts.held_out=null",
         "checkpoint.every=0", "sampler.max_turns=3"]  # fmt: skip


def slow(policy: Agent, rollout: Rollout, row: int) -> float:
    """The mean log-prob of the right answer and its closing tag before a turn, by a forward pass for each token."""
    prompt = rollout.prompts[int(rollout.prompt[row])]
    end = f"{right_answer_of(prompt)}</answer>"
    given = policy.offline([prompt], Outputs(texts=(f"<answer>{end}",)), vision_twins.keys(1))
    may = [token for token in range(len(policy.head.weight)) if token not in policy.banned]
    log_p = vision_twins.slow_logits(policy, given, 0)[:, may].log_softmax(1)
    tokens = given.trace.completions.tokens[0].tolist()
    texts = [policy.decode([token]) for token in tokens]
    first = next(n for n in range(len(texts)) if "".join(texts[: n + 1]) == "<answer>") + 1
    assert "".join(texts[first:-1]) == end
    return float(sum(log_p[n, may.index(tokens[n])] for n in range(first, len(tokens) - 1)) / (len(tokens) - 1 - first))


@pytest.mark.slow
def test_the_answer_is_read_before_each_turn_and_before_the_next(tmp_path: Path) -> None:
    config = load_config("lab/igpo", SMALL)
    trainer = make_trainer(config, build(config), tmp_path)
    policy = trainer.policy
    assert isinstance(policy, Agent)
    collected = trainer.collector(0, "trained")
    rollout = collected.rollout
    assert rollout is not None
    before = policy.num_calls
    found = ThoughtReader(3)(policy, rollout, {"turn_answer.trained"}).turn_answer["trained"]
    assert policy.num_calls == before + len(set(rollout.prompt.tolist())) < before + rollout.num_samples
    gains = collected.scores.values[:, collected.scores.names.index("information_gain")]
    rows = {(int(rollout.episode[n]), int(rollout.turn[n])): n for n in range(rollout.num_samples)}
    assert max(turn for _, turn in rows) > 0
    for (episode, turn), row in list(rows.items())[:8]:
        assert found[row, 0].item() == pytest.approx(slow(policy, rollout, row), abs=1e-4)
        later = rows.get((episode, turn + 1))
        if later is None:
            assert math.isnan(found[row, 1]) and gains[row] == 0
        else:
            assert found[row, 1] == found[later, 0]
            assert gains[row].item() == pytest.approx(float(found[later, 0].exp() - found[row, 0].exp()), abs=1e-5)
    assert gains.abs().max() > 1e-4


def test_the_lab_knows_the_click_that_completes_a_task() -> None:
    prompts = world.prompts("answered")
    assert [one.text for one in prompts] == [one.text for one in world.prompts("train")[: len(prompts)]]
    for one in prompts[:40]:
        task, (x, y) = world.task(one.target["task"]), map(int, one.target["answer"].strip("()").split(","))
        ends = [state for state in world.reachable(task) if task.after(state, x, y).is_done]
        assert ends and all(world.centre(world.oracle(task.names, task.look(state))) for state in ends)


@pytest.mark.slow
def test_questions_have_no_turns() -> None:
    config = load_config("lab/grpo", ["evaluation=null"])
    parts = build(config)
    scorer, plan = Scorer((RewardTerm("r", InformationGain()),)), example_plan(parts.sampler, 4, parts.policy)
    with pytest.raises(ConfigError, match=r"needs turn_answer\.trained: the right answer before each turn, and 'gui'"):
        check_thought(config, parts.policy, scorer, parts.loss, plan)
