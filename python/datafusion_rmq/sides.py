"""What joins of two frames have in common: the two tables of the statement, their keys, and the columns of the result."""

import copy
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from datafusion_rmq._native import Frame
from datafusion_rmq.arguments import flag
from datafusion_rmq.connection import Connection, connect
from datafusion_rmq.frames import read_frame, unnamed_levels
from datafusion_rmq.result import Result

__all__ = ["By", "Selection", "Side", "Sides", "dictionary_values", "kind_of", "literal", "pair", "pairs_of", "quoted", "range_keys", "suffix_pair"]

# A list, as a tuple of two names would read as a pair of a left and a right column.
By: TypeAlias = "str | list[str] | list[tuple[str, str]] | list[str | tuple[str, str]] | Mapping[str, str] | None"

_DICTIONARY = re.compile(r"Dictionary\(\w+, (.*)\)")
# By the beginnings of Arrow's names of types, longer ones first. Other types are of their own kind.
_KINDS = {
    "Interval": "interval",
    "Int": "integer",
    "UInt": "integer",
    "Float": "float",
    "Decimal": "decimal",
    "Date": "date",
    "Timestamp": "timestamp",
    "Time": "time",
    "Duration": "duration",
    "Utf8": "text",
    "LargeUtf8": "text",
    "Binary": "binary",
    "LargeBinary": "binary",
    "FixedSizeBinary": "binary",
    "Boolean": "boolean",
    "Null": "null",
    "ListView": "list view",
    "List": "list",
    "LargeListView": "large list view",
    "LargeList": "list",
    "FixedSizeList": "list",
}
NUMBERS = {"integer", "float", "decimal"}
# What a duration can be added to.
TIMES = {"date", "timestamp", "zoned timestamp", "time", "duration"}
_ORDERED = NUMBERS | TIMES | {"interval", "text", "binary", "boolean"}


def dictionary_values(arrow_type: str) -> str | None:
    """The Arrow type of a dictionary's values."""
    dictionary = _DICTIONARY.fullmatch(arrow_type)
    return dictionary[1] if dictionary else None


def kind_of(arrow_type: str) -> str:
    """What values of an Arrow type, given by its name, are compared with, and what can be added to them."""
    arrow_type = dictionary_values(arrow_type) or arrow_type
    kind = next((kind for begin, kind in _KINDS.items() if arrow_type.startswith(begin)), arrow_type.partition("(")[0])
    return "zoned timestamp" if kind == "timestamp" and "," in arrow_type else kind


def _comparable(one: str, other: str) -> bool:
    if one == other or "null" in (one, other):
        return True
    # A date is compared as its midnight.
    return {one, other} <= NUMBERS or ({one, other} <= TIMES and "date" in (one, other) and not {one, other} & {"time", "duration"})


class Side:
    """A table of the statement: a frame under a name of ours, or a table of the connection.

    Of a frame the statement sees the columns that it compares, and one that numbers the rows. By that the other columns of
    the result are taken from the frame, so a statement has few columns to plan.
    """

    def __init__(self, argument: str, data: object, connection: Connection, numbered: bool) -> None:
        self.argument = argument
        self.frame: Frame | None = None
        # An index of pandas without a name can be a key, but is no column of the result where it is the right side's.
        self.unnamed = set(unnamed_levels(data).values())
        # One alias for each side, so that a table can be joined with itself.
        self.alias = f"__{argument}"
        if isinstance(data, str):
            session = connection._session
            self._types = dict(zip(session.columns(data), session.types(data)))
            self.table = quoted(data)
        else:
            # The index of the result is that of the left side.
            self.frame = read_frame(argument, data, index=argument == "left")
            self._types = dict(zip(self.frame.columns, self.frame.types))
            if len(self._types) < len(self.frame.columns):
                twice = next(name for name, n in Counter(self.frame.columns).items() if n > 1)
                raise ValueError(f"{argument}: several columns are called {twice!r}; rename them")
            self.table = quoted(self.alias)
        self._positions = {name: i for i, name in enumerate(self._types)}
        # Columns that the statement names.
        self._used: set[str] = set()
        # The column that numbers the rows, and is none of `columns`. A frame has it, and a numbered table.
        self.row = "__row"
        while self.row in self._types:
            self.row += "_"
        self.name = self.table if self.frame is not None else f"{self.table} AS {quoted(self.alias)}"
        if self.frame is None and numbered:
            rows = f"SELECT *, row_number() OVER () AS {quoted(self.row)} FROM {self.table}"
            self.name = f"({rows}) AS {quoted(self.alias)}"

    @property
    def columns(self) -> list[str]:
        return list(self._types)

    def named(self, alias: str) -> "Side":
        """The same table under another name."""
        other = copy.copy(self)
        other.alias, other.name = alias, f"{self.table} AS {quoted(alias)}"
        return other

    def type(self, name: str) -> str:
        """The Arrow type of a column."""
        if name not in self._types:
            raise ValueError(f"{self.argument} has no column {name!r}; it has {', '.join(self._types)}")
        return self._types[name]

    def kind(self, name: str) -> str:
        return kind_of(self.type(name))

    def column(self, name: str) -> str:
        self.type(name)
        self._used.add(name)
        return f"{quoted(self.alias)}.{quoted(name)}"

    def use_all(self) -> None:
        """Has the statement see all columns."""
        self._used.update(self._types)

    @property
    def number(self) -> str:
        """The column that numbers the rows, as SQL."""
        return f"{quoted(self.alias)}.{quoted(self.row)}"

    def position(self, name: str) -> int:
        return self._positions[name]

    def seen(self) -> list[tuple[str, Frame]]:
        """The frame that the statement sees."""
        if self.frame is None:
            return []
        columns = sorted(self._positions[name] for name in self._used)
        return [(self.alias, self.frame.numbered(columns, self.row))]


