"""Arguments of the join functions: keys by several spellings, suffixes, offsets, units, and errors at the call."""

import datetime
import os
import random
import re
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import datafusion_rmq as rmq

TRADES = pl.DataFrame({"id": [1, 2, 3], "sym": ["A", "B", "A"], "venue": ["x", "y", "y"], "ts": [10, 20, 30]})
QUOTES = pl.DataFrame(
    {"code": ["A", "B", "B", "A"], "market": ["x", "x", "y", "y"], "at": [7, 12, 15, 29], "bid": [1.5, 1.25, 2.0, 9.0]}
)
SAME = QUOTES.rename({"code": "sym", "market": "venue", "at": "ts"})
FOUND = [1.5, 2.0, 9.0]
START = datetime.datetime(2026, 3, 2, 9, 30)


def bids(**by):
    return [row[-1] for row in rmq.asof_join(TRADES, QUOTES, left_on="ts", right_on="at", **by).fetchall()]


@pytest.mark.parametrize(
    "by",
    [
        {"by": {"sym": "code", "venue": "market"}},
        {"by": [("sym", "code"), ("venue", "market")]},
        {"left_by": ["sym", "venue"], "right_by": ["code", "market"]},
        {"left_by": ("sym", "venue"), "right_by": ("code", "market")},
    ],
    ids=repr,
)
def test_keys_whose_names_differ(by):
    assert bids(**by) == FOUND
    window = rmq.window_join(TRADES, QUOTES, left_on="ts", right_on="at", window=(None, 0), aggs={"n": "count(*)"}, **by)
    assert [row[-1] for row in window.fetchall()] == [1, 1, 1]
    spans, alarms = TRADES.with_columns(to=pl.col("ts") + 5), QUOTES.with_columns(to=pl.col("at") + 5)
    overlaps = rmq.overlap_join(spans, alarms, left_on=("ts", "to"), right_on=("at", "to"), **by)
    assert [row[0] for row in overlaps.fetchall()] == [1, 3]


