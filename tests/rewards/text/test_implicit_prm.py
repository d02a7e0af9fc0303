"""Log-ratios as rewards of tokens and steps: by hand, and a policy whose log-ratios are known."""

import math
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmrl.core.contracts import Likelihoods, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.text.implicit_prm import ImplicitPrm
from tests.rewards.example import Example, make_batch


def batch_of(pieces: list[tuple[str, ...]], own: Tensor, reference: Tensor, weights: str = "averaged") -> RewardBatch:
    length = torch.tensor(list(map(len, pieces)))
    outputs = Outputs(texts=tuple(map("".join, pieces)), pieces=tuple(pieces), num_tokens=length)
    batch = make_batch(outputs, ["?"] * len(pieces))
    found = {weights: Likelihoods(own), "reference": Likelihoods(reference)}
    return replace(batch, likelihoods=found, num_decisions=length)


def random_batch(given: random.Random) -> RewardBatch:
    pieces = [tuple(given.choice(("a", "\n", "b\n", "")) for _ in range(given.randint(1, 7))) for _ in range(9)]
    width = max(map(len, pieces))
    own, reference = (-torch.tensor([[given.expovariate(1) for _ in range(width)] for _ in pieces]) for _ in "or")
    return batch_of(pieces, own, reference)


EXAMPLE = Example(random_batch=random_batch)  # no truth: it is what the policy has learned


def two_answers() -> RewardBatch:
    own = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0], [-1.0, -1.0, 9.0, 9.0, 9.0]])  # no token behind the last
    reference = torch.tensor([[-2.0, -2.0, -1.0, -4.5, -6.0], [-3.0, -1.5, 0.0, 0.0, 0.0]])
    return batch_of([("x", "y\n", "z", "\n", ""), ("u", "v")], own, reference)


def test_each_token_has_its_log_ratio_and_nothing_stands_behind_the_last() -> None:
    expected = torch.tensor([[1.0, 0.0, -2.0, 0.5, 1.0], [2.0, 0.5, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(ImplicitPrm(beta=0.5).score(two_answers()), 0.5 * expected)
    assert ImplicitPrm().beta == 0.05 and ImplicitPrm().granularity == "token"


def test_a_step_has_the_sum_of_its_tokens_at_its_end() -> None:
    reward, batch = ImplicitPrm(beta=1, separator="\n"), two_answers()
    assert reward.granularity == "segment" and "pieces" in reward.needs
    assert reward.ends(batch).tolist() == [[False, True, False, True, True], [False, True, False, False, False]]
    expected = torch.tensor([[0.0, 1.0, 0.0, -1.5, 1.0], [0.0, 2.5, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(reward.score(batch), expected)
    torch.testing.assert_close(reward.score(batch).sum(1), ImplicitPrm(beta=1).score(batch).sum(1))


def test_a_separator_of_several_tokens_ends_where_its_last_character_is() -> None:
    zeros = torch.zeros(1, 5)
    batch = batch_of([("a\n", "", "\nb\n\n", "c", "\n")], zeros, zeros)
    assert ImplicitPrm(separator="\n\n").ends(batch).tolist() == [[False, False, True, False, True]]


@pytest.mark.parametrize("beta", [0.05, 1.0])
def test_the_parts_of_the_best_policy_add_up_to_the_outcome_it_was_trained_on(beta: float) -> None:
    """Two tokens out of two each, pi = reference * exp(outcome / beta) / Z: the sums are outcome - beta log Z."""
    reference = torch.tensor([[0.6, 0.4], [0.3, 0.7]]).double()  # of the first token, and of the second whatever came
    outcome = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    joint = reference[0][:, None] * reference[1][None]
    tilted = joint * (outcome / beta).exp()
    z = tilted.sum()
    first = (tilted / z).sum(1)
    rows = [(a, b) for a in (0, 1) for b in (0, 1)]
    own = torch.stack([torch.stack([first[a].log(), (tilted[a, b] / z / first[a]).log()]) for a, b in rows])
    base = torch.stack([torch.stack([reference[0][a].log(), reference[1][b].log()]) for a, b in rows])
    found = ImplicitPrm(beta=beta).score(batch_of([("x", "y")] * 4, own, base)).sum(1)
    expected = [float(outcome[a, b]) - beta * math.log(z) for a, b in rows]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_settings_say_which_weights_are_read() -> None:
    assert ImplicitPrm(weights="sampled").needs == {"likelihoods.sampled", "likelihoods.reference"}
    message = "must not be the reference and separator not empty"
    with pytest.raises(ValueError, match=message):
        ImplicitPrm(weights="reference")
    with pytest.raises(ValueError, match=message):
        ImplicitPrm(separator="")
