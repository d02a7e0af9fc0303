"""A layer with room holds what the layers of transformers hold, and answers on it are the same ones."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.modalities.tokens import cache_room
from mmrl.modalities.tokens.backbone import expand
from mmrl.modalities.tokens.cache_room import BLOCK, RoomyLayer, with_room
from mmrl.modalities.tokens.completions import uniforms
from mmrl.plans.answers import AnswerPlan
from tests import vision_twins


def states(count: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Keys and values of different widths."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(count, 2, length, width, generator=generator) for width in (3, 5))
    return keys, values


def cache_of(length: int, count: int = 2) -> Any:
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    cache.update(*states(count, length), 0)
    return cache


def test_a_layer_with_room_returns_what_joining_gives_beyond_its_room_too() -> None:
    rows = torch.tensor([1, 0, 0])
    roomy, plain = with_room(cache_of(4), rows, 2), cache_of(4)
    plain.reorder_cache(rows)
    for step, count in enumerate((1, 1, 1, BLOCK + 3, 1)):
        found, expected = (cache.update(*states(3, count, step), 0) for cache in (roomy, plain))
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        assert roomy.get_seq_length() == plain.get_seq_length() and roomy.get_mask_sizes(1, 0) == plain.get_mask_sizes(
            1, 0
        )
    keep = torch.tensor([2, 0])
    roomy.reorder_cache(keep)
    plain.reorder_cache(keep)
    found, expected = (cache.update(*states(2, 1, 9), 0) for cache in (roomy, plain))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_tokens_are_written_in_place_until_the_room_is_full() -> None:
    layer = RoomyLayer(*states(2, 4), torch.arange(2), 2)
    places = []
    for step in range(4):
        keys, values = layer.update(*states(2, 1, step))
        places.append((keys.data_ptr(), values.data_ptr()))
    assert places[0] == places[1] != places[2] == places[3]


def test_the_cache_that_is_given_and_copies_of_a_cache_with_room_stay_as_they_are() -> None:
    given = cache_of(4)
    first, second = (with_room(given, torch.arange(2), 8) for _ in range(2))
    before = [tensor.clone() for tensor in second.update(*states(2, 1, 7), 0)]
    first.update(*states(2, 1, 8), 0)
    assert given.get_seq_length() == 4 and torch.equal(given.layers[0].keys, states(2, 4)[0])
    assert torch.equal(before[0], second.layers[0].keys) and torch.equal(before[1], second.layers[0].values)
    copied = expand(second, torch.tensor([0, 1]))
    copied.update(*states(2, 1, 9), 0)
    second.update(*states(2, 1, 10), 0)
    assert torch.equal(copied.layers[0].keys[:, :, -1:], states(2, 1, 9)[0])


def test_layers_of_other_kinds_get_no_room() -> None:
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicSlidingWindowLayer

    cache: Any = DynamicCache()
    cache.layers = [DynamicSlidingWindowLayer(3)]
    cache.layers[0].update(*states(2, 5))
    copied = with_room(cache, torch.tensor([1]), 8)
    assert type(copied.layers[0]) is DynamicSlidingWindowLayer and copied.layers[0].keys.shape[:3] == (1, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("read_every", "leave_from"), [(1, 1.0), (3, 0.0), (3, 0.5)])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_answers_do_not_depend_on_when_ended_ones_leave_the_cache_or_on_its_blocks(
    family: str, read_every: int, leave_from: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = vision_twins.policy(family)
    generator = policy._answer_generator(AnswerPlan(1, 24, stop=("e", "t")), 256)
    prompts, prompt_of = policy.encode(vision_twins.PROMPTS), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    uniform = uniforms(list(range(9)), 24)
    expected = replace(generator, read_every=1, leave_from=0.0).answers(prompts, prompt_of, uniform)
    kept, update = list[int](), RoomyLayer.update

    def noted(layer: RoomyLayer, keys: Tensor, values: Tensor, *more: Any) -> Any:
        kept.append(len(keys))
        return update(layer, keys, values, *more)

    monkeypatch.setattr(cache_room, "BLOCK", 5)
    monkeypatch.setattr(RoomyLayer, "update", noted)
    found = replace(generator, read_every=read_every, leave_from=leave_from).answers(prompts, prompt_of, uniform)
    assert expected is not None and found is not None and len(set(expected.length.tolist())) > 3
    assert torch.equal(found.tokens, expected.tokens) and torch.equal(found.length, expected.length)
    assert torch.equal(found.is_finished, expected.is_finished)
    torch.testing.assert_close(found.log_prob, expected.log_prob, atol=1e-5, rtol=0)
    if leave_from == 1.0:
        assert set(kept) == {9}  # no answer left before all were over
    else:
        assert len(set(kept)) > 1