@pytest.mark.parametrize("by", [{"by": ["sym", "venue"]}, {"by": {"sym": "sym", "venue": "venue"}}, {"left_by": "sym", "right_by": "sym"}], ids=repr)
def test_keys_whose_names_are_alike(by):
    joined = rmq.asof_join(TRADES, SAME, on="ts", **by)
    assert joined.columns[:4] == TRADES.columns
    assert [row[-1] for row in joined.fetchall()] == FOUND[: 3 if "by" in by else 1] + ([] if "by" in by else [2.0, 9.0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"on": "ts", "by": ("sym", "code")}, TypeError, r"by=\('sym', 'code'\).*\['sym', 'code'\].*left_by='sym', right_by='code'"),
        ({"on": "ts", "by": {"sym"}}, TypeError, "by={'sym'}"),
        ({"on": "ts", "by": [1]}, TypeError, r"by=\[1\]"),
        ({"on": "ts", "by": {"sym": 5}}, TypeError, "by={'sym': 5}"),
        ({"on": "ts", "by": "sym", "left_by": "sym", "right_by": "sym"}, TypeError, "by='sym' is given beside"),
        ({"on": "ts", "left_by": "sym"}, TypeError, "right_by=None.*go together"),
        ({"on": "ts", "left_by": ["sym", "venue"], "right_by": ["sym"]}, ValueError, "as many"),
        ({"on": "ts", "left_on": "ts", "right_on": "ts"}, TypeError, "on='ts' is given beside"),
        ({"left_on": "ts"}, TypeError, "right_on=None.*go together"),
        ({}, TypeError, "on= is needed"),
        ({"on": "ts", "connection": "x"}, TypeError, "connection='x'"),
        ({"on": "ts", "suffix": None}, TypeError, "suffix=None"),
        ({"on": "ts", "suffixes": "_r"}, TypeError, "suffixes='_r'"),
        ({"on": "ts", "suffix": "_r", "suffixes": ("_l", "_r")}, TypeError, "suffix='_r' is given beside"),
        ({"on": "ts", "strategy": "forward", "direction": "nearest"}, TypeError, "strategy='forward' is given beside"),
        ({"on": "ts", "strategy": "up"}, ValueError, "direction='up'"),
        ({"on": "ts", "allow_exact_matches": "no"}, TypeError, "allow_exact_matches='no'"),
        ({"on": "ts", "tolerance": -1}, ValueError, "tolerance=-1: it is negative"),
        ({"on": "ts", "tolerance": "5s"}, TypeError, "'ts' of left is Int64, and offset '5s' is a duration"),
        ({"on": "ts", "maintain_order": "no"}, TypeError, "maintain_order='no': True or False"),
        ({"on": "ts", "offsets": "1s"}, TypeError, "offsets='1s'"),
        ({"on": "ts", "offsets": 5}, TypeError, "offsets=5: a list"),
        ({"on": "ts", "offsets": {1, 5}}, TypeError, "offsets={1, 5}: a list"),
        ({"on": "ts", "offsets": {1: 5}}, TypeError, "offsets={1: 5}: a list"),
        ({"on": "ts", "offsets": np.array(5)}, TypeError, r"offsets=array\(5\): a list"),
        ({"on": "ts", "offsets": [None]}, TypeError, r"offsets=\[None\]: offset None"),
        ({"on": "ts", "offsets": [True]}, TypeError, r"offsets=\[True\]: offset True"),
        ({"on": "ts", "offsets": [1, 1]}, ValueError, r"offsets=\[1, 1\]: several offsets have the same suffix"),
        ({"on": "ts", "offsets": [5], "suffix": "_q"}, TypeError, "suffix='_q' is given beside offsets"),
        ({"on": "ts", "offsets": [5], "suffixes": ("_l", None)}, TypeError, r"suffixes=\('_l', None\) is given beside offsets"),
        ({"on": "ts", "offsets": []}, ValueError, r"offsets=\[\]"),
        ({"on": "ts", "offsets": {"": 1}}, ValueError, "no suffix may be empty"),
        ({"on": "ts", "offsets": ["1s"]}, TypeError, "is a duration"),
        ({"on": ("ts", "sym")}, TypeError, "'ts' of left is Int64, 'sym' of right is"),
        ({"on": "ts", "by": [("sym", "ts")]}, TypeError, "by: 'sym' of left is .*, 'ts' of right is Int64"),
        ({"on": "sym", "direction": "nearest"}, TypeError, "'sym' of left is .*no distance"),
    ],
)
def test_errors_at_the_call(arguments, error, message):
    with pytest.raises(error, match=message):
        rmq.asof_join(TRADES, SAME, **arguments)


ZONED = pl.DataFrame({"ts": pl.Series([START]).dt.replace_time_zone("UTC"), "v": [1]})
NAIVE = pl.DataFrame({"ts": [START], "v": [1]})


@pytest.mark.parametrize(
    ("frame", "window", "error", "message"),
    [
        (SAME, (5, 1), ValueError, r"window=\(5, 1\): it ends before it begins"),
        (NAIVE, ("0s", "-5s"), ValueError, "it ends before it begins"),
        (NAIVE, (datetime.timedelta(days=40), "1mo"), ValueError, "it ends before it begins"),
        (NAIVE, (np.timedelta64(1, "D"), np.timedelta64(1, "h")), ValueError, "it ends before it begins"),
        (NAIVE, (-5, 0), TypeError, "'ts' of left is Timestamp.*offset -5 is a number; a duration is needed"),
        (NAIVE, ("-5", 0), ValueError, "offset '-5'"),
        (SAME, ("-5s", 0), TypeError, "'ts' of left is Int64, and offset '-5s' is a duration"),
        (ZONED, NAIVE, TypeError, "'ts' of left is Timestamp.*UTC.*, 'ts' of right is Timestamp"),
        (NAIVE, ZONED, TypeError, "'ts' of left is Timestamp.*'ts' of right is Timestamp.*UTC"),
        (SAME.with_columns(ts=pl.col("ts").cast(pl.String)), SAME, TypeError, "not compared"),
        (SAME.with_columns(ts=pl.col("ts").cast(pl.String)), (-5, 0), TypeError, "'ts' of left is Utf8.*to which -5 cannot be added"),
    ],
)
def test_windows_that_do_not_fit(frame, window, error, message):
    right = frame
    if isinstance(window, pl.DataFrame):
        right, window = window, (0, None)
    with pytest.raises(error, match=message):
        rmq.window_join(frame, right, on="ts", window=window, aggs={"n": "count(*)"})


