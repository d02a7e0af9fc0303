"""One optimizer step: views, micro-batches of network calls, the loss, the gradient."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import (
    DecisionSelecting,
    Differentiable,
    Loss,
    LossBatch,
    LossTerms,
    Modality,
    OutputsByWeights,
    Shardable,
    Sized,
    StepAveraging,
)
from mmrl.core.data import Outputs, Rollout, WeightsName
from mmrl.core.declarations import LossDeclaration
from mmrl.core.forward_outputs import TokenDecisions
from mmrl.core.keys import GroupKey, prompt_index_of
from mmrl.core.views import View
from mmrl.system.errors import RunError
from mmrl.system.out_of_memory import reported
from mmrl.training.decision_selection import Entries, select_everywhere
from mmrl.training.processes import Processes
from mmrl.training.reward_gradients import carries_back

# exactly on-policy; as the rollout stored it; an average of weights kept beside the trained ones
OldSource = Literal["itself", "recorded", "kept"]


@dataclass
class StepMetrics:
    """The sums of one optimizer step's metrics: each metric times its weight, summed over micro-batches."""

    totals: dict[str, Tensor] = field(default_factory=dict)
    weight: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, values: Tensor, weight: Tensor) -> None:
        """Adds the `values` of a metric, each times its `weight`; entries of weight 0 may be NaN."""
        kept = torch.where(weight > 0, values.detach() * weight, torch.zeros_like(weight)).sum()
        self.totals[name] = self.totals.get(name, 0) + kept
        self.weight[name] = self.weight.get(name, 0) + weight.sum()


def micro_batches(policy: Modality, rollout: Rollout, view: View, size: int) -> list[View]:
    """Returns the parts of a view, each of `size` network calls at most and of samples of one size."""
    alike = policy.apart(rollout, view) if isinstance(policy, Sized) else [view]
    return [part for one in alike for part in one.split(size)]


