"""Damage to any kind of file of a run ends every command that reads the file in a message, never in a traceback.

`CASES` lists each: the file, the damage, the command. `GOES_ON` says where there is something left to do: a report
leaves a broken picture out, and a training goes on without lines of its log.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_cli import command_line
from tests.tiny_runs import assert_same, numbers


def with_other_bit(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "no UTF-8": lambda content: content[:20] + b"\xff\xfe" + content[20:],
    "brackets": lambda content: b"[" * 100_000 + b"\n",
    "a list": lambda content: b"[1, 2]\n",
    "digits": lambda content: b"9" * 6000 + b"\n",
    "huge": lambda content: b'{"iteration": 1' + b"0" * 400 + b', "a": 1e999}',
    "fields": lambda content: b'{"samples": [{"prompt": 1}], "held_out": 3, "format": 1, "files": [], "iteration": -1}',
    "one bit": lambda content: with_other_bit(content, content.index(b"\n") + 2 if content[:1] == b"#" else 1),
}
COMMANDS = {
    "resume": ("train", "--resume", "run", "iterations=3"),
    "evaluate": ("evaluate", "run"),
    "sample": ("sample", "run", "--prompt", "a red circle", "--count", "1", "--out", "drawn"),
    "export": ("export", "run"),
    "report": ("report", "run"),
    "score": ("score", "run/samples/000002", "--reward", "jpeg_size"),
}
LAST = "checkpoints/000002"
READERS = {  # of each file, and how damaged it may be
    "config.yaml": (("resume", "evaluate", "sample", "export", "report"), DAMAGES),
    "metrics.jsonl": (("resume", "report"), DAMAGES),
    "summary.json": (("report",), DAMAGES),
    "failure.json": (("report",), ("half", "empty", "brackets")),
    "samples/000002/samples.json": (("report", "score"), DAMAGES),
    "samples/000002/00.png": (("report", "score"), ("half", "empty", "one bit")),
    "lock.json": (("resume",), DAMAGES),
    f"{LAST}/state.json": (("evaluate", "sample", "export"), DAMAGES),
    f"{LAST}/manifest.json": (("evaluate", "sample", "export"), ("half", "empty", "brackets", "one bit")),
    f"{LAST}/trained.safetensors": (("resume", "evaluate", "sample", "export"), ("half", "one bit")),
    f"{LAST}/optimizer.safetensors": (("resume", "export"), ("empty", "one bit")),
}
CASES = [
    (file, damage, command) for file, (commands, kinds) in READERS.items() for damage in kinds for command in commands
]
SOME = {  # two of each file and command, every kind of damage among them; the others: `make exhaustive`
    case
    for number, (file, (commands, kinds)) in enumerate(READERS.items())
    for place, command in enumerate(commands)
    for offset in (0, 5)
    for case in [(file, [*kinds][(3 * number + place + offset) % len(kinds)], command)]
}
GOES_ON = {  # where there is something left to do without the file, or the part of it that is damaged
    ("resume", LAST): "any",  # from the checkpoint before
    ("resume", "lock.json"): ("empty",),  # a lock that was never written
    ("resume", "metrics.jsonl"): ("half", "empty"),  # lines that lack are counted
    ("report", "metrics.jsonl"): ("half",),  # a last line that a kill cut short
    ("report", "config.yaml"): [damage for damage in DAMAGES if damage != "no UTF-8"],  # its text is shown as it is
    ("report", "failure.json"): "any",  # a note
    ("report", "summary.json"): ("fields",),  # what it lacks is taken from the metrics
    ("report", "samples/000002/00.png"): "any",  # the picture is left out
    ("score", "samples/000002/00.png"): "any",  # it is counted as one that could not be judged
}


def goes_on(file: str, damage: str, command: str) -> bool:
    kinds = next((kinds for (by, of), kinds in GOES_ON.items() if by == command and file.startswith(of)), ())
    return kinds == "any" or damage in kinds


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations; made when the first case runs."""
    return tmp_path_factory.mktemp("whole") / "run"


@pytest.mark.slow  # a copy of a run is read for each case
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case in SOME else pytest.mark.exhaustive) for case in CASES],
    ids=lambda case: "-".join(case),
)
def test_damage_is_a_message(
    case: tuple[str, str, str],
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = command_line(tmp_path, monkeypatch, capsys)
    if not whole.exists():
        assert cli.train("iterations=2", "evaluation.every=1", "evaluation.saved_samples=2", out=str(whole)).code == 0
    file, damage, command = case
    path = Path(shutil.copytree(whole, "run")) / file
    path.write_bytes(DAMAGES[damage](path.read_bytes() if path.exists() else b"{}"))
    ended = cli(*COMMANDS[command])
    assert ended.code == (0 if goes_on(*case) else 2), ended.err
    if ended.code:
        assert ended.err.startswith("mmrl: ") and path.name in ended.err.partition("\n")[0]
        assert not Path("run/export").exists() and not Path("drawn").exists()


def test_there_is_a_case_for_each_command_and_each_kind_of_damage() -> None:
    assert len(CASES) >= 94
    assert {command for _, _, command in CASES} == set(COMMANDS)
    assert {damage for _, damage, _ in CASES} == {damage for _, damage, _ in SOME} == set(DAMAGES)
    assert {command for _, _, command in SOME} == set(COMMANDS)


@pytest.mark.slow  # most of a second each, or more
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one_and_ends_where_all_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cli = command_line(tmp_path, monkeypatch, capsys)
    assert cli.train("iterations=2").code == 0
    wanted = numbers(Path("run"))
    flip(Path("run/checkpoints/000002/optimizer.safetensors"))
    for command in ("evaluate", "export"):
        ended = cli(command, "run")
        assert ended.code == 2 and "optimizer.safetensors is damaged: its SHA-256 is not" in ended.err
    assert cli("train", "--resume", "run").code == 0
    assert "optimizer.safetensors is damaged: its SHA-256 is not that of what was written; it was set" in caplog.text
    assert "it was set aside as damaged-000002, and the run goes on from 000001" in caplog.text
    assert Path("run/checkpoints/damaged-000002").is_dir()
    assert_same(numbers(Path("run")), wanted)
    for number in (1, 2):
        flip(Path(f"run/checkpoints/00000{number}/trained.safetensors"))
    ended = cli("train", "--resume", "run", "iterations=3")
    assert ended.code == 2 and "no checkpoint of" in ended.err and "is whole, so it cannot go on" in ended.err
    assert sorted(path.name for path in Path("run/checkpoints").iterdir()) == ["000001", "000002", "damaged-000002"]


@pytest.mark.slow  # most of a second each, or more
def test_evaluations_of_edited_settings_are_refused_but_for_how_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = command_line(tmp_path, monkeypatch, capsys)
    assert cli.train("iterations=1", kind="lora").code == 0
    config = Path("run/config.yaml")
    text = config.read_text()
    config.write_text(text.replace("num_prompts: 2", "num_prompts: 1"))
    assert cli("evaluate", "run").code == 0
    config.write_text(text.replace("alpha: 4", "alpha: 400"))
    for command in ("evaluate", "export"):
        ended = cli(command, "run")
        assert ended.code == 2 and "modality.lora.alpha: 4 before, 400 now" in ended.err


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # who has read the file keeps what was in it
    path.write_bytes(content)
