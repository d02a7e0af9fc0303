"""APA by hand and as a policy gradient at ratio 1."""

import pytest
from torch.testing import assert_close

from mmrl.core.contracts import OutputsByWeights
from mmrl.core.forward_outputs import TokenDecisions
from mmrl.losses.apa import Apa
from mmrl.losses.reinforce import Reinforce
from tests.losses.path_batches import batch_of, column, normal, step_gradient, step_loss


def test_each_decision_by_hand() -> None:
    """(0.5 - 1 / 2)^2 and (-1 + 3 / 2)^2: zero where the log-ratio is the advantage over the temperature."""
    result = Apa(temperature=2.0)((column([0.5, -1.0]),), batch_of([1.0, -3.0]))
    assert result.terms[:, 0].tolist() == [0.0, 0.25]


def test_at_ratio_one_it_is_reinforce() -> None:
    log_prob, batch = normal(0, 3, 2).requires_grad_(), batch_of([1.0, -0.5, 0.2], num_decisions=2)
    got = step_gradient(Apa(temperature=0.5), (log_prob - log_prob.detach(),), batch)
    assert_close(got, 2 / 0.5 * step_gradient(Reinforce(), (log_prob,), batch))


def test_it_is_measured_against_the_anchor() -> None:
    trained, old, reference = (TokenDecisions(normal(seed, 2, 3)) for seed in range(3))
    forward_outputs = OutputsByWeights(trained, old, reference)
    assert_close(Apa().measure(forward_outputs)[0], trained.values - reference.values)
    assert_close(Apa(anchor="old").measure(forward_outputs)[0], trained.values - old.values)
    assert Apa().needs == {"reference"} and Apa(anchor="old", kl_coef=0.1).needs == {"old", "reference"}
    loss = Apa(kl_coef=0.1, kl="k2")
    measures = loss.measure(forward_outputs)
    penalty = 0.1 * 0.5 * (trained.values - reference.values).square().mean()
    batch = batch_of([1.0, -0.5], num_decisions=3)
    assert_close(step_loss(loss, measures, batch), step_loss(Apa(), measures[:1], batch) + penalty)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"temperature must be above 0, got 0\.0"):
        Apa(temperature=0.0)
    with pytest.raises(ValueError, match="anchor must be one of old, reference, averaged"):
        Apa(anchor="trained")  # type: ignore[arg-type]
