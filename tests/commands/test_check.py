"""`mmrl check` counts right, and `check --tiny` finds what does not run, does not move, or costs more than planned."""

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl import labs
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.tree import Tree
from mmrl.commands.check import _by_part, check_tiny, plan_summary
from mmrl.commands.instrumentation import Instrumented
from mmrl.core.config import check_config, load_config
from mmrl.core.contracts import ConfigError, RewardBatch, Selective
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.modalities.sd3 import StableDiffusion3
from mmrl.rewards.images.jpeg_size import JpegSize
from mmrl.training.trainer import Trainer

SHARED = {
    "share_noise": True,
    "window": {"mode": "range", "first": 1, "last": 2},
}  # one random step behind one ODE step
LAB: dict[str, Any] = {
    "iterations": 9,
    "group_size": 3,
    "prompts_per_iteration": 2,
    "prompts": {"train": "lab:shapes/train", "held_out": "lab:shapes/held_out"},
    "modality": {"name": "sd3", "model": "lab:shapes", "height": 32, "width": 32, "max_sequence_length": 1},
    "sampler": {"name": "flow_sde", "num_steps": 4, "sigmas": "uniform"} | SHARED,
    "rewards": [{"name": "shapes"}],
    "advantage": {"name": "grpo"},
    "loss": {"name": "grpo"},
}
EVALUATION = {"sampler": {"name": "ode", "num_steps": 2}, "num_prompts": 5, "samples_per_prompt": 3}
NFT = {"sampler": {"name": "ode", "num_steps": 4}, "loss": {"name": "nft", "draws": 2}}
PASSES = "forward passes per iteration, a backward pass as two"
UPDATES = {"epochs": 3, "minibatches": 2}


def summary(**changes: Any) -> dict[str, Any]:
    return plan_summary(check_config(LAB | changes))


def calls(**changes: Any) -> list[int]:
    """Of the rollout, of the updates, and in units of a forward pass (a backward pass costs two)."""
    found = summary(**changes)
    names = ("network calls of a rollout", "network calls of the updates", PASSES)
    return [found[name] for name in names]


def test_what_a_group_shares_is_counted_once() -> None:
    rollout = 2 * (1 + 1 + 3 * 2)  # per group: the prefix, the state that all leave, three members with two steps each
    assert calls() == [rollout, 2, rollout + 2 + 2 * 2]
    assert summary()["calls of a rollout without sharing"] == 2 * 3 * 4


def test_without_sharing_every_member_pays_for_every_step() -> None:
    alone = LAB["sampler"] | {"share_noise": False, "window": {}}
    assert calls(sampler=alone) == [24, 18, 24 + 18 + 2 * 18]  # the last of four steps is not trained


def test_answers_share_the_passes_over_their_prompt() -> None:
    found = plan_summary(load_config("quickstart_gui"))
    assert found["prompt_reads"] == 16 and found["prompt_reads without sharing"] == 16 * 8
    assert "calls of a rollout without sharing" not in found


def test_guidance_doubles_every_call() -> None:
    assert calls(sampler=LAB["sampler"] | {"guidance_scale": 4.5}) == [32, 4, 32 + 4 + 2 * 4]


def test_a_penalty_asks_the_reference_which_needs_no_backward_pass() -> None:
    assert calls(loss={"name": "grpo", "kl_coef": 0.1}) == [16, 4, 16 + 4 + 2 * 2]


def test_each_epoch_pays_again_and_a_recomputation_once() -> None:
    assert summary(updates=UPDATES)["optimizer steps per iteration"] == 6
    assert calls(updates=UPDATES) == [16, 6, 16 + 6 + 2 * 6]
    assert calls(updates=UPDATES | {"old": "recomputed"}) == [16, 6 + 2, 16 + 8 + 2 * 6]
    assert calls(updates={"old": "recomputed"}) == calls()  # a single step is on-policy


def test_nft_evaluates_its_draws_under_three_sets_of_weights_or_two() -> None:
    draws = 2 * 3 * 2
    assert calls(**NFT) == [24, 3 * draws, 24 + 3 * draws + 2 * draws]
    nft = NFT["loss"] | {"reference_weight": 0.0}
    assert calls(sampler=NFT["sampler"], loss=nft) == [24, 2 * draws, 24 + 2 * draws + 2 * draws]


def test_samples_are_counted() -> None:
    found = summary(evaluation=EVALUATION)
    assert (found["samples per iteration"], found["held-out samples"]) == (6, 15)
    assert summary()["held-out samples"] == 0


