"""RangeIndex, compared with plain loops over NumPy."""

import datetime
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import datafusion_rmq as rmq
from datafusion_rmq import Error, RangeIndex

DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "M8[ns]", "M8[s]", "M8[D]", "m8[us]", ">i4", ">f8"]


def naive(values, left, right, choose):
    """The position of each range's extreme, -1 if it has none."""
    # Python's numbers are compared faster than NumPy's.
    values = (values.view(np.int64) if values.dtype.kind in "mM" else values).tolist()
    found = []
    for l, r in zip(left.tolist(), right.tolist()):
        l, r = max(l, 0), min(r, len(values) - 1)
        at = [i for i in range(l, r + 1) if values[i] == values[i]]
        found.append(choose(at, key=lambda i: values[i]) if at else -1)
    return np.array(found, np.int64)


def leftmost_max(at, key):
    return max(at, key=lambda i: (key(i), -i))


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes_of_each_type(dtype):
    seed = time.time_ns() if "RMQ_TEST_SEED" not in os.environ else int(os.environ["RMQ_TEST_SEED"])
    print(f"range index: RMQ_TEST_SEED={seed}")
    draw = np.random.default_rng(seed)
    values = draw.integers(0, 100, 3000).astype(np.dtype(dtype).newbyteorder("=") if dtype[0] == ">" else dtype).astype(dtype)
    if np.dtype(dtype).kind == "f":
        values[draw.integers(0, 3000, 300)] = np.nan
        values[draw.integers(0, 3000, 30)] = -np.nan
        values[:2] = [-0.0, np.inf]
    index = RangeIndex(values)
    left, right = draw.integers(-50, 3050, 500), draw.integers(-50, 3050, 500)
    left[:100] = right[:100] - draw.integers(0, 5, 100)
    plain = values.astype(np.dtype(dtype).newbyteorder("="))
    for method, position, choose in ((index.min, index.argmin, min), (index.max, index.argmax, leftmost_max)):
        expected = naive(plain, left, right, choose)
        # Equal values of -0.0 and 0.0 are ordered.
        assert (plain[position(left, right)] == plain[expected])[expected >= 0].all()
        assert ((position(left, right) == -1) == (expected == -1)).all()
        found = method(left, right, default=plain[0])
        assert found.dtype == plain.dtype
        assert (found == np.where(expected >= 0, plain[expected], plain[0])).all()
    assert len(index) == 3000 and index.index_bytes > 0


@pytest.mark.parametrize(
    ("values", "lowest"),
    [
        (pa.array([5, None, 3, 8]), 3),
        (pa.array([None, None, 7, 5, None, 3, 8])[3:], 3),
        (pa.chunked_array([[5, None], [], [3, 8]]), 3),
        (pl.Series([5, None, 3, 8]), 3),
        (pd.Series([5.0, None, 3.0, 8.0]), 3.0),
        ([5, 9, 3, 8], 3),
        (memoryview(np.array([5, 9, 3, 8])), 3),
        (np.array([5, 0, 9, 0, 3, 0, 8, 0])[::2], 3),
        (pa.array([datetime.date(2026, 1, 5), None, datetime.date(2026, 1, 3), datetime.date(2026, 1, 8)]), np.datetime64("2026-01-03")),
        (pl.Series([datetime.timedelta(5), None, datetime.timedelta(3), datetime.timedelta(8)]), np.timedelta64(3, "D")),
        (pa.array([datetime.time(5), None, datetime.time(3), datetime.time(8)]), np.timedelta64(3, "h")),
        # What is below a mask does not count.
        (np.ma.array([5, -9, 3, 8], mask=[0, 1, 0, 0]), 3),
        (np.ma.array([5, 9, 3, 8]), 3),
        (np.ma.array([5.0, -9.0, 3.0, 8.0], mask=[0, 1, 0, 0])[:4], 3.0),
        (np.ma.array([5, 0, -9, 0, 3, 0, 8, 0], ">i2", mask=[0, 1, 1, 1, 0, 1, 0, 1])[::2], 3),
        (np.ma.array(np.array([5, -9, 3, 8], "M8[s]"), mask=[0, 1, 0, 0]), np.datetime64(3, "s")),
        (np.array(["2026-01-05", "NaT", "2026-01-03", "2026-01-08"], "M8[D]"), np.datetime64("2026-01-03")),
        (np.array([5, "NaT", 3, 8], "m8[s]"), np.timedelta64(3, "s")),
        (pd.array([2**60 + 5, None, 2**60 + 3, 2**60 + 8], "Int64"), 2**60 + 3),
        (pd.array([5.5, None, 3.5, 8.5], "Float32"), 3.5),
        (pd.array([5, None, 3, 8], "int16[pyarrow]"), 3),
        (pd.DatetimeIndex(["2026-01-05", None, "2026-01-03", "2026-01-08"]), np.datetime64("2026-01-03")),
        (pd.Series([2**60 + 5, None, 2**60 + 3, 2**60 + 8], dtype="Int64"), 2**60 + 3),
    ],
    ids=lambda value: type(value).__module__ + "." + type(value).__name__,
)
def test_arrays_of_each_library(values, lowest):
    index = RangeIndex(values)
    assert index.min(0, 3) == lowest and index.argmin(0, 99) == 2
    assert index.argmax(0, 2) in (0, 1) and len(index) == 4
    assert index.argmin([1, 0], [1, 0]).tolist() in ([-1, 0], [1, 0])


