"""Diverged training: noticed before its weights are saved, and reported with the last good checkpoint."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mmrl.core.contracts import DivergedError
from mmrl.system.errors import DivergedWeightsError
from mmrl.training import checkpoint

MAX_STUCK = 3  # iterations in a row without one finite gradient


def check_weights(weights: Iterable[Tensor]) -> None:
    """Raises DivergedError for weights that no network can use: NaN, infinite, or with a square beyond float32.

    Every process must call it where weights are sharded.
    """
    norm = nn.utils.get_total_norm([tensor.detach() for tensor in weights])
    whole = getattr(norm, "full_tensor", None)
    size = float(norm if whole is None else whole())
    if not size * size < 3e38:
        raise DivergedError(f"the norm of the trained weights is {size:.3g}")


def stuck_for(before: int, norms: Iterable[Tensor], *, may_scale: bool) -> int:
    """Returns the iterations in a row, this one included, in which every gradient norm was NaN or infinite.

    `may_scale`: float16 lowers the scale of its loss by such steps, so they do not count.
    """
    are_finite = [math.isfinite(float(norm)) for norm in norms]
    return before + 1 if are_finite and not any(are_finite) and not may_scale else 0


def norm_metrics(norms: Sequence[Tensor]) -> dict[str, float]:
    """Returns the mean norm of the finite gradients, and the number of the others: these made no step."""
    if not norms:
        return {}
    finite = [norm for norm in norms if norm.isfinite()]
    mean = {"optimizer/grad_norm": float(torch.stack(finite).mean())} if finite else {}
    return mean | {"optimizer/skipped": float(len(norms) - len(finite))}


def diverged(why: object, iteration: int, rate: float, folder: Path, last_good: int) -> DivergedWeightsError:
    """Returns the error that ends a run: `iteration` broke the weights; those saved up to `last_good` are whole."""
    saved = {number: path for number, path in checkpoint.saved(folder / "checkpoints").items() if number <= last_good}
    good = f"last good checkpoint: {saved[max(saved)]}" if saved else "no checkpoint was saved before"
    return DivergedWeightsError(
        f"the weights diverged at iteration {iteration}: {why}; lower optimizer.learning_rate (it was {rate:g}); {good}"
    )
