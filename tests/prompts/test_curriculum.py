"""Sources are drawn by what they still teach: bounds by hand, draws, resume, and what is refused."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from mmrl.assembly.build import build
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.prompts.curriculum import Curriculum
from mmrl.prompts.stream import PromptStream
from mmrl.training import checkpoint
from tests.advantages.scored import NAN, scored
from tests.toy_runs import toy


def sets() -> list[tuple[Prompt, ...]]:
    return [tuple(Prompt(f"{kind} {number}") for number in range(9)) for kind in ("dull", "bright")]


def test_chances_are_those_of_upper_confidence_bounds_by_hand() -> None:
    made = Curriculum(3, temperature=0.5)
    for draw, source in ((0, 0), (1, 0), (2, 1)):
        made.note(draw, source)
    rewards = [1.0, 0.0, 0.0, 0.5, 0.5, 0.5, 3.0, 1.0, 0.0]
    made.update(scored(rewards, [0, 0, 0, 1, 1, 1, 2, 2, 2]))

    def size(group: list[float]) -> float:
        mean, std = statistics.fmean(group), statistics.pstdev(group) + 1e-4
        return statistics.fmean(abs(one - mean) / std for one in group)

    taught = [(size(rewards[:3]) + 0) / 2, size(rewards[6:]), 0.0]
    bounds = [t + math.sqrt(2 * math.log(4) / (n + 1)) for t, n in zip(taught, (2, 1, 0), strict=True)]
    found = torch.tensor(made.weights([1.0, 2.0, 1.0]))
    expected = torch.tensor([1.0, 2.0, 1.0]) * (torch.tensor(bounds) / 0.5).exp()
    assert_close(found / found.sum(), expected / expected.sum())


def test_before_anything_is_known_the_weights_of_the_mixture_hold() -> None:
    assert_close(torch.tensor(Curriculum(2).weights([1.0, 3.0])), torch.tensor([1.0, 3.0]))
    plain = PromptStream(sets(), [1.0, 3.0], 5).take(20)
    assert PromptStream(sets(), [1.0, 3.0], 5, Curriculum(2)).take(20) == plain


def test_only_the_last_groups_count() -> None:
    made = Curriculum(1, window=2)
    for draw in range(3):
        made.note(draw, 0)
        made.update(scored([float(draw == 0), 0.0], [draw, draw]))
    assert made.recent == [[0.0, 0.0]] and made.counts == [3]


def test_draws_that_could_not_be_judged_and_other_draws_are_left_out() -> None:
    made = Curriculum(2)
    made.note(0, 0)
    made.note(1, 1)
    made.update(scored([NAN, NAN, 1.0, NAN, 0.0, 7.0, 8.0], [0, 0, 1, 1, 1, 9, 9]))
    assert made.counts == [0, 1]
    assert made.recent[1] == pytest.approx([0.5 / 0.5001])


def test_sharp_and_huge_differences_do_not_overflow() -> None:
    made = Curriculum(2, temperature=1e-4)
    made.counts, made.recent = [1000, 1000], [[0.0], [1e3]]
    assert made.weights([1.0, 1.0]) == [0.0, 1.0]


def run(folder: Path, iterations: int, resumed: Path | None = None) -> tuple[list[str], Curriculum]:
    made = toy(folder, iterations=iterations, evaluation=None)
    curriculum = Curriculum(2)
    prompts = PromptStream(sets(), [1.0, 1.0], 3, curriculum)
    made.trainer.collector = replace(made.trainer.collector, prompts=prompts)
    made.trainer.stateful = {"curriculum": curriculum}
    if resumed is not None:
        found = checkpoint.latest(resumed / "checkpoints")
        assert found is not None
        made.trainer.restore(checkpoint.load(found))
    asked: list[str] = []
    draw = prompts.take
    prompts.take = lambda count: [(n, p) for n, p in draw(count) if asked.append(p.text) is None]  # type: ignore[method-assign,func-returns-value]
    made.trainer.train()
    return asked, curriculum


@pytest.mark.slow
def test_a_run_asks_more_of_the_source_that_teaches(tmp_path: Path) -> None:
    asked, curriculum = run(tmp_path, 20)
    assert len(asked) == 80 and sum(curriculum.counts) == 80
    assert sum("bright" in text for text in asked) > 60


@pytest.mark.slow
def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    whole, known = run(tmp_path / "whole", 8)
    first, _ = run(tmp_path / "first", 3)
    rest, again = run(tmp_path / "rest", 8, tmp_path / "first")
    assert first + rest == whole
    assert again.state_dict() == known.state_dict() == json.loads(json.dumps(known.state_dict()))


@pytest.mark.slow
def test_a_config_has_one_and_with_a_single_source_it_is_refused() -> None:
    mixture = ["prompts.train=[{source: 'lab:screens/click_train'}, {source: 'lab:screens/click_train', weight: 2}]"]
    curriculum = build(load_config("quickstart_gui", [*mixture, "prompts.curriculum.window=7"])).prompts.curriculum
    assert curriculum == Curriculum(2, window=7)
    with pytest.raises(ConfigError, match="chooses among the sources of a mixture"):
        build(load_config("quickstart_gui", ["prompts.curriculum.window=7"]))
