"""One process or two make the same run of a model that answers questions about images, answer by answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from mmrl.modalities.vision_language import VisionLanguage
from tests.process_runs import assert_same_run, metrics, movement, train, write_inputs
from tests.tiny_texts import clips, questions, tasks
from tests.vision_twins import twin

MY_TEXTS = '''
import os
from dataclasses import dataclass
from typing import ClassVar
import torch


@dataclass(frozen=True)
class Letters:
    """Share of letters, 0.5 for prompts with a given word; notes every answer in a file of its process."""

    source: ClassVar[str] = "a test"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[str] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None

    dull: str = "nothing"

    def score(self, batch):
        with open(f"answers-{os.getpid()}.log", "a", encoding="utf-8") as log:
            for sample in zip(batch.seeds, batch.prompts, batch.outputs.texts):
                print(batch.iteration, sample[0], repr(sample[1].text), repr(sample[2]), file=log)
        shares = [sum(map(str.isalpha, text)) / max(1, len(text)) for text in batch.outputs.texts]
        is_dull = torch.tensor([self.dull in prompt.text for prompt in batch.prompts])
        return torch.where(is_dull, 0.5, torch.tensor(shares))
'''
DENSE_TEXTS = '''

@dataclass(frozen=True)
class Each(Letters):
    """Whether each token begins with a letter from n on."""

    granularity: ClassVar[str] = "token"
    needs: ClassVar[frozenset[str]] = frozenset({"pieces", "texts"})

    def score(self, batch):
        super().score(batch)
        scores = torch.zeros(batch.is_decision.shape)
        for row, pieces in enumerate(batch.outputs.pieces):
            scores[row, : len(pieces)] = torch.tensor([float(piece[:1] > "n") for piece in pieces])
        return scores
'''
COLOURS = ("red", "blue", "green", "red", "blue")

FULL = {"name": "vision_language", "vision": "trained", "vision_rate": 0.5}
LORA = {"name": "vision_language", "lora": {"rank": 4, "alpha": 8}}
# The rates move weights by far more than the tolerance; a larger epsilon keeps Adam from blowing up what is rounding
ADAMW = {"learning_rate": 1e-3, "epsilon": 3e-4}
MOMENTUM = {"name": "sgd", "learning_rate": 0.03, "max_grad_norm": None}


def grpo(normalise: str, **settings: Any) -> dict[str, Any]:
    return {"name": "grpo", "normalise": normalise, **settings}


def reward(dull: str) -> dict[str, Any]:
    return {"rewards": [{"name": "my_texts:Letters", "dull": dull}]}


VIDEO = {"name": "video", "num_frames": 4, "frame_min_pixels": 784, "frame_max_pixels": 3136, "vision": "trained"}
CONTROLS: dict[str, Any] = {
    "sampler": {"name": "autoregressive", "max_tokens": 6, "controls": 2},
    "rewards": [
        {"name": "my_texts:Letters"},
        {"name": "temporal_contrast", "reward": {"name": "my_texts:Letters"}, "share": 0.5, "weight": 0.3},
    ],
    "evaluation": {
        "every": 2,
        "sampler": {"name": "autoregressive", "max_tokens": 6},
        "rewards": [{"name": "my_texts:Letters"}, {"name": "temporal_iou", "weight": 0}],
        "samples_per_prompt": 2,
        "saved_samples": 3,
    },
}
AGENT = {
    "name": "tests.toy_worlds:Clicker",
    "dialect": "plain",
    "instructions": "none",
    "environment": {"name": "tests.toy_worlds:Corridor", "places": 1},
    "lora": {"rank": 4, "alpha": 8},
}
TURNS = {"name": "episodes", "max_tokens": 6, "max_turns": 3}
EPISODES: dict[str, Any] = {
    "sampler": TURNS,
    "advantage": {"name": "gigpo"},
    "rewards": [{"name": "episode_success"}, {"name": "my_texts:Letters", "weight": 0.5}],
    "evaluation": {"every": 2, "sampler": TURNS, "samples_per_prompt": 2, "saved_samples": 3},
}
ADAPTER = {"name": "adapter_score", "adapter": "reward_adapter", "weight": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "full, decision, batch std": {"loss": grpo("decision"), "advantage": {"name": "grpo", "std": "batch"}},
    "full, sample, kl, momentum": {"loss": grpo("sample", kl_coef=0.1, kl="k3"), "optimizer": MOMENTUM},
    "full, group, one empty process": {"loss": grpo("group"), "prompts_per_iteration": 1},
    "full, entropy floor, one empty process": {
        "loss": grpo("decision", entropy_coef=0.1, entropy_floor=9.0),
        "prompts_per_iteration": 1,
    },
    "full, entropy floor, minibatches": {
        "loss": grpo("decision", entropy_coef=0.1, entropy_floor=5.17),
        "updates": {"epochs": 1, "minibatches": 3, "micro_batch": 3},
    },
    "full, constant, cut answers masked": {
        "loss": grpo("constant", constant=8.0),
        "sampler": {"name": "autoregressive", "max_tokens": 24, "truncated": "mask", "stop": ["e"]},
    },
    "full, packed, minibatches and micro-batches": {
        "modality": FULL | {"sharing": "packed"},
        "updates": {"epochs": 2, "minibatches": 3, "micro_batch": 3},
        "loss": grpo("decision"),
        "optimizer": MOMENTUM,
    },
    "lora, decision, kl, 5 prompts in chunks": {
        "modality": LORA,
        "loss": grpo("decision", kl_coef=0.1, kl="k3"),
        "prompts_per_iteration": 5,
        "rollout_groups": 2,
    },
    "lora, a reward model on the same base, 5 prompts in chunks": {
        "modality": LORA,
        "loss": grpo("sample"),
        "rewards": [{"name": "my_texts:Letters"}, ADAPTER],
        "evaluation": CONTROLS["evaluation"] | reward("nothing"),
        "updates": {"micro_batch": 3},
        "prompts_per_iteration": 5,
        "rollout_groups": 2,
    },
    "lora, sample": {"modality": LORA, "loss": grpo("sample")},
    "lora, replay": {
        "modality": LORA,
        "loss": grpo("decision"),
        "sampler": {"name": "autoregressive", "max_tokens": 6},
        "replay": {"capacity": 9},
        **reward("red"),
    },
    "lora, group": {"modality": LORA, "loss": grpo("group")},
    "lora, dense, normalised, min": {
        "modality": LORA,
        "loss": grpo("decision"),
        "advantage": {"name": "process", "credit": "min"},
        "rewards": [
            {"name": "running_normalised", "reward": {"name": "my_texts:Each"}},
            {"name": "my_texts:Letters", "weight": 0.5},
        ],
    },
    "lora, constant, one empty process": {
        "modality": LORA,
        "loss": grpo("constant", constant=8.0),
        "prompts_per_iteration": 1,
    },
    "videos with controls": {"modality": VIDEO, "loss": grpo("decision"), **CONTROLS},
    "videos, weights of tokens, changed prompts": {
        "modality": VIDEO,
        "loss": grpo("decision"),
        "advantage": {"name": "token_weighted", "max_weight": 3},
        "groups": {"augment": {"noise": 2, "answer": "duration", "window": 3}},
        "sampler": {"name": "autoregressive", "max_tokens": 6},
    },
    "lora, episodes, gigpo": {"modality": AGENT, "loss": grpo("decision"), **EPISODES},
    "drop": {"groups": {"degenerate": "drop"}, **reward("red")},
    "lora, refill": {"modality": LORA, "groups": {"degenerate": "refill"}, **reward("red"), "prompts_per_iteration": 2},
}


def write_questions(folder: Path, changes: dict[str, Any]) -> None:
    """Five questions with images of five sizes and one without, a reward, and the settings of a run on them."""
    rows = [
        {"prompt": f"Where is the {colour} square?", "images": [f"{number:04d}.png"]}
        for number, colour in enumerate(COLOURS)
    ]
    rows.append({"prompt": "What is green?", "images": []})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "my_texts.py").write_text(MY_TEXTS + DENSE_TEXTS, encoding="utf-8")
    prompts: Any = {"path": "rows.jsonl", "images": questions().images}
    if changes.get("modality") == VIDEO:
        prompts = clips().model_dump(mode="json", exclude_unset=True)
    elif changes.get("modality") == AGENT:
        prompts = str(tasks())
    if ADAPTER in changes.get("rewards", ()):
        VisionLanguage(model=str(twin("qwen2_5_vl"))).write_tiny_adapter(3, folder / "reward_adapter")
    answers = {"name": "autoregressive", "max_tokens": 6}
    settings = {
        "prompts": {"train": prompts, "held_out": prompts},
        "sampler": answers | {"top_p": 0.95},
        "loss": grpo("sample"),
        "optimizer": ADAMW,
        "evaluation": {"every": 2, "sampler": answers, "samples_per_prompt": 2, "saved_samples": 3},
        **reward("nothing"),
        **changes,
    }
    settings["modality"] = {"model": str(twin("qwen2_5_vl"))} | changes.get("modality", FULL)
    write_inputs(folder, settings)


def answers_of(folder: Path) -> list[str]:
    """What the reward's files hold, in order; they are removed."""
    files = list(folder.glob("answers-*.log"))
    lines = sorted(line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    for file in files:
        file.unlink()
    return lines


@pytest.mark.slow  # two runs each
@pytest.mark.parametrize("name", CASES)
def test_two_processes_draw_the_answers_and_make_the_update_of_one(name: str, tmp_path: Path) -> None:
    write_questions(tmp_path, CASES[name])
    one = train(tmp_path, "one", 1)
    drawn_by_one = answers_of(tmp_path)
    two = train(tmp_path, "two", 2)
    assert len(drawn_by_one) > 24  # those of the evaluations among them
    assert answers_of(tmp_path) == drawn_by_one
    assert_same_run(one, two)
    assert movement(one, 2, 3) > 1e-4  # ten times the tolerance


@pytest.mark.slow  # one run
def test_a_process_that_loses_all_its_groups_goes_on(tmp_path: Path) -> None:
    write_questions(
        tmp_path, {"groups": {"degenerate": "drop"}, **reward("red"), "prompts_per_iteration": 2, "iterations": 5}
    )
    lines = [line for line in metrics(train(tmp_path, "two", 2)) if "groups/kept" in line]
    assert {line["groups/kept"] for line in lines} >= {1}  # of two groups, one on each process
    assert all(line["optimizer/steps"] == (line["groups/kept"] > 0) for line in lines)
