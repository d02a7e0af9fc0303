"""One new thing, one place: a plug-in of any kind, or a layout, is one new file, and nothing else is edited anywhere.

The file stands in the folder of its kind, and is used by its name; or in a folder of the user's own, as `module:Class`.
"""

import importlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch

from mmrl.assembly.build import build
from mmrl.commands import listing
from mmrl.commands.train import train
from mmrl.core import contracts, plugins
from mmrl.core.config import DatasetSettings, load_config
from mmrl.core.data import Granularity, WeightsName
from mmrl.core.plugins import KINDS
from mmrl.prompts import layout
from mmrl.prompts.datasets import load_dataset_prompts
from mmrl.run_directory.start import new_run
from mmrl.system.errors import ConfigError, RunError
from mmrl.training import checkpoint
from tests.parameters import slow_but

OWN = {
    "samplers": '''
        from dataclasses import dataclass
        from mmrl.plans.flow import Transition
        from mmrl.samplers.base.flow import StochasticSampler
        from mmrl.samplers.base.kernels import bridge

        @dataclass(frozen=True)
        class Mine(StochasticSampler):
            """A bridge that keeps a fixed share of the predicted noise."""

            kept: float = 0.5

            def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
                return bridge(sigma, sigma_next, self.kept)
    ''',
    "losses": '''
        from dataclasses import dataclass
        from mmrl.core.contracts import LossTerms
        from mmrl.losses.base.decisions import DecisionLoss

        @dataclass(frozen=True)
        class Mine(DecisionLoss):
            """The policy gradient of advantages cut off at a height."""

            most: float = 1.0

            def measure(self, evaluations):
                return (evaluations.trained.log_prob(),)

            def __call__(self, measures, batch):
                return LossTerms(-batch.advantages.clamp(max=self.most) * measures[0], {})
    ''',
    "advantages": '''
        from dataclasses import dataclass
        from typing import ClassVar
        import torch
        from mmrl.core.declarations import AdvantageDeclaration
        from mmrl.core.numerics import group_mean

        @dataclass(frozen=True)
        class Mine:
            """The sign of what a sample is above the mean of its group."""

            declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(min_group_size=2)

            def __call__(self, scores, paths=None):
                above = scores.total - group_mean(scores.total, scores.group, scores.valid)
                return torch.where(scores.valid, above.sign(), 0.0).float()
    ''',
    "rewards": '''
        from dataclasses import dataclass
        from typing import ClassVar

        @dataclass(frozen=True)
        class Mine:
            """How red an image is."""

            source: ClassVar[str] = "here"
            range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
            granularity: ClassVar[str] = "sample"
            differentiable: ClassVar[bool] = True
            needs: ClassVar[frozenset[str]] = frozenset({"images"})
            batch_size: ClassVar[int | None] = None

            def score(self, batch):
                red, *rest = batch.outputs.images.mean((2, 3)).unbind(1)
                return red - sum(rest) / 2
    ''',
    "mixes": '''
        from dataclasses import dataclass
        from mmrl.core.mixes import Plain, counted

        @dataclass(frozen=True)
        class Mine(Plain):
            """The least of the rewards that count."""

            def __call__(self, scores):
                return counted(scores)[0].amin(1).float()
    ''',
    "modalities": '''
        from dataclasses import dataclass
        from mmrl.modalities.sd3 import StableDiffusion3

        @dataclass(kw_only=True)
        class Mine(StableDiffusion3):
            """Stable Diffusion 3 whose images are mirrored."""

            def decode_latents(self, latents):
                return super().decode_latents(latents).flip(3)
    ''',
    "environments": '''
        from dataclasses import dataclass, replace
        from mmrl.environments.screens import Screens

        @dataclass
        class Mine(Screens):
            """The screens of the lab on which every click is paid a little."""

            pay: float = 0.1

            def step(self, action):
                seen = super().step(action)
                return replace(seen, reward=seen.reward + self.pay * (action.kind == "click"))
    ''',
}
SMALL = ("threads=1", "iterations=2", "prompts_per_iteration=2", "group_size=4", "evaluation=null",
         "checkpoint.every=1", "optimizer.schedule=constant", "optimizer.learning_rate=1e-3")  # fmt: skip
TWO = "rewards=[{name: shapes, measure: graded}, {name: shapes, label: hit, measure: correct}]"
USE = {
    "samplers": ("lab/reinforce", ["sampler={name: 'mine:Mine', num_steps: 4, sigmas: uniform, kept: 0.7}"]),
    "losses": ("lab/reinforce", ["loss={name: 'mine:Mine', most: 0.5}"]),
    "advantages": ("lab/reinforce", ["advantage={name: 'mine:Mine'}"]),
    "rewards": ("lab/reinforce", ["rewards=[{name: 'mine:Mine'}]"]),
    "mixes": ("lab/reinforce", ["mix={name: 'mine:Mine'}", TWO]),
    "modalities": ("lab/reinforce", ["modality.name=mine:Mine"]),
    "environments": ("quickstart_agent", ["modality.environment={name: 'mine:Mine', pay: 0.2}",
                                          "rewards=[{name: step_reward}]"]),
}  # fmt: skip


