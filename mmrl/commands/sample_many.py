"""`mmrl sample --prompts FILE` and `--task TASK`: samples of many prompts in a folder to look at, and to go on with."""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mmrl.commands.sample import sampler_of
from mmrl.commands.score_results import many
from mmrl.commands.train import checkpoint_of, config_of, is_run, refuse_others, restored
from mmrl.core import plugins
from mmrl.core.config import DatasetSettings, RunConfig
from mmrl.core.contracts import ConfigError, Keeping, Sampler
from mmrl.core.data import Prompt, Rollout, WeightsName
from mmrl.core.keys import GroupKey
from mmrl.plans.sizes import policy_for
from mmrl.prompts.filtering import readable, reader_of, warn_cut
from mmrl.prompts.stream import digest_of, load_prompts, mixture
from mmrl.reporting.recording import reward_text
from mmrl.reporting.sampled_page import write_sampled_page
from mmrl.run_directory import checkpoint_files
from mmrl.scoring.scorer import Scorer
from mmrl.system.files import parse_json, read_json, replace_file
from mmrl.system.progress_bars import Counter
from mmrl.training.held_out import sampled_share, saved_entry, saved_sample, write_listing
from mmrl.training.trainer import Trainer

log = logging.getLogger(__name__)
INDEX, REQUEST = "samples.jsonl", "request.json"
PLAIN = (".txt",)  # files without columns
NAMED_TASKS = 5


@dataclass(frozen=True)
class Request:
    """What is sampled, of a run or of an untrained config."""

    source: str
    count: int  # samples of each prompt
    seed: int
    which: WeightsName | None = None
    at: Literal["last", "best"] = "last"
    by: str | None = None  # another sampler
    is_scored: bool = False  # by the rewards of the evaluation, else those of the training
    overrides: Sequence[str] = ()

    def config(self) -> RunConfig:
        """Returns the settings. Raises ConfigError where there are none, and for wrong overrides."""
        refuse_others(self.source, self.overrides)
        return config_of(self.source, self.overrides)

    def identity(self, config: RunConfig, prompts: Sequence[Prompt]) -> dict[str, Any]:
        """Returns what tells samples of this request from those of another; plain values by their names."""
        settings = config.model_dump_json().encode()
        path = Path(self.source).resolve()
        return {
            "source": str(path) if is_run(self.source) else self.source,
            "settings": hashlib.sha256(settings).hexdigest(),
            "checkpoint": checkpoint_files.iteration_of(checkpoint_of(path, self.at)) if is_run(self.source) else None,
            "weights": self.which,
            "sampler": self.by,
            "count": self.count,
            "seed": self.seed,
            "score": self.is_scored,
            "prompts": digest_of(prompts),
        }


@dataclass(frozen=True)
class Sampled:
    """What a folder of samples holds now."""

    folder: Path
    entries: list[dict[str, Any]]  # one of each sample
    num_prompts: int
    num_before: int  # samples that were there already

    def __str__(self) -> str:
        before = f", {self.num_before} of them from before" if self.num_before else ""
        samples, prompts = many(len(self.entries), "sample"), many(self.num_prompts, "prompt")
        return f"{samples} of {prompts}{before}: {self.folder / 'index.html'}"

    def turns(self) -> list[str]:
        """Returns the actions of all episodes and their rewards in words, a line each, without those of samples."""
        lines = []
        for entry in self.entries:
            if "turns" in entry:
                each = [
                    f"  {place}. {turn['action']}  {reward_text(turn['reward'])}".rstrip()
                    for place, turn in enumerate(entry["turns"], 1)
                ]
                lines += [entry["prompt"], *each, f"  end: {entry['outcome'].replace('_', ' ')}"]
        return lines


def sample_file(request: Request, file: str, out: Path) -> Sampled:
    """Samples all prompts of a file, or of `lab:NAME/SPLIT`, into the folder `out`; see `sample_prompts`.

    Raises ConfigError as `load_prompts` does, and as `sample_prompts`.
    """
    config = request.config()
    return sample_prompts(request, config, load_prompts(source_of(config, file)), out)


