"""Joins of keys at the ends of their types, of times of day, in time zones, and of NaN, compared with plain loops."""

import datetime
import os
import random
import time
import zoneinfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import datafusion_rmq as rmq

DAY = 86_400_000_000
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def drawn(name):
    seed = int(os.environ.get("RMQ_TEST_SEED", time.time_ns()))
    print(f"{name}: RMQ_TEST_SEED={seed}")
    return random.Random(seed)


def met(operator, a, b):
    return {">=": a >= b, ">": a > b, "<=": a <= b, "<": a < b}[operator]


# Offsets that have no literal in SQL.
FAR = [1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200]

# The type of the keys, their ends, and the offset of a number of their units.
KEYS = {
    **{f"int{bits}": (pa.type_for_alias(f"int{bits}"), -(1 << bits - 1), (1 << bits - 1) - 1, int) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (pa.type_for_alias(f"uint{bits}"), 0, (1 << bits) - 1, int) for bits in (8, 16, 32, 64)},
    "time64[us]": (pa.time64("us"), 0, DAY - 1, lambda n: np.timedelta64(n, "us")),
    "time32[ms]": (pa.time32("ms"), 0, DAY // 1000 - 1, lambda n: np.timedelta64(n, "ms")),
    "timestamp[ns]": (pa.timestamp("ns"), -(1 << 63), (1 << 63) - 1, lambda n: np.timedelta64(n, "ns")),
    "timestamp[us]": (pa.timestamp("us"), -(1 << 63), (1 << 63) - 1, lambda n: np.timedelta64(n, "us")),
    "timestamp[s, zone]": (pa.timestamp("s", "Europe/Berlin"), -(1 << 40), 1 << 40, lambda n: np.timedelta64(n, "s")),
    "duration[ns]": (pa.duration("ns"), -(1 << 63), (1 << 63) - 1, lambda n: np.timedelta64(n, "ns")),
    "date32": (pa.date32(), -(1 << 31), (1 << 31) - 1, lambda n: np.timedelta64(n, "D")),
}


def frame(draw, kind, size):
    arrow, least, greatest, _ = KEYS[kind]

    def key():
        middle = (least + greatest) // 2
        at = draw.choice([least + draw.randrange(4), greatest - draw.randrange(4), middle + draw.randrange(-60, 60), middle])
        return None if draw.random() < 0.1 else min(max(at, least), greatest)

    keys = [key() for _ in range(size)]
    stored = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[arrow.bit_width]
    array = pa.array(keys, arrow if pa.types.is_integer(arrow) else stored)
    if array.type != arrow:
        array = array.view(arrow)
    return pa.table({"id": pa.array(range(size), pa.int64()), "k": array}), keys


@pytest.mark.parametrize("kind", KEYS)
def test_windows_at_the_ends_of_types(kind):
    draw = drawn(kind)
    con = rmq.connect(target_partitions=2)
    for _ in range(8):
        left, probes = frame(draw, kind, draw.choice([1, 12]))
        right, searched = frame(draw, kind, draw.choice([0, 1, 30]))
        lengths = [draw.randrange(70), draw.randrange(1 << 10), *(FAR if "int" in kind else [])]
        ends = sorted(draw.choice([-1, 1]) * draw.choice(lengths) for _ in "ab")
        low, high = (None if draw.random() < 0.15 else end for end in ends)
        if low is None and high is None:
            low = 0
        closed = draw.choice(["both", "left", "right", "none"])
        operators = {"both": (">=", "<="), "left": (">=", "<"), "right": (">", "<="), "none": (">", "<")}[closed]
        offset = KEYS[kind][3]
        window = tuple(None if end is None else offset(end) for end in (low, high))
        joined = rmq.window_join(left, right, on="k", window=window, closed=closed, aggs={"n": "count(*)"}, connection=con)
        found = dict(zip(joined.to_arrow()["id"].to_pylist(), joined.to_arrow()["n"].to_pylist()))

        def within(key, at):
            after = low is None or met(operators[0], key, at + low)
            return after and (high is None or met(operators[1], key, at + high))

        expected = {
            i: 0 if at is None else sum(key is not None and within(key, at) for key in searched) for i, at in enumerate(probes)
        }
        assert found == expected, (window, closed, probes, searched)


@pytest.mark.parametrize("kind", KEYS)
def test_asof_joins_at_the_ends_of_types(kind):
    draw = drawn(kind)
    con = rmq.connect(target_partitions=2)
    for _ in range(8):
        left, probes = frame(draw, kind, draw.choice([1, 12]))
        right, searched = frame(draw, kind, draw.choice([0, 1, 30]))
        strict, tolerance = draw.random() < 0.3, draw.choice([None, 0, 5, 1000, *(FAR if "int" in kind else [])])
        for direction in ("backward", "forward", "nearest"):
            joined = rmq.asof_join(
                left,
                right.rename_columns(["r", "k2"]),
                on=("k", "k2"),
                direction=direction,
                allow_exact_matches=not strict,
                tolerance=None if tolerance is None else KEYS[kind][3](tolerance),
                connection=con,
            ).to_arrow()
            found = dict(zip(joined["id"].to_pylist(), joined["r"].to_pylist()))
            assert len(found) == len(probes)
            for i, at in enumerate(probes):
                ahead = {"backward": (-1, 0), "forward": (0, 1), "nearest": (-1, 0, 1)}[direction]
                near = [(abs(key - at), key) for key in searched if key is not None and at is not None and not (strict and key == at)]
                near = [one for one in near if (one[1] > at) - (one[1] < at) in ahead]
                near = [one for one in near if tolerance is None or one[0] <= tolerance]
                key = None if found[i] is None else searched[found[i]]
                assert key == (min(near)[1] if near else None), (direction, strict, tolerance, at, searched)


def test_times_of_day_do_not_pass_midnight():
    left = pl.DataFrame({"t": [datetime.time(0, 30), datetime.time(23, 50)]})
    right = pl.DataFrame({"t": [datetime.time(0, 10), datetime.time(23, 40)]})
    found = rmq.window_join(left, right, on="t", window=("-1h", "1h"), aggs={"n": "count(*)"})
    assert dict(found.fetchall()) == {datetime.time(0, 30): 1, datetime.time(23, 50): 1}
    found = rmq.asof_join(left, right.with_columns(v=pl.col("t")), on="t", tolerance="1h")
    assert dict(found.fetchall()) == {datetime.time(0, 30): datetime.time(0, 10), datetime.time(23, 50): datetime.time(23, 40)}


def test_times_of_day_of_two_units():
    seconds = [5, 3600, 3605, 86399]
    for units in (("us", "ns"), ("ns", "us"), ("s", "ns"), ("ms", "s")):
        left, right = (
            pa.table({"t": pa.array([s * per for s in seconds], pa.int32() if unit in ("s", "ms") else pa.int64()).view(
                pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit))})
            for unit, per in ((unit, {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]) for unit in units)
        )
        right = right.append_column("v", pa.array(seconds))
        for direction, strict, expected in (
            ("backward", False, seconds),
            ("backward", True, [None, *seconds[:-1]]),
            ("forward", True, [*seconds[1:], None]),
            ("nearest", False, seconds),
            ("nearest", True, [3600, 3605, 3600, 3605]),
        ):
            found = rmq.asof_join(left, right, on="t", direction=direction, allow_exact_matches=not strict)
            assert found.to_arrow()["v"].to_pylist() == expected, (units, direction, strict)
        found = rmq.window_join(left, right, on="t", window=(0, "5s"), aggs={"n": "count(*)"})
        assert found.to_arrow()["n"].to_pylist() == [1, 2, 1, 1], units
        found = rmq.overlap_join(left.append_column("u", left["t"]), right, left_on="t", right_on=("t", "t"), closed=True)
        assert found.to_arrow()["v"].to_pylist() == seconds, units
        with pytest.raises(TypeError, match="by: 't' of left is Time.*'t' of right is Time.*two units"):
            rmq.asof_join(left, right, on="v", by="t") if "v" in left.column_names else rmq.asof_join(
                left.append_column("v", right["v"]), right, on="v", by="t"
            )


