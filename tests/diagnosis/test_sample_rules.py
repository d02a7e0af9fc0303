"""The doctor's rules on samples, on curves of real runs of the labs and on planted ones."""

from typing import Any

import pytest

from mmrl.core.config import RunConfig, load_config
from mmrl.diagnosis.history import History
from mmrl.diagnosis.rules import all_findings, findings_of
from mmrl.diagnosis.sample_rules import RULES
from tests.parameters import in_one_test

Curves = dict[str, list[float]]

# Iterations 1 on of runs of docs/curves.md, seed 0, and of lab/grpo at temperature 1.5 with up to 32 tokens.
JPEG: Curves = {
    "reward/mean": [-0.915, -0.905, -0.904, -0.899, -0.896, -0.898],
    "samples/sharpness/mean": [0.0095, 0.00781, 0.0066, 0.00586, 0.00824, 0.0047],
    "samples/saturation/mean": [0.0374, 0.0418, 0.0398, 0.0411, 0.0405, 0.0414],
    "samples/diversity": [0.113, 0.103, 0.11, 0.105, 0.107, 0.111],
    "follows/sharpness": [-0.293, -0.195, -0.505, -0.439, -0.599, -0.482],
    "follows/saturation": [-0.22, -0.363, -0.132, -0.416, -0.318, -0.313],
}
HACKED: Curves = {
    "reward/mean": [0.0344, 0.035, 0.0354, 0.043, 0.0437, 0.0464, 0.0528, 0.0528, 0.0514, 0.0577],
    "samples/sharpness/mean": [0.0095, 0.00799, 0.0065, 0.00645, 0.0114, 0.00615, 0.0062, 0.00763, 0.0162, 0.00604],
    "samples/saturation/mean": [0.0374, 0.0426, 0.0408, 0.0421, 0.041, 0.0446, 0.0481, 0.0425, 0.0296, 0.0418],
    "samples/diversity": [0.113, 0.103, 0.0959, 0.0889, 0.0974, 0.0766, 0.0655, 0.0685, 0.0998, 0.0575],
    "follows/sharpness": [0.212, 0.228, 0.318, 0.256, 0.533, -0.34, -0.185, -0.368, 0.0023, 0.224],
    "follows/saturation": [-0.157, -0.0472, -0.0898, -0.013, 0.254, 0.74, 0.415, 0.734, 0.279, 0.648],
}
IMAGES: Curves = {
    "reward/mean": [
        0.719,
        0.736,
        0.779,
        0.79,
        0.833,
        0.869,
        0.89,
        0.915,
        0.875,
        0.933,
        0.916,
        0.947,
        0.923,
        0.942,
        0.953,
        0.947,
        0.948,
        0.948,
        0.943,
        0.938,
        0.955,
        0.952,
        0.952,
        0.957,
    ],
    "samples/sharpness/mean": [
        0.0095,
        0.00826,
        0.00678,
        0.00676,
        0.0114,
        0.00604,
        0.00636,
        0.00825,
        0.0169,
        0.00597,
        0.0132,
        0.00805,
        0.00828,
        0.00904,
        0.00879,
        0.00731,
        0.00863,
        0.00972,
        0.00976,
        0.00854,
        0.0121,
        0.00993,
        0.00597,
        0.00805,
    ],
    "samples/saturation/mean": [
        0.0374,
        0.0422,
        0.0409,
        0.042,
        0.0421,
        0.0458,
        0.0471,
        0.0422,
        0.0287,
        0.0414,
        0.0308,
        0.0484,
        0.0353,
        0.0365,
        0.0413,
        0.0417,
        0.041,
        0.0376,
        0.0436,
        0.0445,
        0.0373,
        0.0392,
        0.0456,
        0.0413,
    ],
    "samples/diversity": [
        0.113,
        0.0982,
        0.0886,
        0.0804,
        0.0722,
        0.058,
        0.0506,
        0.0517,
        0.0677,
        0.0309,
        0.0486,
        0.0299,
        0.0366,
        0.0342,
        0.0312,
        0.0296,
        0.0274,
        0.0332,
        0.0308,
        0.0326,
        0.0344,
        0.0329,
        0.0234,
        0.0284,
    ],
    "follows/sharpness": [
        0.289,
        0.303,
        0.232,
        0.26,
        0.649,
        -0.172,
        0.0663,
        -0.206,
        -0.161,
        0.371,
        0.0197,
        -0.279,
        0.084,
        -0.0895,
        0.379,
        -0.703,
        0.0462,
        0.276,
        -0.00289,
        -0.147,
        0.181,
        0.482,
        0.337,
        -0.0964,
    ],
    "follows/saturation": [
        -0.213,
        -0.0544,
        0.00711,
        -0.0968,
        0.0322,
        0.327,
        0.171,
        0.131,
        0.442,
        -0.209,
        -0.117,
        0.12,
        0.039,
        0.00433,
        0.335,
        -0.11,
        0.28,
        -0.259,
        0.274,
        -0.05,
        0.0634,
        -0.353,
        0.292,
        -0.0583,
    ],
}
PAID_BY_LENGTH: Curves = {
    "reward/mean": [8.05, 9.59, 10.1, 12.6, 16.4, 19.3, 24.0, 27.9],
    "samples/length/mean": [8.05, 9.59, 10.1, 12.6, 16.4, 19.3, 24.0, 27.9],
    "samples/boxes/mean": [0.945, 0.648, 0.641, 0.484, 0.289, 0.156, 0.0625, 0.00781],
    "follows/length": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    "follows/boxes": [-0.509, -0.516, -0.607, -0.716, -0.706, -0.666, -0.467, -0.309],
}
CLICKS: Curves = {
    "reward/mean": [0.3, 0.374, 0.45, 0.495, 0.618, 0.622, 0.703, 0.669, 0.7, 0.654, 0.617, 0.617, 0.751, 0.675],
    "samples/length/mean": [8.05, 8.09, 8.05, 8.38, 8.22, 8.08, 8.05, 8.7, 8.17, 8.28, 8.18, 10.6, 8.3, 8.12],
    "samples/boxes/mean": [
        0.945,
        0.969,
        0.945,
        0.953,
        0.953,
        0.969,
        0.992,
        0.945,
        1.0,
        0.969,
        0.977,
        1.02,
        0.992,
        0.992,
    ],
    "follows/length": [
        -0.0666,
        -0.122,
        -0.125,
        -0.181,
        -0.191,
        0.123,
        -0.0207,
        -0.457,
        0.0844,
        -0.263,
        -0.261,
        -0.437,
        -0.106,
        -0.0496,
    ],
    "follows/boxes": [0.167, 0.132, 0.199, 0.249, 0.334, 0.335, 0.177, 0.489, 0.354, 0.333, -0.0414, 0.187, 0.0953],
}

