"""What `mmrl vote` shows, in which order, and the file that its answers go to."""

import fcntl
import json
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import BinaryIO, cast, get_args

from mmrl.commands.score_items import InputSettings, Item, read_items
from mmrl.core.contracts import ConfigError
from mmrl.core.human_votes import (
    MOST_SHOWN,
    Form,
    Kind,
    Shown,
    Vote,
    pixel_digest,
    question_digest,
    read_votes,
    text_digest,
    whole_length,
)
from mmrl.media.mp4 import read_frames
from mmrl.media.pictures import StoredPicture, as_tensor
from mmrl.system.files import replace_file
from mmrl.system.progress_bars import Counter

COPIES = "voted"  # the folder beside the votes of the files that lie elsewhere
PLAYED = (".mp4", ".webm")  # which browsers play
LONGEST_NAME = 80  # characters of a voter's name
LONGEST_CRITERION = 300  # characters


@dataclass(frozen=True)
class VoteSettings:
    """What is shown to whom."""

    voter: str
    form: Form = "pairs"
    size: int = 4  # outputs of a grid
    iterations: tuple[int, ...] = ()  # of a run; (): the first and the last one, of two runs the last ones
    limit: int | None = None  # tasks at most
    seed: int = 0  # of which outputs meet, and, with the voter's name, of the order
    criterion: str = ""  # by what they are compared, in words, which the page shows

    def __post_init__(self) -> None:
        is_name = 0 < len(self.voter) <= LONGEST_NAME and self.voter.isprintable() and self.voter.strip() == self.voter
        if not is_name:
            raise ConfigError(f"--voter needs a name of 1 to {LONGEST_NAME} printable characters, got {self.voter!r}")
        if len(self.criterion) > LONGEST_CRITERION or not self.criterion.isprintable() or self.criterion.isspace():
            kind = f"a text of at most {LONGEST_CRITERION} printable characters"
            raise ConfigError(f"--criterion needs {kind}, got {self.criterion!r:.400}")
        if not 2 <= self.size <= MOST_SHOWN:
            raise ConfigError(f"--size must be from 2 to {MOST_SHOWN}, got {self.size}")
        if len(self.iterations) > 2 or len(set(self.iterations)) < len(self.iterations):
            raise ConfigError(f"--iteration takes one iteration or two different ones, got {list(self.iterations)}")

    @classmethod
    def checked(
        cls,
        voter: str,
        form: str,
        size: int,
        iterations: tuple[int, ...],
        limit: int | None,
        seed: int,
        criterion: str,
    ) -> "VoteSettings":
        """Returns the settings of the command line. Raises ConfigError for a wrong one."""
        if form not in get_args(Form):
            raise ConfigError(f"--form must be one of {', '.join(get_args(Form))}, got {form!r}")
        return cls(voter, cast(Form, form), size, iterations, limit, seed, criterion)


@dataclass(frozen=True)
class Candidate:
    """An output that may be shown."""

    item: Item
    origin: str  # its folder as the votes name it
    digest: str = ""  # of its pixels or text

    @property
    def kind(self) -> Kind:
        return "text" if self.item.text is not None else "video" if self.item.is_video else "image"


@dataclass(frozen=True)
class Task:
    """Outputs of one prompt that are shown side by side."""

    name: str
    form: Form
    question: str  # digest of the prompt
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class VoteFile:
    """The file of all voters' answers. Two processes may append to it; a line that a kill cut short is removed."""

    path: Path

    def read(self) -> list[Vote]:
        """Returns the votes, oldest first. Raises ConfigError for a damaged file."""
        return read_votes(self.path) if self.path.exists() else []

    def append(self, vote: Vote) -> bool:
        """Writes a vote to the disk; returns False, and writes nothing, where this voter answered the task before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked() as file:
            if any((one.task, one.voter) == (vote.task, vote.voter) for one in self.read()):
                return False
            file.seek(0)
            content = file.read()
            whole = whole_length(content)
            file.truncate(whole)
            line = vote.line() if content[:whole].endswith(b"\n") or not whole else b"\n" + vote.line()
            try:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), whole)
                raise
        return True

    def take_back(self, task: str, voter: str) -> None:
        """Removes a voter's answer to a task, where there is one; all other lines stay as they are.

        Raises ConfigError for a damaged file.
        """
        with self._locked() as file:
            self.read()
            file.seek(0)
            content = file.read()
            lines = [line for line in content[: whole_length(content)].split(b"\n") if line.strip()]
            kept = [line for line in lines if _answer_of(line) != (task, voter)]
            if len(kept) < len(lines):
                mode = self.path.stat().st_mode  # several people may vote in one file
                replace_file(self.path.resolve(), b"".join(line + b"\n" for line in kept))
                self.path.chmod(mode)

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Gives the file while no other process writes to it."""
        while True:
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
                if _is_there(file, self.path):
                    yield file
                    return


