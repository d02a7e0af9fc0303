"""What samples are like, and which rewards follow it: each number against SciPy, NumPy or a slow loop."""

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmrl.core.data import Outputs, Prompt, Rollout, Scores
from mmrl.core.keys import GroupKey
from mmrl.scoring.properties import (
    distances,
    join_properties,
    properties_of,
    property_metrics,
    within_groups,
)
from mmrl.scoring.scorer import Judgement


def rollout_of(outputs: Outputs, group: list[int], turn: list[int] | None = None) -> Rollout:
    number = torch.arange(len(group))
    return Rollout(
        prompts=(Prompt("p"),),
        keys=(GroupKey(0, 0, 0),),
        prompt=torch.zeros_like(number),
        group=torch.tensor(group),
        episode=number,
        turn=torch.zeros_like(number) if turn is None else torch.tensor(turn),
        outputs=outputs,
        blocks=(),
        trace=None,
        num_calls=0,
    )


def pictures(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def grey(picture: Tensor) -> np.ndarray:
    red, green, blue = picture.double().numpy()
    return np.asarray(0.299 * red + 0.587 * green + 0.114 * blue)


def test_the_looks_of_images_are_those_of_scipy_and_numpy() -> None:
    images = pictures(3, 3, 40, 24)
    measured = properties_of(rollout_of(Outputs(images=images), [0, 0, 1]))
    for row, image in enumerate(images):
        assert measured["sharpness"][row] == pytest.approx(ndimage.laplace(grey(image)).var(), rel=1e-5)
        assert measured["brightness"][row] == pytest.approx(grey(image).mean(), rel=1e-5)
        assert measured["saturation"][row] == pytest.approx(np.ptp(image.numpy(), axis=0).mean(), rel=1e-5)
    assert set(measured) == {"sharpness", "brightness", "saturation", "diversity"}


def test_large_images_are_measured_at_128_pixels_a_side() -> None:
    large = pictures(2, 3, 128, 256)
    small = large.unflatten(2, (64, 2)).unflatten(4, (128, 2)).mean((3, 5))  # the mean of each 2 x 2 pixels
    one = properties_of(rollout_of(Outputs(images=large), [0, 0]))
    two = properties_of(rollout_of(Outputs(images=small), [0, 0]))
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert values.tolist() == pytest.approx(two[name].tolist(), rel=1e-5)


def test_bfloat16_images_and_images_of_several_sizes_have_properties() -> None:
    one, two = pictures(1, 3, 32, 32), pictures(1, 3, 200, 20, seed=1)
    each = Outputs.join([Outputs(images=one), Outputs(images=two)])
    measured = properties_of(rollout_of(each, [0, 0]))
    for row, alone in enumerate((one, two)):
        expected = properties_of(rollout_of(Outputs(images=alone), [0]))["sharpness"]
        assert measured["sharpness"][row] == expected[0]
    assert measured["diversity"].isfinite().all()
    rounded = properties_of(rollout_of(Outputs(images=one.bfloat16()), [0]))
    assert rounded["sharpness"].dtype == torch.float32 and rounded["diversity"].isnan().all()


def test_motion_is_the_mean_difference_of_neighbouring_frames() -> None:
    videos = pictures(2, 8, 3, 12, 20)
    measured = properties_of(rollout_of(Outputs(videos=videos), [0, 0]))
    for row, video in enumerate(videos.numpy()):
        assert measured["motion"][row] == pytest.approx(np.abs(np.diff(video, axis=0)).mean(), rel=1e-5)
        sharp = np.mean([ndimage.laplace(grey(torch.from_numpy(frame))).var() for frame in video])
        assert measured["sharpness"][row] == pytest.approx(sharp, rel=1e-5)
        assert measured["saturation"][row] == pytest.approx(np.ptp(video, axis=1).mean(), rel=1e-5)
    assert measured["frames"].tolist() == [8, 8]


def test_of_a_long_video_eight_pairs_of_frames_are_measured_ends_included() -> None:
    video = pictures(1, 90, 3, 8, 8)
    firsts = np.linspace(0, 88, 8).round().astype(int)
    expected = np.mean([float((video[0, n + 1] - video[0, n]).abs().mean()) for n in firsts])
    measured = properties_of(rollout_of(Outputs(videos=video), [0]))
    assert measured["motion"][0] == pytest.approx(expected, rel=1e-5)


class Largest(TorchFunctionMode):
    """The number of elements of the largest tensor that a function makes."""

    elements = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.elements = max(self.elements, made.numel())
        return made


def test_large_videos_are_measured_by_eight_frames_at_once_with_the_same_numbers() -> None:
    videos = pictures(2, 3, 3, 160, 288).bfloat16().repeat(1, 9, 1, 1, 1)
    with Largest() as largest:
        measured = properties_of(rollout_of(Outputs(videos=videos), [0, 0]))
    assert largest.elements == 8 * videos[0, 0].numel()
    small = torch.nn.functional.interpolate(videos.flatten(0, 1).float(), (71, 128), mode="area").unflatten(0, (2, 27))
    expected = properties_of(rollout_of(Outputs(videos=small), [0, 0]))
    assert measured.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(measured[name], values, rtol=1e-6, atol=0, equal_nan=True)


def test_a_video_of_one_frame_has_no_motion() -> None:
    measured = properties_of(rollout_of(Outputs(videos=pictures(2, 1, 3, 8, 8)), [0, 0]))
    assert "motion" not in measured and measured["diversity"][0] > 0


def test_a_video_that_stands_still_has_no_motion_and_one_that_flickers_has_all() -> None:
    still, flicker = torch.full((1, 6, 3, 4, 4), 0.5), torch.zeros(1, 6, 3, 4, 4)
    flicker[:, ::2] = 1
    measured = properties_of(rollout_of(Outputs(videos=torch.cat([still, flicker])), [0, 0]))
    assert measured["motion"].tolist() == [0, 1]


def test_diversity_is_the_mean_distance_of_the_pairs_of_a_group() -> None:
    images = pictures(7, 3, 16, 16)  # as large as a thumbnail
    measured = properties_of(rollout_of(Outputs(images=images), [5, 5, 5, 2, 2, 9, 5]))["diversity"]
    pairs = [math.sqrt(float((images[a] - images[b]).square().mean())) for a, b in combinations((0, 1, 2, 6), 2)]
    assert float(measured[[0, 1, 2, 6]].mean()) == pytest.approx(np.mean(pairs), rel=1e-5)
    assert measured[3] == measured[4] > 0 and measured[5].isnan()


def test_controls_and_other_turns_are_no_members() -> None:
    images = torch.cat([torch.zeros(2, 3, 16, 16), torch.ones(2, 3, 16, 16)])
    rollout = rollout_of(Outputs(images=images), [0, 0, 0, 0], turn=[0, 0, 1, 1])
    assert properties_of(rollout)["diversity"].tolist() == [0, 0, 0, 0]
    rollout = replace(rollout, turn=torch.zeros(4, dtype=torch.int64), is_control=torch.tensor([False] * 3 + [True]))
    assert properties_of(rollout)["diversity"][:3].tolist() == pytest.approx([0.5, 0.5, 1.0])


def test_large_groups_of_equal_pictures_are_exactly_alike() -> None:
    alike = pictures(1, 3 * 256).expand(40, -1).contiguous()
    assert distances(alike, [torch.arange(40)]).abs().max() == 0


def test_answers_have_length_lines_boxes_and_a_share_of_distinct_ones() -> None:
    texts = ("one (3, 4) and [1, 2, 3, 4]\n\nmore", "no box", "no box ", '{"point_2d": [7, 8]}')
    measured = properties_of(rollout_of(Outputs(texts=texts), [0, 0, 0, 1]))
    assert measured["length"].tolist() == [9, 2, 2, 3]  # words, where tokens are unknown
    assert measured["lines"].tolist() == [2, 1, 1, 1]
    assert measured["boxes"].tolist() == [2, 0, 0, 1]
    assert measured["diversity"][:3].tolist() == pytest.approx([2 / 3] * 3) and measured["diversity"][3].isnan()
    counted = Outputs(texts=texts, num_tokens=torch.tensor([9, 5, 5, 12]))
    assert properties_of(rollout_of(counted, [0, 0, 0, 1]))["length"].tolist() == [9, 5, 5, 12]


def test_an_answer_that_is_too_long_to_look_at_has_no_number_of_boxes() -> None:
    measured = properties_of(rollout_of(Outputs(texts=(" " * 1_000_001, "")), [0, 0]))
    assert measured["boxes"][0].isnan() and measured["boxes"][1] == 0


def test_samples_without_outputs_have_no_properties() -> None:
    assert properties_of(rollout_of(Outputs(), [])) == {}
    assert properties_of(rollout_of(Outputs(images=torch.zeros(0, 3, 4, 4)), [])) == {}
    assert properties_of(rollout_of(Outputs(), [0, 0])) == {}


def test_joined_properties_are_nan_where_a_part_has_none() -> None:
    joined = join_properties([{"a": torch.ones(2)}, {}, {"b": torch.zeros(1)}], [2, 3, 1])
    torch.testing.assert_close(joined["a"], torch.tensor([1, 1] + [math.nan] * 4), equal_nan=True)
    torch.testing.assert_close(joined["b"], torch.tensor([math.nan] * 5 + [0]), equal_nan=True)


def some_scores(values: Tensor, group: Tensor, valid: Tensor | None = None) -> Scores:
    number = torch.arange(len(group))
    valid = torch.ones_like(group, dtype=torch.bool) if valid is None else valid
    names, weights = ("fit", "look"), (2.0, -1.0)
    return Scores(values, names, weights, valid, group, episode=number, turn=torch.zeros_like(number))


def test_judgements_join_with_their_properties() -> None:
    scores = some_scores(torch.zeros(2, 2), torch.tensor([0, 0]))
    one = Judgement(scores, (None, None), (0.0, 0.0), {"length": torch.tensor([1.0, 2.0])})
    joined = Judgement.join([one, Judgement(scores, (None, None), (0.0, 0.0))])
    torch.testing.assert_close(joined.properties["length"], torch.tensor([1, 2, math.nan, math.nan]), equal_nan=True)


def test_judgements_join_and_are_selected_with_the_formats_of_answers() -> None:
    scores = some_scores(torch.zeros(2, 2), torch.tensor([0, 0]))
    length = {"length": torch.tensor([1.0, 2.0])}
    one = Judgement(scores, (None, "it broke"), (1.0, 2.0), length, ("prose", "box"))
    joined = Judgement.join([Judgement(scores, (None, None), (0.0, 0.0)), one])
    assert joined.formats == (None, None, "prose", "box")
    selected = joined.select(torch.tensor([3, 0, 2]))
    assert selected.formats == ("box", None, "prose") and selected.properties["length"][[0, 2]].tolist() == [2.0, 1.0]
    assert len(selected.scores.group) == 3 and selected.first_failures == (None, "it broke")
    assert Judgement(scores, (None, None), (0.0, 0.0)).select(torch.tensor([1])).formats == ()


def centred(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    return np.asarray([value - values[group == own].mean() for value, own in zip(values, group, strict=True)])


def test_a_correlation_is_scipys_of_values_centred_by_their_groups() -> None:
    values = pictures(40, 2, seed=3) + torch.arange(40)[:, None] // 8  # prompts differ by far more than samples
    group = torch.arange(40) // 8 * 7
    length = pictures(40, seed=4) - 10 * group + 0.8 * values[:, 0]
    metrics = property_metrics(some_scores(values, group), {"length": length})
    total = 2 * values[:, 0] - values[:, 1]
    for name, column in {"follows/fit/length": values[:, 0], "follows/look/length": values[:, 1]}.items():
        expected = stats.pearsonr(centred(column.numpy(), group.numpy()), centred(length.numpy(), group.numpy()))
        assert metrics[name] == pytest.approx(expected.statistic, abs=1e-4)
    expected = stats.pearsonr(centred(total.numpy(), group.numpy()), centred(length.numpy(), group.numpy()))
    assert metrics["follows/length"] == pytest.approx(expected.statistic, abs=1e-4)
    assert metrics["samples/length/mean"] == pytest.approx(float(length.mean()), rel=1e-5)
    assert metrics["samples/length/std"] == pytest.approx(float(length.std(correction=0)), rel=1e-5)


def test_prompts_do_not_confound_a_correlation() -> None:
    group = torch.arange(4).repeat_interleave(4)
    within = torch.tensor([0.0, 1, 0, 1]).repeat(4), torch.tensor([0.0, 0, 1, 1]).repeat(4)
    assert stats.pearsonr(within[0] + 9 * group, within[1] + 9 * group).statistic > 0.99
    counted = torch.ones(16, dtype=torch.bool)
    assert within_groups(within[0] + 9 * group, within[1] + 9 * group, group, counted) == pytest.approx(0)


def test_there_is_no_correlation_without_spread_or_of_few_samples() -> None:
    group, counted = torch.zeros(10, dtype=torch.int64), torch.ones(10, dtype=torch.bool)
    ramp = torch.arange(10.0)
    assert within_groups(ramp, -ramp, group, counted) == pytest.approx(-1)
    assert within_groups(ramp, torch.full((10,), 0.1), group, counted) is None
    assert within_groups(ramp, ramp, torch.arange(10), counted) is None  # groups of one
    assert within_groups(ramp, ramp, group, ramp > 2.5) is None
    assert within_groups(ramp, ramp, group, ramp > 1.5) == pytest.approx(1)


def test_samples_that_cannot_be_judged_and_those_without_a_property_do_not_count() -> None:
    ramp = torch.arange(12.0)
    values = torch.stack([ramp, -ramp], 1)
    values[0, 0], valid = math.nan, ramp > 0
    length = ramp.clone()
    length[1], length[0] = math.nan, 1000.0
    metrics = property_metrics(some_scores(values, torch.zeros(12, dtype=torch.int64), valid), {"length": length})
    assert metrics["follows/fit/length"] == pytest.approx(1) and metrics["follows/length"] == pytest.approx(1)
    watched = stats.pearsonr(
        [0, *range(-2, -12, -1)], [1000, *range(2, 12)]
    )  # the first sample, which `fit` lacks, too
    assert metrics["follows/look/length"] == pytest.approx(watched.statistic)
    assert metrics["samples/length/mean"] == pytest.approx((1000 + sum(range(2, 12))) / 11)


def test_diversity_is_a_number_of_its_own_that_nothing_follows() -> None:
    scores = some_scores(pictures(16, 2), torch.arange(16) // 8)
    metrics = property_metrics(scores, {"diversity": torch.tensor([0.2] * 8 + [0.4] * 8)})
    assert metrics == {"samples/diversity": pytest.approx(0.3)}