class Updater:
    """The accumulation of a loss's gradient over micro-batches; processes are summed when the optimizer steps.

    The result does not depend on the size of a micro-batch, the number of processes, or how groups fall on them.
    """

    def __init__(
        self,
        policy: Modality,
        loss: Loss,
        processes: Processes,
        micro_batch: int,
        score: Callable[[Rollout, Outputs, Tensor], Tensor] | None = None,
    ) -> None:
        """Keeps the parts. `score`: the differentiable rewards of samples' media made anew: [N], [N] -> [N]."""
        self.policy, self.loss, self.processes, self.micro_batch = policy, loss, processes, micro_batch
        self.score = score
        self.num_calls = 0  # network calls of the largest micro-batch so far

    def accumulate(
        self,
        rollout: Rollout | None,
        views: Sequence[View],
        batch: LossBatch | None,
        old: OldSource,
        importance: Tensor | None = None,
    ) -> StepMetrics | None:
        """Adds the gradient of one optimizer step. Every process must call it, without a rollout where it has no work.

        Args:
            views: what the step evaluates. batch: advantages [B, 1] or [B, K]; its weight [B, 1] or [B, K] is 0 for
                samples or decisions that take no part. old: where old log-probs come from. importance: what each
                sample counts [B, 1] (None: 1), 0 where it is not evaluated; the loss is divided as if all were.
        Returns:
            sums of the metrics, or None when no process has anything to learn from (no gradient is added).
        """
        batches = (
            [self._weighed(rollout, view, batch) for view in views] if rollout is not None and batch is not None else []
        )
        counted = [self.loss.coefficients(weighed) for weighed in batches]
        denominator = self.processes.sum(sum((d for _, d in counted), torch.zeros((), device=self.processes.device)))
        if float(denominator) <= 0:
            return None
        coefficients = [of_entries / denominator for of_entries, _ in counted]
        batches = self._with_mean_entropy(rollout, views, batches)
        batches = self._with_selection(rollout, views, batches)
        if importance is not None and rollout is not None:
            views = [view.among(rollout, importance.cpu()) for view in views]
            batches = [replace(weighed, weight=weighed.weight * (importance > 0)) for weighed in batches]
            coefficients = [of_entries * importance for of_entries in coefficients]
        # the loss itself is a sum, whatever it was divided by: every process adds its part, and all weights are 1
        share = torch.full((), 1 / self.processes.num_processes, device=self.processes.device)
        metrics = StepMetrics({"loss/total": torch.zeros_like(share)}, {"loss/total": share})
        measured = self._measured_views(rollout, views, batches, old, metrics)
        batches = self._with_step_mean(measured, batches, coefficients)
        with self._guarded():
            for number in range(self.processes.maximum(len(batches))):
                if rollout is None or number >= len(batches):
                    self._dummy_view(old)
                else:
                    each = (views[number], batches[number], coefficients[number])
                    self._accumulate_view(rollout, each, old, metrics, measured[number] if measured else None)
        return metrics

    def recompute(self, rollout: Rollout | None) -> Rollout | None:
        """Returns the rollout with old log-probs under the present weights. Every process must call it."""
        if not self.processes.is_sharded:
            with self._guarded():
                self.num_calls = max(self.num_calls, 0 if rollout is None else rollout.num_calls)
                return None if rollout is None else self.policy.recompute(rollout, self.micro_batch)
        if rollout is not None:
            return self.policy.recompute(rollout, self.micro_batch)
        with torch.no_grad():
            for _ in range(self.processes.maximum(0)):
                self._nothing()
        return None

    def differentiate(self, rollout: Rollout | None, batch: LossBatch | None) -> Rollout | None:
        """Returns the rollout with gradients of the scores by the values of its decisions, under the reference weights.

        Only a loss that requires these gradients has them computed.
        """
        if rollout is None or batch is None or not carries_back(self.loss):
            return rollout
        assert isinstance(self.policy, Differentiable) and self.score is not None, "checked when the parts were built"
        rows = (batch.weight > 0).any(1).nonzero().squeeze(1).cpu()
        with self.policy.weights("reference"):
            return self.policy.differentiate(rollout, rows, partial(self.score, rollout), self.micro_batch)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Makes an error of one process one of all: OutOfMemory where a device has none left.

        Sharded processes cannot go on after that: a gathered layer is one of all, and nobody waits for it twice.
        """
        with self.processes.lockstep(), nullcontext() if self.processes.is_sharded else reported():
            yield

    def _weighed(self, rollout: Rollout, view: View, batch: LossBatch) -> LossBatch:
        weight = view.weight_among(rollout, batch.weight.cpu()).to(self.processes.device)
        advantages = batch.advantages.expand_as(weight)
        return replace(batch, advantages=advantages, weight=weight)

    def _with_mean_entropy(
        self, rollout: Rollout | None, views: Sequence[View], batches: list[LossBatch]
    ) -> list[LossBatch]:
        """Returns the batches with the mean of -log_prob over all decisions of the step, where the loss requires it."""
        if not LossDeclaration.of(self.loss).requires_mean_entropy:
            return batches
        sums = torch.zeros(2, dtype=torch.float64, device=self.processes.device)  # of -log_prob, of weights
        for view, batch in zip(views, batches, strict=True):
            assert rollout is not None, "a batch is of a rollout"
            weight, recorded = batch.weight.double(), self.policy.recorded(rollout, view)
            assert isinstance(recorded, TokenDecisions), "only losses on tokens require it"
            surprise = torch.where(weight > 0, -recorded.values.to(weight) * weight, torch.zeros_like(weight))
            sums = sums + torch.stack([surprise.sum(), weight.sum()])
        total, count = self.processes.sum(sums).unbind()
        return [replace(batch, mean_entropy=(total / count).to(batch.weight.dtype)) for batch in batches]

    def _with_selection(
        self, rollout: Rollout | None, views: Sequence[View], batches: list[LossBatch]
    ) -> list[LossBatch]:
        """Returns the batches with the decisions that the loss selects among those of all processes, where it does."""
        if not isinstance(self.loss, DecisionSelecting):
            return batches
        own = []
        for view, batch in zip(views, batches, strict=True):
            assert rollout is not None, "a batch is of a rollout"
            recorded: Any = self.policy.recorded(rollout, view)
            own.append(Entries.of(recorded.log_prob(), batch))
        step = max((batch.step for batch in batches), default=0)  # a process without batches has nothing to select
        chosen = select_everywhere(self.loss, Entries.join(own), self.processes, step).to(self.processes.device)
        parts = zip(batches, chosen.split([len(part.group) for part in own]), strict=True)
        return [
            replace(batch, selected=(batch.weight > 0).masked_scatter(batch.weight > 0, part)) for batch, part in parts
        ]

    def _measured_views(
        self,
        rollout: Rollout | None,
        views: Sequence[View],
        batches: Sequence[LossBatch],
        old: OldSource,
        metrics: StepMetrics,
    ) -> list[tuple[Tensor, ...]]:
        """Returns the measures of each view before anything is learned, for a loss that averages them; else nothing."""
        if not isinstance(self.loss, StepAveraging):
            return []
        measured = []
        with self._guarded():
            for number in range(self.processes.maximum(len(batches))):
                if rollout is None or number >= len(batches):
                    self._dummy_step(self.processes.maximum(0), old, learns=False)
                    continue
                parts = self._parts(rollout, views[number])
                most = self.processes.maximum(len(parts))
                measured.append(self._measure(rollout, parts, batches[number], old, metrics) if parts else ())
                self._dummy_step(most - len(parts), old, learns=False)
        return measured

    def _with_step_mean(
        self, measured: Sequence[tuple[Tensor, ...]], batches: list[LossBatch], coefficients: Sequence[Tensor]
    ) -> list[LossBatch]:
        """Returns the batches with the mean over the step of what the loss averages, where it does."""
        if not isinstance(self.loss, StepAveraging):
            return batches
        mean = torch.zeros((), dtype=torch.float64, device=self.processes.device)
        for measures, counts in zip(measured, coefficients, strict=True):
            if measures:
                mean = mean + (self.loss.averaged(measures).detach().double() * counts).sum()
        mean = self.processes.sum(mean)
        return [replace(batch, step_mean=mean.to(batch.weight.dtype)) for batch in batches]

    def _parts(self, rollout: Rollout, view: View) -> Sequence[View]:
        """Returns the micro-batches of a view, of which the largest one's network calls are noted."""
        parts = micro_batches(self.policy, rollout, view, self.micro_batch)
        self.num_calls = max([self.num_calls, *(part.num_calls for part in parts)])
        return parts

    def _accumulate_view(
        self,
        rollout: Rollout,
        each: tuple[View, LossBatch, Tensor],
        old: OldSource,
        metrics: StepMetrics,
        measures: tuple[Tensor, ...] | None,
    ) -> None:
        """Learns from one view with its batch and coefficients; `measures`: those that were measured already."""
        view, batch, coefficients = each
        parts = self._parts(rollout, view)
        if not parts:
            return self._dummy_view(old)
        most = self.processes.maximum(len(parts))
        if measures is None and (most == 1 or self.loss.scope == "decision"):
            for part in parts:
                self._learn(rollout, part, batch, coefficients, old, metrics, is_whole=len(parts) == 1)
            self._dummy_step(most - len(parts), old, learns=True)
            return
        if measures is None:
            measures = self._measure(rollout, parts, batch, old, metrics)
            self._dummy_step(most - len(parts), old, learns=False)
        self._learn_in_two_passes(rollout, parts, batch, coefficients, old, metrics, measures)
        self._dummy_step(most - len(parts), old, learns=True)

    def _learn(
        self,
        rollout: Rollout,
        part: View,
        batch: LossBatch,
        coefficients: Tensor,
        old: OldSource,
        metrics: StepMetrics,
        *,
        is_whole: bool,
    ) -> None:
        """Makes the forward and backward pass of one micro-batch, under a loss of single decisions."""
        if not is_whole:
            inside = part.weight(rollout).to(self.processes.device) > 0
            batch = replace(batch, weight=batch.weight * inside)
            coefficients = coefficients * inside
        forward_outputs = self._forward(rollout, part, old)
        _add_entropy(forward_outputs, batch.weight, metrics)
        terms = self.loss(self.loss.measure(forward_outputs), batch)
        self.processes.backward(self._sum_terms(terms, batch, coefficients, metrics))

    def _measure(
        self, rollout: Rollout, parts: Sequence[View], batch: LossBatch, old: OldSource, metrics: StepMetrics
    ) -> tuple[Tensor, ...]:
        """Returns the measures of all parts without a graph: the first pass of a loss that compares entries."""
        per_part = []
        with torch.no_grad():
            for part in parts:
                forward_outputs = self._forward(rollout, part, old)
                per_part.append(self.loss.measure(forward_outputs))
                _add_entropy(
                    forward_outputs, batch.weight * (part.weight(rollout).to(self.processes.device) > 0), metrics
                )
        # a part's measures are 0 outside of it, so the sum puts the parts together
        return tuple(torch.stack(same).sum(0) for same in zip(*per_part, strict=True))

    def _learn_in_two_passes(
        self,
        rollout: Rollout,
        parts: Sequence[View],
        batch: LossBatch,
        coefficients: Tensor,
        old: OldSource,
        metrics: StepMetrics,
        measures: tuple[Tensor, ...],
    ) -> None:
        """Applies the chain rule by hand: d loss / d measures of all parts, then d measures / d weights of each."""
        measures = tuple(values.detach().requires_grad_() for values in measures)
        total = self._sum_terms(self.loss(measures, batch), batch, coefficients, metrics)
        gradients = torch.autograd.grad(total, measures, allow_unused=True)
        for part in parts:
            inside = part.weight(rollout).to(self.processes.device) > 0  # [B, K]
            again = self.loss.measure(self._forward(rollout, part, old))
            used = [(m, g) for m, g in zip(again, gradients, strict=True) if g is not None and m.requires_grad]
            # a measure of whole samples [B, 1] counts once, not once for each of its K entries
            kept = [inside if m.shape == inside.shape else inside.any(1, keepdim=True) for m, _ in used]
            self.processes.backward(sum((m * g * k).sum() for (m, g), k in zip(used, kept, strict=True)))  # type: ignore[arg-type]

    def _dummy_view(self, old: OldSource) -> None:
        """Makes the network calls of one view with weight 0, for a process without work while others have a view."""
        most = self.processes.maximum(0)
        if most > 1 and self.loss.scope != "decision" and not isinstance(self.loss, StepAveraging):
            self._dummy_step(most, old, learns=False)
        self._dummy_step(most, old, learns=True)

    def _dummy_step(self, count: int, old: OldSource, *, learns: bool) -> None:
        """Makes the calls of `_forward` for `count` micro-batches, and with `learns` the backward passes."""
        for _ in range(count):
            with torch.no_grad():
                for which in self._other_weights(old):
                    with self.policy.weights(which):
                        self._nothing()
            with torch.set_grad_enabled(learns):
                nothing = self._nothing()
            if learns:
                self.processes.backward(nothing)

    def _nothing(self) -> Tensor:
        assert isinstance(self.policy, Shardable), "only sharded processes idle"
        return self.policy.dummy_forward()

    def _other_weights(self, old: OldSource) -> list[WeightsName]:
        """Returns the weights under which a view is evaluated before the trained ones, in this order."""
        others: list[WeightsName] = ["old"] if old == "kept" else []
        return [which for which in (*others, "reference", "averaged") if which in self.loss.needs]

    def _sum_terms(self, result: LossTerms, batch: LossBatch, coefficients: Tensor, metrics: StepMetrics) -> Tensor:
        _refuse_other_terms(self.loss, result)
        kept = torch.where(coefficients > 0, result.terms * coefficients, torch.zeros_like(coefficients))
        total = kept.sum()
        metrics.totals["loss/total"] = metrics.totals["loss/total"] + total.detach()
        for name, values in result.metrics.items():
            metrics.add(f"loss/{name}", values, batch.weight)
        return total

    def _forward(self, rollout: Rollout, view: View, old: OldSource) -> OutputsByWeights:
        """Evaluates the view under all weights that the loss needs; only the trained ones have a graph."""
        policy, seen = self.policy, dict[WeightsName, Any]()
        with torch.no_grad():
            for which in self._other_weights(old):
                with policy.weights(which):
                    seen[which] = policy.forward(rollout, view)
            if "old" in self.loss.needs and old == "recorded":
                seen["old"] = policy.recorded(rollout, view)
        trained: Any = policy.forward(rollout, view)
        if "old" in self.loss.needs and old == "itself":
            seen["old"] = trained.detach()
        score = None if self.score is None else partial(self.score, rollout)
        return OutputsByWeights(trained, seen.get("old"), seen.get("reference"), seen.get("averaged"), score)


