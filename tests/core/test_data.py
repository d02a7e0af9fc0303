"""Joining and selecting what flows; every number worked out by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.core.data import DecisionBlock, Outputs, Prompt, Rollout, Scores, count_calls
from mmrl.core.keys import GroupKey
from mmrl.parsing.actions.action import Action


@dataclass(frozen=True)
class _Names:
    """A trace that remembers what it was joined from."""

    names: str

    @classmethod
    def join(cls, parts: "Sequence[_Names]") -> "_Names":
        return cls("+".join(part.names for part in parts))


def _rollout(name: str, draw: int, block: DecisionBlock, group: list[int]) -> Rollout:
    size = len(group)
    return Rollout(
        prompts=(Prompt(name),),
        keys=(GroupKey(0, 1, draw),),
        prompt=torch.zeros(size, dtype=torch.int64),
        group=torch.tensor(group),
        episode=torch.arange(size),
        turn=torch.full((size,), draw),
        outputs=Outputs(images=torch.full((size, 3, 1, 1), draw / 10), texts=(name,) * size),
        blocks=(block,),
        trace=_Names(name),
        num_calls=10 * draw,
    )


def _block(call: list[list[int]], edge: list[list[int]], weight: list[list[float]]) -> DecisionBlock:
    return DecisionBlock(torch.tensor(call), torch.tensor(edge), torch.tensor(weight))


FIRST = _rollout("a", 4, _block([[0, 1], [0, 2]], [[0, 1], [0, 2]], [[0.5, 1], [0.5, 1]]), [4, 4])
SECOND = _rollout("b", 5, _block([[0], [-1]], [[1], [-1]], [[1.0], [0.0]]), [5, 5])
THIRD = _rollout("c", 6, _block([[1, 0, -1]], [[0, 1, -1]], [[1.0, 1.0, 0.0]]), [6])


def test_join_shifts_calls_and_edges_by_the_parts_before_and_pads_with_nothing() -> None:
    block = Rollout.join([FIRST, SECOND, THIRD]).blocks[0]
    # calls: 3 + 1 + 2; edges: numbers 0..2, then 0..1 (0 unused), then 0..1
    assert block.call.tolist() == [[0, 1, -1], [0, 2, -1], [3, -1, -1], [-1, -1, -1], [5, 4, -1]]
    assert block.edge.tolist() == [[0, 1, -1], [0, 2, -1], [4, -1, -1], [-1, -1, -1], [5, 6, -1]]
    assert block.weight.tolist() == [[0.5, 1, 0], [0.5, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]]


def test_join_shifts_prompts_and_episodes_but_keeps_groups_and_turns() -> None:
    joined = Rollout.join([FIRST, SECOND, THIRD])
    assert joined.prompt.tolist() == [0, 0, 1, 1, 2]
    assert joined.episode.tolist() == [0, 1, 2, 3, 4]
    assert joined.group.tolist() == [4, 4, 5, 5, 6]
    assert joined.turn.tolist() == [4, 4, 5, 5, 6]
    assert joined.num_samples == 5


def test_join_puts_prompts_keys_outputs_and_traces_in_order() -> None:
    joined = Rollout.join([FIRST, SECOND, THIRD])
    assert [prompt.text for prompt in joined.prompts] == ["a", "b", "c"]
    assert [key.prompt_index for key in joined.keys] == [4, 5, 6]
    assert joined.outputs.texts == ("a", "a", "b", "b", "c")
    assert joined.outputs.images is not None
    assert joined.outputs.images[:, 0, 0, 0].mul(10).round().tolist() == [4, 4, 5, 5, 6]
    assert joined.trace == _Names("a+b+c")
    assert joined.num_calls == 150


def test_join_in_two_steps_is_join_in_one() -> None:
    once, twice = Rollout.join([FIRST, SECOND, THIRD]), Rollout.join([Rollout.join([FIRST, SECOND]), THIRD])
    for name in ("call", "edge", "weight"):
        assert getattr(once.blocks[0], name).tolist() == getattr(twice.blocks[0], name).tolist()
    assert once.prompt.tolist() == twice.prompt.tolist()
    assert once.episode.tolist() == twice.episode.tolist()


def test_join_of_one_changes_nothing() -> None:
    assert Rollout.join([FIRST]) is FIRST


def test_join_without_decisions_keeps_the_samples() -> None:
    none = torch.zeros(1, 0, dtype=torch.int64)
    empty = _rollout("d", 7, DecisionBlock(none, none, torch.zeros(1, 0)), [7])
    block = Rollout.join([empty, FIRST]).blocks[0]
    assert block.call.tolist() == [[-1, -1], [0, 1], [0, 2]]
    assert block.edge.tolist() == [[-1, -1], [0, 1], [0, 2]]


def test_calls_are_counted_by_their_numbers() -> None:
    assert count_calls(FIRST.blocks[0]) == 3
    assert count_calls(_block([[-1, -1]], [[-1, -1]], [[0, 0]])) == 0
    none = torch.zeros(2, 0, dtype=torch.int64)
    assert count_calls(DecisionBlock(none, none, torch.zeros(2, 0))) == 0


def test_outputs_are_selected_in_the_order_asked_for() -> None:
    outputs = Outputs(videos=torch.arange(3.0).view(3, 1, 1, 1, 1), texts=("x", "y", "z"))
    chosen = outputs.select(torch.tensor([2, 0]))
    assert chosen.texts == ("z", "x")
    assert chosen.videos is not None and chosen.videos.flatten().tolist() == [2, 0]
    assert chosen.images is None


def _scores(values: Tensor, weights: tuple[float, ...] = (1.0, 2.0)) -> Scores:
    size = len(values)
    return Scores(
        values,
        ("good", "short"),
        weights,
        torch.ones(size, dtype=torch.bool),
        group=torch.arange(size),
        episode=torch.arange(size) + 1,
        turn=torch.arange(size) + 2,
    )


def test_total_is_the_weighted_sum_and_a_watched_reward_may_be_nan() -> None:
    assert _scores(torch.tensor([[1.0, 2.0], [3.0, -1.0]])).total.tolist() == [5, 1]
    assert _scores(torch.tensor([[1.0, float("nan")]]), weights=(3.0, 0.0)).total.tolist() == [3]


def test_a_control_is_not_judged_and_has_not_failed() -> None:
    made = replace(
        _scores(torch.zeros(3, 2)),
        valid=torch.tensor([True, False, False]),
        is_control=torch.tensor([False, False, True]),
    )
    assert made.has_failed.tolist() == [False, True, False]


def test_scores_are_selected_and_joined_again() -> None:
    scores = _scores(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    last, first = scores.select(torch.tensor([2])), scores.select(torch.tensor([True, True, False]))
    joined = Scores.join([last, first])
    assert joined.values.tolist() == [[5, 6], [1, 2], [3, 4]]
    assert (joined.group.tolist(), joined.turn.tolist()) == ([2, 0, 1], [4, 2, 3])
    assert joined.episode.tolist() == [3, 4 + 1, 4 + 2], "the second part's episodes are others than the first part's"
    assert joined.names == ("good", "short")
    nothing = replace(scores.select(torch.zeros(0, dtype=torch.int64)), weights=(0.0, 0.0))
    assert Scores.join([nothing, scores]).weights == scores.weights, "a part without samples knows no weights"


def test_what_is_watched_of_answers_is_what_there_is() -> None:
    outputs = Outputs(
        num_tokens=torch.tensor([3, 5]),
        is_finished=torch.tensor([True, False]),
        actions=(Action("wait"), None),
    )
    watched = {name: values.tolist() for name, values in outputs.statistics().items()}
    assert watched == {"answers/tokens": [3, 5], "answers/finished": [1, 0], "answers/understood": [1, 0]}
    assert Outputs(texts=("a",)).statistics() == {}


def test_controls_are_not_watched() -> None:
    """Three episodes of 2, 1 and 3 turns; the second and the third are controls."""
    rollout = replace(
        _rollout("a", 4, DecisionBlock.none(6), [4] * 6),
        outputs=Outputs(
            num_tokens=torch.tensor([3, 5, 90, 70, 80, 60]),
            is_finished=torch.tensor([True, False, True, True, True, True]),
            outcomes=(None, "done", "failed", None, None, "turn_limit"),
        ),
        episode=torch.tensor([0, 0, 1, 2, 2, 2]),
        turn=torch.tensor([0, 1, 0, 0, 1, 2]),
        is_control=torch.tensor([False, False, True, True, True, True]),
    )
    watched = {name: values.tolist() for name, values in rollout.statistics().items()}
    assert watched == {
        "answers/tokens": [3, 5],
        "answers/finished": [1, 0],
        "episodes/turns": [2],
        "episodes/done": [1],
        "episodes/turn_limit": [0],
        "episodes/invalid_limit": [0],
        "episodes/failed": [0],
    }


def test_outputs_are_filled_part_by_part() -> None:
    rows = torch.arange(5.0)[:, None, None, None, None].expand(5, 2, 3, 4, 4)
    sound = torch.arange(5.0)[:, None, None].expand(5, 1, 7)
    whole = Outputs(videos=rows, fps=(8.0, 8.0, 9.0, 9.0, 10.0), audio=sound, audio_rate=(100,) * 5)
    parts = [whole.select(torch.tensor(part)) for part in ([0, 1], [2, 3], [4])]
    filled, joined = Outputs.filled(iter(parts), 5), Outputs.join(parts)
    for made in (filled, joined):
        assert made.videos is not None and torch.equal(made.videos, rows)
        assert made.audio is not None and torch.equal(made.audio, sound)
        assert (made.fps, made.audio_rate, made.images) == (whole.fps, whole.audio_rate, None)
    assert Outputs.filled(iter([whole]), 5).videos is whole.videos  # without a copy
    left = whole.without_videos()
    assert (left.videos, left.fps, left.audio, left.audio_rate) == (None,) * 4


def test_outputs_of_several_sizes_keep_each_sample_and_give_back_tensors_of_one_size() -> None:
    small, wide = torch.rand(2, 3, 4, 4), torch.rand(1, 3, 4, 6)
    given = torch.tensor([0, 1])
    joined = Outputs.join([Outputs(images=small, given=given), Outputs(images=wide, given=given[:1])])
    assert joined.images is None and joined.each is not None and len(joined.each) == 3
    again = Outputs.join([joined, Outputs(images=wide, given=given[1:])])
    assert [rows.tolist() for rows in again.rows_by_size()] == [[0, 1], [2, 3]]
    chosen = again.select(torch.tensor([3, 2]))
    assert chosen.each is None and chosen.images is not None and torch.equal(chosen.images, wide.repeat(2, 1, 1, 1))
    assert chosen.given is not None and chosen.given.tolist() == [1, 0]
    assert again.select(torch.tensor([2, 0])).each is not None and not again.statistics()
    same = Outputs.join([Outputs(images=small), Outputs(images=small)])
    assert same.each is None and same.images is not None and same.images.shape == (4, 3, 4, 4)


def test_a_joined_rollout_has_the_noise_levels_of_each_prompt_index() -> None:
    def part(index: int, levels: tuple[float, ...]) -> Rollout:
        zero = torch.zeros(1, dtype=torch.int64)
        known = {index: levels} if levels else {}
        outputs = Outputs(images=torch.zeros(1, 3, 1, 1))
        return Rollout((Prompt("a"),), (GroupKey(0, 0, index),), zero, zero + index, zero, zero, outputs,
                       (DecisionBlock.none(1),), _Names("a"), 0, levels=known)  # fmt: skip

    # of a group with offline and sampled members, those of the sampled ones
    joined = Rollout.join([part(0, (1.0, 0.5)), part(1, (0.9,)), part(0, ())])
    assert joined.levels == {0: (1.0, 0.5), 1: (0.9,)}
