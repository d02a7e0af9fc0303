"""A model whose unit of coordinates is unknown is refused where they are read, before a sample is drawn."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mmrl.assembly.build import build, make_trainer
from mmrl.commands.check import plan_summary
from mmrl.core.config import load_config
from mmrl.core.contracts import ConfigError
from mmrl.modalities.gui import Gui
from mmrl.modalities.vision_language import VisionLanguage
from tests.vision_twins import twin

UNKNOWN = r"^modality\.coordinates: it is not known in which unit this model writes"
NEW = ("threads=1", "modality.model=me/new", "modality.family=ovis2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quickstart_grounding", "quickstart_gui"])
def test_boxes_and_actions_need_a_known_unit(name: str) -> None:
    with pytest.raises(ConfigError, match=UNKNOWN):
        plan_summary(load_config(name, NEW))
    plan_summary(load_config(name, [*NEW, "modality.coordinates=unit"]))
    plan_summary(load_config(name, ["threads=1", "modality.model=me/new", "modality.family=qwen3_5"]))


@pytest.mark.slow
def test_rewards_of_the_evaluation_count_and_texts_need_no_unit() -> None:
    texts = [*NEW, "rewards=[{name: format_tags}]"]
    with pytest.raises(ConfigError, match=UNKNOWN):
        build(load_config("quickstart_grounding", texts))
    build(load_config("quickstart_grounding", [*texts, "evaluation.rewards=[{name: format_tags}]"]))


def test_a_hub_name_without_a_family_is_asked_when_it_is_loaded() -> None:
    for policy in (VisionLanguage(model="me/new"), Gui(model="me/new", dialect="plain")):
        assert policy.declaration.has_coordinates
    policy._encoder = SimpleNamespace(convention=None)  # type: ignore[assignment]
    assert not policy.declaration.has_coordinates
    for family in ("smolvlm", "idefics3", "llava_onevision", "gemma3"):
        assert VisionLanguage(model="me/new", family=family).declaration.has_coordinates


@pytest.mark.slow  # loads and compares a model
def test_a_run_ends_at_the_load_where_only_the_load_tells_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("quickstart_grounding", ["threads=1", f"modality.model={twin('ovis2')}"])
    with pytest.raises(ConfigError, match=UNKNOWN):
        build(config)

    def unknown(policy: VisionLanguage) -> None:  # as of a name on the hub
        raise ConfigError("cannot tell the family")

    monkeypatch.setattr(VisionLanguage, "_family", unknown)
    parts = build(config)
    with pytest.raises(ConfigError, match=UNKNOWN):
        make_trainer(config, parts, tmp_path)
