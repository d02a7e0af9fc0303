"""Two processes that share the weights (FSDP2 on gloo) make the run of one that holds them whole."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.diffusion_twins import twin
from tests.process_runs import (
    SETTINGS,
    assert_same_run,
    ended_well,
    final_tensors,
    metrics,
    mmrl,
    movement,
    train,
    write_inputs,
)
from tests.training.test_processes_texts import FULL, LORA, MOMENTUM, answers_of, grpo, reward, write_questions

SHARDED = "sharding=full"
CHECKPOINTED = {"gradient_checkpointing": True}
SLOWLY = {"learning_rate": 1e-3, "epsilon": 1e-5}

MY_LOSSES = '''
from dataclasses import dataclass
from typing import ClassVar
from mmrl.losses.grpo import Grpo


@dataclass(frozen=True)
class WholeGroups(Grpo):
    """The same loss, taken for one that needs all samples of a group at once."""

    scope: ClassVar[str] = "group"
'''

DORA = {"use_dora": True, "use_rslora": True}
ANSWERS: dict[str, dict[str, Any]] = {
    "full, cache": {
        "modality": FULL | CHECKPOINTED | {"sharing": "cache"},
        "loss": grpo("decision"),
        "advantage": {"name": "grpo", "std": "batch"},
    },
    "full, packed, minibatches and micro-batches, recomputed": {
        "modality": FULL | CHECKPOINTED | {"sharing": "packed"},
        "updates": {"epochs": 2, "minibatches": 3, "micro_batch": 3, "old": "recomputed"},
        "loss": grpo("decision", kl_coef=0.1, kl="k3"),
        "optimizer": MOMENTUM,
    },
    "dora, packed, 5 prompts in chunks": {
        "modality": LORA | CHECKPOINTED | {"sharing": "packed", "lora": {"rank": 4, "alpha": 8} | DORA},
        "loss": grpo("sample", kl_coef=0.1, kl="k3"),
        "prompts_per_iteration": 5,
        "rollout_groups": 2,
    },
    "lora, cache, one process without work, refill": {
        "modality": LORA | CHECKPOINTED | {"sharing": "cache", "answer_batch": 3},
        "loss": grpo("group", kl_coef=0.1, kl="k3"),
        "groups": {"degenerate": "refill"},
        **reward("red"),
        "prompts_per_iteration": 1,
    },
    "full, rows, a loss of whole groups in two passes": {
        "modality": FULL | {"sharing": "none"},
        "updates": {"micro_batch": 3},
        "loss": grpo("sample") | {"name": "my_losses:WholeGroups"},
    },
    "full, cache, a loss on the mean of a step, one process without work": {
        "modality": FULL | {"sharing": "cache"},
        "updates": {"epochs": 2, "micro_batch": 2},
        "loss": {"name": "disco", "kl_bound": 1e-5, "hinge_weight": 10.0, "tau": 1.0, "normalise": "decision"},
        "prompts_per_iteration": 1,
    },
    "full, packed, a loss that selects decisions of a step": {
        "modality": FULL | {"sharing": "packed"},
        "updates": {"epochs": 2, "micro_batch": 3},
        "loss": {"name": "clip_cov", "share": 0.3, "cov_low": 0.0, "cov_high": 9.0},
    },
}
IMAGES: dict[str, dict[str, Any]] = {
    "grpo, dora": {
        "modality": SETTINGS["modality"] | {"lora": {"rank": 4, "alpha": 8} | DORA, "network_batch": 5},
        "loss": {"name": "grpo", "clip_low": 0.01, "clip_high": 0.01, "kl_coef": 0.1},
        "updates": {"micro_batch": 5},
    },
    "nft, full, one process without work": {
        "loss": {"name": "nft", "draws": 2, "decay": {"start": 0.5, "maximum": 0.5}, "reference_weight": 0.1},
        "sampler": {"name": "ode", "num_steps": 3, "sigmas": "uniform"},
        "advantage": {"name": "grpo", "std": "batch"},
        "prompts_per_iteration": 1,
    },
}


@pytest.mark.slow  # two runs each
@pytest.mark.parametrize("name", ANSWERS)
def test_sharded_processes_draw_the_answers_and_make_the_update_of_one(name: str, tmp_path: Path) -> None:
    write_questions(tmp_path, ANSWERS[name])
    (tmp_path / "my_losses.py").write_text(MY_LOSSES, encoding="utf-8")
    one = train(tmp_path, "one", 1)
    drawn_by_one = answers_of(tmp_path)
    two = train(tmp_path, "two", 2, SHARDED)
    assert answers_of(tmp_path) == drawn_by_one
    assert_same_run(one, two)
    assert movement(one, 2, 3) > 1e-4  # ten times the tolerance


@pytest.mark.slow  # two runs each
@pytest.mark.parametrize("name", IMAGES)
def test_sharded_processes_draw_the_images_and_make_the_update_of_one(name: str, tmp_path: Path) -> None:
    write_inputs(tmp_path, {"optimizer": SLOWLY} | IMAGES[name])
    one, two = train(tmp_path, "one", 1), train(tmp_path, "two", 2, SHARDED)
    assert_same_run(one, two)
    assert movement(one, 2, 3) > 1e-4


@pytest.mark.slow  # two runs each
@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}])
def test_sharded_processes_train_stable_diffusion_as_one_does(lora: dict[str, int] | None, tmp_path: Path) -> None:
    folder = twin("stable_diffusion_xl", tmp_path)
    modality = {"name": "stable_diffusion_xl", "model": str(folder), "height": 32, "width": 32, "lora": lora}
    sampler = {"name": "ddim", "num_steps": 3, "window": {"mode": "range", "last": 3}}
    changes = {"modality": modality, "sampler": sampler, "loss": {"name": "grpo", "clip_low": 0.01, "clip_high": 0.01}}
    write_inputs(tmp_path, {"optimizer": SLOWLY | {"epsilon": 1e-3}} | changes)
    one, two = train(tmp_path, "one", 1), train(tmp_path, "two", 2, SHARDED)
    assert_same_run(one, two)
    assert movement(one, 2, 3) > 1e-4


@pytest.mark.slow  # four runs
def test_a_sharded_run_resumes_bit_for_bit_and_goes_on_without_shards(tmp_path: Path) -> None:
    modality = FULL | CHECKPOINTED | {"sharing": "packed"}
    write_questions(tmp_path, {"modality": modality, "iterations": 2, "checkpoint": {"every": 1, "keep": 5}})
    straight = train(tmp_path, "straight", 2, SHARDED)
    for out in ("again", "alone"):
        train(tmp_path, out, 2, SHARDED, "iterations=1")
    ended_well(mmrl(tmp_path, ["train", "--resume", "again", "iterations=2"], 2))
    ended_well(mmrl(tmp_path, ["train", "--resume", "alone", "iterations=2", "sharding=none"], 1))
    expected = final_tensors(straight, 2)
    for out, tolerance in (("again", 0.0), ("alone", 1e-5)):
        got = final_tensors(tmp_path / out, 2)
        assert got.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(got[name], tensor, atol=tolerance, rtol=0, msg=name.__add__)
    trained = [[line for line in metrics(run) if "loss/total" in line] for run in (straight, tmp_path / "again")]
    assert trained[0] == trained[1]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "message"), [
    ({"precision": "float16"}, "sharding 'full' needs float32 or bfloat16"),
    ({"optimizer": {"name": "adamw8bit"}}, "adamw8bit knows no sharded tensors"),
])  # fmt: skip
def test_what_cannot_be_sharded_is_refused_before_anything_is_loaded(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_inputs(tmp_path, {"sharding": "full"} | changes)
    (end,) = mmrl(tmp_path, ["train", "run.yaml", "--out", "two"], 1)
    assert end.code == 2 and message in end.output


@pytest.mark.slow  # most of a second each, or more
def test_one_process_has_nothing_to_share(tmp_path: Path) -> None:
    write_inputs(tmp_path, {"iterations": 1, "evaluation": None})
    train(tmp_path, "whole", 1)
    train(tmp_path, "shared", 1, SHARDED)
    expected, got = (final_tensors(tmp_path / out, 1) for out in ("whole", "shared"))
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name
