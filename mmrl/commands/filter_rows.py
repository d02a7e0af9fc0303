"""`mmrl filter --variance`: rows of a run's data whose answers are worth different rewards, as files to train on."""

import base64
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.commands import sample_many
from mmrl.commands.sample import sampler_of
from mmrl.commands.sample_many import INDEX, Request, append, begin, chunk_samples, entries_before, scorer_of
from mmrl.commands.train import restored
from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import ConfigError, Keeping, RunError
from mmrl.core.data import Prompt, Rollout, WeightsName
from mmrl.prompts.datasets import raw_rows
from mmrl.prompts.filtering import readable, reader_of, warn_cut
from mmrl.prompts.stream import load_prompts, mixture
from mmrl.system.files import replace_file
from mmrl.system.progress_bars import Counter
from mmrl.training.trainer import Trainer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Filtered:
    """What was kept of each source, and how to train on it."""

    files: tuple[Path, ...]  # one of each source
    settings: tuple[str, ...]  # overrides that train on these files
    num_kept: int
    num_rows: int
    num_unjudged: int  # rows that could not be read, or of which fewer than two answers could be judged
    num_equal: int  # rows of which all answers are worth the same

    def __str__(self) -> str:
        return (
            f"{self.num_kept} of {self.num_rows} rows kept; all answers were worth the same for {self.num_equal}, and "
            f"{self.num_unjudged} could not be judged"
        )


def filter_rows(request: Request, out: Path, variance: float, most: int | None = None) -> Filtered:
    """Samples each row of the training data, and writes those whose rewards vary more than `variance` into `out`.

    Li et al. 2025, "Reinforcement Learning Tuning for VideoLLMs" (Temporal-RLT), arXiv 2506.01908, choose rows by the
    variance of rewards over repeated answers before they train; their numbers of answers and their bounds were not at
    hand. The variance is that of the totals of the `count` answers of a row, divided by their number; of a reward of 0
    or 1 it is p (1 - p) for the share p of right answers. Rewards are those of the evaluation, else of the training.

    The folder has a file of rows for each source, `train.jsonl` or `train_0.jsonl` and so on, as the data has them and
    in its order, and `samples.jsonl` with the totals of each row; the same request goes on where it was stopped.

    Args:
        variance: rows at or below it are left out. most: rows in all, those of the largest variance; None: all.
    Raises:
        ConfigError: a source is no data set of files, fewer than two answers are sampled, or the folder holds anything
            but the samples of this request. RunError: no row is left.
    """
    if request.count < 2:
        raise ConfigError(f"--count must be at least 2, for a variance, got {request.count}")
    sources = [_data_set(source) for source, _ in mixture(request.config().prompts.train)]
    with restored(request.source, request.which, request.at, request.overrides, is_whole=True) as (trainer, weights):
        scorer, reader = scorer_of(request, trainer), reader_of(trainer.policy)
        if scorer is None or reader is None or trainer.policy.sample_kind != "tokens":
            raise ConfigError(f"filter is for answers, and modality {trainer.config.modality['name']!r} writes none")
        sets = [readable(reader, load_prompts(source, scorer.demands), source) for source in sources]
        prompts = [prompt for own in sets for prompt in own]
        identity = request.identity(trainer.config, prompts)
        totals = _totals_before(out, entries_before(out, identity), len(prompts), request.count)
        begin(out, identity, {number: [_entry(number, prompts, own)] for number, own in totals.items()})
        totals |= _sampled(request, trainer, weights, prompts, totals.keys(), out)
    spreads = [_variance(totals[number]) for number in range(len(prompts))]
    kept = chosen(spreads, variance, most)
    if not kept:
        for path in out.glob("train*.jsonl"):  # of a smaller variance: nobody may train on them by mistake
            path.unlink()
        largest = max((one for one in spreads if one is not None), default=None)
        raise RunError(f"no row has rewards of a variance above {variance:g}; the largest is {largest}")
    return _written(sources, sets, kept, out, spreads)


def _totals_before(
    out: Path, entries: Sequence[Mapping[str, Any]], num_prompts: int, count: int
) -> dict[int, list[float | None]]:
    """Returns the totals of the prompts that were sampled before.

    Raises ConfigError, with its line, for a damaged one.
    """
    found: dict[int, list[float | None]] = {}
    for line, entry in enumerate(entries, 1):
        number, totals = entry["number"], entry.get("totals")
        is_whole = isinstance(totals, list) and len(totals) in (0, count) and all(map(_is_total, totals))
        if not is_whole or not 0 <= number < num_prompts:
            raise ConfigError(
                f"{out / INDEX}, line {line} is damaged: it needs a 'number' below {num_prompts} and 'totals', {count} "
                "finite numbers or null; remove the folder, or give another --out"
            )
        found[number] = list(totals or ())
    return found


def _is_total(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))


def chosen(spreads: Sequence[float | None], variance: float, most: int | None) -> set[int]:
    """Returns the places of the variances above `variance`, at most the `most` largest, the first of equal ones."""
    above = [(-spread, place) for place, spread in enumerate(spreads) if spread is not None and spread > variance]
    return {place for _, place in sorted(above)[:most]}


