"""docs/rewards.md: its commands print what it says, its code runs, and its tables hold every reward."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from werkzeug import Request, Response

import mmrl
from mmrl.commands.score import reward_section
from mmrl.core import plugins
from mmrl.core.config import ScoringSettings
from mmrl.core.data import Scores
from mmrl.scoring.metrics import score_metrics
from mmrl.scoring.scorer import build_scorer
from tests.clips import encoded
from tests.recorded_server import Recorded
from tests.tiny_cli import CommandLine, command_line

PAGE = (Path(__file__).parents[1] / "docs" / "rewards.md").read_text(encoding="utf-8")
WRAPPERS = [name for name in plugins.names("rewards") if plugins.inner_kinds(plugins.find("rewards", name))]
OWN_MODULES = re.findall(r"^```python\n# (\w+)\.py$", PAGE, re.M)


def blocks(*languages: str) -> list[tuple[str, str, str]]:
    """The code blocks of these languages: language, code, and what stands before it."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
    return [(one[1], one[2], PAGE[: one.start()]) for one in found if one[1] in languages]


def section(title: str) -> str:
    """The text under a heading, up to the next of its level or above."""
    (level,) = re.findall(rf"^(#+) {title}$", PAGE, re.M)
    return re.split(rf"^#{{1,{len(level)}}} ", PAGE.partition(f"{level} {title}\n")[2], flags=re.M)[0]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    """The command line in a folder with the files of the page, and a few pictures and videos."""
    folder = tmp_path / "user"
    folder.mkdir()
    for language, code, before in blocks("json", "python"):
        if language == "json":
            name = re.findall(r"`(\w+\.jsonl)`", before)[-1]
        elif (first := re.match(r"# (\w+\.py)\n", code)) is not None:
            name = first[1]
        else:
            continue
        (folder / name).write_text(code, encoding="utf-8")
    for name in ("pictures", "videos"):
        (folder / name).mkdir()
    for number, colour in enumerate(("red", "blue")):
        Image.new("RGB", (40, 30), colour).save(folder / "pictures" / f"{colour}.png")
        (folder / "pictures" / f"{colour}.txt").write_text(f"a {colour} wall")
        (folder / "videos" / f"{number}.mp4").write_bytes(encoded(20))
    yield command_line(folder, monkeypatch, capsys)
    for name in OWN_MODULES:
        sys.modules.pop(name, None)


def with_twin(text: str, folder: Path) -> str:
    """The reward of a command, its model a small random twin."""
    settings = reward_section(text)
    cls: Any = plugins.find("rewards", settings["name"])
    if "model" not in cls.needs:
        return text
    twin = cls().tiny(0, folder / settings["name"])
    differing = {
        one.name: getattr(twin, one.name) for one in fields(cls) if one.init and one.default != getattr(twin, one.name)
    }
    return " ".join([text, *(f"{key}={shlex.quote(str(value))}" for key, value in differing.items())])


def commands() -> list[tuple[str, str]]:
    """The commands of the page and what they print; nothing where it does not say."""
    found = []
    for _, code, _ in blocks("console"):
        _, *parts = re.split(r"^\$ (.+)\n", code, flags=re.M)
        found += list(zip(parts[::2], parts[1::2], strict=True))
    return found


@pytest.mark.slow
def test_the_commands_print_what_the_guide_says(cli: CommandLine, tmp_path: Path) -> None:
    for line, printed in commands():
        program, *given = shlex.split(line)
        if program == "head":
            assert given[:2] == ["-n", "1"]
            assert (cli.folder / given[2]).read_text(encoding="utf-8").splitlines()[0] + "\n" == printed, line
            continue
        assert program == "mmrl"
        ended = cli(
            *(
                with_twin(one, tmp_path) if before == "--reward" else one
                for before, one in zip(["", *given], given, strict=False)
            )
        )
        is_error = printed.startswith("mmrl: ")
        assert ended.code == (2 if is_error else 0), ended.err
        assert printed in ("", ended.err if is_error else ended.out), line
    assert (cli.folder / "page.html").is_file() and (cli.folder / "pictures.html").is_file()
    assert len((cli.folder / "scores.jsonl").read_text().splitlines()) == 6


