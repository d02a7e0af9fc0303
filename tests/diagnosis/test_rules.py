"""The doctor's rules on real runs of the labs: docs/curves/runs.json has the curves of healthy and of sick ones."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from mmrl.core.config import RunConfig, load_config
from mmrl.diagnosis.history import History
from mmrl.diagnosis.rules import RULES, all_findings, findings_of
from tests.parameters import in_one_test

RUNS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "curves" / "runs.json").read_text())


def recorded(name: str) -> History:
    """Returns what was kept of a run of docs/curves.md."""
    _, _, config, *overrides = shlex.split(RUNS[name]["command"])
    plain = [one for one in overrides if not one.startswith(("rewards=", "prompts.train="))]
    curves = RUNS[name]["curves"]
    values = {metric: list(zip(*pair.values(), strict=True)) for metric, pair in curves.items()}
    return History(load_config(config, plain), values, max(at for pairs in values.values() for at, _ in pairs))


def names_of(history: History, severity: str = "warning") -> set[str]:
    return {one.name for one in all_findings(history) if one.severity == severity}


@in_one_test("name", ["clicks", "pulled", "micro", "images", "clip"])
def test_a_healthy_run_of_a_lab_has_no_warning(name: str) -> None:
    assert names_of(recorded(name)) == set()


@in_one_test(
    ("name", "found"),
    [
        ("rate", "held_out_fell"),
        ("cold", "groups_without_spread"),
        ("corner", "far_from_reference"),
        ("corner", "held_out_fell"),
        ("dialect", "answers_unreadable"),
        ("dialect", "groups_without_spread"),
        ("cut", "answers_unfinished"),
        ("hacked", "reward_hacked"),
        ("jpeg", "held_out_fell"),
        ("clip-never", "never_clips"),
        ("clip-always", "always_clips"),
    ],
)
def test_a_sick_run_of_a_lab_is_named(name: str, found: str) -> None:
    assert found in names_of(recorded(name))


def test_the_hacked_reward_is_named_before_the_held_out_score_has_lost_a_twentieth() -> None:
    scores = dict(recorded("hacked").values["held_out/score"])
    first = next(one for one in all_findings(recorded("hacked")) if one.name == "reward_hacked")
    assert max(scores.values()) - scores[first.iteration] < 0.05


def config_of(**changed: object) -> RunConfig:
    return load_config("lab/grpo", [f"{key.replace('__', '.')}={value}" for key, value in changed.items()])


def planted(config: RunConfig, **curves: list[float]) -> History:
    """Returns a run whose metrics have these values, from iteration 1 on; `__` is a slash."""
    history = History(config)
    for number in range(max(len(values) for values in curves.values())):
        seen = {name.replace("__", "/"): values[number] for name, values in curves.items() if number < len(values)}
        history.add(number + 1, seen)
    return history


@in_one_test(
    ("name", "sick", "healthy"),
    [
        (
            "learning_rate_too_high",
            {"loss__log_ratio_size": [1.2], "policy__entropy": [1.0]},
            {"loss__log_ratio_size": [0.03], "policy__entropy": [1.0]},
        ),
        (
            "learning_rate_too_low",
            {
                "loss__log_ratio_size": [3e-6] * 2,
                "policy__entropy": [1.0] * 2,
                "optimizer__steps": [4.0] * 2,
                "optimizer__learning_rate": [1e-4] * 2,
                "optimizer__grad_norm": [0.7] * 2,
            },
            {
                "loss__log_ratio_size": [5e-3] * 2,
                "policy__entropy": [1.0] * 2,
                "optimizer__steps": [4.0] * 2,
                "optimizer__learning_rate": [1e-4] * 2,
                "optimizer__grad_norm": [0.7] * 2,
            },
        ),
        (
            "reward_flat",
            {"reward__mean": [0.44, 0.46] * 25, "groups__degenerate": [0.1] * 50, "reward__std": [0.4] * 50},
            {
                "reward__mean": [0.44 + n / 1000 for n in range(50)],  # slowly: 0.1 in the whole run
                "groups__degenerate": [0.1] * 50,
                "reward__std": [0.4] * 50,
            },
        ),
        (
            "reward_fell",
            {"reward__mean": [0.42, 0.0, 0.0, 0.0], "reward__std": [0.36, 0.01, 0.0, 0.0]},
            {"reward__mean": [0.42, 0.2, 0.3, 0.4], "reward__std": [0.36, 0.3, 0.3, 0.3]},
        ),
        ("reward_constant", {"reward__std": [0.0] * 3}, {"reward__std": [0.0, 0.0, 0.1]}),
        (
            "entropy_collapsed",
            {"policy__entropy": [1.0, 0.5, 0.1, 0.1, 0.1]},
            {"policy__entropy": [1.0, 0.8, 0.7, 0.7, 0.7]},
        ),
        ("gradients_skipped", {"optimizer__skipped": [0, 0, 1]}, {"optimizer__skipped": [0, 0, 0, 0]}),
        ("rewards_fail", {"reward__failed": [30.0] * 3}, {"reward__failed": [1.0] * 3}),
        ("groups_missing", {"groups__missing": [12.0] * 3}, {"groups__missing": [2.0] * 3}),
        (
            "no_gradient",
            {"optimizer__grad_norm": [0.0] * 2, "optimizer__steps": [4.0] * 2},
            {"optimizer__grad_norm": [1e-9] * 2, "optimizer__steps": [4.0] * 2},
        ),
        (
            "both_fall",
            {"loss__chosen": [-5.0] * 3, "loss__rejected": [-8.0] * 3},
            {"loss__chosen": [-5.0] * 3, "loss__rejected": [-14.0] * 3},
        ),
        (
            "rewards_are_slow",
            {"time__reward__judge": [6.0] * 3, "time__iteration": [10.0] * 3},
            {"time__reward__judge": [1.0] * 3, "time__iteration": [10.0] * 3},
        ),
        ("prompts_cut", {"doctor__prompts__cut": [0.3]}, {"doctor__prompts__cut": [0.05]}),
        ("nothing_is_shared", {"doctor__prompts__again": [0.7]}, {"doctor__prompts__again": [0.1]}),
        (
            "samples_stale",
            {"engine__effective": [0.3] * 3, "engine__truncated": [0.0] * 3},
            {"engine__effective": [0.9] * 3, "engine__truncated": [0.05] * 3},
        ),
        (
            "media_are_slow",
            {"time__decoding": [3.0] * 3, "time__iteration": [10.0] * 3},
            {"time__decoding": [1.0] * 3, "time__iteration": [10.0] * 3},
        ),
        (
            "environments_are_slow",
            {"time__environment": [6.0] * 3, "time__iteration": [10.0] * 3},
            {"time__environment": [4.0] * 3, "time__iteration": [10.0] * 3},
        ),
        (
            "memory_grows",
            {"memory__rollout": [1.0, 2.0, 3.0, 3.0, 3.1, 3.5, 4.1, 4.2, 4.2]},
            {"memory__rollout": [1.0, 2.0, 3.0, 3.0, 3.1, 3.2, 3.3, 3.4, 3.5]},
        ),
        (
            "lengths_drift",
            {"answers__tokens": [100.0] * 3 + [250.0] * 3},
            {"answers__tokens": [100.0] * 3 + [150.0] * 3},
        ),
        (
            "one_reward_constant",
            {"reward__format_tags__std": [0.0] * 3, "reward__point_in_box__std": [0.4] * 3},
            {"reward__format_tags__std": [0.1] * 3, "reward__point_in_box__std": [0.4] * 3},
        ),
    ],
)
def test_a_planted_cause_is_named_and_nothing_without_it(
    name: str, sick: dict[str, list[float]], healthy: dict[str, list[float]]
) -> None:
    assert name in {one.name for one in findings_of(planted(config_of(), **sick))}
    assert name not in {one.name for one in all_findings(planted(config_of(), **healthy))}


@in_one_test(
    ("cause", "parts"),
    [
        ("mostly dropout", {"again": 0.14, "dropout": 0.1, "alone": 1e-6, "precision": 1e-3}),
        ("mostly randomness", {"again": 0.1, "alone": 0.1}),
        ("mostly precision", {"again": 0.0, "alone": 0.0, "precision": 0.12, "sharing": 0.02}),
        ("mostly rounding, which batches change", {"again": 0.0, "alone": 0.08, "precision": 0.05}),
        ("mostly prompts that answers share", {"again": 0.0, "alone": 0.0, "sharing": 0.1}),
        ("mostly the way of sampling", {"again": 0.0, "alone": 0.001, "precision": 0.01, "sharing": 0.002}),
    ],
)
def test_a_ratio_that_is_off_is_named_by_its_largest_part(cause: str, parts: dict[str, float]) -> None:
    curves = {f"doctor__ratio__{name}": [value] for name, value in parts.items()}
    (found,) = findings_of(planted(config_of(), doctor__ratio__mean=[0.1], **curves))
    assert found.name == "ratio_off_at_start" and found.cause.rpartition("): ")[2].startswith(cause)


def test_gradients_that_are_noise_are_named_with_the_groups_that_they_need() -> None:
    curves = {"doctor__gradient__groups": [8.0], "doctor__gradient__signal_to_noise": [1.05]}
    (alone,) = findings_of(planted(config_of(), **curves))
    (scaled,) = findings_of(planted(config_of(), **curves, doctor__gradient__noise_scale=[160.0]))
    (uneven,) = findings_of(planted(config_of(), **curves, doctor__gradient__even=[0.25]))
    assert "2.0 groups have nearly all" in uneven.cause and "nearly all" not in scaled.cause
    assert alone.name == scaled.name == "gradient_is_noise" and alone.severity == "note"
    assert "160 groups" in scaled.cause and "groups would" not in alone.cause


@in_one_test(
    ("before", "spread", "is_named"),
    [
        (0.9, 0.2, True),
        (0.9, 0.6, False),  # rollouts scatter by more than that
        (0.55, 0.2, False),  # 0.75 spreads are less than two standard errors of 8 prompts against 16
    ],
)
def test_rollouts_are_worse_where_the_gap_is_above_spread_and_error(
    before: float, spread: float, is_named: bool
) -> None:
    history = History(config_of(prompts_per_iteration=8, evaluation__num_prompts=16))
    history.add(0, {"held_out/point_in_box/mean": before, "held_out/point_in_box/std": 0.1})
    history.add(1, {"reward/point_in_box/mean": 0.4, "reward/point_in_box/std": spread})
    assert ("rollouts_worse_than_evaluation" in {one.name for one in findings_of(history)}) == is_named


def test_groups_that_are_alike_since_all_is_learned_are_a_note() -> None:
    curves = {"groups__degenerate": [0.1, 0.7, 0.8], "reward__std": [0.4] * 3}
    learned = findings_of(planted(config_of(), **curves, reward__mean=[0.4, 0.9, 0.95]))
    stuck = findings_of(planted(config_of(), **curves, reward__mean=[0.4, 0.45, 0.4]))
    assert [one.severity for one in (*learned, *stuck)] == ["note", "warning"]


def test_a_reward_whose_mean_is_given_or_chosen_need_not_rise() -> None:
    curves = {"reward__mean": [0.44, 0.46] * 25, "groups__degenerate": [0.1] * 50, "reward__std": [0.4] * 50}
    judged = [f"rewards=[{{name: {name}}}]" for name in ("win_rate", "pairwise_judge")]
    for settings in (["groups.mean_between=[0.2,0.8]"], *([one] for one in judged), ["sampler.name=given"]):
        config = load_config("lab/grpo", settings)
        assert "reward_flat" not in {one.name for one in findings_of(planted(config, **curves))}
    level = curves | {"reward__mean": [0.5] * 50}
    assert "reward_flat" not in {one.name for one in findings_of(planted(config_of(), **level))}


def test_no_shipped_average_lags_where_it_is_evaluated() -> None:
    for name in ("lab/grpo_care", "grpo_care_qwen25vl_7b"):  # averages of a reference, which nothing evaluates
        assert findings_of(planted(load_config(name), reward__mean=[0.4])) == []


def test_a_first_iteration_without_a_step_is_no_low_rate() -> None:
    curves = {"optimizer__grad_norm": [0.7], "optimizer__steps": [1.0], "optimizer__learning_rate": [1e-4]}
    found = findings_of(planted(config_of(), **curves, policy__entropy=[1.0], doctor__step__log_ratio=[0.0]))
    assert "learning_rate_too_low" not in {one.name for one in found}


def test_an_average_that_lags_behind_the_whole_run_is_named() -> None:
    for decay, left in ((0.999, "67%"), (0.9, None)):  # 400 steps
        found = findings_of(planted(config_of(averaging__decay=decay), reward__mean=[0.4]))
        assert [one.name for one in found] == ["average_lags"] * (left is not None)
        assert left is None or left in found[0].cause


def test_steps_are_judged_after_the_warm_up_and_while_the_rate_is_high() -> None:
    curves = {"optimizer__grad_norm": [0.7], "optimizer__steps": [4.0], "policy__entropy": [1.0]}
    for warmup, rate, is_named in ((0, 1e-4, True), (1, 1e-4, False), (0, 1e-5, False)):
        config = config_of(optimizer__warmup=warmup, optimizer__learning_rate=1e-4)
        found = findings_of(planted(config, **curves, optimizer__learning_rate=[rate], loss__log_ratio_size=[1e-6]))
        assert ("learning_rate_too_low" in {one.name for one in found}) is is_named


def test_a_rate_that_is_far_too_high_says_by_how_much_and_what_makes_it_so() -> None:
    for setting, size, words in ((0.05, 1.2, "raise sampler.temperature (it is 0.05)"), (1.0, 40.0, "by 1000 and")):
        (found,) = findings_of(
            planted(config_of(sampler__temperature=setting), loss__log_ratio_size=[size], policy__entropy=[1.0])
        )
        assert words in found.remedy


def test_the_best_checkpoint_is_named_only_where_one_beats_the_model_before() -> None:
    for scores, words in (((0.8, 0.3, 0.2), "nothing that was trained"), ((0.8, 0.9, 0.2), "iteration 10 was best")):
        history = History(config_of())
        for number, score in enumerate(scores):
            history.add(10 * number, {"held_out/score": score})
        (found,) = [one for one in findings_of(history) if one.name == "held_out_fell"]
        assert words in found.remedy


def test_one_step_for_each_rollout_clips_nothing_and_that_is_right() -> None:
    config = config_of(updates__epochs=1, updates__minibatches=1)
    history = planted(config, loss__clip_fraction_low=[0.0] * 3, loss__clip_fraction_high=[0.0] * 3)
    assert findings_of(history) == []


GROWING, LEVEL = [1.0, 2.0, 3.0, 3.0, 3.1, 3.5, 4.1, 4.2, 4.2], [1.0, 2.0, 3.0, 3.0, 3.1, 3.2, 3.3, 3.4, 3.5]
OF_CPU, OF_GPU = (f"3 GiB of the {one}'s memory in iterations 3 to 5 and 4.2 now" for one in ("CPU", "GPU"))


@in_one_test(
    ("host", "update", "causes"),
    [
        (GROWING, LEVEL, [OF_CPU]),
        (LEVEL, GROWING, [OF_GPU]),
        (GROWING, [*GROWING[:-1], 4.3], [f"{OF_CPU}, and {OF_GPU}"]),
        (GROWING, GROWING, [OF_CPU]),  # without a GPU they are one number
        ([], GROWING, ["3 GiB of memory in iterations 3 to 5 and 4.2 now"]),  # a log that does not say whose it is
        (LEVEL, LEVEL, []),
    ],
)
def test_memory_that_grows_is_named_by_whose_it_is(host: list[float], update: list[float], causes: list[str]) -> None:
    found = findings_of(planted(config_of(), memory__host=host, memory__update=update, memory__rollout=LEVEL))
    assert [one.cause for one in found if one.name == "memory_grows"] == [f"a process held {one}" for one in causes]


def test_a_finding_has_words_a_number_and_a_remedy() -> None:
    for name in ("hacked", "cold", "clip-never"):
        for one in all_findings(recorded(name)):
            assert one.name in RULES and len(one.cause) > 20 and len(one.remedy) > 20
            assert isinstance(one.value, float)


def test_an_empty_history_has_no_finding() -> None:
    assert findings_of(History(config_of())) == []


def test_values_that_are_not_finite_are_left_out() -> None:
    history = planted(config_of(), loss__kl=[float("nan"), float("inf"), 0.1])
    assert history.values["loss/kl"] == [(3, 0.1)] and history.mean("loss/kl") is None
    assert history.mean("loss/kl", fewest=1) == pytest.approx(0.1)


def test_the_guide_names_every_rule() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    assert [name for name in RULES if f"| `{name}` |" not in guide] == []
