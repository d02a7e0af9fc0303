"""Views cover every entry once, however they are cut."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.data import DecisionBlock, Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import DecisionView, DenoisingView, OutputsView, View

BLOCK = DecisionBlock(
    call=torch.tensor([[0, 1], [0, 2], [3, -1]]),
    edge=torch.tensor([[0, 1], [0, 2], [3, -1]]),
    weight=torch.tensor([[0.5, 1.0], [0.5, 1.0], [1.0, 0.0]]),
)
ROLLOUT = Rollout(
    prompts=(Prompt("a"), Prompt("b")),
    keys=(GroupKey(0, 0, 0), GroupKey(0, 0, 1)),
    prompt=torch.tensor([0, 0, 1]),
    group=torch.tensor([0, 0, 1]),
    episode=torch.arange(3),
    turn=torch.zeros(3, dtype=torch.int64),
    outputs=Outputs(texts=("x", "y", "z")),
    blocks=(BLOCK, replace(BLOCK, weight=2 * BLOCK.weight)),
    trace=None,
    num_calls=4,
)
DENOISING = DenoisingView(
    sample=torch.tensor([0, 0, 2, 2]),
    noise_sample=torch.tensor([0, 1, 0, 1]),
    sigma=torch.tensor([0.1, 0.2, 0.3, 0.4]),
    noise_seed=(5, 6, 7, 8),
    num_noise_samples=2,
)
VIEWS = [DecisionView(torch.arange(4)), DecisionView(torch.tensor([1, 3]), block=1), DENOISING]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("view", VIEWS)
def test_parts_cover_every_entry_once_and_keep_within_the_size(view: View, size: int) -> None:
    parts = view.split(size)
    assert all(0 < part.num_calls <= size for part in parts)
    assert sum(part.num_calls for part in parts) == view.num_calls
    weights = torch.stack([part.weight(ROLLOUT) for part in parts])
    assert_close(weights.sum(0), view.weight(ROLLOUT))
    assert ((weights > 0).sum(0) <= 1).all()


def test_decision_weights_are_the_blocks_within_the_view_and_zero_outside() -> None:
    assert DecisionView(torch.arange(4)).weight(ROLLOUT).tolist() == BLOCK.weight.tolist()
    assert DecisionView(torch.tensor([0, 3])).weight(ROLLOUT).tolist() == [[0.5, 0], [0.5, 0], [1, 0]]
    assert DecisionView(torch.tensor([2]), block=1).weight(ROLLOUT).tolist() == [[0, 0], [0, 2], [0, 0]]


def test_denoising_weights_are_one_where_there_is_a_draw() -> None:
    assert DENOISING.weight(ROLLOUT).tolist() == [[1, 1], [0, 0], [1, 1]]


def test_denoising_parts_keep_each_entry_together() -> None:
    last = DENOISING.split(3)[1]
    assert (last.sample.tolist(), last.noise_sample.tolist(), last.noise_seed) == ([2], [1], (8,))
    assert_close(last.sigma, torch.tensor([0.4]))


def test_denoising_view_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match=r"equally long, got lengths \[3, 4\]"):
        replace(DENOISING, noise_seed=(1, 2, 3))


def test_empty_views_have_no_parts() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    assert DecisionView(nothing).split(4) == []
    assert DenoisingView(nothing, nothing, torch.zeros(0), (), 2).split(4) == []
    assert OutputsView(nothing, 2).split(4) == []


def test_outputs_view_counts_steps_and_keeps_samples_whole() -> None:
    view = OutputsView(torch.tensor([0, 2]), num_steps=3)
    assert view.num_calls == 6
    assert [part.sample.tolist() for part in view.split(5)] == [[0], [2]]
    assert [part.sample.tolist() for part in view.split(6)] == [[0, 2]]
    assert view.weight(ROLLOUT).tolist() == [[1], [0], [1]]
