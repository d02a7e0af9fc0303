"""Settings of the shipped configs whose unit is not that of the paper's code, converted by hand."""

import re
from itertools import pairwise
from math import pi, sin
from typing import Any

import pytest

from mmrl.core.config import DatasetSettings, load_config
from mmrl.core.plugins import build
from mmrl.parsing.actions.dialects import DIALECTS
from mmrl.parsing.coordinates import Canvas
from tests.parameters import in_one_test

# the grid of the stock SD3 pipeline for 10 steps: docs/maths/flow-matching.md#golden-grids
PIPELINE = [1, 0.96013, 0.91335, 0.85769, 0.79037, 0.70728, 0.60215, 0.46488, 0.27805, 0.00893, 0]


def test_flow_grpos_kl_penalty_is_theirs_on_average_over_the_trained_steps() -> None:
    """yifan123/flow_grpo divides by 2 g^2, not by the variance 2 g^2 h: its 0.02 weighs KL * h."""
    steps = [sigma - sigma_next for sigma, sigma_next in pairwise(PIPELINE)][:-1]
    theirs = 0.02 * sum(steps) / len(steps)
    loss = load_config("flow_grpo_sd35").loss
    assert loss["kl"] == "exact"
    assert loss["kl_coef"] == pytest.approx(theirs, rel=0.15)


