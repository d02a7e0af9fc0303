"""Rows of Arrow tables are what Arrow's own slow way says, with bytes that are not copied."""

from typing import Any

import pyarrow

from mmrl.prompts.arrow_rows import table_rows
from tests.parameters import in_one_test

IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
ROWS: list[dict[str, Any]] = [
    {"b": b"one", "l": b"", "s": {"bytes": b"x", "path": None}, "many": [{"bytes": b"p", "path": "q"}, None], "n": 1.5},
    {"b": None, "l": b"two", "s": None, "many": None, "n": None},
    {"b": b"", "l": None, "s": {"bytes": None, "path": "y"}, "many": [], "n": 3.0},
    {"b": b"\xffour", "l": b"4", "s": {"bytes": b"z", "path": "w"}, "many": [{"bytes": b"r", "path": None}], "n": 0.0},
]
SCHEMA = pyarrow.schema(
    {
        "b": pyarrow.binary(),
        "l": pyarrow.large_binary(),
        "s": IMAGE,
        "many": pyarrow.list_(IMAGE),
        "n": pyarrow.float64(),
    }
)


def table() -> Any:
    return pyarrow.Table.from_pylist(ROWS, schema=SCHEMA)


@in_one_test(
    "rows",
    [
        table(),
        table().slice(1),
        table().slice(1, 2),
        table().slice(3),
        table().slice(0, 0),
        pyarrow.concat_tables([table().slice(2), table(), table().slice(1, 1)]),
        pyarrow.table({"l": pyarrow.array([[b"a"], None, [b"b", b"c"]], pyarrow.large_list(pyarrow.binary()))}),
        pyarrow.table({"x": pyarrow.array([[1.0, 2.0], None], pyarrow.list_(pyarrow.float64(), 2))}),
        pyarrow.table({"x": pyarrow.array([None, None], pyarrow.binary()), "y": pyarrow.nulls(2)}),
    ],
)
def test_rows_are_those_of_arrow(rows: Any) -> None:
    assert list(table_rows(rows)) == rows.to_pylist()


def test_bytes_are_views_of_the_tables_memory() -> None:
    rows = table()
    data = rows["b"].chunk(0).buffers()[2]
    found = [row["b"] for row in table_rows(rows)]
    assert found[0].readonly and found[0].obj is found[3].obj
    assert bytes(data) == b"one\xffour" == bytes(found[0]) + bytes(found[3])
