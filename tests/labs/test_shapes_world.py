import itertools
from collections import Counter
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from mmrl import labs
from mmrl.labs.shapes import world
from tests.parameters import in_one_test

RED, BLUE = (0.90, 0.15, 0.15), (0.20, 0.35, 0.95)


def canvas() -> Tensor:
    return torch.full((1, 3, 32, 32), 0.08)


def with_square(colour: tuple[float, float, float], top: int, left: int) -> Tensor:
    """An 8 x 8 square, drawn by hand."""
    image = canvas()
    image[0, :, top : top + 8, left : left + 8] = torch.tensor(colour)[:, None, None]
    return image


def rendered(repeats: int) -> tuple[Tensor, list[str]]:
    prompts = world.all_prompts() * repeats
    return world.render(prompts, torch.Generator().manual_seed(3)), prompts


def test_the_world_has_216_distinct_prompts_of_four_words() -> None:
    prompts = world.all_prompts()
    assert len(prompts) == len(set(prompts)) == world.NUM_PROMPTS == 6 * 4 * 9
    assert prompts[0] == "red circle top left" and prompts[-1] == "white cross bottom right"
    assert all(len(prompt.split()) == 4 for prompt in prompts)


def test_the_splits_are_disjoint_and_complete() -> None:
    train, held_out = world.prompts("train"), world.prompts("held_out")
    assert len(train) == 144 and len(held_out) == 72
    assert sorted(train + held_out) == sorted(world.all_prompts())


def test_every_word_is_equally_frequent_in_both_splits() -> None:
    train = Counter(word for prompt in world.prompts("train") for word in prompt.split())
    held_out = Counter(word for prompt in world.prompts("held_out") for word in prompt.split())
    assert train == Counter({word: 2 * count for word, count in held_out.items()})


def test_three_words_of_a_held_out_prompt_are_together_in_training() -> None:
    seen = {three for prompt in world.prompts("train") for three in itertools.combinations(prompt.split(), 3)}
    assert all(
        three in seen for prompt in world.prompts("held_out") for three in itertools.combinations(prompt.split(), 3)
    )


def test_an_unknown_split_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"no split 'test'; the splits are train, held_out"):
        world.prompts(cast(Any, "test"))


def test_attributes_are_the_indices_of_the_words() -> None:
    wanted = world.attributes(["blue cross middle right", "white triangle bottom left"])
    assert wanted.colour.tolist() == [2, 5]
    assert wanted.shape.tolist() == [3, 2]
    assert wanted.cell.tolist() == [3 * 1 + 2, 3 * 2 + 0]
    prompts = world.all_prompts()
    assert world.attributes(prompts).prompt_index.tolist() == list(range(216))


@in_one_test("prompt", ["", "red circle top", "pink circle top left", "red circle left top", "Red circle top left"])
def test_a_prompt_outside_the_grammar_is_refused_with_what_is_allowed(prompt: str) -> None:
    with pytest.raises(
        ValueError, match=r"colour one of red, green.*shape one of circle.*row one of top.*left, centre"
    ) as error:
        world.verify(canvas(), [prompt])
    assert repr(prompt) in str(error.value)


def test_the_nearest_prompt_is_named() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'red circle top left'"):
        world.attributes(["red circel top left"])


def test_a_square_drawn_by_hand_is_what_it_is() -> None:
    verdict = world.verify(with_square(RED, top=4, left=20), ["red square top right"])
    assert verdict.is_correct.item()
    # the centroid is (24, 8): 0.5 pixels from the centre (23.5, 8.5) of the cell
    torch.testing.assert_close(verdict.position, torch.exp(torch.tensor([-0.01])), atol=1e-5, rtol=0)
    torch.testing.assert_close(verdict.colour, torch.ones(1), atol=1e-5, rtol=0)
    assert verdict.shape.item() > 0.9


def test_position_falls_by_the_larger_of_the_two_distances() -> None:
    image = with_square(RED, top=4, left=20)  # centroid (24, 8); the centre of the cell asked for is (16, 8.5)
    verdict = world.verify(image, ["red square top centre"])
    torch.testing.assert_close(verdict.position, torch.exp(torch.tensor([-((8 / 5) ** 2)])), atol=1e-5, rtol=0)
    assert not verdict.is_correct.item()


def test_colour_falls_with_the_distance_in_rgb() -> None:
    verdict = world.verify(with_square(BLUE, top=4, left=20), ["red square top right"])
    squared_distance = 0.7**2 + 0.2**2 + 0.8**2
    torch.testing.assert_close(verdict.colour, torch.exp(torch.tensor([-squared_distance / 0.09])), atol=1e-5, rtol=0)
    assert not verdict.is_correct.item()


def test_graded_is_the_mean_of_the_three_scores() -> None:
    verdict = world.Verdict(torch.tensor([0.9]), torch.tensor([0.3]), torch.tensor([0.6]), torch.tensor([False]))
    torch.testing.assert_close(verdict.graded, torch.tensor([0.6]))


