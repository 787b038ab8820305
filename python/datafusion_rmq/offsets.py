"""Offsets of range keys: numbers and durations, as SQL that is added to a column."""

import datetime
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat, TypeAlias

from datafusion_rmq.sides import NUMBERS, TIMES, Side, Sides, dictionary_values, kind_of, literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Key", "Offset", "Offsets", "Shift", "bound_of", "compared", "offsets_of", "tolerance_of", "window_of"]

Offset: TypeAlias = "str | SupportsFloat | datetime.timedelta | np.timedelta64 | None"
Offsets: TypeAlias = "Sequence[Offset] | npt.NDArray[Any] | Mapping[str, Offset] | None"

_DURATION = re.compile(r"([+-]?)((?:\d+ ?(?:ns|us|µs|ms|s|m|min|h|H|d|D|w|W|mo|q|y) ?)+)")
_DURATION_PART = re.compile(r"(\d+) ?(ns|us|µs|ms|min|mo|s|m|h|H|d|D|w|W|q|y)")
# Units of polars and of pandas: SQL's name, and how many of its units. SQL counts days and longer ones in the calendar.
_UNITS = {
    "ns": ("nanoseconds", 1),
    "us": ("microseconds", 1),
    "µs": ("microseconds", 1),
    "ms": ("milliseconds", 1),
    "s": ("seconds", 1),
    "m": ("minutes", 1),
    "min": ("minutes", 1),
    "h": ("hours", 1),
    "H": ("hours", 1),
    "d": ("days", 1),
    "D": ("days", 1),
    "w": ("weeks", 1),
    "W": ("weeks", 1),
    "mo": ("months", 1),
    "q": ("months", 3),
    "y": ("years", 1),
}
# The first spelling of each of SQL's units.
_TEXTS = {unit: text for text, (unit, each) in reversed(_UNITS.items()) if each == 1}
# In the names of Arrow's types, coarse ones first. Dates have days.
_UNIT = re.compile(r"\((s|ms|µs|ns)\b")
_UNITS_OF_TYPES = ["", "s", "ms", "µs", "ns"]
_TIMEDELTA64 = re.compile(r"m8\[(\d*)(\w+)\]")
# Units of timedelta64 that are spelled otherwise, or are lengths.
_UNITS64 = {**_UNITS, "D": ("hours", 24), "W": ("hours", 168), "M": ("months", 1), "Y": ("years", 1)}
_SECOND = 10**9
_DAY = 86_400 * _SECOND
# The shortest and the longest of each unit in nanoseconds: days have 23 to 25 hours where clocks change.
_LENGTHS = {
    "nanoseconds": (1, 1),
    "microseconds": (1000, 1000),
    "milliseconds": (10**6, 10**6),
    "seconds": (_SECOND, _SECOND),
    "minutes": (60 * _SECOND, 60 * _SECOND),
    "hours": (3600 * _SECOND, 3600 * _SECOND),
    "days": (23 * 3600 * _SECOND, 25 * 3600 * _SECOND),
    "weeks": (167 * 3600 * _SECOND, 169 * 3600 * _SECOND),
    "months": (671 * 3600 * _SECOND, 745 * 3600 * _SECOND),
    "years": (8759 * 3600 * _SECOND, 8785 * 3600 * _SECOND),
}
# Of months and of days.
_CALENDAR_UNITS = (("months", "years"), ("days", "weeks"))


