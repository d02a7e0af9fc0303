"""`mmrl score` and `mmrl.score` with input that is not as it should be: refused before anything is lost."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import mmrl as package
from mmrl.commands.score import Seeing, check_written, reward_section, score_path, write_rows
from mmrl.commands.score_page import write_page
from mmrl.core.contracts import ConfigError
from mmrl.scoring.standalone import scorer_of
from tests.commands.test_score import JPEG, picture
from tests.tiny_cli import CommandLine, command_line

ROW = {"prompt": "2 + 2?", "answer": "4", "response": "<answer>4</answer>"}
FUNCTIONS = """
def silent(text):
    return None

def loud(text):
    print("NOISE")
    return 1.0
"""


@pytest.fixture
def mmrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    (tmp_path / "answers.jsonl").write_text(json.dumps(ROW) + "\n")
    (tmp_path / "odd_functions.py").write_text(FUNCTIONS)
    return command_line(tmp_path, monkeypatch, capsys)


def test_a_name_that_is_no_utf_8_is_written_and_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    os.rename(picture(folder / "a.png"), os.fsencode(folder) + b"/\xff.png")
    found = score_path(folder, [JPEG])
    write_rows(found.rows(), tmp_path / "rows.jsonl")
    write_page(found, tmp_path / "page.html", "pictures", Seeing())
    assert json.loads((tmp_path / "rows.jsonl").read_text(encoding="utf-8"))["name"] == "\udcff.png"
    assert "&#56575;.png" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"prompt": 3, "text": "a"}, "the prompt of sample 0 must be a text, got 3"),
        ({"prompt": "p", "text": None}, "the text of sample 0 must be a text, got None"),
        ({"prompt": "p"}, "it lacks 'text'"),
        ({"prompt": "p", "text": "a", "target": [1]}, r"the target of sample 0 must be an object, got \[1\]"),
        (3, "sample 0 must be an object, got 3"),
    ],
    ids=["prompt", "text", "none", "target", "number"],
)
def test_samples_that_are_not_as_mmrl_writes_them_are_refused(tmp_path: Path, sample: Any, message: str) -> None:
    (tmp_path / "samples.json").write_text(json.dumps({"kind": "text", "samples": [sample]}))
    with pytest.raises(ConfigError, match=message):
        score_path(tmp_path, [{"name": "format_tags"}])


def test_samples_that_are_nested_too_deep_are_refused(tmp_path: Path) -> None:
    (tmp_path / "samples.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"is damaged: it is not JSON \(brackets are nested too deep"):
        score_path(tmp_path, [JPEG])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"file_name": "a.png", "prompt": ["x"]}, "the field 'prompt' must be a text"),
        ({"file_name": "a" * 5000, "prompt": "x"}, "file_name must be a file of the folder"),
    ],
    ids=["prompt", "name"],
)
def test_metadata_that_is_wrong_is_refused_with_its_line(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "metadata.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=f"metadata.jsonl, line 1: {message}"):
        score_path(tmp_path, [JPEG])


def test_pictures_and_videos_are_not_scored_together(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "b.mp4").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"holds pictures and videos, such as 'a\.png' and 'b\.mp4'"):
        score_path(tmp_path, [JPEG])


def test_no_reward_is_called_total_beside_another(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    assert list(score_path(tmp_path, [JPEG | {"label": "total"}]).summary()["scores"]) == ["total"]
    with pytest.raises(ConfigError, match="cannot be labelled 'total'"):
        score_path(tmp_path, [JPEG, JPEG | {"label": "total"}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a name, and settings as key=value, got ''$"),
        ("anls kind", "^--reward 'anls kind': a setting looks like key=value, got 'kind'$"),
        ("anls =3", "a setting looks like key=value, got '='"),
        ("anls name=wer", "'name' is given twice"),
        ("anls tag=a tag=b", "'tag' is given twice"),
    ],
    ids=["empty", "no value", "no key", "another name", "twice"],
)
def test_what_is_wrong_with_a_reward_on_the_command_line_is_said_once(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reward_section(text)


def test_a_section_inside_of_a_reward_on_the_command_line_needs_no_quotes_of_its_own() -> None:
    inner = {"name": "number", "range": [0, 1]}
    expected = {"name": "win_rate", "reward": {"name": "clip_range", "reward": inner}, "margin": 0.1}
    assert (
        reward_section("win_rate reward={name: clip_range, reward: {name: number, range: [0, 1]}} margin=0.1")
        == expected
    )
    assert reward_section('anls reward="{name: a}" tag=a{b weight=1') == {
        "name": "anls",
        "reward": {"name": "a"},
        "tag": "a{b",
        "weight": 1,
    }
    with pytest.raises(ConfigError, match="needs a name, and settings as key=value"):
        reward_section("win_rate reward={name: number margin=0.1")


def test_files_that_cannot_be_written_are_refused_before_scoring(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    source = tmp_path / "answers.jsonl"
    for file, message in (
        (tmp_path / "folder", "it is a folder"),
        (tmp_path / "file" / "x", "is no folder that can be written to"),
        (source, "would be overwritten"),
    ):
        source.write_text("")
        with pytest.raises(ConfigError, match=message):
            check_written(source, None, file)
    with pytest.raises(ConfigError, match="twice"):
        check_written(source, tmp_path / "x", None, tmp_path / "folder" / ".." / "x")
    check_written(source, tmp_path / "new" / "x", tmp_path / "file", None)


def test_files_of_the_folder_that_is_scored_are_not_overwritten(tmp_path: Path) -> None:
    for name in ("metadata.jsonl", "a.png", "a.txt"):
        (tmp_path / name).write_text("")
        with pytest.raises(ConfigError, match="would be overwritten"):
            check_written(tmp_path, tmp_path / name)
    check_written(tmp_path, tmp_path / "scores.jsonl", tmp_path / "page.html")


def test_what_is_scored_is_still_there_after_a_refused_command(mmrl: CommandLine) -> None:
    refused = mmrl("score", "answers.jsonl", "--reward", "exact_answer", "--out", "./answers.jsonl")
    assert refused.code == 2 and "would be overwritten" in refused.err
    assert json.loads(Path("answers.jsonl").read_text()) == ROW


def test_where_nothing_could_be_judged_the_command_fails_and_says_why(mmrl: CommandLine) -> None:
    ended = mmrl("score", "answers.jsonl", "--reward", "python function=odd_functions:silent", "--json")
    assert ended.code == 1 and json.loads(ended.out)["scores"]["silent"]["failed"] == 1
    assert "could not be judged, the first: silent: ValueError" in ended.err


def test_what_a_reward_prints_is_not_between_the_json(mmrl: CommandLine) -> None:
    ended = mmrl("score", "answers.jsonl", "--reward", "python function=odd_functions:loud", "--json")
    assert ended.code == 0 and json.loads(ended.out)["scores"]["loud"]["mean"] == 1
    assert ended.err == "NOISE\n"


IMAGES = torch.full((2, 3, 8, 8), 0.5)


@pytest.mark.parametrize(
    ("images", "got"),
    [
        ((IMAGES * 255).to(torch.uint8), "torch.uint8"),
        (IMAGES * 255, "numbers from 127.5 to 127.5"),
        (IMAGES - 1, "numbers from -0.5 to -0.5"),
        (IMAGES.permute(0, 2, 3, 1), r"\[2, 8, 8, 3\]"),
        (IMAGES[:, 0], r"\[2, 8, 8\]"),
        (IMAGES[..., :0], r"\[2, 3, 8, 0\]"),
        (IMAGES.numpy(), "got ndarray"),
    ],
    ids=["whole", "to 255", "negative", "channels last", "grey", "empty", "numpy"],
)
def test_pixels_in_another_form_are_refused(images: Any, got: str) -> None:
    form = r"images must be a tensor \[B, 3, H, W\] of real numbers in \[0, 1\]"
    with pytest.raises(ConfigError, match=f"{form}.*{got}"):
        package.score("jpeg_size", ["a", "b"], images=images)


def test_videos_in_another_form_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"videos must be a tensor \[B, F, 3, H, W\]"):
        package.score("flicker", ["a", "b"], videos=IMAGES)


def test_no_images_have_no_scores() -> None:
    assert package.score("jpeg_size", [], images=torch.zeros(0, 3, 8, 8)).shape == (0,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"texts": "ab"}, "texts must be a list of str, got 'ab'"),
        ({"texts": ["a", None]}, "texts must be a list of str, got None in it"),
        ({"prompts": "ab"}, "prompts must be a list of str or Prompt"),
        ({"prompts": [1, 2]}, "prompts must be a list of str or Prompt, got 1 in it"),
        ({"targets": [{}]}, "as many targets as prompts, got 1 for 2"),
        ({"targets": ["x", "y"]}, "targets must be a list of mappings"),
        ({"coordinates": "foo"}, "coordinates must be one of original"),
        ({"device": "cud"}, "device must be one that is here"),
        ({"reward": True}, "rewards are names or sections"),
    ],
    ids=["text", "none", "prompt", "numbers", "short", "texts", "coordinates", "device", "reward"],
)
def test_other_input_in_another_form_is_refused(given: dict[str, Any], message: str) -> None:
    arguments = {"reward": "format_tags", "prompts": ["a", "b"], "texts": ["a", "b"]} | given
    with pytest.raises(ConfigError, match=message):
        package.score(arguments.pop("reward"), arguments.pop("prompts"), **arguments)


def test_a_mix_is_a_section() -> None:
    with pytest.raises(ConfigError, match=r"a mix is a section such as \{name: gdpo\}, got 'gdpo'"):
        scorer_of(["format_tags"], mix="gdpo")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "label", [None, "", " ", ["a"], "a\nb", 3], ids=["none", "empty", "blank", "list", "lines", "number"]
)
def test_labels_are_texts_in_one_line(label: Any) -> None:
    with pytest.raises(ConfigError, match=r"rewards\.label must be a text in one line"):
        scorer_of([JPEG | {"label": label}])


def test_weights_are_no_truth_values() -> None:
    with pytest.raises(ConfigError, match=r"rewards\.weight must be a number.*got True"):
        scorer_of([JPEG | {"weight": True}])
