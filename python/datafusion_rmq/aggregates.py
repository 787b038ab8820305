"""Aggregates of window joins as SQL."""

import numbers
import re
from typing import Any, TypeAlias

from datafusion_rmq.sides import NUMBERS, TIMES, Side, dictionary_values

__all__ = ["Aggregate", "aggregate_sql"]

Aggregate: TypeAlias = "str | tuple[str, str] | tuple[str, str, float]"

_FUNCTION = re.compile(r"[A-Za-z_]\w*")
# Names of pandas and polars, where SQL has others.
_NAMES = {
    "first": "first_value({})",
    "last": "last_value({})",
    "n_unique": "count(DISTINCT {})",
    "nunique": "count(DISTINCT {})",
    "std": "stddev({})",
    "var": "var({})",
}
# Those of numbers, and what they take beside them.
_OF_NUMBERS = {
    "mean": {"boolean"} | TIMES,
    "avg": {"boolean"} | TIMES,
    "sum": {"boolean", "duration"},
    "std": {"boolean"},
    "var": {"boolean"},
    "median": {"boolean"},
    "quantile": {"boolean"},
}


def aggregate_sql(name: str, agg: Any, side: Side) -> str:
    """One of `aggs` as an expression of SQL."""
    if isinstance(agg, str):
        side.use_all()
        return agg
    is_pair = isinstance(agg, tuple) and len(agg) in (2, 3) and isinstance(agg[0], str) and isinstance(agg[1], str)
    if not is_pair or not _FUNCTION.fullmatch(agg[1]):
        raise TypeError(f"aggs[{name!r}]={agg!r}: a pair such as ('bid', 'min') is needed, or an expression of SQL")
    column, function, *arguments = agg
    if (function == "quantile") != bool(arguments) or not all(map(_is_fraction, arguments)):
        raise ValueError(f"aggs[{name!r}]={agg!r}: quantile takes a number from 0 to 1, as in ('bid', 'quantile', 0.9), others none")
    if column == "*":
        return f"{function}(*)"
    value, kind = side.column(column), side.kind(column)
    others = _OF_NUMBERS.get(function)
    if others is not None and kind not in NUMBERS | others | {"null"}:
        raise TypeError(f"aggs[{name!r}]={agg!r}: {column!r} is {side.type(column)}, of which there is no {function}")
    if others is not None and kind == "boolean":
        value = f"CAST({value} AS BIGINT)"
    text = dictionary_values(side.type(column))
    if text and function not in ("count", "max", "min"):
        # An accumulator has a dictionary of its own, for which the keys may be too few.
        value = f"arrow_cast({value}, '{text}')"
    if function == "quantile":
        return f"percentile_cont({value}, {float(arguments[0])!r})"
    if function in ("mean", "avg") and kind in TIMES:
        return _mean_time(value, kind, text or side.type(column))
    return _NAMES.get(function, f"{function}({{}})").format(value)


def _is_fraction(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 <= float(value) <= 1


def _mean_time(value: str, kind: str, arrow_type: str) -> str:
    """The mean of dates, which is a timestamp, of times or of durations. A float would round nanoseconds, and a sum overflow."""
    if kind == "date":
        arrow_type = "Timestamp(Microsecond, None)"
        value = f"arrow_cast({value}, '{arrow_type}')"
    number = f"CAST(arrow_cast({value}, 'Int64') AS DECIMAL(19, 0))"
    return f"arrow_cast(arrow_cast(avg({number}), 'Int64'), '{arrow_type}')"