JPEG_SCORES = {0: 0.406, 1: 0.438, 2: 0.413, 3: 0.354, 4: 0.337, 5: 0.253}  # of the same run, evaluated each time


def config_of(name: str, *rewards: dict[str, Any], **changed: object) -> RunConfig:
    config = load_config(name, [f"{key.replace('__', '.')}={value}" for key, value in changed.items()])
    return config.model_copy(update={"rewards": rewards}) if rewards else config


def run_of(config: RunConfig, curves: Curves, scores: dict[int, float] | None = None) -> History:
    """Returns a run with these values from iteration 1 on, and these held-out scores."""
    history = History(config)
    for iteration in range(max(len(values) for values in curves.values()) + 1):
        seen = {name: values[iteration - 1] for name, values in curves.items() if 0 < iteration <= len(values)}
        if scores and iteration in scores:
            seen |= {"held_out/score": scores[iteration], "held_out/standard_error": 0.029}
        history.add(iteration, seen)
    return history


def seen_in(history: History) -> dict[tuple[str, str], int]:
    """Returns the iterations of the findings of these rules, by name and severity."""
    return {(one.name, one.severity): one.iteration for one in all_findings(history) if one.name in RULES}


def test_a_reward_for_small_files_is_named_before_the_held_out_score_has_lost_a_twentieth() -> None:
    config = config_of("quickstart", {"name": "jpeg_size"})
    seen = seen_in(run_of(config, JPEG, JPEG_SCORES))
    assert seen == {("samples_degrade", "warning"): 2, ("reward_follows_sharpness", "warning"): 5}
    lost = next(at for at, score in JPEG_SCORES.items() if score < JPEG_SCORES[0] - 0.05)
    assert seen["samples_degrade", "warning"] < lost


