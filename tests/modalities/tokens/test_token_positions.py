"""Where tokens stand, counted by hand, with no state between calls; and that images reach the answers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.data import Outputs, Prompt
from mmrl.core.views import DecisionView
from mmrl.modalities.encoding.inputs import EncodedPrompt, Side
from mmrl.modalities.tiny.vision_language import BUILDERS
from mmrl.modalities.vision_language import VisionLanguage
from tests import vision_twins
from tests.vision_twins import PROMPTS, keys, picture

WITH_AXES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
SQUARES = Prompt("<image> or <image>: which?", (picture(56, 56, 1), picture(80, 28, 2)))


def by_hand(prompt: EncodedPrompt, merge: int = 2) -> tuple[list[list[int]], int]:
    """Time, height and width of each token by M-RoPE, and where the next one stands.

    A text token stands behind all before it, alike on three axes. The h x w tokens of an image share the time at which
    it begins; height and width count from there, row by row. What follows begins behind the largest of the three.
    """
    grids = [
        [side // merge for side in grid[1:]] for grid in prompt.media.get("image_grid_thw", torch.empty(0)).tolist()
    ]
    kinds, places, behind, number = prompt.token_types.tolist(), [], 0, 0
    while number < len(kinds):
        if kinds[number] == 0:
            places.append([behind] * 3)
            behind, number = behind + 1, number + 1
            continue
        height, width = grids.pop(0)
        places += [[behind, behind + row, behind + column] for row in range(height) for column in range(width)]
        behind, number = behind + max(height, width), number + height * width
    assert not grids
    return [list(axis) for axis in zip(*places, strict=True)], behind


@pytest.mark.parametrize("prompt", [*PROMPTS, SQUARES], ids=["text alone", "one image", "three images", "squares"])
@pytest.mark.parametrize("family", WITH_AXES)
def test_positions_of_three_axes_are_those_counted_by_hand(family: str, prompt: Prompt) -> None:
    (encoded,) = vision_twins.policy(family).encode([prompt])
    assert (encoded.positions.tolist(), encoded.next_position) == by_hand(encoded)
    if not prompt.media:  # as with one axis
        assert encoded.positions.tolist() == [list(range(len(encoded)))] * 3


def test_a_grid_by_numbers() -> None:
    """Four tokens of a 2 x 2 image at 5, then text at 7."""
    (encoded,) = vision_twins.policy().encode([replace(SQUARES, text="<image>", media=SQUARES.media[:1])])
    start = encoded.token_types.tolist().index(1)
    assert encoded.positions[:, start : start + 5].tolist() == [
        [start, start, start, start, start + 2],
        [start, start, start + 1, start + 1, start + 2],
        [start, start + 1, start, start + 1, start + 2],
    ]
    assert encoded.next_position == len(encoded) - 2


@pytest.mark.parametrize("family", ["internvl", "gemma3"])
def test_families_of_one_axis_count_their_tokens(family: str) -> None:
    for encoded in vision_twins.policy(family).encode(PROMPTS):
        assert encoded.positions.tolist() == [list(range(len(encoded)))] and encoded.next_position == len(encoded)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_moves_no_position(side: Side) -> None:
    policy = vision_twins.policy()
    encoded = policy.encode(PROMPTS)
    batch = policy.backbone.batch(encoded, side)
    for row, prompt in enumerate(encoded):
        is_token = batch.mask[row] == 1
        assert torch.equal(batch.positions[:, row, is_token], prompt.positions)
        assert torch.equal(batch.tokens[row, is_token], prompt.tokens)
        assert batch.tokens[row, batch.last[row]] == prompt.tokens[-1]


@pytest.mark.parametrize("family", BUILDERS)
def test_image_tokens_are_as_many_as_the_features_that_replace_them(family: str) -> None:
    policy = vision_twins.policy(family)
    model: Any = policy.modules()["model"]
    for prompt, encoded in zip(PROMPTS, policy.encode(PROMPTS), strict=True):
        if not prompt.media:
            assert not int(encoded.token_types.sum())
            continue
        with torch.no_grad():
            features = model.model.get_image_features(**encoded.media).pooler_output
        counts = [part.shape[:-1].numel() for part in features]
        assert sum(counts) == int((encoded.token_types == 1).sum())
        if "image_grid_thw" in encoded.media:
            grid = encoded.media["image_grid_thw"].prod(1)
            assert counts == (grid // 4).tolist() and int(grid.sum()) == len(encoded.media["pixel_values"])


def log_probs(policy: VisionLanguage, prompt: Prompt, answer: str = "it is red") -> Tensor:
    """[K] of an answer's tokens."""
    given = policy.offline([prompt], Outputs(texts=(answer,)), keys(1))
    with torch.no_grad():
        return policy.forward(given, DecisionView(torch.arange(1))).values[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_AXES)
def test_two_prompts_in_turns_are_read_as_by_two_fresh_models(family: str) -> None:
    """The models keep the offset of the last prompt's images; it must reach no other prompt."""
    used = vision_twins.policy(family)
    alone = [log_probs(vision_twins.policy(family), prompt) for prompt in (PROMPTS[2], PROMPTS[0])]
    for number in (0, 1, 0):
        found = log_probs(used, (PROMPTS[2], PROMPTS[0])[number])
        torch.testing.assert_close(found, alone[number], rtol=0, atol=0)


@pytest.mark.slow
def test_the_network_never_looks_for_positions_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = vision_twins.policy()
    policy.encode(PROMPTS)

    def refuse(*given: Any, **settings: Any) -> Any:
        raise AssertionError("positions are given")

    monkeypatch.setattr(policy.modules()["model"].model, "get_rope_index", refuse)
    drawn = vision_twins.rollout(policy)
    policy.forward(drawn, DecisionView(torch.arange(9)))


@pytest.mark.slow
@pytest.mark.parametrize("family", BUILDERS)
def test_what_the_images_show_and_their_order_reach_the_answer(family: str) -> None:
    policy = vision_twins.policy(family)
    first, second = picture(56, 56, 7), picture(56, 56, 8)
    asked = Prompt("<image> <image>?", (first, second))
    found = [
        log_probs(policy, prompt)
        for prompt in (asked, replace(asked, media=(second, first)), replace(asked, media=(first, first)),
                       replace(asked, text="<image> ?", media=(first,)), replace(asked, text=" ?", media=()))
    ]  # fmt: skip
    for number, one in enumerate(found):
        assert one.isfinite().all()
        assert all(float((one - other).abs().max()) > 1e-4 for other in found[:number])