def _answer_of(line: bytes) -> tuple[object, object]:
    values = json.loads(line)
    return values.get("task"), values.get("voter")


def _is_there(file: BinaryIO, path: Path) -> bool:
    """Returns whether an open file is still the one at its path: another process may have replaced it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@dataclass
class Ballot:
    """The tasks of a voter, in the voter's own order, and the file of the answers."""

    tasks: list[Task]
    file: VoteFile
    settings: VoteSettings
    answered: dict[str, None] = field(default_factory=dict)  # names of tasks, in the order of their answers

    def __post_init__(self) -> None:
        random.Random(f"{self.settings.seed}/{self.settings.voter}").shuffle(self.tasks)
        names = {task.name for task in self.tasks}
        votes = (vote for vote in self.file.read() if vote.voter == self.settings.voter and vote.task in names)
        self.answered = dict.fromkeys(vote.task for vote in votes)

    @property
    def next(self) -> Task | None:
        """The first task without an answer of this voter."""
        return next((task for task in self.tasks if task.name not in self.answered), None)

    def order(self, task: Task) -> list[Candidate]:
        """Returns the outputs of a task in the order in which this voter sees them."""
        candidates = list(task.candidates)
        random.Random(f"{self.settings.seed}/{self.settings.voter}/{task.name}").shuffle(candidates)
        return candidates

    def answer(self, task: Task, chosen: Sequence[int] | None, seconds: float) -> None:
        """Writes an answer. Raises ValueError for places that were not shown."""
        first = task.candidates[0]
        vote = Vote(
            task=task.name,
            form=task.form,
            kind=first.kind,
            prompt=first.item.prompt.text,
            images=tuple(self._stored(Path(_path_of(one))) for one in first.item.prompt.media),
            roles=first.item.prompt.roles,
            question=task.question,
            shown=tuple(Shown(self._output(one), one.digest, one.origin) for one in self.order(task)),
            chosen=None if chosen is None else tuple(chosen),
            seconds=round(seconds, 3),
            voter=self.settings.voter,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            criterion=self.settings.criterion,
        )
        self.file.append(vote)
        self.answered[task.name] = None

    def undo(self) -> None:
        """Takes back this voter's last answer, so that its task is without one; nothing where there is none."""
        if self.answered:
            last = next(reversed(self.answered))
            self.file.take_back(last, self.settings.voter)
            del self.answered[last]

    def _output(self, candidate: Candidate) -> str:
        item = candidate.item
        return item.text if item.text is not None else self._stored(item.file or Path())

    def _stored(self, file: Path) -> str:
        """Returns the name of a file below the folder of the votes; one from elsewhere is copied there."""
        folder, file = self.file.path.parent.resolve(), file.resolve()
        if file.is_relative_to(folder):
            return file.relative_to(folder).as_posix()
        content = file.read_bytes()
        name = f"{COPIES}/{text_digest(content.hex())}{file.suffix.lower()}"
        if not (folder / name).exists():
            (folder / COPIES).mkdir(exist_ok=True, parents=True)
            replace_file(folder / name, content)
        return name


def prepared(
    sources: Sequence[Path], settings: VoteSettings, out: Path | None = None
) -> tuple[VoteFile, list[str], list[Task]]:
    """Returns the file of the votes, the folders that are compared (the older one first), and all tasks."""
    file = VoteFile(out or sources[0] / "votes.jsonl")
    if file.path.is_dir() or file.path.suffix != ".jsonl":
        raise ConfigError(f"--out must name a .jsonl file, got {str(file.path)!r}")
    file.read()  # which fails now rather than at the first answer
    folders = [folder for source in sources for folder in _folders(source, settings.iterations, len(sources))]
    names = {folder: os.path.relpath(folder.resolve(), file.path.parent.resolve()) for folder in folders}
    sets = [[Candidate(item, names[folder]) for item in read_items(folder, InputSettings())] for folder in folders]
    return file, [names[folder] for folder in folders], make_tasks(sets, settings)