def test_more_errors_at_the_call():
    good = {"on": "ts", "window": (-1, 0)}
    with pytest.raises(TypeError, match=r"aggs=\['min'\]: a dict"):
        rmq.window_join(TRADES, SAME, aggs=["min"], **good)
    with pytest.raises(ValueError, match="left has a column 'id', too"):
        rmq.window_join(TRADES, SAME, aggs={"id": "count(*)"}, **good)
    with pytest.raises(TypeError, match="'sym' is Utf8.*no mean"):
        rmq.window_join(TRADES, SAME, aggs={"x": ("sym", "mean")}, **good)
    for arguments in ((), ("a",), (None,), (1.5,), (float("nan"),), (True,), ([0.5],)):
        with pytest.raises(ValueError, match=r"aggs\['x'\]=\('bid', 'quantile'.*quantile takes a number from 0 to 1"):
            rmq.window_join(TRADES, SAME, aggs={"x": ("bid", "quantile", *arguments)}, **good)
    with pytest.raises(ValueError, match="points are in intervals"):
        rmq.overlap_join(TRADES, SAME, left_on="ts", right_on="ts")


SPANS = pl.DataFrame({"start": [0, 5], "end": [5, 9]})


def counted(**arguments):
    return rmq.window_join(TRADES, SAME, on="ts", window=(-1, 0), aggs={"n": "count(*)"}, **arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rmq.overlap_join(SPANS, SPANS, closed="right"), "closed='right': 'both' or 'left' is possible"),
        (lambda: rmq.overlap_join(SPANS, SPANS, closed="neither"), "closed='neither': 'both' or 'left' is possible"),
        (lambda: rmq.overlap_join(SPANS, SPANS, closed=None), "closed=None: True or False is needed"),
        (lambda: rmq.overlap_join(SPANS, SPANS, closed=1), "closed=1: True or False is needed"),
        (lambda: rmq.overlap_join(SPANS, SPANS, how=["left"]), r"how=\['left'\]: 'inner', 'left', 'semi' or 'anti'"),
        (lambda: rmq.overlap_join(SPANS, SPANS, maintain_order="x"), "maintain_order='x': True or False"),
        (lambda: counted(prevailing="yes"), "prevailing='yes': True or False"),
        (lambda: counted(prevailing=np.array([True])), r"prevailing=array\(\[.*True\]\): True or False"),
        (lambda: counted(maintain_order=None), "maintain_order=None: True or False"),
        (lambda: counted(closed=[]), r"closed=\[\]: 'both', 'left', 'right' or 'none'"),
        (lambda: rmq.connect(frames="no"), "frames='no': True or False"),
        (lambda: rmq.connect(progress="no"), "progress='no': True or False"),
        (lambda: rmq.connect().read_csv("t", "t.csv", header="no"), "header='no': True or False"),
        (lambda: rmq.connect().sql("SELECT 1").explain(analyze="no"), "analyze='no': True or False"),
    ],
)
def test_flags_and_choices(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_words_and_flags_mean_the_same():
    for word, flag, rows in (("both", True, 4), ("left", False, 2)):
        assert len(rmq.overlap_join(SPANS, SPANS, closed=word)) == len(rmq.overlap_join(SPANS, SPANS, closed=flag)) == rows
    assert counted(prevailing=np.True_).fetchall() == counted(prevailing=True).fetchall() != counted().fetchall()


NESTED = {
    "list": pa.array([[1]]),
    "struct": pa.array([{"a": 1}]),
    "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    "interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    "null": pa.nulls(1),
    "int": pa.array([1]),
    "text": pa.array(["1"]),
    "time": pa.array([START]),
}


@pytest.mark.parametrize("one", NESTED)
@pytest.mark.parametrize("other", NESTED)
def test_keys_of_all_types_are_checked_at_the_call(one, other):
    left, right = (pa.table({"k": NESTED[kind], "v": [1]}) for kind in (one, other))
    calls = {
        "by": lambda: rmq.asof_join(left, right, on="v", by="k"),
        "lists": lambda: rmq.asof_join(left, right, on="v", left_by=["k"], right_by=["k"]),
        "asof": lambda: rmq.asof_join(left, right, on="k"),
        "nearest": lambda: rmq.asof_join(left, right, on="k", direction="nearest"),
        "window": lambda: rmq.window_join(left, right, on="k", window=(None, 0), aggs={"n": "count(*)"}),
        "overlap": lambda: rmq.overlap_join(left, right, on=("k", "k")),
    }
    for offset in (1, "1s"):
        calls |= {
            f"window {offset}": lambda offset=offset: rmq.window_join(left, right, on="k", window=(0, offset), aggs={"n": "count(*)"}),
            f"tolerance {offset}": lambda offset=offset: rmq.asof_join(left, right, on="k", tolerance=offset),
            f"offsets {offset}": lambda offset=offset: rmq.asof_join(left, right, on="k", offsets=[offset], direction="nearest"),
        }
    refused = set()
    for name, call in calls.items():
        try:
            call().fetchall()
        except TypeError as error:
            assert re.search("'k' of (left|right) is ", str(error)), error
            refused.add(name)
    alike = one == other or "null" in (one, other)
    assert alike or refused == {*calls}
    if alike:
        assert not refused & {"by", "lists"}
        assert ("asof" in refused) == bool({one, other} & {"list", "struct", "map"}), refused
    if one == "null":
        assert {"window 1s", "tolerance 1s", "offsets 1s"} <= refused


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pl.Series("v", [1]), "a Series of polars is one column.*to_frame"),
        (pd.Series([1], name="v"), "a Series of pandas is one column.*to_frame"),
        (pd.Series([1], name="v", index=[5]), "a Series of pandas is one column.*to_frame"),
        (pd.DataFrame({"a": [1], "z": [1j]}), "column 'z' has complex numbers"),
        (pd.DataFrame({"a": [1], "z": np.array([1], dtype=np.longdouble)}), "Conversion failed for column z"),
        (pl.DataFrame({"a": [1], "z": [None]}), "column 'z' has the polars type Null"),
        (pl.DataFrame({"a": [1], "z": pl.Series([1], dtype=pl.Int128)}), "column 'z' has the polars type Int128, for which Arrow has no type"),
        (pl.DataFrame({"z": pl.Series([[1]], dtype=pl.List(pl.UInt128))}), r"column 'z' has the polars type List\(UInt128\), with UInt128"),
    ],
)
def test_frames_that_are_no_tables(frame, message):
    with pytest.raises(TypeError, match=message):
        rmq.connect().register("t", frame)
    with pytest.raises(TypeError, match=message):
        rmq.connect().sql("SELECT * FROM frame")
    with pytest.raises(TypeError, match=message):
        rmq.asof_join(TRADES, frame, on="ts")


