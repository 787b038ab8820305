"""Range minima and maxima, quantiles and counts of one array, without SQL."""

import os
from typing import TYPE_CHECKING, Any

from datafusion_rmq import _native

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["RangeIndex"]

_UNITS = {"Second": "s", "Millisecond": "ms", "Microsecond": "us", "Nanosecond": "ns", "s": "s", "ms": "ms", "µs": "us", "ns": "ns"}


class RangeIndex:
    """The minima and maxima, quantiles and counts of ranges of an array, millions at a time.

    `values` is a NumPy array, an Arrow array, a Series of polars or pandas, or anything else with the buffer protocol or
    an Arrow export: integers, floats, dates, times and durations. It is not copied, so it must not change afterwards,
    except that: integers of 8 and 16 bits and half floats become wider; several chunks become one; NumPy arrays that
    are strided or in the other byte order are copied; and of values some of which are missing the index has its own
    copy.

    Missing are NULL, NaN, NaT, and what a mask of `numpy.ma` hides. Times with a zone are answered in UTC. Of zeros, -0.0 is
    less than 0.0, as in SQL's `range_min`; thresholds compare them as equal.

    Ranges are `left[i]` to `right[i]`, counted from 0, both included, and clipped to the array. Bounds are integers or
    arrays of them. Missing values are skipped, as by `numpy.nanmin`. Answers are NumPy arrays, or scalars where both bounds
    are.

    With `device="cuda"` an NVIDIA GPU has the index; without one that is an error. Quantiles and counts are the CPU's on
    any device. `threads` is the most threads that build and answer on the CPU, by default all cores.

    >>> import numpy as np
    >>> index = RangeIndex(np.array([10.2, 9.8, np.nan, 10.6, 9.7]))
    >>> index.min([0, 0, 3], [1, 99, 3])
    array([ 9.8,  9.7, 10.6])
    >>> index.argmin([0, 0, 2], [1, 99, 2])
    array([ 1,  4, -1])
    >>> index.max(0, 2)
    np.float64(10.2)
    >>> index.first_at_most(0, 4, 9.75)
    np.int64(4)
    >>> index.quantile(0, 4, [0.5, 1])
    array([10. , 10.6])
    """

    def __init__(self, values: Any, *, device: str = "cpu", threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads}: at least 1 is needed")
        np = _numpy()
        buffer: Any = values
        dtype: Any = None
        missing: Any = None
        if isinstance(values, np.ndarray) or not _exports_arrow(values):
            buffer, missing, dtype = _buffer(np, values)
        empty = isinstance(buffer, np.ndarray) and len(buffer) == 0
        if empty:
            # An empty buffer has no address. Of this one, every range is made empty.
            buffer, missing = np.zeros(1, buffer.dtype), None
        self._index = _native.RangeIndex(buffer, missing, device, threads or os.cpu_count() or 1)
        self._length = 0 if empty else len(self._index)
        if dtype is None:
            dtype = _dtype_of(np, self._index.arrow_type, self._index.dtype)
        self._dtype: Any = dtype

    def __len__(self) -> int:
        return self._length

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The NumPy type of the values.

        >>> RangeIndex([5, 3, 8]).dtype
        dtype('int64')
        """
        return self._dtype  # type: ignore[no-any-return] # NumPy is imported when needed.

    @property
    def index_bytes(self) -> int:
        """Bytes of what was built so far, besides the array itself. What answers minima, maxima, quantiles and numbers of
        distinct values is built when first needed.

        >>> index = RangeIndex([5, 3, 8])
        >>> index.index_bytes
        0
        >>> lowest = index.min(0, 2)
        >>> index.index_bytes > 0
        True
        """
        return self._index.index_bytes

    def min(self, left: "npt.ArrayLike", right: "npt.ArrayLike", *, default: Any = None) -> "npt.NDArray[Any]":
        """The smallest value of each range.

        A range without one gets `default`: where none is given, NaN or NaT for types that have it, and for integers an
        error.

        >>> RangeIndex([5, 3, 8]).min([0, 2], [1, 1], default=-1)
        array([ 3, -1])
        >>> RangeIndex([5, 3, 8]).min(2, 1)
        Traceback (most recent call last):
        ValueError: the range 2 to 1 has no value; pass default=
        """
        return self._values(False, left, right, default)

    def max(self, left: "npt.ArrayLike", right: "npt.ArrayLike", *, default: Any = None) -> "npt.NDArray[Any]":
        """The largest value of each range. For a range without one see `min`.

        >>> RangeIndex([5, 3, 8]).max([0, 1], [1, 2])
        array([5, 8])
        """
        return self._values(True, left, right, default)

    def argmin(self, left: "npt.ArrayLike", right: "npt.ArrayLike") -> "npt.NDArray[np.int64]":
        """The position of the smallest value of each range, the leftmost of several; -1 for a range without a value.

        >>> RangeIndex([5, 3, 8, 3]).argmin([0, 2, 7], [3, 3, 9])
        array([ 1,  3, -1])
        """
        return self._positions(False, left, right)

    def argmax(self, left: "npt.ArrayLike", right: "npt.ArrayLike") -> "npt.NDArray[np.int64]":
        """The position of the largest value of each range, the leftmost of several; -1 for a range without a value.

        >>> RangeIndex([5, 3, 8, 3]).argmax([0, 3], [1, 3])
        array([0, 3])
        """
        return self._positions(True, left, right)

    def first_at_most(self, left: "npt.ArrayLike", right: "npt.ArrayLike", x: "npt.ArrayLike") -> "npt.NDArray[np.int64]":
        """The first position of each range whose value is at most `x`, or -1.

        A threshold is compared exactly, whatever its type, and one that is NaN, NaT or beyond the type's bounds is an error.

        >>> RangeIndex([10.2, 10.4, 9.9, 10.1, 9.7]).first_at_most([0, 3], 4, 10.0)
        array([2, 4])
        """
        return self._crossings(False, False, left, right, x)

    def last_at_most(self, left: "npt.ArrayLike", right: "npt.ArrayLike", x: "npt.ArrayLike") -> "npt.NDArray[np.int64]":
        """The last position of each range whose value is at most `x`, or -1.

        >>> RangeIndex([10.2, 10.4, 9.9, 10.1, 9.7]).last_at_most(0, [3, 4], 10.0)
        array([2, 4])
        """
        return self._crossings(False, True, left, right, x)

    def first_at_least(self, left: "npt.ArrayLike", right: "npt.ArrayLike", x: "npt.ArrayLike") -> "npt.NDArray[np.int64]":
        """The first position of each range whose value is at least `x`, or -1.

        >>> RangeIndex([10.2, 10.4, 9.9, 10.1, 9.7]).first_at_least([0, 1, 2], 4, 10.3)
        array([ 1,  1, -1])
        """
        return self._crossings(True, False, left, right, x)

    def last_at_least(self, left: "npt.ArrayLike", right: "npt.ArrayLike", x: "npt.ArrayLike") -> "npt.NDArray[np.int64]":
        """The last position of each range whose value is at least `x`, or -1.

        >>> RangeIndex([10.2, 10.4, 9.9, 10.1, 9.7]).last_at_least(0, 4, [10.0, 10.3])
        array([3, 1])
        """
        return self._crossings(True, True, left, right, x)

    def quantile(self, left: "npt.ArrayLike", right: "npt.ArrayLike", q: "npt.ArrayLike", *, default: Any = None) -> "npt.NDArray[np.floating[Any]]":
        """The quantile of each range, between two values by linear interpolation: 0.5 is the median.

        As `percentile_cont` in SQL: the values of a range, n of them, are numbered from 0 in ascending order, and the quantile
        is at `q * (n - 1)`. Its fraction is cut to 6 decimals. Of floats answers have their type, of integers they are
        float64. A range without a value gets `default`, by default NaN.

        The first call, also that of `count_below`, builds an index, in some 0.15 s for a million values on one thread, and with
        four times the array's memory meanwhile. The index takes 1.33 bits for each value and each bit of the number of distinct
        values, and these values once more: 4 bytes a value for ten million float64 values, a million of them distinct. Ranges of
        any length take about the same time.

        >>> index = RangeIndex([5, 3, 8, 4])
        >>> index.quantile([0, 0, 2], [3, 2, 1], 0.5)
        array([4.5, 5. , nan])
        >>> index.quantile(0, 3, [0, 0.25, 1])
        array([3.  , 3.75, 8.  ])
        """
        np = _numpy()
        if self._dtype.kind in "mM":
            raise TypeError(f"{self._dtype} values have no quantiles, which are between two of them; index them as integers: values.view('i8')")
        shape, (lefts, rights, fractions) = self._bounds(left, right, _fractions(np, q))
        at = fractions * np.maximum(self._index.counts(lefts, rights) - 1, 0)
        lower = np.floor(at)
        below, missing = self._nth_smallest(lefts, rights, lower)
        above, _ = self._nth_smallest(lefts, rights, np.ceil(at))
        # The same digits as percentile_cont's.
        weight = np.trunc((at - lower) * 1e6) / 1e6
        with np.errstate(invalid="ignore", over="ignore"):
            quantiles = np.where(at == lower, below, below + (above - below) * weight)
            quantiles = quantiles.astype(self._dtype if self._dtype.kind == "f" else np.float64)
        if missing is not None:
            quantiles[missing] = np.nan if default is None else default
        answers: "npt.NDArray[Any]" = quantiles.reshape(shape)[()]
        return answers

    def count_below(self, left: "npt.ArrayLike", right: "npt.ArrayLike", x: "npt.ArrayLike") -> "npt.NDArray[np.int64]":
        """How many values of each range are below `x`, as `count(*) FILTER (WHERE v < x)` in SQL.

        Thresholds are those of `first_at_least`: compared exactly, and -0.0 is not below 0.0. The index is that of `quantile`.

        >>> RangeIndex([10.2, 10.4, 9.9, 10.1, 9.7]).count_below([0, 3, 4], [4, 3, 2], 10.15)
        array([3, 1, 0])
        """
        np = _numpy()
        # Below a threshold is what is not at least that.
        shape, (lefts, rights, thresholds) = self._bounds(left, right, self._thresholds(np, x, True))
        answers: "npt.NDArray[Any]" = self._index.counts_below(lefts, rights, _bits(thresholds)).reshape(shape)[()]
        return answers

    def count_distinct(self, left: "npt.ArrayLike", right: "npt.ArrayLike") -> "npt.NDArray[np.int64]":
        """How many distinct values each range has, as `count(DISTINCT v)` in SQL: missing values are not counted, and -0.0
        and 0.0 are two. (SQL counts NaN as a value, which is missing here.)

        The first call builds an index, in about the time and memory of that of `quantile`. It takes 1.33 bits for each value and
        each bit of their number: 4 bytes a value for ten million.

        >>> RangeIndex([5, 3, 5, 5]).count_distinct([0, 2, 3], [3, 3, 1])
        array([2, 1, 0])
        """
        shape, (lefts, rights) = self._bounds(left, right)
        answers: "npt.NDArray[np.int64]" = self._index.counts_distinct(lefts, rights).reshape(shape)[()]
        return answers

    def __reduce__(self) -> Any:
        raise TypeError("a RangeIndex does not pickle, as it uses the memory of its array; pickle the array, and index it again")

    def __repr__(self) -> str:
        return f"<datafusion_rmq.RangeIndex of {len(self)} {self.dtype} values>"

    def _bounds(self, *arrays: Any) -> Any:
        """Bounds as int64 arrays of one shape, then other arrays of that shape."""
        np = _numpy()
        left, right, *others = arrays
        bounds = [_positions_of(np, "left", left), _positions_of(np, "right", right)]
        shaped = list(np.broadcast_arrays(*bounds, *others))
        if self._length == 0:
            shaped[1] = np.full(shaped[1].shape, -1)
        return shaped[0].shape, [np.ascontiguousarray(array).reshape(-1) for array in shaped]

    def _values(self, largest: bool, left: Any, right: Any, default: Any) -> "npt.NDArray[Any]":
        np = _numpy()
        shape, (left, right) = self._bounds(left, right)
        bits, missing = self._index.values(largest, left, right)
        values = bits.view(self._index.dtype)
        if values.dtype != self._dtype:
            # Of the same size if it is a time, narrower if it was widened for the index.
            same = values.dtype.itemsize == self._dtype.itemsize
            values = values.view(self._dtype) if same else values.astype(self._dtype)
        if missing is not None:
            if default is None:
                if self._dtype.kind not in "fmM":
                    at = int(missing.argmax())
                    raise ValueError(f"the range {left[at]} to {right[at]} has no value; pass default=")
                default = np.nan if self._dtype.kind == "f" else np.array("NaT", self._dtype)
            values[missing] = default
        # A scalar where both bounds are.
        answers: "npt.NDArray[Any]" = values.reshape(shape)[()]
        return answers

    def _positions(self, largest: bool, left: Any, right: Any) -> "npt.NDArray[np.int64]":
        shape, (left, right) = self._bounds(left, right)
        answers: "npt.NDArray[np.int64]" = self._index.positions(largest, left, right).reshape(shape)[()]
        return answers

    def _crossings(self, at_least: bool, last: bool, left: Any, right: Any, x: Any) -> "npt.NDArray[np.int64]":
        np = _numpy()
        x = self._thresholds(np, x, at_least)
        shape, (left, right, bits) = self._bounds(left, right, x)
        answers: "npt.NDArray[Any]" = self._index.crossings(at_least, last, left, right, _bits(bits)).reshape(shape)[()]
        return answers

    def _thresholds(self, np: Any, x: Any, at_least: bool) -> Any:
        """Thresholds as values of the indexed type."""
        x = _unmasked(np, "x", x)
        if self._dtype.kind in "mM" and x.dtype.kind in "OU":
            # Python's dates and times, and texts.
            x = x.astype(f"{self._dtype.kind}8")
        return _threshold(np, x, at_least, self._dtype, np.dtype(self._index.dtype))

    def _nth_smallest(self, left: Any, right: Any, smaller: Any) -> Any:
        """The value of each range with this many smaller ones, as float64, and which ranges have none, if any."""
        bits, missing = self._index.nth_smallest(left, right, smaller.astype("i8"))
        return bits.view(self._index.dtype).astype("f8"), missing


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError("RangeIndex needs numpy: pip install numpy") from error
    return numpy


def _exports_arrow(values: Any) -> bool:
    return hasattr(type(values), "__arrow_c_array__") or hasattr(type(values), "__arrow_c_stream__")


def _buffer(np: Any, values: Any) -> Any:
    """A contiguous array of the machine's numbers for what is no Arrow array, which of them are missing, and the type that
    answers have."""
    missing = None
    nullable = getattr(getattr(values, "dtype", None), "numpy_dtype", None)
    if isinstance(values, np.ma.MaskedArray):
        missing, values = np.ma.getmaskarray(values), values.data
    elif nullable is not None:
        # An array of pandas that has values and a mask; as NumPy's, integers would become floats.
        missing, values = np.asarray(values.isna()), values.to_numpy(nullable, na_value=0)
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"values has {array.ndim} dimensions where 1 is needed")
    if array.dtype.kind not in "iufmM":
        raise TypeError(f"values of the NumPy type {array.dtype} cannot be indexed; integers, floats, dates and durations can")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise TypeError(f"values of the NumPy type {array.dtype} cannot be indexed; pass float64")
    dtype = array.dtype.newbyteorder("=")
    array = np.require(array, dtype, ["C", "A"])
    if dtype.kind in "mM":
        none = np.isnat(array)
        missing = none if missing is None else missing | none
        array = array.view(np.int64)
    elif dtype == np.float16:
        array = array.astype(np.float32)
    return array, np.ascontiguousarray(missing) if missing is not None and missing.any() else None, dtype


def _dtype_of(np: Any, arrow_type: str, indexed: str) -> Any:
    """The NumPy type of the answers for values of an Arrow type."""
    narrow = {"Int8": "int8", "Int16": "int16", "UInt8": "uint8", "UInt16": "uint16", "Float16": "float16"}
    if arrow_type in narrow:
        return np.dtype(narrow[arrow_type])
    kind, _, rest = arrow_type.partition("(")
    unit = _UNITS.get(rest.split(",")[0].rstrip(")"))
    if kind == "Timestamp":
        return np.dtype(f"M8[{unit}]")
    if kind in ("Duration", "Time64"):
        return np.dtype(f"m8[{unit}]")
    if kind == "Time32":
        return np.dtype(f"m8[{unit}]")
    if kind == "Date32":
        return np.dtype("M8[D]")
    if kind == "Date64":
        return np.dtype("M8[ms]")
    return np.dtype(indexed)


def _unmasked(np: Any, name: str, values: Any) -> Any:
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise ValueError(f"{name} has masked values, which mean nothing here; leave them out, or fill them by {name}.filled(…)")
    return np.asarray(values)


def _positions_of(np: Any, name: str, bounds: Any) -> Any:
    array = _unmasked(np, name, bounds)
    if array.size == 0 and array.dtype.kind == "f":
        # numpy.asarray([]) is of floats.
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has the NumPy type {array.dtype} where positions, which are integers, are needed")
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(np.iinfo(np.int64).max))
    return array.astype(np.int64, copy=False)


def _bits(values: Any) -> Any:
    return values.view(f"u{values.dtype.itemsize}")


def _fractions(np: Any, q: Any) -> Any:
    array = _unmasked(np, "q", q)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"q has the NumPy type {array.dtype} where a number from 0 to 1 is needed")
    array = array.astype(np.float64)
    outside = array[~((array >= 0) & (array <= 1))]
    if outside.size:
        raise ValueError(f"q={outside[0]} is not from 0 to 1")
    return array


def _threshold(np: Any, x: Any, at_least: bool, dtype: Any, indexed: Any) -> Any:
    """Thresholds as values of the indexed type that the same values of it meet."""
    if dtype.kind in "mM":
        if x.dtype.kind != dtype.kind:
            raise TypeError(f"x has the NumPy type {x.dtype} where {dtype} values are compared")
        if np.isnat(x).any():
            raise ValueError("x has NaT")
        return _time_threshold(np, x, at_least, dtype).astype(indexed)
    if x.dtype.kind not in "iuf":
        raise TypeError(f"x has the NumPy type {x.dtype} where a number is needed to compare with {dtype} values")
    if x.dtype.kind == "f" and np.isnan(x).any():
        raise ValueError("x has NaN")
    if indexed.kind == "f":
        return _float_threshold(np, x, at_least, indexed)
    if x.dtype.kind == "f":
        x = np.ceil(x) if at_least else np.floor(x)
    bounds = np.iinfo(indexed)
    # Compared as Python's integers: NumPy would round large ones.
    outside = [value for value in (x.min(initial=0), x.max(initial=0)) if not _fits(value, bounds)]
    if outside:
        raise ValueError(f"x={outside[0]} is beyond the bounds of {indexed}")
    return x.astype(indexed)


def _fits(value: Any, bounds: Any) -> bool:
    return abs(value) != float("inf") and bool(bounds.min <= int(value) <= bounds.max)


def _float_threshold(np: Any, x: Any, at_least: bool, indexed: Any) -> Any:
    with np.errstate(over="ignore"):
        near = x.astype(indexed)
    if x.dtype.kind == "f" or _fits_double(np, x):
        wide = np.promote_types(np.promote_types(x.dtype, indexed), np.float64)
        exact, rounded = x.astype(wide), near.astype(wide)
    else:
        # Python's integers and floats compare exactly.
        exact, rounded = x.astype(object), near.astype(object)
    beyond = ((rounded < exact) if at_least else (rounded > exact)).astype(bool)
    near = np.where(beyond, np.nextafter(near, indexed.type(np.inf if at_least else -np.inf)), near)
    # The index has -0.0 below 0.0.
    return np.where(near == 0, indexed.type(-0.0 if at_least else 0.0), near).astype(indexed)


def _fits_double(np: Any, x: Any) -> bool:
    return bool(x.size == 0 or (int(x.max()) <= 1 << 53 and int(x.min()) >= -(1 << 53)))


def _time_threshold(np: Any, x: Any, at_least: bool, dtype: Any) -> Any:
    near = x.astype(dtype)
    if np.promote_types(x.dtype, dtype) == dtype:
        if (near.astype(x.dtype) != x).any():
            raise ValueError(f"x is beyond the bounds of {dtype}")
    elif at_least:
        near = np.where(near < x, near + 1, near)
    else:
        near = np.where(near > x, near - 1, near)
    return near.astype(np.int64)
