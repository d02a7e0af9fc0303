"""`mmrl evaluate RUN --suite NAME`: benchmarks by name, on a run's weights or on the untrained model of a config."""

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mmrl.assembly.build import build_evaluated, closing, make_evaluator
from mmrl.assembly.compatibility import EvaluationParts
from mmrl.commands import suite_card
from mmrl.commands.check import roles_of, shortened_sampler, shrinking, twin_policy, twin_scorer
from mmrl.commands.suites import paths_of
from mmrl.commands.train import checkpoint_beside, config_of, is_run, refuse_others, weights_of
from mmrl.core import plugins
from mmrl.core.config import DatasetSettings, EvaluationSettings, Plugin, RolloutSettings, RunConfig
from mmrl.core.contracts import ConfigError, Modality, RunError
from mmrl.core.data import Prompt, WeightsName
from mmrl.core.lab_models import resolve_lab
from mmrl.core.suites import Suite, SuiteSettings, load_suite
from mmrl.prompts import datasets, row_files
from mmrl.prompts.filtering import warn_cut
from mmrl.prompts.stream import digest_of
from mmrl.run_directory.manifest import read_manifest
from mmrl.run_directory.suite_results import ResultsFile, SampleResult
from mmrl.scoring import during_sampling
from mmrl.system.errors import raised
from mmrl.system.files import scratch_folder
from mmrl.system.progress_bars import Counter
from mmrl.system.versions import version_of
from mmrl.training.checkpoint import Checkpoint, restore_weights
from mmrl.training.held_out import Evaluator, uncounted
from mmrl.training.suite_run import run_suite, spread

TINY_PROMPTS, TINY_SAMPLES = 2, 2
ALL_SAVED = 64  # of a try with at most so many prompts a sample of each is saved
PACKAGES = ("mmrl", "torch", "diffusers", "transformers")


@dataclass(frozen=True)
class Wanted:
    """What the command line asks of the suites."""

    source: str  # a run directory, or a config: its untrained model
    which: WeightsName | None = None  # None: those that the run evaluates
    at: Literal["last", "best"] = "last"
    overrides: Sequence[str] = ()
    data: Path | None = None  # where the data of the suite is on this machine
    limit: int | None = None  # prompts, evenly spread
    is_tiny: bool = False
    out: Path | None = None  # the folder with a folder for each suite


