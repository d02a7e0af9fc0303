"""The model card of an export: its head, where the weights come from, and code that can be run."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from PIL import Image

import mmrl
from mmrl.commands import train
from mmrl.commands.model_card import _head, _needed_images, _text
from mmrl.core.config import load_config
from mmrl.core.contracts import Usage
from mmrl.core.data import Prompt
from mmrl.core.keys import GroupKey
from mmrl.media.pictures import StoredPicture
from mmrl.modalities.flow.usage import Call, code_of
from mmrl.run_directory.start import config_name, update_config
from mmrl.system.versions import version_of
from tests.tiny_cli import CommandLine, command_line
from tests.tiny_runs import KINDS, SMALL


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations of a LoRA, evaluated before and after the first and the second."""
    out = tmp_path_factory.mktemp("cards") / "run|1"
    mmrl.train("quickstart", [*SMALL, *KINDS["lora"], "iterations=2", "evaluation.every=1"], out=out)
    return out


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


def card_of(folder: Path) -> tuple[dict[str, Any], dict[str, str], str]:
    """The head, the table by its first column, and the code."""
    _, head, body = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    rows = [line.strip("| ").split(" | ", 1) for line in body.splitlines() if line.startswith("| ") and line != "| | |"]
    return yaml.safe_load(head), dict(rows), body.partition("```python\n")[2].partition("```")[0]


@pytest.mark.slow  # trains, and loads the model three times
def test_a_card_says_where_its_weights_come_from_and_its_code_runs(
    cli: CommandLine, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = cli("export", str(trained), "--out", "exported")
    assert (ended.code, ended.out, ended.err) == (0, "exported\n", "")
    head, table, code = card_of(Path("exported"))
    assert head["library_name"] == "diffusers" and head["tags"] == ["mmrl", "reinforcement-learning", "lora"]
    assert "base_model" not in head  # it is none of the hub's
    summary = json.loads((trained / "summary.json").read_text())["held_out"]
    assert table["config"] == "quickstart"
    assert table["trained"] == "the transformer, a LoRA" and table["rewards"] == "shapes"
    assert table["iterations"] == "2, weights: trained" and table["mmrl"] == version_of("mmrl")
    assert table["held-out correct"] == f"{summary['before']:.3f} before, {summary['after']:.3f} after"
    monkeypatch.chdir("exported")
    exec(compile(code, "README.md", "exec"), {})
    assert Path("drawn.png").is_file()


@pytest.mark.slow  # the same
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers so
@pytest.mark.parametrize("kind", ["vision_language", "vision_language_lora"])
def test_the_code_of_a_card_answers_what_the_run_answers(
    cli: CommandLine, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = "evaluation.sampler={name: autoregressive, max_tokens: 8, temperature: 0}"
    assert cli.train("iterations=2", "optimizer.learning_rate=0.01", greedy, kind=kind).code == 0
    exported = cli("export", "run", "--out", "exported")
    assert (exported.code, exported.err) == (0, "")
    _, table, code = card_of(Path("exported"))
    assert table["trained"].endswith("a LoRA" if kind.endswith("lora") else "all weights")
    pictures = [f"exported/{name}" for name in re.findall(r'Image.open\("(.*?)"\)', code)]
    for number, picture in enumerate(pictures):
        Image.linear_gradient("L").resize((90, 60 + 9 * number)).convert("RGB").save(picture)
    found: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        patch.chdir("exported")
        exec(compile(code.replace("print(", "said = ("), "README.md", "exec"), found)  # a terminal shows no controls
    system, asked = found["messages"]
    text = "".join(part["text"] if part["type"] == "text" else "<image>" for part in asked["content"])
    media = tuple(StoredPicture(picture, path=Path(picture)) for picture in pictures)
    with train.restored("run") as (trainer, weights), trainer.policy.weights(weights):
        assert trainer.evaluator is not None
        key = GroupKey(0, 0, 0)
        plan = trainer.evaluator.sampler.plan(trainer.policy, key, 1)
        rollout = trainer.policy.rollout([Prompt(text, media, system=system["content"][0]["text"])], [plan], [key])
    assert rollout.outputs.texts == (found["said"],) != ("",)


@pytest.mark.slow  # the same
def test_a_card_names_no_scores_of_other_weights(trained: Path, tmp_path: Path) -> None:
    train.export(str(trained), tmp_path / "exported", "reference")
    assert not [name for name in card_of(tmp_path / "exported")[1] if name.startswith("held-out")]


def test_a_base_model_is_named_to_the_hub_where_it_is_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "sd3").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    class Trainer:
        config: Any

    for model, found in (
        ("org/name", "org/name"),
        ("./a/b", None),
        ("models/sd3", None),
        ("/models/sd3", None),
        ("lab:shapes", None),
    ):
        Trainer.config = load_config("quickstart", [f"modality.model={model}"])
        assert _head(Trainer(), None).get("base_model") == found  # type: ignore[arg-type]


def test_texts_stay_in_their_cell() -> None:
    assert _text("a|b\n<c> \\") == "a\\|b &lt;c> \\\\"


def test_the_name_of_a_run_s_config_outlives_a_resume(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "# config: lab/grpo\n" + (Path(mmrl.__file__).parent / "configs/quickstart.yaml").read_text()
    )
    update_config(tmp_path, load_config(tmp_path / "config.yaml", ["iterations=77"]))
    assert config_name(tmp_path) == "lab/grpo"
    assert load_config(tmp_path / "config.yaml").iterations == 77
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert config_name(tmp_path) == ""


def test_the_card_says_which_condition_images_its_code_loads() -> None:
    usage = Usage("diffusers", "image-to-image", "all weights", False, 'pipe(prompt="condition_7.png")')
    (said,) = _needed_images(replace(usage, images=("condition_0.png", "condition_1.png")))
    assert said.endswith("beside the code: condition_0.png, condition_1.png.")
    assert _needed_images(usage) == []


class Silent:
    """A pipeline without parts."""

    components: ClassVar[dict[str, Any]] = {}
    _optional_components: ClassVar[list[str]] = []


def test_the_code_for_a_model_that_makes_sound_saves_it() -> None:
    call = Call({"num_frames": "9"}, makes="video", fps=24.0, sound_rate=24000)
    code = code_of(Silent(), ["transformer"], "torch.float32", Prompt("rain"), call, None)
    ran: dict[str, Any] = {}

    class Pipe:
        @classmethod
        def from_pretrained(cls, folder: str, **settings: Any) -> Any:
            return cls()

        def to(self, device: str) -> Any:
            return self

        def __call__(self, **arguments: Any) -> Any:
            ran["arguments"] = arguments
            return ["a video"], torch.ones(1, 7), "more"

    lines = [line for line in code.splitlines() if not line.startswith(("from diffusers", "import torch"))]
    save = lambda video, **rest: ran.update(video=video, **rest)  # noqa: E731
    exec("\n".join(lines), {"Silent": Pipe, "torch": torch, "encode_video": save})
    assert ran["arguments"]["num_frames"] == 9 and ran["arguments"]["return_dict"] is False
    assert ran["video"] == "a video" and ran["fps"] == 24 and ran["audio_sample_rate"] == 24000
    assert ran["audio"].shape == (1, 7) and ran["output_path"] == "drawn.mp4"
    assert "from diffusers.utils import encode_video  # pip install av" in code.splitlines()
    silent = code_of(Silent(), [], "torch.float32", Prompt("rain"), Call({}, makes="video"), None)
    assert "sound" not in silent and 'export_to_video(video, "drawn.mp4", fps=16)' in silent