LAYOUT = '''
    from dataclasses import dataclass
    from typing import ClassVar

    @dataclass(frozen=True)
    class Mine:
        """Questions in the column `q`, answers in `a`."""

        file: ClassVar[str] = "jsonl"
        fields: ClassVar[tuple[str, ...]] = ("q", "a")

        def prompt(self, row):
            return row.prompt(row.need("q"), (), {"answer": row.need("a")})

        def row(self, example):
            return {"q": f"How many {example.name}s are there?", "a": example.answer}
'''
SUMMARY = "Does what no other does."  # the first line of a new file
Add = Callable[[str, str, str], None]  # package, file, text


def test_there_is_one_of_every_kind() -> None:
    assert set(OWN) == set(USE) == set(KINDS)


def source(text: str) -> str:
    """Python without the indentation that it has in this file."""
    return textwrap.dedent(text.strip("\n"))


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Puts one new file into a copy of a package's folder, which then stands in its place."""

    def put(package: str, file: str, text: str) -> None:
        module, folder = importlib.import_module(package), tmp_path / package
        shutil.copytree(module.__path__[0], folder, copy_function=os.symlink, ignore=shutil.ignore_patterns("_*_"))
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(f'"""{SUMMARY}"""\n\n{source(text)}', encoding="utf-8")
        monkeypatch.setattr(module, "__path__", [str(folder)])
        plugins._modules.cache_clear()

    yield put
    monkeypatch.undo()
    plugins._modules.cache_clear()
    for name in [name for name in sys.modules if name.endswith(".mine")]:
        package, _, _ = name.rpartition(".")
        del sys.modules[name]
        delattr(sys.modules[package], "mine")


def shipped(kind: str) -> tuple[str, list[str]]:
    """A config, and overrides that use the plug-in by the name of its file."""
    config, overrides = USE[kind]
    return config, [override.replace("mine:Mine", "mine") for override in overrides]


def new_file(kind: str) -> tuple[str, str]:
    """Where one of a kind is written: its package, and the file in the package's folder."""
    return f"mmrl.{kind}", "colours/mine.py" if kind == plugins.NESTED else "mine.py"


@pytest.mark.parametrize("kind", sorted(OWN))
def test_one_new_file_is_found_by_its_name_listed_and_built(kind: plugins.Kind, add: Add) -> None:
    before = plugins.names(kind)
    add(*new_file(kind), OWN[kind])
    assert sorted([*before, "mine"]) == plugins.names(kind)
    assert {row["name"]: row["summary"] for row in listing.rows(kind)}["mine"] == SUMMARY
    config, overrides = shipped(kind)
    built = build(load_config(config, [*SMALL, *overrides]))
    assert built is not None and f"mmrl.{kind}" in plugins.find(kind, "mine").__module__


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(OWN))
def test_one_new_file_trains_one_iteration(kind: plugins.Kind, add: Add, tmp_path: Path) -> None:
    add(*new_file(kind), OWN[kind])
    config, overrides = shipped(kind)
    train(*new_run(config, [*SMALL, "iterations=1", *overrides], tmp_path / "run"))
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert row["iteration"] == 1 and row["reward/mean"] is not None


def test_one_new_file_is_a_layout_that_reads_a_data_set(add: Add, tmp_path: Path) -> None:
    before = layout.names()
    add("mmrl.prompts.layouts", "mine.py", LAYOUT)
    assert layout.names() == sorted([*before, "mine"])
    assert {"name": "mine", "summary": SUMMARY} in listing.rows("layouts")
    (tmp_path / "rows.jsonl").write_text('{"q": "1 + 1?", "a": "2"}\n{"q": "2 + 2?", "a": "4", "level": 3}\n')
    (first, second) = load_dataset_prompts(DatasetSettings(path=str(tmp_path / "rows.jsonl"), layout="mine"))
    assert (first.text, first.target["answer"]) == ("1 + 1?", "2")
    assert second.target["level"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(OWN))
