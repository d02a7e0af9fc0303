"""What plug-ins declare: defaults, what wrappers pass on, and mistakes in an own plug-in, named with the right name."""

import importlib
import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mmrl.advantages.base.wrapper import Wrapper
from mmrl.advantages.grpo import Grpo
from mmrl.commands.instrumentation import Instrumented
from mmrl.core import contracts, misspelt, plugins, rewards
from mmrl.core.declarations import (
    DECLARATIONS,
    AdvantageDeclaration,
    Declaration,
    LossDeclaration,
    MixDeclaration,
    PolicyDeclaration,
    RewardDeclaration,
)
from mmrl.system.errors import ConfigError
from tests.parameters import in_one_test

SHIPPED = [(kind, name) for kind in plugins.KINDS for name in plugins.names(kind)]


def own(body: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a user's plug-in: a dataclass with this body."""
    lines = [
        "from dataclasses import dataclass",
        "from typing import ClassVar",
        "from mmrl.core.declarations import *",
        "@dataclass(frozen=True)",
        "class Mine:",
        *(f"    {line}" for line in body.splitlines()),
    ]
    (folder / "declaring_parts.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "declaring_parts", raising=False)
    importlib.invalidate_caches()
    return "declaring_parts:Mine"


def refusal(kind: plugins.Kind, body: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = own(body, folder, monkeypatch)
    with pytest.raises(ConfigError) as caught:
        plugins.build(kind, {"name": name})
    return str(caught.value)


@in_one_test("declaration", DECLARATIONS.values())
def test_a_plug_in_that_declares_nothing_has_the_defaults(declaration: type[Declaration]) -> None:
    assert declaration.of(object()) == declaration()


def test_a_declaration_is_read_from_a_class_attribute_a_property_and_a_spy_in_front() -> None:
    @dataclass(frozen=True)
    class Fixed:
        declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(compares_with="batch")

    @dataclass(frozen=True)
    class Own:
        size: int = 5

        @property
        def declaration(self) -> AdvantageDeclaration:
            return AdvantageDeclaration(min_group_size=self.size)

    assert AdvantageDeclaration.of(Fixed()).compares_with == "batch"
    assert AdvantageDeclaration.of(Own(7)).min_group_size == 7
    assert AdvantageDeclaration.of(Instrumented.on(Own(7))).min_group_size == 7
    assert AdvantageDeclaration.of(Instrumented.on(object())) == AdvantageDeclaration()


def test_a_property_that_fails_is_no_missing_declaration() -> None:
    class Broken:
        @property
        def declaration(self) -> AdvantageDeclaration:
            raise AttributeError("aplha")

    with pytest.raises(AttributeError, match="aplha"):
        AdvantageDeclaration.of(Broken())


def test_a_declaration_of_another_kind_is_refused() -> None:
    class Mixed:
        declaration = LossDeclaration()

    with pytest.raises(ConfigError, match=r"Mixed.declaration must be a value AdvantageDeclaration\(...\), got Loss"):
        AdvantageDeclaration.of(Mixed())


def test_a_wrapper_passes_on_every_field_of_what_is_inside() -> None:
    everything = AdvantageDeclaration(
        min_group_size=5,
        requires=frozenset({"std"}),
        requires_rewards=frozenset({"votes"}),
        requires_dense_reward=True,
        requires_probabilities=True,
        requires_single_answers=True,
        compares_with="batch",
        compares_branches=True,
        is_per_decision=True,
        weighs_by_length=True,
        sums_rewards=True,
    )
    default = AdvantageDeclaration()
    assert all(vars(everything)[item.name] != vars(default)[item.name] for item in fields(everything))

    @dataclass(frozen=True)
    class Inner(Grpo):
        declaration: ClassVar[AdvantageDeclaration] = everything

    assert Wrapper(inner=Inner()).declaration == everything
    assert Wrapper(inner=Grpo()).declaration == default


@in_one_test(
    ("declaration", "values", "message"),
    [
        (AdvantageDeclaration, {"sums_reward": True}, "has no field 'sums_reward' (did you mean 'sums_rewards'?)"),
        (AdvantageDeclaration, {"watches": frozenset()}, "no field 'watches' (did you mean 'requires_rewards'?)"),
        (LossDeclaration, {"looks_back": 2}, "no field 'looks_back' (did you mean 'num_gradient_steps'?)"),
        (RewardDeclaration, {"is_relativ": True}, "'is_relativ' (did you mean 'is_relative'?); its fields"),
        (MixDeclaration, {"reads": frozenset()}, "no field 'reads' (did you mean 'requires_rewards'?)"),
        (PolicyDeclaration, {"facts": frozenset()}, "no field 'facts' (did you mean 'provides'?)"),
        (AdvantageDeclaration, {"of_nodes": True}, "'of_nodes' (did you mean 'compares_branches'?)"),
        (AdvantageDeclaration, {"compares_with": "grup"}, "compares_with must be one of group, batch, best, greedy"),
        (AdvantageDeclaration, {"compares_with": "grup"}, "got 'grup' (did you mean 'group'?)"),
        (AdvantageDeclaration, {"min_group_size": 0}, "min_group_size must be at least 1, got 0"),
        (AdvantageDeclaration, {"min_group_size": "2"}, "min_group_size must be an integer, got '2'"),
        (AdvantageDeclaration, {"sums_rewards": "no"}, "sums_rewards must be True or False, got 'no'"),
        (AdvantageDeclaration, {"requires": "std"}, "requires must be a frozenset of texts, got 'std'"),
        (LossDeclaration, {"requires": frozenset({"entropi"})}, "got 'entropi' (did you mean 'entropy'?)"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused(declaration: Any, values: dict[str, Any], message: str) -> None:
    for make in (declaration, partial(replace, declaration())):
        with pytest.raises(ConfigError) as caught:
            make(**values)
        assert message in str(caught.value)


def test_a_misspelt_field_in_the_declaration_of_an_own_plug_in_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "declaration = AdvantageDeclaration(sums_reward=True)"
    said = refusal("advantages", body, tmp_path, monkeypatch)
    assert said.startswith(
        "advantage 'declaring_parts:Mine': AdvantageDeclaration has no field 'sums_reward' (did you mean"
    )


def test_a_misspelt_field_in_a_property_of_an_own_plug_in_is_named_at_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "@property\ndef declaration(self):\n    return LossDeclaration(cals_per_sample=2)"
    said = refusal("losses", body, tmp_path, monkeypatch)
    assert said.startswith(
        "losses.declaring_parts:Mine: LossDeclaration has no field 'cals_per_sample' (did you mean 'calls"
    )


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("advantages", "sums_reward = True", "nothing reads it; did you mean 'sums_rewards', as in `declaration = Adv"),
        ("advantages", "min_group_sise: int = 2", "did you mean 'min_group_size', as in `declaration = AdvantageDecla"),
        ("advantages", "min_group_size: ClassVar[int] = 3", "declaration: `declaration = AdvantageDeclaration(min_gro"),
        ("advantages", "watches = frozenset({'a'})", "declaration: `declaration = AdvantageDeclaration(requires_rewar"),
        ("advantages", "def stat_dict(self): ...", "nothing reads it; did you mean 'state_dict'?"),
        ("advantages", "def check_bests(self, best): ...", "nothing reads it; did you mean 'check_best'?"),
        ("advantages", "declarations = AdvantageDeclaration()", "nothing reads it; did you mean 'declaration'?"),
        ("advantages", "declaration: AdvantageDeclaration = AdvantageDeclaration()", "it is no setting; write `decl"),
        ("losses", "looks_bakc = 2", "did you mean 'num_gradient_steps', as in `declaration = LossDeclaration(num_gra"),
        ("losses", "def old_decays(self, iteration): ...", "nothing reads it; did you mean 'old_decay'?"),
        ("rewards", "def prepair(self, placement): ...", "nothing reads it; did you mean 'prepare'?"),
        ("rewards", "is_relativ = True", "did you mean 'is_relative', as in `declaration = RewardDeclaration(is_rel"),
        ("rewards", "concurrency: int = 4", "declaration: `declaration = RewardDeclaration(concurrency=...)`"),
        ("mixes", "is_of_advantage = True", "did you mean 'is_of_advantages', as in `declaration = MixDeclaration("),
        ("samplers", "def prepar(self, placement): ...", "nothing reads it; did you mean 'prepare'?"),
        ("modalities", "ends_clean = False", "declaration: `declaration = PolicyDeclaration(ends_without_noise=...)`"),
        ("modalities", "def diferentiate(self): ...", "nothing reads it; did you mean 'differentiate'?"),
        ("advantages", "def keeps(self, scores, paths=None): ...", "nothing reads it; it is now called 'update_mask'"),
        ("modalities", "draws = 'latents'", "nothing reads it; it is now called 'sample_kind'"),
        ("modalities", "evaluates = frozenset()", "nothing reads it; it is now called 'forward_kinds'"),
        ("modalities", "def evaluate(self, rollout, view): ...", "nothing reads it; it is now called 'forward'"),
        ("modalities", "def given(self, prompts, outputs, keys): ...", "nothing reads it; it is now called 'offline'"),
        ("modalities", "def idle(self): ...", "nothing reads it; it is now called 'dummy_forward'"),
        ("modalities", "def idle_rollout(self, plan): ...", "nothing reads it; it is now called 'dummy_rollout'"),
        ("rewards", "def held(self): ...", "nothing reads it; it is now called 'inner_rewards'"),
        ("samplers", "draws: ClassVar[str] = 'latents'", "nothing reads it; it is now called 'sample_kind'"),
        ("environments", "def snapshots(self): ...", "nothing reads it; did you mean 'snapshot'?"),
    ],
)  # fmt: skip
def test_an_attribute_that_nothing_reads_is_refused_at_load(
    kind: plugins.Kind, body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = refusal(kind, body, tmp_path, monkeypatch)
    attribute = body.removeprefix("def ").replace(":", " ").replace("(", " ").split()[0]
    assert f"{plugins.singular(kind)} 'declaring_parts:Mine': Mine.{attribute}: " in said and message in said


def test_a_misspelt_override_of_a_shipped_method_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = own("def keep(self, scores, paths=None): ...", tmp_path, monkeypatch)
    source = tmp_path / "declaring_parts.py"
    text = source.read_text(encoding="utf-8").replace("class Mine:", "class Mine(BestWorst):")
    source.write_text(f"from mmrl.advantages.best_worst import BestWorst\n{text}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"Mine.keep: nothing reads it; did you mean 'update_mask'"):
        plugins.build("advantages", {"name": name})


def test_what_is_a_plug_ins_own_may_be_called_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting with the name of a field is the user's, who declares what it is for."""
    body = (
        "concurrency: int = 4\nscale: float = 1.0\n_prepair: int = 3\n"
        "@property\ndef declaration(self):\n    return RewardDeclaration(concurrency=self.concurrency)\n"
        "def score(self, batch): ...\ndef scores_of(self, texts): ..."
    )
    built = plugins.build("rewards", {"name": own(body, tmp_path, monkeypatch), "concurrency": 2})
    assert RewardDeclaration.of(built).concurrency == 2


def test_a_shipped_plug_in_has_no_attribute_that_nothing_reads() -> None:
    for kind, name in SHIPPED:  # the error names the class
        misspelt.refuse_misspelt(kind, plugins.find(kind, name))


def test_every_former_name_leads_to_a_field() -> None:
    for declaration in DECLARATIONS.values():
        assert set(declaration.formerly.values()) <= {item.name for item in fields(declaration)}


def test_every_former_member_leads_to_a_member_and_no_present_name_is_a_former_one() -> None:
    """Two lead to methods of shipped base classes, which plug-ins override."""
    overridden = {"inner_batch": Wrapper, "with_instructions": plugins.find("modalities", "vision_language")}
    for kind, former in misspelt.FORMER_MEMBERS.items():
        assert not former.keys() & misspelt.MEMBERS[kind]
        for name in former.values():
            assert name in misspelt.MEMBERS[kind] or name in vars(overridden[name])


PROTOCOLS = {
    "advantages": (
        contracts.Advantage, contracts.RangeChecking, contracts.BestChecking, contracts.Selective, contracts.Stateful,
    ),
    "environments": (contracts.Environment,),
    "losses": (contracts.Loss, contracts.Stateful),
    "mixes": (contracts.Mix,),
    "modalities": (
        contracts.Modality, contracts.Loadable, contracts.Reader, contracts.Cutting, contracts.Shardable,
        contracts.Differentiable, contracts.EngineTwinned, contracts.PromptSharing,
    ),
    "rewards": (
        contracts.Reward, contracts.Segmented, contracts.Checking, rewards.Holding, contracts.Prepared,
        contracts.Twinned, contracts.Stateful,
    ),
    "samplers": (contracts.Sampler, contracts.Steered, contracts.Prepared, contracts.Twinned),
}  # fmt: skip


@in_one_test("kind", plugins.KINDS)
def test_the_members_of_all_protocols_are_known(kind: plugins.Kind) -> None:
    names = {
        name
        for protocol in PROTOCOLS[kind]
        for name in {*vars(protocol), *vars(protocol).get("__annotations__", {})}
        if not name.startswith("_")
    }
    assert names <= misspelt.MEMBERS[kind]


def test_a_plug_in_with_half_of_a_state_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = refusal("advantages", "def state_dict(self):\n    return {}", tmp_path, monkeypatch)
    assert "a plug-in with a state needs all of its methods; it has no load_state_dict, update" in words
