"""Rows of an Arrow table as Python values, without a copy of their bytes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Cell = Callable[[int], Any]  # the value of a row


def table_rows(table: Any) -> Iterator[dict[str, Any]]:
    """Yields every row. Bytes are views of the table's memory, which is a mapped file: images take no extra memory.

    (Arrow's own `to_pylist` and scalars copy them.)
    """
    for batch in table.to_batches():
        cells = {name: _cells(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        for row in range(batch.num_rows):
            yield {name: cell(row) for name, cell in cells.items()}


def _cells(array: Any) -> Cell:
    """Returns a function from the number of a row to the value in an array, None where the value is null."""
    import pyarrow

    kind = array.type
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        read = _bytes(array, np.int64 if pyarrow.types.is_large_binary(kind) else np.int32)
    elif pyarrow.types.is_struct(kind):
        read = _structs({field.name: _cells(array.field(number)) for number, field in enumerate(kind)})
    elif pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        read = _lists(_cells(array.values), array.offsets.to_numpy())
    else:
        return lambda row: array[row].as_py()
    if array.null_count == 0:
        return read
    is_valid = array.is_valid().to_numpy(zero_copy_only=False)
    return lambda row: read(row) if is_valid[row] else None


def _bytes(array: Any, width: type[np.signedinteger[Any]]) -> Cell:
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=width)[array.offset :]
    view = memoryview(data if data is not None else b"").cast("B").toreadonly()  # Arrow's bytes are signed
    return lambda row: view[ends[row] : ends[row + 1]]


def _structs(fields: dict[str, Cell]) -> Cell:
    return lambda row: {name: cell(row) for name, cell in fields.items()}


def _lists(value: Cell, ends: np.ndarray[Any, Any]) -> Cell:
    return lambda row: [value(place) for place in range(ends[row], ends[row + 1])]
