"""The metrics of what samples are like are those of all samples of an iteration, in the order of their scores."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mmrl.core.config import GroupSettings
from mmrl.parsing.answer_format import format_of
from tests.parameters import in_one_test
from tests.process_runs import metrics, train, write_inputs
from tests.toy_runs import collector, stream

MORE = {"budget": 9, "per_prompt": 4, "rounds": 2, "exploration": 0.01}
REFILL = {"degenerate": "refill", "max_refills": 2}
PROMPTS = ("bright 1", "dull 1", "bright 2", "bright 3", "bright 4", "dull 2")


@in_one_test("groups", [{}, {"more": MORE}, REFILL])
def test_correlations_and_means_are_those_of_a_slow_loop(groups: dict[str, Any]) -> None:
    collected = collector(stream(*PROMPTS), GroupSettings.model_validate(groups))(0, "trained")
    assert collected.rollout is not None and collected.rollout.outputs.texts is not None
    score = dict(enumerate(collected.scores.values[:, 0].tolist()))
    members: dict[int, list[tuple[float, int]]] = {}
    for row, text, group in zip(
        collected.local_rows.tolist(), collected.rollout.outputs.texts, collected.rollout.group.tolist(), strict=True
    ):
        members.setdefault(group, []).append((score[row], len(text.split())))
    centred = np.concatenate([np.array(one) - np.mean(one, axis=0) for one in members.values()])
    expected = stats.pearsonr(centred[:, 0], centred[:, 1]).statistic
    assert collected.metrics["follows/length"] == pytest.approx(expected, abs=1e-6)
    assert collected.metrics["follows/zeros/length"] == pytest.approx(expected, abs=1e-6)
    forms = Counter(format_of(text) for text in collected.rollout.outputs.texts)
    assert collected.metrics["answers/dominant_format"] == max(forms.values()) / sum(forms.values())
    lengths = [length for one in members.values() for _, length in one]
    assert collected.metrics["samples/length/mean"] == pytest.approx(np.mean(lengths))
    assert collected.metrics["samples/length/std"] == pytest.approx(np.std(lengths))


@pytest.mark.slow  # two runs of one iteration
def test_two_processes_say_the_same_of_samples_as_one(tmp_path: Path) -> None:
    write_inputs(tmp_path, {"iterations": 1, "evaluation": None, "prompts_per_iteration": 3})
    one, two = (metrics(train(tmp_path, name, number))[-1] for name, number in (("one", 1), ("two", 2)))
    names = [name for name in one if name.startswith(("samples/", "follows/"))]
    assert {"samples/diversity", "samples/sharpness/mean", "follows/Redness/saturation"} <= set(names)
    assert {name: two[name] for name in names} == pytest.approx({name: one[name] for name in names}, abs=1e-6)
