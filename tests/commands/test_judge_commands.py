"""`mmrl judge attack` and `mmrl judge agree`: planted judges are seen for what they are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from scipy.stats import binomtest

from mmrl.commands.judge_agree import LAYOUTS, agree, table, wilson
from mmrl.commands.judge_attack import attack, image_attacks, text_attacks
from mmrl.commands.judge_rows import opener_of, write_rows
from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.rewards.base.judging.prompt_files import load_prompt
from tests.parameters import in_one_test
from tests.tiny_cli import CommandLine, command_line

CORRECTNESS = ["exact_answer", "math_answer", "multiple_choice", "number", "anls", "text_f1", "rouge", "bleu"]


@pytest.fixture
def mmrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.mark.slow
def test_no_attack_is_rewarded_by_a_rule_of_correctness() -> None:
    for name in CORRECTNESS:
        attempts = attack({"name": name})
        assert [one.name for one in attempts if one.rewarded] == [], name
        assert len(attempts) == 2 * len(text_attacks(Prompt("?"))) and all(one.tried for one in attempts)


def own(module: Path, source: str) -> None:
    (module / "planted_judges.py").write_text(source, "utf-8")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "planted_judges", raising=False)
    own(
        tmp_path,
        "def weak(text, answer): return float('Solution' in text or answer in text)\n"
        "def longest(text): return len(text)\n"
        "def dark(image): return 1 - image.mean()\n"
        "def light(image): return image.mean()\n"
        "def broken(text, answer): raise RuntimeError('no')\n",
    )
    return tmp_path


@pytest.mark.slow
def test_a_weak_judge_is_caught(planted: Path) -> None:
    attempts = {one.name: one for one in attack({"name": "python", "function": "planted_judges:weak", "range": [0, 1]})}
    caught = attempts["Solution"]
    assert (caught.tried, caught.rewarded, caught.share, caught.mean) == (8, 8, 1.0, 1.0)
    assert attempts["empty"].rewarded == 0 and attempts["all small numbers"].rewarded > 0


@pytest.mark.slow
def test_a_judge_of_groups_is_attacked_beside_the_right_answer(planted: Path) -> None:
    inner = {"name": "python", "function": "planted_judges:longest"}
    attempts = {one.name: one for one in attack({"name": "win_rate", "reward": inner})}
    assert attempts["a wrong answer, long"].rewarded == 8 and attempts["empty"].rewarded == 0


@pytest.mark.slow
def test_what_a_judge_raises_at_is_counted_and_not_rewarded(planted: Path) -> None:
    attempts = attack({"name": "python", "function": "planted_judges:broken"})
    assert {(one.rewarded, one.unjudged, one.mean) for one in attempts} == {(0, 8, None)}


@pytest.mark.slow
def test_pictures_that_show_nothing(planted: Path) -> None:
    attempts = {one.name: one for one in attack({"name": "python", "function": "planted_judges:dark", "range": [0, 1]})}
    assert attempts["black"].rewarded == 8 and attempts["white"].rewarded == 0
    written = image_attacks(Prompt("a red cube"), 0)["the prompt as writing"]
    assert written.shape == (3, 256, 256) and 0 < (written < 0.5).float().mean() < 0.1


@pytest.mark.slow
def test_a_judge_of_groups_of_images_sees_the_right_answer_as_writing(planted: Path) -> None:
    inner = {"name": "python", "function": "planted_judges:light"}
    attempts = {one.name: one for one in attack({"name": "win_rate", "reward": inner})}
    assert attempts["white"].rewarded == 8  # lighter than black writing on white
    assert attempts["black"].rewarded == attempts["grey"].rewarded == 0


KEPT = """
from dataclasses import dataclass
from mmrl.media.pictures import as_tensor

@dataclass(frozen=True)
class Kept:
    source, range, granularity, differentiable = "planted", (0.0, 1.0), "sample", False
    needs, batch_size = frozenset({"images", "prompt.image"}), None

    def score(self, batch):
        sources = [as_tensor(prompt.media[0].load()).mean() for prompt in batch.prompts]
        return 1 - (batch.outputs.images.mean((1, 2, 3)) - batch.outputs.images.new_tensor(sources)).abs()