@in_one_test(
    ("name", "gpus", "batch", "images"),  # their config: GPUs, batch of a GPU, images of a prompt
    [
        ("flow_grpo_sd35", 32, 9, 24),
        ("flow_grpo_sd35_geneval", 32, 9, 24),
        ("flow_grpo_fast_sd35", 32, 9, 24),
        ("flow_grpo_fast_flux", 32, 3, 24),
        ("flow_grpo_flux_kontext", 28, 3, 21),
    ],
)
def test_flow_grpos_average_forgets_as_their_loop_does(name: str, gpus: int, batch: int, images: int) -> None:
    """Their loop averages behind each batch where the number of the optimizer step, plus 1, is a multiple of 8."""
    config = load_config(name)
    batches = 48 * images // (gpus * batch)  # of a rollout; half of them make an optimizer step
    step, kept = 0, 1.0
    for number in range(8 * batches):
        if (step + 1) % 8 == 0:
            kept *= 0.9
        step += (number + 1) % (batches // 2) == 0
    assert config.averaging is not None
    assert config.averaging.decay == pytest.approx(kept ** (1 / step), abs=0.001)
    assert load_config("nft_sd35").averaging == config.averaging.model_copy(update={"decay": 0.9})


def test_flow_grpos_clip_run_starts_a_group_from_one_latent() -> None:
    assert load_config("flow_grpo_sd35").sampler["share_noise"] is True


def test_the_fast_runs_clip_range_is_near_theirs() -> None:
    """Their CPS log-prob lacks 1 / (2 std^2): the same range is 2 std^2 times narrower in it."""
    config = load_config("flow_grpo_fast_sd35")
    window, share = config.sampler["window"], sin(config.sampler["noise_level"] * pi / 2)
    factors = [2 * (share * PIPELINE[step + 1]) ** 2 for step in range(window["first"], window["last"])]
    assert [min(factors), max(factors)] == pytest.approx([0.9, 1.7], abs=0.05)
    assert config.loss["clip_low"] == config.loss["clip_high"] == pytest.approx(1e-5)


@in_one_test(
    ("name", "answers", "group_size", "kl_coef", "learning_rate", "max_tokens"),
    # answers of an optimizer step: devices * batch * accumulation (* group), as the published scripts have them:
    # docs/maths/published-settings.md#vision-language-models-and-gui
    [
        ("grpo_qwen25vl_3b_refcoco", 8 * 8 * 2, 8, 0.04, 1e-5, 2048),
        ("visual_rft_qwen2vl_2b_detection", 8 * 1 * 2 * 8, 8, 0.04, 1e-6, 256),
        ("geometry3k_qwen25vl_7b", 128 * 5, 5, 0.01, 1e-5, 2048),
        ("gui_g2_qwen25vl_7b", 8 * 8, 8, 0.04, 1e-5, 256),
        ("gui_r1_qwen25vl_3b", 128 * 5, 5, 0.01, 1e-5, 1024),
        ("ui_r1_qwen25vl_3b", 8 * 1 * 2 * 8, 8, 0.04, 1e-5, 256),
    ],
)
def test_a_vision_language_run_takes_its_papers_steps(
    name: str, answers: int, group_size: int, kl_coef: float, learning_rate: float, max_tokens: int
) -> None:
    config = load_config(name)
    assert config.group_size == group_size
    assert config.group_size * config.prompts_per_iteration / config.updates.minibatches == answers
    is_easyr1 = name in ("geometry3k_qwen25vl_7b", "gui_r1_qwen25vl_3b")  # which cuts its k3
    assert (config.loss["kl"], config.loss["kl_coef"]) == ("low_var" if is_easyr1 else "k3", kl_coef)
    assert config.loss.get("dual_clip") == (3.0 if name == "geometry3k_qwen25vl_7b" else None)  # later versions add it
    assert config.optimizer.learning_rate == learning_rate
    assert config.sampler["max_tokens"] == max_tokens and config.sampler.get("temperature", 1) == 1
    assert config.modality["gradient_checkpointing"] and config.precision == "bfloat16"
    if config.optimizer.learning_rate == 1e-6:
        assert "lora" not in config.modality
    else:
        assert config.modality["lora"] == {"rank": 64, "alpha": 128}


# The scripts behind these: TRL's trainers divide by the group's standard deviation plus 1e-4, average samples, fall
# linearly and decay nothing; EasyR1's add 1e-6, average tokens, keep the rate and decay by 0.01, and see 512^2 pixels.
TRL = {"clip": (0.2, 0.2), "epsilon": 1e-4, "normalise": "sample", "weight_decay": 0, "schedule": "linear"}
EASYR1 = {"clip": (0.2, 0.3), "epsilon": 1e-6, "normalise": "decision", "weight_decay": 0.01, "schedule": "constant"}


@in_one_test(
    ("name", "code", "min_pixels", "max_pixels", "old"),
    [
        ("grpo_qwen25vl_3b_refcoco", TRL, None, None, "recorded"),
        ("visual_rft_qwen2vl_2b_detection", TRL, None, 401_408, "recorded"),
        ("geometry3k_qwen25vl_7b", EASYR1, 262_144, 4_194_304, "recomputed"),
        ("gui_g2_qwen25vl_7b", TRL, None, 12_845_056, "recorded"),
        ("gui_r1_qwen25vl_3b", EASYR1 | {"clip": (0.2, 0.2)}, 262_144, 1_258_291, "recomputed"),
        ("ui_r1_qwen25vl_3b", TRL, None, 12_845_056, "recorded"),
    ],
)
def test_a_vision_language_run_has_the_formulas_of_its_papers_code(
    name: str, code: dict[str, Any], min_pixels: int | None, max_pixels: int | None, old: str
) -> None:
    config = load_config(name)
    loss, advantage = build("losses", config.loss), build("advantages", config.advantage)
    assert (loss.clip_low, loss.clip_high) == code["clip"]
    assert loss.normalise == code["normalise"]
    assert (advantage.epsilon, advantage.is_unbiased, advantage.clip) == (code["epsilon"], True, None)
    assert (advantage.std, advantage.min_std) == ("group", 0)
    assert (config.optimizer.weight_decay, config.optimizer.schedule) == (code["weight_decay"], code["schedule"])
    assert (config.modality.get("min_pixels"), config.modality.get("max_pixels")) == (min_pixels, max_pixels)
    assert config.updates.old == old


@in_one_test(
    ("name", "settings"),  # docs/maths/published-settings.md#defaults-of-losses
    [
        ("gspo", {"clip_low": 3e-4, "clip_high": 4e-4, "normalise": "sample"}),
        ("gmpo", {"clip_low": 0.4, "clip_high": 0.4, "normalise": "sample"}),
        ("cispo", {"cap": 5.0, "floor": 0.0, "outside": "truncated", "normalise": "decision"}),
        ("sapo", {"temperature_positive": 1.0, "temperature_negative": 1.05, "normalise": "sample"}),
        ("topr", {"kl_coef": 0.0, "normalise": "constant"}),
        ("gpg", {"kl_coef": 0.0, "normalise": "decision"}),
        ("asymre", {"kl_coef": 0.0, "normalise": "constant"}),
        ("clip_cov", {"clip_low": 1.0, "clip_high": 1.0, "share": 2e-4, "cov_low": 1.0, "cov_high": 5.0}),
        ("kl_cov", {"share": 2e-3, "cov_coef": 1.0, "kl_coef": 0.0}),
        ("opmd", {"kl_coef": 0.0, "normalise": "constant", "level": "sequence"}),
        ("rec", {"clip_low": 0.2, "clip_high": 0.2, "far_low": 0.6, "far_high": 2.0, "weight": "none"}),
        ("disco", {"tau": 10.0, "kl_bound": 1e-4, "hinge_weight": 1e3, "normalise": "sample", "path": "mean"}),
        ("guard", {"clip_low": 2e-6, "clip_high": 2e-6, "kl_coef": 0.0}),
        ("flow_dppo", {"threshold": 1e-5, "kl_coef": 0.0}),
    ],
)
def test_a_loss_has_the_defaults_of_its_paper(name: str, settings: dict[str, Any]) -> None:
    loss = build("losses", {"name": name})
    assert {setting: getattr(loss, setting) for setting in settings} == settings


def test_gui_g2_pays_boxes_only() -> None:
    """Theirs wants four whole numbers; a click on a point has no coverage."""
    assert load_config("gui_g2_qwen25vl_7b").rewards[0]["needs_box"] is True


@in_one_test(
    ("name", "bad_rows"),
    [
        ("grpo_qwen25vl_3b_refcoco", "skip"),
        ("grpo_qwen3vl_4b_screenspot", "skip"),
        ("visual_rft_qwen2vl_2b_detection", "skip"),
        ("geometry3k_qwen25vl_7b", "fail"),
        ("gui_g2_qwen25vl_7b", "skip"),
        ("gui_r1_qwen25vl_3b", "skip"),
        ("ui_r1_qwen25vl_3b", "fail"),
    ],
)
def test_one_bad_row_of_many_does_not_end_a_run(name: str, bad_rows: str) -> None:
    prompts = load_config(name).prompts
    assert isinstance(prompts.train, DatasetSettings) and isinstance(prompts.held_out, DatasetSettings)
    assert "bad_rows" in prompts.train.model_fields_set, "each config says what it does"
    assert (prompts.train.bad_rows, prompts.held_out.bad_rows) == (bad_rows, "fail")


@in_one_test(
    ("name", "epochs", "rows"),
    [
        ("grpo_qwen25vl_3b_refcoco", 2, 321_327),  # 120,624 of RefCOCO, 120,191 of RefCOCO+, 80,512 of RefCOCOg
        ("visual_rft_qwen2vl_2b_detection", 2, 6_000),
        ("geometry3k_qwen25vl_7b", 15, 2_048),  # of 2,101: the last rollout of an epoch is dropped
        ("gui_g2_qwen25vl_7b", 1, 100_000),
        ("gui_r1_qwen25vl_3b", 15, 2_560),
        ("ui_r1_qwen25vl_3b", 8, 136),
    ],
)
def test_a_vision_language_run_is_as_long_as_its_papers(name: str, epochs: int, rows: int) -> None:
    config = load_config(name)
    assert config.iterations * config.prompts_per_iteration == pytest.approx(epochs * rows, rel=0.01)


@pytest.mark.parametrize("name", ["gui_r1_qwen25vl_3b", "ui_r1_qwen25vl_3b"])
def test_the_answer_that_a_template_shows_is_one_that_is_read(name: str) -> None:
    config = load_config(name)
    assert isinstance(config.prompts.train, DatasetSettings) and config.prompts.train.template is not None
    (shown,) = re.findall(r"<answer>\[.*?\]</answer>", config.prompts.train.template)
    canvas = Canvas((100, 100), (100, 100), "original")
    action = DIALECTS[config.modality["dialect"]].parse(shown.replace("[x, y]", "[3, 4]"), canvas)
    assert (action.kind, action.point) == ("click", (3, 4))


def test_sums_of_rewards_are_means_times_their_number() -> None:
    rewards = {name: load_config(name).rewards for name in ("visual_rft_qwen2vl_2b_detection", "gui_g2_qwen25vl_7b")}
    assert [rewards[name][0]["weight"] for name in rewards] == [2, 2]
    assert [reward["weight"] for reward in load_config("geometry3k_qwen25vl_7b").rewards] == [0.9, 0.1]
    assert [reward["weight"] for reward in load_config("gui_r1_qwen25vl_3b").rewards] == [0.8, 0.2]
    type_and_place = load_config("ui_r1_qwen25vl_3b").rewards[0]
    assert type_and_place["type_weight"] * type_and_place["weight"] == 1
