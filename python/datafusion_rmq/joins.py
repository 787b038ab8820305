"""The commonest range joins as functions of two frames. Each is a SQL statement, which `explain()` shows."""

import copy
import datetime
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeAlias

from datafusion_rmq._native import Frame
from datafusion_rmq.connection import Connection, connect
from datafusion_rmq.result import Result

if TYPE_CHECKING:
    import numpy as np

__all__ = ["asof_join", "overlap_join", "window_join"]

By = str | Sequence[str | tuple[str, str]] | None
Offset: TypeAlias = "str | SupportsFloat | datetime.timedelta | np.timedelta64 | None"
Closed = Literal["both", "left", "right", "none"]

_AGGREGATE = re.compile(r"[A-Za-z_]\w*")
_DURATION = re.compile(r"([+-]?)((?:\d+(?:ns|us|ms|s|m|h|d|w|mo|y))+)")
_DURATION_PART = re.compile(r"(\d+)(ns|us|ms|mo|s|m|h|d|w|y)")
_UNITS = {
    "ns": "nanoseconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "m": "minutes",
    "h": "hours",
    "d": "days",
    "w": "weeks",
    "mo": "months",
    "y": "years",
}
_TIMEDELTA64 = re.compile(r"m8\[(\d*)(\w+)\]")
# Its units that are spelled otherwise.
_UNITS64 = {"M": "mo", "Y": "y", "D": "d", "W": "w"}


def window_join(
    left: object,
    right: object,
    *,
    on: str | tuple[str, str],
    by: By = None,
    window: tuple[Offset, Offset],
    aggs: Mapping[str, str | tuple[str, str]],
    closed: Closed = "both",
    prevailing: bool = False,
    connection: Connection | None = None,
) -> Result:
    """Adds to each row of `left` aggregates over the rows of `right` in a window around it, as kdb+'s `wj1`.

    A row of `right` is in the window of a row of `left` if the columns of `by` are equal and its column `on` is within
    `window` of that of the left row: two offsets that are added to it, as `"-2s"`, `"1h30m"`, a timedelta (also of pandas
    or NumPy), or a number where the columns are numbers; None is an open end. A sum that is finer than the column's unit
    is rounded down to it, as SQL does. `aggs` has the new columns, each a pair of a column and an aggregate function, or
    an expression of SQL. With `prevailing`, the last row at or before the window's start counts, too (`wj`). Where names
    differ, `on` is a pair, and so are items of `by`.

    Frames are anything that exports an Arrow table, or the name of a table of `connection`. All columns and rows of
    `left` are in the result, in no particular order.

    >>> import polars as pl
    >>> trades = pl.DataFrame({"sym": ["A", "B"], "ts": [10, 20]})
    >>> quotes = pl.DataFrame({"sym": ["A", "A", "B"], "ts": [7, 9, 12], "bid": [1.5, 1.25, 4.0]})
    >>> joined = window_join(trades, quotes, on="ts", by="sym", window=(-2, 0),
    ...                      aggs={"lowest": ("bid", "min"), "n": "count(*)"})
    >>> sorted(joined.fetchall())
    [('A', 10, 1.25, 1), ('B', 20, None, 0)]
    """
    sides = _Sides(left, right, connection)
    key, other = _pair("on", on)
    lower, upper = _closed(closed)
    if not isinstance(window, tuple) or len(window) != 2:
        raise TypeError(f"window={window!r}: a pair of offsets is needed, such as ('-2s', '0s')")
    probe, searched = sides.left.column(key), sides.right.column(other)
    ends = [
        f"{searched} {operator} {probe}{_offset(offset)}"
        for operator, offset in zip((f">{lower}", f"<{upper}"), window)
        if offset is not None
    ]
    if not ends:
        raise ValueError("window=(None, None): one end at least is needed")
    if not aggs:
        raise ValueError("aggs={}: one aggregate at least is needed, such as {'lowest': ('bid', 'min')}")
    columns = [f"{_aggregate(name, agg, sides.right)} AS {_quoted(name)}" for name, agg in aggs.items()]
    keys = [f"{sides.left.column(a)} = {sides.right.column(b)}" for a, b in _by(by)]
    arguments = [sides.left.name, sides.right.name, ", ".join(keys), " AND ".join(ends), ", ".join(columns)]
    if prevailing:
        arguments.append("include prevailing")
    return sides.run(f"SELECT * FROM range_join({', '.join(map(_literal, arguments))})")