def sample_tasks(request: Request, tasks: Sequence[str], out: Path) -> Sampled:
    """Plays tasks with an agent into the folder `out`, where recordings show each turn; see `sample_prompts`.

    Raises ConfigError for a policy without an environment, and as `sample_prompts`.
    """
    config = request.config()
    if plugins.build("modalities", config.modality).sample_kind != "turns":
        name = config.modality["name"]
        raise ConfigError(f"--task is for agents, and modality {name!r} has no environment; give --prompt or --prompts")
    sources = [source for source, _ in mixture(config.prompts.train)]
    sources = ([] if config.prompts.held_out is None else [config.prompts.held_out]) + sources
    known = [prompt for source in sources for prompt in load_prompts(source)]
    chosen = [task_of(task, known) for task in tasks]
    try:
        return sample_prompts(request, config, chosen, out)
    except ConfigError as error:  # of an environment that refuses the user's own words
        if not any(repr(task.text) in str(error) for task in chosen):
            raise
        some = [repr(prompt.text) for prompt in known[:NAMED_TASKS]]
        more = f" and {len(known) - len(some)} more" if len(known) > len(some) else ""
        raise ConfigError(f"--task: {error}. The run's own tasks are {', '.join(some)}{more}") from error


def source_of(config: RunConfig, file: str) -> str | DatasetSettings:
    """Returns a file of prompts as a source of a run, with the layout of the run's own data where the file has columns.

    The layout is that of the held-out data, else of the first training data that has one, else `columns`.
    Raises ConfigError where there is no such file.
    """
    if file.startswith("lab:"):
        return file
    path = Path(file).expanduser()
    if not path.exists():
        raise ConfigError(f"--prompts: there is no file {file!r}")
    if path.suffix in PLAIN:
        return file
    own = [config.prompts.held_out, *(source for source, _ in mixture(config.prompts.train))]
    layout = next((one for one in own if isinstance(one, DatasetSettings)), DatasetSettings(path=file))
    changes: dict[str, Any] = {"path": file, "bad_rows": "fail"}
    changes |= dict.fromkeys(("subset", "split", "images", "limit", "seed"))
    return layout.model_copy(update=changes)


def task_of(text: str, known: Sequence[Prompt]) -> Prompt:
    """Returns the task that a text names.

    The text is an object of JSON with the fields of a prompt file's row (`prompt` may be left out), or the prompt or
    the `task` of one of the run's own prompts, of which the first counts, or else a goal in the user's words.
    Raises ConfigError for what begins like an object of JSON and is none, and for an empty text.
    """
    if not text.strip():
        raise ConfigError("--task needs a text, got an empty one")
    if text.lstrip().startswith("{"):
        row = parse_json(text, f"--task {text[:80]!r}")
        goal = row.pop("prompt", None) or str(row.get("task", "")) or text
        if not isinstance(goal, str):
            raise ConfigError(f"--task: the field 'prompt' must be a text, got {goal!r:.80}")
        return Prompt(goal, target=row)
    for prompt in known:
        if text == prompt.text:
            return Prompt(prompt.text, target=prompt.target, system=prompt.system)
    for prompt in known:
        if text == str(prompt.target.get("task")):
            return Prompt(prompt.text, target=prompt.target, system=prompt.system)
    return Prompt(text)


def sample_prompts(request: Request, config: RunConfig, prompts: Sequence[Prompt], out: Path) -> Sampled:
    """Samples prompts into the folder `out`, chunk by chunk; what the same request has sampled there stays as it is.

    The folder has a line of `samples.jsonl` for each sample, and the pictures, videos, answers and recordings; at the
    end `samples.json` (which `mmrl score` and `mmrl vote` read), a contact sheet, and `index.html`.

    Raises:
        ConfigError: the folder holds anything but samples of this request, a prompt cannot be read by the policy, or
            with `is_scored` a prompt lacks what a reward needs.
    """
    identity = request.identity(config, prompts)
    entries = _whole(entries_before(out, identity), out, request.count)
    missing = [number for number in range(len(prompts)) if number not in entries]
    num_before = sum(map(len, entries.values()))
    if missing:
        restoring = restored(request.source, request.which, request.at, request.overrides, is_whole=True)
        with restoring as (trainer, weights):
            if identity["checkpoint"] not in (None, trainer.progress.iteration):
                raise ConfigError(f"{request.source} saved a newer checkpoint meanwhile; give the command again")
            refuse_unfit(request, trainer, prompts)
            is_new = not out.exists()
            begin(out, identity, entries)  # nothing is written before
            try:
                for number, listed in _sampled(request, trainer, weights, prompts, missing, out):
                    entries[number] = listed
            except ConfigError:  # such as a task that an environment refuses
                if not entries:
                    _forget(out, is_new=is_new)
                raise
    every = [entry for number in sorted(entries) for entry in entries[number]]
    if missing or not (out / "index.html").is_file():
        _write_index(out, entries)  # in the order of the prompts
        write_listing(every, out)
        write_sampled_page(out, _name(request))
    return Sampled(out, every, len(prompts), num_before)