@dataclass(frozen=True)
class Shift:
    """An offset that is known to fit its columns: a number, or a duration as counts of SQL's units."""

    number: "int | float | None"
    parts: tuple[tuple[int, str], ...] = ()

    def text(self) -> str:
        """The offset as a text that means it, a duration as a whole number of the coarsest unit."""
        if self.number is not None:
            return f"{self.number}"
        least, most = self.least_and_most()
        if least != most:
            return "".join(f"{count}{_TEXTS[unit]}" for count, unit in self.parts)
        units = [(unit, low) for unit, (low, high) in reversed(_LENGTHS.items()) if low == high]
        unit, length = next(((unit, length) for unit, length in units if least and least % length == 0), ("seconds", _SECOND))
        return f"{least // length}{_TEXTS[unit]}"

    def added_to(self, column: str) -> str:
        """The sum as SQL."""
        if self.number is None:
            return f"{column} + {self.interval()}"
        if self.number == 0:
            return column
        return f"{column} + {self.number!r}" if self.number > 0 else f"{column} - {-self.number!r}"

    def interval(self) -> str:
        """A duration as SQL.

        An interval of SQL has months and days of 32 bits and nanoseconds of 64.
        """
        text = " ".join(f"{count} {unit}" for count, unit in self.parts)
        calendar = {"months": 1, "years": 12, "days": 1, "weeks": 7}
        months, days = (sum(count * calendar[unit] for count, unit in self.parts if unit in units) for units in _CALENDAR_UNITS)
        length = sum(count * _LENGTHS[unit][0] for count, unit in self.parts if unit not in calendar)
        if max(abs(months), abs(days)) >= 1 << 31 or abs(length) >= 1 << 63:
            raise ValueError(f"offset '{text}': it is too long; months and days have 32 bits each, shorter units nanoseconds of 64")
        return f"INTERVAL '{text}'"

    def added_exactly(self) -> str | None:
        """What `rmq_bound` adds, as SQL: an integer, a duration, or a text of either that is too long for SQL. None for a
        number that is not whole."""
        if self.number is None:
            least, most = self.least_and_most()
            # Of one length, which needs no calendar.
            return literal(str(least)) if least == most and abs(least) >= 1 << 63 else self.interval()
        if not isinstance(self.number, int):
            return None
        # Keys have 64 bits, so that no difference of two has more than 65.
        return repr(self.number) if abs(self.number) < 1 << 63 else literal(str(max(-1 << 65, min(self.number, 1 << 65))))

    def rounded(self, up: bool) -> "Shift":
        """The next whole number, for columns of integers."""
        return self if self.number is None else Shift(math.ceil(self.number) if up else math.floor(self.number))

    def plus(self, other: "Shift", sign: int = 1) -> "Shift":
        """Both offsets as one, or that of the other's length back."""
        if self.number is not None and other.number is not None:
            return Shift(self.number + sign * other.number)
        counts: dict[str, int] = {}
        for one, by in ((self, 1), (other, sign)):
            for count, unit in one.duration().parts:
                counts[unit] = counts.get(unit, 0) + by * count
        return Shift(None, tuple((count, unit) for unit, count in counts.items()))

    def duration(self) -> "Shift":
        """A duration. A number is one of days."""
        return self if self.number is None else Shift(None, ((round(self.number * 86_400_000_000), "microseconds"),))

    def least_and_most(self) -> "tuple[int | float, int | float]":
        """The bounds of its length, in nanoseconds where it is a duration."""
        if self.number is not None:
            return self.number, self.number
        bounds = [sorted(count * length for length in _LENGTHS[unit]) for count, unit in self.parts]
        return sum(low for low, _ in bounds), sum(high for _, high in bounds)


@dataclass(frozen=True)
class Key:
    """A range key as SQL, and its Arrow type."""

    sql: str
    type: str

    @classmethod
    def of(cls, side: Side, name: str) -> "Key":
        arrow_type = side.type(name)
        return cls(side.column(name), dictionary_values(arrow_type) or arrow_type)

    def unit(self) -> int:
        """A number that is greater for finer units of time."""
        named = _UNIT.search(self.type)
        return _UNITS_OF_TYPES.index(named[1]) if named else 0


def bound_of(key: Key, operator: str, value: Key, shift: Shift) -> tuple[str, str]:
    """What a key is compared with if it is to compare so with a value plus an offset: an operator and SQL."""
    kinds = {kind_of(key.type), kind_of(value.type)}
    if kinds == {"time"} and key.type != value.type and shift.number == 0:
        # SQL does not compare times of day of two units.
        shift = Shift(None, ((0, "seconds"),))
    if shift.number == 0:
        return operator, value.sql
    if kinds <= {"integer", "date"}:
        # A whole key is at least 2.5 if it is at least 3, and above 2.5 if it is above 2.
        shift = shift.rounded(up=operator in (">=", "<"))
    if kinds == {"date"}:
        shift = shift.duration()
    is_alike = len(kinds) == 1 or kinds == {"date", "timestamp"}
    has_bound = is_alike and kinds <= (TIMES if shift.number is None else {"integer"})
    offset = shift.added_exactly() if has_bound else None
    # Unlike a sum it does not overflow, nor pass midnight.
    if offset is not None:
        return f"{operator[0]}=", f"rmq_bound('{operator}', {value.sql}, {offset}, {literal(key.type)})"
    return operator, shift.added_to(value.sql)


def compared(key: Key, operator: str, value: Key, shift: Shift) -> str:
    """The comparison of a key with a value plus an offset, as SQL."""
    operator, bound = bound_of(key, operator, value, shift)
    return f"{key.sql} {operator} {bound}"


def window_of(window: Any, sides: Sides, keys: tuple[str, str]) -> "tuple[Shift | None, Shift | None]":
    """The ends of a window around the left side's range key."""
    if not isinstance(window, tuple) or len(window) != 2:
        raise TypeError(f"window={window!r}: a pair of offsets is needed, such as ('-2s', '0s')")
    if window == (None, None):
        raise ValueError("window=(None, None): one end at least is needed")
    low, high = (None if end is None else offset_of(f"window={window!r}", end, sides, keys) for end in window)
    if low is not None and high is not None and _ends_before(low, high, sides, keys):
        raise ValueError(f"window={window!r}: it ends before it begins; the earlier end comes first")
    return low, high


def _ends_before(low: Shift, high: Shift, sides: Sides, keys: tuple[str, str]) -> bool:
    """Whether no key is in the window, whatever the clocks."""
    if (low.number is None) != (high.number is None):
        # A number is one of days.
        low, high = low.duration(), high.duration()
    if low.number is not None or {sides.left.kind(keys[0]), sides.right.kind(keys[1])} != {"date"}:
        return low.least_and_most()[0] > high.least_and_most()[1]
    # Days of dates have 24 hours, and sums are rounded down to them.
    hours = {"days": 24, "weeks": 168}
    low, high = (
        Shift(None, tuple((count * hours.get(unit, 1), "hours" if unit in hours else unit) for count, unit in shift.parts))
        for shift in (low, high)
    )
    return low.least_and_most()[0] // _DAY > high.least_and_most()[1] // _DAY


