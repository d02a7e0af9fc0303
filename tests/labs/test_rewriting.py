"""The requests of the rewriting lab, the errors it was taught, its checkpoint, and that RL repairs them."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.labs.rewriting import pretrain, world
from mmrl.labs.shapes import world as shapes
from tests.process_runs import assert_same_run, ended_well, metrics, mmrl

LAB = "rewriting"
CONFIG = "lab/generate_then_score"


def test_a_request_says_each_word_of_a_prompt_in_one_of_two_other_words() -> None:
    assert world.request("red circle top left", 0) == "crimson disc upper west"
    assert world.request("red circle top left", 0b1111) == "scarlet ball high port"
    assert world.request("white cross bottom right", 0b0101) == "snowy plus low east"
    words = world.words_of()
    assert len(words) == len(set(words)) == 2 * (6 + 4 + 3 + 3)
    assert not set(words) & {word for kind in world.KINDS for word in kind}
    with pytest.raises(ValueError, match="way must be from 0 to 15, got 16"):
        world.request("red circle top left", 16)
    with pytest.raises(ValueError, match="no such prompt"):
        world.request("red circle", 0)


def test_the_splits_ask_for_what_the_shapes_lab_trains_on_and_holds_out() -> None:
    train, held_out = world.prompts("train"), world.prompts("held_out")
    assert (len(train), len(held_out)) == (576, 144)
    assert {one.target["answer"] for one in train} == set(shapes.prompts("train"))
    assert {one.target["answer"] for one in held_out} == set(shapes.prompts("held_out"))
    for split in (train, held_out):
        assert len({one.text for one in split}) == len(split)
        assert {word for one in split for word in one.text.split()} == set(world.words_of())
        meant = {other: word for kind in world.KINDS for word, pair in kind.items() for other in pair}
        assert all(" ".join(map(meant.__getitem__, one.text.split())) == one.target["answer"] for one in split)
    with pytest.raises(ValueError, match="did you mean 'held_out'"):
        world.prompts("heldout")


def test_the_control_has_the_same_requests_with_answers_of_others() -> None:
    train, control = world.prompts("train"), world.prompts("shuffled")
    assert [one.text for one in control] == [one.text for one in train]
    assert sorted(one.target["answer"] for one in control) == sorted(one.target["answer"] for one in train)
    same = sum(one.target == other.target for one, other in zip(train, control, strict=True))
    assert same < 20  # of 576; by chance 4


@pytest.mark.slow
def test_labels_take_the_second_word_mostly_for_the_next_thing() -> None:
    rng, count = random.Random(0), 4000
    firsts = [pretrain.noisy_prompt("red circle top left", 0, rng).split() for _ in range(count)]
    seconds = [pretrain.noisy_prompt("red circle top left", 15, rng).split() for _ in range(count)]
    for place, (kind, right) in enumerate(zip(world.KINDS, ["red", "circle", "top", "left"], strict=True)):
        following = list(kind)[1]  # of the first of its kind
        share = pretrain.RANDOM / len(kind)
        expected = 1 - pretrain.RANDOM + share
        assert sum(words[place] == right for words in firsts) / count == pytest.approx(expected, abs=0.03)
        expected = (1 - pretrain.RANDOM) * pretrain.MISTAKEN + share
        assert sum(words[place] == following for words in seconds) / count == pytest.approx(expected, abs=0.03)


def test_every_word_is_one_token_and_all_chats_are_as_long(processor: Any) -> None:
    pairs = [(one.text, one.target["answer"]) for one in world.prompts("held_out")]
    tokens, first = pretrain.tokens_of(processor, pairs)
    assert tokens.shape[1] - first == 4 + 1  # four words and the end
    assert processor.tokenizer.decode(tokens[0, first:-1]) == pairs[0][1]


@pytest.mark.slow
def test_the_shipped_model_writes_prompts_of_the_lab_and_many_wrong_words(model: Any, processor: Any) -> None:
    asked = world.prompts("held_out")[:48]
    torch.manual_seed(0)
    written = pretrain.answers(model, processor, [one.text for one in asked], is_greedy=False)
    assert sum(text in shapes.all_prompts() for text in written) >= 46
    right = [
        word == meant
        for text, one in zip(written, asked, strict=True)
        for word, meant in zip(text.split(), one.target["answer"].split(), strict=False)
    ]
    assert 0.45 < sum(right) / len(right) < 0.75  # 0.6 of the labels are right


@pytest.mark.slow  # trains
def test_a_pretraining_in_small_writes_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretrain.pretrain(tmp_path / "checkpoint", seed=0, scale=0.01)
    assert (tmp_path / "checkpoint" / "model.safetensors").stat().st_size < 4e6
    assert "sampled" in capsys.readouterr().out


@pytest.mark.slow  # trains, for some twenty seconds
def test_the_policy_learns_to_write_what_the_generator_draws(tmp_path: Path) -> None:
    fewer = ["iterations=12", "evaluation=null", "checkpoint.every=12"]
    ended_well(mmrl(tmp_path, ["train", CONFIG, "--out", "run", *fewer], 1))
    rewards = [line["reward/generate_then_score/mean"] for line in metrics(tmp_path / "run")]
    first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    assert first < 0.6 and last > first + 0.08, (first, last)


@pytest.mark.slow  # runs of the whole command
def test_two_processes_make_the_run_of_one(tmp_path: Path) -> None:
    settings = ["iterations=2", "prompts_per_iteration=4", "checkpoint.every=1", "evaluation=null"]
    for name, count in (("one", 1), ("two", 2)):
        ended_well(mmrl(tmp_path, ["train", CONFIG, "--out", name, *settings], count))
    assert_same_run(tmp_path / "one", tmp_path / "two", 2)