def asof_join(
    left: object,
    right: object,
    *,
    on: str | tuple[str, str],
    by: By = None,
    direction: Literal["backward", "forward", "nearest"] = "backward",
    allow_exact_matches: bool = True,
    tolerance: Offset = None,
    suffix: str = "_right",
    connection: Connection | None = None,
) -> Result:
    """Adds to each row of `left` the nearest row of `right` by `on`, at or before it, or with `"forward"` at or after it.

    With `"nearest"` it is the nearer of both, and that before where they are equally near. Neither frame need be sorted,
    and the rows of the result are in no particular order. Rows without a match, or without one within `tolerance`, get
    NULLs. Columns of `right` whose names `left` has, too, get the suffix; those of `by` and `on` that have the same name
    on both sides are in the result once. For `on`, `by` and frames see `window_join`.

    >>> import polars as pl
    >>> trades = pl.DataFrame({"id": [1, 2], "ts": [10, 20]})
    >>> quotes = pl.DataFrame({"ts": [7, 9, 12], "bid": [1.5, 1.25, 4.0]})
    >>> sorted(asof_join(trades, quotes, on="ts", tolerance=5).fetchall())
    [(1, 10, 1.25), (2, 20, None)]
    >>> sorted(asof_join(trades, quotes, on="ts", direction="nearest").fetchall())
    [(1, 10, 1.25), (2, 20, 4.0)]
    """
    if direction not in ("backward", "forward", "nearest"):
        raise ValueError(f"direction={direction!r}: 'backward', 'forward' or 'nearest' is possible")
    sides = _Sides(left, right, connection)
    key, other = _pair("on", on)
    pairs = _by(by)
    probe = sides.left.column(key)
    matches = {"backward": [(">", sides.right)], "forward": [("<", sides.right)]}
    # The nearest is one of the row before and the row after.
    matches["nearest"] = [*matches["backward"], ("<", sides.right.named("__after"))]
    joins = ""
    cases: list[tuple[str, _Side]] = []
    for operator, side in matches[direction]:
        searched = side.column(other)
        exact = "=" if allow_exact_matches else ""
        joins += f" ASOF JOIN {side.name} MATCH_CONDITION ({probe} {operator}{exact} {searched})"
        if pairs:
            joins += f" ON {' AND '.join(f'{sides.left.column(a)} = {side.column(b)}' for a, b in pairs)}"
        conditions = []
        if side is not sides.right:
            before = sides.right.column(other)
            conditions.append(f"coalesce({searched} - {probe} < {probe} - {before}, {before} IS NULL)")
        if tolerance is not None:
            earlier, later = (searched, probe) if operator == ">" else (probe, searched)
            conditions.append(f"{earlier}{_offset(tolerance)} >= {later}")
        cases.insert(0, (" AND ".join(conditions), side))

    def value(name: str) -> str:
        if len(cases) == 1 and not cases[0][0]:
            return sides.right.column(name)
        return f"CASE {' '.join(f'WHEN {near or True} THEN {side.column(name)}' for near, side in cases)} END"

    merged = {b for a, b in [*pairs, (key, other)] if a == b}
    return sides.run(f"SELECT {sides.output(merged, suffix, value)} FROM {sides.left.name}{joins}")


