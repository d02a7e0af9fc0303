"""What makes log-probs inexact is off in the block, and as it was after it."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from mmrl.training.switched_off import can_be_float32, in_eval_mode, in_float32, raised, training_modules


class Network(nn.Module):
    """A layer in bfloat16 and an adapter in float32, of an input that a named argument moves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(64, 64).to(torch.bfloat16).requires_grad_(False)
        self.adapter = nn.Linear(64, 64, bias=False)
        self.scale = nn.Buffer(torch.full((), 0.3, dtype=torch.bfloat16))
        self.fails = False

    def forward(self, given: Tensor, *, shifts: Sequence[Tensor]) -> Tensor:
        if self.fails:
            raise ValueError("no such kernel")
        moved = given + shifts[0]
        return (self.base(moved) + self.adapter(moved)) * self.scale  # type: ignore[no-any-return]


def called(network: Network) -> Tensor:
    given = torch.linspace(-1, 1, 64, dtype=torch.bfloat16)[None]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return network(given, shifts=[given.flip(1)])  # type: ignore[no-any-return]


def by_hand(network: Network) -> Tensor:
    given = torch.linspace(-1, 1, 64, dtype=torch.bfloat16)[None].double()
    moved = given + given.flip(1)
    of_base = moved @ network.base.weight.double().T + network.base.bias.double()
    return (of_base + moved @ network.adapter.weight.double().T) * network.scale.double()


def test_calls_compute_in_float32_and_the_weights_keep_their_storage() -> None:
    network = Network()
    places = [(one, one.data_ptr(), one.dtype) for one in (*network.parameters(), *network.buffers())]
    before, expected = called(network), by_hand(network)
    with in_float32([network]):
        exact = called(network)
        assert network.base.weight.dtype == torch.bfloat16  # outside of a call
    assert exact.dtype == torch.float32
    torch.testing.assert_close(exact.double(), expected, atol=1e-6, rtol=1e-5)
    assert (before.double() - expected).abs().max() > 1e-4
    assert places == [(one, one.data_ptr(), one.dtype) for one, *_ in places]
    assert torch.equal(called(network), before) and not network._forward_hooks and not network._forward_pre_hooks


def test_a_call_that_fails_leaves_the_network_as_it_was() -> None:
    network = Network()
    before = called(network)
    network.fails = True
    with pytest.raises(ValueError, match="no such kernel"), in_float32([network]):
        called(network)
    network.fails = False
    assert network.base.weight.dtype == torch.bfloat16 and torch.equal(called(network), before)
    assert not torch.is_autocast_enabled("cpu")


def test_float32_stands_for_floats_alone() -> None:
    network = Network()
    assert can_be_float32([network])
    network.register_parameter("packed", nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False))
    assert not can_be_float32([network])


def test_tensors_are_raised_however_deep_they_are() -> None:
    low, whole = torch.ones(1, dtype=torch.float16), torch.ones(1, dtype=torch.int64)
    found = raised(({"a": [low, whole]}, low, "text", None))
    assert found[0]["a"][0].dtype == found[1].dtype == torch.float32
    assert found[0]["a"][1] is whole and found[2:] == ("text", None)


def test_dropout_is_off_in_the_block_and_no_other_module_changes() -> None:
    network = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)).eval()
    network[0].train()
    assert training_modules([network]) == [network[0]]
    given = torch.ones(4, 2)
    with in_eval_mode(training_modules([network])):
        assert torch.equal(network[0](given), given) and not network[0].training
    assert network[0].training and not network.training and not network[1].training
