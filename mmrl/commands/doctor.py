"""`mmrl doctor`: what is wrong with a run, or with the first iterations of a config, and what to do about it."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmrl.assembly.build import build
from mmrl.assembly.group_checks import plans_of_iteration
from mmrl.commands.check import check_tiny
from mmrl.commands.launcher import is_main
from mmrl.commands.train import config_of, failure_of, train
from mmrl.core.config import RunConfig, load_config, shipped_names
from mmrl.core.contracts import ConfigError, RunError
from mmrl.diagnosis.history import History
from mmrl.diagnosis.prompt_findings import without_spread
from mmrl.diagnosis.record_findings import of_failure, of_record
from mmrl.diagnosis.rules import all_findings
from mmrl.reporting.findings import Finding, in_order
from mmrl.reporting.metrics_log import MetricsLog
from mmrl.reporting.prompt_groups import read_groups
from mmrl.reporting.record import read_record
from mmrl.reporting.samples import read_snapshot, saved_iterations
from mmrl.run_directory import start
from mmrl.system.files import scratch_folder
from mmrl.training.examination import Examination

SHORT = ("iterations=3", "checkpoint.every=0", "trackers=[]")  # unless the user says otherwise; most rules need 3
HELD_OUT_PROMPTS = 64  # that are evaluated, at most: an examination need not know the score well
SHORT_EVALUATION = ("evaluation.every=0", "evaluation.stop_after=null", "evaluation.saved_samples=0")
WIDTH = 110  # characters of a line
NAMED = 5  # tensors without gradient
OF_ANSWERS = ("answers_unreadable", "answers_unfinished", "reward_constant", "groups_without_spread")
SHOWN = 120  # characters of a question or an answer
# Begin the names of what an examination of random twins says nothing of.
OF_MODELS = ("doctor/gradient/", "doctor/step/", "doctor/prompts/", "doctor/images/")


def doctor(source: str, overrides: Sequence[str] = (), *, is_tiny: bool = False) -> list[Finding]:
    """Returns the findings on a run directory, from its log; or on a config, from its first iterations.

    Args:
        source: a run directory, or a config, which is trained in a folder that is removed, on one process or several;
            the first one then has the findings. is_tiny: on random twins of all parts, where what depends on data is a
            note.
    Raises:
        ConfigError: there is no such run or config, or a run is given settings or `is_tiny`. RunError: training failed
            for another reason than that it diverged, which is a finding.
    """
    folder = Path(source)
    if (folder / "config.yaml").exists():
        if overrides or is_tiny:
            raise ConfigError(f"{source} is a run: its log is read, so it takes neither settings nor --tiny")
        record, config = read_record(folder), load_config(folder / "config.yaml")
        of_log = all_findings(History.of_record(record, config))
        found = [*of_log, *without_spread(read_groups(folder)), *of_record(folder, record, config)]
        return [_with_answer(one, folder) for one in found]
    config = config_of(source, overrides)
    found = _of_settings(source, config)
    with scratch_folder("doctor") as scratch:
        if is_tiny:
            return [*found, *_of_twins(config, scratch)]
        whole = config.model_copy(update={"iterations": _whole_iterations(source, overrides, config)})
        return [*_of_first_iterations(source, overrides, whole, scratch / "run"), *found]


def _whole_iterations(source: str, overrides: Sequence[str], wanted: RunConfig) -> int:
    """Returns the iterations of the run that a config is for; those in `overrides` are of the examination."""
    kept = [one for one in overrides if one.partition("=")[0].strip() != "iterations"]
    try:
        return config_of(source, kept).iterations
    except ConfigError:  # the config leaves them to the command line
        return wanted.iterations


def _of_settings(source: str, config: RunConfig) -> list[Finding]:
    """Returns what the settings say by themselves: less samples than the recipe has, work that could be shared."""
    found = []
    if source in shipped_names():
        recipe = load_config(source)
        own, theirs = (one.group_size * one.prompts_per_iteration for one in (config, recipe))
        if 2 * own <= theirs and config.optimizer.learning_rate >= recipe.optimizer.learning_rate:
            cause = f"an iteration has {own} samples, and {theirs} in {source}, at a learning rate that is not lower"
            remedy = "lower optimizer.learning_rate with the square root of the samples, or raise prompts_per_iteration"
            found.append(Finding(0, "batch_below_recipe", "note", cause, own / theirs, remedy))
    if not config.sampler.get("share_noise"):
        alone, shared = _rollout_calls(config), _rollout_calls(config, share_noise=True)
        if alone and shared and shared < 0.8 * alone:
            cause = (
                f"each sample of a group makes all its steps: {alone} network calls of a rollout; {shared} are enough"
            )
            remedy = "sampler.share_noise: true lets a group begin from one latent, whose steps are then made once"
            found.append(Finding(0, "nothing_is_shared", "note", cause, shared / alone, remedy))
    return found


def _rollout_calls(config: RunConfig, **changed: bool) -> int | None:
    """Returns the network calls of a rollout; None where a sampler has no such setting."""
    try:
        parts = build(config.model_copy(update={"sampler": {**config.sampler, **changed}}))
    except ConfigError:
        return None
    plans = plans_of_iteration(config, parts.sampler, parts.policy)
    return round(sum(plan.num_rollout_calls * count for plan, count in plans))


def _of_first_iterations(source: str, overrides: Sequence[str], wanted: RunConfig, run: Path) -> list[Finding]:
    """Trains a shortened run of a config, `wanted` as it is to be trained in the end; returns the findings on it."""
    evaluation = wanted.evaluation
    short = [*SHORT, *(SHORT_EVALUATION if evaluation is not None else ()), *overrides]
    if evaluation is not None and not 0 < (evaluation.num_prompts or 0) <= HELD_OUT_PROMPTS:
        short.insert(0, f"evaluation.num_prompts={HELD_OUT_PROMPTS}")
    config = start.new_run(source, short, run, is_main=is_main())[0]
    ended: list[Finding] = []
    examination = Examination(config.seed)
    try:
        if not train(config, run, is_main=is_main(), examination=examination).is_complete:
            raise KeyboardInterrupt  # a signal ended it: what was seen until then is no examination
    except RunError as error:
        finding = of_failure(failure_of(error), 1, config)
        if finding is None:
            raise
        ended.append(finding)
    if not (run / "metrics.jsonl").exists():
        return ended
    # what its settings say is of the run that it is to be
    whole = config.model_copy(update={"iterations": wanted.iterations})
    history = History.of_record(read_record(run), whole)
    ended = [replace(one, iteration=history.iteration + 1) for one in ended]
    skipped, steps = (history.mean(f"optimizer/{name}", fewest=1) for name in ("skipped", "steps"))
    if skipped and skipped == steps and config.precision != "float16":  # whose scale skips its first steps
        ended = [_never_finite(history)]
    named = (_with_names(one, examination.without_gradient) for one in all_findings(history))
    return [*ended, *(_with_answer(one, run) for one in named)]


def _with_names(finding: Finding, names: Sequence[str]) -> Finding:
    """Returns the finding on tensors without gradient with the names of some; any other finding as it is."""
    if finding.name != "tensors_without_gradient" or not names:
        return finding
    listed = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return replace(finding, cause=f"{finding.cause}: {listed}")


def _with_answer(finding: Finding, run: Path) -> Finding:
    """Returns a finding on answers with one that was saved of the newest rollouts; any other finding as it is."""
    saved = saved_iterations(run, "rollouts") if finding.name in OF_ANSWERS else {}
    if not saved:
        return finding
    newest = max(saved)
    try:
        samples = read_snapshot(newest, saved[newest]).samples
    except ConfigError:  # a damaged file: the finding is worth more than its example
        return finding
    question, text = next(((one.question, one.text) for one in samples if one.text is not None), (None, ""))
    if question is None:
        return finding
    question, text = (part if len(part) <= SHOWN else f"{part[:SHOWN]}..." for part in (question, text))
    shown = f"an answer of iteration {newest} to {question!r} is {text!r}"
    return replace(finding, cause=f"{finding.cause}; {shown}")


def _never_finite(history: History) -> Finding:
    return Finding(
        history.iteration,
        "gradients_skipped",
        "fatal",
        "not one gradient was finite, from the first step on: it is not the learning rate",
        None,
        "look at the gradient of your own reward, loss or model: the root, log or norm of 0 has none, and times 0 it "
        "is NaN; torch.autograd.set_detect_anomaly(True) names the operation; precision: float32 where one overflows",
    )


def _of_twins(config: RunConfig, folder: Path) -> list[Finding]:
    metrics = MetricsLog(folder / "metrics.jsonl")
    observed = check_tiny(config, metrics, Examination(config.seed), is_shown=is_main())
    history = History(config)
    for line in metrics.read():
        history.add_line(line, OF_MODELS)
    found = [replace(one, severity="note") for one in all_findings(history)]
    for name, what in (("tensors_do_not_move", "did not move"), ("tensors_not_finite", "not finite")):
        tensors = str(observed[f"trained tensors {'that ' if 'move' in what else ''}{what}"])
        if tensors != "none":
            remedy = "look at what the policy trains (modality.lora.targets): a tensor that the loss never reaches"
            cause = f"trained tensors {what} in two iterations"
            found.append(Finding(history.iteration, name, "fatal", cause, tensors, remedy))
    return found


def said(findings: Sequence[Finding]) -> str:
    """Returns the findings for a terminal, in the order of reading; a sentence where there are none."""
    if not findings:
        return "no finding: none of the rules in docs/doctor.md holds"
    return "\n".join(map(_lines, in_order(findings)))


def _lines(one: Finding) -> str:
    value = f"{one.value:.4g}" if isinstance(one.value, float | int) else one.value
    head = f"{one.severity}: {one.name}" + ("" if value is None else f" ({value})") + f", iteration {one.iteration}"
    body = [textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ") for text in (one.cause, one.remedy)]
    return "\n".join([head, *body])