def test_paths_that_are_not_local():
    for read in (rmq.connect().read_parquet, rmq.connect().read_csv):
        with pytest.raises(ValueError, match="'s3://bucket/q.parquet': only local files"):
            read("q", "s3://bucket/q.parquet")


@pytest.mark.parametrize("unit", ["1min", "60s", "1m", " 1 min", "60000ms"])
def test_units_of_pandas_and_polars(unit):
    times = pl.DataFrame({"ts": [START + datetime.timedelta(seconds=10 * i) for i in range(20)]})
    found = rmq.window_join(times, times, on="ts", window=(f"-{unit.strip()}", 0), aggs={"n": "count(*)"})
    assert [n for _, n in found.fetchall()] == [min(i, 6) + 1 for i in range(20)]
    days = pl.DataFrame({"ts": [datetime.date(2026, 1, 1) + datetime.timedelta(days=i) for i in range(20)]})
    for week in ("1W", "7D", "1w", "7d"):
        found = rmq.window_join(days, days, on="ts", window=(f"-{week}", 0), aggs={"n": "count(*)"})
        assert [n for _, n in found.fetchall()] == [min(i, 7) + 1 for i in range(20)]
    assert len(rmq.window_join(days, days, on="ts", window=("-1q", 0), aggs={"n": "count(*)"})) == 20