@pytest.mark.parametrize(("prompts", "expected"), [(5, "2 or 3"), (4, 2), (1, "0 or 1")])
def test_groups_are_divided_over_processes(prompts: int, expected: Any) -> None:
    config = check_config(LAB | {"prompts_per_iteration": prompts})
    assert plan_summary(config, num_processes=2)["groups per process"] == expected
    assert plan_summary(config)["groups per process"] == prompts


def test_the_size_of_a_model_is_known_when_it_is_on_disk() -> None:
    files = labs.checkpoint("shapes").rglob("*.safetensors")
    assert summary()["model on disk, MiB"] == pytest.approx(
        sum(len(file.read_bytes()) for file in files) / 2**20, abs=0.05
    )
    assert "model on disk, MiB" not in summary(modality=LAB["modality"] | {"model": "owner/on-the-hub"})


def test_a_loss_on_groups_evaluates_twice_what_it_sees_in_micro_batches() -> None:
    """It measures all of them before it learns from each; not where a step is one micro-batch."""
    name, loss = "network calls of the updates", {"name": "rebel"}
    whole = summary(loss=loss, updates={"micro_batch": 10_000})[name]
    assert summary(loss=loss, updates={"micro_batch": 1})[name] == 2 * whole > 0
    assert summary(updates={"micro_batch": 1})[name] == whole


def tiny(**changes: Any) -> dict[str, Any]:
    return check_tiny(check_config(LAB | {"threads": 1, "evaluation": EVALUATION} | changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sampler": LAB["sampler"] | {"guidance_scale": 2.0}},
        {"updates": {"epochs": 2, "minibatches": 2, "old": "recomputed", "micro_batch": 1}, "rollout_groups": 1},
        {"loss": {"name": "grpo", "kl_coef": 0.1}, "prompts_per_iteration": 7, "group_size": 9},
        {"loss": {"name": "rebel"}, "updates": {"micro_batch": 2}},
        NFT,
    ],
    ids=["shared state", "guidance", "recomputed", "penalty", "pairs in micro-batches", "nft"],
)
def test_a_sound_config_passes(changes: dict[str, Any]) -> None:
    found = tiny(**changes)
    assert found["is_good"], found
    assert found["network calls made"] == found["network calls planned"]
    assert found["plug-ins that ran"] == "advantage, evaluation.sampler, loss, reward shapes, sampler"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["product", "harmonic_mean"])
def test_a_mix_sees_the_range_of_the_reward_behind_its_spy(name: str) -> None:
    assert tiny(mix={"name": name})["is_good"]


def test_densities_of_latents_are_not_taken_for_probabilities() -> None:
    with pytest.raises(ConfigError, match="steps of latents have densities; set its cut to null"):
        summary(advantage={"name": "timestep_weighted", "inner": {"name": "spo"}})
    assert summary(advantage={"name": "spo", "cut": None})


@pytest.mark.slow
def test_a_group_that_the_sampler_cannot_draw_ends_the_run_with_its_reason() -> None:
    window = {"mode": "random", "size": 1}
    trees = {"name": "branch_grpo", "num_steps": 4, "splits": [], "window": window, "pruned_depths": [3]}
    with pytest.raises(ConfigError, match="cannot plan this group: pruned_depths leaves no random step to train"):
        tiny(sampler=trees, prompts_per_iteration=8, advantage={"name": "tree"})


@pytest.mark.slow
def test_what_an_advantage_leaves_out_costs_no_call() -> None:
    """Four leaves split at steps 0 and 1; two of them are pruned at steps 2 and 3, in 2 groups and 2 iterations."""
    trees = {"name": "branch_grpo", "num_steps": 5, "sigmas": "uniform", "splits": [0, 1]}
    found = tiny(sampler=trees, group_size=4, advantage={"name": "tree", "width": "siblings"})
    assert found["is_good"], found
    assert found["network calls planned at most"] - found["network calls made"] == 2 * 2 * 2 * 2


@pytest.mark.parametrize("plugin, has_it", [(Tree(), True), (Grpo(), False)])
def test_a_spy_is_of_the_protocols_of_its_plug_in_as_every_python_sees_it(plugin: Any, has_it: bool) -> None:
    """From 3.12 on, isinstance looks the names of a protocol up without asking `__getattr__`."""
    one = Instrumented.on(plugin)
    assert (inspect.getattr_static(one, "update_mask", None) is not None) is has_it
    assert isinstance(one, Selective) is has_it
    assert AdvantageDeclaration.of(one) == AdvantageDeclaration.of(plugin)


@dataclass(frozen=True)
class Flat(JpegSize):
    """Sees no difference between any two images, as most rewards see none between random twins."""

    def score(self, batch: RewardBatch) -> torch.Tensor:
        return torch.zeros(len(batch))


