"""The commonest range joins as functions of two frames. Each is a SQL statement, which `explain()` shows; columns that it
does not compare are taken from the frames by row number."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from datafusion_rmq.aggregates import Aggregate, aggregate_sql
from datafusion_rmq.arguments import choice, flag
from datafusion_rmq.connection import Connection
from datafusion_rmq.offsets import Key, Offset, Offsets, Shift, bound_of, compared, offsets_of, tolerance_of, window_of
from datafusion_rmq.result import Result
from datafusion_rmq.sides import NUMBERS, TIMES, By, Selection, Side, Sides, literal, pair, pairs_of, quoted, range_keys, suffix_pair

__all__ = ["asof_join", "overlap_join", "window_join"]

Closed = Literal["both", "left", "right", "none"]
Direction = Literal["backward", "forward", "nearest"]
Interval = tuple[str, str]

_DIRECTIONS = ("backward", "forward", "nearest")
# The joins of `overlap_join`.
_HOW = {"inner": "JOIN", "left": "LEFT JOIN", "semi": "LEFT SEMI JOIN", "anti": "LEFT ANTI JOIN"}
# Whether a window has its ends.
_CLOSED = {"both": ("=", "="), "left": ("=", ""), "right": ("", "="), "none": ("", "")}


def window_join(
    left: object,
    right: object,
    *,
    on: str | tuple[str, str] | None = None,
    left_on: str | None = None,
    right_on: str | None = None,
    by: By = None,
    left_by: str | Sequence[str] | None = None,
    right_by: str | Sequence[str] | None = None,
    window: tuple[Offset, Offset],
    aggs: Mapping[str, Aggregate],
    closed: Closed = "both",
    prevailing: bool = False,
    maintain_order: bool = True,
    connection: Connection | None = None,
) -> Result:
    """Adds to each row of `left` aggregates over the rows of `right` in a window around it, as kdb+'s `wj1`.

    A row of `right` is in the window of a row of `left` if the columns of `by` are equal and its column `on` is within
    `window` of that of the left row: two offsets that are added to it, as `"-2s"`, `"1h30m"`, a timedelta (also of pandas
    or NumPy), or a number where the columns are numbers, and of days where they are dates; None is an open end, and 0 an
    offset of any type. Texts count days, weeks, months and years in the calendar, of the column's time zone if it has one:
    `"1d"` later is the same time on the next day, or the next time that exists where the clocks leave that out. Timedeltas
    are lengths, so that a day has 24 hours, except for NumPy's months and years. A sum that is finer than the column's unit
    is rounded down to it, as SQL does; one beyond the ends of the type, or of the day of a time of day, is beyond all rows.
    With `prevailing`, the last row at or before the
    window's start counts, too (`wj`).

    Where names differ, `left_on` and `right_on` say them, and `left_by` and `right_by` those of `by`, a column or a list of
    them. (Other spellings: a pair as `on`; a dict of columns of left and right, or a list with pairs, as `by`.)

    `aggs` has the new columns, each an expression of SQL, or a pair of a column and an aggregate function: those of SQL,
    and by the names of pandas and polars `mean` (also of Booleans, dates, times and durations), `sum`, `std`, `var`,
    `first`, `last`, `nunique`, and `("bid", "quantile", 0.9)`.

    Frames are anything that exports an Arrow table, or the name of a table of `connection`. All columns and rows of
    `left` are in the result, in their order; with `maintain_order=False` in no particular order, which takes less time. The
    rows of a table of `connection` are in the order in which one thread reads it: by file name, and as they are in each.

    >>> import polars as pl
    >>> trades = pl.DataFrame({"sym": ["A", "B"], "ts": [10, 20]})
    >>> quotes = pl.DataFrame({"sym": ["A", "A", "B"], "ts": [7, 9, 12], "bid": [1.5, 1.25, 4.0]})
    >>> window_join(trades, quotes, on="ts", by="sym", window=(-2, 0),
    ...             aggs={"lowest": ("bid", "min"), "n": "count(*)"}).fetchall()
    [('A', 10, 1.25, 1), ('B', 20, None, 0)]
    """
    keys, pairs = range_keys(on, left_on, right_on), pairs_of(by, left_by, right_by)
    ends = _CLOSED[choice("closed", closed, _CLOSED)]
    sides = Sides(left, right, connection, maintain_order)
    sides.check_range_keys(keys)
    sides.check_equal_keys(pairs)
    probe, searched = Key.of(sides.left, keys[0]), Key.of(sides.right, keys[1])
    shifts = window_of(window, sides, keys)
    operators = [f"{sign}{equal}" for sign, equal in zip("><", ends)]
    conditions = [compared(searched, operator, probe, shift) for operator, shift in zip(operators, shifts) if shift is not None]
    if not isinstance(aggs, Mapping):
        raise TypeError(f"aggs={aggs!r}: a dict of new columns is needed, such as {{'lowest': ('bid', 'min')}}")
    if not aggs:
        raise ValueError("aggs={}: one aggregate at least is needed, such as {'lowest': ('bid', 'min')}")
    for name in aggs:
        if not isinstance(name, str):
            raise TypeError(f"aggs: the column {name!r} must have a text as its name")
        if name in [*sides.left.columns, sides.left.row]:
            raise ValueError(f"aggs: left has a column {name!r}, too; give the new one another name")
    columns = [f"{aggregate_sql(name, agg, sides.right)} AS {quoted(name)}" for name, agg in aggs.items()]
    equal_keys = [f"{sides.left.column(a)} = {sides.right.column(b)}" for a, b in pairs]
    arguments = [sides.left.name, sides.right.name, ", ".join(equal_keys), " AND ".join(conditions), ", ".join(columns)]
    if flag("prevailing", prevailing):
        arguments.append("include prevailing")
    selection = Selection()
    selection.add_side(sides.left, {name: name for name in sides.left.columns}, quoted(sides.left.row), quoted)
    for name in aggs:
        selection.add(name, quoted(name))
    return sides.run(selection, f"range_join({', '.join(map(literal, arguments))}) AS joined", "joined")


def asof_join(
    left: object,
    right: object,
    *,
    on: str | tuple[str, str] | None = None,
    left_on: str | None = None,
    right_on: str | None = None,
    by: By = None,
    left_by: str | Sequence[str] | None = None,
    right_by: str | Sequence[str] | None = None,
    direction: Direction = "backward",
    strategy: Direction | None = None,
    allow_exact_matches: bool = True,
    tolerance: Offset = None,
    offsets: Offsets = None,
    suffix: str = "_right",
    suffixes: tuple[str | None, str | None] | None = None,
    maintain_order: bool = True,
    connection: Connection | None = None,
) -> Result:
    """Adds to each row of `left` the nearest row of `right` by `on`, at or before it, or with `"forward"` at or after it.

    With `"nearest"` it is the nearer of both, and that before where they are equally near. Neither frame need be sorted.
    Rows without a match, or without one within `tolerance`, get NULLs. Columns of `right` whose names `left` has, too, get
    the suffix, or those of both sides the two `suffixes`; those of `by` and `on` that have the same name on both sides are
    in the result once. `strategy` is polars' name of `direction`. For `on`, `by`, frames and the order of rows see
    `window_join`.

    With `offsets`, the nearest row is looked for at each of several offsets from the left row's `on`: a list, as
    `["1s", "5s"]`, whose columns end in `_1s` and `_5s`, also of timedeltas, or an array, or a dict of suffixes and
    offsets. `suffix` and `suffixes` beside them are an error. `tolerance` is counted from the sum. As in `window_join`, a
    sum beyond the ends of the type, or of the day of a time of day, is beyond all rows.

    >>> import polars as pl
    >>> trades = pl.DataFrame({"id": [1, 2], "ts": [10, 20]})
    >>> quotes = pl.DataFrame({"ts": [7, 9, 12], "bid": [1.5, 1.25, 4.0]})
    >>> asof_join(trades, quotes, on="ts", tolerance=5).fetchall()
    [(1, 10, 1.25), (2, 20, None)]
    >>> asof_join(trades, quotes, on="ts", direction="nearest").fetchall()
    [(1, 10, 1.25), (2, 20, 4.0)]
    >>> asof_join(trades, quotes, on="ts", offsets={"_before": -2, "_after": 2}).columns
    ['id', 'ts', 'bid_before', 'bid_after']
    """
    if strategy is not None:
        if direction not in ("backward", strategy):
            raise TypeError(f"strategy={strategy!r} is given beside direction={direction!r}: they are one argument")
        direction = strategy
    choice("direction", direction, _DIRECTIONS)
    exact = "=" if flag("allow_exact_matches", allow_exact_matches) else ""
    keys, pairs = range_keys(on, left_on, right_on), pairs_of(by, left_by, right_by)
    shown = suffix_pair(suffix, suffixes)
    if offsets is not None and shown != ("", "_right"):
        given = f"suffix={suffix!r}" if suffixes is None else f"suffixes={suffixes!r}"
        raise TypeError(f"{given} is given beside offsets, which have suffixes of their own; a dict of offsets says others")
    sides = Sides(left, right, connection, maintain_order)
    sides.check_range_keys(keys)
    sides.check_equal_keys(pairs)
    if direction == "nearest":
        sides.check_kinds("direction='nearest'", keys, NUMBERS | TIMES, "of which there is no distance")
    within = None if tolerance is None else tolerance_of(tolerance, sides, keys)
    joins = ""
    values = {}
    for i, (label, shift) in enumerate(offsets_of(offsets, sides, keys).items()):
        search = _Search(sides, keys, pairs, shift, exact, within, f"{i}" if i else "")
        joins += search.joins(direction)
        values[label] = search.number, search.value
    merged = {b for a, b in [*pairs, keys] if a == b}
    return sides.run(sides.selection(merged, shown, values), sides.left.name + joins)


def overlap_join(
    left: object,
    right: object,
    *,
    on: Interval | tuple[Interval, Interval] = ("start", "end"),
    left_on: Interval | str | None = None,
    right_on: Interval | str | None = None,
    by: By = None,
    left_by: str | Sequence[str] | None = None,
    right_by: str | Sequence[str] | None = None,
    how: Literal["inner", "left", "semi", "anti"] = "inner",
    closed: bool | Literal["both", "left"] = False,
    suffix: str = "_right",
    suffixes: tuple[str | None, str | None] | None = None,
    maintain_order: bool = True,
    connection: Connection | None = None,
) -> Result:
    """Joins rows whose intervals overlap, and whose columns of `by` are equal.

    `on` names the columns of an interval's start and end; where one frame has others, `left_on` or `right_on` says them.
    (Another spelling: a pair of such pairs as `on`.) Two intervals overlap if each starts before the other ends; with
    `closed`, also if one starts where the other ends. One column instead of a pair has points: a point is in an interval
    from its start until before its end, with `closed` also at its end. `"both"` and `"left"`, as `window_join` has them,
    are True and False.

    `how` is that of a join: `"semi"` returns the rows of `left` that overlap some row, `"anti"` the others. Rows are in
    the order of `left`, and those of one left row in no particular order. For suffixes see `asof_join`, for frames, `by`
    and the order of rows `window_join`.

    >>> import polars as pl
    >>> shifts = pl.DataFrame({"who": ["ann", "bob"], "start": [8, 12], "end": [12, 18]})
    >>> alarms = pl.DataFrame({"what": ["heat", "smoke"], "start": [11, 20], "end": [13, 21]})
    >>> overlap_join(shifts, alarms).fetchall()
    [('ann', 8, 12, 'heat', 11, 13), ('bob', 12, 18, 'heat', 11, 13)]
    >>> overlap_join(alarms, shifts, left_on="start", how="semi").fetchall()
    [('heat', 11, 13)]
    """
    join = _HOW[choice("how", how, _HOW)]
    if isinstance(closed, str):
        # The words of `window_join`. All intervals have their start.
        closed = choice("closed", closed, ("both", "left")) == "both"
    before = "<=" if flag("closed", closed) else "<"
    pairs, shown = pairs_of(by, left_by, right_by), suffix_pair(suffix, suffixes)
    left_interval, right_interval = _intervals(on)
    left_interval = left_interval if left_on is None else _interval("left_on", left_on)
    right_interval = right_interval if right_on is None else _interval("right_on", right_on)
    sides = Sides(left, right, connection, maintain_order)
    sides.check_equal_keys(pairs)
    sides.check_range_keys((left_interval[0], right_interval[-1]), (left_interval[-1], right_interval[0]))
    if len(left_interval) == len(right_interval) == 1:
        raise ValueError(f"left_on={left_on!r}, right_on={right_on!r}: points are in intervals; one side at least needs a pair of columns")
    conditions = [f"{sides.left.column(a)} = {sides.right.column(b)}" for a, b in pairs]
    # A point is where its interval starts.
    starts_before_end = "<=" if len(right_interval) == 1 else before
    ends_after_start = "<=" if len(left_interval) == 1 else before
    left_keys, right_keys = ([Key.of(side, name) for name in names] for side, names in ((sides.left, left_interval), (sides.right, right_interval)))
    conditions.append(compared(left_keys[0], starts_before_end, right_keys[-1], Shift(0)))
    conditions.append(compared(right_keys[0], ends_after_start, left_keys[-1], Shift(0)))
    right = {} if how in ("semi", "anti") else {"": (sides.right.number, sides.right.column)}
    selection = sides.selection({b for a, b in pairs if a == b}, shown, right)
    return sides.run(selection, f"{sides.left.name} {join} {sides.right.name} ON {' AND '.join(conditions)}")


class _Search:
    """The nearest row of the right side at one offset from the left row."""

    def __init__(
        self,
        sides: Sides,
        keys: tuple[str, str],
        pairs: list[tuple[str, str]],
        shift: Shift,
        exact: str,
        tolerance: Shift | None,
        number: str,
    ) -> None:
        self._left = sides.left
        self._key, self._pairs, self._exact, self._tolerance = keys[1], pairs, exact, tolerance
        self._probe, self._shift = Key.of(sides.left, keys[0]), shift
        self._before = sides.right.named(f"__right{number}") if number else sides.right
        self._after = sides.right.named(f"__after{number}")
        # Where a side has the row, most wanted first.
        self._cases: list[tuple[str, Side]] = []

    def joins(self, direction: str) -> str:
        """The joins that find it. The nearest is one of the row before and the row after."""
        sides = {"backward": [("<", self._before)], "forward": [(">", self._before)]}
        sides["nearest"] = [*sides["backward"], (">", self._after)]
        return "".join(self._join(operator, side) for operator, side in sides[direction])

    def _join(self, operator: str, side: Side) -> str:
        """The join with the row whose key is before the sum, or with `>` after it."""
        probe, searched = self._probe, Key.of(side, self._key)
        conditions = []
        if side is self._after:
            before = self._before.column(self._key)
            # Between both keys the sum is one of the finer unit.
            at = bound_of(max(searched, probe, key=Key.unit), "<=", probe, self._shift)[1]
            nearer = f"rmq_distance({searched.sql}, {at}) < rmq_distance({at}, {before})"
            conditions.append(f"coalesce({nearer}, {before} IS NULL)")
        if self._tolerance is not None:
            last = self._shift.plus(self._tolerance, -1 if operator == "<" else 1)
            conditions.append(compared(searched, ">=" if operator == "<" else "<=", probe, last))
        self._cases.insert(0, (" AND ".join(conditions), side))
        operator, bound = bound_of(searched, operator + self._exact, probe, self._shift)
        # The left side comes first.
        operator = operator.translate(str.maketrans("<>", "><"))
        join = f" ASOF JOIN {side.name} MATCH_CONDITION ({bound} {operator} {searched.sql})"
        equal = " AND ".join(f"{self._left.column(a)} = {side.column(b)}" for a, b in self._pairs)
        return f"{join} ON {equal}" if equal else join

    @property
    def number(self) -> str:
        """The number of the row, as SQL."""
        return self._of_row(lambda side: side.number)

    def value(self, name: str) -> str:
        """A column of the row, as SQL."""
        return self._of_row(lambda side: side.column(name))

    def _of_row(self, column: Callable[[Side], str]) -> str:
        if len(self._cases) == 1 and not self._cases[0][0]:
            return column(self._before)
        cases = [f"WHEN {near or True} THEN {column(side)}" for near, side in self._cases]
        return f"CASE {' '.join(cases)} END"


def _intervals(on: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of an interval on either side."""
    if isinstance(on, tuple) and len(on) == 2:
        if all(isinstance(name, str) for name in on):
            return on, on
        if all(isinstance(side, tuple) for side in on):
            return pair("on", on[0]), pair("on", on[1])
    raise TypeError(f"on={on!r}: a pair of columns is needed; where names differ, left_on= and right_on=")


def _interval(argument: str, columns: Any) -> tuple[str, ...]:
    """The columns of an interval, or the one of a point."""
    return (columns,) if isinstance(columns, str) else pair(argument, columns)
