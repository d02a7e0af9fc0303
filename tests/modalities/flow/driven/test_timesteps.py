"""Timesteps that are read from a grid: its own pairs exactly, a line between two of them."""

import pytest
import torch

from mmrl.modalities.flow.driven.timesteps import Timesteps

READ = Timesteps.of(torch.tensor([1.0, 0.8, 0.5, 0.0]), torch.tensor([1000.0, 700.0, 300.0]))


def test_pairs_of_the_grid_are_exact() -> None:
    levels = torch.tensor([1.0, 0.8, 0.5, 0.0]).tolist()
    assert [READ(level) for level in levels] == [1000, 700, 300, 0]


def test_between_two_pairs_timesteps_are_linear() -> None:
    assert READ(0.9) == pytest.approx(850) and READ(0.25) == pytest.approx(150)


def test_above_the_highest_level_stands_its_timestep() -> None:
    assert READ(1.5) == 1000