@pytest.mark.parametrize("closed", ["both", "left", "right", "none"])
@pytest.mark.parametrize("window", [(-2.5, 0), (-2.5, 0.5), (-2.0, 2.0), (0.5, 0.75), (-0.5, None), (None, -1.5)], ids=repr)
def test_fractions_around_whole_keys(window, closed):
    # Floats would round these keys.
    big = 2**60
    frame = pl.DataFrame({"ts": [big + i for i in range(8)]})
    found = rmq.window_join(frame, frame, on="ts", window=window, closed=closed, aggs={"n": "count(*)"}).fetchall()

    def within(distance):
        low, high = (2 * end if end is not None else None for end in window)
        distance *= 2
        after = low is None or distance > low or (distance == low and closed in ("both", "left"))
        return after and (high is None or distance < high or (distance == high and closed in ("both", "right")))

    assert [n for _, n in found] == [sum(within(j - i) for j in range(8)) for i in range(8)]
    if window[0] == -2.5:
        for tolerance, most in ((0.5, 0), (1.5, 1)):
            near = rmq.asof_join(frame, frame.with_columns(v=pl.col("ts")), on="ts", allow_exact_matches=False, tolerance=tolerance)
            assert [None if v is None else ts - v for ts, v in near.fetchall()] == [None, *([1] * 7 if most else [None] * 7)]


def test_suffixes():
    left, right = TRADES.with_columns(bid=pl.lit(0.5)), SAME
    joined = rmq.asof_join(left, right, on="ts", suffixes=("_trade", "_quote"))
    assert joined.columns == ["id", "sym_trade", "venue_trade", "ts", "bid_trade", "sym_quote", "venue_quote", "bid_quote"]
    assert rmq.asof_join(left, right, on="ts", suffixes=(None, "_q")).columns[1:3] == ["sym", "venue"]
    assert rmq.asof_join(left, right, on="ts", suffix="_q").columns[-1] == "bid_q"
    spans = left.with_columns(to=pl.col("ts") + 1)
    overlaps = rmq.overlap_join(spans, spans, on=("ts", "to"), by="id", suffixes=("_a", "_b"))
    assert overlaps.columns == ["id", *(f"{c}_a" for c in spans.columns[1:]), *(f"{c}_b" for c in spans.columns[1:])]
    with pytest.raises(ValueError, match="two columns would be called 'sym'"):
        rmq.asof_join(left, right, on="ts", suffixes=("", ""))


