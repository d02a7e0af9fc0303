"""The report's charts of what samples are like, and of the rewards that go with it."""

from pathlib import Path

from mmrl.reporting.curves import sample_diagnostics
from mmrl.reporting.record import read_record
from tests.report_pages import HELD_OUT, TRAINING, read_page, run_of

LENGTH = {"samples/length/mean": 100.0, "samples/length/std": 9.0, "samples/diversity": 0.5}


def lines_of(folder: Path, follows: dict[str, float]) -> dict[str, dict[str, str]]:
    """Returns the metrics and names of each chart of samples, by its title."""
    run = run_of(folder, [*HELD_OUT, *({**line, **LENGTH, **follows} for line in TRAINING)])
    return {one.title: one.metrics for one in sample_diagnostics(read_record(run))}


def test_the_report_shows_which_rewards_go_with_a_property(tmp_path: Path) -> None:
    follows = {"follows/length": 0.5, "follows/judge/length": 0.7, "follows/a/b/length": -0.2, "follows/boxes": 0.1}
    assert lines_of(tmp_path, follows) == {
        "Samples: length": {"samples/length/mean": "length"},
        "Rewards and length": {"follows/length": "all", "follows/judge/length": "judge", "follows/a/b/length": "a/b"},
        "Samples: diversity": {"samples/diversity": "diversity"},
    }


def test_a_single_reward_has_one_line(tmp_path: Path) -> None:
    charts = lines_of(tmp_path, {"follows/length": 0.5, "follows/judge/length": 0.5})
    assert charts["Rewards and length"] == {"follows/judge/length": "judge"}


def test_names_of_rewards_are_escaped(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    numbers = ({**line, f"follows/{hostile}/length": 0.1 * n, **LENGTH} for n, line in enumerate(TRAINING))
    page = read_page(
        run_of(tmp_path, [*HELD_OUT, *({**one, "follows/length": 0.3, "follows/b/length": 0.2} for one in numbers)])
    )
    assert hostile in page.text and not [one for one in page.all("img") if one.get("src") == "x"]
