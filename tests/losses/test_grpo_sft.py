"""GRPO with imitation: the cross-entropy of samples to imitate beside the terms of the others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.losses.grpo import Grpo
from mmrl.losses.grpo_sft import GrpoSft
from tests.parameters import in_one_test
from tests.ratios import ADVANTAGES, INSIDE, gradient, log_ratios, ragged

IMITATED = torch.tensor([False, True, False, True])
BATCH = replace(ragged(torch.where(IMITATED, 0.0, ADVANTAGES)), is_imitated=IMITATED)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_imitated_samples_have_the_gradient_of_cross_entropy_and_no_clip(weight: float) -> None:
    far = log_ratios(3.0)
    loss = GrpoSft(clip_low=0.2, clip_high=0.2, normalise="decision", imitation=weight)
    got, others = (
        gradient(loss, far, BATCH),
        gradient(Grpo(clip_low=0.2, clip_high=0.2, normalise="decision"), far, BATCH),
    )
    expected = torch.where(IMITATED[:, None], -weight * INSIDE / INSIDE.sum(), others)
    assert_close(got, expected.double())


def test_without_samples_to_imitate_it_is_grpo() -> None:
    """R-grpo_sft."""
    batch = ragged()
    assert torch.equal(
        gradient(GrpoSft(clip_high=0.2), log_ratios(), batch), gradient(Grpo(clip_high=0.2), log_ratios(), batch)
    )


@in_one_test(
    ("settings", "message"),
    [
        ({"imitation": 0.0}, "imitation must be above 0"),
        ({"imitate_at_most": 0}, "imitate_at_most must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GrpoSft(**settings)