def test_missing_values_of_masks():
    seed = time.time_ns() if "RMQ_TEST_SEED" not in os.environ else int(os.environ["RMQ_TEST_SEED"])
    print(f"masks: RMQ_TEST_SEED={seed}")
    draw = np.random.default_rng(seed)
    for dtype in ("i1", "i8", "u4", "f2", "f8", "M8[ns]", "m8[D]"):
        values, mask = draw.integers(0, 50, 500).astype(dtype), draw.random(500) < 0.4
        index = RangeIndex(np.ma.array(values, mask=mask))
        left = draw.integers(0, 500, 200)
        right = left + draw.integers(0, 6, 200)
        for position, least in ((index.argmin, True), (index.argmax, False)):
            expected = []
            for l, r in zip(left, right):
                seen = [(values[i] if least else -values[i].astype("i8"), i) for i in range(l, min(r, 499) + 1) if not mask[i]]
                expected.append(min(seen)[1] if seen else -1)
            assert position(left, right).tolist() == expected
        if values.dtype.kind in "iu":
            with pytest.raises(ValueError, match="has no value"):
                index.min(mask.argmax(), mask.argmax())
    assert RangeIndex(np.ma.masked_all(3, int)).argmin(0, 2) == -1
    assert len(RangeIndex(np.ma.array([], float))) == 0 and RangeIndex(np.ma.array([], float)).argmin(0, 5) == -1


def test_not_copied():
    values = np.arange(1000.0)
    references = sys.getrefcount(values)
    index = RangeIndex(values)
    assert index.min(5, 10) == 5.0
    # The index keeps the array's memory.
    assert sys.getrefcount(values) > references
    del index
    assert sys.getrefcount(values) == references


@pytest.mark.parametrize(
    "wrap",
    [
        lambda values: values,
        lambda values: memoryview(values),
        lambda values: pa.array(values),
        lambda values: pa.array(values).slice(0),
        lambda values: pl.Series(pa.array(values)),
        lambda values: pa.chunked_array([pa.array(values)]),
    ],
    ids=["NumPy", "buffer", "Arrow", "Arrow slice", "polars", "one chunk"],
)
def test_memory_is_shared(wrap):
    values = np.arange(1000.0)
    index = RangeIndex(wrap(values))
    # Nobody may do so. Here it shows whose memory is searched.
    values[7] = -1.0
    assert index.min(0, 999) == -1.0 and index.argmin(0, 999) == 7


