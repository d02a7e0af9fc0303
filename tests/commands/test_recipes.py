"""What `mmrl list recipes` shows is what the shipped configs say of themselves."""

import json
from pathlib import Path

import pytest
import yaml

from mmrl.commands import recipes
from tests.tiny_cli import CommandLine, command_line

CONFIGS = Path(__file__).parents[2] / "configs"
FIRST = [
    *("Flow-GRPO", "Flow-GRPO-Fast", "Flow-CPS", "DiffusionNFT", "MixGRPO", "DanceGRPO", "Flow-DPO"),
    *("GRPO", "DAPO", "GSPO", "GiGPO", "T-GRPO"),
]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return command_line(tmp_path, monkeypatch, capsys)


@pytest.mark.slow
def test_the_rows_are_what_the_files_say(cli: CommandLine) -> None:
    ended = cli("list", "recipes", "--json")
    rows = json.loads(ended.out)
    assert ended.code == 0 and ended.err == ""
    assert {row["config"] for row in rows} == {
        path.relative_to(CONFIGS).with_suffix("").as_posix()
        for path in CONFIGS.glob("**/*.yaml")
        if path.parent.name != "families"  # which `mmrl list families` prints
    }
    for row in rows:
        assert list(row) == ["name", "config", "paper", "arxiv", "level", "sampler", "loss", "advantage"]
        tree = yaml.load((CONFIGS / f"{row['config']}.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
        parts = {kind: tree[kind]["name"] for kind in ("sampler", "loss", "advantage")}
        assert row == {"config": row["config"], **tree["recipe"], **parts}


@pytest.mark.slow
def test_what_people_come_for_stands_first_and_all_else_by_name() -> None:
    names = list(dict.fromkeys(row["name"] for row in recipes.rows()))
    assert names[:12] == FIRST
    assert names[12:] == sorted(names[12:], key=str.lower)
    assert all(row["config"] == "video_r1_qwen25vl_7b" for row in recipes.rows() if row["name"] == "T-GRPO")


@pytest.mark.slow
@pytest.mark.parametrize("width", [50, 80, 120])
def test_the_table_fits_the_terminal_and_names_everything_once(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = cli("list", "recipes").out.splitlines()
    assert max(map(len, lines)) <= width
    blocks = {text.partition(":")[0]: " ".join(text.split()) for text in "\n".join(lines).split("\n\n")[1:]}
    assert list(blocks)[:12] == FIRST
    for row in recipes.rows():
        assert blocks[row["name"]].startswith(f"{row['name']}: {row['paper']}, arXiv {row['arxiv']} ")
        parts = f" {row['config']} {row['level']} {row['sampler']}, {row['loss']}, {row['advantage']}"
        assert blocks[row["name"]].count(parts) == 1


@pytest.mark.slow
def test_configs_stand_below_each_other_in_columns() -> None:
    shown = {"flow_grpo_sd35", "lab/flow_grpo", "quickstart_policy_gradient"}
    rows = [row for row in recipes.rows() if row["name"] == "Flow-GRPO" and row["config"] in shown]
    assert list(recipes.lines(rows, 80)) == [
        "Each algorithm with its configs: level; sampler, loss, advantage.",
        "",
        'Flow-GRPO: Liu et al. 2025, "Flow-GRPO: Training Flow Matching Models via Online',
        '    RL", arXiv 2505.05470',
        "  flow_grpo_sd35              twin  flow_sde, grpo, grpo",
        "  lab/flow_grpo               lab   flow_sde, grpo, grpo",
        "  quickstart_policy_gradient  lab   flow_sde, grpo, grpo",
    ]