@pytest.mark.slow
def test_a_reward_that_sees_no_difference_does_not_hide_whether_weights_move() -> None:
    found = check_tiny(check_config(LAB | {"rewards": [{"name": "tests.commands.test_check:Flat"}]}))
    assert found["is_good"] and found["trained tensors that did not move"] == "none"


def test_what_is_trained_is_counted_by_part() -> None:
    sizes = {"model.model.visual.blocks.0.weight": 3, "model.model.visual.norm.weight": 4, "model.model.text.a.b": 1000}
    assert _by_part(sizes) == "model.model.visual 7, model.model.text 1,000"
    assert _by_part({"network.blocks.0.weight": 2, "network.blocks.1.weight": 3}) == "network.blocks 5"
    assert _by_part({"network.weight": 2}) == "network 2" and _by_part({}) == ""


@pytest.mark.slow
def test_a_plug_in_that_never_runs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "_evaluate", lambda trainer: None)
    found = tiny()
    assert not found["is_good"]
    assert found["plug-ins that did not run"] == "evaluation.sampler"


@pytest.mark.slow  # most of a second each, or more
def test_a_tensor_that_does_not_move_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # of the last block, no gradient reaches these
    monkeypatch.setattr(StableDiffusion3, "freeze_unused", lambda policy, network: None)
    found = tiny()
    assert not found["is_good"]
    unmoved = found["trained tensors that did not move"].split(", ")
    assert "transformer.transformer_blocks.2.attn.add_q_proj.weight" in unmoved
    assert all("add_q_proj" in name or "norm_added_q" in name for name in unmoved)


@pytest.mark.slow
def test_work_beyond_the_plan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    once = StableDiffusion3.forward

    def twice(policy: StableDiffusion3, *given: Any) -> Any:
        once(policy, *given)
        return once(policy, *given)

    monkeypatch.setattr(StableDiffusion3, "forward", twice)
    found = tiny()
    assert not found["is_good"]
    planned = 2 * 2 * (1 + 1 + 3 * 2) + 2 * 2  # two iterations of two groups: rollout and update
    assert found["network calls planned"] == planned
    assert found["network calls made"] == planned + 2 * 2


@pytest.mark.slow
def test_check_names_a_model_folder_that_is_not_here() -> None:
    config = load_config("quickstart_gui", ["modality.model=/nowhere/Qwen2.5-VL"])
    assert plan_summary(config)["model that is not here, which train needs"] == "/nowhere/Qwen2.5-VL"
    assert not any("model that" in key for key in plan_summary(load_config("quickstart_gui")))


def test_refills_and_evaluations_are_counted() -> None:
    refilled = summary(groups={"degenerate": "refill", "max_refills": 3})
    assert refilled["network calls of a rollout at most, with refills"] == 4 * 16
    evaluation = EVALUATION | {"also": {"guided": {"name": "ode", "num_steps": 3, "guidance_scale": 2}}}
    assert summary(evaluation=evaluation)["network calls of an evaluation"] == 5 * 3 * (2 + 2 * 3)


@pytest.mark.slow
def test_an_advantage_of_trees_on_samples_that_share_none_is_told() -> None:
    tree = {"name": "tree"}
    told = "'tree' compares the branches of a tree, and samples of 'flow_sde' share none"
    assert told in summary(advantage=tree)["branches"]
    assert "branches" in summary(advantage={"name": "timestep_weighted", "inner": tree})
    assert "branches" not in summary()
    for sampler in ({"name": "branch_grpo", "splits": [0, 1]}, {"name": "tempflow", "roots": 2}):
        forked = sampler | {"num_steps": 4, "sigmas": "uniform"}
        assert "branches" not in summary(advantage=tree, sampler=forked, group_size=4), sampler


def test_a_row_without_an_image_that_the_settings_ask_for_is_named_before_a_model_is_loaded(tmp_path: Path) -> None:
    Image.new("RGB", (32, 32)).save(tmp_path / "one.png")
    rows = [{"prompt": "go", "image": "one.png", "last_image": "one.png"}, {"prompt": "go on", "image": "one.png"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = {"path": str(tmp_path / "rows.jsonl"), "layout": "edit"}
    policy = {"name": "diffusers_pipeline", "model": "a/hub-name", "conditions": ["image", "last_image"]}
    sampler = {"name": "flow_sde", "num_steps": 2}
    changes = {"modality": policy, "sampler": sampler, "rewards": [{"name": "jpeg_size"}], "evaluation": None}
    message = r"rows\.jsonl, line 2: prompt 'go on': it has 1 image \(image\), and conditions is \[image, last_image\]"
    with pytest.raises(ConfigError, match=message):
        summary(prompts={"train": prompts}, **changes)
    assert summary(prompts={"train": {**prompts, "bad_rows": "skip"}}, **changes)["training prompts"].startswith("1,")
