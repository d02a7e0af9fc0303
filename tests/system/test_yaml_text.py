"""Settings from anyone: what stands twice, has no end or grows without bound is refused by its line, in `check` too."""

from pathlib import Path

import pytest
import yaml

from mmrl.commands.score import reward_section
from mmrl.core.config import check_config, load_config
from mmrl.system.errors import ConfigError
from mmrl.system.yaml_text import MAX_VALUES, parse_yaml
from tests.core.test_config import SMALLEST
from tests.parameters import in_one_test
from tests.tiny_cli import CommandLine, command_line

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.parametrize(
    "text, said",
    [
        ("seed: 1\nloss: {name: grpo}\nseed: 2", "line 1 and line 3: the key 'seed' stands twice in one mapping"),
        ("loss: {name: grpo, name: nft}", "line 1: the key 'name' stands twice"),
        ("rewards:\n- name: a\n  weight: 1\n  weight: 2", "line 3 and line 4: the key 'weight' stands twice"),
        ("a: &a {b: 1}\nc: {<<: *a, <<: *a}", "line 2: the key '<<' stands twice"),
        ("seed: &a [*a]", "line 1: an anchor holds itself"),
        ("seed: &a\n  b: {c: *a}", "an anchor holds itself"),
        ("# " + "long " * 200_001, "has 1,000,007 letters; no config needs more than 1,000,000"),
        (BOMB, f"more than {MAX_VALUES:,} values with its aliases written out"),
        ("m: &m {k: 1}\n" + "".join(f"n{i}: &n{i} {{a: *m, b: *m}}\n" for i in range(3)) + "x: {" * 500, "not YAML"),
        ("[" * 5000, "is not YAML"),
        ("seed: !!python/object:os.system {}", "is not YAML"),
        ("a: " + "9" * 5000, "is not YAML"),
        ("{[1]: 2}", "is not YAML"),
    ],
)
def test_a_text_that_cannot_be_meant_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_yaml(text, "my.yaml")
    assert str(refused.value).startswith("my.yaml") and said in str(refused.value)


def test_a_bomb_of_mappings_is_refused_before_it_is_built() -> None:
    """A million keys after merging, were it built."""
    text = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 60))
    with pytest.raises(ConfigError, match="with its aliases written out"):
        parse_yaml(text, "my.yaml")


@in_one_test("text", ["", "null", "a: 1", "[1, 2.5, text, null, true]", "a: {b: [{c: 1e-4}]}", "2020-01-01"])
def test_all_else_is_read_as_the_library_reads_it(text: str) -> None:
    assert parse_yaml(text, "my.yaml") == yaml.safe_load(text)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["[" * 7_999, "- " * 3_999 + "a", "[" * 100_000])
def test_no_depth_ends_the_process(text: str) -> None:
    with pytest.raises(ConfigError, match="is not YAML"):
        parse_yaml(text, "my.yaml")


def test_a_mistake_is_shown_where_it_stands() -> None:
    with pytest.raises(ConfigError, match=r"(?s)line 2, column 5:\n +b: c: d\n +\^"):
        parse_yaml("a: 1\nb: c: d", "my.yaml")


def test_anchors_and_merges_work_and_nothing_is_shared_between_two_places() -> None:
    text = "base: &base {name: shapes, weight: 1}\nrewards: [*base, {<<: *base, weight: 2}, *base]"
    found = parse_yaml(text, "my.yaml")
    assert found["rewards"] == [{"name": "shapes", "weight": w} for w in (1, 2, 1)]
    found["rewards"][0]["weight"] = 5
    assert found["rewards"][2]["weight"] == 1 and found["base"]["weight"] == 1


def test_an_override_changes_one_of_two_aliases(tmp_path: Path) -> None:
    settings = yaml.safe_dump(SMALLEST | {"rewards": []})
    aliased = "rewards: [&one {name: shapes, label: a}, *one]"
    (tmp_path / "run.yaml").write_text(settings.replace("rewards: []", aliased))
    found = load_config(tmp_path / "run.yaml", ["rewards.1.label=b"])
    assert [reward["label"] for reward in found.rewards] == ["a", "b"]


@pytest.mark.parametrize("override", ["seed={a: 1, a: 2}", "rewards=&a [*a]", "seed=&a {b: *a}"])
def test_the_value_of_an_override_is_read_as_strictly(override: str) -> None:
    with pytest.raises(ConfigError, match=r"^the value of '.*(stands twice|holds itself)"):
        check_config(SMALLEST, [override])


def test_the_value_of_a_reward_on_the_command_line_is_read_as_strictly() -> None:
    with pytest.raises(ConfigError, match=r"--reward needs a name.*the key 'name' stands twice"):
        reward_section("win_rate reward={name: number, name: shapes}")


def test_a_mapping_that_holds_itself_is_refused() -> None:
    settings = dict(SMALLEST)
    settings["loss"] = settings
    with pytest.raises(ConfigError, match=r"the settings, line \d+: an anchor holds itself"):
        check_config(settings)


@pytest.mark.parametrize("text", [BOMB, "seed: &a [*a]\n", "seed: 1\nseed: 2\n"], ids=["bomb", "itself", "twice"])
def test_the_command_line_refuses_them_with_exit_2(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli: CommandLine = command_line(tmp_path, monkeypatch, capsys)
    (tmp_path / "run.yaml").write_text(text)
    for given in (["check", "run.yaml"], ["check", "--tiny", "run.yaml"], ["train", "run.yaml", "--out", "out"]):
        ended = cli(*given)
        assert ended.code == 2 and ended.err.startswith("mmrl: run.yaml, line "), ended.err
    assert not (tmp_path / "out").exists()
