"""Rollouts of samples of several sizes: the policy of each size evaluates its own part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.core.contracts import DifferentiableScore
from mmrl.core.data import DecisionBlock, Outputs, Rollout
from mmrl.core.forward_outputs import Denoising, ForwardOutputs, GaussianDecisions, RenderedOutputs
from mmrl.core.views import DecisionView, DenoisingView, OutputsView, View

from .sizes import Size
from .trace import FlowTrace


@dataclass(frozen=True)
class Part:
    """The samples of one size, and the numbers that they have in the whole rollout. Index tensors are on the CPU."""

    size: Size
    trace: FlowTrace
    prompts: Tensor  # [p] int64
    samples: Tensor  # [b] int64
    calls: Tensor  # [n] int64, of the states of the trace's decisions
    edges: Tensor  # [e] int64

    @classmethod
    def of(cls, size: Size, rollout: Rollout) -> "Part":
        """Returns the part that a rollout of one size is of itself."""
        decided = rollout.trace.decided
        counts = (len(rollout.prompts), rollout.num_samples, len(decided.state), len(decided.child))
        return cls(size, rollout.trace, *map(torch.arange, counts))

    def shifted(self, before: Sequence[int]) -> "Part":
        """Returns the part behind as many prompts, samples, calls and edges."""
        prompts, samples, calls, edges = before
        return replace(
            self,
            prompts=self.prompts + prompts,
            samples=self.samples + samples,
            calls=self.calls + calls,
            edges=self.edges + edges,
        )

    def rollout(self, whole: Rollout) -> Rollout:
        """Returns the part as a rollout of its own, without outputs."""
        block = whole.blocks[0].select(self.samples)
        call, edge = _local(block.call, self.calls), _local(block.edge, self.edges)
        return Rollout(
            prompts=tuple(whole.prompts[n] for n in self.prompts.tolist()),
            keys=tuple(whole.keys[n] for n in self.prompts.tolist()),
            prompt=_local(whole.prompt[self.samples], self.prompts),
            group=whole.group[self.samples],
            episode=torch.arange(len(self.samples)),
            turn=whole.turn[self.samples],
            outputs=Outputs(),
            blocks=(DecisionBlock(call, edge, block.weight, block.facts),),
            trace=self.trace,
            num_calls=0,
            levels=whole.levels,
        )

    def view(self, view: View) -> View | None:
        """Returns the part of a view that is about these samples, in the numbers of the whole; None: nothing is."""
        if isinstance(view, DecisionView):
            calls = view.calls[torch.isin(view.calls, self.calls)]
            return replace(view, calls=calls) if len(calls) else None
        assert isinstance(view, DenoisingView | OutputsView), "flow policies evaluate no other views"
        rows = torch.isin(view.sample, self.samples).nonzero()[:, 0]
        if not len(rows):
            return None
        seeds = tuple(view.noise_seed[row] for row in rows.tolist()) if view.noise_seed else ()
        if isinstance(view, OutputsView):
            return replace(view, sample=view.sample[rows], noise_sample=view.column[rows], noise_seed=seeds)
        columns = view.noise_sample[rows]
        return replace(view, sample=view.sample[rows], noise_sample=columns, sigma=view.sigma[rows], noise_seed=seeds)

    def local(self, view: View) -> View:
        """Returns a view that is about these samples alone in the numbers of this part."""
        if isinstance(view, DecisionView):
            return replace(view, calls=_local(view.calls, self.calls))
        assert isinstance(view, DenoisingView | OutputsView), "flow policies evaluate no other views"
        return replace(view, sample=_local(view.sample, self.samples))

    def whole(self, found: ForwardOutputs, num_samples: int) -> ForwardOutputs:
        """Returns forward outputs of this part as those of the whole rollout, of B samples."""
        if isinstance(found, GaussianDecisions):
            step = None if found.step is None else self._spread(found.step, num_samples, 0)
            return replace(found, entry=self._spread(found.entry, num_samples, -1), step=step)
        if isinstance(found, Denoising):
            return replace(found, entry=self._spread(found.entry, num_samples, -1))
        assert isinstance(found, RenderedOutputs), "flow policies make no other forward outputs"
        return replace(found, sample=self.samples[found.sample], shape=(num_samples, found.shape[1]))

    def _spread(self, table: Tensor, num_samples: int, fill: int) -> Tensor:
        """Returns a table [b, K] as [B, K]."""
        whole = table.new_full((num_samples, table.shape[1]), fill)
        return whole.index_copy(0, self.samples.to(table.device), table)


@dataclass(frozen=True)
class SizedTrace:
    """The record of a rollout of several sizes, one part for each size."""

    parts: tuple[Part, ...]

    @classmethod
    def join(cls, traces: "Sequence[SizedTrace]") -> "SizedTrace":
        """Joins traces in order; parts of one size become one."""
        by_size: dict[Size, list[Part]] = {}
        before = [0, 0, 0, 0]
        for trace in traces:
            for part in trace.parts:
                by_size.setdefault(part.size, []).append(part.shifted(before))
            before = [count + more for count, more in zip(before, trace._counts, strict=True)]
        return cls(tuple(_joined(parts) for parts in by_size.values()))

    def on_host(self) -> "SizedTrace":
        """Returns the same record with its latents in the CPU's memory."""
        return SizedTrace(tuple(replace(part, trace=part.trace.on_host()) for part in self.parts))

    @property
    def _counts(self) -> list[int]:
        """Returns the numbers of prompts, samples, calls and edges."""
        tables = [(part.prompts, part.samples, part.calls, part.edges) for part in self.parts]
        return [sum(map(len, column)) for column in zip(*tables, strict=True)]

    def part_of(self, view: View) -> Part:
        """Returns the part that a view of samples of one size is about."""
        found = [part for part in self.parts if part.view(view) is not None]
        assert len(found) == 1, f"a forward pass is about samples of one size, not of {len(found)}; see `apart`"
        return found[0]


def joined_sizes(rollouts: Sequence[tuple[Size, Rollout]]) -> Rollout:
    """Returns one rollout of those of single sizes."""
    parts = [replace(rollout, trace=SizedTrace((Part.of(size, rollout),))) for size, rollout in rollouts]
    return Rollout.join(parts)


def apart(rollout: Rollout, view: View) -> list[View]:
    """Returns the parts of a view, each of samples of one size."""
    parts = [part.view(view) for part in rollout.trace.parts]
    return [part for part in parts if part is not None]


def each_part(rollout: Rollout, change: Callable[[Part, Rollout], Rollout]) -> Rollout:
    """Returns the rollout with the traces that `change` returns for each part."""
    parts = [replace(part, trace=change(part, part.rollout(rollout)).trace) for part in rollout.trace.parts]
    return replace(rollout, trace=SizedTrace(tuple(parts)))


def score_of(part: Part, score: DifferentiableScore) -> DifferentiableScore:
    """Returns the score of samples by their numbers in a part."""
    return lambda outputs, rows: score(outputs, part.samples[rows.cpu()])


def _joined(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    numbers = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in ("prompts", "samples", "calls", "edges")
    }
    return Part(parts[0].size, FlowTrace.join([part.trace for part in parts]), **numbers)


def _local(numbers: Tensor, known: Tensor) -> Tensor:
    """Returns the places of numbers among the `known` ones; -1 stays -1."""
    if not len(known):
        return torch.full_like(numbers, -1)
    places = torch.full((int(known.max()) + 1,), -1)
    places[known] = torch.arange(len(known))
    return torch.where(numbers >= 0, places[numbers.clamp(min=0, max=len(places) - 1)], -1)
