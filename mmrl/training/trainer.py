"""The training loop: collect groups, score, update, evaluate, save. It knows no modality and no algorithm by name."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.core.config import RunConfig
from mmrl.core.contracts import (
    Acting,
    Advantage,
    ConfigError,
    DivergedError,
    Keeping,
    Loss,
    LossBatch,
    Modality,
    Prefetching,
    SamplingAhead,
)
from mmrl.core.data import Rollout, WeightsName
from mmrl.core.keys import GroupKey, seed_from
from mmrl.diagnosis.watch import Watch
from mmrl.prompts.stream import template_metrics
from mmrl.reporting.tracking import Tracking
from mmrl.run_directory.checkpoint_files import path_of
from mmrl.run_directory.saved_state import Progress, check_state
from mmrl.scoring.answer_metrics import likelihood_metrics
from mmrl.scoring.metrics import degenerate_groups, score_metrics
from mmrl.system.errors import HangError
from mmrl.system.out_of_memory import Result, in_halves, random_state, set_random_state
from mmrl.system.versions import version_of
from mmrl.training import checkpoint, group_records
from mmrl.training.callbacks import CallbackError, Callbacks, Event, TrainControl, TrainState, frozen
from mmrl.training.checkpoint import Checkpoint
from mmrl.training.divergence import MAX_STUCK, check_weights, diverged, norm_metrics, stuck_for
from mmrl.training.engine_watch import EngineWatch
from mmrl.training.examination import Examination
from mmrl.training.held_out import EvaluationStopped, Evaluator, save_samples
from mmrl.training.held_out import Result as Evaluated
from mmrl.training.imitation import with_imitated
from mmrl.training.member_sampling import member_importance
from mmrl.training.minibatches import batch_of, minibatches
from mmrl.training.off_policy_correction import correct, is_corrected
from mmrl.training.optimizer import learning_rate, step_on_masters
from mmrl.training.phase_memory import PhaseMemory
from mmrl.training.processes import Processes
from mmrl.training.replay import Replay
from mmrl.training.rollouts import Collected, Collector
from mmrl.training.update import OldSource, StepMetrics, Updater, mean_metrics, select_groups, views_of

log = logging.getLogger(__name__)
OF_REWARD = "reward/"  # begins the name of a stateful reward


@dataclass
class Trainer:
    """The parts of one run, as `mmrl.assembly.build.make_trainer` puts them together, and its loop."""

    config: RunConfig
    folder: Path
    processes: Processes
    policy: Modality
    collector: Collector
    advantage: Advantage
    loss: Loss
    optimizer: torch.optim.Optimizer
    stateful: Mapping[str, Any]  # plug-ins with a state of their own
    evaluator: Evaluator | None
    tracking: Tracking
    also_evaluated: Mapping[str, Evaluator] = field(default_factory=dict)  # the same prompts under further samplers
    replay: Replay | None = None
    brings_old: bool = False  # the data brings old log-probs: those of whoever made the outputs
    progress: Progress = field(default_factory=Progress)
    stop_requested: bool = False  # set by a signal: the iteration at hand is finished and saved
    settings: Mapping[str, Any] | None = None  # of config.yaml, those that may not change: kept in each checkpoint
    check_lock: Callable[[], None] = lambda: None  # raises RunError where another process took the run directory
    callbacks: Callbacks = field(default_factory=Callbacks)
    micro_batch: int = 0  # network calls of a forward and backward pass: the setting, until memory does not suffice
    newest_checkpoint: Path | None = None  # saved or restored
    newest_metrics: Mapping[str, float] = field(default_factory=dict)  # of the newest iteration of this start
    newest_held_out: Mapping[str, float] = field(default_factory=dict)  # of the newest evaluation of this start
    engine_watch: EngineWatch = field(default_factory=EngineWatch)
    watch: Watch | None = None  # the doctor, on the main process of a run
    examination: Examination | None = None  # of the first iterations of a run that is made for the doctor
    memory: PhaseMemory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = PhaseMemory(self.processes.device)
        self.micro_batch = self.micro_batch or self.config.updates.calls_at_once

    @property
    def names(self) -> list[str]:
        """Returns the names of the trained parameters, in the order of the optimizer."""
        return list(self.policy.weights.parameters)

    @property
    def sampling_weights(self) -> WeightsName:
        """Returns which weights sample the rollouts: the trained ones, or the old ones where the loss averages them."""
        return "trained" if self.loss.old_decay(0) is None else "old"

    def train(self) -> bool:
        """Trains to the last iteration, or until time is up or a stop is requested, and saves.

        Returns whether the run is complete; False where it was stopped and can be resumed. Raises RunError where the
        weights diverged; weights that are not finite are never saved.
        """
        try:
            return self._train()
        except DivergedError as error:
            now = self.progress
            if now.iteration == 0:  # nothing was trained yet: it is the model
                raise
            rate, last_good = self.config.optimizer.learning_rate, now.iteration - 1 - now.stuck
            raise diverged(error, now.iteration, rate, self.folder, last_good) from error
        finally:
            if self.collector.elsewhere is not None:
                self.collector.elsewhere.close()  # its device is free for what follows

    def _train(self) -> bool:
        now, total = self.progress, self.config.iterations
        self._plugin_states()  # a state that cannot be saved is an error now, not at the first checkpoint
        self._notify("on_train_begin")
        is_done = now.iteration >= total or self._is_over()
        if self._awaits_evaluation(is_done) and self._evaluate() and now.iteration > 0:  # the one that a stop cut short
            self.save()
            self._notify("on_save")
        is_stopping = self._is_stopping()
        elsewhere = self.collector.elsewhere
        if elsewhere is not None and elsewhere.sampled_by and not is_done and not is_stopping:
            with self.processes.lockstep():
                self.collector.sample_elsewhere(now.iteration, elsewhere.sampled_by)
        while not is_done and not is_stopping:
            started = time.perf_counter()
            metrics = self._iterated(now.iteration)
            now.iteration += 1
            now.idle += int(metrics["groups/degenerate"] == 1)
            now.add_kl(metrics.get("loss/kl"))
            metrics["time/iteration"] = time.perf_counter() - started
            with self.processes.lockstep():
                self._log(metrics)
            self._check_learning()
            now.train_seconds += time.perf_counter() - started
            self.newest_metrics = frozen(metrics)
            self._notify("on_iteration_end")
            is_done = now.iteration >= total or self._is_over()
            is_due = is_done or self._is_due(self.config.checkpoint.every)
            if self._awaits_evaluation(is_done):
                if is_due:  # first of all: an evaluation is long, and made again where it is cut short
                    self._timed_save()
                self._evaluate()
                is_done = is_done or self._is_over()  # where the score has not risen for too long
                is_due = is_due or is_done
            is_stopping = self._is_stopping()  # read once: the value that saves is the one that ends the loop
            is_best = now.best_iteration == now.iteration and self.config.checkpoint.every > 0
            if is_due or is_stopping or is_best:
                self._timed_save()
                self._notify("on_save")
                is_stopping = is_stopping or self._is_stopping()  # a stop that comes now loses nothing
        if self.processes.is_main and now.is_far(self.config):
            log.warning(
                "the run ends at iteration %d: its KL to the reference was above evaluation.max_kl in %d iterations in "
                "a row, and is %.3g",
                now.iteration,
                len(now.kl),
                now.kl[-1],
            )
        return is_done and not self._awaits_evaluation(is_done)

    def end(self, is_complete: bool) -> None:
        """Calls `on_train_end` of the callbacks; every process must call it, after `train` and all that is written."""
        self._notify("on_train_end", is_complete=is_complete)

    def _notify(self, event: Event, *, is_complete: bool = False) -> None:
        """Calls an event of the callbacks; where one fails, saves what was trained and raises CallbackError."""
        if not self.callbacks:
            return
        try:
            with self.processes.lockstep():
                self.callbacks.call(event, self._state(is_complete), TrainControl(self._request_stop))
        except CallbackError:
            if event in ("on_iteration_end", "on_evaluate") and self.progress.iteration > 0:
                self.save()
            raise

    def _request_stop(self) -> None:
        self.stop_requested = True

    def _state(self, is_complete: bool) -> TrainState:
        now = self.progress
        return TrainState(
            folder=self.folder,
            config=self.config,
            is_main=self.processes.is_main,
            iteration=now.iteration,
            metrics=self.newest_metrics,
            held_out=self.newest_held_out,
            held_out_before=now.before,
            held_out_score=now.latest,
            best_held_out_score=now.best,
            best_iteration=now.best_iteration,
            checkpoint=self.newest_checkpoint,
            train_seconds=now.train_seconds,
            is_complete=is_complete,
        )

    def _log(self, metrics: Mapping[str, float]) -> None:
        """Hands the metrics of the iteration at hand to the log, the trackers and the progress bar."""
        self.check_lock()
        self.tracking.log(self.progress.iteration, metrics)
        if self.watch is not None:
            self.watch.see(self.progress.iteration, metrics)
        self.progress.logged += 1

    def _check_learning(self) -> None:
        """Raises DivergedError for weights that are not finite, and for gradients that never are."""
        check_weights(self._parameters())
        if self.progress.stuck >= min(MAX_STUCK, self.config.iterations):
            raise DivergedError(f"no gradient was finite in {self.progress.stuck} iterations in a row")

    def _timed_save(self) -> None:
        started = time.perf_counter()
        self.save()
        self.progress.train_seconds += time.perf_counter() - started

    def save(self) -> None:
        """Writes a checkpoint; every process must call it. A run that is examined is thrown away, and has none."""
        if self.examination is not None:
            return
        weights, (optimizer, optimizer_state) = self.policy.weights, self._flat_optimizer()
        left_out = () if self.config.warm_start else ("reference",)  # the model's folder has it; that run may go on
        names: list[WeightsName] = ["trained", *(which for which in weights.kept if which not in left_out)]
        tensors = {str(which): self.processes.gathered(weights.tensors(which)) for which in names}
        tensors["optimizer"] = self.processes.gathered(optimizer)
        tensors |= {} if self.replay is None else {"replay": self.replay.tensors()}
        tensors |= self._ahead()
        with self.processes.lockstep():
            if self.processes.is_main:
                self._write_checkpoint(tensors, optimizer_state)
        self.newest_checkpoint = path_of(self.folder / "checkpoints", self.progress.iteration)

    def _ahead(self) -> dict[str, dict[str, Tensor]]:
        """Returns what was sampled ahead for all processes, by weights that nobody has any more, or these weights."""
        if not self.config.rollout.ahead:
            return {}
        if self.collector.elsewhere is not None:  # the samples are found again by their weights
            sampled_by = self.collector.elsewhere.sampled_by
            return {"sampled_by": dict(sampled_by)} if sampled_by else {}
        assert isinstance(self.policy, SamplingAhead), "checked when the parts were built"
        return {"ahead": checkpoint.flatten_records(self.processes.gather(self.policy.ahead()), "ahead")}

    def _write_checkpoint(self, tensors: Mapping[str, Mapping[str, Tensor]], optimizer: dict[str, Any]) -> None:
        plugins, held = self._plugin_states()
        tensors = {**tensors, **({"plugins": held} if held else {})}
        state = {
            "progress": asdict(self.progress),
            "prompts": self.collector.prompts.state_dict(),
            "plugins": plugins,
            "engine": self.processes.state_dict(),
            "optimizer": optimizer,
            "settings": self.settings,
            "mmrl": version_of("mmrl"),
        }
        self.check_lock()
        self.tracking.sync()
        folder = self.folder / "checkpoints"
        checkpoint.save(folder, Checkpoint(self.progress.iteration, tensors, state))
        best = {self.progress.best_iteration} if self.progress.best_iteration is not None else set()
        checkpoint.prune(folder, self.config.checkpoint.keep, best)

    def restore(self, saved: Checkpoint) -> None:
        """Restores a checkpoint; the run then goes on as if it had not stopped.

        Raises ConfigError where the checkpoint does not fit the model, the optimizer or the rewards, or is damaged.
        """
        progress = check_state(saved.state, saved.path or f"of iteration {saved.iteration}").progress
        for needed in ["trained", "optimizer", *([] if self.replay is None else ["replay"])]:
            if needed not in saved.tensors:
                raise ConfigError(f"the checkpoint {saved.path} has no {needed}.safetensors; is it of another run?")
        checkpoint.restore_weights(self.policy.weights, saved)
        state = saved.state
        checkpoint.restore_optimizer(self.optimizer, self.names, saved.tensors["optimizer"], state["optimizer"])
        self.collector.prompts.load_state_dict(state["prompts"])
        plugins = checkpoint.with_tensors(state["plugins"], saved.tensors.get("plugins", {}))
        checkpoint.restore_plugins(self.stateful, plugins)
        self.processes.load_state_dict(state["engine"])
        if self.replay is not None:
            self.replay.load(saved.tensors["replay"])
        if "ahead" in saved.tensors and isinstance(self.policy, SamplingAhead):
            self.policy.restore_ahead(checkpoint.restore_records(saved.tensors["ahead"], "ahead"))
        if self.collector.elsewhere is not None:
            self.collector.elsewhere.sampled_by = saved.tensors.get("sampled_by", {})
        self.progress, self.newest_checkpoint = progress, saved.path

    def _plugin_states(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Returns the states of the plug-ins by name, and their tensors; see `checkpoint.without_tensors`.

        Raises ConfigError for a state that holds anything but tensors and what JSON has.
        """
        states, tensors = dict[str, Any](), dict[str, torch.Tensor]()
        for name, plugin in self.stateful.items():
            states[name], held = checkpoint.without_tensors(plugin.state_dict(), name)
            tensors |= held
            try:
                checkpoint.check_plain(name, states[name])
            except ValueError as error:
                raise ConfigError(f"{error}; it is what its state_dict() returns") from error
        return states, tensors

    def _iterated(self, iteration: int) -> dict[str, float]:
        try:
            return self._iterate(iteration)
        except HangError as error:
            raise HangError(f"iteration {iteration + 1}: {error}") from error

    def _iterate(self, iteration: int) -> dict[str, float]:
        torch.manual_seed(seed_from(self.config.seed, "iteration", iteration))  # for a model's own randomness
        started, beside = time.perf_counter(), self._seconds_beside()
        self.memory.begin()
        collected = self.collector(iteration, self.sampling_weights)
        sampled, rollout_memory = time.perf_counter(), self.memory.end()
        scores, min_spread = collected.scores, self.config.groups.min_spread
        is_degenerate = degenerate_groups(scores, self.advantage, collected.paths, min_spread)
        metrics = score_metrics(scores, is_degenerate) | likelihood_metrics(scores, collected.paths)
        recording = self._record(collected, is_degenerate, iteration + 1)
        scorer = self.collector.scorer
        metrics |= collected.metrics | scorer.changing_weights(iteration) | scorer.spent()
        metrics |= template_metrics(self.config.prompts) | {"prompts/passes": self.collector.prompts.passes}
        for name, plugin in self.stateful.items():
            plugin.update(scores.of(name.removeprefix(OF_REWARD)) if name.startswith(OF_REWARD) else scores)
        metrics |= scorer.fit()
        if iteration + 1 < self.config.iterations:
            self.collector.prefetch()  # the next prompts are known, now that a curriculum has seen the scores
            if self.config.rollout.ahead:
                self.collector.sample_ahead(iteration + 1, self.sampling_weights)
        calls = self.policy.num_calls
        self.memory.begin()
        metrics |= self._learn(collected, iteration)
        if isinstance(self.policy, Keeping):
            self.policy.forget()
        metrics |= self._counts(collected, self.policy.num_calls - calls)
        metrics |= {name: after - beside[name] for name, after in self._seconds_beside().items()}
        metrics |= self._memory(rollout_memory)
        update = time.perf_counter() - sampled - recording
        return metrics | {"time/rollout": sampled - started, "time/recording": recording, "time/update": update}

    def _record(self, collected: Collected, is_degenerate: Tensor, iteration: int) -> float:
        """Writes the groups of an iteration, counted from 1, and samples of some; returns the seconds that it took."""
        started = time.perf_counter()
        named = self.processes.gather(group_records.named_prompts(collected))
        is_saved = self.config.rollout.is_saved(iteration, self.config.iterations)
        chosen = group_records.chosen_samples(collected.scores) if is_saved else []
        placed = self.processes.gather(group_records.saved_of(collected, chosen))
        with self.processes.lockstep():
            if self.tracking.groups is not None:
                self.check_lock()
                groups = group_records.groups_of(collected.scores, is_degenerate, named)
                self.tracking.groups.write(iteration, groups)
                if placed:
                    folder = self.tracking.groups.samples_of(iteration)
                    samples = [sample for _, sample in sorted(placed, key=lambda pair: pair[0])]
                    save_samples(samples, folder, folder.parent / "questions")
        return time.perf_counter() - started

    def _memory(self, rollout: float) -> dict[str, float]:
        """Returns GiB of the phases of an iteration and of the run so far, each of the process that took most.

        `rollout`: this process's.
        """
        own = {"memory/rollout": rollout, "memory/update": self.memory.end()}
        own |= {"memory/highest": self.memory.highest, "memory/host": self.memory.host}
        every = self.processes.gather([own])
        return {name: max(one[name] for one in every) for name in own}

    def _seconds_beside(self) -> dict[str, float]:
        """Returns the seconds so far that this process waited for prompts to be encoded, and that its threads worked;
        and of an agent the same of its environments.

        What was waited for is inside of `time/rollout`, and what worked is beside all of an iteration.
        """
        seconds: dict[str, float] = {}
        if isinstance(self.policy, Prefetching):
            seconds["time/decoding"], seconds["time/decoding_workers"] = self.policy.decoding_seconds()
        if isinstance(self.policy, Acting):
            seconds["time/environment"], seconds["time/environment_workers"] = self.policy.environment_seconds()
        return seconds

    def _learn(self, collected: Collected, iteration: int) -> dict[str, float]:
        """Makes the optimizer steps of one iteration on minibatches of whole groups, and returns their metrics."""
        rate = learning_rate(self.config.optimizer, iteration, self.config.iterations)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("rate_scale", 1.0)
        batch, decay = batch_of(collected, self.advantage, self.processes.device), self.loss.old_decay(iteration)
        batch, imitated = with_imitated(collected, batch, self.loss, self.processes)
        updates, rollout = self.config.updates, collected.rollout
        is_single = updates.epochs * updates.minibatches == 1 and not self.brings_old
        old: OldSource = "kept" if decay is not None else "itself" if is_single else "recorded"
        is_recomputed = old == "recorded" and updates.old == "recomputed" and "old" in self.loss.needs
        mismatch: dict[str, float] = {}
        if is_corrected(self.policy, self.loss, self.config.rollout):  # which recomputes in any case
            settings, sampled_by = self.config.correction, self.sampling_weights
            rollout, batch, mismatch = correct(
                self.policy,
                rollout,
                batch,
                settings,
                self.processes,
                sampled_by=sampled_by,
                micro_batch=self.micro_batch,
            )
            if self.processes.is_main and not self.config.rollout.ahead:  # older weights sampled: it differs for that
                self.engine_watch.see(mismatch)
            is_recomputed = False
        score = partial(self.collector.scorer.score_in_graph, iteration=iteration)
        updater = Updater(self.policy, self.loss, self.processes, self.micro_batch, score)
        if is_recomputed:
            rollout = self._in_memory(updater, partial(updater.recompute, rollout))
        rollout = updater.differentiate(rollout, batch)
        kept, replayed = collected.kept, dict[str, float]()
        if self.replay is not None:
            refilled = self.replay(collected, rollout, batch, iteration)
            rollout, batch, kept, replayed = refilled.rollout, refilled.batch, refilled.prompt_indices, refilled.metrics
            old = "recorded" if refilled.num_replayed and old == "itself" else old
        batch = None if batch is None else replace(batch, iteration=iteration)
        parts, examined = minibatches(kept, updates, self.config.seed, iteration), dict[str, float]()
        if self.examination is not None:
            before = partial(
                self.examination.before,
                updater,
                collected,
                rollout,
                batch,
                kept,
                old,
                iteration,
                brings_old=self.brings_old,
            )
            examined = self._in_memory(updater, before)
        steps, norms = self._steps(updater, parts, iteration, rollout, batch, old)
        if self.examination is not None:
            examined |= self._in_memory(updater, partial(self.examination.after, updater, collected, batch, iteration))
        if decay is not None:
            self.policy.weights.average("old", decay)
        metrics = {"optimizer/learning_rate": rate, "optimizer/steps": float(len(steps))}
        self.progress.stuck = stuck_for(self.progress.stuck, norms, may_scale=self.processes.may_scale)
        metrics |= mismatch | imitated
        return metrics | replayed | examined | norm_metrics(norms) | mean_metrics(steps, self.processes)

    def _steps(
        self,
        updater: Updater,
        parts: Sequence[list[int]],
        iteration: int,
        rollout: Rollout | None,
        batch: LossBatch | None,
        old: OldSource,
    ) -> tuple[list[StepMetrics], list[Tensor]]:
        """Makes an optimizer step on each part's prompt indices; returns each step's metrics and gradient norm."""
        steps: list[StepMetrics] = []
        norms: list[Tensor] = []
        for number, prompt_indices in enumerate(parts):
            key = GroupKey(self.config.seed, iteration, number)
            rows, part = select_groups(batch, prompt_indices)
            part = None if part is None else replace(part, step=number)
            views = views_of(self.loss, rollout, rows, part, key)
            importance = member_importance(part, self.config.updates.min_advantage, key)
            seen = self._in_memory(updater, partial(updater.accumulate, rollout, views, part, old, importance))
            if seen is not None:
                steps.append(seen)
                norms.append(self._step())
                if self.config.averaging is not None:
                    self.policy.weights.average("averaged", self.config.averaging.decay)
        return steps, norms

    def _in_memory(self, updater: Updater, work: Callable[[], Result]) -> Result:
        """Returns what `work` makes by the updater's micro-batches. Where memory does not suffice on some process, all
        begin it again with micro-batches of half the size, which the rest of the run keeps."""
        before = random_state(self.processes.device)

        def begun(size: int) -> Result:
            updater.micro_batch, updater.num_calls = size, 0
            for parameter in self._parameters():
                parameter.grad = None
            set_random_state(before, self.processes.device)
            return work()

        def largest() -> int:
            return max(self.processes.gather([updater.num_calls]))

        is_main = self.processes.is_main
        done, self.micro_batch = in_halves(self.micro_batch, begun, "updates.micro_batch", largest, tells=is_main)
        return done

    def _step(self) -> Tensor:
        """Makes the optimizer step on the gradients that are there; returns their norm before clipping."""
        weights = self.policy.weights
        masters = partial(step_on_masters, self.optimizer, weights) if weights.has_masters else None
        largest = self.config.optimizer.max_grad_norm
        return self.processes.step(self.optimizer, self._parameters(), largest, masters=masters)

    def _counts(self, collected: Collected, update_calls: int) -> dict[str, float]:
        counts = self.processes.gather([(collected.num_calls, update_calls)])
        rollout, update = (sum(column) for column in zip(*counts, strict=True))
        self.progress.network_calls += rollout + update
        return {
            "groups/kept": float(len(collected.kept)),
            "groups/missing": float(self.config.prompts_per_iteration - len(collected.kept)),
            "calls/rollout": float(rollout),
            "calls/update": float(update),
        }

    def _awaits_evaluation(self, is_done: bool) -> bool:
        """Returns whether the weights are to be evaluated now: before training, at its end, every few iterations."""
        now, settings = self.progress, self.config.evaluation
        if self.evaluator is None or now.evaluated == now.iteration:
            return False
        return now.iteration == 0 or is_done or (settings is not None and self._is_due(settings.every))

    def _evaluate(self) -> bool:
        """Returns whether the evaluation was completed; one that a requested stop ends is repeated on resume."""
        assert self.evaluator is not None
        started, now = time.perf_counter(), self.progress
        try:
            counting = self.tracking.counter
            result: Evaluated = self.evaluator(self._is_stopping, counting=counting)
            others = {name: one(self._is_stopping, counting=counting) for name, one in self.also_evaluated.items()}
        except EvaluationStopped:
            return False
        now.latest, now.evaluated = result.score, now.iteration
        if now.iteration == 0:
            now.before = result.score
        if now.iteration > 0:
            is_best = now.best is None or result.score > now.best
            now.stalled = 0 if is_best else now.stalled + 1
            if is_best:
                now.best, now.best_iteration = result.score, now.iteration
        metrics = dict(result.metrics)
        for name, other in others.items():
            now.others_latest[name] = other.score
            now.others_before.setdefault(name, other.score)
            metrics |= {
                f"held_out_{name}/{key.removeprefix('held_out/')}": value for key, value in other.metrics.items()
            }
        metrics["time/evaluation"] = time.perf_counter() - started
        with self.processes.lockstep():
            self._log(metrics)
            if self.processes.is_main and result.samples:
                folder = self.folder / "samples" / f"{now.iteration:06d}"
                save_samples(result.samples, folder, folder.parent / "questions")  # the same in each evaluation
                self.tracking.images(now.iteration, "held_out", sorted(folder.glob("*.png")))
        self.newest_held_out = frozen(metrics)
        self._notify("on_evaluate")
        return True

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.progress.iteration % every == 0

    def _is_over(self) -> bool:
        """Returns whether a limit beside the number of iterations ends the run; processes differ in their time."""
        return self._anywhere(self.progress.is_over(self.config))

    def _is_stopping(self) -> bool:
        return self._anywhere(self.stop_requested)

    def _anywhere(self, is_so: bool) -> bool:
        """Returns whether a condition holds on some process: what one process does, all must do."""
        return float(self.processes.sum(torch.tensor(float(is_so)))) > 0

    def _parameters(self) -> list[torch.nn.Parameter]:
        return list(self.policy.weights.parameters.values())

    def _flat_optimizer(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return checkpoint.flatten_optimizer(self.optimizer, self.names)
