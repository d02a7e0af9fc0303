"""Trees of answers that a tiny policy draws."""

from functools import cache
from typing import Any

import torch

from mmrl.core.data import Rollout, count_calls
from mmrl.core.views import DecisionView
from mmrl.modalities.vision_language import VisionLanguage
from mmrl.plans.answers import AnswerPlan, AnswerTree, ForkTree, SegmentTree
from tests import vision_twins
from tests.vision_twins import PROMPTS, keys

SEGMENTS = SegmentTree(8, 7, segment_tokens=2, branch=(2, 2, 2))
FORKS = ForkTree(10, 7, chains=2, rounds=2, forks=1, branch=2)
PLANS: dict[str, AnswerTree] = {"segments": SEGMENTS, "forks": FORKS}


def grown(policy: VisionLanguage, plan: AnswerPlan) -> Rollout:
    return policy.rollout(PROMPTS, [plan] * 3, keys(3))


@cache
def twin(family: str = "qwen2_5_vl", **settings: Any) -> VisionLanguage:
    return vision_twins.policy(family, **settings)


@cache
def tree(kind: str = "segments", family: str = "qwen2_5_vl") -> Rollout:
    return grown(twin(family), PLANS[kind])


def everything(rollout: Rollout) -> DecisionView:
    return DecisionView(torch.arange(count_calls(rollout.blocks[0])))
