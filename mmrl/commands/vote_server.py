"""What the page of `mmrl vote` gets from its server: the next task, its media, and where answers go."""

import json
import math
import threading
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.commands.score_results import Seeing, outputs_of
from mmrl.commands.vote_tasks import Ballot, Candidate, Task
from mmrl.core.human_votes import LONGEST
from mmrl.media.pictures import StoredPicture
from mmrl.reporting.loopback import Answer, Request, new_token
from mmrl.reporting.samples import is_tiny
from mmrl.reporting.vote_page import vote_page
from mmrl.system.errors import ConfigError, RunError
from mmrl.system.files import NOT_JSON
from mmrl.training.held_out import answered

KINDS = {  # of files that browsers show as they are; other pictures are sent as PNG
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif",
    ".avif": "image/avif", ".mp4": "video/mp4", ".webm": "video/webm",
}  # fmt: skip
JSON = "application/json"


@dataclass
class VotePage:
    """The page of one voter. Media go by their task and their place in it: no address says where they come from."""

    ballot: Ballot
    token: str = field(default_factory=new_token, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def handle(self, request: Request) -> Answer:
        """Returns the answer to a request of the page."""
        match request.method, request.path.strip("/").split("/"):
            case "GET", [""]:
                settings = self.ballot.settings
                page, policy = vote_page(settings.form, settings.voter, self.token, settings.criterion)
                return Answer(page.encode(), "text/html; charset=utf-8", policy=policy)
            case "GET", ["task"]:
                with self._lock:
                    return self._next()
            case "GET", ["media", name, part, place]:
                return self._media(name, part, place)
            case "POST", ["answer"]:
                return self._answer(request.body)
            case "POST", ["undo"]:
                return self._undo()
        return _refused(HTTPStatus.NOT_FOUND, "there is no such page")

    def _next(self) -> Answer:
        """Returns the next task as the page shows it; without one, that all are answered."""
        ballot, task = self.ballot, self.ballot.next
        state: dict[str, Any] = {"answered": len(ballot.answered), "total": len(ballot.tasks)}
        if task is not None:
            state["task"] = _shown(task, ballot.order(task))
        return Answer(json.dumps(state, allow_nan=False).encode(), JSON)

    def _media(self, name: str, part: str, place: str) -> Answer:
        task = next((task for task in self.ballot.tasks if task.name == name), None)
        if task is None or not (place.isascii() and place.isdecimal() and len(place) < 4):
            return _refused(HTTPStatus.NOT_FOUND, "there is no such picture")
        candidates, number = self.ballot.order(task), int(place)
        try:
            if part == "output" and number < len(candidates):
                return _of_output(candidates[number])
            media = candidates[0].item.prompt.media
            if part == "image" and number < len(media):
                return _png(media[number].load())
        except (ConfigError, OSError) as error:
            return _refused(HTTPStatus.GONE, f"it cannot be read any more: {error}")
        return _refused(HTTPStatus.NOT_FOUND, "there is no such picture")

    def _answer(self, body: bytes) -> Answer:
        try:
            name, chosen, seconds = _read_answer(body)
        except NOT_JSON as error:
            return _refused(HTTPStatus.BAD_REQUEST, str(error))
        with self._lock:
            task = next((task for task in self.ballot.tasks if task.name == name), None)
            if task is None:
                return _refused(HTTPStatus.BAD_REQUEST, "there is no such task")
            if name not in self.ballot.answered:  # else another tab was faster
                try:
                    self.ballot.answer(task, chosen, seconds)
                except ValueError as error:
                    if isinstance(error, ConfigError):
                        return _refused(HTTPStatus.CONFLICT, str(error))
                    return _refused(HTTPStatus.BAD_REQUEST, str(error))
                except (RunError, OSError) as error:
                    return _refused(HTTPStatus.INSUFFICIENT_STORAGE, f"the answer could not be written: {error}")
            return self._next()

    def _undo(self) -> Answer:
        with self._lock:
            try:
                self.ballot.undo()
            except ConfigError as error:
                return _refused(HTTPStatus.CONFLICT, str(error))
            except OSError as error:
                return _refused(HTTPStatus.INSUFFICIENT_STORAGE, f"the answer could not be taken back: {error}")
            return self._next()


def _read_answer(body: bytes) -> tuple[str, list[int] | None, float]:
    """Returns the task, the chosen places (None: skipped) and the seconds. Raises ValueError for other bodies."""
    values = json.loads(body)
    if not isinstance(values, dict) or not isinstance(values.get("task"), str):
        raise ValueError("an answer is an object with a task")
    chosen, seconds = values.get("chosen", ...), values.get("seconds")
    if chosen is not None and (not isinstance(chosen, list) or any(type(one) is not int for one in chosen)):
        raise ValueError("chosen must be a list of places, or null")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not math.isfinite(seconds):
        raise ValueError("seconds must be a number")
    return values["task"], chosen, min(max(float(seconds), 0.0), LONGEST)


def _shown(task: Task, candidates: list[Candidate]) -> dict[str, Any]:
    """Returns a task as the page shows it: nothing that says where an output comes from."""
    prompt = candidates[0].item.prompt
    has_marks = task.candidates[0].kind == "text" and any(_has_place(one) for one in candidates)
    outputs = []
    for place, one in enumerate(candidates):
        address = f"media/{task.name}/output/{place}"
        entry: dict[str, Any] = {"kind": one.kind}
        if one.kind == "text":
            entry |= {"text": one.item.text} | ({"address": address} if has_marks else {})
        else:
            entry |= {"address": address, "crisp": one.kind == "image" and _is_tiny(one)}
        outputs.append(entry)
    images = [] if has_marks else [f"media/{task.name}/image/{place}" for place in range(len(prompt.media))]
    return {"name": task.name, "prompt": prompt.text, "images": images, "roles": prompt.roles, "outputs": outputs}


def _has_place(candidate: Candidate) -> bool:
    """Returns whether an answer is a place on its image, which is then drawn there."""
    item = candidate.item
    return bool(item.prompt.media) and (item.canvas is not None or item.actions is not None)


def _is_tiny(candidate: Candidate) -> bool:
    file = candidate.item.file
    assert file is not None
    try:
        with Image.open(file) as opened:
            return is_tiny(opened)
    except OSError:  # the page says so where the picture would be
        return False


def _of_output(candidate: Candidate) -> Answer:
    item = candidate.item
    if item.file is None:  # the image of the question with the place of the answer, and without the true one
        picture = answered(replace(item.prompt, target={}), outputs_of([item], Seeing()), 0)
        return _refused(HTTPStatus.NOT_FOUND, "it has no picture") if picture is None else _png(picture)
    kind = KINDS.get(item.file.suffix.lower())
    if kind is None:
        return _png(StoredPicture(item.file.name, path=item.file).load())
    return Answer(Path(item.file).read_bytes(), kind)


def _png(picture: Image.Image) -> Answer:
    content = BytesIO()
    picture.save(content, "PNG")
    return Answer(content.getvalue(), "image/png")


def _refused(status: HTTPStatus, why: str) -> Answer:
    return Answer(f"{why}\n".encode("utf-8", "replace"), status=status)