class Selection:
    """The columns of a result: those that the statement selects, and those that are taken from frames."""

    def __init__(self) -> None:
        self.sql: list[str] = []
        # Names, and what `Session.sql` takes.
        self._shown: list[tuple[str, int, int | None]] = []
        self._numbered: list[tuple[int, Frame]] = []

    def add(self, name: str, sql: str) -> None:
        self._shown.append((name, len(self.sql), None))
        self.sql.append(f"{sql} AS {quoted(name)}")

    def add_side(self, side: Side, names: Mapping[str, str], row: str, value: Callable[[str], str]) -> None:
        """Columns of a side, and how they are called. As SQL, `row` is the number of the row, and `value` of a column
        its value."""
        if side.frame is None:
            for column, name in names.items():
                self.add(name, value(column))
        elif names:
            number = len(self.sql)
            self.sql.append(row)
            self._numbered.append((number, side.frame))
            self._shown += [(name, number, side.position(column)) for column, name in names.items()]

    @property
    def shown(self) -> tuple[list[tuple[str, int, int | None]], list[tuple[int, Frame]]]:
        return self._shown, self._numbered


class Sides:
    """The two tables of a statement. With `maintain_order` its rows come in the order of the left one."""

    def __init__(self, left: object, right: object, connection: Connection | None, maintain_order: bool) -> None:
        if connection is not None and not isinstance(connection, Connection):
            raise TypeError(f"connection={connection!r}: what datafusion_rmq.connect() returns is needed")
        self.connection = connection or connect()
        self._maintain_order = flag("maintain_order", maintain_order)
        self.left = Side("left", left, self.connection, self._maintain_order)
        self.right = Side("right", right, self.connection, False)

    def check_keys(self, argument: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Checks that the columns of each pair can be compared."""
        for left, right in pairs:
            if not _comparable(self.left.kind(left), self.right.kind(right)):
                types = f"{left!r} of left is {self.left.type(left)}, {right!r} of right is {self.right.type(right)}"
                raise TypeError(f"{argument}: {types}, and these are not compared; cast one of them")

    def check_range_keys(self, *pairs: tuple[str, str]) -> None:
        """Checks that the columns of each pair can be compared, and have an order."""
        self.check_keys("on", pairs)
        for keys in pairs:
            self.check_kinds("on", keys, _ORDERED, "which has no order")

    def check_equal_keys(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Checks that the columns of each pair can be equal."""
        self.check_keys("by", pairs)
        for left, right in pairs:
            types = self.left.type(left), self.right.type(right)
            if self.left.kind(left) == self.right.kind(right) == "time" and types[0] != types[1]:
                shown = f"{left!r} of left is {types[0]}, {right!r} of right is {types[1]}"
                raise TypeError(f"by: {shown}, and SQL compares no times of day of two units; cast one of them")

    def check_kinds(self, argument: str, keys: tuple[str, str], kinds: set[str], otherwise: str) -> None:
        """Checks that both range keys are of these kinds, or of the type Null."""
        for side, key in zip((self.left, self.right), keys):
            if side.kind(key) not in kinds | {"null"}:
                raise TypeError(f"{argument}: {key!r} of {side.argument} is {side.type(key)}, {otherwise}")

    def selection(
        self, merged: set[str], suffixes: tuple[str, str], values: Mapping[str, tuple[str, Callable[[str], str]]]
    ) -> Selection:
        """All columns of the left side, and for each suffix of `values` those of the right one that are not merged with
        one. Of these `values` has the number of the row, and the value of a column, as SQL."""
        right = [name for name in self.right.columns if name not in merged | self.right.unnamed]
        # A name that both sides have. With offsets, all columns of the right side have the suffix of their offset.
        both = {*self.left.columns} & {*right} if "" in values else set()
        selection = Selection()
        shown = {name: name + suffixes[0] if name in both else name for name in self.left.columns}
        selection.add_side(self.left, shown, self.left.number, self.left.column)
        taken = [*shown.values()]
        for label, (row, value) in values.items():
            shown = {name: name + suffixes[1] if name in both else name + label for name in right}
            selection.add_side(self.right, shown, row, value)
            taken += shown.values()
        known: set[str] = set()
        for name in taken:
            if name in known:
                argument = f"suffix={suffixes[1]!r}" if "" in values else f"offsets={list(values)}"
                raise ValueError(f"{argument}: two columns would be called {name!r}")
            known.add(name)
        return selection

    def run(self, selection: Selection, source: str, left: str | None = None) -> Result:
        """Plans a statement, whose rows are ordered as those of the left side, which it calls `left`."""
        sql = f"SELECT {', '.join(selection.sql)} FROM {source}"
        if self._maintain_order:
            sql += f" ORDER BY {left or quoted(self.left.alias)}.{quoted(self.left.row)}"
        frames = self.left.seen() + self.right.seen()
        return Result(self.connection._session.sql(sql, None, frames, [], selection.shown))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def pair(argument: str, names: Any) -> tuple[str, str]:
    if isinstance(names, str):
        return names, names
    if isinstance(names, tuple) and len(names) == 2 and all(isinstance(name, str) for name in names):
        return names
    raise TypeError(f"{argument}={names!r}: a column is needed, or a pair of columns where their names differ")


def range_keys(on: Any, left_on: Any, right_on: Any) -> tuple[str, str]:
    """The range keys of both sides."""
    if left_on is None and right_on is None:
        if on is None:
            raise TypeError("on= is needed: a column that both frames have; or left_on= and right_on=")
        return pair("on", on)
    if on is not None:
        raise TypeError(f"on={on!r} is given beside left_on or right_on: one of them is enough")
    return _key("left_on", left_on), _key("right_on", right_on)


def _key(argument: str, name: Any) -> str:
    if isinstance(name, str):
        return name
    raise TypeError(f"{argument}={name!r}: a column is needed; left_on= and right_on= go together")


def pairs_of(by: Any, left_by: Any, right_by: Any) -> list[tuple[str, str]]:
    """The equality keys of both sides, in pairs."""
    if left_by is not None or right_by is not None:
        if by is not None:
            raise TypeError(f"by={by!r} is given beside left_by or right_by: one of them is enough")
        left, right = _names("left_by", left_by), _names("right_by", right_by)
        if len(left) != len(right):
            raise ValueError(f"left_by={left_by!r}, right_by={right_by!r}: as many columns of either frame are needed")
        return list(zip(left, right))
    if by is None:
        return []
    if isinstance(by, str):
        return [(by, by)]
    items = list(by.items()) if isinstance(by, Mapping) else by
    if isinstance(items, list) and all(_is_key(item) for item in items):
        return [pair("by", item) for item in items]
    hint = ""
    if isinstance(by, tuple) and _is_key(by):
        hint = f"; two columns of either frame are {list(by)!r}, one whose names differ left_by={by[0]!r}, right_by={by[1]!r}"
    raise TypeError(f"by={by!r}: a column is needed, a list of columns, or a dict of columns of left and right{hint}")


def _is_key(item: Any) -> bool:
    return isinstance(item, str) or (
        isinstance(item, tuple) and len(item) == 2 and all(isinstance(name, str) for name in item)
    )


def _names(argument: str, names: Any) -> list[str]:
    if isinstance(names, str):
        return [names]
    if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
        return list(names)
    raise TypeError(f"{argument}={names!r}: a column or a list of columns is needed; left_by= and right_by= go together")


def suffix_pair(suffix: Any, suffixes: Any) -> tuple[str, str]:
    """The suffixes of columns that both sides have."""
    if suffixes is None:
        if not isinstance(suffix, str):
            raise TypeError(f"suffix={suffix!r}: a text is needed, such as '_right'")
        return "", suffix
    if suffix != "_right":
        raise TypeError(f"suffix={suffix!r} is given beside suffixes: one of them is enough")
    if not isinstance(suffixes, (tuple, list)) or len(suffixes) != 2 or not all(isinstance(one, str | None) for one in suffixes):
        raise TypeError(f"suffixes={suffixes!r}: a pair of texts is needed, such as ('_left', '_right')")
    return suffixes[0] or "", suffixes[1] or ""
