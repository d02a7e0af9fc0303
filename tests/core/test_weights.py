"""The trained tensors and their copies."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

from mmrl.core.weights import Weights


def linear() -> tuple[nn.Linear, Weights]:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return layer, Weights(dict(layer.named_parameters()))


def test_copies_are_put_in_place_and_taken_out_also_when_nested_and_on_error() -> None:
    layer, weights = linear()
    storage = layer.weight.data_ptr()
    weights.keep("old")
    layer.weight.data.mul_(10)
    weights.keep("averaged")
    layer.weight.data.mul_(10)
    with weights("old"):
        assert layer.weight[0, 0] == 1
        with weights("averaged"):
            assert layer.weight[0, 0] == 10
            with weights("trained"):
                assert layer.weight[0, 0] == 100
        assert layer.weight[0, 0] == 1
    with pytest.raises(RuntimeError), weights("old"):
        raise RuntimeError
    assert layer.weight[0, 0] == 100 and layer.weight.data_ptr() == storage


def test_an_average_follows_by_its_decay() -> None:
    layer, weights = linear()
    weights.keep("averaged")
    layer.weight.data = layer.weight.data  # the storage stays
    weights.tensors("trained")["weight"].fill_(5.0)
    weights.average("averaged", 0.75)
    torch.testing.assert_close(weights.tensors("averaged")["weight"], torch.tensor([[2.0, 2.75], [3.5, 4.25]]))
    weights.average("averaged", 1.0)  # frozen
    torch.testing.assert_close(weights.tensors("averaged")["weight"], torch.tensor([[2.0, 2.75], [3.5, 4.25]]))
    weights.average("averaged", 0.0)  # a copy
    assert torch.equal(weights.tensors("averaged")["weight"], torch.full((2, 2), 5.0))


def test_an_optimizer_step_reaches_the_trained_tensors_only() -> None:
    layer, weights = linear()
    weights.keep("reference")
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    with weights("reference"):
        pass
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(weights.tensors("trained")["weight"], torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    assert torch.equal(weights.tensors("reference")["weight"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


def test_the_reference_of_an_adapter_is_the_adapter_switched_off() -> None:
    layer = nn.Linear(1, 1)
    log: list[str] = []

    @contextmanager
    def off() -> Iterator[None]:
        log.append("off")
        yield
        log.append("on")

    weights = Weights(dict(layer.named_parameters()), adapter_off=off)
    weights.keep("reference")
    with weights("reference"):
        log.append("inside")
    assert log == ["off", "inside", "on"] and weights.kept == [] and weights.has("reference")


def test_a_start_from_another_run_makes_its_adapter_the_reference() -> None:
    layer = nn.Linear(1, 1, bias=False)
    weights = Weights(dict(layer.named_parameters()), adapter_off=nullcontext)
    weights.start_from({"weight": torch.tensor([[3.0]])})
    weights.keep("reference")
    weights.tensors("trained")["weight"].fill_(5.0)
    with weights("reference"):
        assert layer.weight.item() == 3
    assert layer.weight.item() == 5


def test_loading_refuses_other_names_and_shapes() -> None:
    _, weights = linear()
    with pytest.raises(ValueError, match="names differ, such as 'bias'"):
        weights.load("trained", {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"shape \[3\], needed is \[2, 2\]"):
        weights.load("trained", {"weight": torch.zeros(3)})
    weights.load("old", {"weight": torch.full((2, 2), 7.0)})
    assert torch.equal(weights.tensors("old")["weight"], torch.full((2, 2), 7.0))
    assert weights.tensors("trained")["weight"][0, 0] == 1