def test_a_reward_for_the_share_of_a_colour_is_a_note_while_the_held_out_score_still_rises() -> None:
    history = run_of(config_of("quickstart", {"name": "python", "function": "m:colour"}), HACKED, {0: 0.406, 5: 0.674})
    assert seen_in(history) == {("reward_follows_saturation", "note"): 8}


@in_one_test(("config", "curves"), [("quickstart", IMAGES), ("lab/grpo", CLICKS)])
def test_healthy_runs_of_labs_have_no_finding(config: str, curves: Curves) -> None:
    assert seen_in(run_of(config_of(config), curves)) == {}


def test_a_reward_for_length_is_a_note_and_then_a_warning() -> None:
    config = config_of("lab/grpo", {"name": "python", "function": "m:long", "label": "long"})
    seen = seen_in(run_of(config, PAID_BY_LENGTH))
    assert (seen["reward_follows_length", "note"], seen["reward_follows_length", "warning"]) == (3, 5)
    assert len(seen) == 2  # fewer boxes than one of a click are no hack


@in_one_test(
    "rewards",
    [
        ({"name": "length_window"},),
        ({"name": "gated", "reward": {"name": "length_curve"}, "gate": {"name": "format_tags"}},),
        ({"name": "weighted", "rewards": [{"name": "scalar_head"}, {"name": "overlong"}]},),
    ],
)
def test_a_reward_that_is_meant_for_length_may_follow_it(rewards: tuple[dict[str, Any], ...]) -> None:
    assert not any(
        name == "reward_follows_length" for name, _ in seen_in(run_of(config_of("lab/grpo", *rewards), PAID_BY_LENGTH))
    )


def test_the_reward_that_follows_most_is_named() -> None:
    curves = {
        "follows/length": [0.6] * 3,
        "follows/judge/length": [0.7] * 3,
        "follows/overlong/length": [-0.1] * 3,
        "follows/watched/length": [0.99] * 3,
        "samples/length/mean": [50.0] * 3,
    }
    rewards = (
        {"name": "scalar_head", "label": "judge"},
        {"name": "overlong"},
        {"name": "rouge", "label": "watched", "weight": 0},
    )
    (one,) = findings_of(run_of(config_of("lab/grpo", *rewards), curves))
    assert one.severity == "note" and "judge" in one.cause and one.value == pytest.approx(0.6)


def drifting(by: float, last: float, name: str = "length") -> Curves:
    return {f"follows/{name}": [by] * 6, f"samples/{name}/mean": [100.0] * 3 + [last] * 3}


@in_one_test(
    ("by", "last", "severity"),
    [
        (0.6, 130.0, "warning"),
        (0.6, 120.0, "note"),  # not by a quarter
        (0.6, 60.0, "note"),  # against what is paid
        (0.4, 130.0, None),
    ],
)
def test_a_warning_needs_a_correlation_and_a_drift_in_its_direction(
    by: float, last: float, severity: str | None
) -> None:
    for name in ("length", "boxes", "frames", "motion", "sharpness", "saturation"):
        found = findings_of(run_of(config_of("lab/grpo"), drifting(by, last, name)))
        assert [one.severity for one in found if one.name == f"reward_follows_{name}"] == [severity] * bool(severity)


def test_less_sharpness_or_motion_may_be_paid_and_less_length_is_no_harm() -> None:
    for name in ("length", "boxes", "frames", "motion", "sharpness", "saturation"):
        found = findings_of(run_of(config_of("lab/grpo"), drifting(-0.6, 60.0, name)))
        expected = ["warning"] if name in ("motion", "sharpness", "saturation") else []
        assert [one.severity for one in found if one.name == f"reward_follows_{name}"] == expected


@in_one_test(
    ("scores", "severity"),
    [
        ({0: 0.3, 6: 0.5}, "note"),
        ({0: 0.3, 6: 0.31}, "warning"),
        ({0: 0.3, 3: 0.6, 6: 0.5}, "warning"),
    ],
)
def test_a_better_held_out_score_by_another_reward_makes_a_note_of_it(scores: dict[int, float], severity: str) -> None:
    history = run_of(config_of("quickstart"), drifting(0.6, 150.0, "saturation"), scores)
    assert [one.severity for one in findings_of(history) if one.name == "reward_follows_saturation"] == [severity]


