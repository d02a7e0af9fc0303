"""The votes of people as a reward: win rates by hand, and outputs that nobody voted on."""

import random
from pathlib import Path

import pytest
import torch

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.human_votes import Shown, Vote, question_digest, text_digest
from mmrl.rewards.judges.human import Human, win_rates
from tests.rewards.example import Example, make_batch
from tests.rewards.pictures import CPU, random_pictures


def texts_of_the_twin(random_numbers: random.Random) -> RewardBatch:
    """Answers of which the twin's one vote knows two."""
    return make_batch(Outputs(texts=tuple(f"0 {random_numbers.randrange(4)}" for _ in range(16))), ["tiny"] * 16)


# No truth: the best that people compared is no best of all.
EXAMPLE = Example(random_batch=texts_of_the_twin, settings={"votes": "votes.jsonl", "of": "texts"})


def vote(shown: str, chosen: tuple[int, ...] | None, form: str = "pairs", question: str = "?") -> Vote:
    every = tuple(Shown(one, text_digest(one), "x") for one in shown)
    key = question_digest(question, ())
    return Vote("t", form, "text", question, (), (), key, every, chosen, 1.0, "anna", "now")  # type: ignore[arg-type]


VOTES = [
    vote("ab", (0,)),  # a beats b
    vote("ba", (1,)),  # again
    vote("ab", ()),  # a tie
    vote("ab", None),  # skipped
    vote("abcd", (0, 2), "grid"),  # a and c beat b and d
    vote("cd", (), "grid", "other"),  # nothing is known
]


def batch_of(texts: str, question: str = "?") -> RewardBatch:
    return make_batch(Outputs(texts=tuple(texts)), [question] * len(texts))


def written(folder: Path) -> str:
    (folder / "votes.jsonl").write_bytes(b"".join(one.line() for one in VOTES))
    return str(folder / "votes.jsonl")


def test_win_rates_by_hand(tmp_path: Path) -> None:
    reward = Human(written(tmp_path), of="texts")
    reward.prepare(CPU)
    # a: 2 wins, 1 tie, 2 wins of 5; b: half a win of 5; c: 2 of 2; d: 0 of 2
    expected = [(4.5 + 1) / 7, (0.5 + 1) / 7, 3 / 4, 1 / 4]
    torch.testing.assert_close(reward.score(batch_of("abcd")), torch.tensor(expected))
    rates = win_rates(VOTES, 0.0)
    found = [rates[question_digest("?", ()), text_digest(one)] for one in "abcd"]
    assert found == pytest.approx([4.5 / 5, 0.5 / 5, 1.0, 0.0]) and len(rates) == 4


def test_what_nobody_voted_on_is_not_judged(tmp_path: Path) -> None:
    reward = Human(written(tmp_path), of="texts")
    reward.prepare(CPU)
    for batch in (batch_of("ax"), batch_of("c", "other"), batch_of("a", "another question")):
        with pytest.raises(ValueError, match="nobody voted on this output for the prompt"):
            reward.score(batch)
    reward = Human(written(tmp_path), of="texts", default=0.25)
    reward.prepare(CPU)
    assert reward.score(batch_of("x")).tolist() == [0.25]


def test_files_without_votes_of_the_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compares no images; `of` says what is judged"):
        Human(written(tmp_path)).prepare(CPU)
    with pytest.raises(ConfigError, match="cannot read the votes"):
        Human(str(tmp_path / "none.jsonl")).prepare(CPU)
    with pytest.raises(ValueError, match="default"):
        Human("votes.jsonl", default=1.5)


def test_the_twin_judges_anything(tmp_path: Path) -> None:
    twin = Human("votes.jsonl").tiny(0, tmp_path)
    twin.prepare(CPU)
    assert set(twin.score(random_pictures(random.Random(0))).tolist()) == {0.5}
