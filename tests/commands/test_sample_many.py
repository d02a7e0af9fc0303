"""`mmrl sample --prompts FILE` and `--task TASK`: many prompts in one folder that can be gone on with, and episodes."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.commands import sample_many
from mmrl.commands.sample_many import INDEX, REQUEST, Request, sample_prompts, source_of, task_of
from mmrl.core.config import DatasetSettings, RunConfig, load_config
from mmrl.core.contracts import ConfigError
from mmrl.core.data import Prompt
from mmrl.modalities.agent import Agent
from mmrl.modalities.gui import Gui
from mmrl.prompts.stream import load_prompts
from tests.commands.test_sample_images import CONFIG
from tests.tiny_cli import CommandLine, command_line

AGENT = CONFIG.replace(
    "{name: gui, model: twin, dialect: plain}",
    '{name: agent, model: twin, dialect: plain, invalid_limit: 2, environment: {name: "my_world:Room"}}',
).replace("autoregressive, max_tokens: 6", "episodes, max_tokens: 6, max_turns: 3")
WORLD = """
from dataclasses import dataclass
from io import BytesIO
from PIL import Image
from mmrl.core.data import Observation
from mmrl.media.pictures import StoredPicture

@dataclass
class Room:
    def reset(self, task, seed):
        file = BytesIO()
        Image.new("RGB", (64, 40), (9, 9, 200)).save(file, "PNG")
        self.seen = StoredPicture("room", content=file.getvalue())
        return Observation(self.seen, goal=f"{task.text}: {task.target.get('door')}")
    def step(self, action):
        return Observation(self.seen, reward=0.5)
    def state_key(self):
        return "here"
    def close(self):
        pass
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """In a folder with configs of random tiny models, and rows about images of the same name in two folders."""
    made = command_line(tmp_path, monkeypatch, capsys)
    Path("asked.yaml").write_text(CONFIG)
    Path("agent.yaml").write_text(AGENT)
    Path("my_world.py").write_text(WORLD)
    for folder, colour in (("one", "red"), ("two", "blue")):
        Path(folder).mkdir()
        Image.new("RGB", (64, 40), colour).save(Path(folder, "a.png"))
    Path("rows.jsonl").write_text('{"prompt": "click OK", "image": "one/a.png"}\n')
    rows = [{"prompt": f"click <b>{n}</b>", "image": f"{('one', 'two')[n % 2]}/a.png"} for n in range(3)]
    Path("asking.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def index_of(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, INDEX).read_text().splitlines()]


def config_with(**prompts: Any) -> RunConfig:
    config = load_config("quickstart")
    return config.model_copy(update={"prompts": config.prompts.model_copy(update=prompts)})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "sample needs one of --prompt, --prompts, --task, got none"),
        (["--prompt", "a", "--prompts", "x.txt"], "got --prompt, --prompts"),
        (["--prompts", "absent.txt"], "--prompts: there is no file 'absent.txt'"),
        (["--prompts", "empty.txt"], "'empty.txt' holds no prompt"),
        (["--prompts", "empty.jsonl"], "empty.jsonl holds no prompt"),
        pytest.param(["--prompts", "one"], "one", marks=pytest.mark.slow),  # imports datasets
        (["--prompts", "broken.jsonl"], "broken.jsonl, line 2"),
        (["--prompts", "lab:nowhere/train"], "lab:nowhere/train"),
        (["--prompts", "asking.jsonl", "--image", "one/a.png"], "--image and --video belong to a --prompt"),
        (["--prompt", "a", "--score"], "--score belongs to --prompts or --task"),
        (["--task", "open"], "--task is for agents, and modality 'toy_flow' has no environment"),
    ],
)
def test_what_cannot_be_sampled_is_named_before_a_model_is_loaded(
    cli: CommandLine, given: list[str], message: str
) -> None:
    for name in ("empty.txt", "empty.jsonl"):
        Path(name).write_text("\n")
    Path("broken.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    ended = cli("sample", "quickstart", *given)
    name = load_config("quickstart").modality["name"]
    assert ended.code == 2 and message.replace("toy_flow", name) in ended.err, ended.err
    assert not Path("samples").exists()


def test_a_file_with_columns_has_the_layout_of_the_run_s_data(tmp_path: Path) -> None:
    file = str(tmp_path / "a.jsonl")
    Path(file).touch()
    own = DatasetSettings(
        path="x", layout="columns", columns={"prompt": "ask"}, template="think", limit=3, split="test"
    )
    for config in (config_with(train=own, held_out=None), config_with(held_out=own)):
        source = source_of(config, file)
        assert source == own.model_copy(update={"path": file, "limit": None, "split": None})
    plain = source_of(config_with(), file)
    assert plain == DatasetSettings(path=file)
    text = tmp_path / "a.txt"
    text.touch()
    assert source_of(config_with(held_out=own), str(text)) == str(text)


def test_other_columns_of_rows_are_the_target(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "go", "task": "form", "seed": 3}\n')
    (prompt,) = load_prompts(source_of(config_with(), str(file)))
    assert prompt.text == "go" and dict(prompt.target) == {"task": "form", "seed": 3}


def test_a_task_is_an_object_a_prompt_of_the_run_a_name_or_a_goal() -> None:
    known = [Prompt("do it", target={"task": "form", "seed": 1}), Prompt("do it", target={"task": "drag", "seed": 1})]
    assert task_of("do it", known) == known[0]
    assert task_of("drag", known) == known[1]
    assert task_of('{"task": "drag", "seed": 7}', known) == Prompt("drag", target={"task": "drag", "seed": 7})
    assert task_of('{"prompt": "go", "door": 2}', known) == Prompt("go", target={"door": 2})
    assert task_of("buy tea", known) == Prompt("buy tea")
    for wrong in ("", "  ", "{task: drag}", '{"prompt": 5}'):
        with pytest.raises(ConfigError, match="--task"):
            task_of(wrong, known)


def test_a_folder_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    config, request = load_config("quickstart"), Request("quickstart", 1, 0)
    full, other, damaged = tmp_path / "full", tmp_path / "other", tmp_path / "damaged"
    for folder in (full, other, damaged):
        folder.mkdir()
        (folder / INDEX).write_text('{"number": 0, "sample": 0}\n')
    (full / "a.txt").touch()
    before = request.identity(config, [Prompt("a")]) | {"count": 7}
    (other / REQUEST).write_text(json.dumps(before))
    (damaged / REQUEST).write_text("[]")
    for folder, message in ((full, "no samples to go on with"), (other, "count 7, now 1"), (damaged, "is damaged")):
        with pytest.raises(ConfigError, match=message):
            sample_prompts(request, config, [Prompt("a")], folder)
    with pytest.raises(ConfigError, match="differs in prompts;"):
        (other / REQUEST).write_text(json.dumps(before | {"count": 1}))
        sample_prompts(request, config, [Prompt("b")], other)


@pytest.mark.slow
def test_samples_beside_the_group_are_not_written(cli: CommandLine) -> None:
    sampler = 'sampler={name: rethinking, max_tokens: 24, room: 4, triggers: ["1"]}'
    ended = cli("sample", "lab/ssr", sampler, "loss.name=grpo_sft", "--sampler", "train",
                "--prompts", "lab:screens/click_held_out", "--count", "2", "--out", "out")  # fmt: skip
    assert (ended.code, ended.out) == (0, "1024 samples of 512 prompts: out/index.html\n"), ended.err
    assert len({row["file"] for row in index_of("out")}) == 1024


@pytest.mark.slow
def test_all_prompts_of_a_file_are_sampled_and_what_is_there_is_not_sampled_again(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Gui(model="Qwen/Qwen2.5-VL-3B-Instruct", dialect="plain").tiny(0, Path("twin").absolute())
    given = ["sample", "asked.yaml", "--prompts", "asking.jsonl", "--count", "2", "--score", "--out", "out"]
    ended = cli(*given)
    assert (ended.code, ended.out) == (0, "6 samples of 3 prompts: out/index.html\n"), ended.err
    rows = index_of("out")
    assert [(row["number"], row["sample"], row["file"]) for row in rows] == [
        (n, m, f"{2 * n + m:03d}.png") for n in range(3) for m in range(2)
    ]
    assert [row["source"] for row in rows[::2]] == [f"asking.jsonl, line {n}" for n in (1, 2, 3)]
    assert [row["scores"] for row in rows] == [{"Constant": 0.5}] * 6
    for row, colour in zip(rows[::2], [(255, 0, 0), (0, 0, 255), (255, 0, 0)], strict=True):
        with Image.open(Path("out", row["file"])) as shown:
            assert shown.convert("RGB").getpixel((0, 0)) == colour, "images of one name in two folders"
    listed = json.loads(Path("out/samples.json").read_text())
    assert listed == {"kind": "text", "samples": rows}
    page = Path("out/index.html").read_text()
    assert "click &lt;b&gt;2&lt;/b&gt;" in page and "<b>2</b>" not in page
    assert Path("out/contact_sheet.png").is_file()

    # a process that was killed in the second prompt: a torn line, no page
    whole = Path("out", INDEX).read_text()
    lines = whole.splitlines(keepends=True)
    Path("out", INDEX).write_text("".join(lines[:3]) + lines[3][:20])
    for name in ("samples.json", "index.html"):
        Path("out", name).unlink()
    sampled: list[int] = []
    real = sample_many.rolled_out

    def counted(request: Request, trainer: Any, sampler: Any, numbered: Any, counter: Any) -> Any:
        sampled.extend(number for number, _ in numbered)
        return real(request, trainer, sampler, numbered, counter)

    def stopped(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(sample_many, "rolled_out", stopped)
    ended = cli(*given)
    assert ended.code == 130 and "stopped; the same command goes on in out" in ended.err
    assert Path("out", INDEX).read_text() == "".join(lines[:2]), "the whole prompts alone"
    monkeypatch.setattr(sample_many, "rolled_out", counted)
    ended = cli(*given)
    assert (ended.code, ended.out) == (0, "6 samples of 3 prompts, 2 of them from before: out/index.html\n"), ended.err
    assert sampled == [1, 2] and Path("out", INDEX).read_text() == whole, "the same samples as without a stop"
    assert Path("out/index.html").read_text() == page

    def never(*given: Any, **named: Any) -> Any:
        raise AssertionError("nothing is left to sample")

    monkeypatch.setattr(sample_many, "restored", never)
    ended = cli(*given)
    assert (ended.code, ended.out) == (0, "6 samples of 3 prompts, 6 of them from before: out/index.html\n")
    ended = cli(*given[:-4], "3", "--out", "out")
    assert ended.code == 2 and "count 2, now 3" in ended.err


@pytest.mark.slow
def test_rows_without_the_image_that_the_policy_needs_are_named(cli: CommandLine) -> None:
    Gui(model="Qwen/Qwen2.5-VL-3B-Instruct", dialect="plain").tiny(0, Path("twin").absolute())
    Path("bare.jsonl").write_text('{"prompt": "click OK", "image": "one/a.png"}\n{"prompt": "click Save"}\n')
    ended = cli("sample", "asked.yaml", "--prompts", "bare.jsonl", "--out", "out")
    assert ended.code == 2 and "bare.jsonl, line 2" in ended.err and "screenshot" in ended.err, ended.err
    assert not Path("out").exists(), "the mended file goes into the same folder"
    Path("gone.jsonl").write_text('{"prompt": "click OK", "image": "one/absent.png"}\n')
    ended = cli("sample", "asked.yaml", "--prompts", "gone.jsonl", "--out", "out")
    assert ended.code == 2 and "gone.jsonl, line 1" in ended.err and not Path("out").exists(), ended.err


@pytest.mark.slow
def test_an_agent_s_task_is_recorded_turn_by_turn(cli: CommandLine) -> None:
    Agent(model="Qwen/Qwen2.5-VL-3B-Instruct", dialect="plain", environment=None).tiny(0, Path("twin").absolute())  # type: ignore[arg-type]
    ended = cli("sample", "agent.yaml", "--task", '{"prompt": "leave", "door": "<i>left</i>"}', "--out", "out")
    (row,) = index_of("out")
    turns = "".join(f"  {n}. no action was understood  reward 0\n" for n in (1, 2))
    words = f"{row['prompt']}\n{turns}  end: invalid limit\n1 sample of 1 prompt: out/index.html\n"
    assert (ended.code, ended.out) == (0, words), ended.err
    assert row["prompt"].startswith("leave: <i>left</i>") and row["outcome"] == "invalid_limit"
    assert len(row["turns"]) == 2 and [turn["reward"] for turn in row["turns"]] == [0.0, 0.0]
    names = [row["recording"], row["last_screen"], *(turn["screen"] for turn in row["turns"])]
    assert names == ["000.mp4", "000_last.png", "000_turn_01.png", "000_turn_02.png"]
    assert all(Path("out", name).stat().st_size > 100 for name in names)
    page = Path("out/index.html").read_text()
    assert page.count('class="card pair turn"') == 3 and "<i>left" not in page and "data:video/mp4" in page


@pytest.mark.slow
def test_a_task_that_the_environment_refuses_leaves_nothing_and_names_the_run_s_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"--task: .*'fly'.* The run's own tasks are '.+' and \d+ more"):
        sample_many.sample_tasks(sample_many.Request("lab/turns_rloo", 1, 0), ["fly"], out)
    assert not out.exists()