def test_scalars_shapes_and_empty_arrays():
    index = RangeIndex(np.array([5, 3, 8]))
    assert index.min(0, 2) == 3 and np.ndim(index.min(0, 2)) == 0
    assert index.min([[0], [1]], [1, 2]).tolist() == [[3, 3], [3, 3]]
    assert index.min([], []).shape == (0,) and index.argmin(np.array([], int), []).dtype == np.int64
    assert index.min(np.uint64(0), np.uint64(2**64 - 1)) == 3
    for empty in (np.array([], float), pa.array([], pa.float64()), pl.Series([], dtype=pl.Float64)):
        nothing = RangeIndex(empty)
        assert len(nothing) == 0 and nothing.argmin(0, 5) == -1 and np.isnan(nothing.min(0, 5))
        assert nothing.first_at_least(0, 5, 0.0) == -1
    assert np.isnat(RangeIndex(np.array(["2026-01-01"], "M8[s]")).min(1, 0))


@pytest.mark.parametrize("dtype", ["i1", "i4", "i8", "u8", "f4", "f8"])
def test_crossings(dtype):
    seed = time.time_ns() if "RMQ_TEST_SEED" not in os.environ else int(os.environ["RMQ_TEST_SEED"])
    print(f"crossings: RMQ_TEST_SEED={seed}")
    draw = np.random.default_rng(seed)
    values = draw.integers(0, 50, 2000).astype(dtype)
    if dtype[0] == "f":
        values += np.asarray(draw.integers(0, 2, 2000) * 0.1).astype(dtype)
        values[::37] = np.nan
        values[:3] = [0.0, -0.0, 0.0]
    index = RangeIndex(values)
    left = draw.integers(-5, 2005, 300)
    right = left + draw.integers(-2, 60, 300)
    for x in (draw.integers(0, 50, 300), draw.integers(0, 500, 300) / 10, np.float32(0.1), 7, 0.0, -0.0):
        xs = np.broadcast_to(x, 300)
        for at_least in (False, True):
            for last in (False, True):
                method = getattr(index, f"{'last' if last else 'first'}_at_{'least' if at_least else 'most'}")
                expected = []
                for l, r, one in zip(left.tolist(), right.tolist(), xs.tolist()):
                    span = range(max(l, 0), min(r, 1999) + 1)
                    at = [i for i in span if (values[i].item() >= one if at_least else values[i].item() <= one)]
                    expected.append(-1 if not at else at[-1] if last else at[0])
                assert method(left, right, x).tolist() == expected


def present(values, left, right):
    """The values of each range that are not missing, in ascending order."""
    for l, r in zip(left.tolist(), right.tolist()):
        span = values[max(l, 0) : max(r + 1, 0)]
        yield np.sort(span[span == span])


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_statistics_of_each_type(dtype):
    seed = time.time_ns() if "RMQ_TEST_SEED" not in os.environ else int(os.environ["RMQ_TEST_SEED"])
    print(f"order statistics: RMQ_TEST_SEED={seed}")
    draw = np.random.default_rng(seed)
    values = draw.integers(0, 100, 3000).astype(np.dtype(dtype).newbyteorder("=") if dtype[0] == ">" else dtype).astype(dtype)
    kind = np.dtype(dtype).kind
    if kind == "f":
        values += (draw.integers(0, 4, 3000) / 4).astype(dtype)
        values[draw.integers(0, 3000, 300)] = np.nan
        values[draw.integers(0, 3000, 30)] = -np.nan
    elif kind in "mM":
        values[draw.integers(0, 3000, 300)] = "NaT"
    index = RangeIndex(values)
    plain = values.astype(np.dtype(dtype).newbyteorder("="))
    left, right = draw.integers(-50, 3050, 500), draw.integers(-50, 3050, 500)
    left[:100] = right[:100] - draw.integers(-1, 5, 100)
    assert index.count_distinct(left, right).tolist() == [len(np.unique(some)) for some in present(plain, left, right)]
    x = draw.integers(0, 100, 500).astype(plain.dtype)
    expected = [int((some < one).sum()) for some, one in zip(present(plain, left, right), x)]
    assert index.count_below(left, right, x).tolist() == expected
    if kind in "mM":
        with pytest.raises(TypeError, match="have no quantiles"):
            index.quantile(left, right, 0.5)
        return
    q = draw.choice([0.0, 0.25, 0.5, 1.0, 1 / 3, 0.99], 500)
    found = index.quantile(left, right, q)
    assert found.dtype == (plain.dtype if kind == "f" else np.float64)
    expected = [np.quantile(some.astype("f8"), one) if some.size else np.nan for some, one in zip(present(plain, left, right), q)]
    # A fraction is cut to 6 decimals, and the answer has the digits of its type.
    assert np.allclose(found, expected, rtol=1e-3 if dtype == "f2" else 1e-6, atol=1e-4, equal_nan=True)
    exact = np.isin(q, [0.0, 1.0]) & ~np.isnan(expected)
    assert exact.any() and (found == expected)[exact].all()
    assert (index.quantile(left, right, 0.5, default=-7)[np.isnan(index.quantile(left, right, 0.5))] == -7).all()