def _variance(totals: Sequence[float | None]) -> float | None:
    """Returns the variance of what could be judged, divided by the number; None for fewer than two."""
    known = [one for one in totals if one is not None]
    if len(known) < 2:
        return None
    mean = math.fsum(known) / len(known)
    return math.fsum((one - mean) ** 2 for one in known) / len(known)


def _data_set(source: str | DatasetSettings) -> DatasetSettings:
    """Returns a source whose rows can be written again. Raises ConfigError for another."""
    if isinstance(source, str):
        if not source.endswith(".jsonl"):
            raise ConfigError(f"filter writes rows of files with columns again, and {source!r} has none")
        return DatasetSettings(path=source)
    raw_rows(source)  # refuses layouts of other rows
    return source


def _sampled(
    request: Request,
    trainer: Trainer,
    weights: WeightsName,
    prompts: Sequence[Prompt],
    before: Any,
    out: Path,
) -> dict[int, list[float | None]]:
    """Samples the prompts that are not there yet; returns the totals of each, which are then on the disk."""
    policy, sampler, scorer = trainer.policy, sampler_of(trainer, request.by), scorer_of(request, trainer)
    reader = reader_of(policy)
    assert scorer is not None and reader is not None, "checked by the caller"
    missing = [number for number in range(len(prompts)) if number not in before]
    warn_cut(policy, [prompts[number] for number in missing], None)
    chunk, found = max(1, chunk_samples(trainer) // request.count), dict[int, list[float | None]]()
    with policy.weights(weights), Counter.on_stderr("sampling", len(missing)) as counter:
        for start in range(0, len(missing), chunk):
            own: dict[int, list[float | None]] = {number: [] for number in missing[start : start + chunk]}
            numbered = [(number, prompts[number]) for number in own]
            rollout: Rollout | None
            try:
                rollout = sample_many.rolled_out(request, trainer, sampler, numbered, counter)
            except ConfigError:
                whys = {number: reader.unreadable(prompt) for number, prompt in numbered}
                for why in filter(None, whys.values()):
                    log.warning("left out: %s", why)
                numbered = [one for one in numbered if whys[one[0]] is None]
                if len(numbered) == len(own):
                    raise
                rollout = sample_many.rolled_out(request, trainer, sampler, numbered, counter) if numbered else None
            if rollout is not None:
                scores = scorer.judge(rollout, 0, has_properties=False).without_examples().scores
                for row in (~scores.is_control).nonzero()[:, 0].tolist():
                    total = float(scores.total[row]) if scores.valid[row] else None
                    own[int(scores.prompt_index[row])].append(total)
            if isinstance(policy, Keeping):
                policy.forget()
            append(out, [_entry(number, prompts, totals) for number, totals in own.items()])
            counter.add(len(own))
            found |= own
    return found


def _entry(number: int, prompts: Sequence[Prompt], totals: Sequence[float | None]) -> dict[str, Any]:
    return {"number": number, "sample": 0, "source": prompts[number].source, "totals": list(totals)}


def _written(
    sources: Sequence[DatasetSettings],
    sets: Sequence[Sequence[Prompt]],
    kept: set[int],
    out: Path,
    spreads: Sequence[float | None],
) -> Filtered:
    """Writes the kept rows of each source; `kept` are places in all sources together."""
    files, settings, start = [], [], 0
    for place, (source, own) in enumerate(zip(sources, sets, strict=True)):
        is_kept = {own[number - start].source for number in kept if start <= number < start + len(own)}
        start += len(own)
        rows = [row for row in raw_rows(source) if row.place in is_kept]
        folders = {row.images for row in rows}
        if source.images is None and len(folders) > 1:
            raise ConfigError(f"the files of {source.path} have images in several folders; set `images` to one of all")
        path = out / ("train.jsonl" if len(sources) == 1 else f"train_{place}.jsonl")
        lines = [json.dumps(_plain(row.values, row.place), ensure_ascii=False) + "\n" for row in rows]
        replace_file(path, "".join(lines).encode())
        where = "prompts.train" if len(sources) == 1 else f"prompts.train.{place}.source"
        images = source.images if source.images is not None else next(iter(folders), None)
        settings += [f"{where}.path={path}", *([] if images is None else [f"{where}.images={images}"])]
        chosen_by = {"limit": source.limit, "split": source.split, "subset": source.subset}
        if not source.inverted:  # of questions that are asked the other way round the seed says which
            chosen_by["seed"] = source.seed
        settings += [f"{where}.{name}=null" for name, value in chosen_by.items() if value is not None]
        files.append(path)
    unjudged = sum(spread is None for spread in spreads)
    equal = sum(spread == 0 for spread in spreads)
    return Filtered(tuple(files), tuple(settings), len(kept), len(spreads), unjudged, equal)


def _plain(value: Any, place: str) -> Any:
    """Returns a value of a row as JSON has it, bytes as base64, which is how rows bring images in texts."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        if value.keys() == {"bytes", "path"} and isinstance(value["bytes"], bytes):
            return _plain(value["bytes"], place)  # an image of Arrow
        return {key: _plain(inner, place) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, place) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ConfigError(f"{place} holds a {type(value).__name__}, which a line of JSON cannot")
