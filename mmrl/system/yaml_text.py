"""The reader of untrusted YAML: no key twice, no anchor inside of itself, a bounded size with aliases written out."""

from typing import Any

import yaml

from mmrl.system.errors import ConfigError

MAX_VALUES = 100_000  # of a config with every alias written out; nine aliases on nine levels are 387 million
MAX_LETTERS = 1_000_000  # PyYAML takes some seconds for them
MAX_LETTERS_IN_C = 8_000  # libyaml's parser is seven times as fast, but 50,000 levels on the C stack end the process
# RecursionError: some hundred levels. ValueError: numbers of thousands of digits.
NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
_FAST_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def parse_yaml(text: str, what: str) -> Any:
    """Returns the value of a YAML text: None, bool, int, float, str, date, list or dict, without shared parts.

    Args:
        text: the YAML.
        what: the name of the text in messages, such as the path of its file.

    Raises:
        ConfigError: the text is not YAML, or longer than `MAX_LETTERS`; a key stands twice in one mapping (PyYAML alone
            would take the last one in silence); an anchor holds itself; aliases make more than `MAX_VALUES` values.
    """
    if len(text) > MAX_LETTERS:
        raise ConfigError(f"{what} has {len(text):,} letters; no config needs more than {MAX_LETTERS:,}")
    is_short = len(text) <= MAX_LETTERS_IN_C
    try:
        try:
            return _parsed(text, what, _FAST_LOADER if is_short else yaml.SafeLoader)
        except yaml.YAMLError:
            return _parsed(text, what, yaml.SafeLoader)  # its message shows the place
    except ConfigError:
        raise
    except NOT_YAML as error:
        raise ConfigError(f"{what} is not YAML: {error}") from error


def _parsed(text: str, what: str, kind: Any) -> Any:
    """Returns the value of a YAML text that a loader of this kind reads; raises ConfigError as `parse_yaml` does."""
    loader = kind(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _count_values(root, what, {}, set())
        return _unshared(loader.construct_document(root))
    finally:
        loader.dispose()


def _count_values(node: yaml.Node, what: str, counts: dict[int, int], opened: set[int]) -> int:
    """Returns the number of values of a node with its aliases written out.

    `counts` holds the numbers of other nodes.
    """
    if id(node) in opened:
        raise ConfigError(f"{what}, {_line(node)}: an anchor holds itself, so it has no end")
    if id(node) in counts:
        return counts[id(node)]
    opened.add(id(node))
    total = 1
    if isinstance(node, yaml.MappingNode):
        _refuse_twins(node, what)
        for pair in node.value:
            total += sum(_count_values(one, what, counts, opened) for one in pair)
    elif isinstance(node, yaml.SequenceNode):
        total += sum(_count_values(one, what, counts, opened) for one in node.value)
    if total > MAX_VALUES:
        raise ConfigError(
            f"{what}, {_line(node)}: more than {MAX_VALUES:,} values with its aliases written out; no config needs them"
        )
    opened.remove(id(node))
    counts[id(node)] = total
    return total


def _refuse_twins(mapping: yaml.MappingNode, what: str) -> None:
    """Raises ConfigError for a key that stands twice in one mapping."""
    first: dict[tuple[str, str], yaml.Node] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        name = (key.tag, key.value)
        if name in first:
            before = f"{_line(first[name])} and " if _line(first[name]) != _line(key) else ""
            raise ConfigError(
                f"{what}, {before}{_line(key)}: the key {key.value!r} stands twice in one mapping; "
                "which of the two is meant cannot be known, so leave one out"
            )
        first[name] = key


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def _unshared(value: Any) -> Any:
    """Returns a copy without aliases, in which a change of one place changes no other."""
    if isinstance(value, dict):
        return {key: _unshared(one) for key, one in value.items()}
    return [_unshared(one) for one in value] if isinstance(value, list) else value