def test_order_statistics_are_those_of_sql():
    draw = np.random.default_rng(11)
    values = draw.normal(size=400)
    values[::9] = -0.0
    values[5::9] = 0.0
    frame = pd.DataFrame({"i": np.arange(400), "v": values, "n": draw.integers(-(2**62), 2**62, 400), "m": np.float32(values)})
    frame["h"] = pd.array(np.where(frame.i % 7 > 0, frame.n, 0), "Int64").astype("Int64")
    frame.loc[frame.i % 7 == 0, "h"] = pd.NA
    left = draw.integers(0, 400, 60)
    windows = pd.DataFrame({"w": np.arange(60), "l": left, "r": left + draw.integers(0, 50, 60)})
    con = rmq.connect()
    con.register("t", frame)
    con.register("windows", windows)
    for column in ("v", "n", "m", "h"):
        index = RangeIndex(frame[column])
        quantiles = {q: index.quantile(windows.l, windows.r, q) for q in (0.0, 0.1, 0.5, 0.77, 1.0)}
        aggregates = ", ".join(f"percentile_cont({column}, {q}) AS q{i}" for i, q in enumerate(quantiles))
        text = f"""SELECT {aggregates}, count(DISTINCT {column}) AS d, count(*) FILTER (WHERE {column} < 0) AS below
            FROM windows JOIN t ON i BETWEEN l AND r GROUP BY w, l, r ORDER BY w"""
        answers = con.sql(text).to_pandas()
        for i, found in enumerate(quantiles.values()):
            # The same digits, also of zeros.
            assert repr(found.astype("f8").tolist()) == repr(answers[f"q{i}"].astype("f8").tolist())
        assert index.count_distinct(windows.l, windows.r).tolist() == answers.d.tolist()
        assert index.count_below(windows.l, windows.r, 0).tolist() == answers.below.tolist()


def test_order_statistics_of_scalars_shapes_and_wrong_arguments():
    index = RangeIndex(np.array([5, 3, 8, 4]))
    assert index.quantile(0, 3, 0.5) == 4.5 and np.ndim(index.quantile(0, 3, 0.5)) == 0
    assert index.quantile([[0], [1]], [1, 2], 1).tolist() == [[5, 8], [3, 8]]
    assert index.count_below([0, 1], 3, [[4], [6]]).tolist() == [[1, 1], [3, 2]]
    assert index.count_below([], [], []).shape == (0,) and index.quantile([], [], 0.5).dtype == np.float64
    assert index.count_distinct(0, 2**40) == 4 and index.count_distinct(2, 1) == 0
    assert index.count_below(0, 3, 4.5) == 2
    zeros = RangeIndex(np.array([0.0, -0.0, -1.0]))
    assert zeros.count_below(0, 2, 0.0) == 1 and zeros.count_below(0, 2, -0.0) == 1 and zeros.count_distinct(0, 2) == 3
    infinite = RangeIndex(np.array([-np.inf, np.inf]))
    assert infinite.quantile(0, 1, 0) == -np.inf and infinite.quantile(0, 1, 1) == np.inf and np.isnan(infinite.quantile(0, 1, 0.5))
    nothing = RangeIndex(np.array([], float))
    assert np.isnan(nothing.quantile(0, 5, 0.5)) and nothing.count_below(0, 5, 1) == 0 and nothing.count_distinct(-3, 5) == 0
    days = RangeIndex(np.array(["2026-01-02", "NaT", "2026-01-05"], "M8[D]"))
    assert days.count_below(0, 2, datetime.datetime(2026, 1, 2, 12)) == 1 and days.count_distinct(0, 2) == 2
    for q in (-0.1, 1.5, np.nan, [0.5, 2]):
        with pytest.raises(ValueError, match="q=.* is not from 0 to 1"):
            index.quantile(0, 3, q)
    with pytest.raises(TypeError, match="q has the NumPy type <U1"):
        index.quantile(0, 3, "a")
    with pytest.raises(ValueError, match="x has NaN"):
        RangeIndex([1.0]).count_below(0, 0, np.nan)
    with pytest.raises(TypeError, match="left has the NumPy type float64"):
        index.count_distinct(0.5, 1)


