"""`mmrl vote`: what is shown, what is written, the page in a browser, and training on planted votes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest
import torch
from PIL import Image

from mmrl.commands.judge_agree import agree
from mmrl.commands.score import score_path
from mmrl.commands.vote_server import VotePage
from mmrl.commands.vote_summary import cohens_kappa, compared_voters, newer_shares, summary
from mmrl.commands.vote_tasks import Ballot, Task, VoteFile, VoteSettings, prepared
from mmrl.core.config import DatasetSettings
from mmrl.core.contracts import ConfigError
from mmrl.core.human_votes import Vote, read_votes, vote_of
from mmrl.labs.shapes.pairs import Drawing
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.reporting.loopback import Request, serving
from mmrl.reporting.vote_page import vote_page
from mmrl.system.files import replace_file
from tests.parameters import in_one_test
from tests.tiny_cli import CommandLine, command_line

HOSTILE = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script> \"'&"
PROMPTS = ("a red fox", HOSTILE)
ANNA = VoteSettings("anna")


@pytest.fixture
def mmrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


def picture(number: int) -> Image.Image:
    return Image.new("RGB", (160, 160), (number * 37 % 256, number * 91 % 256, number * 53 % 256))


def run_of(root: Path, iterations: tuple[int, ...] = (0, 10), samples: int = 2) -> Path:
    """A run with pictures of two prompts at each iteration; those of later ones have higher numbers."""
    for iteration in iterations:
        folder = root / "samples" / f"{iteration:06d}"
        folder.mkdir(parents=True)
        listed = []
        for number, prompt in enumerate(PROMPTS):
            for sample in range(samples):
                name = f"{number}{sample} '\"><b onclick=alert(1)>.png" if number else f"{number}{sample}.png"
                picture(iteration + 2 * number + sample + 1).save(folder / name)
                listed.append({"prompt": prompt, "seed": number, "scores": {"taste": 1.0}, "file": name})
        (folder / "samples.json").write_text(json.dumps({"kind": "image", "samples": listed}))
    return root


def ballot(run: Path, settings: VoteSettings = ANNA, out: Path | None = None) -> Ballot:
    file, _, tasks = prepared([run], settings, out)
    return Ballot(tasks, file, settings)


def newer(ballot: Ballot, task: Task) -> int:
    """The place of the output of iteration 10."""
    return next(n for n, one in enumerate(ballot.order(task)) if one.origin.endswith("000010"))


def answer_all(ballot: Ballot, chosen: list[Any] | None = None) -> None:
    """Prefers what is newer, or answers by `chosen`: None skips, "tie" ties."""
    answers = iter(chosen or [])
    while (task := ballot.next) is not None:
        said = next(answers, "newer")
        ballot.answer(task, None if said is None else [] if said == "tie" else [newer(ballot, task)], 1.25)


def test_pairs_are_of_one_prompt_and_of_both_iterations(tmp_path: Path) -> None:
    own = ballot(run_of(tmp_path))
    assert len(own.tasks) == 4
    for task in own.tasks:
        assert len({one.item.prompt.text for one in task.candidates}) == 1
        assert {one.origin for one in task.candidates} == {"samples/000000", "samples/000010"}


def test_the_order_is_by_seed_and_voter_and_the_tasks_are_the_same(tmp_path: Path) -> None:
    run = run_of(tmp_path, samples=8)
    first, again, other = ballot(run), ballot(run), ballot(run, VoteSettings("bert"))
    names = [task.name for task in first.tasks]
    assert names == [task.name for task in again.tasks] != [task.name for task in other.tasks]
    assert set(names) == {task.name for task in other.tasks}
    places = [newer(first, task) for task in first.tasks]
    assert places == [newer(again, task) for task in again.tasks] and set(places) == {0, 1}


def test_a_vote_is_one_strict_line_and_a_second_start_goes_on(tmp_path: Path) -> None:
    own = ballot(run_of(tmp_path))
    task = own.next
    assert task is not None
    own.answer(task, [newer(own, task)], 2.5)
    (line,) = (tmp_path / "votes.jsonl").read_text().splitlines()
    values = json.loads(line, parse_constant=lambda word: pytest.fail(word))
    assert values["voter"] == "anna" and values["seconds"] == 2.5 and values["time"].endswith("+00:00")
    assert values["shown"][values["chosen"][0]]["output"].startswith("samples/000010/")
    assert list(ballot(tmp_path).answered) == [task.name]
    assert ballot(tmp_path, VoteSettings("bert")).answered == {}
    own.answer(task, [], 1.0)  # of another tab
    assert len(read_votes(tmp_path / "votes.jsonl")) == 1
    own.answer(task_after(own), None, 1.0)
    assert [vote.chosen for vote in read_votes(tmp_path / "votes.jsonl")][1:] == [None]


def test_a_criterion_is_shown_and_written_and_makes_other_tasks(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    plain, lit = ballot(run), ballot(run, VoteSettings("anna", criterion="how well it is <lit>"))
    assert {task.name for task in plain.tasks}.isdisjoint(task.name for task in lit.tasks)
    for own in (plain, lit):
        own.answer(task_after(own), [0], 1.0)
    assert [vote.criterion for vote in read_votes(run / "votes.jsonl")] == ["", "how well it is <lit>"]
    of_each = summary(read_votes(run / "votes.jsonl")).splitlines()
    assert of_each[0] == "no criterion given:" and of_each[3] == "how well it is <lit>:" and len(of_each) == 6
    page = vote_page("pairs", "anna", "token", "how well it is <lit>")[0]
    assert "how well it is &lt;lit&gt;" in page and "follows the prompt" not in page
    assert "follows the prompt" in vote_page("grid", "anna", "token", "")[0]
    with pytest.raises(ConfigError, match="--criterion needs a text of at most 300 printable characters"):
        VoteSettings("anna", criterion="a\nb")
    line = json.loads((run / "votes.jsonl").read_text().splitlines()[0])
    del line["criterion"]  # as mmrl wrote before
    assert vote_of(line).criterion == ""
    with pytest.raises(ValueError, match="criterion"):
        vote_of(line | {"criterion": 3})


def test_each_person_answers_each_task_once(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    anna, bert = ballot(run), ballot(run, VoteSettings("bert"))
    (task,) = (one for one in bert.tasks if one.name == anna.tasks[0].name)
    for own, chosen in ((anna, [0]), (bert, [1]), (anna, [1]), (bert, [])):  # the second time in another tab
        own.answer(task, chosen, 1.0)
    assert [(vote.voter, vote.chosen) for vote in read_votes(run / "votes.jsonl")] == [("anna", (0,)), ("bert", (1,))]


def test_an_answer_that_is_taken_back_leaves_the_file_until_it_is_given_anew(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    anna, bert = ballot(run), ballot(run, VoteSettings("bert"))
    page = VotePage(anna)
    first, second = anna.tasks[:2]
    anna.answer(first, [0], 1.0)
    anna.answer(second, [0], 1.0)
    bert.answer(next(one for one in bert.tasks if one.name == second.name), [0], 1.0)
    file = run / "votes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines) + b'{"cut')
    file.chmod(0o664)  # of a group that votes
    state = json.loads(page.handle(Request("POST", "/undo", "", b"{}")).content)
    assert (state["answered"], state["task"]["name"]) == (1, second.name)
    assert file.read_bytes() == lines[0] + lines[2], "of another voter, and of another task"
    assert file.stat().st_mode & 0o777 == 0o664
    anna.answer(second, [1], 1.0)
    assert [(one.voter, one.chosen) for one in read_votes(file)] == [("anna", (0,)), ("bert", (0,)), ("anna", (1,))]
    again = ballot(run)  # a second start goes on where the first one was
    for _ in range(3):
        again.undo()
    assert again.next == again.tasks[0] and [one.voter for one in read_votes(file)] == ["bert"]


def test_a_writer_that_waited_while_the_file_was_replaced_writes_to_the_new_one(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    first, second = ballot(run), ballot(run, VoteSettings("bert"))
    first.answer(task_after(first), [0], 1.0)
    with first.file._locked():
        waiting = Thread(target=second.answer, args=(task_after(second), [0], 1.0))
        waiting.start()
        content = (run / "votes.jsonl").read_bytes()
        waiting.join(0.02)
        assert waiting.is_alive()
        replace_file(run / "votes.jsonl", content)
    waiting.join()
    assert [vote.voter for vote in read_votes(run / "votes.jsonl")] == ["anna", "bert"]


def task_after(ballot: Ballot) -> Task:
    assert ballot.next is not None
    return ballot.next


@in_one_test("rest", [b'{"task": "cut', b'{"task": 1, "x": "\xe4', b"{"])
def test_a_line_that_a_kill_cut_is_removed(rest: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = run_of(tmp_path_factory.mktemp("run"))
    own = ballot(run)
    own.answer(task_after(own), [], 1.0)
    file = run / "votes.jsonl"
    file.write_bytes(file.read_bytes() + rest)
    again = ballot(run)
    assert len(again.answered) == 1
    again.answer(task_after(again), [0], 1.0)
    assert len(file.read_bytes().splitlines()) == len(read_votes(file)) == 2


def test_a_whole_line_without_its_end_stays(tmp_path: Path) -> None:
    own = ballot(run_of(tmp_path))
    own.answer(task_after(own), [], 1.0)
    file = tmp_path / "votes.jsonl"
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    answer_all(ballot(tmp_path))
    assert len(read_votes(file)) == 4


def vote_line(**changes: Any) -> str:
    shown = [{"output": f"{n}.png", "digest": f"d{n}", "origin": "samples/0"} for n in range(2)]
    values: dict[str, Any] = {
        "task": "t", "form": "pairs", "kind": "image", "prompt": "p", "images": [], "roles": [], "question": "q",
        "shown": shown, "chosen": [0], "seconds": 1, "voter": "anna", "time": "2026-01-01",
    }  # fmt: skip
    return json.dumps(values | changes) + "\n"


@in_one_test(
    ("line", "words"),
    [
        (vote_line(chosen=[2]), "line 2 is no vote: chosen must be different places from 0 to 1, got \\[2\\]"),
        (vote_line(chosen=[0, 1]), "one of a pair is chosen"),
        (vote_line(chosen="left"), "'chosen' must be a list of places, or null"),
        (vote_line(form="triples"), "'form' must be one of pairs, grid, got 'triples'"),
        (vote_line(shown=[]), "pairs shows 2 to 2 outputs, got 0"),
        (vote_line(seconds="1"), "'seconds' must be a number"),
        (vote_line(seconds=-1), "seconds must be from 0"),
        (vote_line(roles=["image"]), "each of 0 images has a role"),
        ("{}\n", "'shown' must be a list"),
        ("[]\n", "a vote is an object of fields"),
        ("no\n", "line 2 is damaged: it is not JSON"),
    ],
)
def test_damage_is_said_with_its_line(line: str, words: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("votes") / "votes.jsonl"
    file.write_text(vote_line(chosen=[]) + line + vote_line())
    with pytest.raises(ConfigError, match=words):
        read_votes(file)
    with pytest.raises(ConfigError, match="line 2"):
        load_dataset_prompts(DatasetSettings(path=str(file), layout="votes"))


def test_wrong_folders_and_options_are_refused(tmp_path: Path, mmrl: CommandLine) -> None:
    run = run_of(tmp_path / "run")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, words in (
        (["nowhere"], "it is no folder"),
        ([str(empty)], "there is nothing to score in"),
        ([str(run), "--iteration", "5"], "saved samples at the iterations 0, 10"),
        ([str(run / "samples/000010"), "--iteration", "10"], "is none"),
        ([str(run), "--form", "triples"], "--form must be one of pairs, grid, got 'triples'"),
        ([str(run), "--size", "10"], "--size must be from 2 to 9"),
        ([str(run), "--out", str(tmp_path / "votes.txt")], "--out must name a .jsonl file"),
        ([str(run), "--summary"], "there are no votes yet"),
    ):
        ended = mmrl("vote", *arguments, "--voter", "anna")
        assert ended.code == 2 and words in ended.err, (arguments, ended.err)
    assert mmrl("vote", str(run), "--voter", " ").code == 2


def test_equal_outputs_are_nothing_to_compare(tmp_path: Path) -> None:
    run = run_of(tmp_path, (0,), samples=1)
    with pytest.raises(ConfigError, match="no prompt has two different outputs"):
        ballot(run)
    os.rename(run / "samples/000000", run / "samples/000001")
    run_of(tmp_path, (0,), samples=1)
    for file in (run / "samples/000000").glob("*.png"):
        file.write_bytes((run / "samples/000001" / file.name).read_bytes())
    with pytest.raises(ConfigError, match="different outputs in both folders"):
        ballot(run)


def prompts_of(file: Path, layout: str) -> tuple[Any, ...]:
    return load_dataset_prompts(DatasetSettings(path=str(file), layout=layout))


def test_votes_are_pairs_and_labels(tmp_path: Path) -> None:
    own = ballot(run_of(tmp_path))
    answer_all(own, ["newer", "tie", None, "newer"])
    pairs, labels = (prompts_of(tmp_path / "votes.jsonl", layout) for layout in ("votes", "vote_labels"))
    assert len(pairs) == len(labels) == 2
    for prompt in pairs:
        chosen, rejected = prompt.target["given"]
        assert prompt.target["given_scores"] == (1.0, 0.0) and "voter" not in prompt.target
        assert "000010" in str(chosen.path) and "000000" in str(rejected.path)
    assert sorted(labels[0].target["given_scores"]) == [0.0, 1.0]


def test_a_grid_implies_all_its_pairs(tmp_path: Path) -> None:
    own = ballot(run_of(tmp_path), VoteSettings("anna", "grid"))
    first, second = own.tasks
    own.answer(first, [1, 3], 1.0)
    own.answer(second, [], 1.0)
    order = [one.digest for one in own.order(first)]
    (vote, _) = read_votes(tmp_path / "votes.jsonl")
    assert [one.digest for one in vote.shown] == order
    assert sorted(vote.pairs()) == [(1, 0), (1, 2), (3, 0), (3, 2)]
    assert len(prompts_of(tmp_path / "votes.jsonl", "votes")) == 4
    labels = prompts_of(tmp_path / "votes.jsonl", "vote_labels")
    assert [prompt.target["given_scores"] for prompt in labels] == [(0.0, 1.0, 0.0, 1.0), (0.0,) * 4]


def test_ties_alone_are_no_data(tmp_path: Path) -> None:
    answer_all(ballot(run_of(tmp_path)), ["tie"] * 4)
    with pytest.raises(ConfigError, match="holds no prompt"):
        prompts_of(tmp_path / "votes.jsonl", "votes")


def test_files_from_elsewhere_are_copied_beside_the_votes(tmp_path: Path) -> None:
    run, out = run_of(tmp_path / "run"), tmp_path / "other" / "votes.jsonl"
    answer_all(ballot(run, out=out))
    prompts = prompts_of(out, "votes")
    assert len(prompts) == 4 and len(list((out.parent / "voted").iterdir())) == 8
    assert all(str(one.path).startswith(str(out.parent)) for prompt in prompts for one in prompt.target["given"])


def test_the_reward_is_the_smoothed_win_rate(tmp_path: Path) -> None:
    answer_all(ballot(run_of(tmp_path)), ["tie"])
    reward = {"name": "human", "votes": str(tmp_path / "votes.jsonl")}
    scored = [score_path(tmp_path / "samples" / folder, [reward]).total for folder in ("000000", "000010")]
    assert sorted(one or 0.0 for one in scored[0]) == pytest.approx([1 / 3] * 3 + [1 / 2])  # lost once, or tied
    assert sorted(one or 0.0 for one in scored[1]) == pytest.approx([1 / 2] + [2 / 3] * 3)
    picture(200).save(tmp_path / "samples/000010" / "00.png")
    unknown = score_path(tmp_path / "samples/000010", [reward])
    assert unknown.total[0] is None and "nobody voted on this output" in str(unknown.first_failures)
    assert score_path(tmp_path / "samples/000010", [reward | {"default": 0.25}]).total[0] == 0.25


def test_people_agree_with_themselves(tmp_path: Path) -> None:
    answer_all(ballot(run_of(tmp_path)))
    file = tmp_path / "votes.jsonl"
    (found,) = agree({"name": "human", "votes": str(file)}, str(file), "votes")
    assert (found.pairs, found.accuracy) == (4, 1.0)


def vote_of_pair(task: str, voter: str, winner: str | None) -> Vote:
    shown = [{"output": one, "digest": f"{task}{one}", "origin": one} for one in ("old", "new")]
    if voter == "bert":
        shown.reverse()
    chosen = [] if winner is None else [n for n, one in enumerate(shown) if one["output"] == winner]
    return vote_of(json.loads(vote_line(task=task, voter=voter, shown=shown, chosen=chosen)))


def test_the_summary_against_counts_by_hand() -> None:
    said = {"anna": ["new", "new", "old", None], "bert": ["new", "old", "old", None]}
    votes = [vote_of_pair(str(n), voter, one) for voter, every in said.items() for n, one in enumerate(every)]
    assert newer_shares(votes, "old", "new") == [1.0, 0.5, 0.0, 0.5]
    # equal 3 of 4; by chance (2 * 1 + 1 * 2 + 1 * 1) / 16
    text = summary(votes, ["old", "new"])
    assert "8 answers (anna 4, bert 4): 2 ties, 0 skipped" in text and "win rate of new over old: 0.500" in text
    assert f"kappa {(3 / 4 - 5 / 16) / (1 - 5 / 16):.3f} of 4 judgements" in text


def grid_vote(task: str, voter: str, origins: str, chosen: list[int] | None) -> Vote:
    """A grid of outputs of the folders o (old) and n (new), in this order."""
    shown = [
        {"output": f"{n}", "digest": f"{n}", "origin": {"o": "old", "n": "new"}[one]} for n, one in enumerate(origins)
    ]
    return vote_of(json.loads(vote_line(task=task, voter=voter, form="grid", shown=shown, chosen=chosen)))


def test_a_grid_is_one_observation_of_its_comparisons_between_the_folders() -> None:
    votes = [
        grid_vote("a", "anna", "onno", [1]),  # new beats old: of 4 comparisons 2 won, 2 alike: 0.75
        grid_vote("a", "bert", "onno", [0, 3]),  # both old chosen: 0
        grid_vote("b", "anna", "oo", [0]),  # compares nothing of both
        grid_vote("c", "anna", "on", None),
        grid_vote("d", "anna", "on", [0, 1]),
    ]
    assert newer_shares(votes, "old", "new") == [(0.75 + 0.0) / 2, 0.5]
    assert [vote.is_tie for vote in votes] == [False, False, False, False, True]
    assert "5 answers (anna 4, bert 1): 1 tie, 1 skipped" in summary(votes)
    labels = compared_voters(votes)["anna", "bert"]
    assert labels == ([False, True, False, False], [True, False, False, True])


def test_kappa_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        first, second = torch.randint(3, (2, 30), generator=generator).tolist()
        assert cohens_kappa(first, second) == pytest.approx(metrics.cohen_kappa_score(first, second))
    assert cohens_kappa([1, 1], [1, 1]) is None and cohens_kappa([], []) is None


def test_the_server_shows_nothing_of_where_an_output_comes_from(tmp_path: Path) -> None:
    page = VotePage(ballot(run_of(tmp_path)))
    state = page.handle(Request("GET", "/task", "")).content.decode()
    assert not any(word in state for word in ("0000", ".png", "taste", "samples", "digest"))
    address = json.loads(state)["task"]["outputs"][0]["address"]
    assert page.handle(Request("GET", f"/{address}", "")).kind == "image/png"
    for path in ("/media/x/output/0", f"/{address}9", "/../votes.jsonl", "/media/../../etc/passwd", f"/{address}/.."):
        assert page.handle(Request("GET", path, "")).status == 404, path
    name = json.loads(state)["task"]["name"]
    for body in (b"", b"[]", b'{"task": "x", "chosen": [0], "seconds": 1}', b"[" * 9000, b'{"task": 1}'):
        assert page.handle(Request("POST", "/answer", "", body)).status == 400
    for chosen in ("[2]", "[true]", "[0, 1]", "[0, 0]", "{}", "[-1]"):
        body = f'{{"task": "{name}", "chosen": {chosen}, "seconds": 1}}'.encode()
        assert page.handle(Request("POST", "/answer", "", body)).status == 400, chosen
    assert not (tmp_path / "votes.jsonl").exists()


@pytest.mark.slow  # a browser
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    api = pytest.importorskip("playwright.sync_api")
    if not Path("/usr/bin/chromium").exists():
        pytest.skip("no Chromium here")
    own = ballot(run_of(tmp_path))
    grid = ballot(tmp_path, VoteSettings("bert", "grid"), tmp_path / "grid.jsonl")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for voting, width, presses in ((own, 1200, ("ArrowLeft", "ArrowRight", "t", "s")), (grid, 400, ("2", "s"))):
            page = VotePage(voting)
            with serving(page.handle, token=page.token) as url:
                tab = browser.new_page(viewport={"width": width, "height": 800})
                wrong: list[str] = []
                tab.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
                tab.on("dialog", lambda dialog, wrong=wrong: wrong.append(dialog.message))
                tab.goto(url)
                for number, key in enumerate(presses):
                    tab.wait_for_selector(f"#count:text('{number} of')")
                    tab.eval_on_selector_all("#outputs img", "all => Promise.all(all.map(one => one.decode()))")
                    assert tab.evaluate("document.documentElement.scrollWidth") == width
                    assert (
                        tab.inner_text("#prompt") in PROMPTS and tab.query_selector("#voting script, #voting b") is None
                    )
                    tab.keyboard.press(key)
                    if key == "2":
                        tab.click("#done")
                tab.wait_for_selector("#end h1")
                count = len(presses)
                tab.keyboard.press("Backspace")  # takes back the last answer, also where all are answered
                tab.wait_for_selector(f"#count:text('{count - 1} of')")
                tab.click("#undo")
                tab.wait_for_selector(f"#count:text('{count - 2} of')")
                for number, key in enumerate(presses[-2:], count - 1):
                    tab.keyboard.press(key)
                    if key == "2":
                        tab.click("#done")
                    tab.wait_for_selector(f"#count:text('{number} of')")
                tab.wait_for_selector("#end h1")
                assert tab.title() == "mmrl vote" and wrong == []
                tab.close()
        browser.close()
    assert [vote.chosen for vote in read_votes(tmp_path / "votes.jsonl")] == [(0,), (1,), (), None]
    assert [vote.chosen for vote in read_votes(tmp_path / "grid.jsonl")] == [(1,), None]


@pytest.mark.slow  # two processes
def test_a_kill_loses_no_answer(tmp_path: Path) -> None:
    run_of(tmp_path)
    for number, last in enumerate((signal.SIGKILL, signal.SIGINT)):
        command = [sys.executable, "-m", "mmrl", "vote", str(tmp_path), "--voter", "anna", "--no-browser"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"{4 - number} of 4 tasks are left for anna: ")
            url = re.findall(r"http://\S+", line)[0]
            token = re.findall(r'data-token="([^"]+)"', urlopen(url).read().decode())[0]
            state = json.loads(urlopen(f"{url}task").read())
            body = json.dumps({"task": state["task"]["name"], "chosen": [0], "seconds": 1.5}).encode()
            post = HttpRequest(f"{url}answer", body, {"X-Mmrl-Token": token, "Content-Type": "application/json"})
            assert json.loads(urlopen(post).read())["answered"] == number + 1
            process.send_signal(last)
            rest = process.stdout.read()
        assert len(read_votes(tmp_path / "votes.jsonl")) == number + 1
    assert process.returncode == 0 and "2 answers (anna 2): 0 ties, 0 skipped" in rest


@pytest.mark.slow  # two short runs
@pytest.mark.parametrize(
    ("loss", "layout", "reward"),
    [
        ("flow_dpo", "votes", "{name: given_score}"),
        ("flow_dpo", "votes", "{name: human, votes: VOTES}"),  # it knows the pictures of the rows by their pixels
        ("kto", "vote_labels", "{name: given_score}"),
    ],
)
def test_training_moves_towards_what_was_chosen(
    loss: str, layout: str, reward: str, tmp_path: Path, mmrl: CommandLine
) -> None:
    folder, listed = tmp_path / "samples" / "000000", []
    folder.mkdir(parents=True)
    for number, text in enumerate(("red circle top left", "blue cross bottom right")):
        for place, drawn in enumerate((text, "yellow square middle centre")):
            Drawing(drawn, number).load().save(folder / f"{number}{place}.png")
            listed.append({"prompt": text, "seed": number, "file": f"{number}{place}.png"})
    (folder / "samples.json").write_text(json.dumps({"kind": "image", "samples": listed}))
    own = ballot(tmp_path)
    while (task := own.next) is not None:
        own.answer(task, [n for n, one in enumerate(own.order(task)) if one.item.name.endswith("0.png")], 1.0)
    ended = mmrl(
        "train", "lab/diffusion_dpo_offline", f"prompts.train={{path: {own.file.path}, layout: {layout}}}",
        f"loss={{name: {loss}, draws: 4, beta: 100.0{', threshold: 0.5' if loss == 'kto' else ''}}}", "iterations=4",
        "prompts_per_iteration=2", "optimizer.learning_rate=1e-3", "evaluation=null", "--out", str(tmp_path / "out"),
        "advantage={name: score}" if loss == "kto" else "seed=0",
        f"rewards=[{reward.replace('VOTES', str(own.file.path))}]",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    name = {"flow_dpo": "loss/margin", "kto": "loss/accuracy"}[loss]
    lines = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert lines[-1][name] > lines[0][name], [line[name] for line in lines]
    assert all(line["reward/failed"] == 0 for line in lines), "every picture of the rows has votes"


def test_two_processes_may_write_to_one_file(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    first, second = ballot(run), ballot(run, VoteSettings("bert"))
    for own in (first, second, first, second):
        own.answer(task_after(own), [0], 1.0)
    assert [vote.voter for vote in VoteFile(run / "votes.jsonl").read()] == ["anna", "bert", "anna", "bert"]