@pytest.mark.parametrize("attribute", ["colour", "shape", "position"])
def test_only_the_score_of_the_wrong_attribute_falls(attribute: str) -> None:
    wrong = {"colour": "blue circle top left", "shape": "red cross top left", "position": "red circle bottom left"}
    image = world.render(["red circle top left"], torch.Generator().manual_seed(0))
    right, asked = world.verify(image, ["red circle top left"]), world.verify(image, [wrong[attribute]])
    for name in ("colour", "shape", "position"):
        before, after = getattr(right, name).item(), getattr(asked, name).item()
        assert after < 0.2 < 0.8 < before if name == attribute else after == before
    assert right.is_correct.item() and not asked.is_correct.item()
    assert asked.graded.item() < right.graded.item()


@pytest.mark.slow
def test_the_verifier_accepts_what_the_renderer_draws() -> None:
    images, prompts = rendered(5)
    verdict = world.verify(images, prompts)
    assert verdict.is_correct.float().mean() >= 0.99
    assert verdict.graded.min() > 0.8


@pytest.mark.slow
def test_the_verifier_rejects_nearly_every_drawing_of_another_prompt() -> None:
    images, prompts = rendered(5)
    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(1)).tolist()
    verdict = world.verify(images, [prompts[index] for index in order])
    assert verdict.is_correct.float().mean() <= 0.01  # by chance 1 of 216 is the same prompt
    assert verdict.graded.mean() < 0.3


def test_every_other_prompt_is_rejected_for_one_drawing() -> None:
    prompts = world.all_prompts()
    image = world.render(["green triangle middle centre"], torch.Generator().manual_seed(2))
    verdict = world.verify(image.expand(216, -1, -1, -1), prompts)
    assert [prompts[index] for index in verdict.is_correct.nonzero().flatten().tolist()] == [
        "green triangle middle centre"
    ]


@pytest.mark.parametrize("level", [0.08, 1.0])
def test_an_image_without_a_shape_scores_nothing(level: float) -> None:
    verdict = world.verify(torch.full((1, 3, 32, 32), level), ["white square middle centre"])
    assert verdict.graded.item() == 0 and not verdict.is_correct.item()


def test_noise_is_not_a_shape() -> None:
    images = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert not world.verify(images, world.all_prompts()[:64]).is_correct.any()


def test_two_shapes_are_not_one() -> None:
    image = torch.maximum(with_square(RED, top=4, left=20), with_square(RED, top=20, left=4))
    for prompt in ("red square top right", "red square bottom left", "red square middle centre"):
        assert not world.verify(image, [prompt]).is_correct.item()


def test_a_verdict_does_not_depend_on_the_batch() -> None:
    images, prompts = rendered(1)
    images = (images + 0.1 * torch.randn(images.shape, generator=torch.Generator().manual_seed(4))).clamp(0, 1)
    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(5))
    together = world.verify(images, prompts)
    shuffled = world.verify(images[order], [prompts[index] for index in order.tolist()])
    alone = world.verify(images[7:8], prompts[7:8])
    for name in ("colour", "shape", "position", "is_correct"):
        torch.testing.assert_close(getattr(shuffled, name), getattr(together, name)[order], atol=1e-6, rtol=0)
        torch.testing.assert_close(getattr(alone, name), getattr(together, name)[7:8], atol=1e-6, rtol=0)


def test_an_empty_batch_has_an_empty_verdict() -> None:
    assert world.verify(torch.empty(0, 3, 32, 32), []).graded.shape == (0,)


def test_what_cannot_be_judged_raises() -> None:
    with pytest.raises(ValueError, match=r"images have shape \[1, 3, 32, 32\]; 2 prompts need \[2, 3, 32, 32\]"):
        world.verify(canvas(), ["red circle top left"] * 2)
    with pytest.raises(ValueError, match="NaN"):
        world.verify(canvas() * float("nan"), ["red circle top left"])


def test_the_four_shapes_have_the_area_and_centroid_asked_for() -> None:
    x, y, radius = torch.tensor([15.3]), torch.tensor([16.8]), torch.tensor([5.0])
    masks = world.coverage(x, y, radius)[0]  # [4, H, W]
    area = masks.sum((1, 2))
    torch.testing.assert_close(area, torch.full((4,), 25 * torch.pi), rtol=0.05, atol=0)  # soft edges: within 5 %
    pixels = torch.arange(32) + 0.5
    torch.testing.assert_close((masks.sum(1) * pixels).sum(1) / area, x.expand(4), atol=0.1, rtol=0)
    torch.testing.assert_close((masks.sum(2) * pixels).sum(1) / area, y.expand(4), atol=0.1, rtol=0)


def test_the_same_seed_renders_the_same_images() -> None:
    first, prompts = rendered(1)
    assert torch.equal(first, world.render(prompts, torch.Generator().manual_seed(3)))
    assert first.shape == (216, 3, 32, 32) and first.min() >= 0 and first.max() <= 1


def test_an_unknown_lab_is_refused_with_the_nearest_name() -> None:
    assert labs.checkpoint("shapes").name == "checkpoint"
    with pytest.raises(ValueError, match=r"unknown lab 'shaeps' \(did you mean 'shapes'\?\); the labs are .*shapes"):
        labs.checkpoint("shaeps")
