"""The report of a run for people: report.html in the run directory, and a picture of before and after."""

from collections.abc import Sequence
from pathlib import Path

from mmrl.reporting.compared_runs import ComparedRun
from mmrl.reporting.comparison import comparison
from mmrl.reporting.contact_sheet import contact_sheet
from mmrl.reporting.findings import findings_list, read_findings
from mmrl.reporting.page import Shown, page
from mmrl.reporting.prompt_groups import read_groups
from mmrl.reporting.record import read_record
from mmrl.reporting.sample_cards import Inlined, group_cards
from mmrl.reporting.sample_pairs import about_pairs, pair_cards
from mmrl.reporting.samples import read_pairs, read_snapshot, saved_iterations
from mmrl.system.errors import ConfigError
from mmrl.system.files import replace_file


def write_report(run: Path) -> Path:
    """Writes `report.html` into the run directory, one file that loads nothing from anywhere; returns its path.

    A missing summary, configuration, sample or metric only leaves its part out.
    Raises ConfigError when `run` is no directory, holds no metrics, or holds a file that is not what a run writes.
    """
    record, pairs, saved = read_record(run), read_pairs(run), saved_iterations(run, "rollouts")
    last = max(saved, default=0)
    shown = Shown(
        findings=findings_list(read_findings(run)),
        samples_about=about_pairs(pairs),
        samples=pair_cards(pairs),
        rollouts_about=f"Samples of the best, the worst and the widest group of iteration {last}, by their totals.",
        rollouts=group_cards(read_snapshot(last, saved[last]), Inlined()) if saved else "",
        groups=read_groups(run),
    )
    text = page(record, shown)
    target = run / "report.html"
    replace_file(target, text.encode())
    return target


def picture(run: Path, out: Path) -> Path:
    """Writes a contact sheet (PNG) of the first and the last saved pictures of the same prompts and seeds.

    Returns `out`. Raises ConfigError when `run` saved no pictures at two iterations.
    """
    pairs = read_pairs(run)
    sheet = None if pairs is None else contact_sheet(pairs)
    if sheet is None:
        raise ConfigError(f"{run} holds no pictures of the same prompts at two iterations in samples/")
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out, "PNG")
    return out


def write_comparison(runs: Sequence[ComparedRun], out: Path) -> Path:
    """Writes the page of several runs, one file that loads nothing; returns `out`.

    Raises ConfigError where saved samples are not what a run writes, and where `out` is a folder or lies in none.
    """
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {str(out)!r}: it must be a file in a folder that is there")
    replace_file(out, comparison(runs).encode(errors="xmlcharrefreplace"))  # names of folders may be no UTF-8
    return out
