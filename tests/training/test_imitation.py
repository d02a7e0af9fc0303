"""Which further samples are imitated, and that they reach the update and nothing else."""

from dataclasses import replace
from typing import Any, cast

import torch

from mmrl.advantages.grpo import Grpo as GrpoAdvantage
from mmrl.core.contracts import LossBatch
from mmrl.core.data import DecisionBlock, Rollout, Scores
from mmrl.core.keys import GroupKey
from mmrl.losses.grpo import Grpo
from mmrl.losses.grpo_sft import GrpoSft
from mmrl.training.imitation import with_imitated
from mmrl.training.member_sampling import member_importance
from mmrl.training.minibatches import batch_of
from mmrl.training.processes import Processes
from mmrl.training.replay import _joined
from mmrl.training.rollouts import Collected
from mmrl.training.update import select_groups
from tests.advantages.scored import NAN

# two groups: two answers each, then three, and two, that went on; the last of all has no decisions
VALUES = [1.0, 0.0, 1.0, 0.2, 0.9, 1.0, 0.0, NAN, 0.8, 1.0]
CONTROL = torch.tensor([False, False, True, True, True, False, False, True, True, True])
GROUP = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])


def _collected() -> Collected:
    values, numbers = torch.tensor(VALUES)[:, None], torch.arange(10)
    valid = ~CONTROL & ~values[:, 0].isnan()
    prompts = torch.tensor([GroupKey(0, 0, int(n)).prompt_index for n in GROUP])
    scores = Scores(values, ("a",), (1.0,), valid, prompts, numbers, 0 * numbers, is_control=CONTROL)
    edge = torch.arange(20).view(10, 2)
    edge[9] = -1
    block = DecisionBlock(edge, edge, (edge >= 0).float())
    rollout = cast(Rollout, cast(Any, _Rolled)(block))
    return Collected(rollout, scores, numbers, [0, 1], None, 0, {})


class _Rolled:
    def __init__(self, block: DecisionBlock) -> None:
        self.blocks = (block,)


def _batch(loss: Any) -> tuple[LossBatch, dict[str, float]]:
    collected = _collected()
    batch, metrics = with_imitated(
        collected, batch_of(collected, GrpoAdvantage(), torch.device("cpu")), loss, Processes()
    )
    assert batch is not None
    return batch, metrics


def test_the_first_right_ones_of_each_group_are_imitated() -> None:
    batch, metrics = _batch(GrpoSft(imitate_at_most=1))
    assert batch.is_imitated is not None and batch.is_imitated.nonzero()[:, 0].tolist() == [2, 8]
    assert metrics == {"imitation/candidates": 5.0, "imitation/right": 3.0, "imitation/samples": 2.0}
    assert batch.weight[:, 0].tolist() == [1, 1, 1, 0, 0, 1, 1, 0, 1, 0]
    assert _batch(GrpoSft())[1]["imitation/samples"] == 3.0


def test_of_a_group_that_is_dropped_nothing_is_imitated() -> None:
    dropped = replace(_collected(), kept=[0])
    batch, metrics = with_imitated(
        dropped, batch_of(dropped, GrpoAdvantage(), torch.device("cpu")), GrpoSft(), Processes()
    )
    assert batch is not None and batch.is_imitated is not None
    assert batch.is_imitated.nonzero()[:, 0].tolist() == [2, 4]
    assert metrics == {"imitation/candidates": 5.0, "imitation/right": 2.0, "imitation/samples": 2.0}


def test_a_small_advantage_leaves_out_no_sample_to_imitate() -> None:
    batch, _ = _batch(GrpoSft())
    assert batch.is_imitated is not None
    for number in range(20):
        importance = member_importance(batch, 0.5, GroupKey(0, number, 0))
        assert importance is not None and importance[batch.is_imitated].flatten().tolist() == [1.0] * 3


def test_they_change_no_advantage_and_have_none() -> None:
    batch, _ = _batch(GrpoSft())
    assert (batch.advantages[CONTROL] == 0).all()
    assert torch.allclose(batch.advantages[:2, 0], torch.tensor([1.0, -1.0]), atol=1e-3)


def test_another_loss_imitates_nothing() -> None:
    batch, metrics = _batch(Grpo())
    assert batch.is_imitated is None and metrics == {}
    assert (batch.weight[CONTROL] == 0).all()


def test_they_stay_with_their_group_in_a_minibatch_and_beside_replayed_samples() -> None:
    batch, _ = _batch(GrpoSft())
    rows, part = select_groups(batch, [1])
    assert rows.tolist() == [5, 6, 8] and part is not None and part.is_imitated is not None
    whole = _joined([batch, replace(batch, is_imitated=None)])
    assert whole.is_imitated is not None and whole.is_imitated.nonzero()[:, 0].tolist() == [2, 4, 8]


def test_a_process_without_samples_takes_part() -> None:
    nobody = replace(_collected(), rollout=None, local_rows=torch.zeros(0, dtype=torch.int64))
    assert with_imitated(nobody, None, GrpoSft(), Processes())[1]["imitation/samples"] == 0