def tolerance_of(tolerance: Any, sides: Sides, keys: tuple[str, str]) -> Shift:
    shift = offset_of(f"tolerance={tolerance!r}", tolerance, sides, keys)
    if shift.least_and_most()[1] < 0:
        raise ValueError(f"tolerance={tolerance!r}: it is negative")
    return shift


def offsets_of(offsets: Any, sides: Sides, keys: tuple[str, str]) -> dict[str, Shift]:
    """Offsets from the left row by the suffixes of their columns."""
    if offsets is None:
        return {"": Shift(0)}
    argument = f"offsets={offsets!r}"
    pairs: list[tuple[Any, Any]]
    if isinstance(offsets, Mapping):
        pairs = list(offsets.items())
    elif hasattr(offsets, "__getitem__") and not isinstance(offsets, str | bytes) and getattr(offsets, "ndim", 1) == 1:
        # Arrays of NumPy and Series are no Sequence.
        pairs = [(f"_{one if isinstance(one, str) else _parsed(argument, one).text()}", one) for one in offsets]
    else:
        pairs = [(None, None)]
    suffixes = [suffix for suffix, _ in pairs]
    if not all(isinstance(suffix, str) for suffix in suffixes):
        raise TypeError(f"{argument}: a list such as ['1s', '5s'] is needed, or a dict of suffixes and offsets")
    if not suffixes or "" in suffixes:
        raise ValueError(f"{argument}: one offset at least is needed, and no suffix may be empty")
    if len({*suffixes}) < len(suffixes):
        raise ValueError(f"{argument}: several offsets have the same suffix")
    return {suffix: offset_of(argument, one, sides, keys) for suffix, one in pairs}


def offset_of(argument: str, given: Any, sides: Sides, keys: tuple[str, str]) -> Shift:
    """An offset that is added to a range key. Errors begin with `argument`."""
    shift = _parsed(argument, given)
    # A number that is added to a date is one of days.
    durations = TIMES | {"interval"}
    fitting = durations if shift.number is None else NUMBERS | {"date"}
    for side, key in zip((sides.left, sides.right), keys):
        kind = side.kind(key)
        # The offset is added to the left key. The sum of Null and a duration is an interval in SQL.
        if shift.number == 0 or kind in fitting or (kind == "null" and (shift.number is not None or side is sides.right)):
            continue
        found = f"{argument}: {key!r} of {side.argument} is {side.type(key)}"
        if kind in durations:
            raise TypeError(f"{found}, and offset {given!r} is a number; a duration is needed, such as '5s' or '1d'")
        if kind in NUMBERS:
            raise TypeError(f"{found}, and offset {given!r} is a duration; a number is needed")
        raise TypeError(f"{found}, to which {given!r} cannot be added")
    return shift


def _parsed(argument: str, given: Any) -> Shift:
    if getattr(getattr(given, "dtype", None), "kind", None) == "m":
        return _timedelta64(argument, given)
    if isinstance(given, datetime.timedelta):
        microseconds = (given.days * 86_400 + given.seconds) * 1_000_000 + given.microseconds
        # pandas' Timedelta has them.
        nanoseconds = getattr(given, "nanoseconds", 0)
        parts = [(microseconds, "microseconds"), (nanoseconds, "nanoseconds")]
        return Shift(None, tuple(part for part in parts if part[0] or part[1] == "microseconds"))
    if isinstance(given, numbers.Real) and not isinstance(given, bool):
        # NumPy's become Python's, which are written as SQL's.
        number = int(given) if isinstance(given, numbers.Integral) else float(given)
        if not math.isfinite(number):
            raise ValueError(f"{argument}: offset {given!r}: a finite number is needed; None is an open end")
        return Shift(number)
    if not isinstance(given, str):
        raise TypeError(f"{argument}: offset {given!r}: a duration such as '-2s', a timedelta or a number is needed")
    duration = _DURATION.fullmatch(given.strip())
    if not duration:
        raise ValueError(f"{argument}: offset {given!r}: a duration such as '-2s', '1h30m', '5min', '5d' or '1mo' is needed")
    sign = -1 if duration[1] == "-" else 1
    counted = [(sign * int(count), *_UNITS[unit]) for count, unit in _DURATION_PART.findall(duration[2])]
    return Shift(None, tuple((count * each, unit) for count, unit, each in counted))


def _timedelta64(argument: str, given: Any) -> Shift:
    """A timedelta64 of NumPy."""
    found = _TIMEDELTA64.search(given.dtype.str)
    if found is None or found[2] not in _UNITS64 or given != given:
        raise ValueError(f"{argument}: offset {given!r}: a timedelta64 of a unit from nanoseconds to years is needed")
    unit, each = _UNITS64[found[2]]
    return Shift(None, ((int(given.astype("int64")) * int(found[1] or 1) * each, unit),))