def _refuse_other_terms(loss: Loss, result: Any) -> None:
    """Raises RunError where a loss of the user's own returns something else than terms."""
    if not isinstance(result, LossTerms) or not isinstance(result.terms, Tensor) or result.terms.dim() != 2:
        terms = getattr(result, "terms", result)
        got = f"terms {list(terms.shape)}" if isinstance(terms, Tensor) else type(terms).__name__
        raise RunError(f"loss {type(loss).__name__} must give LossTerms with terms [samples, decisions], got {got}")


def _add_entropy(forward_outputs: OutputsByWeights, weight: Tensor, metrics: StepMetrics) -> None:
    """Adds the entropy of the decisions in nats, where the policy computes it: at 0 exploration has stopped."""
    entropy = getattr(forward_outputs.trained, "entropy", None)
    if entropy is not None:
        metrics.add("policy/entropy", entropy, weight)


def mean_metrics(steps: Sequence[StepMetrics], processes: Processes) -> dict[str, float]:
    """Returns weighted means over steps, micro-batches and processes. Every process must call it."""
    own: dict[str, list[float]] = {}
    if columns := [name for seen in steps for name in seen.totals]:
        totals = torch.stack([torch.stack([s.totals[n], s.weight[n]]) for s in steps for n in s.totals]).double().cpu()
        places = {name: [n for n, column in enumerate(columns) if column == name] for name in sorted(set(columns))}
        own = {name: totals[rows].sum(0).tolist() for name, rows in places.items()}
    gathered = processes.gather([own])
    everywhere = sorted({name for seen in gathered for name in seen})
    sums = {n: [math.fsum(s[n][part] for s in gathered if n in s) for part in (0, 1)] for n in everywhere}
    return {name: total / weight for name, (total, weight) in sums.items() if weight > 0}


def select_groups(batch: LossBatch | None, prompt_indices: list[int]) -> tuple[Tensor, LossBatch | None]:
    """Returns the rows of the samples of some prompt indices, and the batch with weight 0 for all others."""
    if batch is None:
        return torch.zeros(0, dtype=torch.int64), None
    chosen = (
        torch.isin(prompt_index_of(batch.group.cpu()), torch.tensor(prompt_indices)) & (batch.weight > 0).any(1).cpu()
    )
    weight = batch.weight * chosen.to(batch.weight.device)[:, None]
    return chosen.nonzero().squeeze(1), replace(batch, weight=weight)


def views_of(
    loss: Loss, rollout: Rollout | None, rows: Tensor, batch: LossBatch | None, key: GroupKey
) -> Sequence[View]:
    """Returns the views of one optimizer step on the samples `rows`, without calls of weight 0."""
    if rollout is None or batch is None or not len(rows):
        return []
    takes_part = batch.weight.cpu()
    return [view.among(rollout, takes_part) for view in loss.views(rollout, rows, key)]