def _folders(source: Path, iterations: Sequence[int], num_sources: int) -> list[Path]:
    """Returns the folders of outputs that a source means: of a run one or two iterations."""
    if not source.is_dir():
        raise ConfigError(f"vote needs a run directory or a folder of outputs, got {str(source)!r}: it is no folder")
    saved = sorted(
        (int(file.parent.name), file.parent)
        for file in source.glob("samples/*/samples.json")
        if file.parent.name.isdecimal()
    )
    if not saved or (source / "samples.json").is_file():
        if iterations:
            raise ConfigError(f"--iteration chooses among the saved iterations of a run, and {str(source)!r} is none")
        return [source]
    known = dict(saved)
    if missing := [one for one in iterations if one not in known]:
        listed = ", ".join(map(str, known))
        raise ConfigError(f"--iteration {missing[0]}: {source} saved samples at the iterations {listed}")
    if num_sources > 1:
        if len(iterations) > 1:
            raise ConfigError(f"of each of two runs one iteration is compared, got {list(iterations)}")
        return [known[iterations[0]] if iterations else saved[-1][1]]
    if iterations:
        return [known[one] for one in sorted(iterations)]
    return [saved[0][1]] if len(saved) == 1 else [saved[0][1], saved[-1][1]]


def make_tasks(sets: Sequence[Sequence[Candidate]], settings: VoteSettings) -> list[Task]:
    """Returns the tasks of one set of outputs, or of two that are compared; they do not depend on the voter.

    Pairs of two sets are the first, second ... outputs of a prompt in both; of one set all pairs of a prompt. A grid
    shows outputs of all sets. Equal outputs are not shown side by side. Raises ConfigError where there is no task.
    """
    kinds = {one.kind: one.item.name for candidates in sets for one in candidates}
    if len(kinds) > 1:
        raise ConfigError(
            f"outputs of one kind are compared, got {' and '.join(f'{k} ({n})' for k, n in kinds.items())}"
        )
    for one in (one for candidates in sets for one in candidates if one.item.file is not None):
        if one.kind == "video" and one.item.file is not None and one.item.file.suffix.lower() not in PLAYED:
            raise ConfigError(f"browsers play {' and '.join(PLAYED)}, got {one.item.name!r}")
    groups = _by_prompt(sets)
    rng = random.Random(settings.seed)
    drafts: list[tuple[str, tuple[Candidate, ...]]] = []
    for (question, _), parts in groups.items():
        if settings.form == "pairs":
            pairs = zip(*parts, strict=False) if len(sets) > 1 else combinations(parts[0], 2)
            drafts += [(question, tuple(pair)) for pair in pairs]
        else:
            mixed = [one for part in parts for one in part]
            rng.shuffle(mixed)
            drafts += [(question, tuple(mixed[at : at + settings.size])) for at in range(0, len(mixed), settings.size)]
    rng.shuffle(drafts)
    tasks = list(_tasks(drafts, settings))
    if not tasks:
        raise ConfigError(
            "there is nothing to compare: no prompt has two different outputs"
            + (" in both folders" if len(sets) > 1 and settings.form == "pairs" else "")
        )
    return tasks


def _tasks(drafts: Sequence[tuple[str, tuple[Candidate, ...]]], settings: VoteSettings) -> Iterable[Task]:
    """Yields the first tasks of which the outputs differ."""
    most = min(settings.limit or len(drafts), len(drafts))
    number = 0
    with Counter.on_stderr("reading", most, unit="tasks") as counter:
        for question, shown in drafts:
            known = {one.digest: one for one in (replace(one, digest=_digest(one.item)) for one in shown)}
            if len(known) < 2 or (settings.form == "pairs" and len(known) < len(shown)):
                continue
            by = [settings.criterion] if settings.criterion else []  # the same outputs by another one are another task
            name = text_digest("\n".join([settings.form, question, *sorted(known), *by]))
            yield Task(name, settings.form, question, tuple(known.values()))
            number += 1
            counter.add(1)
            if number == most:
                return


def _by_prompt(sets: Sequence[Sequence[Candidate]]) -> dict[tuple[str, int | None], list[list[Candidate]]]:
    """Returns the outputs of each prompt: a list for each set. Prompts of the same words differ by their images.

    Answers also by the number of their question, since not every run saves the images of its questions.
    """
    questions: dict[tuple[object, ...], str] = {}
    groups: dict[tuple[str, int | None], list[list[Candidate]]] = {}
    for number, candidates in enumerate(sets):
        for one in candidates:
            prompt = one.item.prompt
            key = prompt.text, *(str(Path(_path_of(picture)).resolve()) for picture in prompt.media)
            if key not in questions:
                questions[key] = question_digest(prompt.text, prompt.media)
            groups.setdefault((questions[key], one.item.question), [[] for _ in sets])[number].append(one)
    return groups


def _digest(item: Item) -> str:
    if item.file is None:
        return text_digest(item.text or "")
    if item.is_video:
        return pixel_digest(read_frames(item.file)[0])
    return pixel_digest(as_tensor(StoredPicture(item.file.name, path=item.file).load()))


def _path_of(picture: object) -> str:
    assert isinstance(picture, StoredPicture) and picture.path is not None, "folders hold files"
    return str(picture.path)