def test_dates_and_timestamps_at_their_ends():
    dates = pl.DataFrame({"t": [datetime.date(9999, 12, 31), datetime.date(2026, 1, 3), datetime.date(1, 1, 1)]})
    for unit in ("ns", "us", "ms"):
        times = pl.DataFrame({"t": pl.Series([datetime.datetime(2026, 1, 3, 12)]).dt.cast_time_unit(unit), "v": [3]})
        found = rmq.asof_join(dates, times, on="t").fetchall()
        assert [v for _, v in found] == [3, None, None]
        found = rmq.asof_join(dates, times, on="t", tolerance="5d", direction="forward").fetchall()
        assert [v for _, v in found] == [None, 3, None]
        found = rmq.window_join(dates, times, on="t", window=("-1h", "12h"), aggs={"n": "count(*)"}).fetchall()
        assert [n for _, n in found] == [0, 1, 0]
        found = rmq.window_join(dates, times, on="t", window=("-1h", "11h"), aggs={"n": "count(*)"}).fetchall()
        assert [n for _, n in found] == [0, 0, 0]
        found = rmq.asof_join(times, dates.with_columns(w=pl.Series([1, 2, 3])), on="t", tolerance="12h").fetchall()
        assert [row[-1] for row in found] == [2]


def test_windows_of_days_as_numbers_and_as_durations():
    dates = pl.DataFrame({"t": [datetime.date(2026, 1, 1), datetime.date(2025, 12, 31)]})

    def counts(*window):
        return [n for _, n in rmq.window_join(dates, dates, on="t", window=window, aggs={"n": "count(*)"}).fetchall()]

    assert counts(-1, "-1h") == counts("-1s", -1) == counts(-1, "-1d") == [1, 0]
    assert counts("-1d", 5) == [2, 2] and counts(0, "5d") == [1, 2]
    for window in (("-1d", -5), (1, "1h"), ("1d", 0)):
        with pytest.raises(ValueError, match="it ends before it begins"):
            counts(*window)