def evaluate_suites(wanted: Wanted, names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the cards of suites, each written to its own folder, with the results of all samples beside it.

    Every process of a launch must call it; only the first writes.

    Raises:
        ConfigError: an unknown suite, data that is not here, a policy that makes something else, weights that are not
            there.
        RunError: too many samples could not be judged.
    """
    suites = [load_suite(name) for name in names]
    if twice := {one.name for one in suites if [other.name for other in suites].count(one.name) > 1}:
        raise ConfigError(f"--suite must name each suite once, got {', '.join(sorted(twice))} again")
    if wanted.data is not None and len(suites) > 1:
        raise ConfigError(f"--data is the data of one suite; give one --suite, got {len(suites)}")
    if wanted.is_tiny and is_run(wanted.source):
        raise ConfigError(f"--tiny tries a config on random twins, and {wanted.source} is a run; leave out --tiny")
    if wanted.is_tiny and wanted.limit is not None:
        raise ConfigError(f"--tiny tries {TINY_PROMPTS} prompts of each data set; leave out --limit")
    refuse_others(wanted.source, wanted.overrides)
    return [_evaluated(wanted, suite) for suite in suites]


def _evaluated(wanted: Wanted, suite: Suite) -> dict[str, Any]:
    began = time.monotonic()
    saved = checkpoint_beside(Path(wanted.source), wanted.at) if is_run(wanted.source) else None
    config = config_of(wanted.source, wanted.overrides).model_copy(update={"rollout": RolloutSettings()})
    policy = plugins.build("modalities", resolve_lab(config.modality))
    _refuse_other_kind(suite, policy, config)
    with scratch_folder("suite") as scratch:
        sources, made_up = _sources(suite.settings, wanted, config, scratch / "data")
        settings = _evaluation(suite.settings, config, wanted)
        parts = build_evaluated(config, policy, settings, sources)
        folder = _folder(wanted, scratch) / suite.name
        with _twins(config, policy, parts, scratch) if wanted.is_tiny else _as_they_are(policy, parts) as pair:
            policy, parts = pair
            with closing(policy):
                evaluator = make_evaluator(config, policy, parts, sources)
                if saved is not None:
                    restore_weights(policy.weights, saved)
                weights = weights_of(wanted.source, wanted.which, config, policy.weights)
                evaluator = replace(evaluator, weights=weights)
                digest = _weights_digest(saved, evaluator.weights)
                return _carded(wanted, suite, config, evaluator, folder, sources, made_up, saved, digest, began)


def _carded(
    wanted: Wanted,
    suite: Suite,
    config: RunConfig,
    evaluator: Evaluator,
    folder: Path,
    sources: Sequence[DatasetSettings],
    made_up: Sequence[str],
    saved: Checkpoint | None,
    digest: str | None,
    began: float,
) -> dict[str, Any]:
    """Runs the suite and returns its card, which the main process writes."""
    processes, prompts, settings = evaluator.processes, evaluator.prompts, suite.settings
    kinds = _kinds(settings, prompts)
    _check_only(settings, kinds)
    chosen = spread(len(prompts), TINY_PROMPTS * len(sources) if wanted.is_tiny else wanted.limit)
    if len(chosen) <= ALL_SAVED and len(chosen) < len(prompts):
        evaluator = replace(evaluator, saved_samples=len(prompts))
    sampler, rewards = _sampler(settings, config), [dict(reward) for reward in settings.rewards]
    measured = [config.modality, sampler, config.precision, evaluator.samples_per_prompt, evaluator.seed]
    bound = {
        "weights": f"{evaluator.weights} {digest or 'untrained'}",
        "suite": suite.digest,
        "prompts": digest_of(prompts),
        "settings": hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest(),
    }
    if processes.is_main:
        warn_cut(evaluator.policy, prompts, None)
    counting = Counter.on_stderr if processes.is_main else uncounted
    others, found, num_new = run_suite(evaluator, chosen, ResultsFile(folder, bound), counting=counting)
    results = [found[key] for key in sorted(found)]
    failures = _check_failures(results, config)
    card = {
        "title": settings.title,
        "suite": suite.name,
        **suite_card.numbers_of(settings, results, kinds),
        "published": [one.model_dump(mode="json") for one in settings.published],
        "note": settings.note,
        "remarks": _remarks(wanted, len(chosen), len(prompts), made_up, others),
        "source": settings.source,
        "suite_sha256": suite.digest,
        "config": str(wanted.source),
        "weights": {
            "of": "the untrained model"
            if saved is None
            else f"iteration {saved.iteration}, {evaluator.weights} weights",
            "model": str(config.modality.get("model", config.modality["name"])),
            "iteration": None if saved is None else saved.iteration,
            "which": evaluator.weights,
            "sha256": digest,
        },
        "data": [path for part in (settings.parts if wanted.is_tiny else sources) for path in paths_of(part)],
        "prompts_there": len(prompts),
        "prompts_tested": len(chosen),
        "prompts_of_this_start": num_new,
        "prompts_sha256": bound["prompts"],
        "samples_per_prompt": evaluator.samples_per_prompt,
        "seed": evaluator.seed,
        "sampler": sampler,
        "rewards": rewards,
        "failures": failures,
        "seconds": time.monotonic() - began,
        "processes": processes.num_processes,
        "versions": {package: version_of(package) for package in PACKAGES},
        "folder": str(folder),
    }
    with processes.lockstep():
        if processes.is_main:
            suite_card.write(card, folder)
            if wanted.out is not None or not wanted.is_tiny:
                print(f"the card and all samples: {folder}", file=sys.stderr)
    return card


def _refuse_other_kind(suite: Suite, policy: Modality, config: RunConfig) -> None:
    """Raises ConfigError for a policy that does not make what the suite tests."""
    made = {
        "images": "images" in policy.makes,
        "videos": "videos" in policy.makes,
        "answers": "texts" in policy.makes and policy.sample_kind == "tokens",
        "actions": "actions" in policy.makes and policy.sample_kind == "tokens",
    }
    if not made[suite.settings.kind]:
        makes = ", ".join(kind for kind, is_made in made.items() if is_made) or "none of what suites test"
        raise ConfigError(
            f"suite {suite.name!r} tests {suite.settings.kind}, and modality {config.modality['name']!r} makes {makes}"
        )


def _sampler(suite: SuiteSettings, config: RunConfig) -> Plugin:
    """Returns the run's evaluation sampler with the suite's settings over it, or the suite's own one."""
    own = config.sampler if config.evaluation is None else config.evaluation.sampler
    over = suite.sampler or {}
    return {**own, **over} if over.get("name", own["name"]) == own["name"] else dict(over)


def _evaluation(suite: SuiteSettings, config: RunConfig, wanted: Wanted) -> EvaluationSettings:
    sampler, samples = _sampler(suite, config), suite.samples_per_prompt
    if wanted.is_tiny:
        sampler, samples = shortened_sampler(sampler), min(samples, TINY_SAMPLES)
    return EvaluationSettings(
        sampler=sampler,
        rewards=suite.rewards,
        samples_per_prompt=samples,
        saved_samples=suite.saved_samples,
        seed=suite.seed,
    )


def _sources(
    suite: SuiteSettings, wanted: Wanted, config: RunConfig, folder: Path
) -> tuple[list[DatasetSettings], list[str]]:
    """Returns the data sets of a suite where they are on this machine, and what was made up in the place of others.

    Raises ConfigError for files that are not here.
    """
    sources = [_located(part, wanted.data) for part in suite.parts]
    if not wanted.is_tiny:
        if missing := [file for source in sources for file in datasets.missing_files(source)]:
            raise ConfigError(
                f"there is no {missing[0]!r}: --data names the folder with the data of the suite, which is published "
                f"at {suite.data}"
            )
        return sources, []
    made_up = [path for source in sources if not datasets.is_here(source) for path in paths_of(source)]
    tiny = [
        datasets.shrunk(source)
        if datasets.is_here(source)
        else datasets.stand_in(source, folder / str(number), config.seed, roles=roles_of(config))
        for number, source in enumerate(sources)
    ]
    return tiny, made_up


def _located(source: DatasetSettings, data: Path | None) -> DatasetSettings:
    """Returns a data set whose files are looked for in `data`: a folder of them as published, or the one file."""
    if data is None:
        return source
    if not data.exists():
        raise ConfigError(f"--data: there is no file or folder {str(data)!r}")
    found = tuple(_path_in(data, path) for path in paths_of(source))
    images = source.images
    if images is not None and data.is_dir() and (data / images).is_dir():
        images = str(data / images)
    return source.model_copy(update={"path": found[0] if isinstance(source.path, str) else found, "images": images})


def _path_in(data: Path, path: str) -> str:
    """Returns where a published file is in a folder: under its own path or its name; else the folder or file itself."""
    is_file_name = Path(path).suffix.lower() in row_files.FILES
    if data.is_file() or not is_file_name:
        inside = data / path
        return str(inside if data.is_dir() and inside.exists() else data)
    for inside in (data / path, data / Path(path).name):
        if inside.exists():
            return str(inside)
    raise ConfigError(f"--data: the folder {str(data)!r} holds no {path!r}")


def _kinds(suite: SuiteSettings, prompts: Sequence[Prompt]) -> dict[str, dict[int, str]]:
    """Returns the kind of each prompt, by the fields that hold them. Raises ConfigError for a prompt without one."""
    for field in suite.kind_fields:
        for prompt in prompts:
            if field not in prompt.target:
                there = ", ".join(sorted(prompt.target)) or "nothing"
                raise ConfigError(
                    f"number.by: a prompt has no target.{field}, its target has {there} "
                    f"({prompt.source or prompt.text[:80]})"
                )
    return {field: {n: str(one.target[field]) for n, one in enumerate(prompts)} for field in suite.kind_fields}


def _check_only(suite: SuiteSettings, kinds: Mapping[str, Mapping[int, str]]) -> None:
    """Raises ConfigError for a number of kinds that no prompt has."""
    for name, number in {"number": suite.number, **{f"also.{name}": one for name, one in suite.also.items()}}.items():
        there = set() if number.by is None else set(kinds[number.by].values())
        if unknown := sorted(set(number.only) - there):
            listed = ", ".join(sorted(there)[:20])
            raise ConfigError(f"{name}.only: no prompt has the {number.by} {unknown[0]!r}; there are {listed}")


@contextmanager
def _twins(
    config: RunConfig, policy: Modality, parts: EvaluationParts, folder: Path
) -> Iterator[tuple[Modality, EvaluationParts]]:
    """Yields random twins of the policy and of the judges, small while the block lasts."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # of files of a few kilobytes
    with ExitStack() as stack:
        for one in shrinking(policy, (parts.scorer,)):
            stack.enter_context(one.shrunk())
        scorer = twin_scorer(parts.scorer, config.seed, folder / "judges")
        sampler = during_sampling.twin(parts.sampler, config.seed, folder / "sampler")
        yield twin_policy(config, policy, folder / "policy"), replace(parts, scorer=scorer, sampler=sampler)


@contextmanager
def _as_they_are(policy: Modality, parts: EvaluationParts) -> Iterator[tuple[Modality, EvaluationParts]]:
    yield policy, parts


def _weights_digest(saved: Checkpoint | None, which: WeightsName) -> str | None:
    """Returns the SHA-256 of the file of the weights, as the checkpoint's manifest has it; None: of no checkpoint."""
    if saved is None or saved.path is None:
        return None
    files = read_manifest(saved.path).files
    return files[f"{which}.safetensors" if f"{which}.safetensors" in files else "trained.safetensors"].sha256


def _folder(wanted: Wanted, scratch: Path) -> Path:
    """Returns the folder with a folder for each suite: that of --out, else in the run, else beside where one works."""
    if wanted.out is not None:
        return wanted.out
    if is_run(wanted.source):
        return Path(wanted.source) / "suites"
    return scratch / "suites" if wanted.is_tiny else Path("suites") / Path(wanted.source).stem


def _check_failures(results: Sequence[SampleResult], config: RunConfig) -> int:
    """Returns how many samples could not be judged. Raises RunError for too many: then there is no number."""
    failed = [row for row in results if row.total is None]
    if len(failed) > config.scoring.max_failed_share * len(results) or len(failed) == len(results):
        first = failed[0].failure if failed else None
        raise RunError(
            f"{len(failed)} of {len(results)} samples could not be judged, more than scoring.max_failed_share "
            f"{config.scoring.max_failed_share} allows; first failure: {first}; the next start tries them anew"
        ) from raised(first)
    return len(failed)


def _remarks(wanted: Wanted, chosen: int, total: int, made_up: Sequence[str], others: Sequence[str]) -> list[str]:
    """Returns what a reader of the number must know, a sentence each."""
    remarks = []
    if wanted.is_tiny:
        remarks.append("A try on random twins of the model and of the judges: the number says nothing.")
    elif chosen < total:
        remarks.append(f"A try on {chosen} of {total} prompts (--limit), which is not the number of the suite.")
    if made_up:
        remarks.append(f"Rows were made up in the place of {', '.join(made_up)}.")
    if others:
        remarks.append(f"Begun anew: earlier results in this folder had other {', '.join(others)}.")
    return remarks
