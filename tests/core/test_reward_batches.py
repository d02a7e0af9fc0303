"""What a reward sees, and how a batch is cut."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.reward_batches import check_needs, pack, reward_batch, select, units_of
from tests.parameters import in_one_test


def rollout(prompt: list[int], group: list[int] | None = None, episode: list[int] | None = None) -> Rollout:
    """Samples of the numbered prompts, each image filled with the sample's own number."""
    size, groups = len(prompt), max(prompt) + 1
    return Rollout(
        prompts=tuple(Prompt(f"prompt {n}", target={"answer": n}) for n in range(groups)),
        keys=tuple(GroupKey(seed=5, iteration=2, prompt_index=n) for n in range(groups)),
        prompt=torch.tensor(prompt),
        group=torch.tensor(prompt if group is None else group),
        episode=torch.tensor(list(range(size)) if episode is None else episode),
        turn=torch.arange(size),
        outputs=Outputs(images=torch.arange(float(size)).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)),
        blocks=(),
        trace=None,
        num_calls=0,
    )


def test_every_sample_comes_with_its_prompt_and_a_seed_of_its_own() -> None:
    batch = reward_batch(rollout([0, 1, 0, 1]), iteration=7)
    assert [prompt.text for prompt in batch.prompts] == ["prompt 0", "prompt 1", "prompt 0", "prompt 1"]
    assert batch.group.tolist() == [0, 1, 0, 1] and batch.iteration == 7
    assert len(set(batch.seeds)) == 4


def test_a_seed_does_not_depend_on_what_else_is_in_the_rollout() -> None:
    together = reward_batch(rollout([0, 0, 1, 1]), 0).seeds
    interleaved = reward_batch(rollout([1, 0, 0, 1]), 0).seeds
    assert sorted(together) == sorted(interleaved)
    assert reward_batch(rollout([0, 0]), 0).seeds == together[:2] == interleaved[1:3]


def test_selected_samples_keep_everything_that_is_theirs() -> None:
    batch = reward_batch(rollout([0, 0, 1, 1], episode=[5, 6, 7, 7]), 0)
    part = select(batch, torch.tensor([3, 0]))
    assert [prompt.text for prompt in part.prompts] == ["prompt 1", "prompt 0"]
    assert part.outputs.images is not None and part.outputs.images[:, 0, 0, 0].tolist() == [3.0, 0.0]
    assert (part.group.tolist(), part.episode.tolist(), part.turn.tolist()) == ([1, 0], [7, 5], [3, 0])
    assert part.seeds == (batch.seeds[3], batch.seeds[0])


def test_everyone_is_selected_without_a_copy_and_with_a_fresh_generator() -> None:
    batch = reward_batch(rollout([0, 0]), 0)
    torch.rand(3, generator=batch.generator)
    first, second = select(batch, torch.arange(2)), select(batch, torch.arange(2))
    assert first.outputs is batch.outputs
    draws = [torch.rand(4, generator=part.generator) for part in (first, second, select(batch, torch.tensor([1])))]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


@dataclass(frozen=True)
class Wants:
    needs: frozenset[str]


@in_one_test(
    ("need", "message"),
    [
        ("videos", "reward 'r' needs videos, but the policy makes images"),
        ("target.box", "reward 'r' needs 'box' in the target of every prompt, got none for 'prompt 0'"),
        ("image", "needs 'image'; allowed are images, videos, audio, texts, is_finished, "),
        (
            "image",
            "screens, pieces, given, latents, controls, prompt.image, model, service, likelihoods.sampled, ",
        ),
        ("target.", "reward 'r' needs 'target.'; allowed are"),
    ],
)
def test_what_is_missing_is_the_users_error(need: str, message: str) -> None:
    reward: Any = Wants(frozenset({"images", need}))
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        check_needs("r", reward, reward_batch(rollout([0]), 0))


def test_what_is_there_passes() -> None:
    reward: Any = Wants(frozenset({"images", "target.answer"}))
    check_needs("r", reward, reward_batch(rollout([0, 1]), 0))


@in_one_test(
    ("granularity", "units"),
    [
        ("sample", [[0], [1], [2], [3], [4]]),
        ("turn", [[0], [1], [2], [3], [4]]),
        ("episode", [[0, 3], [1], [2, 4]]),
        ("group", [[0, 2], [1, 3, 4]]),
    ],
)
def test_units_are_what_the_reward_judges_as_one(granularity: str, units: list[list[int]]) -> None:
    batch: RewardBatch = reward_batch(rollout([1, 0, 1, 0, 0], episode=[4, 2, 1, 4, 1]), 0)
    reward: Any = SimpleNamespace(granularity=granularity)
    assert [rows.tolist() for rows in units_of(reward, batch)] == units


def test_a_unit_larger_than_the_batch_size_is_a_batch_of_its_own() -> None:
    units = [torch.zeros(size) for size in (2, 1, 5, 1, 2)]
    assert [[len(unit) for unit in packed] for packed in pack(units, 3)] == [[2, 1], [5], [1, 2]]


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.integers(1, 5), max_size=12), st.none() | st.integers(1, 7))
def test_packs_hold_every_unit_once_in_order_and_are_as_full_as_may_be(sizes: list[int], size: int | None) -> None:
    units: list[Tensor] = [torch.full((length,), number) for number, length in enumerate(sizes)]
    packs = pack(units, size)
    assert [unit for packed in packs for unit in packed] == units or not units
    lengths = [sum(len(unit) for unit in packed) for packed in packs]
    if size is None:
        assert len(packs) <= 1
        return
    assert all(length <= size or len(packed) == 1 for length, packed in zip(lengths, packs, strict=True))
    first_of_next = [len(packed[0]) for packed in packs[1:]]
    assert all(length + more > size for length, more in zip(lengths[:-1], first_of_next, strict=True))
