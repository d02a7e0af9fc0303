"""Features added by places are those that transformers adds by a mask, with the same gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from mmrl.modalities.encoding.deepstack import METHOD, add_features, use_places
from tests import vision_twins
from tests.parameters import in_one_test

OWN: Any = getattr(Qwen3VLTextModel, METHOD)
MASKS = {
    "none": torch.zeros(2, 5, dtype=torch.bool),
    "all": torch.ones(2, 5, dtype=torch.bool),
    "some": torch.tensor([[False, True, True, False, True], [True, False, False, False, True]]),
    "second row": torch.tensor([[False] * 5, [False, True, False, False, False]]),
}


def by(function: Any, mask: Tensor) -> tuple[Tensor, ...]:
    """The sum, and the gradients of hidden states and features."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 5, 3, generator=generator, requires_grad=True)
    features = torch.randn(int(mask.sum()), 3, generator=generator, requires_grad=True)
    weight = torch.randn(2, 5, 3, generator=generator)
    total = function(hidden, mask, features)
    (total * weight).sum().backward()
    assert hidden.grad is not None
    none = torch.zeros_like(features)
    return total.detach(), hidden.grad, none if features.grad is None else features.grad


@in_one_test("name", MASKS)
def test_sum_and_gradients_are_those_of_transformers(name: str) -> None:
    mask = MASKS[name]
    for ours, theirs in zip(by(add_features, mask), by(lambda *given: OWN(None, *given), mask), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.slow
def test_the_decoder_of_qwen3_vl_takes_it_and_no_other() -> None:
    assert getattr(vision_twins.policy("qwen3_vl")._model.model.language_model, METHOD) is add_features
    assert use_places(vision_twins.policy("qwen2_5_vl")._model) == 0


class Scaled(nn.Module):
    """A decoder with a method of the same name that does something else."""

    def _deepstack_process(self, hidden: Tensor, mask: Tensor, features: Tensor) -> Tensor:
        return 2 * add_features(hidden, mask, features)


class Wider(nn.Module):
    """One whose method takes more."""

    def _deepstack_process(self, hidden: Tensor, mask: Tensor, features: Tensor, scale: float) -> Tensor:
        return scale * add_features(hidden, mask, features)


def test_a_method_that_gives_something_else_is_left() -> None:
    assert use_places(nn.Sequential(Scaled(), Wider())) == 0
