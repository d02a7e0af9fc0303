"""`mmrl score`: outputs in folders and files, their scores, and the page that shows them."""

import json
import re
import shutil
from dataclasses import fields, replace
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.commands.score import Seeing, reward_section, score_path, write_rows
from mmrl.commands.score_items import Item
from mmrl.commands.score_page import write_page
from mmrl.commands.score_results import Reckoning
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs, Prompt, Scores
from mmrl.media.pictures import StoredPicture
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from mmrl.rewards.models.edit_reward import EditReward
from mmrl.scoring import standalone
from mmrl.scoring.scorer import Judgement, Scorer
from mmrl.training.held_out import SavedSample, save_samples
from tests.parameters import in_one_test
from tests.tiny_cli import CommandLine, command_line

JPEG: dict[str, Any] = {"name": "jpeg_size"}
IOU: dict[str, Any] = {"name": "box_iou", "tag": None}


def picture(file: Path, seed: int = 0, size: tuple[int, int] = (40, 30)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    Image.fromarray(noise.to(torch.uint8).numpy()).save(file)
    return file


def answers(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    picture(tmp_path / "screen.png", size=(200, 100))
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps({"prompt": "where?", "image": "screen.png"} | row) + "\n" for row in rows))
    return file


BOX = {"box": [10, 10, 50, 50]}


def test_pictures_of_a_folder_have_their_prompts_beside_them(tmp_path: Path) -> None:
    for number in range(3):
        picture(tmp_path / f"{number}.png", number)
    (tmp_path / "1.txt").write_text("a noisy wall\n")
    found = score_path(tmp_path, [JPEG], prompt="anything")
    assert [item.prompt.text for item in found.items] == ["anything", "a noisy wall", "anything"]
    assert found.scores.group.tolist() == [0, 1, 0]
    assert found.scores.values.shape == (3, 1) and (found.scores.values < 0).all()


def test_pictures_of_several_sizes_stay_in_order(tmp_path: Path) -> None:
    for number, size in enumerate([(40, 30), (64, 64), (40, 30)]):
        picture(tmp_path / f"{number}.png", number, size)
    alone = []
    for number in range(3):
        (tmp_path / f"only{number}").mkdir()
        (tmp_path / f"{number}.png").rename(tmp_path / f"only{number}" / "x.png")
        alone.append(score_path(tmp_path / f"only{number}", [JPEG]).scores.values.item())
        (tmp_path / f"only{number}" / "x.png").rename(tmp_path / f"{number}.png")
    assert score_path(tmp_path, [JPEG]).scores.values[:, 0].tolist() == alone


def test_large_pictures_are_judged_in_smaller_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        picture(tmp_path / f"{number}.png", number)
    together = score_path(tmp_path, [JPEG]).scores.values
    sizes: list[int] = []
    sample_of = standalone.judge

    def judge(scorer: Scorer, prompts: list[Prompt], outputs: Outputs, **others: Any) -> Judgement:
        sizes.append(len(prompts))
        return sample_of(scorer, prompts, outputs, **others)

    monkeypatch.setattr("mmrl.commands.score.judge", judge)
    monkeypatch.setattr("mmrl.commands.score.PIXELS", 2 * 40 * 30)
    assert score_path(tmp_path, [JPEG]).scores.values.equal(together) and sizes == [2, 2, 1]
    monkeypatch.setattr("mmrl.commands.score.PIXELS", 1)
    assert score_path(tmp_path, [JPEG]).scores.values.equal(together) and sizes[3:] == [1] * 5


def test_metadata_gives_prompts_and_targets_and_leads_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    picture(folder / "a.png")
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "prompt": "a cat", "kind": "animal"}\n')
    (item,) = score_path(folder, [JPEG]).items
    assert (item.prompt.text, item.prompt.target) == ("a cat", {"kind": "animal"})
    picture(tmp_path / "outside.png")
    (folder / "metadata.jsonl").write_text('{"file_name": "../outside.png", "prompt": "a cat"}\n')
    with pytest.raises(ConfigError, match=r"line 1: file_name must be a file of the folder, got '../outside.png'"):
        score_path(folder, [JPEG])