def _name(request: Request) -> str:
    return Path(request.source).name or request.source


def entries_before(out: Path, identity: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the entries that a folder of the same request holds; none of an empty one, or where there is none.

    A last line that a killed process did not finish is left out. Raises ConfigError for any other folder.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is no folder; give another with --out")
    if not out.exists() or not any(out.iterdir()):
        return []
    if not (out / REQUEST).is_file():
        raise ConfigError(f"{out} exists and holds no samples to go on with; give another folder with --out")
    index = out / INDEX
    lines = index.read_text(encoding="utf-8").split("\n")[:-1] if index.is_file() else []  # the last is empty, or torn
    if not lines:
        return []  # of a command that failed before its first sample
    before = read_json(out / REQUEST)
    if not isinstance(before, dict):
        raise ConfigError(f"{out / REQUEST} is damaged: it needs an object, got {type(before).__name__}")
    if other := [name for name, value in identity.items() if before.get(name) != value]:
        words = ", ".join(
            name if name in ("settings", "prompts") else f"{name} {before.get(name)!r}, now {identity[name]!r}"
            for name in other
        )
        raise ConfigError(f"{out} holds samples of another request, which differs in {words}; give another --out")
    entries = [parse_json(line, f"{index}, line {number}") for number, line in enumerate(lines, 1)]
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(name), int) for name in ("number", "sample")):
            raise ConfigError(f"{index}, line {number} is damaged: it needs 'number' and 'sample'")
    return entries


def _whole(entries: Sequence[dict[str, Any]], out: Path, count: int) -> dict[int, list[dict[str, Any]]]:
    """Returns the entries of each prompt that has all of its samples, with their files."""
    of: dict[int, dict[int, dict[str, Any]]] = {}
    for entry in entries:
        if all((out / str(entry[name])).is_file() for name in ("file", "strip", "recording") if name in entry):
            of.setdefault(entry["number"], {})[entry["sample"]] = entry
    return {
        number: [samples[place] for place in sorted(samples)] for number, samples in of.items() if len(samples) == count
    }


def begin(out: Path, identity: dict[str, Any], entries: Mapping[int, Sequence[dict[str, Any]]]) -> None:
    """Makes the folder, where there is none, with the index of the samples that stay."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        replace_file(out / REQUEST, (json.dumps(identity, indent=1) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"nothing can be written to {out}: {error}") from error
    _write_index(out, entries)


def _forget(out: Path, *, is_new: bool) -> None:
    """Removes what `_begin` wrote of samples that were never made."""
    for name in (REQUEST, INDEX):
        (out / name).unlink(missing_ok=True)
    if is_new and not any(out.iterdir()):
        out.rmdir()


def _write_index(out: Path, entries: Mapping[int, Sequence[dict[str, Any]]]) -> None:
    lines = [json.dumps(entry) + "\n" for number in sorted(entries) for entry in entries[number]]
    replace_file(out / INDEX, "".join(lines).encode())


def append(out: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Adds entries to the index of a folder; they are on the disk when this returns."""
    with (out / INDEX).open("a", encoding="utf-8") as index:
        index.writelines(json.dumps(entry) + "\n" for entry in entries)
        index.flush()
        os.fsync(index.fileno())