def test_durations_of_any_length():
    old = [datetime.datetime(2, 1, 1), datetime.datetime(2026, 1, 1), datetime.datetime(9999, 1, 1)]
    frame = pl.DataFrame({"t": old, "v": [1, 2, 3]})
    for longest in (datetime.timedelta.max, datetime.timedelta(days=4_000_000), "99999999999999999999s", "9999y", "300000000d"):
        for one in (frame, frame.with_columns(pl.col("t").dt.replace_time_zone("Europe/Berlin"))):
            found = rmq.asof_join(one, one.with_columns(w=pl.col("v")), on="t", tolerance=longest, allow_exact_matches=False)
            assert [row[-1] for row in found.fetchall()] == [None, 1, 2], longest
            found = rmq.window_join(one, one, on="t", window=(None, longest), aggs={"n": "count(*)"})
            assert [row[-1] for row in found.fetchall()] == [3, 3, 3], longest
    for length in (datetime.timedelta(days=735_000), np.timedelta64(735_000 * 24, "h")):
        found = rmq.window_join(frame, frame, on="t", window=(length, None), aggs={"n": "count(*)"})
        assert [row[-1] for row in found.fetchall()] == [2, 1, 0]
    for length in ("9999999999mo", "999999999999d"):
        with pytest.raises(ValueError, match="too long"):
            rmq.asof_join(frame, frame, on="t", tolerance=length)


