"""Properties of every shipped reward, found by walking the folder."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from mmrl.actions import Action
from mmrl.contracts import Granularity, Placement, Reward, RewardBatch
from mmrl.coordinates import Canvas
from mmrl.data import Outputs
from mmrl.plugins import build, find, names
from mmrl.reward_batches import CONTROLS, MEDIA

TEXTS = ["red circle top left", "blue cross middle right", "red circle top left", "white square bottom centre"] * 2
DIFFERENTIABLE = [name for name in names("rewards") if vars(find("rewards", name))["differentiable"]]
ANSWERS = ["<answer>red</answer>", "(3, 4)", "<think>a</think><answer>[1, 2, 30, 40]</answer>", "[2, 2, 20, 19]"] * 2
CLICKED = [Action("click", point=(3, 4)), Action("click", point=(30, 4)), Action("type", text="red"), None] * 2
NEEDED = {"temporal_contrast": {"reward": {"name": "exact_answer"}}}  # settings without a default
TARGET = {
    "span": [2, 4],
    "answer": ["red", "blue"],
    "box": (2, 3, 20, 18),
    "boxes": ((2, 3, 20, 18),),
    "action": "click",
}


@pytest.fixture(scope="module", params=names("rewards"))
def reward(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reward:
    """Each reward with its default settings, on its tiny twin where it needs weights."""
    plugin = build("rewards", {"name": request.param} | NEEDED.get(request.param, {}))
    if hasattr(plugin, "tiny"):
        plugin = plugin.tiny(0, tmp_path_factory.mktemp(request.param))
        plugin.prepare(Placement(torch.device("cpu"), torch.float32))
    return plugin  # type: ignore[no-any-return]


@pytest.fixture
def batch(reward: Reward, make_batch: Callable[..., RewardBatch]) -> RewardBatch:
    """Random outputs of the kinds that the reward needs."""
    generator = torch.Generator().manual_seed(1)
    outputs = Outputs(
        images=torch.rand(len(TEXTS), 3, 32, 32, generator=generator) if "images" in reward.needs else None,
        videos=torch.rand(len(TEXTS), 4, 3, 32, 32, generator=generator) if "videos" in reward.needs else None,
        texts=tuple(ANSWERS) if "texts" in reward.needs else None,
        is_finished=torch.arange(len(TEXTS)) % 3 > 0 if "is_finished" in reward.needs else None,
        canvases=(Canvas((32, 32), (28, 28), "resized"),) * len(TEXTS) if "canvases" in reward.needs else None,
        actions=tuple(CLICKED) if "actions" in reward.needs else None,
        step_rewards=torch.arange(len(TEXTS)) / 4 if "step_rewards" in reward.needs else None,
        outcomes=("done", "turn_limit") * (len(TEXTS) // 2) if "outcomes" in reward.needs else None,
    )
    return replace(make_batch(outputs, TEXTS, [TARGET] * len(TEXTS)), is_control=torch.arange(len(TEXTS)) % 2 == 1)


def chosen(batch: RewardBatch, rows: Tensor) -> RewardBatch:
    return replace(
        batch,
        prompts=tuple(batch.prompts[int(row)] for row in rows),
        outputs=batch.outputs.select(rows),
        group=batch.group[rows],
        episode=batch.episode[rows],
        turn=batch.turn[rows],
        is_control=None if batch.is_control is None else batch.is_control[rows],
        seeds=tuple(batch.seeds[int(row)] for row in rows),
        generator=torch.Generator().manual_seed(0),
    )


@pytest.mark.parametrize("name", names("rewards"))
def test_the_class_says_what_the_reward_is(name: str) -> None:
    cls: Any = find("rewards", name)
    low, high = cls.range
    assert isinstance(cls.source, str) and cls.source
    assert isinstance(low, float) and isinstance(high, float) and low < high
    assert cls.granularity in get_args(Granularity)
    assert isinstance(cls.differentiable, bool)
    assert isinstance(cls.needs, frozenset) and all(
        n in (*MEDIA, CONTROLS) or n.startswith("target.") for n in cls.needs
    )
    assert cls.batch_size is None or (isinstance(cls.batch_size, int) and cls.batch_size > 0)
    assert hasattr(cls, "tiny") == hasattr(cls, "prepare"), "what loads weights has a tiny twin"
    assert isinstance(build("rewards", {"name": name} | NEEDED.get(name, {})), Reward)


def test_scores_are_finite_and_within_the_declared_range(reward: Reward, batch: RewardBatch) -> None:
    scores = reward.score(batch)
    assert scores.shape == (len(TEXTS),) and scores.dtype == torch.float32
    assert scores.isfinite().all()
    assert (scores >= reward.range[0]).all() and (scores <= reward.range[1]).all()


def test_the_same_batch_has_the_same_scores_and_is_left_as_it_was(reward: Reward, batch: RewardBatch) -> None:
    before = chosen(batch, torch.arange(len(TEXTS)))
    first = reward.score(batch)
    assert torch.equal(first, reward.score(before))
    for left, right in ((batch.outputs.images, before.outputs.images), (batch.outputs.videos, before.outputs.videos)):
        assert left is right is None or (left is not None and right is not None and torch.equal(left, right))


def test_order_does_not_matter(reward: Reward, batch: RewardBatch) -> None:
    order = torch.randperm(len(TEXTS), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(reward.score(chosen(batch, order)), reward.score(batch)[order], rtol=1e-5, atol=1e-6)


def test_a_batch_scores_as_its_parts_do(reward: Reward, batch: RewardBatch) -> None:
    parts = torch.arange(len(TEXTS)).split(2 if reward.granularity == "group" else 1)
    alone = torch.cat([reward.score(chosen(batch, rows)) for rows in parts])
    torch.testing.assert_close(reward.score(batch), alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reward", DIFFERENTIABLE, indirect=True)
def test_a_differentiable_reward_has_the_gradient_of_its_finite_differences(reward: Reward, batch: RewardBatch) -> None:
    assert batch.outputs.images is not None
    images = (0.3 + 0.4 * batch.outputs.images).requires_grad_()  # away from the ends, where clamps have corners

    def total(values: Tensor) -> Tensor:
        return reward.score(replace(batch, outputs=replace(batch.outputs, images=values))).sum()

    (gradient,) = torch.autograd.grad(total(images), images)
    norm = gradient.norm()
    assert norm > 0
    step = 0.05 * gradient / norm
    with torch.no_grad():
        slope = (total(images + step) - total(images - step)) / 0.1
    torch.testing.assert_close(slope, norm, rtol=0.01, atol=0)


def test_a_reward_scores_without_a_graph_where_no_gradient_is_asked_for(reward: Reward, batch: RewardBatch) -> None:
    assert not reward.score(batch).requires_grad
