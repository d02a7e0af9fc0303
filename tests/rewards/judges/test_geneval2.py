"""Soft-TIFA against the plain use of a model of transformers, and by hand numbers."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.rewards.judges.geneval2 import Geneval2
from tests.parameters import in_one_test
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.pictures import CPU, random_images, random_texts, to_pil

ATOMS = [["How many cows are there?", "three"], ["Are the cows brown?", "Yes"], ["Is it day?", "No"]]


def random_scenes(rng: random.Random) -> RewardBatch:
    """8 random images of two prompts, of one atom to three."""
    prompts = [text for text in random_texts(rng, 2) for _ in range(GROUP)]
    targets = [{"vqa_list": own} for own in (ATOMS[:1], ATOMS) for _ in range(GROUP)]
    return make_batch(Outputs(images=random_images(rng, 2 * GROUP)), prompts, targets)


# No truth: what an image shows, the model says.
EXAMPLE = Example(random_batch=random_scenes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("geneval2")
    Geneval2().tiny(0, made)
    return made


def ready(folder: Path, **settings: Any) -> Geneval2:
    reward = Geneval2(model=str(folder), **settings)
    reward.prepare(CPU)
    return reward


def three_images() -> Tensor:
    return (torch.rand(3, 3, 32, 40, generator=torch.Generator().manual_seed(0)) * 255).round() / 255


@pytest.mark.slow
def test_the_score_is_the_mean_of_the_right_answers(folder: Path) -> None:
    """Of each atom alone, without padding; answers with all the spellings that the twin has a token for."""
    model, processor = AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    spelt = {"three": ("three", "3"), "Yes": ("Yes",), "No": ("No",)}
    atoms = [ATOMS, ATOMS[:2], ATOMS[1:]]
    right: list[list[float]] = []
    for image, own in zip(to_pil(three_images()), atoms, strict=True):
        right.append([])
        for question, answer in own:
            chat = f"USER: <image>{question} One word.\nASSISTANT: "
            with torch.no_grad():
                said = model(**processor(text=chat, images=image, return_tensors="pt")).logits[0, -1].softmax(0)
            tokens = [processor.tokenizer.convert_tokens_to_ids(word) for word in spelt[answer]]
            right[-1].append(sum(float(said[token]) for token in tokens))
    batch = make_batch(Outputs(images=three_images()), ["", "", ""], [{"vqa_list": own} for own in atoms])
    geometric = [math.prod(own) ** (1 / len(own)) for own in right]
    arithmetic = [sum(own) / len(own) for own in right]
    reward = ready(folder, ending="One word.", questions_at_once=2)
    torch.testing.assert_close(reward.score(batch), torch.tensor(geometric), rtol=1e-3, atol=1e-9)
    reward.mean = "arithmetic"
    torch.testing.assert_close(reward.score(batch), torch.tensor(arithmetic), rtol=1e-3, atol=1e-9)
    assert all(one > other for one, other in zip(arithmetic, geometric, strict=True))


@pytest.mark.slow
@in_one_test(
    ("mean", "right", "expected"),
    [
        ("geometric", (0.9, 0.4), 0.6),
        ("arithmetic", (0.9, 0.4), 0.65),
        ("geometric", (1.0, 1.0, 1.0), 1.0),
        ("geometric", (0.5, 0.5, 1e-9), 0.00063),
        ("arithmetic", (0.5, 1.0, 0.0), 0.5),
    ],
)
def test_hand_numbers(
    mean: Any, right: tuple[float, ...], expected: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = ready(folder, mean=mean)
    assert reward._vlm is not None
    (yes,) = reward._vlm.spellings("Yes")
    said = torch.full((len(right), len(reward._vlm.tokenizer)), -1e4)
    said[:, yes] = torch.tensor(right).log()
    monkeypatch.setattr(type(reward._vlm), "next_log_probs", lambda vlm, inputs: said)
    target = {"vqa_list": [[f"Is part {number} there?", "Yes"] for number in range(len(right))]}
    batch = make_batch(Outputs(images=three_images()[:1]), [""], [target])
    assert reward.score(batch).tolist() == pytest.approx([expected], abs=1e-6)


@pytest.mark.slow
def test_an_answer_of_several_tokens_counts_by_its_first(folder: Path) -> None:
    reward = ready(folder)
    assert reward._vlm is not None
    letters = reward._vlm.tokenizer
    assert reward._tokens("strawberry") == [letters.convert_tokens_to_ids("s")]
    assert reward._tokens("Three") == sorted(letters.convert_tokens_to_ids(["three", "3"]))


@in_one_test("atoms", [[], "Yes", [["Is it?"]], [["Is it?", 3]], [["", "Yes"]], [["Is it?", "Yes"], None], None])
def test_a_target_without_questions_and_answers_is_refused(atoms: Any) -> None:
    with pytest.raises(ValueError, match=r"target.vqa_list must list \[question, answer\]"):
        Geneval2().check(Prompt("a cow", target={"vqa_list": atoms}))
    Geneval2().check(Prompt("a cow", target={"vqa_list": ATOMS}))


@pytest.mark.slow
def test_what_cannot_be_judged_raises(folder: Path) -> None:
    with pytest.raises(ConfigError, match="cannot load the vision-language model '/no/such"):
        Geneval2(model="/no/such").prepare(CPU)
    batch = make_batch(Outputs(images=three_images() / 0), [""] * 3, [{"vqa_list": ATOMS}] * 3)
    with pytest.raises(ValueError, match="NaN or infinity"):
        ready(folder).score(batch)
