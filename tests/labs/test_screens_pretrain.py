import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.labs.screens import networks, pretrain, world
from mmrl.labs.screens.drawing import COLOURS, KINDS
from mmrl.labs.screens.questions import Noise, questions, soft_labels
from mmrl.labs.screens.targets import PointerHeads, centre_cell, tower_targets
from mmrl.labs.screens.world import Element


@pytest.fixture(scope="module")
def processor() -> Any:
    return networks.new_processor()


@pytest.fixture
def teacher(processor: Any) -> pretrain.Teacher:
    torch.manual_seed(0)
    return pretrain.Teacher(networks.new_model(processor), processor, 0)


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


def test_a_number_is_labelled_by_a_bell_and_any_other_token_by_itself(processor: Any) -> None:
    labels = soft_labels(440, processor)
    number = processor.tokenizer.convert_tokens_to_ids
    torch.testing.assert_close(labels.sum(1), torch.ones(440))
    middle = labels[number("50")]
    weights = {offset: math.exp(-(offset**2) / 2) for offset in range(-50, 63)}
    for offset in (-3, -1, 0, 2):
        expected = weights[offset] / sum(weights.values())
        assert math.isclose(float(middle[number(str(50 + offset))]), expected, rel_tol=1e-5)
    assert labels[number("<answer>"), number("<answer>")] == 1
    assert labels[number("0"), number("0")] > 0.5  # the bell is cut off at the edge, not wrapped around


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
        encoded = teacher.processor(text=[text], images=[screen.draw()], return_tensors="pt")
        num_labels = int(batch.is_label[row].sum())
        with torch.no_grad():
            log_prob = teacher.model(**encoded).logits[0, -num_labels - 1 : -1].log_softmax(-1)
        label = teacher.labels[encoded["input_ids"][0, -num_labels:]]
        total, count = total - float((label * log_prob).sum()), count + num_labels
    assert count == int(batch.is_label.sum())
    assert math.isclose(float(ours), total / count, rel_tol=1e-5)


def test_training_the_tower_changes_the_tower_alone_and_freezes_it(teacher: pretrain.Teacher) -> None:
    before = {name: value.clone() for name, value in teacher.model.state_dict().items()}
    teacher.train_tower(1)
    moved = {name for name, value in teacher.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all(name.startswith("model.visual.") for name in moved)
    assert not any(parameter.requires_grad for parameter in teacher.model.model.visual.parameters())
    assert all(parameter.requires_grad for parameter in teacher.model.model.language_model.parameters())


def test_a_step_on_the_same_questions_lowers_their_loss(teacher: pretrain.Teacher) -> None:
    noise: dict[world.Task, Noise] = {"click": Noise(), "box": Noise()}
    screens = [world.screen(seed) for seed in range(4)]
    with torch.no_grad():
        seen = pretrain.Seen(screens, teacher.look(screens))
    batch = questions(teacher.processor, screens, noise, random.Random(0))
    step_optimizer = pretrain.Optimizer([*teacher.model.model.language_model.parameters()])
    losses = []
    for _ in range(5):
        answers, _ = teacher.losses(seen, batch)
        losses.append(answers.item())
        step_optimizer(answers, 1e-3)
    assert losses[-1] < losses[0] - 0.3, losses


def test_the_learning_rate_falls_from_1_to_a_tenth() -> None:
    assert (
        pretrain.cosine(0) == 1 and math.isclose(pretrain.cosine(1), 0.1) and math.isclose(pretrain.cosine(0.5), 0.55)
    )


def test_no_screen_of_pretraining_is_in_a_split() -> None:
    """Seeds are counted up, a million for each training seed."""
    steps = pretrain.TOWER_STEPS + sum(stage.num_steps for stage in (*pretrain.STAGES, pretrain.SPOIL))
    assert steps * pretrain.TOWER_SCREENS < 1_000_000
    assert max(world.FIRST_SEED["train"] + 4096, world.FIRST_SEED["held_out"] + 512) < world.FIRST_SEED["pretrain"]


@pytest.mark.slow  # two short trainings
def test_a_seed_trains_the_same_checkpoint_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in ("a", "b"):
            pretrain.pretrain(tmp_path / name, seed=3, scale=0.002)
    finally:
        torch.set_num_threads(num_threads)
    first, again = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "b"))
    unspoilt = load_file(tmp_path / "a_unspoilt" / "model.safetensors")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], unspoilt[name]) for name in first)
    assert {value.dtype for value in first.values()} == {torch.float16}
    assert json.loads((tmp_path / "a" / "config.json").read_text())["dtype"] == "float32"
    assert AutoModelForImageTextToText.from_pretrained(tmp_path / "a").dtype == torch.float32
    assert type(AutoProcessor.from_pretrained(tmp_path / "a")).__name__ == "Qwen2_5_VLProcessor"
    assert "a click: sampled 0.0" in capsys.readouterr().out
