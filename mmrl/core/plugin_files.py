"""Which files of a folder are plug-ins: found by their names, without an import."""

from collections.abc import Iterator
from pathlib import Path

from mmrl.system.errors import ConfigError

SHARED = "base"  # a folder of this name, at any depth, holds files that plug-ins share


def plugin_files(folder: Path, *, is_nested: bool) -> dict[str, str]:
    """Returns the plug-ins of a folder, sorted by name: the module of each, relative to the folder ("text.bleu").

    A plug-in is a Python file whose name does not begin with `_`. Only files that stand in the folder itself are
    plug-ins; sub-folders hold files that plug-ins share. With `is_nested`, files at any depth are plug-ins, except
    those below a folder whose name is `base` or begins with `_`.

    Raises:
        ConfigError: two files have the same name.
    """
    files: dict[str, Path] = {}
    for file in sorted(_walk(folder) if is_nested else folder.glob("*.py")):
        if file.stem.startswith("_"):
            continue
        if (other := files.get(file.stem)) is not None:
            both = " and ".join(str(one.relative_to(folder)) for one in (other, file))
            raise ConfigError(f"{folder.name} has two plug-ins called {file.stem!r}, {both}: rename one of the files")
        files[file.stem] = file
    return {name: ".".join(files[name].relative_to(folder).with_suffix("").parts) for name in sorted(files)}


def _walk(folder: Path) -> Iterator[Path]:
    """Yields the Python files at any depth, except those below a shared or a private folder."""
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name != SHARED and not entry.name.startswith(("_", ".")):
                yield from _walk(entry)
        elif entry.suffix == ".py":
            yield entry
