"""Prompts that are too easy or too hard are sampled once more, in another form."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.assembly.build import build
from mmrl.core.config import AugmentSettings, GroupSettings, load_config
from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Prompt
from mmrl.media.video import Frames, FrameSampling, NoisyClip
from mmrl.modalities.encoding.frames import FrameCache
from mmrl.prompts.stream import PromptStream
from mmrl.training.difficulty import CUE, GUIDE, Difficulty, cued, guide, noisy
from mmrl.training.rollouts import Collected, Collector
from tests.advantages.scored import NAN, scored
from tests.parameters import in_one_test
from tests.toy_runs import CountZeros, collector


@dataclass(frozen=True)
class GreyClip:
    """A clip of two grey frames."""

    name: str = "grey"
    level: int = 128

    def load(self, sampling: FrameSampling) -> Frames:
        pixels = torch.full((2, 3, 40, 40), self.level, dtype=torch.uint8)
        return Frames(pixels, torch.arange(2).double(), torch.arange(2), 1.0, 2)


CLIP: Any = GreyClip()
QUESTION = Prompt("How many?", target={"answer": "3", "several": ["x", "y"], "none": " "}, clips=(CLIP,))


def test_difficulty_is_the_mean_of_the_last_groups_minus_the_own_by_hand() -> None:
    difficulty = Difficulty(window=3)
    scores = scored([0, 1, 1, 1, NAN, 0, NAN], [4, 4, 9, 9, 9, 2, 5])  # means 0.5, 1, 0 and none
    assert difficulty(scores) == {2: 0.5, 4: 0.0, 9: -0.5}, "in the first iteration against each other"
    difficulty.update(joined(scores, [9, 9], 11))  # group 11 is of a changed prompt
    assert difficulty.recent == [0.0, 0.5, 1.0]
    again = Difficulty(window=3)
    again.load_state_dict(difficulty.state_dict())
    later = scored([2, 4], [20, 20])
    assert again(later) == difficulty(later) == {20: 0.5 - 3.0}
    difficulty.update(later)
    assert difficulty.recent == [0.5, 1.0, 3.0], "the last three groups"
    difficulty.update(later)
    assert difficulty.recent == [0.5, 1.0, 3.0], "a group counts once"


def joined(scores: Any, more: list[float], group: int) -> Any:
    return type(scores).join([scores, scored(more, [group] * len(more))])


def test_a_guide_names_the_right_answer() -> None:
    found = guide(QUESTION, "answer")
    assert found is not None and found == replace(QUESTION, text="How many?\n" + GUIDE.format(answer="3"))
    several = guide(QUESTION, "several")
    assert several is not None and "x, y" in several.text
    assert guide(QUESTION, "none") is None and guide(QUESTION, "absent") is None


@in_one_test(
    ("text", "share", "cue"),
    [
        ("<think>one two three four</think><answer>3</answer>", 0.5, "one two"),
        ("<think>one two three four</think><answer>3</answer>", 0.26, "one two"),
        ("<think>one two three four</think>", 7.0, "one two three four"),
        ("<think>never ends", 0.01, "never"),
        ("so {prompt} it is <answer>3</answer>", 1.0, "so {prompt} it is"),
    ],
)
def test_a_cue_is_the_beginning_of_the_thought(text: str, share: float, cue: str) -> None:
    found = cued(QUESTION, text, share)
    assert found == replace(QUESTION, text="How many?\n" + CUE.format(cue=cue))


def test_without_a_thought_there_is_no_cue() -> None:
    assert cued(QUESTION, "<answer>3</answer>", 1.0) is None and cued(QUESTION, "<think> </think>", 1.0) is None
    assert cued(QUESTION, "", 1.0) is None


def test_noise_has_the_standard_deviation_and_depends_on_its_key_alone() -> None:
    found = noisy(QUESTION, 0.05, 1, 2, "noise")
    assert found is not None and found == noisy(QUESTION, 0.05, 1, 2, "noise") != noisy(QUESTION, 0.05, 1, 3, "noise")
    (clip,) = found.clips
    sampling = FrameSampling(num_frames=2)
    frames = clip.load(sampling)
    off = frames.pixels.float() - 128
    assert frames.pixels.dtype == torch.uint8 and abs(off.mean()) < 1 and abs(off.std() / 255 - 0.05) < 0.002
    assert not torch.equal(frames.pixels[0], frames.pixels[1]), "each frame has its own"
    white = NoisyClip(GreyClip(level=255), 0, 0.5).load(sampling).pixels
    assert white.max() == 255 and 0.4 < (white == 255).float().mean() < 0.6, "values above white are white"
    cache = FrameCache(sampling, 10**6)
    assert torch.equal(cache(clip).pixels, frames.pixels) and torch.equal(
        cache(CLIP).pixels, CLIP.load(sampling).pixels
    )
    assert cache.num_decoded == 1
    assert noisy(QUESTION, 0.0, 1) is None and noisy(replace(QUESTION, clips=()), 0.1, 1) is None


@dataclass
class Hard(CountZeros):
    """4 for every answer to an easy prompt, 0 to a hard one, unless it has a cue or knows the answer."""

    def score(self, batch: RewardBatch) -> Tensor:
        zeros = super().score(batch)
        is_easy = torch.tensor(["easy" in one.text and not noised(one) for one in batch.prompts])
        is_closed = torch.tensor(["hard" in one.text and "\n" not in one.text for one in batch.prompts])
        return torch.where(is_easy, 4.0, torch.where(is_closed, 0.0, zeros))


def noised(prompt: Prompt) -> bool:
    return any(isinstance(clip, NoisyClip) for clip in prompt.clips)


def made(groups: GroupSettings, *kinds: str, chunk: int = 4) -> Collector:
    texts = [f"{kind} {number}" for number in range(3) for kind in kinds]
    prompts = tuple(Prompt(text, target={"answer": "0"}, clips=(CLIP,)) for text in texts)
    drawing = collector(PromptStream([prompts], [1.0], 0), groups, wanted=6, chunk=chunk, reward=Hard())
    return replace(drawing, difficulty=Difficulty())


def learned(collected: Collected) -> dict[int, Prompt]:
    """The prompts of the groups that are learned from."""
    assert collected.rollout is not None
    pairs = zip(collected.rollout.keys, collected.rollout.prompts, strict=True)
    return {key.prompt_index: prompt for key, prompt in pairs if key.prompt_index in collected.kept}


AUGMENT = GroupSettings(augment=AugmentSettings(noise=0.2))


def test_easy_prompts_get_noise_and_hard_ones_a_cue_and_are_learned_from_instead() -> None:
    drawing = made(AUGMENT, "easy", "hard")
    collected = drawing(0, "trained")
    assert collected.metrics["groups/harder"] == 3 and collected.metrics["groups/easier"] == 3
    found = learned(collected)
    assert len(found) == 6 and all(noised(one) == ("easy" in one.text) for one in found.values())
    assert all((CUE.partition("{")[0] in one.text) == ("hard" in one.text) for one in found.values())
    assert {clip.std for one in found.values() for clip in one.clips if isinstance(clip, NoisyClip)} == {0.2 * 2.0}
    assert not any(GUIDE[:20] in one.text for one in collected.rollout.prompts), "nothing is learned from guides"  # type: ignore[union-attr]
    assert drawing.prompts.num_taken == 6 + 3 + 6, "prompts, guides, changed prompts"
    assert min(found) == 9 and set(collected.scores.prompt_index.tolist()) == {*range(6), *range(9, 15)}
    assert drawing.difficulty is not None
    drawing.difficulty.update(collected.scores)
    assert sorted(drawing.difficulty.recent) == [0.0] * 3 + [4.0] * 3, "of prompts as they are"


@in_one_test(
    ("settings", "expected"),
    [
        ({"tolerance": 2.0}, (0, 0)),
        ({"noise": 0.0}, (3, 0)),
        ({"answer": None}, (0, 3)),
        ({"answer": "absent"}, (0, 3)),
    ],
)
def test_what_is_not_wanted_stays_as_it_is(settings: dict[str, Any], expected: tuple[int, int]) -> None:
    collected = made(GroupSettings(augment=AugmentSettings(**settings)), "easy", "hard")(0, "trained")
    assert (collected.metrics["groups/easier"], collected.metrics["groups/harder"]) == expected
    assert len(collected.kept) == 6 and sum(index < 6 for index in collected.kept) == 6 - sum(expected)


def test_neither_chunks_nor_a_resume_change_what_is_sampled() -> None:
    whole, parts = made(AUGMENT, "easy", "hard", "bright"), made(AUGMENT, "easy", "hard", "bright", chunk=1)
    for iteration in range(2):
        first, second = whole(iteration, "trained"), parts(iteration, "trained")
        assert learned(first) == learned(second) and torch.equal(first.scores.total, second.scores.total)
        for one in (whole, parts):
            assert one.difficulty is not None
            one.difficulty.update(first.scores)
        resumed = made(AUGMENT, "easy", "hard", "bright", chunk=1)
        resumed.prompts.load_state_dict(parts.prompts.state_dict())
        assert resumed.difficulty is not None and parts.difficulty is not None
        resumed.difficulty.load_state_dict(parts.difficulty.state_dict())
        parts = resumed


def test_degenerate_groups_are_dropped_of_changed_prompts_too() -> None:
    groups = GroupSettings(augment=AugmentSettings(noise=0.0, answer="absent"), degenerate="drop")
    assert not made(groups, "easy", "hard")(0, "trained").kept
    collected = made(replace_augment(groups, AugmentSettings(noise=0.2)), "easy", "hard")(0, "trained")
    assert collected.kept and min(collected.kept) >= 9


def replace_augment(groups: GroupSettings, augment: AugmentSettings) -> GroupSettings:
    return groups.model_copy(update={"augment": augment})


@pytest.mark.slow
@in_one_test(
    ("config", "overrides", "message"),
    [
        ("lab/flow_grpo", [], "changes questions, and modality 'sd3' is for something else"),
        ("lab/grpo", ["groups.degenerate=refill"], "goes neither with groups.degenerate refill nor"),
        ("lab/grpo", [], "no training prompt has a video, for noise 0.1, or 'answer' in its target"),
    ],
)
def test_what_cannot_be_changed_is_refused(config: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(load_config(config, ["groups.augment={window: 9}", *overrides]))
