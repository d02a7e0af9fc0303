"""What the lab's model is taught: the oracle's clicks, in the words that an agent is asked in."""

import random
from typing import Any

import pytest
import torch

from mmrl.core.data import Prompt
from mmrl.environments.screens import Screens
from mmrl.labs.screens import pretrain as of_screens
from mmrl.labs.screens.questions import END_OF_IMAGE, Noise, prompt_text
from mmrl.labs.screens.targets import CELL
from mmrl.labs.screens.world import CLICK
from mmrl.labs.tasks import networks, pretrain, world
from mmrl.labs.tasks.pages import BACK, PAIRS, Look
from mmrl.labs.tasks.questions import PER_LOOK, noisy_answer, other_goal, questions, random_look, seat
from mmrl.labs.tasks.targets import LookHeads, state_targets
from mmrl.modalities.language.turns import turn_prompt
from tests.labs.checks import assert_learns

LAB = "tasks"

SEEDS = range(7_000_000, 7_000_120)


def test_every_word_of_a_goal_is_one_token_and_goals_come_back(new_processor: Any) -> None:
    tokenizer = new_processor.tokenizer
    assert all(len(tokenizer(word)["input_ids"]) == 1 for word in networks.WORDS)
    for seed in SEEDS[:30]:
        text = world.task(seed).goal
        pieces = tokenizer(text)["input_ids"]
        assert len(pieces) == len(text.replace(",", " ,").split()) and tokenizer.decode(pieces) == text


def test_a_turn_is_taught_in_the_words_that_an_agent_is_asked_in(new_processor: Any) -> None:
    """The agent modality without history, in all states of an episode: the goal behind the screenshot."""
    screens = Screens()
    seen = [screens.reset(Prompt("as the data set has it", target={"task": SEEDS[0]}), 0)]
    did: list[str] = []
    batch = questions(new_processor, [seat(SEEDS[0])], Noise(jitter=0), random.Random(0))
    taught = new_processor.tokenizer.decode(batch.tokens[0, : int(batch.last[0]) + 1])
    while True:
        asked = turn_prompt(Prompt("as the data set has it"), seen, did, screenshots=1, history=0)
        assert asked.media == (seen[-1].screenshot,)
        chat = prompt_text(new_processor, asked.text)
        assert chat.partition(END_OF_IMAGE)[2] == taught
        if seen[-1].is_done:
            break
        seen.append(screens.step(screens.oracle()))
        did.append("(1, 1)")


def test_the_first_goal_of_a_page_is_its_own_and_every_answer_is_the_oracles(new_processor: Any) -> None:
    seats = [seat(seed) for seed in SEEDS[:8]]
    batch = questions(new_processor, seats, Noise(jitter=0), random.Random(0))
    texts = [
        new_processor.tokenizer.decode(row[label]) for row, label in zip(batch.tokens, batch.is_label, strict=True)
    ]
    for row, text in enumerate(texts):
        match = CLICK.fullmatch(text.removesuffix("<|im_end|>"))
        assert match is not None
        x1, y1, x2, y2 = batch.elements[row].box
        assert x1 <= int(match[1]) <= x2 and y1 <= int(match[2]) <= y2
    for number, one in enumerate(seats):
        assert batch.elements[PER_LOOK * number] == world.oracle(one.names, one.look)


def test_other_goals_are_such_that_the_page_could_be_one_of_theirs() -> None:
    rng = random.Random(0)
    sorts, targets = set(), set()
    for seed in SEEDS:
        look = seat(seed).look
        here = [(one.colour, one.kind) for one in look.screen.elements]
        for _ in range(6):
            sort, names = other_goal(look, rng)
            assert len(set(names)) == len(names) and 2 <= len(names) <= 5
            seen = [name for name in names if name in here]
            if sort == "form":
                assert seen == list(names) and not look.has_back and names[-1][1] == "button" and len(names) <= 4
                assert all(name[1] in world.SET_KINDS for name in names[:-1])
                assert {here[number] for number in look.marked} <= set(names[:-1])
            else:
                assert not look.marked and len(seen) <= 1
                assert bool(seen) or look.has_back
                assert not seen or (names.index(seen[0]) > 0) == look.has_back
            sorts.add(sort)
            targets.add(world.oracle(names, look) is BACK)
    assert sorts == {"form", "menu", "wizard"} and targets == {True, False}


