"""`mmrl sample --image`: answers about images from the command line."""

import json
from pathlib import Path

import pytest
from PIL import Image

from mmrl.modalities.gui import Gui
from mmrl.system.terminal import printable
from tests.tiny_cli import CommandLine, command_line

CONFIG = """
iterations: 1
prompts_per_iteration: 1
group_size: 2
prompts: {train: {path: rows.jsonl}}
modality: {name: gui, model: twin, dialect: plain}
sampler: {name: autoregressive, max_tokens: 6}
rewards: [{name: my_rewards:Constant}]
loss: {name: grpo}
advantage: {name: grpo}
optimizer: {learning_rate: 1.0e-3}
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """In a folder with a config of a random tiny model, and two images."""
    made = command_line(tmp_path, monkeypatch, capsys)
    Gui(model="Qwen/Qwen2.5-VL-3B-Instruct", dialect="plain").tiny(0, tmp_path / "twin")
    Path("asked.yaml").write_text(CONFIG)
    Path("rows.jsonl").write_text('{"prompt": "click OK", "image": "a.png"}\n')
    for name, colour in (("a.png", "red"), ("b.png", "blue")):
        Image.new("RGB", (64, 40), colour).save(name)
    return made


@pytest.mark.slow
def test_answers_are_saved_with_the_first_image_of_the_prompt(cli: CommandLine) -> None:
    given = ["--prompt", "click OK in <image>, not in <image>", "--image", "a.png", "--image", "b.png", "--count", "2"]
    ended = cli("sample", "asked.yaml", *given, "--out", "drawn")
    listed = json.loads(Path("drawn/samples.json").read_text())["samples"]
    printed = "".join(f"{given[1]}: {printable(one['text'])}\n" for one in listed)  # a random model says anything
    assert (ended.code, ended.out) == (0, f"{printed}drawn\n"), ended.err
    assert [(one["prompt"], one["num_images"]) for one in listed] == [(given[1], 2)] * 2
    assert all(isinstance(one["text"], str) for one in listed)
    with Image.open(Path("drawn", listed[0]["file"])) as picture:
        assert picture.size == (320, 200) and picture.getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.slow
def test_a_picture_of_ones_own_has_no_target_of_another_one(cli: CommandLine) -> None:
    Path("rows.jsonl").write_text('{"prompt": "click OK", "image": "a.png", "box": [0, 0, 9, 9]}\n')
    cli("sample", "asked.yaml", "--prompt", "click OK", "--image", "b.png", "--count", "1", "--out", "drawn")
    (listed,) = json.loads(Path("drawn/samples.json").read_text())["samples"]
    assert "target" not in listed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (["absent.png"], "--image: there is no file 'absent.png'"),
        (["asked.yaml"], "cannot read the image asked.yaml"),
        (["a.png", "b.png"], "has 1 marks <image> for 2 images"),
        ([], "has no screenshot"),
    ],
)
def test_images_that_cannot_be_asked_about_are_named(cli: CommandLine, images: list[str], message: str) -> None:
    given = [word for image in images for word in ("--image", image)]
    ended = cli("sample", "asked.yaml", "--prompt", "click OK in <image>", *given)
    assert ended.code == 2 and message in ended.err
    assert not Path("samples").exists()