@pytest.mark.parametrize("kind", KEYS)
def test_offsets_at_the_ends_of_types(kind):
    draw = drawn(kind)
    con = rmq.connect(target_partitions=2)
    for _ in range(8):
        left, probes = frame(draw, kind, draw.choice([1, 12]))
        right, searched = frame(draw, kind, draw.choice([0, 1, 30]))
        strict, tolerance = draw.random() < 0.3, draw.choice([None, 0, 5, 1000])
        offsets = [draw.randrange(-70, 70), 0, draw.choice([-1, 1]) * draw.randrange(1 << 10)]
        unit = KEYS[kind][3]
        for direction in ("backward", "forward", "nearest"):
            joined = rmq.asof_join(
                left,
                right.rename_columns(["r", "k2"]),
                on=("k", "k2"),
                direction=direction,
                allow_exact_matches=not strict,
                tolerance=None if tolerance is None else unit(tolerance),
                offsets={f"_{i}": unit(offset) for i, offset in enumerate(offsets)},
                connection=con,
            ).to_arrow()
            assert joined["id"].to_pylist() == list(range(len(probes)))
            ahead = {"backward": (-1, 0), "forward": (0, 1), "nearest": (-1, 0, 1)}[direction]
            for number, offset in enumerate(offsets):
                for at, found in zip(probes, joined[f"r_{number}"].to_pylist()):
                    # Python's integers have no ends.
                    at = None if at is None else at + offset
                    near = [(abs(key - at), key) for key in searched if key is not None and at is not None and not (strict and key == at)]
                    near = [one for one in near if (one[1] > at) - (one[1] < at) in ahead]
                    near = [one for one in near if tolerance is None or one[0] <= tolerance]
                    key = None if found is None else searched[found]
                    assert key == (min(near)[1] if near else None), (direction, strict, tolerance, at, searched)


def test_offsets_between_units():
    seconds = pl.DataFrame({"ts": [datetime.datetime(2026, 1, 1, 0, 0, s) for s in (1, 2)], "v": [1, 2]}).cast({"ts": pl.Datetime("ms")})
    left = pl.DataFrame({"ts": [datetime.datetime(2026, 1, 1)]})
    for offset, nearest in (("1499ms", 1), ("1500ms", 1), ("1500001us", 2), ("1501ms", 2)):
        for one, other in ((left, seconds), (left.cast(pl.Datetime("ms")), seconds.cast({"ts": pl.Datetime("us")}))):
            # A sum that is finer than the left column is rounded down to it.
            rounded = 1 if one is not left and offset == "1500001us" else nearest
            assert rmq.asof_join(one, other, on="ts", offsets={"_x": offset}, direction="nearest").fetchall()[0][1:] == (rounded,)
    # Numbers that are added to whole keys are not rounded, and keys beyond 2^53 are exact.
    big = 2**60
    right = pl.DataFrame({"k": [big, big + 1, big + 2, big + 3], "v": range(4)})
    left = pl.DataFrame({"k": [big]})
    for direction, exact, found in (("backward", True, 2), ("backward", False, 2), ("forward", True, 3), ("forward", False, 3)):
        joined = rmq.asof_join(left, right, on="k", offsets={"_x": 2.5}, direction=direction, allow_exact_matches=exact)
        assert joined.fetchall()[0][1:] == (found,)
    days = pl.DataFrame({"d": [datetime.date(2026, 3, n) for n in (1, 4)], "v": [1, 4]})
    joined = rmq.asof_join(days, days, on="d", offsets=[3, -1], tolerance="1d")
    assert joined.to_polars().select("v_3", "v_-1").rows() == [(4, None), (None, None)]


def test_offsets_of_times_of_day_do_not_pass_midnight():
    left = pl.DataFrame({"t": [datetime.time(0, 30), datetime.time(23, 50)]})
    right = pl.DataFrame({"t": [datetime.time(0, 10), datetime.time(23, 40)], "v": ["early", "late"]})
    found = rmq.asof_join(left, right, on="t", offsets=["1h", "-1h"]).to_polars()
    assert found["v_1h"].to_list() == ["early", "late"] and found["v_-1h"].to_list() == [None, "early"]
    found = rmq.asof_join(left, right, on="t", offsets=["1h", "-1h"], direction="forward").to_polars()
    assert found["v_1h"].to_list() == ["late", None] and found["v_-1h"].to_list() == ["early", "late"]
    found = rmq.asof_join(left, right, on="t", offsets=["1h"], tolerance="65m").to_polars()
    assert found["v_1h"].to_list() == [None, None]


