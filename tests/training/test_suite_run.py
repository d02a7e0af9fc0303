"""The loop of a suite: a killed one goes on where it was, and neither rows nor samples stand twice."""

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from mmrl.core.data import Prompt, Scores
from mmrl.core.keys import GroupKey
from mmrl.run_directory.suite_results import ResultsFile
from mmrl.scoring.scorer import Judgement
from mmrl.training.held_out import Evaluator, SavedSample
from mmrl.training.suite_run import results_of, run_suite

PROMPTS = tuple(Prompt(f"prompt {number}") for number in range(5))


@dataclass
class Recorded:
    """An evaluator of two samples of each prompt, two prompts at once; a sample scores by prompt and weights."""

    offset: float = 0.0
    dies_at: int = 99  # the prompt at which the process is killed
    prompts: tuple[Prompt, ...] = PROMPTS
    samples_per_prompt: int = 2
    seed: int = 3
    chunk: int = 2
    policy: None = None
    weights: str = "trained"
    seen: list[int] = field(default_factory=list)
    processes: Any = field(
        default_factory=lambda: SimpleNamespace(
            is_main=True,
            num_processes=1,
            lockstep=nullcontext,
            gather=list,
            share=list,
            sampled=lambda policy, weights, sample: sample(),
        )
    )

    def judged_chunk(self, chunk: Sequence[tuple[GroupKey, Prompt]], counter: Any) -> Any:
        numbers = [key.prompt_index for key, _ in chunk]
        if self.dies_at in numbers:
            raise KeyboardInterrupt
        self.seen += numbers
        assert [(key.seed, key.iteration, prompt) for key, prompt in chunk] == [(3, 0, PROMPTS[n]) for n in numbers]
        group = torch.tensor(numbers).repeat_interleave(2)
        scores = Scores(
            values=(group + self.offset + torch.tensor([0.25, 0.5]).repeat(len(numbers)))[:, None],
            names=("a",),
            weights=(1.0,),
            valid=torch.ones(len(group), dtype=torch.bool),
            group=group,
            episode=torch.arange(len(group)),
            turn=torch.zeros(len(group), dtype=torch.long),
        )
        samples = [SavedSample(PROMPTS[n].text, n, {"a": n + self.offset}, text=f"{n}") for n in numbers]
        return [Judgement(scores, (None,), (0.0,))], samples


def run(
    evaluator: Recorded, folder: Path, chosen: Sequence[int] = range(5), **bound: str
) -> tuple[list[str], list[float]]:
    """What was others in the file, and the totals of the results in order."""
    results = ResultsFile(folder, {"weights": "w", **bound})
    others, found, _ = run_suite(cast(Evaluator, evaluator), chosen, results)
    return others, [found[key].total or 0.0 for key in sorted(found)]


def saved(folder: Path) -> list[tuple[int, float]]:
    listing = json.loads((folder / "samples" / "samples.json").read_text())["samples"]
    return [(one["seed"], one["scores"]["a"]) for one in listing]


def lines(folder: Path) -> list[tuple[int, int]]:
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()[1:]]
    return [(row["prompt"], row["sample"]) for row in rows]


EVERY = [0.25, 0.5, 1.25, 1.5, 2.25, 2.5, 3.25, 3.5, 4.25, 4.5]


def test_a_killed_suite_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    whole = run(Recorded(), tmp_path / "whole")
    assert whole == ([], EVERY)
    with pytest.raises(KeyboardInterrupt):
        run(Recorded(dies_at=4), tmp_path / "killed")
    assert lines(tmp_path / "killed") == [(n, sample) for n in range(4) for sample in range(2)]
    again = Recorded()
    assert run(again, tmp_path / "killed") == whole and again.seen == [4]
    for name in ("results.jsonl", "samples/samples.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    idle = Recorded()
    assert run(idle, tmp_path / "killed") == whole and idle.seen == []


def test_samples_that_were_saved_before_their_rows_are_not_saved_again(tmp_path: Path) -> None:
    run(Recorded(), tmp_path)
    content = (tmp_path / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_text("".join(content[:5]))  # as if it was killed between the two
    again = Recorded()
    assert run(again, tmp_path)[1] == EVERY and again.seen == [2, 3, 4]
    assert [seed for seed, _ in saved(tmp_path)] == [0, 1, 2, 3, 4]


def test_a_prompt_that_lost_a_sample_is_sampled_again_as_a_whole(tmp_path: Path) -> None:
    run(Recorded(), tmp_path)
    content = (tmp_path / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_text("".join(content[:4] + content[5:]))  # sample 1 of prompt 1
    again = Recorded()
    assert run(again, tmp_path)[1] == EVERY and again.seen == [1]


def test_other_weights_begin_anew_with_samples_of_their_own(tmp_path: Path) -> None:
    run(Recorded(), tmp_path)
    other = Recorded(offset=10.0)
    others, totals = run(other, tmp_path, weights="others")
    assert others == ["weights"] and totals == [10 + one for one in EVERY] and other.seen == [0, 1, 2, 3, 4]
    assert saved(tmp_path) == [(n, n + 10.0) for n in range(5)], "of all chunks"


def test_a_try_takes_some_prompts_and_the_whole_goes_on_from_it(tmp_path: Path) -> None:
    few = Recorded()
    assert run(few, tmp_path, [0, 3])[1] == [0.25, 0.5, 3.25, 3.5] and few.seen == [0, 3]
    rest = Recorded()
    assert run(rest, tmp_path)[1] == EVERY and rest.seen == [1, 2, 4]
    assert run(Recorded(), tmp_path, [0, 3])[1] == [0.25, 0.5, 3.25, 3.5], "more results than the try has are there"


def test_an_episode_is_the_mean_of_its_turns_and_fails_as_a_whole() -> None:
    """Prompt 2: an episode of three turns, one of two of which a turn could not be judged, and a control."""
    values = torch.tensor([[1.0, 0.0], [2.0, 1.0], [6.0, 2.0], [4.0, 0.0], [math.nan, 3.0], [9.0, 9.0]])
    scores = Scores(
        values=values,
        names=("a", "b"),
        weights=(1.0, 10.0),
        valid=torch.tensor([True, True, True, False, False, False]),
        group=torch.full((6,), 2),
        episode=torch.tensor([0, 0, 0, 1, 1, 2]),
        turn=torch.tensor([0, 1, 2, 0, 1, 0]),
        is_control=torch.tensor([False] * 5 + [True]),
    )
    first, second = results_of(Judgement(scores, (None, "it broke"), (0.0, 0.0)), cast(Evaluator, Recorded()))
    assert (first.prompt, first.sample, first.text, first.failure) == (2, 0, "prompt 2", None)
    assert first.scores == {"a": 3.0, "b": 1.0} and first.total == 13.0
    assert second.scores == {"a": 4.0, "b": 1.5} and (second.total, second.failure) == (None, "it broke")
