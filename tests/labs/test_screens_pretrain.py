import math
import random
from typing import Any

import pytest
import torch

from mmrl.labs.screens import pretrain, world
from mmrl.labs.screens.drawing import COLOURS, KINDS
from mmrl.labs.screens.questions import Noise, questions, soft_labels
from mmrl.labs.screens.targets import PointerHeads, centre_cell, tower_targets
from mmrl.labs.screens.world import Element
from tests.labs.checks import assert_learns

LAB = "screens"


def test_tower_targets_are_what_covers_sixteen_pixels_of_a_cell() -> None:
    screens = [world.screen(seed) for seed in range(7_000_000, 7_000_005)]
    presence, boxes, is_centre = tower_targets(screens)
    names = [*COLOURS, *KINDS, *(f"{c} {k}" for c in COLOURS for k in KINDS)]
    for number, screen in enumerate(screens):
        for cell in range(16):
            top, left = 28 * (cell // 4), 28 * (cell % 4)
            seen = set()
            for element in screen.elements:
                x1, y1, x2, y2 = element.box
                columns = [x for x in range(x1, x2) if left <= x < left + 28]
                rows = [y for y in range(y1, y2) if top <= y < top + 28]
                if len(columns) >= 4 and len(rows) >= 4:
                    seen |= {element.colour, element.kind, element.name}
            assert {names[index] for index in presence[number, cell].nonzero().flatten().tolist()} == seen
        assert is_centre[number].sum() == len({centre_cell(element) for element in screen.elements})
        for element in screen.elements:
            assert is_centre[number, centre_cell(element)] == 1
    last = screens[0].elements[-1]
    torch.testing.assert_close(boxes[0, centre_cell(last)] * 112, torch.tensor(last.box).float())


def test_the_cell_of_an_element_is_the_one_under_its_centre() -> None:
    assert centre_cell(Element("red", "dial", (20, 20, 40, 40))) == 5  # (30, 30): second row, second column
    assert centre_cell(Element("red", "dial", (84, 0, 110, 20))) == 3
    assert centre_cell(Element("red", "dial", (0, 85, 20, 110))) == 12


def test_a_pointer_that_knows_nothing_loses_a_sixteenth_and_the_box() -> None:
    heads = PointerHeads(8)
    for parameter in heads.parameters():
        torch.nn.init.zeros_(parameter)
    element = Element("red", "dial", (56, 56, 84, 84))
    loss = heads.loss(torch.randn(1, 8), torch.randn(1, 16, 8), [element])
    distance = (2 * (0.5 - 0.025) + 2 * (0.75 - 0.025)) / 4  # |d| - beta / 2 for each side
    torch.testing.assert_close(loss, torch.tensor(math.log(16) + 5 * distance))


def test_a_number_is_labelled_by_a_bell_and_any_other_token_by_itself(new_processor: Any) -> None:
    labels = soft_labels(440, new_processor)
    number = new_processor.tokenizer.convert_tokens_to_ids
    torch.testing.assert_close(labels.sum(1), torch.ones(440))
    middle = labels[number("50")]
    weights = {offset: math.exp(-(offset**2) / 2) for offset in range(-50, 63)}
    for offset in (-3, -1, 0, 2):
        expected = weights[offset] / sum(weights.values())
        assert math.isclose(float(middle[number(str(50 + offset))]), expected, rel_tol=1e-5)
    assert labels[number("<answer>"), number("<answer>")] == 1
    assert labels[number("0"), number("0")] > 0.5  # the bell is cut off at the edge, not wrapped around


@pytest.mark.slow
def test_sharing_a_screen_among_its_questions_changes_no_loss(teacher: pretrain.Teacher) -> None:
    """Against whole chats, one by one, encoded by the processor, with positions left to transformers."""
    noise: dict[world.Task, Noise] = {"click": Noise(), "box": Noise()}
    screens = [world.screen(seed) for seed in (1, 2)]
    with torch.no_grad():
        seen = pretrain.Seen(screens, teacher.look(screens))
        batch = questions(teacher.processor, screens, noise, random.Random(0))
        ours, _ = teacher.losses(seen, batch)
    total, count = 0.0, 0
    decode = teacher.processor.tokenizer.decode
    for row, tokens in enumerate(batch.tokens):
        screen = screens[row // 6]
        length = int(batch.is_label[row].nonzero().max()) + 1
        text = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>" + decode(tokens[:length])
        encoded = teacher.processor(text=[text], images=[screen.render()], return_tensors="pt")
        num_labels = int(batch.is_label[row].sum())
        with torch.no_grad():
            log_prob = teacher.model(**encoded).logits[0, -num_labels - 1 : -1].log_softmax(-1)
        label = teacher.labels[encoded["input_ids"][0, -num_labels:]]
        total, count = total - float((label * log_prob).sum()), count + num_labels
    assert count == int(batch.is_label.sum())
    assert math.isclose(float(ours), total / count, rel_tol=1e-5)


@pytest.mark.slow
def test_a_step_on_the_same_questions_lowers_their_loss(teacher: pretrain.Teacher) -> None:
    noise: dict[world.Task, Noise] = {"click": Noise(), "box": Noise()}
    screens = [world.screen(seed) for seed in range(4)]
    with torch.no_grad():
        seen = pretrain.Seen(screens, teacher.look(screens))
    batch = questions(teacher.processor, screens, noise, random.Random(0))
    assert_learns(teacher.model, lambda: teacher.losses(seen, batch)[0])