def test_order_statistics_on_several_threads():
    draw = np.random.default_rng(12)
    values = draw.integers(0, 1000, 1 << 20)
    left = draw.integers(0, len(values), 300_001)
    right = left + draw.integers(0, 100_000, len(left))
    many, one = RangeIndex(values, threads=7), RangeIndex(values, threads=1)
    assert many.index_bytes == 0
    assert (many.quantile(left, right, 0.9) == one.quantile(left, right, 0.9)).all()
    # 1.33 bits for each of 10 bits.
    assert 1.6 * len(values) < many.index_bytes < 1.7 * len(values)
    assert (many.count_below(left, right, 500) == one.count_below(left, right, 500)).all()
    assert (many.count_distinct(left, right) == one.count_distinct(left, right)).all()
    for at in range(0, len(left), 30_011):
        some = values[left[at] : right[at] + 1]
        assert many.count_below(left[at], right[at], 500) == (some < 500).sum()
        assert many.count_distinct(left[at], right[at]) == len(np.unique(some))


def test_thresholds_are_exact():
    big = RangeIndex(np.array([2**53 + 2], np.int64).astype(float))
    assert big.first_at_most(0, 0, 2**53 + 1) == -1 and big.first_at_least(0, 0, 2**53 + 1) == 0
    assert RangeIndex(np.array([0.1], np.float32)).first_at_most(0, 0, 0.1) == -1
    assert RangeIndex(np.array([3])).first_at_most(0, 0, 2.5) == -1
    assert RangeIndex(np.array([3])).first_at_least(0, 0, 2.5) == 0
    for values, x in ((np.array([1], np.int8), 2**40), (np.array([1]), float("inf")), (np.array([1], np.uint64), -1)):
        with pytest.raises(ValueError, match="x=.* is beyond the bounds"):
            RangeIndex(values).first_at_most(0, 0, x)
    with pytest.raises(ValueError, match="x has NaN"):
        RangeIndex(np.array([1.0])).first_at_most(0, 0, float("nan"))
    days = RangeIndex(np.array(["2026-01-02", "2026-01-05"], "M8[D]"))
    assert days.first_at_least(0, 1, np.datetime64("2026-01-02T12:00")) == 1
    assert days.last_at_most(0, 1, datetime.datetime(2026, 1, 2, 12)) == 0
    assert days.first_at_least(0, 1, datetime.date(2026, 1, 2)) == 0
    with pytest.raises(TypeError, match="x has the NumPy type"):
        days.first_at_least(0, 1, 5)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.array([True]), TypeError, "NumPy type bool"),
        (np.array(["a"]), TypeError, "NumPy type <U1"),
        (np.array([1j]), TypeError, "complex128"),
        (np.zeros((2, 2)), ValueError, "2 dimensions"),
        (np.ma.array(["a"], mask=[1]), TypeError, "NumPy type <U1"),
        (np.ma.array([[1, 2]], mask=[[0, 1]]), ValueError, "2 dimensions"),
        (pd.array([True, None], "boolean"), TypeError, "bool"),
        (np.array([1], object), TypeError, "object"),
        (pa.array(["a"]), TypeError, "Utf8"),
        (pa.array([[1]]), TypeError, "List"),
        (pl.DataFrame({"a": [1]}), TypeError, "Struct"),
        (5, ValueError, "0 dimensions"),
    ],
    ids=repr,
)
def test_what_cannot_be_indexed(values, error, message):
    with pytest.raises(error, match=message):
        RangeIndex(values)


