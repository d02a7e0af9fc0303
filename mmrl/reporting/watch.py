"""The server of a run's live page: read only, and of the run's own samples alone."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, unquote

from mmrl.reporting import loopback
from mmrl.reporting.charts import library
from mmrl.reporting.document import SERVED, document, served_policy
from mmrl.reporting.live_run import KINDS, LiveRun
from mmrl.reporting.loopback import Answer, Request
from mmrl.reporting.theme import SCRIPT, STYLE
from mmrl.reporting.watch_script import WATCH_SCRIPT, WATCH_STYLE
from mmrl.system.errors import ConfigError

MEDIA = re.compile(r"/media/((?:samples|rollouts)/(?:\d+|questions)/[\w-]+\.(png|mp4))", re.ASCII)
TYPES = {"png": "image/png", "mp4": "video/mp4"}
HTML = "text/html; charset=utf-8"


@contextmanager
def serving(run: Path, port: int, is_training: Callable[[], bool]) -> Iterator[str]:
    """Serves the page of a run inside of the block; gives its address. Port 0 is a free one.

    `is_training` returns whether a process trains in the run directory at this moment.
    Raises ConfigError for a port that is in use or may not be opened.
    """
    page = LiveRun(run.absolute(), is_training)

    def handle(request: Request) -> Answer:
        try:
            return _answer(page, unquote(request.path), dict(parse_qs(request.query)))
        except ConfigError as error:
            return Answer(str(error).encode(errors="replace"), status=HTTPStatus.INTERNAL_SERVER_ERROR)

    with loopback.serving(handle, port) as address:
        yield address


def _answer(page: LiveRun, path: str, query: dict[str, list[str]]) -> Answer:
    if path == "/":
        style, script = _texts()
        shell = '<main><div id="notice"></div><div id="parts"></div></main>'
        text = document(page.run.name, shell, style, script, SERVED)
        return Answer(text.encode(), HTML, policy=served_policy(style, script))
    if path == "/state":
        version, parts = page.look()
        if query.get("have", [""])[-1] == version:
            return Answer(b"", status=HTTPStatus.NO_CONTENT)
        content = json.dumps({"version": version, "parts": list(parts.items())}).encode()
        return Answer(content, "application/json")
    if path.removeprefix("/") in KINDS:
        return Answer(page.samples(path.removeprefix("/"), query.get("iteration", [""])[-1]).encode(), HTML)
    if match := MEDIA.fullmatch(path):
        return _file(page.run, page.run / match[1], TYPES[match[2]])
    return Answer(b"there is no such page\n", status=HTTPStatus.NOT_FOUND)


def _file(run: Path, file: Path, kind: str) -> Answer:
    """Returns a file of the run; a link that leads out of the run is none."""
    if not file.resolve().is_relative_to(run.resolve()) or not file.is_file():
        return Answer(b"there is no such file\n", status=HTTPStatus.NOT_FOUND)
    return Answer(file.read_bytes(), kind)


def _texts() -> tuple[str, str]:
    """Returns the style and the script of the live page."""
    style, script = library()
    return style + STYLE + WATCH_STYLE, script + SCRIPT + WATCH_SCRIPT