def test_the_nearest_where_distances_overflow():
    left = pl.DataFrame({"k": pl.Series([97], dtype=pl.Int8)})
    right = pl.DataFrame({"k": pl.Series([-128, 127], dtype=pl.Int8), "v": [1, 2]})
    assert rmq.asof_join(left, right, on="k", direction="nearest").fetchall() == [(97, 2)]
    none = pd.DataFrame({"ts": pd.to_datetime(["1700-01-01", "2026-01-02"]).astype("M8[ns]"), "v": [1, 2]})
    found = rmq.asof_join(pd.DataFrame({"ts": pd.to_datetime(["2200-01-01"])}), none, on="ts", direction="nearest", tolerance="100000d")
    assert [row[-1] for row in found.fetchall()] == [2]
    # Of several units, and of floats and decimals.
    left = pl.DataFrame({"k": pl.Series([2.75], dtype=pl.Float64)})
    right = pl.DataFrame({"k": pl.Series(["2.5", "2.9"]).cast(pl.Decimal(10, 2)), "v": [1, 2]})
    assert [row[-1] for row in rmq.asof_join(left, right, on="k", direction="nearest").fetchall()] == [2]
    left = pl.DataFrame({"ts": pl.Series([datetime.datetime(2026, 1, 1)]).cast(pl.Datetime("us"))})
    right = pl.DataFrame({"ts": pl.Series([datetime.datetime(2025, 12, 31), datetime.datetime(2026, 1, 1, 1)]).cast(pl.Datetime("ms")), "v": [1, 2]})
    assert [row[-1] for row in rmq.asof_join(left, right, on="ts", direction="nearest").fetchall()] == [2]


def shown_next(local):
    """The first instant at which the clocks of Berlin show a time, or a later one where they leave it out."""
    instant = local.replace(tzinfo=BERLIN, fold=0).astimezone(datetime.timezone.utc)
    if instant.astimezone(BERLIN).replace(tzinfo=None) == local:
        return instant
    # In the gap, which begins at 1:00 UTC.
    return instant.replace(hour=1, minute=0, second=0, microsecond=0)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_calendar_days_in_a_time_zone(unit):
    draw = drawn(unit)
    changes = [datetime.datetime(2026, 3, 29), datetime.datetime(2026, 10, 25)]
    minutes = [draw.choice(changes) + datetime.timedelta(minutes=15 * draw.randrange(-140, 140)) for _ in range(150)]
    instants = sorted({shown_next(local) for local in minutes})
    times = pl.Series("ts", instants).cast(pl.Datetime(unit, "UTC")).dt.convert_time_zone("Europe/Berlin")
    frame = pl.DataFrame({"ts": times, "id": range(len(instants))})
    lengths = {
        "1d": (1, None),
        datetime.timedelta(days=1): (None, 24),
        np.timedelta64(1, "D"): (None, 24),
        pd.Timedelta("1D"): (None, 24),
        np.timedelta64(24, "h"): (None, 24),
    }
    for back, (days, hours) in lengths.items():

        def moved(instant):
            if hours:
                return instant - datetime.timedelta(hours=hours)
            return shown_next(instant.astimezone(BERLIN).replace(tzinfo=None) - datetime.timedelta(days=days))

        negative = f"-{back}" if isinstance(back, str) else -back
        found = rmq.window_join(frame, frame, on="ts", window=(negative, "0s"), aggs={"n": "count(*)"}).to_polars()
        expected = [sum(moved(at) <= other <= at for other in instants) for at in instants]
        assert found.sort("id")["n"].to_list() == expected, back
    matched = rmq.asof_join(frame, frame.rename({"ts": "at"}), on=("ts", "at"), tolerance="1d", allow_exact_matches=False)
    assert len(matched.fetchall()) == len(instants)


