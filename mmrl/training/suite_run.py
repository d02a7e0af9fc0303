"""The loop of a suite: chunks of prompts are sampled and judged, and each chunk is saved before the next begins."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mmrl.core.keys import GroupKey
from mmrl.run_directory.suite_results import ResultsFile, SampleResult
from mmrl.scoring.scorer import Judgement
from mmrl.training.held_out import Counting, Evaluator, SavedSample, save_samples, uncounted


def run_suite(
    evaluator: Evaluator, chosen: Sequence[int], results: ResultsFile, *, counting: Counting = uncounted
) -> tuple[list[str], dict[tuple[int, int], SampleResult], int]:
    """Samples and judges the chosen prompts that have no results yet. Every process must call it.

    Args:
        chosen: numbers of prompts. The noise of a prompt depends on its number alone, so that neither the chunks nor
            what is chosen beside it change its samples.
        results: the file that the main process appends to; others leave it as it is.
    Returns:
        Which parts of the file's earlier binding are others now, the results of the chosen prompts, and how many
        prompts had none before; on all processes.
    """
    processes, others = evaluator.processes, list[str]()
    with processes.lockstep():
        if processes.is_main:
            others = results.open()
    others, done = processes.gather([(others, results.done(evaluator.samples_per_prompt))] * processes.is_main)[0]
    missing = sorted(set(chosen) - set(done))
    round_size = evaluator.chunk * processes.num_processes
    with counting("suite", len(processes.share(missing))) as counter:
        for start in range(0, len(missing), round_size):
            numbers = missing[start : start + round_size]
            every = [(GroupKey(evaluator.seed, 0, number), evaluator.prompts[number]) for number in numbers]
            own = processes.share(every)
            sample = partial(evaluator.judged_chunk, own, counter)
            judgements, samples = processes.sampled(evaluator.policy, evaluator.weights, sample)
            rows = processes.gather([row for one in judgements for row in results_of(one, evaluator)])
            samples = processes.gather(samples)
            with processes.lockstep():
                if processes.is_main:
                    _save(samples, results.folder / "samples", is_new=bool(others) and start == 0)
                    results.add(sorted(rows, key=lambda row: (row.prompt, row.sample)))
            counter.add(len(own))
    kept = processes.gather([results.rows] if processes.is_main else [])[0]
    return others, {key: row for key, row in kept.items() if key[0] in set(chosen)}, len(missing)


def results_of(judgement: Judgement, evaluator: Evaluator) -> list[SampleResult]:
    """Returns the results of a chunk, one for each sample; for an episode the means over its turns."""
    scores = judgement.scores
    failure = next((message for message in judgement.first_failures if message), None)
    prompts, rows = scores.prompt_index, list[SampleResult]()
    for prompt in prompts.unique().tolist():
        episodes = scores.episode[(prompts == prompt) & ~scores.is_control].unique()
        for number, episode in enumerate(episodes.tolist()):
            own = scores.episode == episode
            means = scores.values[own].nanmean(0).tolist()
            total = float(scores.total[own].double().mean()) if bool(scores.valid[own].all()) else None
            rows.append(
                SampleResult(
                    prompt=prompt,
                    sample=number,
                    text=evaluator.prompts[prompt].text,
                    scores={name: _number(mean) for name, mean in zip(scores.names, means, strict=True)},
                    total=total,
                    failure=None if total is not None else str(failure),
                )
            )
    return rows


def _number(value: float) -> float | None:
    """Returns a score, None for NaN."""
    return None if value != value else value


def _save(samples: Sequence[SavedSample], folder: Path, *, is_new: bool) -> None:
    """Saves samples beside those of the chunks before; `is_new`: these are of other weights, and end.

    A sample that is there already, since the process was killed right after it was saved, is not saved again.
    """
    listing = folder / "samples.json"
    before: list[dict[str, Any]] = []
    if listing.is_file():
        if is_new:
            listing.unlink()
        else:
            before = json.loads(listing.read_text(encoding="utf-8"))["samples"]
    known = {entry["seed"] for entry in before}
    if fresh := [sample for sample in samples if sample.seed not in known]:
        save_samples(sorted(fresh, key=lambda sample: sample.seed), folder, after=before)


def spread(total: int, limit: int | None) -> list[int]:
    """Returns the numbers of all prompts, or of `limit` of them evenly spread from the first on."""
    if limit is None or limit >= total:
        return list(range(total))
    return [number * total // limit for number in range(limit)]