def test_offsets():
    offsets = [0, 1, 5, -3]
    joined = rmq.asof_join(TRADES, SAME, on="ts", by="sym", offsets=offsets, tolerance=6)
    assert joined.columns == [*TRADES.columns, *(f"{c}_{o}" for o in offsets for c in ("venue", "bid"))]
    assert "RangeJoinExec" in joined.explain()
    for offset in offsets:
        moved = TRADES.with_columns(ts=pl.col("ts") + offset)
        alone = rmq.asof_join(moved, SAME, on="ts", by="sym", tolerance=6).to_polars()
        assert joined.to_polars()[f"bid_{offset}"].to_list() == alone["bid"].to_list()
    times = NAIVE.with_columns(at=pl.col("ts"))
    quotes = pl.DataFrame({"ts": [START + datetime.timedelta(seconds=s) for s in (1, 4, 6)], "mid": [1.0, 4.0, 6.0]})
    markouts = rmq.asof_join(times, quotes, on="ts", offsets={"_1": datetime.timedelta(seconds=1), "_5": "5s"}, strategy="nearest")
    assert markouts.columns == ["ts", "v", "at", "mid_1", "mid_5"]
    assert markouts.fetchall()[0][3:] == (1.0, 4.0)


@pytest.mark.parametrize(
    ("offsets", "names"),
    [
        (range(2), ["0", "1"]),
        ((0, np.int64(1)), ["0", "1"]),
        (np.array([0, 1]), ["0", "1"]),
        (pd.Series([0, 1]), ["0", "1"]),
        (pl.Series([0, 1]), ["0", "1"]),
        ([0.5, -1.5], ["0.5", "-1.5"]),
        (np.array([0.5, 2]), ["0.5", "2.0"]),
    ],
)
def test_sequences_of_numbers_as_offsets(offsets, names):
    frame = pl.DataFrame({"ts": [1, 2, 3]})
    found = rmq.asof_join(frame, frame.with_columns(v=pl.col("ts")), on="ts", offsets=offsets)
    assert found.columns == ["ts", *(f"v_{name}" for name in names)]
    for ts, *values in found.fetchall():
        assert values == [min(3, int(ts + float(name))) or None if ts + float(name) >= 1 else None for name in names]


@pytest.mark.parametrize(
    ("offsets", "names"),
    [
        ([datetime.timedelta(seconds=s) for s in (1, -5, 90, 300, 7200, 0)], ["1s", "-5s", "90s", "5m", "2h", "0s"]),
        ([datetime.timedelta(milliseconds=1500), pd.Timedelta("1s1ns"), "1 min"], ["1500ms", "1000000001ns", "1 min"]),
        ([datetime.timedelta(days=1), np.timedelta64(2, "D"), np.timedelta64(1, "M")], ["24h", "48h", "1mo"]),
        (np.array([1, 60], "m8[s]"), ["1s", "1m"]),
        (pd.to_timedelta(["1s", "5s"]), ["1s", "5s"]),
    ],
)
def test_sequences_of_durations_as_offsets(offsets, names):
    found = rmq.asof_join(NAIVE.select("ts"), NAIVE, on="ts", offsets=offsets)
    assert found.columns == ["ts", *(f"v_{name}" for name in names)]
    assert found.fetchall()[0][1:] == tuple(None if name.startswith("-") else 1 for name in names)


def test_points():
    draw = random.Random(8)
    points = pl.DataFrame({"p": range(60), "ts": [draw.randrange(50) for _ in range(60)]})
    spans = pl.DataFrame({"s": range(40), "start": [draw.randrange(50) for _ in range(40)]}).with_columns(
        end=pl.col("start") + pl.Series([draw.randrange(9) for _ in range(40)])
    )
    for closed in (False, True):
        expected = {
            (p, s)
            for p, ts in points.iter_rows()
            for s, start, end in spans.iter_rows()
            if start <= ts and (ts <= end if closed else ts < end)
        }
        found = rmq.overlap_join(points, spans, left_on="ts", closed=closed)
        assert {(row[0], row[2]) for row in found.fetchall()} == expected and len(found) == len(expected)
        assert "RangeJoinExec" in found.explain()
        found = rmq.overlap_join(spans, points, right_on="ts", closed=closed)
        assert {(row[3], row[0]) for row in found.fetchall()} == expected and len(found) == len(expected)
        inside = rmq.overlap_join(points, spans, left_on="ts", closed=closed, how="anti")
        assert [row[0] for row in inside.fetchall()] == [p for p in range(60) if p not in {p for p, _ in expected}]


