"""Rewards in actors: which are placed, and that scores stay. With Ray: tests/test_ray_runs.py."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core import actors
from mmrl.core.actors import ActorSettings
from mmrl.core.config import ScoringSettings
from mmrl.core.contracts import Placement
from mmrl.core.data import Outputs
from mmrl.scoring.calls import call_reward
from mmrl.scoring.placed_rewards import PlacedReward
from mmrl.scoring.scorer import build_scorer
from tests.core.test_actors import FakeActor
from tests.ray_worlds import Brightness
from tests.rewards.example import make_batch

CPU = Placement(torch.device("cpu"), torch.float32)


def test_rewards_with_models_and_services_are_placed_and_others_are_not() -> None:
    sections: list[dict[str, Any]] = [
        {"name": "shapes"},
        {"name": "clip_score"},
        {"name": "clip_score", "label": "here", "device": "cpu"},
        {"name": "http", "url": "http://localhost:1", "reward": "x", "needs": ["images"]},
        {"name": "vlm_judge", "prompt": "image_fits", "judges": [{"url": "http://localhost:1/v1"}]},
        {"name": "threshold", "reward": {"name": "clip_score"}, "threshold": 0.5, "label": "wrapper"},
    ]
    for pool, expected in (("ray", {"clip_score", "vlm_judge"}), ("threads", set())):
        settings = ScoringSettings(pool=pool)  # type: ignore[arg-type]  # one of both
        terms = build_scorer(sections, settings).terms
        assert {term.name for term in terms if isinstance(term.reward, PlacedReward)} == expected


@pytest.mark.slow
def test_scores_failures_and_counts_are_those_of_the_reward(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(actors, "Actor", FakeActor)
    FakeActor.ends, FakeActor.count, FakeActor.made = {2}, 0, 0
    monkeypatch.setattr(actors, "PAUSE", 0.0)
    images = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    batch = make_batch(Outputs(images=images), ["x"] * 12)
    plain, placed = (Brightness(str(tmp_path), 0.0) for _ in range(2))
    plain.prepare(CPU)
    pool = PlacedReward(placed, ActorSettings(), copies=2)
    pool.prepare(CPU)
    found, wanted = call_reward("x", pool, batch), call_reward("x", plain, batch)
    assert FakeActor.made == 3, "two copies, and one in the place of the one that ended"
    torch.testing.assert_close(found.values, wanted.values, rtol=0, atol=0, equal_nan=True)
    assert found.values.isnan().any() == wanted.values.isnan().any()
    assert pool.declaration.concurrency == 2 and pool.batch_size == 4 and pool.needs == plain.needs
    assert pool.spent() == {}
