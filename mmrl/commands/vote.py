"""`mmrl vote`: a person compares outputs of the same prompt in a browser, blind; the answers are training data."""

import shutil
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from mmrl.commands.vote_server import VotePage
from mmrl.commands.vote_summary import summary
from mmrl.commands.vote_tasks import Ballot, VoteSettings, prepared
from mmrl.core.contracts import ConfigError
from mmrl.reporting.loopback import serving, stop_signals

_LOOK = 0.5  # seconds between two looks at whether a signal came


def vote(
    sources: Sequence[Path], settings: VoteSettings, *, out: Path | None = None, port: int = 0, is_opened: bool = True
) -> str:
    """Serves the page until all tasks are answered and the person stops it; returns the summary in lines.

    Args:
        sources: a run directory, a folder of outputs, or two of these that are compared. out: the file of the votes;
            by default `votes.jsonl` in the first one. is_opened: whether a browser is started.
    Raises:
        ConfigError: nothing to compare, a damaged file of votes, a port in use.
    """
    file, folders, tasks = prepared(sources, settings, out)
    ballot = Ballot(tasks, file, settings)
    with stop_signals() as is_over:
        page = VotePage(ballot)
        with serving(page.handle, port, token=page.token) as url:
            left = len(tasks) - len(ballot.answered)
            print(f"{left} of {len(tasks)} tasks are left for {settings.voter}: {url}  (Ctrl-C ends)", flush=True)
            if is_opened and shutil.which("xdg-open"):
                webbrowser.open(url)
            while not is_over.wait(_LOOK):
                pass
    return f"{summary(file.read(), folders)}\n{file.path}"


def summary_of(sources: Sequence[Path], settings: VoteSettings, *, out: Path | None = None) -> str:
    """Returns the summary of the votes that are there. Raises ConfigError where there is no file of votes."""
    file, folders, _ = prepared(sources, settings, out)
    if not file.path.exists():
        raise ConfigError(f"there are no votes yet in {file.path}")
    return summary(file.read(), folders)
