"""generate_then_score against the generator by itself: the lab's own sampler in diffusers, and the verifier by hand."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl import labs
from mmrl.core.contracts import ConfigError, Placement, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.keys import GroupKey, seed_from
from mmrl.core.plugins import build
from mmrl.core.reward_batches import select
from mmrl.labs.shapes import networks, pretrain, world
from mmrl.parsing.answers import ParseError
from mmrl.scoring.calls import call_reward
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch

GENERATOR = {"name": "sd3", "model": "lab:shapes", "height": 32, "width": 32, "max_sequence_length": 1}
SAMPLER = {"name": "ode", "num_steps": 3, "sigmas": "uniform"}
SETTINGS: dict[str, Any] = {"generator": GENERATOR, "sampler": SAMPLER, "reward": {"name": "shapes"}}
REQUESTS = ("red circle top left", "blue cross bottom right")
WRITTEN = ("red circle top left", "white square top left", "blue cross middle right", "red circle top left")


@pytest.fixture(scope="module")
def reward() -> Any:
    """The reward around the generator of the shapes lab, ready to judge; `replace` keeps the loaded generator."""
    reward = build("rewards", {"name": "generate_then_score"} | SETTINGS)
    reward.prepare(Placement(torch.device("cpu"), torch.float32))
    return reward


def written(*texts: str, asked: tuple[str, ...] = REQUESTS, target: dict[str, Any] | None = None) -> RewardBatch:
    """Answers to two prompts in turn; those to one prompt share its object, as in a run."""
    batch = make_batch(Outputs(texts=texts), asked, [target or {}] * len(asked))
    rows = torch.arange(len(texts)) % len(asked)
    prompts = tuple(batch.prompts[row] for row in rows.tolist())
    number = torch.arange(len(texts))
    whole = make_batch(Outputs(texts=texts), [prompt.text for prompt in prompts])
    return RewardBatch(
        **{name: getattr(whole, name) for name in ("outputs", "episode", "turn", "seeds", "iteration", "generator")},
        prompts=prompts,
        group=number % len(asked),
    )


def pictures_by_hand(texts: list[str], asked: list[str], *, seed: int = 0, pictures: int = 1) -> Tensor:
    """Images [n * pictures] by the lab's own Euler loop in diffusers, from the noise that the row's prompt names."""
    pipeline = pretrain.load(labs.checkpoint("shapes"))
    seeds = [GroupKey(seed_from(seed, "generate_then_score", text), 0, 0).seed_for("root") for text in asked]
    shape = (pictures, *networks.LATENT_SHAPE)
    noise = torch.cat([torch.randn(shape, generator=torch.Generator().manual_seed(one)) for one in seeds])
    with torch.no_grad():
        return pretrain.sample(pipeline, [text for text in texts for _ in range(pictures)], noise, num_steps=3)


def random_batch(source: random.Random) -> RewardBatch:
    """Prompts of the lab, right and wrong, and other words."""
    known = world.all_prompts()
    return written(*(source.choice([*source.sample(known, 3), "a lamp"]) for _ in range(8)))


# There is no truth: the text that the generator draws best from is not known.
EXAMPLE = Example(random_batch=random_batch, settings=SETTINGS | {"reward": {"name": "jpeg_size"}})


@pytest.mark.slow
def test_scores_are_those_of_what_the_generator_draws_alone_from_the_noise_of_the_row(reward: Any) -> None:
    asked = [*REQUESTS, *REQUESTS]
    verdict = world.verify(pictures_by_hand(list(WRITTEN), asked), asked)
    scores = reward.score(written(*WRITTEN))
    torch.testing.assert_close(scores, verdict.graded, rtol=1e-4, atol=1e-5)
    assert len(scores.unique()) > 2


@pytest.mark.slow
def test_another_seed_is_another_noise(reward: Any) -> None:
    scores = replace(reward, seed=7).score(written(*WRITTEN))
    asked = [*REQUESTS, *REQUESTS]
    verdict = world.verify(pictures_by_hand(list(WRITTEN), asked, seed=7), asked)
    torch.testing.assert_close(scores, verdict.graded, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_score_of_several_pictures_is_their_mean(reward: Any) -> None:
    verdict = world.verify(
        pictures_by_hand(list(WRITTEN[:2]), list(REQUESTS), pictures=3), [text for text in REQUESTS for _ in range(3)]
    )
    scores = replace(reward, pictures=3).score(written(*WRITTEN[:2]))
    torch.testing.assert_close(scores, verdict.graded.view(2, 3).mean(1), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_picture_may_be_judged_by_the_written_text_or_by_a_field_of_the_row(reward: Any) -> None:
    batch = written("white square top left", asked=("pale box up west",), target={"wish": "blue cross bottom right"})
    image = pictures_by_hand(["white square top left"], ["pale box up west"])
    settings: dict[str, Any]
    for settings, held_against in (
        ({"judged_by": "written"}, "white square top left"),
        ({"request": "wish"}, "blue cross bottom right"),
    ):
        expected = world.verify(image, [held_against]).graded
        torch.testing.assert_close(replace(reward, **settings).score(batch), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_neither_order_nor_neighbors_nor_the_size_of_calls_change_a_score(reward: Any) -> None:
    batch = written(*WRITTEN)
    scores = reward.score(batch)
    torch.testing.assert_close(reward.score(select(batch, torch.tensor([3, 1, 0, 2]))), scores[[3, 1, 0, 2]])
    alone = torch.cat([reward.score(select(batch, torch.tensor([row]))) for row in range(len(batch))])
    torch.testing.assert_close(alone, scores)
    torch.testing.assert_close(replace(reward, texts_per_call=1).score(batch), scores)


@pytest.mark.slow
def test_a_text_that_is_written_several_times_for_a_row_is_drawn_once(reward: Any) -> None:
    before = reward.generator.num_calls
    scores = reward.score(written(*("red circle top left",) * 4, "white cross top left", " red circle top left\n"))
    # three texts for two rows: one that both have, and one more for the first; three steps each
    assert reward.generator.num_calls - before == 3 * 3
    assert scores[0] == scores[2] and scores[1] == scores[3] == scores[5]


@pytest.mark.slow
def test_an_answer_without_a_text_is_left_out_and_never_scores_zero(reward: Any) -> None:
    batch = written("red circle top left", "  \n", "white square top left")
    scores = reward.score(batch)
    assert scores.isnan().tolist() == [False, True, False]
    torch.testing.assert_close(scores[[0, 2]], reward.score(select(batch, torch.tensor([0, 2]))))
    answer = call_reward("drawn", reward, batch)
    assert answer.values.isnan().tolist() == [False, True, False] and answer.failure is not None
    with pytest.raises(ParseError, match="the answer is empty"):
        reward.score(select(batch, torch.tensor([1])))
    assert replace(reward, unreadable=-1.0).score(batch)[1] == -1 and replace(reward, unreadable=-1.0).range == (
        -1.0,
        1.0,
    )


@pytest.mark.slow
def test_only_what_stands_in_the_tag_is_drawn(reward: Any) -> None:
    tagged = replace(reward, tag="prompt")
    batch = written("thoughts <prompt>red circle top left</prompt>", "blue cross bottom right", "<prompt> </prompt>")
    scores = tagged.score(batch)
    torch.testing.assert_close(scores[:1], reward.score(written("red circle top left")))
    assert scores[1:].isnan().all() and tagged.declaration.answer_tag == "prompt"


@pytest.mark.slow
def test_the_generator_is_frozen_and_in_the_precision_of_the_run() -> None:
    reward = build("rewards", {"name": "generate_then_score"} | SETTINGS)
    reward.prepare(Placement(torch.device("cpu"), torch.bfloat16, maximum=lambda count: count))
    (network,) = reward.generator.modules().values()
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert {parameter.dtype for parameter in network.parameters()} == {torch.bfloat16}
    assert not reward.generator.weights.parameters
    assert reward.score(written(*WRITTEN)).isfinite().all()


def test_what_it_needs_and_says_follows_from_its_parts() -> None:
    reward = build("rewards", {"name": "generate_then_score", "request": "wish"} | SETTINGS)
    assert reward.needs == {"texts", "model", "target.wish"}
    assert reward.range == (0.0, 1.0) and reward.granularity == "sample" and reward.declaration.concurrency == 1


@pytest.mark.parametrize("wish", [None, "", 3])
def test_a_row_without_a_request_is_refused_when_data_is_loaded(wish: Any) -> None:
    reward = build("rewards", {"name": "generate_then_score", "request": "wish"} | SETTINGS)
    with pytest.raises(ValueError, match=r"target\.wish must be a text, got"):
        reward.check(written("a", target={"wish": wish}).prompts[0])


@pytest.mark.slow
def test_a_generator_that_is_driven_by_its_own_pipeline_draws_videos(tmp_path: Path) -> None:
    generator = {"name": "diffusers_pipeline", "model": "none", "family": "wan21", "output": "video", "num_frames": 5}
    judged = {"name": "frame_mean", "reward": {"name": "jpeg_size"}}
    sampler = {"name": "ode", "num_steps": 2, "sigmas": "pipeline", "guidance_scale": 3.0}
    reward = build(
        "rewards", {"name": "generate_then_score", "generator": generator, "sampler": sampler, "reward": judged}
    )
    twin = reward.tiny(0, tmp_path)
    with twin.shrunk():
        twin.prepare(Placement(torch.device("cpu"), torch.float32))
        batch = written("a dog", "a cat", "a dog")
        scores = twin.score(batch)
        torch.testing.assert_close(twin.score(select(batch, torch.tensor([1]))), scores[[1]], rtol=1e-3, atol=1e-4)
    assert scores.isfinite().all() and scores[0] == scores[2] != scores[1]
    assert not any(one.requires_grad for net in twin.generator.modules().values() for one in net.parameters())


@pytest.mark.slow
@in_one_test(
    ("changes", "why"),
    [
        (
            {"generator": {"name": "vision_language", "model": "lab:screens"}},
            "must draw images or videos, got one that",
        ),
        ({"generator": {"name": "sd3", "model": "lab:shpes"}}, "unknown lab 'shpes' .did you mean 'shapes'"),
        ({"generator": "sd3"}, r"is a section such as \{name: \.\.\.\} of modalities"),
        ({"generator": GENERATOR | {"heigth": 32}}, "did you mean 'height'"),
        (
            {"generator": {"name": "diffusers_pipeline", "model": "none", "condition_images": 1}},
            "must draw from text alone",
        ),
        ({"sampler": {"name": "autoregressive", "max_tokens": 4}}, "must plan latents, got one that plans tokens"),
        (
            {"sampler": {"name": "best_of_n", "n": 2, "proposal": SAMPLER, "reward": {"name": "shapes"}}},
            "must not select by a reward",
        ),
        ({"reward": {"name": "exact_answer"}}, r"must judge what the generator makes \(images\), got one that needs"),
        ({"reward": {"name": "motion"}}, r"must judge what the generator makes \(images\)"),
        ({"reward": {"name": "diversity"}}, "must judge samples, got one that judges groups"),
        ({"reward": {"name": "dithered", "std": 0.1, "reward": {"name": "shapes"}}}, "changes from call to call"),
        ({"tag": "a b"}, "tags must be different names"),
        ({"pictures": 0}, "pictures must be at least 1"),
        ({"judged_by": "writen"}, "judged_by"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        build("rewards", {"name": "generate_then_score"} | SETTINGS | changes)