def test_a_plug_in_of_ones_own_trains_two_iterations(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(source(OWN[kind]), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    config, overrides = USE[kind]
    train(*new_run(config, [*SMALL, *overrides], tmp_path / "run"))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    first, last = (
        checkpoint.load(tmp_path / "run" / "checkpoints" / f"{number:06d}").tensors["trained"] for number in (1, 2)
    )
    assert any(not torch.equal(tensor, first[name]) for name, tensor in last.items())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2] and all(row["reward/mean"] is not None for row in rows)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sampler", "is no sampler: it has no sample_kind, plan"),
        ("advantage", "is no advantage: it has no __call__"),
        ("loss", "is no loss: it has no kind, scope, needs, old_decay, views, coefficients, measure, __call__"),
    ],
)
def test_a_class_that_is_no_plug_in_is_refused_before_anything_is_loaded(
    kind: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half.py").write_text("from dataclasses import dataclass\n\n@dataclass\nclass Half:\n    x: int = 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "half", raising=False)
    config = load_config("lab/reinforce", [f"{kind}={{name: 'half:Half'}}"])
    with pytest.raises(ConfigError, match=f"'half:Half' {message} "):
        build(config)


@pytest.mark.parametrize(
    ("kind", "parent", "body", "message"),
    [
        (
            "loss",
            "losses.grpo:Grpo",
            "needs = frozenset({'refrence'})",
            "needs must be of old, reference, averaged, got 'refrence' (did you mean 'reference'?)",
        ),
        ("loss", "losses.grpo:Grpo", "scope = 'desicion'", "scope must be of decision, path, group, got 'desicion'"),
        (
            "sampler",
            "samplers.autoregressive:Autoregressive",
            "sample_kind = 'token'",
            "got 'token' (did you mean 'tokens'?)",
        ),
        (
            "rewards.0",
            "rewards.text.finished:Finished",
            "granularity = 'samples'",
            "got 'samples' (did you mean 'sample'?)",
        ),
    ],
)
def test_a_misspelt_word_of_a_plug_in_is_refused_with_the_right_one(
    kind: str, parent: str, body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = parent.partition(":")
    lines = ["from dataclasses import dataclass", f"from mmrl.{module} import {name}", "@dataclass(frozen=True)"]
    (tmp_path / "wrong_word.py").write_text("\n".join([*lines, f"class Own({name}):", f"    {body}", ""]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_word", raising=False)
    more = ", max_tokens: 4" if kind == "sampler" else ""
    config = load_config("lab/reinforce", [f"{kind}={{name: 'wrong_word:Own'{more}}}"])
    with pytest.raises(ConfigError) as caught:
        build(config)
    assert "wrong_word:Own" in str(caught.value) and message in str(caught.value)


def test_the_words_that_the_loader_knows_are_those_of_the_contracts() -> None:
    choices = plugins._CHOICES
    assert set(choices["losses"]["scope"]) == set(get_args(contracts.Scope))
    assert {*choices["losses"]["needs"], "trained"} == set(get_args(WeightsName))
    assert set(choices["rewards"]["granularity"]) == set(get_args(Granularity))
    assert set(choices["samplers"]["sample_kind"]) == {*get_args(contracts.SampleKind), "given"}


def own(kind: str, body: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides for a plug-in of one's own that is shipped `grpo` but for its call."""
    parent = {"advantage": "advantages.grpo", "loss": "losses.grpo"}[kind]
    (folder / "own.py").write_text(
        f"from dataclasses import dataclass\nfrom mmrl.{parent} import Grpo\n\n"
        f"@dataclass(frozen=True)\nclass Own(Grpo):\n    def __call__{body}\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    return [*SMALL, f"{kind}={{name: 'own:Own'}}"]


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("advantage", "(self, scores): return scores.total", r"is called with \(scores, paths=None\): too many"),
        ("loss", "(self, measures, batch, more): return None", r"is called with \(measures, batch\): missing"),
    ],
)
def test_a_plug_in_that_is_called_otherwise_is_refused_before_anything_is_loaded(
    kind: str, body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(load_config("lab/reinforce", own(kind, body, tmp_path, monkeypatch)))


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("advantage", "(self, scores, paths=None): return 0", "Own must give a float tensor .*, got int"),
        *slow_but(
            [
                ("advantage", "(self, scores, paths=None): return scores.total[1:]", r"got torch.float32 \[7\]"),
                ("advantage", "(self, scores, paths=None): return scores.total > 0", r"got torch.bool \[8\]"),
            ]
        ),
        (
            "advantage",
            "(self, scores, paths=None): return scores.total / 0",
            "Own must give finite numbers, got (nan|inf)",
        ),
        ("loss", "(self, measures, batch): return measures[0].sum()", r"must give LossTerms .*, got terms \[\]"),
        ("loss", "(self, measures, batch): return None", "must give LossTerms .*, got NoneType"),
    ],
)
def test_what_a_plug_in_gives_is_named_when_it_is_something_else(
    kind: str, body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match=message):
        train(*new_run("lab/reinforce", own(kind, body, tmp_path, monkeypatch), tmp_path / "run"))