def overlap_join(
    left: object,
    right: object,
    *,
    on: tuple[str, str] | tuple[tuple[str, str], tuple[str, str]] = ("start", "end"),
    by: By = None,
    how: Literal["inner", "left", "semi", "anti"] = "inner",
    closed: bool = False,
    suffix: str = "_right",
    connection: Connection | None = None,
) -> Result:
    """Joins rows whose intervals overlap, and whose columns of `by` are equal.

    `on` names the columns of an interval's start and end, or is a pair of such pairs for the left and the right frame.
    Two intervals overlap if each starts before the other ends; with `closed`, also if one starts where the other ends.
    `how` is that of a join: `"semi"` returns the rows of `left` that overlap some row, `"anti"` the others. For
    suffixes see `asof_join`, for frames `window_join`.

    >>> import polars as pl
    >>> shifts = pl.DataFrame({"who": ["ann", "bob"], "start": [8, 12], "end": [12, 18]})
    >>> alarms = pl.DataFrame({"what": ["heat", "smoke"], "start": [11, 20], "end": [13, 21]})
    >>> sorted(overlap_join(shifts, alarms).fetchall())
    [('ann', 8, 12, 'heat', 11, 13), ('bob', 12, 18, 'heat', 11, 13)]
    """
    if how not in ("inner", "left", "semi", "anti"):
        raise ValueError(f"how={how!r}: 'inner', 'left', 'semi' or 'anti' is possible")
    sides = _Sides(left, right, connection)
    pairs = _by(by)
    (left_start, left_end), (right_start, right_end) = _intervals(on)
    less = "<=" if closed else "<"
    conditions = [f"{sides.left.column(a)} = {sides.right.column(b)}" for a, b in pairs]
    conditions.append(f"{sides.left.column(left_start)} {less} {sides.right.column(right_end)}")
    conditions.append(f"{sides.right.column(right_start)} {less} {sides.left.column(left_end)}")
    if how in ("semi", "anti"):
        columns = ", ".join(sides.left.column(name) for name in sides.left.columns)
    else:
        columns = sides.output({b for a, b in pairs if a == b}, suffix, sides.right.column)
    join = {"inner": "JOIN", "left": "LEFT JOIN", "semi": "LEFT SEMI JOIN", "anti": "LEFT ANTI JOIN"}[how]
    return sides.run(
        f"SELECT {columns} FROM {sides.left.name} {join} {sides.right.name} ON {' AND '.join(conditions)}"
    )


class _Side:
    """A table of the statement: a frame under a name of ours, or a table of the connection."""

    def __init__(self, argument: str, data: object, connection: Connection) -> None:
        self.argument = argument
        self.frames: list[tuple[str, Frame]] = []
        # One alias for each side, so that a table can be joined with itself.
        self.alias = f"__{argument}"
        if isinstance(data, str):
            self.columns = connection._session.columns(data)
            self.table = _quoted(data)
            self.name = f"{self.table} AS {_quoted(self.alias)}"
        else:
            frame = Frame(argument, data)
            self.columns = frame.columns
            self.table = self.name = _quoted(self.alias)
            self.frames = [(self.alias, frame)]

    def named(self, alias: str) -> "_Side":
        """The same table under another name."""
        other = copy.copy(self)
        other.alias, other.name = alias, f"{self.table} AS {_quoted(alias)}"
        return other

    def column(self, name: str) -> str:
        if name not in self.columns:
            raise ValueError(f"{self.argument} has no column {name!r}; it has {', '.join(self.columns)}")
        return f"{_quoted(self.alias)}.{_quoted(name)}"


class _Sides:
    def __init__(self, left: object, right: object, connection: Connection | None) -> None:
        self.connection = connection or connect()
        self.left = _Side("left", left, self.connection)
        self.right = _Side("right", right, self.connection)

    def output(self, merged: set[str], suffix: str, value: Callable[[str], str]) -> str:
        """The SELECT list: all columns of the left side, and the values of those of the right one that are not merged with
        one."""
        columns = [self.left.column(name) for name in self.left.columns]
        taken = set(self.left.columns)
        for name in self.right.columns:
            if name in merged:
                continue
            shown = name + suffix if name in taken else name
            if shown in taken:
                raise ValueError(f"suffix={suffix!r}: two columns would be called {shown!r}")
            taken.add(shown)
            columns.append(f"{value(name)} AS {_quoted(shown)}")
        return ", ".join(columns)

    def run(self, sql: str) -> Result:
        return self.connection._query(sql, None, self.left.frames + self.right.frames)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _pair(argument: str, names: Any) -> tuple[str, str]:
    if isinstance(names, str):
        return names, names
    if isinstance(names, tuple) and len(names) == 2 and all(isinstance(name, str) for name in names):
        return names
    raise TypeError(f"{argument}={names!r}: a column is needed, or a pair of columns where their names differ")