def test_wrong_arguments():
    index = RangeIndex(np.array([5, 3, 8]))
    with pytest.raises(TypeError, match="left has the NumPy type float64"):
        index.min(0.5, 1)
    with pytest.raises(ValueError, match="broadcast"):
        index.min([0, 1], [1, 2, 3])
    with pytest.raises(ValueError, match="the range 2 to 1 has no value; pass default="):
        index.min([0, 2], [1, 1])
    with pytest.raises(ValueError, match="device='tpu'"):
        RangeIndex([1], device="tpu")
    with pytest.raises(ValueError, match="threads=0"):
        RangeIndex([1], threads=0)


def test_cuda_answers_or_says_why_not():
    values = np.random.default_rng(9).random(5000).astype(np.float32)
    values[::7] = np.nan
    left = np.arange(-10, 4000)
    right = left + left % 777
    plain = RangeIndex(values)
    try:
        index = RangeIndex(values, device="cuda")
    except Error as error:
        assert "RMQ_TEST_CUDA" not in os.environ, error
        assert "cuda" in str(error).lower()
        return
    assert (index.argmin(left, right) == plain.argmin(left, right)).all()
    assert (index.max(left, right) == plain.max(left, right))[plain.argmax(left, right) >= 0].all()
    assert (index.last_at_most(left, right, 0.05) == plain.last_at_most(left, right, 0.05)).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_an_index_of_cuda_or_cpu_after_a_fork():
    """On the CPU it works. On a GPU it would not: its memory is that of the process that made the index."""
    code = """
        import os, sys
        import numpy as np
        import datafusion_rmq as rmq
        try:
            index = rmq.RangeIndex(np.array([5, 3, 8]), device=sys.argv[1])
        except rmq.Error as error:
            print("cuda" in str(error).lower())
            os._exit(0)
        index.min(0, 2)
        if os.fork() == 0:
            for use in (lambda: index.min(0, 2), lambda: index.argmax(0, 2), lambda: index.first_at_most(0, 2, 3)):
                try:
                    print(use(), flush=True)
                except RuntimeError as error:
                    print("forked" in str(error) and "'spawn'" in str(error), flush=True)
            os._exit(0)
        os.wait()
        print(index.max(0, 2))
        """

    def output(device):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), device], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert output("cpu") == ["3", "2", "1", "8"]
    expected = [["True", "True", "True", "8"]] if "RMQ_TEST_CUDA" in os.environ else [["True", "True", "True", "8"], ["True"]]
    assert output("cuda") in expected


def test_large_batches_on_several_threads():
    draw = np.random.default_rng(7)
    values = draw.random(1 << 20)
    left = draw.integers(0, len(values), 300_001)
    right = left + draw.integers(0, 1000, len(left))
    many, one = RangeIndex(values, threads=7), RangeIndex(values, threads=1)
    assert (many.argmin(left, right) == one.argmin(left, right)).all()
    assert (many.max(left, right) == one.max(left, right)).all()
    for at in range(0, len(left), 30_011):
        assert many.min(left[at], right[at]) == values[left[at] : right[at] + 1].min()


def test_threads_share_an_index():
    values = np.random.default_rng(8).random(100_000)
    index = RangeIndex(values)
    left = np.arange(0, 90_000)
    expected = RangeIndex(values, threads=1).min(left, left + 100)
    found = [None] * 20

    def ask(i):
        found[i] = (index.min(left, left + 100) == expected).all()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found)


def test_numpy_is_not_needed_to_import():
    code = "import sys; sys.modules['numpy'] = None; import datafusion_rmq as r; print(r.connect().sql('SELECT 1').fetchall())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[(1,)]\n"
