"""Settings: overrides, what is refused, and texts that read back to equal settings."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmrl.core.config import RunConfig, Settings, check_config, read_yaml, to_yaml
from mmrl.system.errors import ConfigError
from tests.parameters import in_one_test

SMALLEST: dict[str, Any] = {
    "iterations": 2,
    "group_size": 4,
    "prompts_per_iteration": 2,
    "prompts": {"train": "lab:shapes/train"},
    "modality": {"name": "sd3", "model": "lab:shapes"},
    "sampler": {"name": "ode"},
    "rewards": [{"name": "shapes"}],
    "advantage": {"name": "grpo"},
    "loss": {"name": "nft"},
}


def test_nothing_but_the_run_itself_has_to_be_set() -> None:
    checked = check_config(SMALLEST)
    assert checked.seed == 0 and checked.precision == "float32" and checked.averaging is None
    assert checked.optimizer.max_grad_norm == 1.0
    for key in SMALLEST:
        with pytest.raises(ConfigError, match=f"config.{key} is needed"):
            check_config({name: value for name, value in SMALLEST.items() if name != key})


def test_null_is_a_setting_and_is_written() -> None:
    checked = check_config(SMALLEST, ["optimizer.max_grad_norm=null", "advantage.clip=null"])
    again = check_config(yaml.safe_load(to_yaml(checked)))
    assert again == checked
    assert again.optimizer.max_grad_norm is None
    assert again.advantage == {"name": "grpo", "clip": None}


@in_one_test(
    "override, path, value",
    [
        ("iterations=7", ["iterations"], 7),
        ("optimizer.learning_rate=1e-4", ["optimizer", "learning_rate"], 1e-4),
        ("optimizer.learning_rate='0.5'", ["optimizer", "learning_rate"], 0.5),
        ("optimizer.betas=[0.5, 0.6]", ["optimizer", "betas"], (0.5, 0.6)),
        ("averaging.decay=0.5", ["averaging", "decay"], 0.5),
        ("rewards.0.measure=colour", ["rewards", 0, "measure"], "colour"),
        ("rewards.0={name: jpeg_size}", ["rewards", 0, "name"], "jpeg_size"),
        ("modality.lora={rank: 4}", ["modality", "lora"], {"rank": 4}),
        ("prompts.train=a=b.txt", ["prompts", "train"], "a=b.txt"),
        ("sampler.window.mode=all", ["sampler", "window", "mode"], "all"),
        (" seed =3", ["seed"], 3),
    ],
)
def test_an_override_sets_one_value(override: str, path: list[str | int], value: Any) -> None:
    found: Any = check_config(SMALLEST, [override])
    for key in path:
        found = getattr(found, str(key)) if isinstance(found, Settings) else found[key]
    assert found == value


def test_the_last_override_of_a_key_wins() -> None:
    assert check_config(SMALLEST, ["seed=1", "seed=2"]).seed == 2


def test_overrides_leave_the_given_mapping_alone() -> None:
    given = copy.deepcopy(SMALLEST)
    check_config(given, ["prompts.held_out=lab:shapes/held_out", "rewards.0.measure=colour"])
    assert given == SMALLEST


@in_one_test("text", ["1e-4", "1E-4", "0.0001", "1.0e-4", "'1e-4'"])
def test_a_number_is_a_number_however_it_is_written(text: str) -> None:
    assert check_config(SMALLEST, [f"optimizer.learning_rate={text}"]).optimizer.learning_rate == 1e-4


@in_one_test(
    "override, message",
    [
        ("seed=true", "config.seed: should be a number, got True"),
        ("optimizer.warmup=false", "config.optimizer.warmup: should be a number, got False"),
        ("optimizer.betas=[false, 0.9]", "config.optimizer.betas.0: should be a number, got False"),
        ("optimizer.learning_rate=.inf", "config.optimizer.learning_rate: should be a finite number"),
        ("optimizer.learning_rate=.nan", "config.optimizer.learning_rate: should be"),
        ("optimizer.name=adamm", "config.optimizer.name: should be 'adamw', 'adam', 'sgd' or 'adamw8bit', got 'adamm'"),
        ("averaging.decay=1", "config.averaging.decay: should be less than 1, got 1"),
        ("scoring.max_failed_share=2", "config.scoring.max_failed_share: should be less than or equal to 1, got 2"),
        ("checkpoint.keep=0", "config.checkpoint.keep: should be greater than or equal to 1, got 0"),
        ("rewards.x.name=y", "rewards is a list of 1, got index 'x'"),
        ("=3", "an override looks like key.sub=value, got '=3'"),
        ("optimizer..x=3", "an override looks like key.sub=value, got 'optimizer..x=3'"),
        ("optimizer=adam", "config.optimizer: should be a section such as {name: value}, got 'adam'"),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_config(SMALLEST, [override])
    assert message in str(error.value)


RECIPE = {"name": "NFT", "paper": "Zheng et al. 2025", "arxiv": "2509.16117", "level": "lab"}


def test_a_recipe_says_what_a_config_is_and_reads_back() -> None:
    assert check_config(SMALLEST).recipe is None, "a config of a user's own needs none"
    checked = check_config(SMALLEST | {"recipe": RECIPE})
    assert checked.recipe is not None and checked.recipe.model_dump() == RECIPE
    assert check_config(yaml.safe_load(to_yaml(checked))) == checked


@in_one_test(
    ("override", "message"),
    [
        ("recipe.arxiv=2505.05470", 'recipe.arxiv: must stand in quotes, as "2505.05470" does'),
        ("recipe.arxiv=2505", "recipe.arxiv: must stand in quotes"),
        ("recipe.arxiv=cs/0701001", r"recipe.arxiv: String should match pattern '^\d{4}\.\d{4,5}$', got 'cs/0701001'"),
        ("recipe.arxiv='2505.05470v2'", "recipe.arxiv: String should match pattern"),
        ("recipe.level=paper", "recipe.level: should be 'lab', 'twin', 'gpu' or 'reproduced', got 'paper'"),
        ("recipe.name=''", "recipe.name: String should have at least 2 characters, got ''"),
        ("recipe.url=x", "config.recipe has no field 'url'; its fields are name, paper, arxiv, level"),
        ("recipe={name: NFT}", "config.recipe.paper is needed"),
    ],
)
def test_a_recipe_with_a_mistake_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_config(SMALLEST | {"recipe": RECIPE}, [override])
    assert message in str(error.value)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        check_config(SMALLEST, ["seed=x", "iterations=0", "optimizer.lr=1"])
    assert len(str(error.value).splitlines()) == 3


def test_a_file_is_taken_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart").write_text("seed: 5\n")
    assert read_yaml("quickstart") == {"seed": 5}


def test_settings_cannot_be_changed_once_they_are_checked() -> None:
    checked: RunConfig = check_config(SMALLEST)
    with pytest.raises(ValueError, match="frozen"):
        checked.seed = 3