def _intervals(on: Any) -> tuple[tuple[str, str], tuple[str, str]]:
    """The columns of an interval on either side."""
    if isinstance(on, tuple) and len(on) == 2:
        if all(isinstance(name, str) for name in on):
            return on, on
        if all(isinstance(side, tuple) for side in on):
            return _pair("on", on[0]), _pair("on", on[1])
    raise TypeError(f"on={on!r}: a pair of columns is needed, or a pair of such pairs where their names differ")


def _by(by: By) -> list[tuple[str, str]]:
    if by is None:
        return []
    return [_pair("by", names) for names in ([by] if isinstance(by, str) else by)]


def _closed(closed: str) -> tuple[str, str]:
    ends = {"both": ("=", "="), "left": ("=", ""), "right": ("", "="), "none": ("", "")}
    if closed not in ends:
        raise ValueError(f"closed={closed!r}: 'both', 'left', 'right' or 'none' is possible")
    return ends[closed]


def _aggregate(name: str, agg: Any, side: _Side) -> str:
    if isinstance(agg, str):
        return agg
    if isinstance(agg, tuple) and len(agg) == 2 and isinstance(agg[1], str) and _AGGREGATE.fullmatch(agg[1]):
        column, function = agg
        return f"{function}({'*' if column == '*' else side.column(column)})"
    raise TypeError(f"aggs[{name!r}]={agg!r}: a pair such as ('bid', 'min') is needed, or an expression of SQL")


def _offset(offset: Any) -> str:
    """An offset as SQL that is added to a column."""
    if getattr(getattr(offset, "dtype", None), "kind", None) == "m":
        return f" + INTERVAL '{_timedelta64(offset)}'"
    if isinstance(offset, datetime.timedelta):
        microseconds = (offset.days * 86_400 + offset.seconds) * 1_000_000 + offset.microseconds
        # pandas' Timedelta has them.
        nanoseconds = getattr(offset, "nanoseconds", 0)
        finer = f" {nanoseconds} nanoseconds" if nanoseconds else ""
        return f" + INTERVAL '{microseconds} microseconds{finer}'"
    if isinstance(offset, numbers.Real) and not isinstance(offset, bool):
        # NumPy's become Python's, which are written as SQL's.
        number = int(offset) if isinstance(offset, numbers.Integral) else float(offset)
        if number != number or abs(number) == float("inf"):
            raise ValueError(f"offset {offset!r}: a finite number is needed; None is an open end")
        return f" + {number!r}" if number >= 0 else f" - {-number!r}"
    if not isinstance(offset, str):
        raise TypeError(f"offset {offset!r}: a duration such as '-2s', a timedelta or a number is needed")
    duration = _DURATION.fullmatch(offset.strip())
    if not duration:
        raise ValueError(f"offset {offset!r}: a duration such as '-2s', '1h30m', '5d' or '1mo' is needed")
    sign = "-" if duration[1] == "-" else ""
    parts = [f"{sign}{count} {_UNITS[unit]}" for count, unit in _DURATION_PART.findall(duration[2])]
    return f" + INTERVAL '{' '.join(parts)}'"


def _timedelta64(offset: Any) -> str:
    """The interval of a timedelta64 of NumPy."""
    found = _TIMEDELTA64.search(offset.dtype.str)
    unit = _UNITS.get(_UNITS64.get(found[2], found[2])) if found else None
    if found is None or unit is None or offset != offset:
        raise ValueError(f"offset {offset!r}: a timedelta64 of a unit from nanoseconds to years is needed")
    return f"{int(offset.astype('int64')) * int(found[1] or 1)} {unit}"
