"""What `mmrl doctor CONFIG` measures in the first iterations of a run, beside what every run logs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import Cutting, LossBatch, Modality
from mmrl.core.data import Rollout
from mmrl.core.forward_outputs import GaussianDecisions, TokenDecisions
from mmrl.core.keys import GroupKey
from mmrl.core.views import View
from mmrl.system.out_of_memory import random_state, set_random_state
from mmrl.training.rollouts import Collected
from mmrl.training.update import OldSource, Updater, micro_batches, select_groups, views_of

GROUPS = 8  # that are examined
CALLS = 8  # that are evaluated one by one
RATIO, GRADIENT = 0, 1  # iterations of the two parts: a new LoRA has a gradient in all its tensors from the second on

Ratios = dict[str, Tensor]  # log-ratios of decisions by what they compare


@dataclass
class Examination:
    """Measures of one process. It leaves weights, gradients, random numbers and counts of calls as they were.

    `before` and `after` are called around the optimizer steps of each iteration, with the same arguments.
    """

    seed: int
    _evaluated: Tensor | None = field(default=None, init=False)  # log-ratios before the steps of iteration `RATIO`

    def before(
        self,
        updater: Updater,
        collected: Collected,
        rollout: Rollout | None,
        batch: LossBatch | None,
        old: OldSource,
        iteration: int,
    ) -> dict[str, float]:
        """Returns the metrics of an iteration before its optimizer steps; names begin with `doctor/`."""
        if rollout is None or batch is None:
            return {}
        with _as_it_was(updater):
            if iteration == RATIO:
                return _inputs(updater.policy, rollout) | self._ratios(updater, collected, batch)
            if iteration == GRADIENT:
                return self._gradients(updater, collected, rollout, batch, old)
        return {}

    def after(
        self, updater: Updater, collected: Collected, batch: LossBatch | None, iteration: int
    ) -> dict[str, float]:
        """Returns how far the optimizer steps of the first iteration moved the decisions."""
        if iteration != RATIO or self._evaluated is None or batch is None:
            return {}
        with _as_it_was(updater):
            now = self._log_ratios(updater, collected, batch)["recorded"]
        return {"doctor/step/log_ratio": _size(now - self._evaluated)}

    def _ratios(self, updater: Updater, collected: Collected, batch: LossBatch) -> dict[str, float]:
        if updater.loss.kind != "decisions":
            return {}
        found = self._log_ratios(updater, collected, batch)
        recorded = self._evaluated = found.pop("recorded")
        if not len(recorded):
            return {}
        return {
            "doctor/ratio/mean": _size(recorded),
            "doctor/ratio/std": float(recorded.std(correction=0)),
            "doctor/ratio/largest": float(recorded.abs().max()),
            **{f"doctor/ratio/{name}": _size(values) for name, values in found.items()},
        }

    @torch.no_grad()
    def _log_ratios(self, updater: Updater, collected: Collected, batch: LossBatch) -> Ratios:
        """Returns the log-ratios of decisions that the update evaluates to those that were recorded, and other pairs.

        `again`: evaluated twice. `alone`: call by call, against all at once. `reference`: against the reference.
        """
        policy, rollout = updater.policy, collected.rollout
        assert rollout is not None, "a batch is of a rollout"
        found: dict[str, list[Tensor]] = {"recorded": []}
        key = GroupKey(self.seed, 0, 0)
        rows, part = select_groups(batch, collected.kept[:GROUPS])
        for view in views_of(updater.loss, rollout, rows, part, key):
            pieces = micro_batches(policy, rollout, view, updater.micro_batch)
            for number, piece in enumerate(pieces):
                inside = piece.weight(rollout) > 0
                now, recorded = policy.forward(rollout, piece), policy.recorded(rollout, piece)
                assert isinstance(now, TokenDecisions | GaussianDecisions), "the kind of the loss is decisions"
                found["recorded"].append(_entries(now.log_ratio(recorded), inside))  # type: ignore[arg-type]
                if self._evaluated is None and number == 0:
                    again = policy.forward(rollout, piece)
                    found.setdefault("again", []).append(_entries(again.log_ratio(now), inside))  # type: ignore
                    found.setdefault("alone", []).append(_alone(policy, rollout, piece))
                if self._evaluated is None and "reference" in updater.loss.needs:
                    with policy.weights("reference"):
                        reference = policy.forward(rollout, piece)
                    found.setdefault("reference", []).append(_entries(now.log_ratio(reference), inside))  # type: ignore
        return {name: torch.cat(parts) if parts else torch.zeros(0) for name, parts in found.items()}

    def _gradients(
        self, updater: Updater, collected: Collected, rollout: Rollout, batch: LossBatch, old: OldSource
    ) -> dict[str, float]:
        """Returns the signal-to-noise ratio of the gradient over groups, see `signal_to_noise`."""
        parameters = updater.policy.weights.parameters
        total: dict[str, Tensor] = {}
        squares: list[float] = []
        for index in collected.kept[:GROUPS]:
            rows, part = select_groups(batch, [index])
            views = views_of(updater.loss, rollout, rows, part, GroupKey(self.seed, 0, index))
            _forget(parameters.values())
            if not views or updater.accumulate(rollout, views, part, old) is None:
                continue
            gradients = {name: one.grad.float() for name, one in parameters.items() if one.grad is not None}
            squares.append(float(sum(one.square().sum() for one in gradients.values())))
            for name, one in gradients.items():
                total[name] = total[name] + one if name in total else one.clone()
        if len(squares) < 2:
            return {}
        sum_square = float(sum(one.square().sum() for one in total.values()))
        unmoved = [name for name in parameters if name not in total or not bool(total[name].any())]
        metrics = {
            "doctor/gradient/without": float(len(unmoved)),
            "doctor/gradient/groups": float(len(squares)),
        }
        ratio = signal_to_noise(sum_square, squares)
        return metrics if ratio is None else metrics | {"doctor/gradient/signal_to_noise": ratio}


def signal_to_noise(sum_square: float, squares: Sequence[float]) -> float | None:
    """Returns |mean|^2 over the variance of the mean, of the gradients of n groups; 1 is expected of pure noise.

    The mean is sum / n; its variance is that of a group's gradient, over all its elements, divided by n. With B groups
    in a step the signal is (ratio - 1) B / n times the noise (McCandlish et al. 2018, "An Empirical Model of
    Large-Batch Training", arXiv 1812.06162, appendix A.1).

    Args:
        sum_square: |sum of g_i|^2. squares: |g_i|^2 of each group. Returns None where all gradients are equal.
    """
    n = len(squares)
    mean_square = sum_square / n**2
    variance = (sum(squares) - n * mean_square) / (n - 1)
    return mean_square / (variance / n) if variance > 1e-12 * mean_square else None


def _inputs(policy: Modality, rollout: Rollout) -> dict[str, float]:
    """Returns the share of prompts that the policy cuts, and the scale at which it sees images."""
    metrics: dict[str, float] = {}
    if isinstance(policy, Cutting):
        texts = [prompt.text for prompt in rollout.prompts]
        metrics["doctor/prompts/cut"] = sum(map(bool, policy.cuts(texts))) / max(1, len(texts))
    canvases = [one for one in rollout.outputs.canvases or () if one is not None]
    if canvases:
        sides = [one.resized[0] * one.resized[1] / (one.original[0] * one.original[1]) for one in canvases]
        metrics["doctor/images/scale"] = (sum(sides) / len(sides)) ** 0.5
    return metrics


def _alone(policy: Modality, rollout: Rollout, piece: View) -> Tensor:
    """Returns log-ratios of decisions that are evaluated call by call, to those evaluated together."""
    few = piece.split(CALLS)[0]
    inside = few.weight(rollout) > 0
    together: Any = policy.forward(rollout, few)
    at_once = together.log_ratio(policy.recorded(rollout, few))
    one_by_one = torch.zeros_like(at_once)
    for one in few.split(1):
        alone: Any = policy.forward(rollout, one)
        one_by_one += alone.log_ratio(policy.recorded(rollout, one))
    return _entries(one_by_one - at_once, inside)


def _entries(values: Tensor, inside: Tensor) -> Tensor:
    return values[inside.to(values.device)].double().cpu()


def _size(values: Tensor) -> float:
    return float(values.abs().mean()) if len(values) else 0.0


def _forget(parameters: Any) -> None:
    for parameter in parameters:
        parameter.grad = None


@contextmanager
def _as_it_was(updater: Updater) -> Iterator[None]:
    """Puts back what a look at the policy moves."""
    policy, device = updater.policy, updater.processes.device
    state, calls, size = random_state(device), policy.num_calls, updater.num_calls
    try:
        yield
    finally:
        _forget(policy.weights.parameters.values())
        set_random_state(state, device)
        policy.num_calls, updater.num_calls = calls, size
