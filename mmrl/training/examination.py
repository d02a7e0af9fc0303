"""What `mmrl doctor CONFIG` measures in the first iterations of a run, beside what every run logs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import Answering, Cutting, LossBatch, Modality, PromptSharing, Shardable
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.views import View
from mmrl.system.out_of_memory import random_state, reported, set_random_state
from mmrl.training.group_gradients import GroupGradients, evenness, noise_scale, signal_to_noise
from mmrl.training.rollouts import Collected
from mmrl.training.switched_off import can_be_float32, in_eval_mode, in_float32, training_modules
from mmrl.training.update import OldSource, Updater, micro_batches, select_groups, views_of

GROUPS = 8  # that are examined
CALLS = 8  # that are evaluated one by one
OF_RECORDED = ("doctor/ratio/mean", "doctor/ratio/std", "doctor/ratio/largest")  # of the ratio itself, not its parts
RATIO, GRADIENT = 0, 1  # iterations of the two parts: a new LoRA has a gradient in all its tensors from the second on

Ratios = dict[str, Tensor]  # log-ratios of decisions by what they compare


@dataclass
class Examination:
    """Measures of all processes. It leaves weights, gradients and random numbers as they were.

    `before` and `after` are called around the optimizer steps of each iteration, with the same arguments, by every
    process. Processes that share the weights measure nothing: their calls are those of all.
    """

    seed: int
    without_gradient: tuple[str, ...] = field(default=(), init=False)  # names of trained tensors; on all processes
    _evaluated: Tensor | None = field(default=None, init=False)  # log-ratios before the steps of iteration `RATIO`
    _micro_batch: int = field(default=0, init=False)  # by which these were evaluated

    def before(
        self,
        updater: Updater,
        collected: Collected,
        rollout: Rollout | None,
        batch: LossBatch | None,
        kept: Sequence[int],
        old: OldSource,
        iteration: int,
        *,
        brings_old: bool = False,
    ) -> dict[str, float]:
        """Returns the metrics of an iteration before its optimizer steps; names begin with `doctor/`.

        `brings_old`: the data brings old log-probs, of another policy, to which the ratio is off 1 by right.
        """
        if updater.processes.is_sharded or iteration not in (RATIO, GRADIENT):
            return {}
        with _as_it_was(updater):
            if iteration == RATIO:
                ratios = self._ratios(updater, collected, batch)
                left_out = OF_RECORDED if brings_old else ()
                return _inputs(updater, rollout) | {name: ratios[name] for name in ratios if name not in left_out}
            return self._gradients(updater, rollout, batch, kept[:GROUPS], old)

    def after(
        self, updater: Updater, collected: Collected, batch: LossBatch | None, iteration: int
    ) -> dict[str, float]:
        """Returns how far the optimizer steps of the first iteration moved the decisions."""
        if updater.processes.is_sharded or iteration != RATIO or updater.loss.kind != "decisions":
            return {}
        moved = torch.zeros(0, dtype=torch.float64)
        with _as_it_was(updater), updater.processes.lockstep(), reported():
            if collected.rollout is not None and batch is not None:
                assert self._evaluated is not None, "`before` evaluated the same decisions"
                now = self._log_ratios(updater, collected, collected.rollout, batch, has_parts=False)["recorded"]
                if self._micro_batch == updater.micro_batch:  # else memory halved it, and the order is another
                    moved = now - self._evaluated
        everywhere = torch.cat(updater.processes.gather([moved]))
        return {"doctor/step/log_ratio": _size(everywhere)} if len(everywhere) else {}

    def _ratios(self, updater: Updater, collected: Collected, batch: LossBatch | None) -> dict[str, float]:
        if updater.loss.kind != "decisions":
            return {}
        own: Ratios = {}
        with updater.processes.lockstep(), reported():
            if collected.rollout is not None and batch is not None:
                own = self._log_ratios(updater, collected, collected.rollout, batch, has_parts=True)
                self._evaluated, self._micro_batch = own["recorded"], updater.micro_batch
        everywhere = _joined(updater.processes.gather([own]))
        recorded = everywhere.pop("recorded", torch.zeros(0))
        if not len(recorded):
            return {}
        whole = _size(recorded), float(recorded.std(correction=0)), float(recorded.abs().max())
        parts = {f"doctor/ratio/{name}": _size(values) for name, values in everywhere.items()}
        return {**dict(zip(OF_RECORDED, whole, strict=True)), **parts}

    @torch.no_grad()
    def _log_ratios(
        self, updater: Updater, collected: Collected, rollout: Rollout, batch: LossBatch, *, has_parts: bool
    ) -> Ratios:
        """Returns the log-ratios of decisions that the update evaluates to those that were recorded (`recorded`).

        With `has_parts` also those to the reference (`reference`), and those of `_parts`, of one micro-batch.
        """
        policy = updater.policy
        seen: dict[str, list[Tensor]] = {"recorded": []}
        rows, part = select_groups(batch, collected.kept[:GROUPS])
        for view in views_of(updater.loss, rollout, rows, part, GroupKey(self.seed, 0, 0)):
            for number, piece in enumerate(micro_batches(policy, rollout, view, updater.micro_batch)):
                updater.num_calls = max(updater.num_calls, piece.num_calls)
                inside = piece.weight(rollout) > 0
                now: Any = policy.forward(rollout, piece)  # decisions, as the kind of the loss says
                pairs = {"recorded": now.log_ratio(policy.recorded(rollout, piece))}
                if has_parts and "reference" in updater.loss.needs:
                    with policy.weights("reference"):
                        pairs["reference"] = now.log_ratio(policy.forward(rollout, piece))
                compared = {name: _entries(ratios, inside) for name, ratios in pairs.items()}
                if has_parts and number == 0:
                    compared |= _parts(policy, rollout, piece, now, updater.processes.placement.dtype)
                for name, values in compared.items():
                    seen.setdefault(name, []).append(values)
        return {name: torch.cat(parts) if parts else torch.zeros(0) for name, parts in seen.items()}

    def _gradients(
        self,
        updater: Updater,
        rollout: Rollout | None,
        batch: LossBatch | None,
        kept: Sequence[int],
        old: OldSource,
    ) -> dict[str, float]:
        """Returns what the gradients of groups say of each other, see mmrl/training/group_gradients.py."""
        parameters, processes = updater.policy.weights.parameters, updater.processes
        gradients = GroupGradients(parameters, self.seed)
        for index in kept:
            rows, part = select_groups(batch, [index])
            views = views_of(updater.loss, rollout, rows, part, GroupKey(self.seed, 0, index))
            _forget(parameters.values())
            if updater.accumulate(rollout, views, part, old) is not None and views:  # a group is of one process
                gradients.add()
        squares = processes.gather(gradients.squares)
        if len(squares) < 2:
            return {}
        sum_square = gradients.sum_square(processes)
        reached = set(processes.gather(gradients.reached()))
        self.without_gradient = tuple(
            name for name in parameters if name not in reached and not _waits(name, parameters)
        )
        metrics = {
            "doctor/gradient/without": float(len(self.without_gradient)),
            "doctor/gradient/groups": float(len(squares)),
            "doctor/gradient/even": evenness(squares),
        }
        ratio, scale = signal_to_noise(sum_square, squares), noise_scale(sum_square, squares)
        metrics |= {} if ratio is None else {"doctor/gradient/signal_to_noise": ratio}
        return metrics | ({} if scale is None else {"doctor/gradient/noise_scale": scale})


def _inputs(updater: Updater, rollout: Rollout | None) -> dict[str, float]:
    """Returns the share of prompts that the policy cuts, the scale at which it sees images, and where an update shares
    no prompts, the share of its tokens that are of prompts computed before."""
    policy, cut, areas, tokens = updater.policy, list[bool](), list[float](), list[tuple[int, int]]()
    if rollout is not None:
        canvases = [one for one in rollout.outputs.canvases or () if one is not None]
        areas = [one.resized[0] * one.resized[1] / (one.original[0] * one.original[1]) for one in canvases]
        if isinstance(policy, Cutting):
            cut = list(map(bool, policy.cuts([prompt.text for prompt in rollout.prompts])))
        if isinstance(policy, PromptSharing) and policy.sharing_used.startswith("none"):
            tokens = _tokens_of_prompts(policy, rollout, updater.micro_batch)
    gather = updater.processes.gather
    cut, areas, tokens = gather(cut), gather(areas), gather(tokens)
    metrics = {"doctor/prompts/cut": sum(cut) / len(cut)} if cut else {}
    metrics |= {"doctor/images/scale": (sum(areas) / len(areas)) ** 0.5} if areas else {}
    again, everything = (sum(column) for column in zip(*tokens, strict=True)) if tokens else (0, 0)
    return metrics | ({"doctor/prompts/again": again / everything} if everything else {})


def _tokens_of_prompts(policy: Any, rollout: Rollout, micro_batch: int) -> list[tuple[int, int]]:
    """Returns, of each of a few prompts, the tokens of it that an update without sharing computes and one with it does
    not, and all tokens of its answers and their prompts. With sharing a prompt is computed once in a micro-batch."""
    lengths = rollout.outputs.num_tokens
    if lengths is None or not isinstance(policy, Answering):
        return []
    found = []
    for number, prompt in enumerate(rollout.prompts[:GROUPS]):
        own, length = lengths[rollout.prompt == number], policy.longest_prompt([prompt])
        once = math.ceil(len(own) / micro_batch)
        found.append((length * (len(own) - once), length * len(own) + int(own.sum())))
    return found


def _waits(name: str, parameters: Mapping[str, Tensor]) -> bool:
    """Returns whether a tensor is a factor of an adapter whose other factor is 0, so that its gradient is 0, too.

    That is the first factor of a new adapter until the second one has moved.
    """
    for one, other in (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B")):
        for own, twin in ((one, other), (other, one)):
            factor = parameters.get(name.replace(own, twin)) if own in name else None
            if factor is not None and not bool(factor.any()):
                return True
    return False


def _parts(policy: Modality, rollout: Rollout, piece: View, now: Any, precision: torch.dtype) -> Ratios:
    """Returns log-ratios of decisions to the same ones with one cause switched off, where the policy has it.

    `again`: nothing switched off. `alone`: evaluated call by call, not all at once. `dropout`: in evaluation mode;
    the causes after it are then measured in that mode. `precision`: in float32. `sharing`: each prompt computed for
    every one of its answers.
    """
    inside = piece.weight(rollout) > 0

    def off(before: Any) -> Tensor:
        return _entries(before.log_ratio(policy.forward(rollout, piece)), inside)

    seen = {"again": off(now)}
    networks = policy.networks() if isinstance(policy, Shardable) else list(policy.modules().values())
    with ExitStack() as stack:
        if in_training := training_modules([*policy.modules().values(), *networks]):
            stack.enter_context(in_eval_mode(in_training))
            seen["dropout"] = off(now)
            now = policy.forward(rollout, piece)
        seen["alone"] = _alone(policy, rollout, piece)
        if precision != torch.float32 and can_be_float32(networks):
            values = _where_possible(in_float32(networks), lambda: off(now))
            seen |= {} if values is None else {"precision": values}
        if isinstance(policy, PromptSharing) and not policy.sharing_used.startswith("none"):
            with policy.without_sharing():
                seen["sharing"] = off(now)
    return seen


def _where_possible(context: AbstractContextManager[None], measure: Any) -> Tensor | None:
    """Returns what is measured inside of a context; None where the network has no such kernel, or no memory for it."""
    try:
        with context:
            return measure()  # type: ignore[no-any-return]
    except (RuntimeError, TypeError, ValueError):  # attention of flash kernels, driven pipelines; nothing depends on it
        return None


def _joined(own: Sequence[Ratios]) -> Ratios:
    """Returns the log-ratios of all processes by name."""
    names = dict.fromkeys(name for one in own for name in one)
    return {name: torch.cat([one[name] for one in own if name in one]) for name in names}


def _alone(policy: Modality, rollout: Rollout, piece: View) -> Tensor:
    """Returns log-ratios of decisions that are evaluated call by call, to those evaluated together."""
    few = piece.split(CALLS)[0]
    together, *alone = (_log_ratio(policy, rollout, one) for one in (few, *few.split(1)))  # 0 outside of a view
    return _entries(torch.stack(alone).sum(0) - together, few.weight(rollout) > 0)


def _log_ratio(policy: Modality, rollout: Rollout, view: View) -> Tensor:
    now: Any = policy.forward(rollout, view)
    ratios: Tensor = now.log_ratio(policy.recorded(rollout, view))
    return ratios


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
    state, calls = random_state(device), policy.num_calls
    try:
        yield
    finally:
        _forget(policy.weights.parameters.values())
        set_random_state(state, device)
        policy.num_calls = calls
