"""Forced rethinking: answers go on behind a trigger, beside their group, with the log-probs of the policy."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.core.views import DecisionView
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan, RethinkingPlan
from tests import vision_twins
from tests.parameters import in_one_test

TRIGGERS = (" wait", "\n\nno")


def sampler(**settings: Any) -> Any:
    return build("samplers", {"name": "rethinking", "max_tokens": 24, "room": 4, "triggers": TRIGGERS, **settings})


class Brief(VisionLanguage):
    """A policy whose answers end early, since every third token is an end token."""

    @property
    def end_tokens(self) -> tuple[int, ...]:
        of_triggers = {token for text in TRIGGERS for token in self.tokenize(text)}
        return (*super().end_tokens, *sorted(set(range(0, 200, 3)) - of_triggers))


def rolled(policy: VisionLanguage, count: int = 6, first: int = 0, prompts: Any = vision_twins.PROMPTS) -> Rollout:
    plan = sampler().plan(policy, GroupKey(0, 0, 0), count)
    assert isinstance(plan, RethinkingPlan)
    return policy.rollout(prompts, [plan] * len(prompts), [GroupKey(1, 0, first + n) for n in range(len(prompts))])


@pytest.fixture(scope="module")
def policy() -> VisionLanguage:
    return vision_twins.prepared(Brief)


@pytest.fixture(scope="module")
def rollout(policy: VisionLanguage) -> Rollout:
    return rolled(policy)


def _parts(policy: VisionLanguage, rollout: Rollout, row: int) -> tuple[list[int], int, list[int]]:
    """The answer before the trigger, the trigger, and what follows, of a row that went on."""
    tokens = rollout.trace.completions.tokens[row, : int(rollout.trace.completions.length[row])].tolist()
    for kind, text in enumerate(TRIGGERS):
        trigger = list(policy.tokenize(text))
        for start in range(len(tokens) - len(trigger)):
            if tokens[start : start + len(trigger)] == trigger:
                return tokens[:start], kind, tokens[start + len(trigger) :]
    raise AssertionError("no trigger")


@pytest.mark.slow
def test_members_go_on_behind_a_trigger_and_stay_in_their_group(policy: VisionLanguage, rollout: Rollout) -> None:
    completions, further = rollout.trace.completions, rollout.is_control.nonzero()[:, 0].tolist()
    assert len(further) >= 4 and (rollout.prompt.diff() >= 0).all()
    plain = policy.rollout(vision_twins.PROMPTS, [AnswerPlan(6, 24)] * 3, [GroupKey(1, 0, n) for n in range(3)])
    own = completions.select((~rollout.is_control).nonzero()[:, 0])
    assert torch.equal(own.tokens[own.tokens > 0], plain.trace.completions.tokens[plain.trace.completions.tokens > 0])
    kinds = set()
    for row in further:
        before, kind, after = _parts(policy, rollout, row)
        kinds.add(kind)
        members = ((rollout.prompt == rollout.prompt[row]) & ~rollout.is_control).nonzero()[:, 0].tolist()
        answers = [completions.tokens[n, : int(completions.length[n]) - 1].tolist() for n in members]
        assert before in answers, "an answer of the group without its end token"
        assert len(after) >= 1 and int(completions.length[row]) <= 24
        assert bool(completions.is_finished[row]) == (after[-1] in policy.end_tokens)
    assert kinds == {0, 1}
    for number in range(3):
        assert int((rollout.is_control & (rollout.prompt == number)).sum()) <= 4, "65% of 6"


@pytest.mark.slow
def test_log_probs_of_what_went_on_are_those_of_transformers_own_forward(
    policy: VisionLanguage, rollout: Rollout
) -> None:
    """The trigger's too, which nobody sampled; and every token is a decision of its own."""
    block, completions = rollout.blocks[0], rollout.trace.completions
    recorded = policy.recorded(rollout, DecisionView(torch.arange(rollout.num_samples))).values
    for row in rollout.is_control.nonzero()[:3, 0].tolist():
        length = int(completions.length[row])
        logits = vision_twins.slow_logits(policy, rollout, row)
        logits[:, list(policy.banned)] = -torch.inf
        expected = logits.log_softmax(1).gather(1, completions.tokens[row, :length, None])[:, 0]
        assert_close(recorded[row, :length], expected, atol=2e-5, rtol=1e-4)
        assert (block.weight[row, :length] == 1).all() and (block.edge[row, :length] >= 0).all()
    assert len(block.edge[block.edge >= 0].unique()) == int(completions.length.sum())


@pytest.mark.slow
def test_what_goes_on_does_not_depend_on_what_else_is_sampled(policy: VisionLanguage, rollout: Rollout) -> None:
    alone = rolled(policy, first=1, prompts=vision_twins.PROMPTS[1:2])
    rows = (rollout.prompt == 1).nonzero()[:, 0]
    same, texts = alone.outputs.texts, rollout.outputs.texts
    assert same is not None and texts is not None
    assert list(same) == [texts[row] for row in rows.tolist()]
    assert torch.equal(alone.is_control, rollout.is_control[rows])


@pytest.mark.slow
def test_nothing_goes_on_where_no_room_is_left(policy: VisionLanguage) -> None:
    plan = sampler(room=23).plan(policy, GroupKey(0, 0, 0), 3)
    assert not policy.rollout(vision_twins.PROMPTS[:1], [plan], vision_twins.keys(1)).is_control.any()


@pytest.mark.slow
def test_a_trigger_that_no_answer_may_hold_is_refused(policy: VisionLanguage) -> None:
    plan = sampler(triggers=["<|image_pad|>"]).plan(policy, GroupKey(0, 0, 0), 3)
    with pytest.raises(ConfigError, match="spells a media token or an end token"):
        policy.rollout(vision_twins.PROMPTS[:1], [plan], vision_twins.keys(1))


def test_the_settings_reach_the_plan() -> None:
    plan = sampler(share=0.5).plan(None, GroupKey(0, 0, 0), 8)
    assert (plan.num_samples, plan.num_rethought, plan.triggers, plan.room) == (8, 4, TRIGGERS, 4)
    assert (plan.num_rollout_calls, plan.num_update_calls, plan.is_bound) == (12, 12, True)
    assert sampler(share=0.01).plan(None, GroupKey(0, 0, 0), 8).num_rethought == 1


@in_one_test(
    ("settings", "message"),
    [
        ({"share": 0}, "share must be above 0"),
        ({"triggers": []}, "triggers must be texts"),
        ({"triggers": ["a", ""]}, "triggers must be texts"),
        ({"room": 24}, "room must be below max_tokens 24, got 24"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"top_p": 0.9}, "top_p, top_k and min_p left out"),
        ({"stop": ["a"]}, "have no stop, no controls"),
        ({"greedy": True}, "have no stop, no controls"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sampler(**settings)
