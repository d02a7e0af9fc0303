"""What the tests of several labs check in the same way."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mmrl.labs.teaching import Optimizer


def assert_learns(model: Any, loss: Callable[[], Tensor]) -> None:
    """Steps of the language model on the same questions lower their loss."""
    step_optimizer = Optimizer([*model.model.language_model.parameters()])
    losses = []
    for _ in range(5):
        answers = loss()
        losses.append(answers.item())
        step_optimizer(answers, 1e-3)
    assert losses[-1] < losses[0] - 0.3, losses