def test_a_wrong_answer_is_in_another_element_and_a_shifted_one_off_the_centre() -> None:
    rng = random.Random(0)
    for seed in SEEDS[:40]:
        look = random_look(seed)
        meant = look.screen.elements[0]
        match = CLICK.fullmatch(noisy_answer(look, meant, Noise(wrong=1.0, jitter=0), rng))
        assert match is not None
        x, y = int(match[1]), int(match[2])
        hit = [one for one in look.visible if one.box[0] <= x <= one.box[2] and one.box[1] <= y <= one.box[3]]
        assert len(hit) == 1 and hit[0] != meant
        match = CLICK.fullmatch(noisy_answer(look, meant, Noise(jitter=0, shift=0.25), rng))
        assert match is not None
        x1, y1, x2, y2 = meant.box
        assert int(match[1]) == round((x1 + x2) / 2 + (x2 - x1) / 4)
        assert int(match[2]) == round((y1 + y2) / 2 + (y2 - y1) / 4)


def test_targets_of_the_state_are_what_is_set_and_the_way_back() -> None:
    looks = [random_look(seed) for seed in SEEDS[:20]]
    targets = state_targets(looks)
    assert targets.shape == (20, 16, 25)
    for number, look in enumerate(looks):
        for cell in range(16):
            top, left = CELL * (cell // 4), CELL * (cell % 4)
            expected = set()
            for place, element in enumerate(look.visible):
                x1, y1, x2, y2 = element.box
                columns = [x for x in range(x1, x2) if left <= x < left + CELL]
                rows = [y for y in range(y1, y2) if top <= y < top + CELL]
                if len(columns) >= 4 and len(rows) >= 4:
                    if element is BACK:
                        expected.add(0)
                    elif place in look.marked:
                        expected.add(1 + PAIRS.index((element.colour, element.kind)))
            assert set(targets[number, cell].nonzero().flatten().tolist()) == expected


def test_heads_that_know_nothing_lose_a_bit_for_each_target() -> None:
    heads = LookHeads(8)
    for parameter in heads.parameters():
        torch.nn.init.zeros_(parameter)
    looks = [random_look(seed) for seed in SEEDS[:2]]
    tokens = torch.randn(2, 16, 8)
    state = heads.loss(tokens, looks) - heads.elements.loss(tokens, [look.screen for look in looks])
    torch.testing.assert_close(state, 3 * torch.tensor(2.0).log())


def test_pages_of_the_tower_are_of_every_look() -> None:
    looks = [random_look(seed) for seed in SEEDS]
    assert {len(look.screen.elements) for look in looks} == {2, 3, 4, 5}
    assert {look.has_back for look in looks} == {bool(look.marked) for look in looks} == {True, False}
    assert {look.depth for look in looks} == set(range(5))
    assert all(max(look.marked, default=0) < len(look.screen.elements) for look in looks)


def test_seats_are_states_of_their_tasks_of_every_kind() -> None:
    found: list[Look] = []
    for seed in SEEDS[:40]:
        one, task = seat(seed), world.task(seed)
        assert one.look in [task.look(state) for state in world.reachable(task)] and one.names == task.names
        found.append(one.look)
    assert any(look.marked for look in found) and any(look.has_back for look in found)


@pytest.mark.slow
def test_a_step_on_the_same_questions_lowers_their_loss(teacher: pretrain.Teacher) -> None:
    seats = [seat(seed) for seed in SEEDS[:4]]
    with torch.no_grad():
        seen = of_screens.Seen(seats, teacher.look(seats))
    batch = teacher.ask(seats, pretrain.STAGES[-1])
    assert_learns(teacher.model, lambda: teacher.losses(seen, batch)[0])


def test_every_part_has_tasks_of_its_own_however_long_the_one_before_was(teacher: pretrain.Teacher) -> None:
    first = world.FIRST_SEED["pretrain"]
    assert next(teacher.seeds) == first
    bind, settle = pretrain.STAGES
    for stage, expected in ((bind, 100_000), (settle, 100_001), (pretrain.SPOIL, 300_000)):
        teacher.rng.random()
        teacher.train_language(stage, 0)
        assert next(teacher.seeds) == first + expected
        if stage is not settle:
            assert teacher.rng.getstate() == random.Random(0).getstate()
    assert pretrain.TOWER_STEPS * of_screens.TOWER_SCREENS < 100_000
    assert 100_000 + sum(stage.num_steps for stage in pretrain.STAGES) * of_screens.LANGUAGE_SCREENS < 300_000