"""


@pytest.mark.slow
def test_a_judge_of_edits_sees_the_image_of_the_row_or_a_grey_one(planted: Path) -> None:
    own(planted, KEPT)
    Image.new("RGB", (8, 8), "white").save(planted / "white.png")
    (planted / "rows.jsonl").write_text('{"prompt": "x", "image": "white.png"}\n')
    attempts = {one.name: one for one in attack({"name": "planted_judges:Kept"}, rows=planted / "rows.jsonl")}
    assert (attempts["white"].mean, attempts["black"].mean) == (1, 0)
    grey = {one.name: one for one in attack({"name": "planted_judges:Kept"})}["grey"]
    assert grey.mean == pytest.approx(1, abs=0.003)  # 8 bits have no half
    (planted / "rows.jsonl").write_text('{"prompt": "x", "image": "none.png"}\n')
    with pytest.raises(ConfigError, match="the field image must be a picture"):
        attack({"name": "planted_judges:Kept"}, rows=planted / "rows.jsonl")


@pytest.mark.slow
def test_rows_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x", "answer": "Solution"}\n')
    attempts = {one.name: one for one in attack({"name": "exact_answer"}, rows=tmp_path / "rows.jsonl")}
    assert attempts["Solution, in tags"].rewarded == 1 and attempts["empty"].rewarded == 0
    with pytest.raises(ConfigError, match="give --rows"):
        attack({"name": "box_iou"})
    with pytest.raises(ConfigError, match="texts or images"):
        attack({"name": "flicker"})


@pytest.mark.slow
def test_the_command_prints_the_most_rewarded_first(planted: Path, mmrl: CommandLine) -> None:
    ended = mmrl("judge", "attack", "python function=planted_judges:weak range=[0,1]")
    lines = ended.out.splitlines()
    assert ended.code == 0 and re.match(r"Solution +8 +8 ", lines[1]) and "attempts were rewarded" in lines[-1]


def test_the_interval_is_that_of_scipy() -> None:
    for right, count in ((0, 5), (3, 10), (50, 100), (7, 7)):
        found = binomtest(right, count).proportion_ci(method="wilson")
        assert wilson(right, count) == pytest.approx((found.low, found.high), abs=1e-9)
    assert wilson(0, 0) == (0, 1)


def rows(folder: Path, *values: dict[str, Any]) -> str:
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, values)) + "\n", "utf-8")
    return str(folder / "pairs.jsonl")


LONGEST = {"name": "python", "function": "planted_judges:longest"}


def test_agreement_by_aspect(planted: Path) -> None:
    data = rows(
        planted,
        {"prompt": "?", "chosen": "long one", "rejected": "short", "aspect": "a"},
        {"prompt": "?", "chosen": "x", "rejected": "longer", "aspect": "a"},
        {"prompt": "?", "chosen": "same", "rejected": "four", "aspect": "b"},
    )
    found = {one.aspect: one for one in agree(LONGEST, data, "pairs")}
    assert [(one.pairs, one.right) for one in found.values()] == [(3, 1.5), (2, 1), (1, 0.5)]
    assert not found["all"].is_below_chance and found["a"].accuracy == 0.5
    assert [one.unjudged for one in agree({**LONGEST, "function": "planted_judges:broken"}, rows(
        planted, {"prompt": "?", "answer": "x", "chosen": "a", "rejected": "b"}), "pairs")] == [1]  # fmt: skip


def test_a_reward_below_chance_is_refused(planted: Path, mmrl: CommandLine) -> None:
    data = rows(planted, *({"prompt": "?", "chosen": "a", "rejected": "longer"} for _ in range(8)))
    ended = mmrl("judge", "agree", "python function=planted_judges:longest", data)
    assert ended.code == 1 and "below chance" in ended.err and "0.000" in ended.out
    good = mmrl("judge", "agree", "python function=planted_judges:longest", data, "--limit", "2", "--json")
    assert good.code == 0 and json.loads(good.out)[0]["pairs"] == 2  # two pairs say little


def test_published_layouts(planted: Path) -> None:
    for name, colour in (("dark.png", "black"), ("light.png", "white")):
        Image.new("RGB", (8, 8 if colour == "black" else 9), colour).save(planted / name)
    light = {"name": "python", "function": "planted_judges:light"}
    images = {"image0": "dark.png", "image1": "light.png", "caption": "?"}
    data = rows(planted, images | {"label": 1, "subset": "safety"}, images | {"label": 0, "subset": "bias"})
    assert {one.aspect: one.right for one in agree(light, data, "mj_bench")} == {"all": 1, "safety": 1, "bias": 0}
    answers = {"query": "?", "image": "dark.png", "response": ["long one", "x"], "query_source": "RLAIF-V"}
    data = rows(planted, answers | {"human_ranking": [0, 1]}, answers | {"human_ranking": [1, 0]})
    found = agree(LONGEST, data, "vl_rewardbench")
    assert [(one.aspect, one.pairs, one.right) for one in found] == [("all", 2, 1), ("hallucination", 2, 1)]
    data = rows(planted, {"question": "?", "image": "dark.png", "chosen": "long", "rejected": "x", "category": "mcq"})
    assert [(one.aspect, one.right) for one in agree(LONGEST, data, "mm_rlhf")] == [("all", 1), ("mcq", 1)]


def test_published_rows_as_their_own_code_reads_them(planted: Path) -> None:
    """data.jsonl of VL-RewardBench, whose image_path names the source, and the rows of MM-RLHF-RewardBench."""
    for folder in ("images/vlfeedback", "images/reasoning_tasks", "safety"):
        (planted / folder).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(planted / folder / "a.png")
    item = {"query": "<image>\n?", "response": ["long one", "x"], "models": ["a", "b"], "judge": ["c"], "meta": {}}
    data = rows(
        planted,
        item | {"image_path": "images/vlfeedback/a.png", "human_ranking": [0, 1]},
        item | {"image_path": "images/reasoning_tasks/a.png", "human_ranking": [1, 0]},
    )
    found = agree(LONGEST, data, "vl_rewardbench")
    assert [(one.aspect, one.right) for one in found] == [("all", 1), ("general", 1), ("reasoning", 0)]
    assert table(found).endswith("mean over the aspects: 0.500")
    item = {"id": "1", "prompt": "<image>\n?", "chosen": "long one", "rejected": "x", "chosen_reason": "so"}
    data = rows(planted, item | {"image": "safety/a.png"}, item | {"video": "video/a"})
    assert [(one.aspect, one.pairs) for one in agree(LONGEST, data, "mm_rlhf")] == [("all", 1), ("safety", 1)]


def test_genai_bench_as_its_own_code_reads_it(planted: Path) -> None:
    """The columns of image_generation and of image_edition in inference_configs.json of TIGER-AI-Lab/GenAI-Bench."""
    own(planted, KEPT + "def light(image): return image.mean()\n")
    for name in ("black", "white"):
        Image.new("RGB", (8, 8), name).save(planted / f"{name}.png")
    models = {"left_model": "a", "right_model": "b"}
    drawn = {"prompt": "?", "left_image": "white.png", "right_image": "black.png", **models}
    data = rows(
        planted, *(drawn | {"vote_type": vote} for vote in ("leftvote", "rightvote", "tievote", "bothbad_vote"))
    )
    light = {"name": "python", "function": "planted_judges:light"}
    found = agree(light, data, "genai_bench")
    assert [(one.aspect, one.pairs, one.right) for one in found] == [("all", 2, 1), ("image_generation", 2, 1)]
    edit = {
        "source_prompt": "a",
        "target_prompt": "b",
        "instruct_prompt": "paint it black",
        "source_image": "white.png",
    }
    edit |= {"left_output_image": "black.png", "right_output_image": "white.png", **models}
    data = rows(
        planted, edit | {"vote_type": "rightvote"}, edit | {"vote_type": "leftvote"}, drawn | {"vote_type": "leftvote"}
    )
    kept = agree({"name": "planted_judges:Kept"}, data, "genai_bench", limit=2)
    assert [(one.aspect, one.pairs, one.right) for one in kept] == [("all", 2, 1), ("image_edition", 2, 1)]
    found = agree(light, data, "genai_bench")
    assert [(one.aspect, one.right) for one in found] == [("all", 2), ("image_edition", 1), ("image_generation", 1)]


@pytest.mark.slow  # `datasets` writes its copy
def test_the_splits_of_a_data_set_are_aspects(planted: Path) -> None:
    import datasets

    light = {"name": "python", "function": "planted_judges:light"}
    pictures = [Image.new("RGB", (8, 8), colour) for colour in ("black", "white")]
    rows = {"image0": [pictures[0]] * 2, "image1": [pictures[1]] * 2, "caption": ["?"] * 2, "label": [1, 0]}
    made = datasets.Dataset.from_dict(rows).cast_column("image0", datasets.Image()).cast_column(
        "image1", datasets.Image()
    )  # fmt: skip
    folder = planted / "mj" / "data"
    folder.mkdir(parents=True)
    made.to_parquet(folder / "safety-00000-of-00001.parquet")
    made.select([0]).to_parquet(folder / "bias-00000-of-00001.parquet")
    head = "configs:\n- config_name: default\n  data_files:\n"
    files = "".join(f"  - split: {one}\n    path: data/{one}-*\n" for one in ("safety", "bias"))
    (planted / "mj" / "README.md").write_text(f"---\n{head}{files}---\n")
    found = agree(light, str(planted / "mj"), "mj_bench", splits=["safety", "bias"])
    assert [(one.aspect, one.pairs, one.right) for one in found] == [("all", 3, 2), ("safety", 2, 1), ("bias", 1, 1)]
    found = agree(light, str(planted / "mj"), "mj_bench", splits=["safety", "bias"], limit=1)
    assert [(one.aspect, one.pairs) for one in found] == [("all", 2), ("safety", 1), ("bias", 1)]


@in_one_test(
    ("layout", "row", "message"),
    [
        ("mj_bench", {"caption": "?", "label": 2}, "label must be 0 or 1, got 2"),
        ("mj_bench", {"caption": "?", "label": 0, "image0": 3, "image1": 4}, "'image0' must be a text, a picture"),
        ("vl_rewardbench", {"query": "?", "response": ["a"]}, "response must be two texts"),
        (
            "vl_rewardbench",
            {"query": "?", "response": ["a", "b"], "human_ranking": [1]},
            "human_ranking must be",
        ),
        ("genai_bench", {"prompt": "?", "vote_type": "left"}, "vote_type must be one of leftvote"),
        ("genai_bench", {"prompt": "?", "vote_type": "leftvote", "left_output_image": "a"}, "'left_image' must be"),
        ("genai_bench", {"prompt": "?", "vote_type": "leftvote", "left_video": "a"}, "videos are not compared"),
        ("pairs", {"prompt": 3}, "'prompt' must be a text"),
        ("pair", {}, "layout must be one of pairs"),
    ],
)
def test_rows_of_another_layout(planted: Path, layout: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agree(LONGEST, rows(planted, row), layout)


def test_a_file_outside_of_the_folder_is_no_picture(planted: Path) -> None:
    (planted / "in").mkdir()
    Image.new("RGB", (4, 4)).save(planted / "secret.png")
    data = rows(planted / "in", {"question": "?", "image": "../secret.png", "chosen": "a", "rejected": "b"})
    with pytest.raises(ConfigError, match="a picture or its file"):
        agree(LONGEST, data, "mm_rlhf")


def test_every_layout_says_what_it_is_of() -> None:
    assert all("arXiv" in (read.__doc__ or "") for name, read in LAYOUTS.items() if name != "pairs")


JUDGED: list[dict[str, Any]] = [
    {"prompt": "What is 3 * 4?", "answer": "12", "response": "To solve this, we multiply. It is 12.", "label": "yes"},
    {"prompt": "What is 3 * 4?", "answer": "12", "response": "Let us add: 3 + 4 = 7", "label": 0},
    {"prompt": "What is 3 * 4?", "answer": "12", "response": "It is 12. I am sure.", "label": True},
    {"prompt": "Of what colour is {answer}?", "answer": "red", "response": "red", "label": "yes"},
]


def written_rows(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> list[dict[str, Any]]:
    (folder / "judged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = {"name": "text_judge", "prompt": "answer_correct", "reference": "answer"} | settings.pop("section", {})
    count = write_rows(section, str(folder / "judged.jsonl"), folder / "rows.jsonl", **settings)
    made = [json.loads(line) for line in (folder / "rows.jsonl").read_text("utf-8").splitlines()]
    assert len(made) == count
    return made


def test_rows_of_a_judge_are_its_questions_with_verdicts_and_openers_that_are_wrong(tmp_path: Path) -> None:
    made = written_rows(tmp_path, JUDGED, openers=1.0)
    assert [one["output"] for one in made] == ["yes", "no", "yes", "yes", "no", "no"]
    file = load_prompt("answer_correct")
    for row, one in zip(JUDGED, made, strict=False):
        values = {"prompt": row["prompt"], "answer": row["response"], "reference": row["answer"]}
        assert one["prompt"] == file.ask(None, values), "as the reward asks it"
    openers = {one["prompt"].partition("nothing:\n-----\n")[2].partition("\n-----")[0] for one in made[4:]}
    assert openers == {"To solve this, we multiply.", "Let us add:"}, "not the one with 12, nor the whole answer"
    settings = DatasetSettings(path=str(tmp_path / "rows.jsonl"), layout="given_answers")
    prompts = load_dataset_prompts(settings)
    assert [prompt.target["given"] for prompt in prompts] == [(one["output"],) for one in made]


def test_the_share_of_openers_is_drawn_by_the_seed(tmp_path: Path) -> None:
    many = [{**JUDGED[0], "prompt": f"What is 3 * 4, asked {number} times?"} for number in range(40)]
    made = [written_rows(tmp_path, many, seed=seed) for seed in (0, 0, 1)]
    assert [len(one) for one in made] == [45, 45, 45] and made[0] == made[1] != made[2]
    assert len(written_rows(tmp_path, many, openers=0.0)) == 40


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({"label": "perhaps"}, {}, "line 1: label must be yes or no, got 'perhaps'"),
        ({"answer": " "}, {}, "the field 'answer' must be a text, got ' '"),
        ({"response": None}, {}, "the field 'response' must be a text, got None"),
        ({}, {"section": {"prompt": "answer_correct_reasoned"}}, "line 1: the judge's prompt must ask for one word"),
        ({"right": " "}, {"section": {"reference": "right"}}, "line 1: .*target.right must hold a reference"),
        ({}, {"section": {"reference": "truth"}}, "line 1: .*truth"),
        ({}, {"openers": 1.5}, "openers must be from 0 to 1, got 1.5"),
    ],
)
def test_rows_that_teach_nothing_are_refused(
    change: dict[str, Any], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        written_rows(tmp_path, [JUDGED[0] | change], **settings)


@in_one_test(
    ("response", "opener"),
    [
        ("Thought process: first, 2.5 apples. Then more.", "Thought process:"),
        ("First, 2.5 apples are left. Then more.", None),  # the first point stands in a number
        ("Solution\nIt is four.", "Solution"),
        ("", None),
        ("One sentence alone.", None),
        ("a" * 5000, None),
    ],
)
def test_the_opener_is_the_first_sentence(response: str, opener: str | None) -> None:
    assert opener_of(response, "four") == opener