def test_the_python_of_the_guide_runs(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(cli.folder)])
    for _, code, _ in blocks("python"):
        if not code.startswith("# "):
            exec(compile(code, "rewards.md", "exec"), {})
    tests = import_module("test_near_year")
    num_run = 0
    for name, test in vars(tests).items():
        if name.startswith("test_"):
            cases = [case for mark in getattr(test, "pytestmark", ()) for case in mark.args[1]] or [()]
            for case in cases:
                test(*case)
            num_run += len(cases)
    assert num_run == 7


def test_the_functions_of_the_guide_are_rewards(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(cli.folder)])
    short = {"name": "python", "function": "my_functions:short", "range": [0, 1]}
    assert mmrl.score(short, ["?"] * 2, texts=["one two", "a b c d e f g h i j k"]).tolist() == [1, 0]
    images = torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8)])
    assert mmrl.score({"name": "python", "function": "my_functions:dark"}, ["?"] * 2, images=images).tolist() == [1, 0]


def test_the_lists_of_rewards_in_yaml_can_be_built(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(cli.folder)])
    built = []
    for _, code, _ in blocks("yaml"):
        config = yaml.safe_load(code)
        built.append(build_scorer(config["rewards"], ScoringSettings(), config.get("mix")))
    assert [scorer.mix is not None for scorer in built] == [True, False, False]
    assert built[0].changing_weights(100) == {"reward/repetition/weight": 0.25}


@contextmanager
def judge(scores: Any) -> Iterator[str]:
    """The address of a server that gives every request these scores, one for each sample it asks about."""

    def answer(request: Request) -> Response:
        assert len(request.json["prompts"]) == len(request.json["texts"]) <= 8
        return Response(json.dumps({"scores": [scores(text) for text in request.json["texts"]]}))

    with Recorded("127.0.0.1", 0, threaded=True) as server:
        server.expect_request(re.compile(".*"), method="POST").respond_with_handler(answer)
        yield server.url
        server.check()


@pytest.mark.timeout(60)
def test_the_reward_that_asks_a_server_asks_it(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(cli.folder)])
    texts = [f"{number:02}" for number in range(20)]  # three requests
    with judge(lambda text: int(text) / 20) as url:
        found = mmrl.score({"name": "judged:Judged", "url": url}, ["?"] * 20, texts=texts)
    torch.testing.assert_close(found, torch.arange(20) / 20)
    with judge(lambda text: 2.0 if text == "03" else 0.5) as url:
        found = mmrl.score({"name": "judged:Judged", "url": url}, ["?"] * 20, texts=texts)
    assert found.isnan().tolist() == [text == "03" for text in texts], "what it cannot judge is left out alone"


def test_the_table_of_tasks_and_the_wrappers_hold_every_reward() -> None:
    named = set(re.findall(r"`(\w+)`", section("Which one") + section("Wrappers")))
    assert set(plugins.names("rewards")) <= named


def test_every_wrapper_has_an_example_that_can_be_built(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(cli.folder)])
    examples = [yaml.safe_load(text) for text in re.findall(r"`(\{name: .+?\})`", section("Wrappers"))]
    for example in examples:
        plugins.build("rewards", example)
    entries = re.findall(r"^- \*\*`(\w+)`\*\*", section("Wrappers"), re.M)
    assert len(entries) == 28 and set(entries) <= {example["name"] for example in examples} <= set(WRAPPERS)
    assert set(WRAPPERS) <= set(re.findall(r"`(\w+)`", section("Wrappers")))


def test_every_mix_is_explained() -> None:
    assert sorted(re.findall(r"^- \*\*`(\w+)`\*\*", section("Mixing"), re.M)) == plugins.names("mixes")


def test_the_metrics_of_the_guide_are_logged() -> None:
    named = set(re.findall(r"`((?:reward|groups)/[\w/<>]+)`", section("What the metrics say"))) - {
        "reward/<label>/weight"
    }
    number = torch.arange(4)
    scores = Scores(
        torch.rand(4, 2), ("a", "b"), (1.0, 1.0), number >= 0, number // 2, number, torch.zeros_like(number)
    )
    logged = score_metrics(replace(scores), torch.zeros(4, dtype=torch.bool))
    assert {name.replace("<label>", "a") for name in named} == {name for name in logged if "/b/" not in name}


def test_every_reward_has_one_row_about_its_source() -> None:
    rows = [line for line in section("Agreement with the sources").splitlines() if line.startswith("| `")]
    cells = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in cells)
    assert [row[0].strip(" `") for row in cells] == plugins.names("rewards")
