"""Randomness is a function of what it is for."""

from hashlib import blake2b

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from mmrl.core.keys import GroupKey, generator, normal, seed_from

PARTS = st.lists(st.integers(-(2**70), 2**70) | st.text(), min_size=1)


def test_seeds_are_the_same_on_every_machine() -> None:
    """The published recipe: the first 8 bytes of blake2b, little endian, without the last bit."""
    digest = blake2b(b'[7, "noise"]', digest_size=8).digest()
    expected = sum(byte << (8 * place) for place, byte in enumerate(digest)) // 2
    assert seed_from(7, "noise") == expected == 2065948880617556467


@pytest.mark.slow
@given(PARTS, PARTS)
def test_different_parts_give_different_seeds(left: list[int | str], right: list[int | str]) -> None:
    assert (seed_from(*left) == seed_from(*right)) == (left == right)


@given(PARTS)
def test_seeds_fit_a_torch_generator(parts: list[int | str]) -> None:
    assert 0 <= seed_from(*parts) < 2**63


def test_a_number_and_its_text_are_different_parts() -> None:
    assert seed_from(1) != seed_from("1")


def test_the_order_and_the_division_of_parts_matter() -> None:
    assert len({seed_from(1, 2), seed_from(2, 1), seed_from(12), seed_from(1, 2, 0)}) == 4


def test_every_part_of_a_group_key_changes_its_seeds() -> None:
    keys = [GroupKey(0, 0, 0), GroupKey(1, 0, 0), GroupKey(0, 1, 0), GroupKey(0, 0, 1), GroupKey(0, 0, 0, 1)]
    paths: list[tuple[int | str, ...]] = [(), ("root",), ("root", 0), ("root", 1), ("step", 0)]
    assert len({key.seed_for(*path) for key in keys for path in paths}) == 25


def test_generators_of_one_key_repeat_and_of_two_differ() -> None:
    first, again, other = (torch.rand(4, generator=generator(*parts)) for parts in ((1, "a"), (1, "a"), (1, "b")))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_noise_is_standard_normal() -> None:
    noise = normal(seed_from("a test"), (100, 200))
    assert (noise.shape, noise.dtype, noise.device.type) == ((100, 200), torch.float32, "cpu")
    assert kstest(noise.flatten().numpy(), "norm").pvalue > 0.01


def test_noise_of_neighbouring_seeds_is_independent() -> None:
    """The first number of each of 5000 generators is normal too, and does not follow its neighbour's."""
    first = torch.stack([normal(GroupKey(0, 0, draw).seed_for("root", 0), (1,))[0] for draw in range(5000)])
    assert kstest(first.numpy(), "norm").pvalue > 0.01
    assert torch.corrcoef(torch.stack([first[:-1], first[1:]]))[0, 1].abs() < 5 / 5000**0.5


def test_noise_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    normal(5, (10,))
    assert torch.equal(torch.rand(3), expected)