def edits(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A folder of two edits of one picture and one of another, described by `rows`, one for each."""
    for number, name in enumerate(("0.png", "1.png", "2.png", "sources/a.png", "sources/b.png")):
        picture(folder / name, number)
    lines = [
        json.dumps({"file_name": f"{number}.png", "prompt": "make it red"} | row) for number, row in enumerate(rows)
    ]
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return folder


def test_edits_are_ranked_by_the_pictures_that_they_were_made_from(tmp_path: Path) -> None:
    """Edits of one picture by one instruction are a group; an edit that changes nothing keeps all of its picture."""
    made_from = ["sources/a.png", "sources/a.png", "sources/b.png"]
    rows = [{"images": [name, "mask.png"], "roles": ["image", "mask"], "theme": "red"} for name in made_from]
    folder = edits(tmp_path, rows)
    shutil.copy(folder / "sources" / "a.png", folder / "1.png")
    Image.new("RGB", (40, 30)).save(folder / "mask.png")
    found = score_path(folder, [{"name": "kept_outside_mask"}])
    first, second, third = (total or 0.0 for total in found.total)
    assert second == 1 and max(first, third) < 0.9
    assert found.best() == [1, 2]
    assert [row["group"] for row in found.rows()] == [0, 0, 2]
    assert all(item.prompt.target == {"theme": "red"} for item in found.items)


@pytest.mark.slow
def test_edits_are_ranked_by_a_reward_model_of_edits(tmp_path: Path) -> None:
    folder = edits(tmp_path / "edits", [{"images": "sources/a.png"}] * 3)
    twin = EditReward().tiny(0, tmp_path / "twin")
    settings = {one.name: getattr(twin, one.name) for one in fields(twin) if one.init}
    found = score_path(folder, [{"name": "edit_reward", **settings}])
    assert len(set(found.total)) == 3
    assert found.best() == [max(range(3), key=lambda row: found.total[row] or 0.0)]


@in_one_test(
    ("row", "message"),
    [
        ({"images": ["../x.png"]}, r"images must be files of the folder, got '../x.png'"),
        ({"images": 3}, "images must be a file or a list of files, got 3"),
        ({"images": ["sources/a.png"], "roles": ["source"]}, "'roles' must be a list, one of image, .*"),
    ],
)
def test_pictures_of_edits_that_are_wrong_are_refused(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"line 1: {message}"):
        score_path(edits(tmp_path, [row]), [JPEG])


def test_samples_of_a_run_are_read_as_it_wrote_them(tmp_path: Path) -> None:
    picture(tmp_path / "000.png")
    listed = [{"prompt": "a disc", "seed": 3, "scores": {}, "file": "000.png"}]
    (tmp_path / "samples.json").write_text(json.dumps({"kind": "image", "samples": listed}))
    assert [item.prompt.text for item in score_path(tmp_path, [JPEG]).items] == ["a disc"]
    listed = [{"prompt": "2 + 2?", "seed": 3, "scores": {}, "text": "4", "target": {"answer": "4"}}]
    (tmp_path / "samples.json").write_text(json.dumps({"kind": "text", "samples": listed}))
    assert score_path(tmp_path, [{"name": "exact_answer", "tag": None}]).total == [1]
    (tmp_path / "samples.json").write_text('{"kind": "image", "samples": [{"prompt": "x", "file": "../x.png"}]}')
    with pytest.raises(ConfigError, match=r"is no file of the folder"):
        score_path(tmp_path, [JPEG])


def test_answers_of_a_file_are_scored_in_pixels_of_their_image(tmp_path: Path) -> None:
    said = ["[10, 10, 50, 50]", "[10, 10, 50, 30]", "nothing"]
    found = score_path(answers(tmp_path, [BOX | {"response": said}]), [IOU])
    assert found.total == pytest.approx([1, 0.5, 0])
    assert found.best() == [0]
    assert found.rows()[1] == {
        "name": f"{tmp_path / 'answers.jsonl'}, line 1, answer 2",
        "prompt": "where?",
        "response": "[10, 10, 50, 30]",
        "group": 0,
        "scores": {"box_iou": 0.5},
        "total": 0.5,
    }
    thousand = answers(tmp_path, [BOX | {"said": "[50, 100, 250, 500]"}])
    assert score_path(thousand, [IOU], response="said", seeing=Seeing(coordinates="thousand")).total == [1]


@pytest.mark.slow
def test_a_dialect_makes_actions_of_answers(tmp_path: Path) -> None:
    row = BOX | {"action": "click", "response": "pyautogui.click(x=30, y=20)"}
    assert score_path(answers(tmp_path, [row]), [{"name": "gui_action"}], seeing=Seeing(dialect="pyautogui")).total == [
        1
    ]


def test_best_of_n_leaves_out_what_could_not_be_judged(tmp_path: Path) -> None:
    for number in range(2):
        picture(tmp_path / f"{number}.png", number)
    found = score_path(tmp_path, [{"name": "python", "function": "tests.commands.test_score:shy"}])
    assert found.total == [None, 1.0] and found.best() == [1]
    assert found.summary()["scores"]["shy"]["failed"] == 1
    assert "too shy" in str(found)
    assert found.rows()[0]["scores"] == {"shy": None}


def shy(image: torch.Tensor) -> float:
    first = torch.randint(0, 256, (30, 40, 3), generator=torch.Generator().manual_seed(0))[0, 0, 0]
    if round(float(image[0, 0, 0]) * 255) == int(first):
        raise ValueError("too shy")
    return 1.0


@pytest.mark.parametrize(
    ("rows", "reward", "message"),
    [
        ([{"response": "x"}], IOU, "line 1: reward 'box_iou' needs 'box' in the target"),
        ([BOX | {"response": "x"}, BOX], IOU, "line 2: needs a text or a list of texts in response or completion"),
        ([BOX | {"response": 3}], IOU, "line 1: needs a text"),
        ([BOX | {"response": "x", "image": "gone.png"}], IOU, "line 1"),
        ([{"response": "x", "box": [5, 5, 5, 9]}], IOU, "line 1"),
        ([BOX | {"response": "x"}], {"name": "clip_scor"}, "did you mean 'clip_score'"),
        ([BOX | {"response": "x"}], JPEG, "needs images"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(
    tmp_path: Path, rows: list[dict[str, Any]], reward: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        score_path(answers(tmp_path, rows), [reward])


def test_nothing_to_score_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is nothing to score"):
        score_path(tmp_path, [JPEG])
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        score_path(tmp_path / "gone", [JPEG])
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match="it is neither"):
        score_path(tmp_path / "notes.txt", [JPEG])


def test_groups_of_pictures_that_are_compared_have_one_size(tmp_path: Path) -> None:
    for number, size in enumerate([(40, 30), (64, 64)]):
        picture(tmp_path / f"{number}.png", number, size)
    whole = {"name": "length_penalised", "reward": JPEG}
    with pytest.raises(ConfigError, match="must have one size, those of a group have 40 x 30, 64 x 64"):
        score_path(tmp_path, [whole], prompt="x")


@in_one_test(
    ("text", "section"),
    [
        ("aesthetic", {"name": "aesthetic"}),
        ("box_iou kind=giou tag=null weight=0.5", {"name": "box_iou", "kind": "giou", "tag": None, "weight": 0.5}),
        ("gated 'reward={name: anls}'", {"name": "gated", "reward": {"name": "anls"}}),
        ('json_schema schema={"type":"object"}', {"name": "json_schema", "schema": {"type": "object"}}),
        ("json_schema schema='{\"a b\": 1}' seconds=2", {"name": "json_schema", "schema": {"a b": 1}, "seconds": 2}),
        ('wer tag="the answer"', {"name": "wer", "tag": "the answer"}),
    ],
)
def test_a_reward_and_its_settings_on_the_command_line(text: str, section: dict[str, Any]) -> None:
    assert reward_section(text) == section


@in_one_test("text", ["", "box_iou giou", "box_iou kind=[", "'box_iou"])
def test_bad_rewards_on_the_command_line_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--reward"):
        reward_section(text)


def test_the_page_shows_all_outputs_the_best_first_and_escapes_them(tmp_path: Path) -> None:
    said = ["[10, 10, 50, 30]", "[10, 10, 50, 50]", "<script>alert(1)</script>"]
    found = score_path(answers(tmp_path, [BOX | {"response": said}]), [IOU, {"name": "format_tags", "weight": 0}])
    write_page(found, tmp_path / "out" / "page.html", "answers <of> mine", Seeing())
    page = (tmp_path / "out" / "page.html").read_text()
    shown = [json.loads(unescape(scores)) for scores in re.findall(r'data-scores="([^"]*)"', page)]
    assert shown == [[1, 1, 0], [0.5, 0.5, 0], [0, 0, 0]]
    assert page.count("<img") == 3 and "<script>alert" not in page and "answers &lt;of&gt; mine" in page
    assert 'src="http' not in page and "default-src 'none'" in page


@pytest.fixture
def mmrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.mark.slow
def test_the_command_prints_a_table_or_json_and_writes_files(
    mmrl: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    answers(mmrl.folder, [BOX | {"response": ["[10, 10, 50, 50]", "no"]}])
    arguments = ["score", "answers.jsonl", "--reward", "box_iou tag=null"]
    shown = mmrl(*arguments, "--out", "s.jsonl", "--best", "b.jsonl", "--html", "p.html")
    assert shown.code == 0 and "2 outputs in 1 group\n" in shown.out and "p.html" in shown.out
    assert [json.loads(line)["total"] for line in Path("s.jsonl").read_text().splitlines()] == [1, 0]
    assert json.loads(Path("b.jsonl").read_text())["response"] == "[10, 10, 50, 50]"
    assert Path("p.html").is_file()
    told = json.loads(mmrl(*arguments, "--json").out)
    assert told["scores"]["box_iou"]["mean"] == 0.5
    wrong = mmrl(*arguments, "--coordinates", "thousands")
    assert wrong.code == 2 and "did you mean 'thousand'" in wrong.err
    mmrl("score", "answers.jsonl", "--reward", "box_iou")
    assert "which no answer has; 'box_iou tag=null' reads whole answers" in caplog.text


def test_rows_are_lines_of_json(tmp_path: Path) -> None:
    write_rows([{"a": "ü"}, {"a": None}], tmp_path / "new" / "rows.jsonl")
    assert (tmp_path / "new" / "rows.jsonl").read_text(encoding="utf-8") == '{"a": "ü"}\n{"a": null}\n'


def as_stored(name: str, image: Image.Image) -> StoredPicture:
    content = BytesIO()
    image.save(content, "PNG")
    return StoredPicture(name, content=content.getvalue())


def screen(colour: str) -> StoredPicture:
    return as_stored(colour, Image.new("RGB", (200, 100), colour))


SCREEN, OTHER = screen("red"), screen("blue")


def sample_of(text: str, seed: int, media: StoredPicture = SCREEN, **known: Any) -> SavedSample:
    """A sample of a run: what was answered about a screen of 200 x 100 pixels that the model saw in 56 x 28."""
    canvas = Canvas((200, 100), (56, 28), "resized")
    return SavedSample("where?", seed, {}, text=text, media=(media,), canvas=canvas, target=BOX, **known)


def test_answers_of_a_run_are_judged_again_about_their_own_images_in_their_own_unit(tmp_path: Path) -> None:
    first, second = tmp_path / "samples" / "000000", tmp_path / "samples" / "000010"
    answers = [sample_of("[2.8, 2.8, 14, 14]", 3), sample_of("nothing", 4), sample_of("[10, 10, 50, 50]", 5, OTHER)]
    for folder in (first, second):
        save_samples(answers, folder, folder.parent / "questions")
    assert len(list((tmp_path / "samples" / "questions").iterdir())) == 2  # each image once
    found = score_path(second, [IOU])
    values = found.scores.values[:, 0].tolist()
    assert values[:2] == pytest.approx([1, 0]) and values[2] < 0.1
    assert found.scores.group.tolist() == [0, 1, 2]  # the same words, and three prompts
    assert [item.prompt.media[0].load().getpixel((0, 0)) for item in found.items][::2] == [(255, 0, 0), (0, 0, 255)]
    page = tmp_path / "page.html"
    write_page(found, page, "samples", Seeing())
    assert page.read_text().count("<img") == 3
    shutil.rmtree(tmp_path / "samples" / "questions")
    with pytest.raises(ConfigError, match="an image of sample 0, is no file of the folder or of"):
        score_path(second, [IOU])


def edited(grey: int) -> SavedSample:
    """An edit of a black picture: the left half, outside of the mask, is of a grey level."""
    mask, image = Image.new("L", (8, 8), 255), Image.new("RGB", (8, 8), "white")
    mask.paste(0, (0, 0, 4, 8))
    image.paste((grey,) * 3, (0, 0, 4, 8))
    pictures = [as_stored("before", Image.new("RGB", (8, 8))), as_stored("mask", mask)]
    return SavedSample("go", grey, {}, image=image, num_images=2, media=tuple(pictures), roles=("image", "mask"))


def test_edits_of_a_run_are_judged_again_by_their_images_and_the_roles_of_these(tmp_path: Path) -> None:
    save_samples([edited(0), edited(51)], tmp_path)
    found = score_path(tmp_path, [{"name": "kept_outside_mask"}])
    assert found.total == pytest.approx([1, 1 - 51 / 255])


def test_a_sample_with_a_role_too_many_is_refused(tmp_path: Path) -> None:
    save_samples([replace(edited(0), roles=("image", "mask", "control"))], tmp_path)
    with pytest.raises(ConfigError, match=r"of sample 0 'roles' must be a list, one of image, .* for each image, got"):
        score_path(tmp_path, [{"name": "kept_outside_mask"}])


def test_samples_that_were_drawn_for_one_prompt_are_a_group(tmp_path: Path) -> None:
    save_samples([sample_of("a", 0), sample_of("b", 0), sample_of("c", 1)], tmp_path)
    assert score_path(tmp_path, [IOU]).scores.group.tolist() == [0, 0, 2]
    assert (tmp_path / "questions").is_dir()


def test_actions_that_a_run_read_are_judged_and_a_dialect_reads_them_anew(tmp_path: Path) -> None:
    actions = [Action("click", point=(30.0, 30.0)), None, Action("type", is_kind_only=True)]
    save_samples([sample_of("<answer>(50, 25)</answer>", 0, has_actions=True, action=one) for one in actions], tmp_path)
    found = score_path(tmp_path, [{"name": "point_in_box"}])
    assert found.total == [1, 0, 0]
    assert [item.actions for item in found.items] == [(action,) for action in actions]
    anew = score_path(tmp_path, [{"name": "point_in_box"}], seeing=Seeing(dialect="plain"))
    assert anew.total == [0, 0, 0]  # (178, 89) of the original


@pytest.mark.parametrize(
    "wrong",
    [
        {"images": "x.png"},
        {"images": [3]},
        {"images": ["../../secret.png"]},
        {"canvas": {"original": [1], "resized": [1, 1], "convention": "unit"}},
        {"canvas": {"original": [1, 1]}},
        {"canvas": 3},
        {"action": {"kind": "dance"}},
        {"action": {"step": 1}},
        {"action": 3},
    ],
    ids=str,
)
def test_what_a_run_knew_of_an_answer_is_read_with_care(tmp_path: Path, wrong: dict[str, Any]) -> None:
    picture(tmp_path / "secret.png")
    folder = tmp_path / "samples" / "000000"
    save_samples([sample_of("x", 0)], folder)
    listed = json.loads((folder / "samples.json").read_text())
    listed["samples"][0] |= wrong
    (folder / "samples.json").write_text(json.dumps(listed))
    with pytest.raises(ConfigError, match=r"samples\.json is not what mmrl writes"):
        score_path(folder, [IOU])


def test_a_table_says_where_nothing_was_judged_and_its_columns_stay_apart() -> None:
    names = ("x" * 40, "small", "failed")
    values = torch.tensor([[-1.23456e-05, 1.0, torch.nan], [-1.23999e-05, 1.0, torch.nan]])
    rows = torch.arange(2)
    scores = Scores(values, names, (1.0, 1.0, 0.0), torch.tensor([True, True]), rows, rows, torch.zeros(2))
    lines = str(Reckoning([Item("a", Prompt("")), Item("b", Prompt(""))], scores, (None, None, "away"))).splitlines()
    table = [re.split(r" {2,}", line.strip()) for line in lines[2:7]]
    assert table[0] == ["reward", "mean", "std", "min", "max", "failed"]
    assert table[1] == ["x" * 40, "-1.237e-05", "2.715e-08", "-1.24e-05", "-1.235e-05", "0"]
    assert table[3] == ["failed", "none judged", "-", "-", "-", "2"]
    assert len({len(line) for line in lines[2:7]}) == 1