def test_days_of_dates():
    days = pl.DataFrame({"d": [datetime.date(2026, 3, n) for n in (27, 28, 29, 30)]})
    for back in ("-1d", datetime.timedelta(days=-1), np.timedelta64(-1, "D"), np.timedelta64(-24, "h"), pd.Timedelta("-1D")):
        found = rmq.window_join(days, days, on="d", window=(back, "0d"), aggs={"n": "count(*)"})
        assert [n for _, n in sorted(found.fetchall())] == [1, 2, 2, 2], back


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_one_nan(kind):
    with np.errstate(invalid="ignore"):
        nan = kind(0) / kind(0) * kind(-1)
    both = np.array([np.nan, -np.nan, nan, 1, -1], kind)
    both[1] = -np.abs(both[1])
    assert np.signbit(both[:3]).any()
    kept = both.copy()
    frames = {
        "pandas": pd.DataFrame({"v": both}),
        "polars": pl.DataFrame({"v": both}) if kind != np.float16 else None,
        "arrow": pa.table({"v": pa.chunked_array([pa.array(both[:2]), pa.array(both[2:])])}),
        "sliced": pa.table({"v": pa.array(np.concatenate([[kind(7)], both]))}).slice(1),
    }
    con = rmq.connect()
    for name, data in frames.items():
        if data is None:
            continue
        rows = con.sql("SELECT min(v), count(DISTINCT v), count(*) FILTER (WHERE v > 0) FROM data").fetchall()
        # NaN of pandas is NULL.
        assert rows == [(-1.0, 2, 1) if name == "pandas" else (-1.0, 3, 4)], name
        assert con.sql("SELECT count(*) FROM (SELECT v FROM data GROUP BY v)").fetchall() == [(3,)], name
    assert (both.tobytes(), np.signbit(both).tolist()) == (kept.tobytes(), np.signbit(kept).tolist())
    nested = pa.table({"v": pa.array([[float(x) for x in both], None, []], pa.list_(pa.float64())), "s": pa.array([{"x": float(both[1])}] * 3)})
    assert con.sql("SELECT count(DISTINCT x) FROM (SELECT unnest(v) AS x FROM nested)").fetchall() == [(3,)]
    assert con.sql("SELECT s['x'] > 0 FROM nested LIMIT 1").fetchall() == [(True,)]
    assert con.sql("SELECT $1 > 0", [float(np.copysign(np.nan, -1))]).fetchall() == [(True,)]


def test_a_frame_without_another_nan_is_not_copied():
    values = np.arange(1 << 20, dtype=np.float64)
    values[::3] = np.nan
    data = pa.table({"v": values})
    frame = rmq.connect().sql("SELECT v FROM data").to_arrow()
    assert frame["v"].chunk(0).buffers()[1].address == data["v"].chunk(0).buffers()[1].address


def test_positions_that_are_masked():
    index = rmq.RangeIndex([3, 1, 2])
    masked = np.ma.array([0, 1], mask=[False, True])
    with pytest.raises(ValueError, match="left has masked values"):
        index.min(masked, 2)
    with pytest.raises(ValueError, match="right has masked values"):
        index.argmax(0, masked)
    with pytest.raises(ValueError, match="x has masked values"):
        index.first_at_most(0, 2, masked)
    assert index.min(np.ma.array([0, 1]), 2).tolist() == [1, 1]


def test_zeros_of_both_signs():
    index = rmq.RangeIndex([0.0, -0.0])
    assert (index.argmin(0, 1), index.argmax(0, 1)) == (1, 0)
    assert (index.first_at_most(0, 1, 0.0), index.first_at_least(0, 1, 0.0)) == (0, 0)


