"""Groups whose members the data brings: which are taken, how they become samples, and what refuses them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.assembly.build import build
from mmrl.commands.check import check_tiny, plan_summary
from mmrl.core.config import RunConfig, check_config, load_config
from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.core.lab_models import resolve_lab
from mmrl.core.plugins import build as build_plugin
from mmrl.labs.shapes import pairs as lab_pairs
from mmrl.labs.shapes import world
from mmrl.media.pictures import StoredPicture, as_tensor
from mmrl.plans.offline import OfflinePlan, check_offline, fitted, roll_out
from mmrl.prompts.stream import load_prompts
from mmrl.samplers.given import Given
from mmrl.samplers.given_and_drawn import GivenAndDrawn
from mmrl.samplers.ode import ODE
from tests.parameters import in_one_test

LAB = {"name": "sd3", "model": "lab:shapes", "height": 32, "width": 32, "max_sequence_length": 1}
KEYS = [GroupKey(1, 2, draw) for draw in (4, 9)]


@pytest.fixture(scope="module")
def policy() -> Any:
    made = build_plugin("modalities", resolve_lab(LAB))
    made.prepare(Placement(torch.device("cpu"), torch.float32))
    return made


def prompt(scores: tuple[float, ...], text: str = "red circle top left") -> Prompt:
    drawings = tuple(lab_pairs.Drawing(text, seed) for seed in range(len(scores)))
    return Prompt(text, target={"given": drawings, "given_scores": scores})


@pytest.mark.slow
def test_the_best_outputs_of_each_prompt_are_its_group_and_take_no_call(policy: Any) -> None:
    prompts = [prompt((0.1, 0.9, 0.9, 0.3)), prompt((2.0, 1.0), "blue cross bottom right")]
    before = policy.num_calls
    rollout = roll_out(policy, prompts, [Given().plan(policy, key, 2) for key in KEYS], KEYS)
    assert policy.num_calls == before and rollout.num_calls == 0
    assert rollout.group.tolist() == [4, 4, 9, 9] and rollout.outputs.given is not None
    assert rollout.outputs.given.tolist() == [1, 2, 0, 1], "the highest first, of equal ones the first"
    assert [rollout.prompts[n].text.split()[0] for n in rollout.prompt.tolist()] == ["red"] * 2 + ["blue"] * 2
    assert rollout.outputs.images is not None
    expected = as_tensor(lab_pairs.Drawing("red circle top left", 2).load())
    torch.testing.assert_close(rollout.outputs.images[1], expected)
    decoded = policy.decode_latents(rollout.trace.clean)
    texts = [rollout.prompts[n].text for n in rollout.prompt.tolist()]
    assert world.verify(decoded, texts).is_correct.all(), "what is learned from is what the images show"


@pytest.mark.slow
def test_given_and_drawn_are_one_group_the_drawn_ones_as_without_the_others(policy: Any) -> None:
    sampler, prompts = GivenAndDrawn(num_steps=2, sigmas="uniform"), [prompt((1.0, 0.0)), prompt((0.0, 1.0))]
    rollout = roll_out(policy, prompts, [sampler.plan(policy, key, 3) for key in KEYS], KEYS)
    alone = policy.rollout(prompts, [ODE(num_steps=2, sigmas="uniform").plan(policy, key, 2) for key in KEYS], KEYS)
    assert rollout.group.tolist() == [4, 4, 9, 9, 4, 9] and rollout.num_calls == 8
    assert rollout.outputs.given is not None and rollout.outputs.given.tolist() == [-1] * 4 + [0, 1]
    assert set(rollout.levels.values()) == set(alone.levels.values()) == {(1.0, 0.5)}
    torch.testing.assert_close(rollout.outputs.images[:4], alone.outputs.images)  # type: ignore[index]


def test_plans_count_what_they_draw() -> None:
    ode = ODE(num_steps=5, guidance_scale=2.0).plan(_Grid(), KEYS[0], 3)
    mixed, answers = OfflinePlan(1, are_decisions=False, online=ode), OfflinePlan(4, are_decisions=True)
    assert (mixed.num_samples, mixed.num_rollout_calls, mixed.forwards_per_call) == (4, 15, 2)
    assert (mixed.num_update_calls, mixed.is_bound, mixed.num_controls, mixed.has_greedy) == (0, False, 0, False)
    assert (answers.num_samples, answers.num_rollout_calls, answers.num_update_calls) == (4, 0, 4)
    assert answers.shared_work == {} and answers.forwards_per_call == 1
    with pytest.raises(ValueError, match="num_offline must be at least 1"):
        OfflinePlan(0, are_decisions=False)


class _Grid:
    draws = "latents"

    def sigmas(self, kind: str, num_steps: int) -> list[float]:
        return [1 - step / num_steps for step in range(num_steps + 1)]


@in_one_test(
    ("asked", "draws", "message"),
    [
        (prompt((1.0,)), "latents", "brings 1 outputs with 1 scores, but the sampler takes 2"),
        (Prompt("a cat", source="pairs.jsonl, line 3"), "latents", "pairs.jsonl, line 3 brings 0 outputs"),
        (prompt((1.0, 0.0)), "tokens", "brings outputs of type Drawing, but the policy makes texts"),
        (Prompt("?", target={"given": ("a", "b"), "given_scores": (1, 0)}), "latents", "of type str, but .* images"),
        (prompt((1.0, 0.0)), "turns", "the policy plays episodes"),
    ],
)
def test_prompts_that_do_not_bring_what_the_plan_takes_are_refused(asked: Prompt, draws: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_offline(OfflinePlan(2, are_decisions=False), [asked], draws)


def test_pictures_of_another_shape_are_cut_to_their_middle_and_scaled(tmp_path: Path) -> None:
    picture = Image.new("RGB", (60, 20), (255, 0, 0))
    picture.paste((0, 255, 0), (20, 0, 40, 20))  # the middle third
    picture.save(tmp_path / "wide.png")
    stored = StoredPicture("wide.png", path=tmp_path / "wide.png")
    green = torch.tensor([0.0, 1.0, 0.0])[:, None, None]
    torch.testing.assert_close(fitted(stored, (10, 10)), green.expand(3, 10, 10), atol=0.1, rtol=0)
    assert fitted(stored, (20, 60)).shape == (3, 20, 60)
    assert torch.equal(fitted(stored, (20, 60)), as_tensor(stored.load()))


@pytest.mark.slow
def test_the_pairs_of_the_lab_are_right_and_wrong_in_one_attribute() -> None:
    made = lab_pairs.pairs("train")
    assert len(made) == lab_pairs.NUM_PAIRS * len(world.prompts("train"))
    some = made[::9]
    right, wrong = (torch.stack([as_tensor(one.target["given"][n].load()) for one in some]) for n in (0, 1))
    texts = [one.text for one in some]
    assert world.verify(right, texts).is_correct.all() and not world.verify(wrong, texts).is_correct.any()
    seen = world.attributes([one.target["given"][1].name for one in some])
    asked = world.attributes(texts)
    differs = torch.stack([getattr(seen, name) != getattr(asked, name) for name in lab_pairs.ATTRIBUTES])
    assert (differs.sum(0) == 1).all() and differs.any(1).all()
    assert load_prompts("lab:shapes/pairs")[5].target["given_scores"] == (1.0, 0.0)
    assert (
        made[7].target["given"][1].load().tobytes() == lab_pairs.pairs("train")[7].target["given"][1].load().tobytes()
    )


def config(**changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "iterations": 2,
        "group_size": 2,
        "prompts_per_iteration": 2,
        "prompts": {"train": "lab:shapes/pairs", "held_out": "lab:shapes/held_out"},
        "modality": LAB,
        "sampler": {"name": "given"},
        "rewards": [{"name": "given_score"}],
        "advantage": {"name": "grpo"},
        "loss": {"name": "flow_dpo"},
        "optimizer": {"learning_rate": 1e-4},
    }
    return check_config(settings | changes)


def test_a_run_on_given_outputs_is_planned_without_rollout_calls() -> None:
    found = plan_summary(config())
    assert found["network calls of a rollout"] == 0 and found["network calls of the updates"] == 2 * 4


SAMPLED = {
    "prompts": {"train": "lab:shapes/train"},
    "sampler": {"name": "ode", "num_steps": 2},
    "rewards": [{"name": "shapes"}],
}
ANSWERS = {"name": "gui", "model": "lab:screens", "dialect": "plain", "instructions": "none"}


@in_one_test(
    ("changes", "message"),
    [
        ({"prompts": {"train": "lab:shapes/train"}}, "reward 'given_score' needs 'given_scores'|brings 0 outputs"),
        ({"group_size": 3}, "brings 2 outputs with 2 scores, but the sampler takes 3"),
        ({"loss": {"name": "reinforce"}}, "sampler 'given' makes none"),
        (
            {"modality": ANSWERS, "loss": {"name": "sft", "of": "decisions"}},
            "of type Drawing, but the policy makes texts",
        ),
        ({"sampler": {"name": "ode", "num_steps": 2}}, "reward 'given_score' needs given, but modality 'sd3' makes"),
        ({"sampler": {"name": "given_and_drawn", "num_steps": 2, "given": 2}}, "given must be below group_size, got 2"),
        (
            {
                "evaluation": {
                    "every": 1,
                    "sampler": {"name": "given"},
                    "samples_per_prompt": 1,
                    "rewards": [{"name": "shapes"}],
                }
            },
            "evaluation.sampler 'given' takes outputs of the data",
        ),
        (
            {**SAMPLED, "loss": {"name": "awm", "sigmas": "uniform"}, "updates": {"epochs": 2}},
            r"loss 'awm' compares with the weights that sampled the rollout.* set loss.decay to {slope: 0}",
        ),
        (
            {"loss": {"name": "sft", "sigmas": "grid"}},
            "loss.sigmas is 'grid', but outputs that the data brings have no",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_any_weight_is_loaded(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(config(**changes))


def write_pairs(folder: Path) -> Path:
    (folder / "images").mkdir()
    rows = []
    for number, text in enumerate(world.prompts("train")[:4]):
        for name, shown in (("good", text), ("bad", "white cross middle centre")):
            lab_pairs.Drawing(shown, number).load().save(folder / "images" / f"{name}{number}.png")
        rows.append({"prompt": text, "chosen": f"good{number}.png", "rejected": f"bad{number}.png"})
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "group_size"), [({"name": "given"}, 2), ({"name": "given_and_drawn", "num_steps": 2}, 2)]
)
def test_pairs_in_files_are_learned_from(tmp_path: Path, sampler: dict[str, Any], group_size: int) -> None:
    data = {"path": str(write_pairs(tmp_path)), "layout": "given_images", "images": str(tmp_path / "images")}
    loss = {"name": "diffusion_dpo" if sampler["name"] == "given" else "spin", "beta": 10.0}
    found = check_tiny(config(prompts={"train": data}, sampler=sampler, group_size=group_size, loss=loss))
    assert found["is_good"], found


@pytest.mark.slow
def test_answers_that_are_given_are_learned_from_token_by_token(tmp_path: Path) -> None:
    data = {"path": "not_here.jsonl", "layout": "given_answers"}
    found = check_tiny(
        config(
            prompts={"train": data},
            modality=ANSWERS,
            group_size=1,
            advantage={"name": "score"},
            loss={"name": "sft", "of": "decisions"},
        )
    )
    assert found["is_good"], found
    assert found["network calls made"] == 2 * 2, "two answers in each of two iterations, and none to draw them"


def test_the_shipped_offline_configs_are_of_the_pairs_of_the_lab() -> None:
    for name in ("lab/diffusion_dpo_offline", "lab/sft", "lab/kto", "lab/spin"):
        assert load_config(name).prompts.train == "lab:shapes/pairs"
