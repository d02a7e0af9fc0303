"""What holds for every reward that holds others: sizes of batches, concurrency, gradients, rewards that learn."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Granularity, RewardBatch
from mmrl.core.data import Outputs, Scores
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.plugins import build
from tests.parameters import in_one_test
from tests.rewards.example import make_batch
from tests.rewards.inner import SECOND, WRITTEN, Written, said, wrapped

FEW: dict[str, Any] = {"name": "tests.rewards.base.test_wrapper:Few"}


@dataclass
class Few(Written):
    """It refuses more than two samples at once, and asks a server."""

    batch_size: ClassVar[int | None] = 2
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "service"})
    declaration: ClassVar[RewardDeclaration] = RewardDeclaration(concurrency=3)

    def score(self, batch: RewardBatch) -> Tensor:
        assert len(batch) <= 2
        return super().score(batch)


@dataclass
class Elsewhere:
    """Its scores have no place that is the CPU's, as those of a model on another device."""

    source: ClassVar[str] = "these tests"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None

    def score(self, batch: RewardBatch) -> Tensor:
        return torch.zeros(len(batch), device="meta")


@in_one_test(
    "settings",
    [
        {"name": "annealed", "reward": FEW, "then": SECOND, "last": 9},
        {"name": "annealed", "reward": SECOND, "then": FEW, "last": 9},
        {"name": "gated", "reward": WRITTEN, "gate": FEW},
        {"name": "gated", "reward": FEW, "gate": WRITTEN, "threshold": 0.1},
        {"name": "trusted", "reward": FEW, "accuracy": FEW},
        {"name": "length_penalised", "reward": FEW},
        {"name": "length_penalised", "kind": "efficient", "reward": FEW},
    ],
)
def test_an_inner_reward_judges_no_more_samples_at_once_than_its_batch_size(settings: dict[str, Any]) -> None:
    batch = said("0.2 1", "0.9 0", "0.4 0.5", "0.5 0.4", "0.8 1", num_tokens=torch.tensor([5, 3, 8, 1, 2]))
    batch = replace(batch, iteration=3)
    free = {key: WRITTEN if value is FEW else value for key, value in settings.items()}
    expected = build("rewards", {**free}).score(batch)
    assert torch.equal(build("rewards", settings).score(batch), expected)


def test_a_server_behind_one_wrapper_may_be_asked_several_times_at_once() -> None:
    assert wrapped("cached", reward=FEW).declaration.concurrency == 3
    assert wrapped("clip_range", reward={"name": "cached", "reward": FEW}, high=0.9).declaration.concurrency == 3
    assert (
        wrapped("gated", reward=FEW, gate=WRITTEN).declaration.concurrency == 1
    )  # which is not made for several threads


@pytest.mark.parametrize(
    "inner",
    ["running_normalised", "tests.rewards.base.test_wrapper:Learning", "tests.rewards.base.test_wrapper:Updated"],
)
@pytest.mark.parametrize(
    "settings",
    [{"name": "clip_range", "low": -1}, {"name": "gated", "gate": WRITTEN}, {"name": "running_normalised"}],
)
def test_a_reward_that_learns_from_its_scores_is_not_held(settings: dict[str, Any], inner: str) -> None:
    with pytest.raises(ConfigError, match=r"reward learns from its own scores.*around this one"):
        build("rewards", settings | {"reward": {"name": inner, "reward": WRITTEN}})


@dataclass
class Updated(Written):
    """A reward that only sees its scores, without a state that is saved."""

    reward: Any = None

    def update(self, scores: Scores) -> None:
        """Sees the scores."""


@dataclass
class Learning(Written):
    """A reward with a state of its own."""

    reward: Any = None

    def update(self, scores: object) -> None: ...
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_one_with_a_state_is_not_cached() -> None:
    with pytest.raises(ConfigError, match="changes from call to call"):
        wrapped("cached", reward={"name": "tests.rewards.base.test_wrapper:Learning"})


def test_a_mean_of_two_has_a_gradient_where_both_have() -> None:
    steady, moving = {"name": "flicker"}, {"name": "motion_smoothness"}
    both = build("rewards", {"name": "annealed", "reward": steady, "then": moving, "last": 4})
    alone = build("rewards", {"name": "annealed", "reward": steady, "last": 4})
    jpeg = {"name": "frame_mean", "reward": {"name": "jpeg_size"}}
    assert both.differentiable and alone.differentiable
    assert not build("rewards", {"name": "annealed", "reward": steady, "then": jpeg, "last": 4}).differentiable
    videos = torch.rand(2, 3, 3, 4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    batch = replace(make_batch(Outputs(videos=videos), ["a", "b"]), iteration=1)
    found, *single = (
        torch.autograd.grad(reward.score(batch).sum(), videos)[0]
        for reward in (both, build("rewards", steady), build("rewards", moving))
    )
    torch.testing.assert_close(found, 0.75 * single[0] + 0.25 * single[1])


def test_rewards_on_other_devices_are_brought_together() -> None:
    kinds = {"there": {"name": "tests.rewards.base.test_wrapper:Elsewhere"}, "here": WRITTEN}
    reward = build("rewards", {"name": "router", "rewards": kinds})
    batch = make_batch(Outputs(texts=("1", "1")), ["?", "?"], [{"task": "there"}, {"task": "here"}])
    assert reward.score(batch).device.type == "meta"
    soft = build("rewards", {"name": "annealed", "reward": kinds["there"], "then": WRITTEN, "last": 4})
    assert soft.score(replace(batch, iteration=2)).device.type == "meta"


def test_a_router_to_groups_asks_a_reward_of_samples_in_its_own_sizes() -> None:
    kinds = {"few": FEW, "group": {"name": "trusted", "reward": WRITTEN, "accuracy": SECOND}}
    reward = build("rewards", {"name": "router", "rewards": kinds})
    tasks = ["few"] * 4 + ["group"] * 4
    texts = ("0.1 0", "0.2 0", "0.3 0", "0.4 0", "0.5 1", "0.6 1", "0.7 1", "0.8 1")
    batch = make_batch(Outputs(texts=texts), ["?"] * 8, [{"task": task} for task in tasks])
    assert reward.granularity == "group"
    assert reward.score(batch).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