def test_ordered_categories_are_not_compared_as_texts():
    order = ["low", "mid", "high"]
    frames = {
        "pandas": pd.DataFrame({"level": pd.Categorical(["low", "high", "mid"], categories=order, ordered=True), "k": [1, 2, 3]}),
        "polars": pl.DataFrame({"level": pl.Series(["low", "high", "mid"], dtype=pl.Enum(order)), "k": [1, 2, 3]}),
    }
    con = rmq.connect()
    for data in frames.values():
        for text in (
            "SELECT min(level) FROM data",
            "SELECT k, max(level) OVER (ORDER BY k) FROM data",
            "SELECT arg_max(k, level) FROM data",
            "SELECT k FROM data WHERE level > 'low'",
            "SELECT k FROM data WHERE level BETWEEN 'low' AND 'mid'",
            "SELECT a.k FROM data a JOIN data b ON a.level <= b.level",
            "SELECT k, (SELECT count(*) FROM data b WHERE b.level < a.level) FROM data a",
            "SELECT level FROM data GROUP BY level HAVING max(level) = 'low'",
            "SELECT k FROM data WHERE level > (SELECT level FROM data LIMIT 1)",
            "SELECT range_min('data.level', 0, 1)",
            "SELECT k, range_argmax('data.level', k - 2, k) FROM data",
            "SELECT range_first_at_least('data.level', 0, 2, 'mid')",
            "SELECT range_smallest('data.level', 0, 2, 2)",
            "SELECT range_count_below('data.level', 0, 2, 'mid')",
            "SELECT frame_count_below(level, k - 2, k, 'mid') OVER (ORDER BY k) FROM data",
            "SELECT range_max((SELECT level FROM data ORDER BY k), 0, 1)",
            "SELECT * FROM range_min('data.level', 'data', 'k', 'k')",
            "SELECT frame_min(level, k - 2, k) OVER (ORDER BY k) FROM data",
            "SELECT range_frame_argmin(level, k - 2, k) OVER (ORDER BY k) FROM data",
            "SELECT range_frame_min(k, 'low', 'mid') OVER (ORDER BY level) FROM data",
            # What loses the mark.
            "SELECT min(level) FROM (SELECT level FROM data UNION ALL SELECT level FROM data)",
            "SELECT min(level) FROM (SELECT level FROM data UNION SELECT level FROM data)",
            "SELECT min(CASE WHEN k < 5 THEN level END) FROM data",
            "SELECT min(coalesce(level, level)) FROM data",
            "SELECT min(nullif(level, 'x')) FROM data",
            "SELECT min(CASE k WHEN 1 THEN 'low' ELSE nullif(level, 'x') END) FROM data",
            "SELECT min([level]) FROM data",
            "SELECT min({level: level}) FROM data",
            "SELECT k FROM data WHERE [level] < ['low']",
            "SELECT array_sort([level, 'mid']) FROM data",
            "SELECT k FROM data WHERE array_max([level, 'mid']) = 'mid'",
            "SELECT k FROM data WHERE level > ALL (SELECT 'a')",
            "SELECT k FROM data WHERE 'a' < ANY (SELECT level FROM data)",
            "SELECT k FROM data WHERE coalesce(level, 'low') BETWEEN 'a' AND 'b'",
            "WITH RECURSIVE r AS (SELECT coalesce(level, level) AS level, 0 AS n FROM data"
            " UNION ALL SELECT level, n + 1 FROM r WHERE level < 'x' AND n < 1) SELECT n FROM r",
            "SELECT k, (SELECT count(*) FROM (VALUES ('a')) t(x) WHERE x < coalesce(a.level, a.level)) FROM data a",
            "SELECT a.k, b.m FROM data a, LATERAL (SELECT max(nullif(a.level, 'x')) AS m FROM data) b",
            "SELECT first_value(level ORDER BY level) FROM data",
            "SELECT array_agg(k ORDER BY nullif(level, 'x')) FROM data",
            "SELECT level FROM data ORDER BY level LIMIT 1",
            "SELECT level FROM data ORDER BY level",
            "SELECT rank() OVER (ORDER BY level) FROM data",
            "SELECT DISTINCT ON (level) level FROM data ORDER BY level",
            "CREATE TABLE lost AS SELECT level FROM data UNION ALL SELECT level FROM data",
        ):
            with pytest.raises(rmq.ProgrammingError, match="level is an ordered category"):
                con.sql(text).fetchall()
        for text in (
            "SELECT min(x) FROM (SELECT unnest(array_agg(level)) AS x FROM data)",
            "SELECT array_sort(array_agg(level)) FROM data",
            "SELECT min(m) FROM (SELECT first_value(level ORDER BY k) AS m FROM data GROUP BY k)",
            "SELECT min(m) FROM (SELECT lag(level) OVER (ORDER BY k) AS m FROM data)",
            "SELECT min(m) FROM (SELECT (SELECT level FROM data LIMIT 1) AS m)",
            "SELECT min(m) FROM (SELECT arg_min(level, k) AS m FROM data GROUP BY k)",
        ):
            with pytest.raises(rmq.ProgrammingError, match=" is an ordered category"):
                con.sql(text).fetchall()
        for text, expected in {
            "SELECT min(upper(level)) FROM data": "HIGH",
            "SELECT min(CASE WHEN level = 'low' THEN 'x' ELSE 'y' END) FROM data": "x",
            "SELECT min(level::TEXT) FROM (SELECT level FROM data UNION ALL SELECT level FROM data)": "high",
            "SELECT max(level || '!') FROM data": "mid!",
            "SELECT max(k) FROM (SELECT level, max(k) AS k FROM data GROUP BY level)": 3,
            "SELECT count(*) FROM (SELECT level FROM data UNION SELECT level FROM data)": 3,
            "SELECT max(length(level)) FROM data": 4,
        }.items():
            assert con.sql(text).fetchall() == [(expected,)], text
        with pytest.raises(rmq.ProgrammingError, match="level is an ordered category"):
            rmq.window_join(data, data, on="k", window=(-1, 0), aggs={"low": ("level", "min")})
        for direction in ("backward", "forward"):
            with pytest.raises(rmq.ProgrammingError, match="level is an ordered category"):
                rmq.asof_join(data, data, on="level", direction=direction)
        with pytest.raises(rmq.ProgrammingError, match="level is an ordered category"):
            rmq.overlap_join(data, data, on=("level", "level"))
        with pytest.raises(rmq.ProgrammingError, match="level is an ordered category"):
            con.sql("SELECT min(level) FROM data")
        assert con.sql("SELECT max(level::TEXT) FROM data WHERE level = 'low' OR level <> 'low'").fetchall() == [("mid",)]
        assert con.sql("SELECT range_max((SELECT level::TEXT FROM data ORDER BY k), 0, 1)").fetchall() == [("low",)]
        assert con.sql("SELECT frame_max(level::TEXT, 0, 1) OVER (ORDER BY k) FROM data LIMIT 1").fetchall() == [("low",)]
        assert con.sql("SELECT range_count_distinct('data.level', 0, 9)").fetchall() == [(3,)]
        distinct = con.sql("SELECT frame_count_distinct(level, 0, k - 1) OVER (ORDER BY k) AS n FROM data ORDER BY n")
        assert distinct.fetchall() == [(1,), (2,), (3,)]
        assert con.sql("SELECT level, count(*) FROM data GROUP BY level ORDER BY level::TEXT LIMIT 1").fetchall() == [("high", 1)]
        found = rmq.window_join(data, data, on="k", by="level", window=(-1, 0), aggs={"n": "count(*)", "low": "min(level::TEXT)"})
        assert sorted(found.fetchall()) == [("high", 2, 1, "high"), ("low", 1, 1, "low"), ("mid", 3, 1, "mid")]
    plain = pl.DataFrame({"level": pl.Series(["low", "high"], dtype=pl.Categorical)})
    assert con.sql("SELECT min(level) FROM plain").fetchall() == [("high",)]
