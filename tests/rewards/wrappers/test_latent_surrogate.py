"""latent_surrogate: what it learns, when it counts, its gradient and its state."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Scores
from mmrl.core.plugins import build
from mmrl.rewards.base.networks.latent_network import LatentNetwork
from mmrl.scoring.calls import call_reward
from mmrl.training.checkpoint import with_tensors, without_tensors
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.inner import WRITTEN, wrapped

SHAPE = (2, 4, 3)


def random_batch(rng: random.Random, count: int = 2 * GROUP, shape: tuple[int, ...] = SHAPE) -> RewardBatch:
    """Random latents; the inner score is written in the text: how much of the first channel is above 0."""
    latents = torch.randn(count, *shape, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    texts = tuple(str(float((one[0] > 0).float().mean())) for one in latents)
    return make_batch(Outputs(latents=latents, texts=texts), ["a red circle"] * count)


# no truth: until it is ready the scores are those of the inner reward, then a network's
EXAMPLE = Example(random_batch=random_batch, settings={"reward": WRITTEN, "warm_up": 0, "fit_steps": 20})


def judged(reward: Any, batch: RewardBatch) -> Scores:
    """The scores as `update` sees them."""
    answer = call_reward("r", reward, batch)
    number = torch.arange(len(batch))
    examples = {} if answer.examples is None else {"r": answer.examples}
    return Scores(
        *(answer.values[:, None], ("r",), (1.0,), ~answer.values.isnan(), batch.group, number, number * 0),
        examples=examples,
    )


def fitted(reward: Any, count: int = 6, size: int = 64) -> Any:
    for number in range(count):
        reward.update(judged(reward, random_batch(random.Random(number), size)))
    return reward


@pytest.mark.slow
def test_it_learns_what_the_inner_reward_says() -> None:
    reward, batch = fitted(wrapped("latent_surrogate", warm_up=6)), random_batch(random.Random(99), 64)
    assert reward.is_ready
    truth = torch.tensor([float(text) for text in batch.outputs.texts or ()])
    assert float(torch.corrcoef(torch.stack([reward.score(batch), truth]))[0, 1]) > 0.8
    assert reward.fit()["fit_error"] < 0.6  # 1 is the variance of the scores


def test_the_inner_scores_count_until_it_is_ready_and_then_it_is_asked_less_often() -> None:
    reward = wrapped("latent_surrogate", warm_up=2, every=3, fit_steps=1)
    batches = [random_batch(random.Random(number)) for number in range(7)]
    asked, own = [], []
    for batch in batches:
        before = len(reward.reward.scored)
        scores = judged(reward, batch)
        asked.append(len(reward.reward.scored) > before)
        own.append(scores.values[:, 0].tolist() != [float(text) for text in batch.outputs.texts or ()])
        reward.update(scores)
    assert own == [False, False, True, True, True, True, True]
    assert asked == [True, True, False, True, False, False, True]  # by the number of iterations before
    assert len(reward._examples) == 4 * 2 * GROUP  # what was not asked taught nothing


def test_a_gradient_goes_to_the_latents_once_it_is_ready() -> None:
    reward, batch = wrapped("latent_surrogate", warm_up=1, fit_steps=3), random_batch(random.Random(1))
    assert batch.outputs.latents is not None

    def with_graph(latents: Tensor) -> Tensor:
        outputs = Outputs(latents=latents)  # nothing is decoded
        scores: Tensor = reward.score(replace(batch, outputs=outputs))
        return scores.sum()

    latents = batch.outputs.latents.clone().requires_grad_()
    assert_close(torch.autograd.grad(with_graph(latents), latents)[0], torch.zeros_like(latents))
    reward.update(judged(reward, batch))
    (gradient,) = torch.autograd.grad(with_graph(latents), latents)
    direction = gradient / gradient.norm()
    with torch.no_grad():
        step = 0.01 * direction
        ahead, behind = (
            reward.predicted(reward.features_of(replace(batch, outputs=Outputs(latents=latents + sign * step)))).sum()
            for sign in (1, -1)
        )
    assert float(gradient.norm()) == pytest.approx(float(ahead - behind) / 0.02, rel=0.02)
    assert "latents" in reward.needs and reward.declaration.needs_of_gradient == {"latents"}


def test_the_loss_is_the_squared_error_in_variances_of_the_scores() -> None:
    class Sum(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            return features.sum(1)

    reward = wrapped("latent_surrogate")
    reward._examples = torch.tensor([[0.0, 0.0, -1.5], [0.0, 0.0, 2.5]])  # mean 0.5, standard deviation 2
    examples = torch.tensor([[1.0, 2.0, 4.5], [0.0, 1.0, 0.5]])  # predicted 3 and 1, given (4.5 - 0.5) / 2 = 2 and 0
    assert float(reward.fit_loss(Sum(), examples)) == (3 - 2) ** 2 / 2 + (1 - 0) ** 2 / 2
    assert_close(reward.in_units(torch.tensor([3.0])), torch.tensor([6.5]))


def test_scores_are_standardised_by_those_in_the_memory() -> None:
    reward = wrapped("latent_surrogate", fit_steps=1, memory=12)
    given = []
    for number in range(3):
        batch = random_batch(random.Random(number))
        given += [float(text) for text in batch.outputs.texts or ()]
        reward.update(judged(reward, batch))
    kept = torch.tensor(given[-12:], dtype=torch.float64)
    assert reward._scale == pytest.approx((float(kept.mean()), float(kept.std(correction=0))), abs=1e-6)


@pytest.mark.parametrize("shape", [(6, 4), (3, 5, 4), (2, 3, 4, 4)], ids=["row", "image", "video"])
def test_words_and_places_matter_for_latents_of_each_form(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = LatentNetwork(shape, 8, 16).requires_grad_(False)
    latents = torch.zeros(3, *shape)
    latents[0].flatten()[0] = latents[1].flatten()[-1] = 5.0  # the same value at another place
    words = torch.zeros(3, 16)
    values = network(torch.cat([latents.flatten(1), words], 1))
    assert values.shape == (3,) and len(values.unique()) == 3
    words[:, 3] = 1.0
    other = network(torch.cat([latents.flatten(1), words], 1))
    assert not torch.isclose(values, other).any()
    assert_close(network(torch.cat([latents.flatten(1), words], 1)[1:2]), other[1:2])  # alone as in the batch


def test_a_restored_one_goes_on_bit_for_bit() -> None:
    whole, first = (fitted(wrapped("latent_surrogate", warm_up=1), 2, 8) for _ in range(2))
    plain, tensors = without_tensors(first.state_dict(), "reward/r")
    second = wrapped("latent_surrogate", warm_up=1)
    second.load_state_dict(with_tensors(json.loads(json.dumps(plain)), tensors))
    batch = random_batch(random.Random(5))
    for reward in (whole, second):
        reward.update(judged(reward, batch))
    assert torch.equal(whole.score(batch), second.score(batch)) and whole.fit() == second.fit()


@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 3), (2, 3, 4, 4)], ids=["row", "image", "video"])
def test_a_process_without_samples_learns_the_same(shape: tuple[int, ...]) -> None:
    batch = random_batch(random.Random(3), 8, shape)
    one, idle = (wrapped("latent_surrogate", warm_up=1, fit_steps=2) for _ in range(2))
    scores = judged(one, batch)
    for reward in (one, idle):
        reward.update(scores)
    assert torch.equal(one.score(batch), idle.score(batch))


def test_an_empty_state_is_restored_too() -> None:
    reward = fitted(wrapped("latent_surrogate", warm_up=1), 1, 8)
    reward.load_state_dict(wrapped("latent_surrogate").state_dict())
    assert not reward.is_ready and reward.fit() == {}


def test_samples_that_could_not_be_judged_teach_nothing() -> None:
    reward, batch = wrapped("latent_surrogate", fit_steps=1), random_batch(random.Random(0))
    texts = ("no number", *(batch.outputs.texts or ())[1:])
    scores = judged(reward, replace(batch, outputs=replace(batch.outputs, texts=texts)))
    assert scores.examples["r"].isnan().any(1).tolist() == [True] + [False] * (2 * GROUP - 1)
    reward.update(scores)
    assert len(reward._examples) == 2 * GROUP - 1


def test_what_cannot_work_is_refused() -> None:
    reward = wrapped("latent_surrogate")
    reward.score(random_batch(random.Random(0)))
    with pytest.raises(ConfigError, match=r"latents of one size, got \(2, 3, 3\) after \(2, 4, 3\)"):
        reward.score(random_batch(random.Random(0), shape=(2, 3, 3)))
    with pytest.raises(ConfigError, match="must judge samples, got one that judges groups"):
        wrapped("latent_surrogate", reward={"name": "diversity"})
    with pytest.raises(ConfigError, match="one that needs self_certainty"):
        wrapped("latent_surrogate", reward={"name": "self_certainty"})
    with pytest.raises(ConfigError, match="learns from its own scores"):
        wrapped("clip_range", reward={"name": "latent_surrogate", "reward": WRITTEN}, low=0.0, high=1.0)


def test_another_size_on_another_process_is_refused() -> None:
    reward = wrapped("latent_surrogate")
    here, there = (
        judged(wrapped("latent_surrogate"), random_batch(random.Random(0), 8, one)) for one in (SHAPE, (2, 3, 3))
    )
    with pytest.raises(ConfigError, match="latents of one size"):
        reward.update(Scores.join([here, there]))


def test_latents_are_not_sent_to_servers() -> None:
    with pytest.raises(ConfigError, match="latents are not sent to servers"):
        build("rewards", {"name": "http", "url": "http://localhost:1", "reward": "r", "needs": ["latents"]})
