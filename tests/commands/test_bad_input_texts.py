"""Mistakes in the config of a model that answers questions about images: exit code 2, words that help, nothing lost."""

import json
from pathlib import Path

import pytest

from tests.tiny_cli import CommandLine, command_line
from tests.tiny_texts import questions


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """A working folder with data sets that are empty, point nowhere, or lack what they should have."""
    good = Path(str(questions().images)) / "0000.png"
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:120])
    (tmp_path / "empty.jsonl").write_text("")
    for name, image in (("missing", "nowhere.png"), ("broken", "text.png"), ("cut", "cut.png")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": "what?", "images": [image]}) + "\n")
    (tmp_path / "plain.jsonl").write_text(json.dumps({"prompt": "what?"}) + "\n")
    (tmp_path / "model").mkdir()
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    "override, message",
    [
        ("modality.sharring=cache", "modalities.vision_language has no field 'sharring' (did you mean 'sharing'?)"),
        ("modality.lora={rnak: 2}", "modalities.vision_language.lora has no field 'rnak' (did you mean 'rank'?)"),
        ("modality.sharing=chache", "sharing: should be 'auto', 'cache', 'packed' or 'none', got 'chache'"),
        ("modality.max_pixels=big", "max_pixels: should be a valid integer"),
        ("modality.vision_rate=true", "modalities.vision_language.vision_rate: should be a number, got True"),
        ("modality.prompt_cache=0", "prompt_cache must be at least 1, got 0"),
        ("modality.coordinates=percent", "should be 'original', 'resized', 'thousand' or 'unit', got 'percent'"),
        ("modality.model=./nothing", "modality.model: there is no folder './nothing'"),
        ("modality.model=lab:shapes", "is no model of modality 'vision_language': it holds no config.json"),
        ("modality.model=lab:nothing", "modality.model: unknown lab 'nothing'"),
        ("modality={name: gui, model: x, dialect: qwne}", "'pyautogui', 'qwen', 'ui_r1' or 'ui_tars', got 'qwne'"),
        ("sampler={name: flow_sde, num_steps: 4}", "'flow_sde' samples latents, but modality 'vision_language' makes"),
        ("evaluation.sampler={name: ode, num_steps: 4}", "evaluation.sampler 'ode' samples latents, but modality"),
        ("evaluation.also={few: {name: ode, num_steps: 4}}", "evaluation.also.few 'ode' samples latents, but modality"),
        ("sampler={name: autoregressive}", "samplers.autoregressive.max_tokens is needed"),
        ("sampler.stop=abc", "samplers.autoregressive.stop: should be a list, got 'abc'"),
        ("sampler.temperature=0", "sampler 'autoregressive' makes none; set sampler.temperature above 0"),
        (
            "loss={name: nft, draws: 1}",
            "loss 'nft' reads denoising (of samples noised anew: for image models), but modality 'vision_language' "
            "evaluates decisions",
        ),
        (
            "rewards=[{name: shapes}]",
            "needs images, but modality 'vision_language' makes texts, is_finished, num_tokens, canvases",
        ),
        ("evaluation.rewards=[{name: jpeg_size}]", "reward 'jpeg_size' needs images, but modality 'vision_language'"),
        (
            "rewards=[{name: step_reward}]",
            "reward 'step_reward' needs outcomes and step_rewards, but modality 'vision_language'",
        ),
        ("loss={name: grpo, kl_coef: 0.1}", "loss 'grpo' requires 'exact_kl' of each decision, which modality"),
        ("loss={name: reinforce, kl_coef: 0.1, kl: exact}", "set loss.kl to k1, k2 or k3"),
        ("loss={name: grpo, kl_coef: 0.1, kl: velocity}", "tokens have no velocity; for a penalty set loss.kl"),
        ("loss={name: guard}", "loss 'guard' requires 'noise' of each decision"),
        ("loss={name: flow_dppo}", "loss 'flow_dppo' requires 'exact_kl' of each decision"),
        (
            "advantage={name: seed_grpo}",
            "advantage 'seed_grpo' requires the rewards majority_vote: add them, with weight 0",
        ),
        (
            "advantage={name: ngrpo, inner: {name: seed_grpo}}",
            "inner must compare the totals of a group with each other",
        ),
        ("group_size=1", "advantage 'grpo' compares the samples of a group: group_size must be at least 2, got 1"),
        ("prompts.train={path: missing.jsonl, layuot: columns}", "has no field 'layuot' (did you mean 'layout'?)"),
        ("prompts.train={path: missing.jsonl, layout: colums}", "unknown layout 'colums' (did you mean 'columns'?)"),
        ("prompts.train={path: nowhere.jsonl}", "prompts: there is no file 'nowhere.jsonl'"),
        ("prompts.train={path: empty.jsonl}", "prompts: empty.jsonl holds no prompt"),
        ("prompts.train={path: missing.jsonl}", "missing.jsonl, line 1: there is no image file 'nowhere.png'"),
        ("prompts.train={path: broken.jsonl}", "broken.jsonl, line 1: cannot read the image text.png"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_loaded(cli: CommandLine, override: str, message: str) -> None:
    ended = cli.train(override, kind="vision_language")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert not Path("run").exists()


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_a_prompt_without_the_target_that_a_reward_needs_is_named_before_anything_is_loaded(
    cli: CommandLine, split: str
) -> None:
    ended = cli.train("rewards=[{name: point_in_box}]", f"prompts.{split}=plain.jsonl", kind="vision_language")
    assert (ended.code, ended.out) == (2, "")
    assert "plain.jsonl, line 1: reward 'point_in_box' needs 'box' in the target, which this row" in ended.err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["modality.model=model"], "modality.model: 'model' is no model of modality 'vision_language'"),
        (["modality.attention=flash"], '`attn_implementation="flash"` is not supported'),
        (["modality.lora={targets: [nothing]}"], "lora.targets: no linear layer of model.language_model, model.visual"),
        (["rewards=[{name: jpeg_size}]"], "reward 'jpeg_size' needs images, but modality 'vision_language'"),
        (["modality.max_prompt_tokens=5"], "tokens with its 1 images, more than max_prompt_tokens 5; raise it, or"),
        (["prompts.train={path: cut.jsonl}"], "prompt 'what?': cannot read the image cut.png: image file is truncated"),
        (
            ["prompts.train=plain.jsonl", "modality.name=gui", "modality.dialect=plain"],
            "prompt 'what?' has no screenshot; modality 'gui' needs one in every prompt",
        ),
    ],
)
def test_what_only_the_model_or_the_first_prompt_tells_is_named_too(
    cli: CommandLine, overrides: list[str], message: str
) -> None:
    ended = cli.train("evaluation=null", *overrides, kind="vision_language")
    assert ended.code == 2
    assert message in ended.err
    assert not Path("run").exists()  # the mended command can use its name


def test_answers_for_a_flow_model_are_refused(cli: CommandLine) -> None:
    ended = cli.train("sampler={name: autoregressive, max_tokens: 4}")
    assert ended.code == 2
    assert "sampler 'autoregressive' samples tokens, but modality 'sd3' makes its samples of latents" in ended.err
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_bad_row_can_be_skipped(cli: CommandLine) -> None:
    rows = [{"prompt": "what?", "images": [image]} for image in ("nowhere.png", "text.png")] + [{"prompt": "why?"}]
    Path("mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = "prompts.train={path: mixed.jsonl, bad_rows: skip}"
    assert cli.train(prompts, "evaluation=null", "iterations=1", kind="vision_language").code == 0