def _sampled(
    request: Request,
    trainer: Trainer,
    weights: WeightsName,
    prompts: Sequence[Prompt],
    missing: Sequence[int],
    out: Path,
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Samples the missing prompts; yields the entries of each, by its number, once they are on the disk."""
    policy, sampler, scorer = trainer.policy, sampler_of(trainer, request.by), scorer_of(request, trainer)
    warn_cut(policy, [prompts[number] for number in missing], None)
    chunk = max(1, chunk_samples(trainer) // request.count)
    with policy.weights(weights), Counter.on_stderr("sampling", len(missing)) as counter:
        for start in range(0, len(missing), chunk):
            numbers = missing[start : start + chunk]
            rollout = rolled_out(request, trainer, sampler, [(number, prompts[number]) for number in numbers], counter)
            listed = _entries(rollout, scorer, prompts, request.count, out)
            if isinstance(policy, Keeping):
                policy.forget()
            append(out, [entry for entries in listed.values() for entry in entries])
            counter.add(len(numbers))
            yield from listed.items()


def chunk_samples(trainer: Trainer) -> int:
    """Returns how many samples an evaluation, or a training iteration where there is none, makes at once."""
    evaluator = trainer.evaluator
    if evaluator is not None:
        return evaluator.chunk * evaluator.samples_per_prompt
    return trainer.collector.chunk * trainer.config.group_size


def scorer_of(request: Request, trainer: Trainer) -> Scorer | None:
    """Returns the scorer of the evaluation, else that of the training; None where nothing is to be scored."""
    if not request.is_scored:
        return None
    return trainer.collector.scorer if trainer.evaluator is None else trainer.evaluator.scorer


def refuse_unfit(request: Request, trainer: Trainer, prompts: Sequence[Prompt]) -> None:
    """Raises ConfigError for another sampler than there is, and for prompts that the policy cannot read, or that the
    rewards that score cannot judge.
    """
    sampler_of(trainer, request.by)
    policy, scorer = trainer.policy, scorer_of(request, trainer)
    reader = reader_of(policy)
    if reader is not None:
        readable(reader, prompts, "--prompts")
    elif policy.sample_kind == "latents" and any(prompt.media or prompt.clips for prompt in prompts):
        name = trainer.config.modality["name"]
        raise ConfigError(f"the prompts have images or videos, and modality {name!r} takes none")
    if scorer is not None:
        scorer.demands.checked(tuple(prompts))


def rolled_out(
    request: Request,
    trainer: Trainer,
    sampler: Sampler,
    numbered: Sequence[tuple[int, Prompt]],
    counter: Counter,
) -> Rollout:
    policy = trainer.policy
    keys = [GroupKey(request.seed, 0, number) for number, _ in numbered]
    prompts = [prompt for _, prompt in numbered]
    plans = [
        sampler.plan(policy_for(policy, prompt), key, request.count) for prompt, key in zip(prompts, keys, strict=True)
    ]
    counter.begin(partial(sampled_share, policy, plans, policy.num_calls))
    return policy.rollout(prompts, plans, keys)


def _entries(
    rollout: Rollout, scorer: Scorer | None, prompts: Sequence[Prompt], count: int, out: Path
) -> dict[int, list[dict[str, Any]]]:
    """Writes the files of a rollout's samples or episodes; returns their entries by the numbers of the prompts.

    Samples beside the group, such as controls, are left out.
    """
    judged = None
    if scorer is not None:
        judgement = scorer.judge(rollout, 0, has_properties=False).without_examples()
        judged = judgement.scores
        for name, failure in zip(judged.names, judgement.first_failures, strict=True):
            if failure is not None:
                log.warning("reward %r could not judge some samples; the first failure: %s", name, failure)
    listed: dict[int, list[dict[str, Any]]] = {}
    for row in ((rollout.turn == 0) & ~rollout.is_control).nonzero()[:, 0].tolist():
        number = rollout.keys[int(rollout.prompt[row])].prompt_index
        of_prompt = listed.setdefault(number, [])
        scores = {} if judged is None else dict(zip(judged.names, judged.values[row].tolist(), strict=True))
        saved = saved_sample(rollout, row, scores)
        place = number * count + len(of_prompt)
        entry = saved_entry(saved, out, place, out / "questions", has_recording=True)
        source = {"source": prompts[number].source} if prompts[number].source else {}
        of_prompt.append({"number": number, "sample": len(of_prompt), **source, **entry})
    return listed
