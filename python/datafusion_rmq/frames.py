"""Tables of other libraries: what must be known of them before they are read by the Arrow C data interface."""

import json
import re
import sys
from typing import Any

from datafusion_rmq._native import Frame

__all__ = ["is_column", "read_frame", "unnamed_levels"]


# Types of polars that are none of Arrow's, and why.
_NO_ARROW = {
    "Null": "which polars does not export; cast it",
    "Object": "whose Python objects SQL cannot read",
    "Int128": "for which Arrow has no type; cast it",
    "UInt128": "for which Arrow has no type; cast it",
}


# What pyarrow calls a level of pandas' index that has no name.
_GENERATED = re.compile(r"__index_level_\d+__")


def is_column(data: Any) -> bool:
    """Whether it is a Series, which is one column, not a table. One of structs is a table of their fields."""
    libraries = [sys.modules[name] for name in ("pandas", "polars") if name in sys.modules]
    return any(isinstance(data, library.Series) for library in libraries) and "Struct" not in str(data.dtype)


def read_frame(name: str, data: Any, *, index: bool = True) -> Frame:
    """Reads a table, which errors call `name`. With `index`, its schema says which columns are an index of pandas."""
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if is_column(data):
        library = type(data).__module__.partition(".")[0]
        raise TypeError(f"{name}: a Series of {library} is one column, not a table; use to_frame()")
    if polars is not None and isinstance(data, polars.DataFrame):
        for column, kind in data.schema.items():
            for part, reason in _NO_ARROW.items():
                if _has(kind, getattr(polars, part, None)):
                    within = "" if str(kind) == part else f"{kind}, with "
                    raise TypeError(f"{name}: column {column!r} has the polars type {within}{part}, {reason}")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        for column, kind in data.dtypes.items():
            if kind.kind == "c":
                raise TypeError(f"{name}: column {column!r} has complex numbers, for which Arrow has no type; use two columns")
        data = _with_index(name, data, index)
    return Frame(name, data)


def _has(kind: Any, part: Any) -> bool:
    """Whether a type of polars is another one, or has it within."""
    inner = [field.dtype for field in getattr(kind, "fields", [])]
    if getattr(kind, "inner", None) is not None:
        inner.append(kind.inner)
    return kind == part or any(_has(one, part) for one in inner)


def unnamed_levels(data: Any) -> dict[str, str]:
    """The names that `read_frame` gives to levels of pandas' index that have none of their own, by those of pyarrow.

    A name that a column has, or an earlier level, is none of its own.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(data, pandas.DataFrame) or _only_counts(data.index):
        return {}
    index = data.index
    known = {*map(str, data.columns)}
    taken = known | {str(name) for name in index.names if name is not None}
    names: dict[str, str] = {}
    for level, own in enumerate(index.names):
        if own is not None and str(own) not in known:
            known.add(str(own))
            continue
        # As `reset_index` calls it.
        name = "index" if index.nlevels == 1 and "index" not in taken else f"level_{level}"
        while name in taken:
            name += "_"
        taken.add(name)
        names[f"__index_level_{level}__"] = name
    return names


def _only_counts(index: Any) -> bool:
    """Whether an index of pandas is the position of each row, and has no name."""
    return type(index).__name__ == "RangeIndex" and (index.start, index.step, index.name) == (0, 1, None)


def _with_index(name: str, data: Any, index: bool) -> Any:
    """A frame of pandas whose index, unless it only counts the rows, is among its columns under a name of its own.

    pandas exports what it calls `__index_level_0__` for one without a name, and leaves out one of equal steps. The
    schema says which columns are the index, so `to_pandas` makes them one again. Names become texts.
    """
    if not all(isinstance(column, str) for column in data.columns):
        # Else the schema says that all names of columns are numbers, for example, also those that a query adds.
        data = data.set_axis([str(column) for column in data.columns], axis=1)
    if _only_counts(data.index):
        return data
    if not all(isinstance(level, str | None) for level in data.index.names):
        levels = [None if level is None else str(level) for level in data.index.names]
        data = data.set_axis(data.index.set_names(levels), axis=0)
    import pyarrow

    names = unnamed_levels(data)
    # A column of such a name would be taken for a level where a level has no name.
    for own in [*data.index.names, *(data.columns if names else [])]:
        if own is not None and _GENERATED.fullmatch(own):
            raise ValueError(f"{name}: {own!r} is what pyarrow calls a level of the index without a name; rename it")
    table = pyarrow.Table.from_pandas(data, preserve_index=True)
    known = table.schema.metadata
    metadata = json.loads(known[b"pandas"])
    metadata["index_columns"] = [names.get(column, column) for column in metadata["index_columns"]] if index else []
    for column in metadata["columns"]:
        column["field_name"] = names.get(column["field_name"], column["field_name"])
    table = table.rename_columns([names.get(column, column) for column in table.column_names])
    return table.replace_schema_metadata({**known, b"pandas": json.dumps(metadata)})