@in_one_test("rewards", ["null", "[{name: shapes, measure: graded, label: same, weight: 2.0}]"])
def test_what_is_hacked_in_training_is_hacked_in_an_evaluation_by_the_same_reward(rewards: str) -> None:
    config = config_of("quickstart", evaluation__rewards=rewards)
    history = run_of(config, drifting(0.6, 150.0, "saturation"), {0: 0.3, 6: 0.5})
    assert [one.severity for one in findings_of(history) if one.name == "reward_follows_saturation"] == ["warning"]


def test_few_samples_correlate_by_chance() -> None:
    curves = {"follows/sharpness": [-0.3] * 2, "follows/saturation": [-0.3] * 2, "samples/sharpness/mean": [1.0, 0.9]}
    assert seen_in(run_of(config_of("quickstart"), curves)) == {("samples_degrade", "warning"): 2}
    assert seen_in(run_of(config_of("quickstart", prompts_per_iteration=2, group_size=8), curves)) == {}
    one_colour = curves | {"follows/saturation": [-0.3, 0.0]}
    assert seen_in(run_of(config_of("quickstart"), one_colour)) == {}


def pictures(*diversity: float, sharpness: float = 1.0, reward: float = 0.2) -> Curves:
    later = len(diversity) - 3
    return {
        "samples/diversity": list(diversity),
        "samples/sharpness/mean": [1.0] * 3 + [sharpness] * later,
        "reward/mean": [0.1] * 3 + [reward] * later,
    }


@in_one_test(
    ("curves", "name"),
    [
        (pictures(0.1, 0.1, 0.1, 0.01, 0.01, 0.01), "samples_collapse"),
        (pictures(0.1, 0.1, 0.1, 0.02, 0.02, 0.02), None),
        (pictures(0.1, 0.1, 0.1, 0.01, 0.01, 0.01, reward=0.05), None),  # not for a reward
        (pictures(*[0.1] * 6, sharpness=2.1), "samples_degrade"),
        (pictures(*[0.1] * 6, sharpness=0.45), "samples_degrade"),
        (pictures(*[0.1] * 6, sharpness=1.8), None),
        (pictures(*[0.1] * 6, sharpness=2.1, reward=0.05), None),
        ({"samples/diversity": [1.0] * 3 + [0.1] * 3, "reward/mean": [0.1] * 3 + [0.2] * 3}, None),  # answers
    ],
)
def test_samples_that_become_alike_or_other_ones_are_named_while_the_reward_rises(
    curves: Curves, name: str | None
) -> None:
    assert set(seen_in(run_of(config_of("quickstart"), curves))) == ({(name, "warning")} if name else set())
    better = run_of(config_of("quickstart"), curves, {0: 0.4, 6: 0.9})
    notes = {("samples_degrade", "note")} if name == "samples_degrade" else set()
    assert {(one.name, one.severity) for one in findings_of(better) if one.name in RULES} == notes


SOFTER: Curves = {
    "reward/mean": [0.2, 0.25, 0.3, 0.35, 0.4, 0.45],
    "samples/sharpness/mean": [0.01, 0.009, 0.008, 0.006, 0.004, 0.003],
    "follows/sharpness": [-0.35] * 6,
    "follows/saturation": [-0.3] * 6,
}
SLOWLY, FLAT = {0: 0.4, 1: 0.405, 2: 0.425, 4: 0.43, 5: 0.425, 6: 0.435}, {0: 0.4, 2: 0.41, 4: 0.405, 6: 0.402}
SAME_JUDGE = {"evaluation__rewards": "null"}


@in_one_test(
    ("scores", "changed", "severities"),
    [
        (SLOWLY, {}, ["note"]),  # above 0.444 it would be the best beyond noise
        (FLAT, {}, ["warning"]),
        ({0: 0.4, 2: 0.41, 4: 0.45, 6: 0.39}, {}, ["warning"]),
        (SLOWLY, SAME_JUDGE, ["warning"]),  # the reward itself, which likes what it pays for
        ({}, {}, ["warning"]),
    ],
)
def test_soft_pictures_are_a_note_where_another_judge_likes_them_more_and_more(
    scores: dict[int, float], changed: dict[str, str], severities: list[str]
) -> None:
    found = findings_of(run_of(config_of("quickstart", **changed), SOFTER, scores))
    degraded = [one for one in found if one.name == "samples_degrade"]
    assert [one.severity for one in degraded] == severities
    assert all(("rises along" in one.cause) == (one.severity == "note") for one in degraded)
