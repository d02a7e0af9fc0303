"""Which parts of nested arguments belong to single samples, and how those of several calls become one call."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

Axis = int | Literal["shared", "list"]  # of samples: a tensor's; nothing depends on the sample; items of a list
Path = tuple[Any, ...]  # keys and places that lead to a leaf
Leaves = dict[Path, Any]


class UnknownRows(Exception):
    """Arguments of one and of two samples that do not differ by one doubled axis; the message says where."""


@dataclass(frozen=True)
class Rows:
    """Where the samples are in nested arguments: an axis for each leaf, in the order of the arguments."""

    axes: Mapping[Path, Axis]
    # Leaves with several entries for each row, side by side, such as the features of a first and of a last frame.
    widths: Mapping[Path, int] = field(default_factory=dict)

    @classmethod
    def between(cls, one: Any, two: Any, count: int | None = None) -> Self:
        """Finds the axes from the same arguments, captured for one sample and for two samples of the same prompt.

        `count`: the rows of one sample; None: those of the longest leaf.
        """
        found = cls(dict(_axes(one, two, ())))
        if count is None:
            return found
        sizes = {path: _size(leaf, found.axes[path]) for path, leaf in found._with_rows(one)}
        return cls(found.axes, {path: size // count for path, size in sizes.items() if size > count})

    @property
    def is_shared(self) -> bool:
        """Returns whether nothing belongs to single samples."""
        return all(axis == "shared" for axis in self.axes.values())

    def leaves(self, value: Any) -> Leaves:
        """Returns the leaves of arguments of this form."""
        return {path: _at(value, path) for path in self.axes}

    def count(self, value: Any) -> int:
        """Returns the number of rows: one for each sample, and for each branch of guidance where they share a call."""
        sizes = [_size(leaf, self.axes[path]) // self._width(path) for path, leaf in self._with_rows(value)]
        return max(sizes, default=1)

    def with_argument(self, path: Path, axis: Axis) -> "Rows":
        """Returns the same with one more leaf."""
        return Rows({**self.axes, path: axis}, self.widths)

    def replaced(self, value: Any, found: Leaves) -> Any:
        """Returns arguments with some of their leaves replaced."""
        return _with_leaves(value, {**self.leaves(value), **found}, ())

    def joined(self, values: Sequence[Any]) -> tuple[Any, list[int]]:
        """Returns one call made of several, and the number of rows of each."""
        counts = [self.count(value) for value in values]
        split = [self.leaves(value) for value in values]
        found: Leaves = {}
        for path, axis in self.axes.items():
            given = [leaves[path] for leaves in split]
            found[path] = _joined(given, axis, counts, self._width(path))
        return _with_leaves(values[0], found, ()), counts

    def parted(self, value: Any, counts: Sequence[int]) -> list[Any]:
        """Returns the rows of an output for each of the calls that were joined."""
        split = {path: _parted(leaf, self.axes[path], counts) for path, leaf in self.leaves(value).items()}
        return [_with_leaves(value, {path: parts[n] for path, parts in split.items()}, ()) for n in range(len(counts))]

    def spread(self, value: Any, count: int) -> Any:
        """Returns an output for as many rows, by repeating those that are there."""
        found = {path: _spread(leaf, self.axes[path], count) for path, leaf in self.leaves(value).items()}
        return _with_leaves(value, found, ())

    def _with_rows(self, value: Any) -> Iterator[tuple[Path, Any]]:
        return ((path, leaf) for path, leaf in self.leaves(value).items() if self.axes[path] != "shared")

    def _width(self, path: Path) -> int:
        return self.widths.get(path, 1)


def fingerprint(value: Any) -> Any:
    """Returns a hashable value that is equal for equal content: bytes of tensors and images, the text of others."""
    if isinstance(value, Tensor):
        return _of_tensor(value, _bytes(value).cpu())
    if isinstance(value, Mapping):
        return tuple((key, fingerprint(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(fingerprint(item) for item in value)
    if hasattr(value, "tobytes"):  # images and arrays
        return getattr(value, "size", None), hashlib.sha256(value.tobytes()).digest()
    return repr(value)


def _bytes(tensor: Tensor) -> Tensor:
    """Returns the content of a tensor, [n] uint8, where it is."""
    flat = tensor.detach().contiguous().flatten()
    return flat.view(torch.uint8) if flat.numel() else flat.to(torch.uint8)


def _of_tensor(tensor: Tensor, content: Tensor) -> Any:
    """Returns the fingerprint of a tensor, whose bytes are on the host."""
    return tensor.dtype, tuple(tensor.shape), hashlib.sha256(content.numpy().tobytes()).digest()


@dataclass
class Fingerprints:
    """The fingerprints of tensors that were met before, as long as they live and nobody writes into them.

    To read the content of a tensor on a GPU is to wait for the GPU.
    """

    _known: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)

    def __call__(self, value: Any) -> Any:
        """Returns what `fingerprint` returns."""
        if not isinstance(value, Tensor) or value.is_inference():  # of which nobody knows whether they changed
            return fingerprint(value)
        if not self._has(value):
            self.meet([value])
        return self._known[value][1]

    def meet(self, values: Iterable[Any]) -> None:
        """Reads the tensors among some values that were not met before, all at once."""
        new = [v for v in values if isinstance(v, Tensor) and not v.is_inference() and not self._has(v)]
        by_device: dict[torch.device, list[Tensor]] = {}
        for value in {id(value): value for value in new}.values():
            by_device.setdefault(value.device, []).append(value)
        for tensors in by_device.values():
            contents = [_bytes(tensor) for tensor in tensors]
            read = torch.cat(contents).cpu().split([len(content) for content in contents])
            for tensor, content in zip(tensors, read, strict=True):
                self._known[tensor] = tensor._version, _of_tensor(tensor, content)

    def _has(self, value: Tensor) -> bool:
        return bool(self._known.get(value, (-1, None))[0] == value._version)


def signature(rows: Rows, value: Any, pads: Sequence[Any], fingerprint: Callable[[Any], Any] = fingerprint) -> Any:
    """Returns what must agree for two calls to become one. `pads`: names of the arguments that may be padded."""
    found: list[Any] = []
    for path, leaf in rows.leaves(value).items():
        axis = rows.axes[path]
        if _agrees_by_content(leaf, axis, path, pads):
            found.append((path, fingerprint(leaf)))
        elif axis == "list":
            found.append((path, "list"))
        elif path[-1] in pads:
            found.append((path, "padded"))
        else:
            found.append((path, *(size for n, size in enumerate(leaf.shape) if n != axis)))
    return tuple(found)


def agreeing(rows: Rows, value: Any, pads: Sequence[Any]) -> list[Any]:
    """Returns what must agree by its content for two calls to become one."""
    leaves = rows.leaves(value).items()
    return [leaf for path, leaf in leaves if _agrees_by_content(leaf, rows.axes[path], path, pads)]


def _agrees_by_content(leaf: Any, axis: Axis, path: Path, pads: Sequence[Any]) -> bool:
    return axis != "list" and not (isinstance(leaf, Tensor) and (path[-1] in pads or axis != "shared"))


def _axes(one: Any, two: Any, path: Path) -> Iterator[tuple[Path, Axis]]:
    if isinstance(one, Tensor):
        if not isinstance(two, Tensor) or one.dim() != two.dim():
            raise UnknownRows(f"{_text(path)} has another form for two samples")
        changed = [n for n, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b]
        if len(changed) > 1 or any(two.shape[n] != 2 * one.shape[n] for n in changed):
            raise UnknownRows(f"{_text(path)} is {list(one.shape)} for one sample, {list(two.shape)} for two")
        yield path, changed[0] if changed else "shared"
    elif isinstance(one, Mapping):
        if list(one) != list(two):
            raise UnknownRows(f"{_text(path)} has other keys for two samples")
        for key in one:
            yield from _axes(one[key], two[key], (*path, key))
    elif isinstance(one, list | tuple):
        if one and len(two) == 2 * len(one):
            yield path, "list"
            return
        if len(one) != len(two):
            raise UnknownRows(f"{_text(path)} has {len(one)} items for one sample, {len(two)} for two")
        for n, (a, b) in enumerate(zip(one, two, strict=True)):
            yield from _axes(a, b, (*path, n))
    else:
        yield path, "shared"


def _text(path: Path) -> str:
    return ".".join(map(str, path)) or "the output"


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _with_leaves(value: Any, found: Leaves, path: Path) -> Any:
    """Returns the nested value with its leaves replaced by path."""
    if path in found:
        return found[path]
    if isinstance(value, Mapping):
        items = {key: _with_leaves(item, found, (*path, key)) for key, item in value.items()}
        return items if type(value) is dict else type(value)(**items)  # an output class of diffusers
    items_of = [_with_leaves(item, found, (*path, n)) for n, item in enumerate(value)]
    return items_of if isinstance(value, list) else tuple(items_of)


def _size(leaf: Any, axis: Axis) -> int:
    return leaf.shape[axis] if isinstance(axis, int) else len(leaf)


def _spread(leaf: Any, axis: Axis, count: int, width: int = 1) -> Any:
    """Returns the leaf with `count` rows of `width` entries: each branch of guidance is repeated for its members."""
    if axis == "shared" or (times := count * width // _size(leaf, axis)) == 1:
        return leaf
    if axis == "list":
        rows = [leaf[n : n + width] for n in range(0, len(leaf), width)]
        return [item for row in rows for _ in range(times) for item in row]
    return leaf.unflatten(axis, (-1, width)).repeat_interleave(times, axis).flatten(axis, axis + 1)


def _joined(given: Sequence[Any], axis: Axis, counts: Sequence[int], width: int) -> Any:
    first = given[0]
    if axis == "shared":
        if not isinstance(first, Tensor) or all(leaf.shape == first.shape for leaf in given):
            return first
        return max(given, key=Tensor.numel)  # positions: those of the longest serve all
    if len(given) == 1:
        return _spread(first, axis, counts[0], width)
    if axis == "list":
        return [item for leaf, count in zip(given, counts, strict=True) for item in _spread(leaf, axis, count, width)]
    padded = _padded(given, axis)
    return torch.cat([_widened(leaf, axis, count, width) for leaf, count in zip(padded, counts, strict=True)], axis)


def _widened(leaf: Tensor, axis: int, count: int, width: int) -> Any:
    """Returns what `_spread` returns; rows that are all alike are not copied."""
    if leaf.shape[axis] != 1:
        return _spread(leaf, axis, count, width)
    return leaf.expand([count if n == axis else -1 for n in range(leaf.dim())])


def _parted(leaf: Any, axis: Axis, counts: Sequence[int]) -> list[Any]:
    if axis == "shared":
        return [leaf] * len(counts)
    if axis == "list":
        ends = [sum(counts[: n + 1]) for n in range(len(counts))]
        return [leaf[end - count : end] for end, count in zip(ends, counts, strict=True)]
    return list(leaf.split(list(counts), axis))


def _padded(tensors: Sequence[Tensor], axis: int) -> list[Tensor]:
    """Returns the tensors with all axes but `axis` as long as the longest, by zeros at the end."""
    shapes = {tensor.shape[:axis] + tensor.shape[axis + 1 :] for tensor in tensors}
    if len(shapes) == 1:
        return list(tensors)
    most = [max(tensor.shape[n] for tensor in tensors) for n in range(tensors[0].dim())]
    result = []
    for tensor in tensors:
        missing = [0 if n == axis else most[n] - tensor.shape[n] for n in range(tensor.dim())]
        flat = [amount for n in reversed(range(tensor.dim())) for amount in (0, missing[n])]
        result.append(torch.nn.functional.pad(tensor, flat) if any(missing) else tensor)
    return result