def test_aggregates_of_pandas_and_polars():
    seed = int(os.environ.get("RMQ_TEST_SEED", time.time_ns()))
    print(f"aggregates: RMQ_TEST_SEED={seed}")
    draw = np.random.default_rng(seed)
    rows = 200
    stamps = np.datetime64("2026-03-02T09:30:00.000000001", "ns") + draw.integers(0, 10**15, rows).astype("m8[ns]")
    data = pd.DataFrame(
        {
            "at": draw.integers(0, 100, rows),
            "v": draw.normal(size=rows),
            "i": draw.integers(-5, 5, rows),
            "flag": draw.random(rows) < 0.4,
            "t": stamps,
            "z": pd.Series(stamps).dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin"),
            "d": stamps.astype("M8[s]"),
            "m": draw.integers(-(10**9), 10**9, rows).astype("m8[ns]"),
        }
    ).sort_values("at", kind="stable")
    left = pd.DataFrame({"at": range(20, 100, 7)})
    aggs = {
        "v_std": ("v", "std"),
        "v_var": ("v", "var"),
        "v_q": ("v", "quantile", 0.3),
        "i_q": ("i", "quantile", 0.5),
        "i_n": ("i", "nunique"),
        "v_mean": ("v", "mean"),
        "flag_mean": ("flag", "mean"),
        "flag_sum": ("flag", "sum"),
        "t_mean": ("t", "mean"),
        "z_mean": ("z", "mean"),
        "d_mean": ("d", "mean"),
        "m_mean": ("m", "mean"),
    }
    found = rmq.window_join(left, data, on="at", window=(-15, 0), aggs=aggs).to_pandas()
    assert found["at"].tolist() == left["at"].tolist()
    for _, row in found.iterrows():
        window = data[(data["at"] >= row["at"] - 15) & (data["at"] <= row["at"])]
        for name, (column, function, *arguments) in aggs.items():
            expected = getattr(window[column], function)(*arguments)
            if isinstance(expected, (pd.Timestamp, pd.Timedelta)):
                assert abs(row[name] - expected) <= pd.Timedelta("1us"), name
            else:
                # DataFusion interpolates between two values in steps of a millionth.
                assert row[name] == pytest.approx(expected, abs=1e-5 if function == "quantile" else None), name


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_means_of_durations_do_not_overflow(unit):
    seconds = 100 * 86_400 * {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    # The sums pass 64 bits of nanoseconds, and of any unit.
    for values in ([seconds] * 30_000, [2**63 - 1, 2**63 - 3, None], [-(2**63), 2 - 2**63], [5, 8], [None]):
        frame = pl.DataFrame({"at": range(len(values)), "m": pl.Series(values, dtype=pl.Duration(unit))})
        aggs = {"mean": ("m", "mean"), "avg": ("m", "avg")}
        found = rmq.window_join(frame.tail(1).select("at"), frame, on="at", window=(None, 0), aggs=aggs).to_polars()
        known = [value for value in values if value is not None]
        for mean in (found["mean"], found["avg"]):
            assert mean.dtype == frame["m"].dtype
            (mean,) = mean.to_physical()
            assert abs(mean - sum(known) // len(known)) <= 1 if known else mean is None


def test_aggregates_of_times_and_dates():
    frame = pl.DataFrame({"at": [1, 2], "d": [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)], "c": [datetime.time(1), datetime.time(2)]})
    frame = frame.with_columns(e=pl.Series(["low", "high"], dtype=pl.Enum(["low", "high"])))
    aggs = {"d": ("d", "mean"), "c": ("c", "mean"), "first": ("e", "first"), "last": ("e", "last")}
    found = rmq.window_join(frame.select("at"), frame, on="at", window=(None, 0), aggs=aggs).fetchall()
    assert found[1][1:] == (datetime.datetime(2026, 1, 1, 12), datetime.time(1, 30), "low", "high")
