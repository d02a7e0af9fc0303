"""The state of optimizers in checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.training.checkpoint import Checkpoint, flatten_optimizer, load, restore_optimizer, save


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


class Float32Momentum(torch.optim.Optimizer):
    """Keeps a float32 average of bf16 gradients, a None and a number, as 8-bit and mixed-precision optimizers do."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                state["average"] = 0.9 * state.get("average", torch.zeros(weight.shape)) + weight.grad.float() / 3
                state["count"] = state.get("count", 0) + 1
                state["unused"] = None
                weight.data -= (group["lr"] * state["average"] / state["count"]).to(weight.dtype)


Factory = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
FACTORIES: dict[str, Factory] = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.1 + 0.2, betas=(0.8, 0.95), amsgrad=True),
    "adamw of a tensor rate": lambda groups: torch.optim.AdamW(groups, lr=torch.tensor(0.1), foreach=False),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "plain sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.1),
    "float32 state": lambda groups: Float32Momentum(groups, lr=0.1),
}
NAMES = ["a.weight", "b.weight", "b.bias"]


def build(factory: Factory, dtype: torch.dtype) -> tuple[list[Tensor], torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(3, 2), (4,), ()]
    weights = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    return weights, factory([{"params": weights[:1], "weight_decay": 0.01}, {"params": weights[1:]}])


def train(weights: list[Tensor], optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for number, weight in enumerate(weights):
            generator = torch.Generator().manual_seed(100 * step + number)
            weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)
        weights[2].grad = None  # a weight that never had a gradient has no state
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * 0.9  # a schedule
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FACTORIES)
def test_a_restored_optimizer_goes_on_bit_for_bit(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    weights, optimizer = build(FACTORIES[name], dtype)
    train(weights, optimizer, range(3))
    tensors, state = flatten_optimizer(optimizer, NAMES)
    values = dict(zip(NAMES, weights, strict=True))
    path = save(tmp_path, Checkpoint(3, {"optimizer": tensors, "trained": values}, {"optimizer": state}))
    train(weights, optimizer, range(3, 6))

    loaded = load(path)
    before = {name: bits(tensor) for name, tensor in loaded.tensors["optimizer"].items()}
    for _ in range(2):  # twice from the same object: training on must not write into it
        resumed, other = build(FACTORIES[name], dtype)
        with torch.no_grad():
            for weight, key in zip(resumed, NAMES, strict=True):
                weight.copy_(loaded.tensors["trained"][key])
        restore_optimizer(other, NAMES, loaded.tensors["optimizer"], loaded.state["optimizer"])
        train(resumed, other, range(3, 6))

        assert [bits(weight) for weight in resumed] == [bits(weight) for weight in weights]
        torch.testing.assert_close(other.state_dict(), optimizer.state_dict(), rtol=0, atol=0)
        assert repr(other.state_dict()["param_groups"]) == repr(optimizer.state_dict()["param_groups"])
    assert {name: bits(tensor) for name, tensor in loaded.tensors["optimizer"].items()} == before


def test_the_state_is_found_by_name_whatever_the_order() -> None:
    weights, optimizer = build(FACTORIES["sgd"], torch.float32)
    train(weights, optimizer, range(2))
    tensors, state = flatten_optimizer(optimizer, NAMES)
    assert sorted(tensors) == ["momentum_buffer/a.weight", "momentum_buffer/b.weight"]

    turned = [weights[0], weights[2], weights[1]]
    other = torch.optim.SGD([{"params": turned[:1]}, {"params": turned[1:]}], lr=0.5)
    restore_optimizer(other, ["a.weight", "b.bias", "b.weight"], tensors, state)
    assert other.param_groups[1]["lr"] == 0.1
    assert torch.equal(other.state[weights[1]]["momentum_buffer"], optimizer.state[weights[1]]["momentum_buffer"])


def test_an_optimizer_that_does_not_fit_is_an_error() -> None:
    weights, optimizer = build(FACTORIES["sgd"], torch.float32)
    tensors, state = flatten_optimizer(optimizer, NAMES)
    with pytest.raises(ConfigError, match=r"class .* saved SGD, now AdamW"):
        restore_optimizer(build(FACTORIES["adamw"], torch.float32)[1], NAMES, tensors, state)
    with pytest.raises(ConfigError, match=r"names .* now .*b\.scale"):
        restore_optimizer(optimizer, ["a.weight", "b.weight", "b.scale"], tensors, state)
    with pytest.raises(ConfigError, match=r"groups .* saved 2, now 1"):
        restore_optimizer(torch.optim.SGD(weights, lr=0.1), NAMES, tensors, state)


def test_a_state_that_cannot_be_saved_exactly_is_refused() -> None:
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight])
    optimizer.state[weight]["history"] = [torch.zeros(1)]
    with pytest.raises(ValueError, match="LBFGS keeps 'history' as <class 'list'>"):
        flatten_optimizer(optimizer, ["weight"])
