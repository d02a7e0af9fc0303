"""`mmrl evaluate RUN --suite`: equal numbers on one and two processes, a killed suite goes on, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmrl.commands.suite import Wanted, evaluate_suites
from mmrl.commands.train import weights_of
from mmrl.core.config import load_config
from mmrl.core.suites import load_suite, suite_names
from mmrl.system.errors import ConfigError
from tests.process_runs import ended_well, mmrl, train, write_inputs

SUITE = """
title: Redness
source: a test of this project
kind: images
data: nowhere but here
prompts: {path: prompts.jsonl, layout: columns}
samples_per_prompt: 2
rewards: [{name: "my_rewards:Redness", label: redness}]
number: {of: redness, how: mean_of_kinds, by: kind}
"""


def files(folder: Path) -> Path:
    write_inputs(folder, {"iterations": 1})
    (folder / "redness.yaml").write_text(SUITE)
    texts = ("red circle left", "blue square right", "green circle right", "red square left", "blue circle left")
    rows = [{"prompt": text, "kind": text.split()[1]} for text in texts]
    (folder / "data").mkdir()
    (folder / "data" / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def card_of(folder: Path, processes: int, *more: str) -> dict[str, Any]:
    """The card of the suite."""
    arguments = ["evaluate", "run", "--suite", "redness.yaml", "--data", "data", *more]
    ended_well(mmrl(folder, arguments, processes))
    out = Path(more[more.index("--out") + 1]) if "--out" in more else Path("run/suites")
    card: dict[str, Any] = json.loads((folder / out / "redness" / "card.json").read_text())
    return card


@pytest.mark.slow
def test_a_suite_of_a_run(tmp_path: Path) -> None:
    run = train(files(tmp_path), "run", 1)
    one, two = card_of(tmp_path, 1), card_of(tmp_path, 2, "--out", "two")
    assert two["number"] == pytest.approx(one["number"], abs=1e-5)
    assert two["interval"] == pytest.approx(one["interval"], abs=1e-5) and two["processes"] == 2
    rows = [json.loads(line) for line in (run / "suites/redness/results.jsonl").read_text().splitlines()][1:]
    kinds = {"circle": (0, 2, 4), "square": (1, 3)}
    means = [[row["total"] for row in rows if row["prompt"] in own] for own in kinds.values()]
    assert one["number"] == pytest.approx(sum(sum(own) / len(own) for own in means) / 2, abs=1e-9)
    manifest = json.loads((run / "checkpoints/000001/manifest.json").read_text())
    assert one["weights"]["sha256"] == manifest["files"]["averaged.safetensors"]["sha256"]
    assert one["failures"] == 0 and one["prompts_tested"] == 5 and one["remarks"] == []
    assert len(json.loads((run / "suites/redness/samples/samples.json").read_text())["samples"]) == 5

    results = run / "suites/redness/results.jsonl"  # killed in the middle: two rows are left, one of them cut
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:6]) + lines[6][:9])
    again = card_of(tmp_path, 1)
    left = results.read_text().splitlines(keepends=True)
    assert left[:6] == lines[:6] and len(left) == 12  # the prompt that was cut is written anew
    kept, whole = (
        {(row["prompt"], row["sample"]): row["total"] for row in map(json.loads, part[1:])} for part in (left, lines)
    )
    assert kept == pytest.approx(whole, abs=1e-6)  # a chunk of other prompts rounds otherwise
    assert again["number"] == pytest.approx(one["number"], abs=1e-6)

    other = card_of(tmp_path, 1, "--weights", "trained", "--limit", "2")
    assert "2 of 5 prompts" in other["remarks"][0] and "other weights" in other["remarks"][1]


def test_the_weights_are_those_that_a_run_evaluates_and_must_be_there(tmp_path: Path) -> None:
    config = load_config("lab/flow_grpo", ["averaging.decay=0.9"])
    kept: Any = SimpleNamespace(has=lambda name: name != "old", kept={"averaged": None})
    assert weights_of("lab/flow_grpo", None, config, kept) == "trained"
    (tmp_path / "config.yaml").write_text("")
    assert weights_of(str(tmp_path), None, config, kept) == "averaged"
    assert weights_of(str(tmp_path), "trained", config, kept) == "trained"
    with pytest.raises(ConfigError, match="keeps no 'old' weights; it has trained, averaged"):
        weights_of(str(tmp_path), "old", config, kept)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    for names, wanted, message in (
        (["genevl"], Wanted("lab/flow_grpo"), "no suite 'genevl' .did you mean 'geneval'"),
        (["geneval", "geneval"], Wanted("lab/flow_grpo"), "each suite once"),
        (["geneval", "vbench"], Wanted("lab/flow_grpo", data=tmp_path), "the data of one suite"),
        (["vbench"], Wanted("lab/flow_grpo"), "tests videos, and modality .* makes images"),
        (["geneval"], Wanted("lab/flow_grpo"), "no 'prompts/evaluation_metadata.jsonl': --data names the folder"),
        (["geneval"], Wanted("lab/flow_grpo", data=tmp_path), "holds no 'prompts/evaluation_metadata.jsonl'"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate_suites(wanted, names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("how: mean_of_kinds, by: kind", "how: mean_of_kinds"), "needs `by`"),
        (("how: mean_of_kinds, by: kind", "how: share_at_least"), "needs `at`"),
        (("of: redness", "of: rednes"), "did you mean 'redness'"),
        (("how: mean_of_kinds, by: kind", "how: ratio"), "ratio goes with `over`"),
        (("how: mean_of_kinds, by: kind", "how: ratio, over: rednes"), "number.over .*did you mean 'redness'"),
        (("title: Redness", "titel: Redness"), "titel"),
    ],
)
def test_a_wrong_suite_is_named(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SUITE.replace(*change))
    with pytest.raises(ConfigError, match=message):
        load_suite(str(tmp_path / "mine.yaml"))


# a shipped config for each suite whose policy makes what it tests
MADE_BY = {
    "images": "flow_grpo_sd35",
    "videos": "flow_dpo_wan",
    "answers": "grpo_care_qwen25vl_7b",
    "actions": "gui_g2_qwen25vl_7b",
}
OF_CLIPS = ("charades_sta", "tvgbench", "video_mme")


def config_of(suite: str) -> str:
    if suite == "gedit_bench":
        return "flow_grpo_flux_kontext"
    return "video_r1_qwen25vl_7b" if suite in OF_CLIPS else MADE_BY[load_suite(suite).settings.kind]


@pytest.mark.exhaustive  # ten to forty seconds each: docs/suites.md
@pytest.mark.parametrize("suite", suite_names())
def test_every_suite_runs_on_its_twin(suite: str, tmp_path: Path) -> None:
    evaluate_suites(Wanted(config_of(suite), is_tiny=True, out=tmp_path), [suite])
    (file,) = tmp_path.rglob("card.json")
    card = json.loads(file.read_text())
    assert card["suite"] == suite and card["failures"] == 0 and card["interval"][0] <= card["number"]
    assert {name for name, one in card["also"].items() if one["number"] is None} == set()
