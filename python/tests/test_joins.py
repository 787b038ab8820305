"""The join functions and random range joins, compared with polars, DuckDB and plain loops."""

import datetime
import os
import random
import time

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest

import datafusion_rmq as rmq

TRADES = pl.DataFrame({"id": [1, 2, 3, 4], "sym": ["A", "B", None, "A"], "ts": [10, 20, 30, None]})
QUOTES = pl.DataFrame(
    {"sym": ["A", "A", "B", None, "A"], "ts": [7, 9, 12, 30, None], "bid": [1.5, 1.25, None, 2.0, 9.0]}
)


def rows(result):
    return sorted(result.fetchall(), key=repr)


@pytest.mark.parametrize("closed", ["both", "left", "right", "none"])
@pytest.mark.parametrize("window", [(-3, 0), (None, -1), (-1, None), (1, 5), (-2.5, 0.5)])
def test_window_join(closed, window):
    joined = rmq.window_join(
        TRADES,
        QUOTES,
        on="ts",
        by="sym",
        window=window,
        closed=closed,
        aggs={"lowest": ("bid", "min"), "n": ("*", "count"), "spread": "max(bid) - min(bid)"},
    )
    after = {"both": ">= <=", "left": ">= <", "right": "> <=", "none": "> <"}[closed].split()

    def within(quote, trade):
        if quote is None or trade is None:
            return False
        low, high = window
        low_met = low is None or (quote >= trade + low if after[0] == ">=" else quote > trade + low)
        high_met = high is None or (quote <= trade + high if after[1] == "<=" else quote < trade + high)
        return low_met and high_met

    expected = []
    for number, sym, ts in TRADES.iter_rows():
        matching = [bid for other, at, bid in QUOTES.iter_rows() if sym is not None and other == sym and within(at, ts)]
        bids = [bid for bid in matching if bid is not None]
        low, high = (min(bids), max(bids)) if bids else (None, None)
        expected.append((number, sym, ts, low, len(matching), None if low is None else high - low))
    assert rows(joined) == sorted(expected, key=repr)


def test_window_join_prevailing_and_names():
    trades = TRADES.rename({"sym": 'the "sym"', "ts": "At"})
    joined = rmq.window_join(
        trades,
        QUOTES,
        on=("At", "ts"),
        by=[('the "sym"', "sym")],
        window=(0, 0),
        aggs={"It's \"low\"": ("bid", "min")},
        prevailing=True,
    )
    assert joined.columns == ["id", 'the "sym"', "At", "It's \"low\""]
    assert {row[0]: row[3] for row in joined.fetchall()} == {1: 1.25, 2: None, 3: None, 4: None}
    explained = joined.explain()
    assert 'FROM range_join(' in explained and "RangeJoinExec" in explained


@pytest.mark.parametrize(
    "offset",
    [
        "-2s",
        "-2000ms",
        datetime.timedelta(seconds=-2),
        "-2000000us",
        "-2000000000ns",
        pd.Timedelta("-2s"),
        pd.Timedelta(-2, "s").as_unit("s"),
        np.timedelta64(-2, "s"),
        np.timedelta64(-2000, "ms"),
        np.timedelta64(-2_000_000_000, "ns"),
        np.timedelta64(-1, "2s"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_durations(offset, unit):
    start = datetime.datetime(2026, 3, 2, 9, 30)
    times = [start + datetime.timedelta(milliseconds=500 * i) for i in range(20)]
    quotes = pl.DataFrame({"ts": pl.Series(times).cast(pl.Datetime(unit)), "bid": range(20)})
    trades = quotes.select("ts")
    found = rmq.window_join(trades, quotes, on="ts", window=(offset, "0s"), aggs={"low": ("bid", "min")})
    assert [low for _, low in rows(found)] == [max(0, i - 4) for i in range(20)]


@pytest.mark.parametrize(
    ("offset", "seen"),
    [
        (pd.Timedelta("-1ns"), [3, 4]),
        (pd.Timedelta("-1001ns"), [0, 1, 2, 3, 4]),
        (pd.Timedelta("-1000ns"), [1, 2, 3, 4]),
        (np.timedelta64(-1, "ns"), [3, 4]),
        ("-1ns", [3, 4]),
        ("-999ns", [2, 3, 4]),
    ],
    ids=repr,
)
def test_nanoseconds(offset, seen):
    start = np.datetime64("2026-03-02T09:30", "ns")
    quotes = pl.DataFrame({"ts": start + np.array([0, 1, 2, 1000, 1001]).astype("m8[ns]"), "v": range(5)})
    trades = quotes[4:].select("ts")
    found = rmq.window_join(trades, quotes, on="ts", window=(offset, "0s"), aggs={"vs": "array_agg(v)"})
    assert sorted(found.fetchall()[0][1]) == seen


@pytest.mark.parametrize("back", [np.float64(-2.5), np.float32(-2.5), np.int64(-2), np.int8(-2), np.uint8(2)], ids=repr)
def test_numbers_of_numpy(back):
    found = rmq.window_join(TRADES, QUOTES, on="ts", window=(back, np.float64(3)), aggs={"n": "count(*)"})
    expected = rmq.window_join(TRADES, QUOTES, on="ts", window=(float(back), 3), aggs={"n": "count(*)"})
    assert rows(found) == rows(expected)


def test_calendar_durations():
    days = pl.DataFrame({"ts": [datetime.datetime(2026, 3, 31), datetime.datetime(2026, 2, 28)], "v": [1, 2]})
    found = rmq.window_join(days, days, on="ts", window=("-1mo", "0d"), aggs={"n": "count(*)"})
    assert [row[2] for row in rows(found)] == [1, 2]
    found = rmq.window_join(days, days, on="ts", window=("-1w3d", "+4w3d"), aggs={"n": "count(*)"})
    assert [row[2] for row in rows(found)] == [2, 1]
    found = rmq.window_join(days, days, on="ts", window=(np.timedelta64(-1, "M"), np.timedelta64(0, "D")), aggs={"n": "count(*)"})
    assert [row[2] for row in rows(found)] == [1, 2]


def test_asof_join():
    both = rmq.asof_join(TRADES, QUOTES, on="ts", by="sym")
    assert both.columns == ["id", "sym", "ts", "bid"]
    assert {row[0]: row[3] for row in both.fetchall()} == {1: 1.25, 2: None, 3: None, 4: None}
    forward = rmq.asof_join(TRADES, QUOTES.rename({"ts": "at"}), on=("ts", "at"), direction="forward", suffix="_q")
    assert forward.columns == ["id", "sym", "ts", "sym_q", "at", "bid"]
    assert {row[0]: row[4] for row in forward.fetchall()} == {1: 12, 2: 30, 3: 30, 4: None}
    near = rmq.asof_join(TRADES, QUOTES, on="ts", tolerance=1, suffix="_q")
    assert {row[0]: row[4] for row in near.fetchall()} == {1: 1.25, 2: None, 3: 2.0, 4: None}
    strict = rmq.asof_join(TRADES, QUOTES, on="ts", allow_exact_matches=False)
    assert {row[0]: row[4] for row in strict.fetchall()} == {1: 1.25, 2: None, 3: None, 4: None}
    assert "ASOF JOIN" in near.explain() and "RangeJoinExec" in near.explain()
    nearest = rmq.asof_join(TRADES, QUOTES, on="ts", by="sym", direction="nearest")
    assert nearest.columns == ["id", "sym", "ts", "bid"]
    assert {row[0]: row[3] for row in nearest.fetchall()} == {1: 1.25, 2: None, 3: None, 4: None}
    assert "ASOF JOIN" in nearest.explain() and nearest.explain().count("RangeJoinExec") >= 2


def nearest_of(keys, at, strict, tolerance):
    """The least distance, and of the keys at it the least."""
    near = [(abs(key - at), key) for key in keys if key is not None and not (strict and key == at)] if at is not None else []
    near = [one for one in near if tolerance is None or one[0] <= tolerance]
    return min(near)[1] if near else None


@pytest.mark.parametrize("kind", ["i8", "u4", "f8", "M8[us]", "M8[D]", "m8[ms]"])
def test_asof_join_to_the_nearest(kind):
    seed = int(os.environ.get("RMQ_TEST_SEED", time.time_ns()))
    print(f"nearest: RMQ_TEST_SEED={seed}")
    draw = random.Random(seed)
    con = rmq.connect(target_partitions=2)

    def frame(size, name):
        numbers = [None if draw.random() < 0.1 else draw.randrange(60) for _ in range(size)]
        shown = pl.Series(name, [number or 0 for number in numbers], dtype=pl.Int64)
        array = shown.to_numpy().astype(kind)
        if kind == "M8[D]":
            column = pl.Series(name, array.astype("M8[ms]")).cast(pl.Date)
        else:
            column = pl.Series(name, array)
        column = column.zip_with(pl.Series([number is not None for number in numbers], dtype=pl.Boolean), pl.Series(name, [None] * size, dtype=column.dtype))
        keys = [draw.choice("ab") for _ in range(size)]
        made = pl.DataFrame({"k": pl.Series(keys, dtype=pl.String), name: column, f"{name}_number": pl.Series(numbers, dtype=pl.Int64)})
        return made, list(zip(keys, numbers))

    units = {"M8[us]": datetime.timedelta(microseconds=7), "M8[D]": "7d", "m8[ms]": "7ms"}
    for _ in range(12):
        left, probes = frame(draw.choice([0, 1, 30]), "ts")
        right, searched = frame(draw.choice([0, 1, 5, 80]), "at")
        for strict in (False, True):
            for tolerance in (None, 7):
                joined = rmq.asof_join(
                    left.with_row_index("id"),
                    right,
                    on=("ts", "at"),
                    by="k",
                    direction="nearest",
                    allow_exact_matches=not strict,
                    tolerance=tolerance and units.get(kind, tolerance),
                    connection=con,
                )
                found = {row[0]: row[-1] for row in joined.fetchall()}
                expected = {
                    i: nearest_of([key for other, key in searched if other == k], at, strict, tolerance)
                    for i, (k, at) in enumerate(probes)
                }
                assert found == expected, (strict, tolerance)


def test_asof_join_with_tables_of_a_connection():
    con = rmq.connect().register("trades", TRADES).register("quotes", QUOTES)
    joined = rmq.asof_join("trades", "quotes", on="ts", by="sym", connection=con)
    assert {row[0]: row[3] for row in joined.fetchall()} == {1: 1.25, 2: None, 3: None, 4: None}
    again = rmq.window_join("quotes", "quotes", on="ts", window=(-2, 0), aggs={"n": "count(*)"}, connection=con)
    assert sorted((row[1] or 0, row[3]) for row in again.fetchall()) == [(0, 0), (7, 1), (9, 2), (12, 1), (30, 1)]
    with pytest.raises(rmq.Error, match="nowhere"):
        rmq.asof_join("nowhere", "quotes", on="ts", connection=con)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_overlap_join(how, closed):
    draw = random.Random(5)
    spans = [(draw.choice("AB"), s, s + draw.randrange(6)) for s in (draw.randrange(40) for _ in range(60))]
    left = pl.DataFrame(spans[:30], schema=["k", "start", "end"], orient="row").with_row_index("l")
    right = pl.DataFrame(spans[30:], schema=["k", "start", "end"], orient="row").with_row_index("r")

    def overlap(a, b):
        return a[1] == b[1] and (a[2] <= b[3] and b[2] <= a[3] if closed else a[2] < b[3] and b[2] < a[3])

    expected = []
    for a in left.iter_rows():
        matching = [b for b in right.iter_rows() if overlap(a, b)]
        if how in ("inner", "left"):
            expected += [a + (b[0], b[2], b[3]) for b in matching]
        if how == "left" and not matching:
            expected.append(a + (None, None, None))
        if how == ("semi" if matching else "anti"):
            expected.append(a)
    joined = rmq.overlap_join(left, right, by="k", how=how, closed=closed)
    assert rows(joined) == sorted(expected, key=repr)
    explained = joined.explain()
    assert explained.startswith("SELECT ") and "RangeJoinExec" in explained


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"on": "nothing"}, ValueError, "left has no column 'nothing'; it has id, sym, ts"),
        ({"on": ("ts", "at")}, ValueError, "right has no column 'at'"),
        ({"by": "id"}, ValueError, "right has no column 'id'"),
        ({"by": 5}, TypeError, "by=5"),
        ({"window": (None, None)}, ValueError, "window="),
        ({"window": "2s"}, TypeError, "window='2s'"),
        ({"window": ("2 parsecs", 0)}, ValueError, "offset '2 parsecs'"),
        ({"window": (float("nan"), 0)}, ValueError, "offset nan"),
        ({"window": (True, 0)}, TypeError, "offset True"),
        ({"window": (np.bool_(True), 0)}, TypeError, "offset np.True_"),
        ({"window": (np.float64("inf"), 0)}, ValueError, "offset np.float64"),
        ({"window": (np.timedelta64("NaT"), 0)}, ValueError, "offset np.timedelta64"),
        ({"window": (np.timedelta64(5), 0)}, ValueError, "offset np.timedelta64"),
        ({"window": (np.timedelta64(5, "ps"), 0)}, ValueError, "offset np.timedelta64"),
        ({"aggs": {}}, ValueError, "aggs="),
        ({"aggs": {"a": ("bid", "min); DROP TABLE x; --")}}, TypeError, "aggs\\['a'\\]"),
        ({"aggs": {"a": 7}}, TypeError, "aggs\\['a'\\]=7"),
        ({"closed": "ends"}, ValueError, "closed='ends'"),
        ({"aggs": {"a": ("bid", "no_such_aggregate")}}, rmq.Error, "no_such_aggregate"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    good = {"on": "ts", "by": "sym", "window": (-1, 0), "aggs": {"low": ("bid", "min")}}
    with pytest.raises(error, match=message):
        rmq.window_join(TRADES, QUOTES, **(good | arguments)).fetchall()


def test_other_wrong_arguments():
    with pytest.raises(ValueError, match="direction='around'"):
        rmq.asof_join(TRADES, QUOTES, on="ts", direction="around")
    with pytest.raises(ValueError, match="how='outer'"):
        rmq.overlap_join(TRADES, QUOTES, on=("ts", "ts"), how="outer")
    with pytest.raises(ValueError, match="suffix=''"):
        rmq.asof_join(TRADES, QUOTES, on="ts", suffix="")
    for on in ("ts", ("ts",), (("ts", "ts"), "ts"), ((1, 2), (3, 4))):
        with pytest.raises(TypeError, match="on=.*: a .*pair"):
            rmq.overlap_join(TRADES, QUOTES, on=on)
    named = rmq.overlap_join(TRADES, QUOTES.rename({"ts": "at"}), on=(("ts", "ts"), ("at", "at")), closed=True)
    assert [(row[0], row[4]) for row in named.fetchall()] == [(3, 30)]
    with pytest.raises(TypeError, match="left: .*int is no table"):
        rmq.asof_join(5, QUOTES, on="ts")


def random_frames(draw):
    def frame(size, at):
        late = draw.choice([10, 100, 1000])
        nulls = draw.choice([0, 0, 0.2])

        def maybe(value):
            return None if draw.random() < nulls else value

        columns = {
            "k": pl.Series([maybe(draw.choice("abcdef"[: draw.randrange(1, 7)])) for _ in range(size)], dtype=pl.String),
            at: pl.Series([maybe(draw.randrange(late)) for _ in range(size)], dtype=pl.Int64),
            "v": pl.Series([maybe(draw.choice([-1.5, 0.25, 7.0, draw.randrange(100) / 4])) for _ in range(size)], dtype=pl.Float64),
        }
        made = pl.DataFrame(columns)
        if draw.random() < 0.3:
            made = made.sort(at)
        if draw.random() < 0.3:
            made = made.with_columns(pl.col("k").cast(pl.Categorical))
        if size > 2 and draw.random() < 0.3:
            cut = draw.randrange(size)
            made = pl.concat([made[:cut], made[cut:]], rechunk=False)
        return made

    sizes = [0, 1, 5, 60, 200]
    left = frame(draw.choice(sizes), "ts").with_row_index("id")
    return left, frame(draw.choice(sizes), "at")


# Seeds of joins that once failed.
FAILED = []


def test_500_random_range_joins():
    fixed = 20260302
    seed = int(os.environ.get("RMQ_TEST_SEED", time.time_ns()))
    print(f"random range joins: RMQ_TEST_SEED={seed}")
    cases = [*FAILED, *(random.Random(fixed + i).randrange(2**63) for i in range(250))]
    cases += [random.Random(seed + i).randrange(2**63) for i in range(250)]
    if "RMQ_TEST_CASE" in os.environ:
        cases = [int(os.environ["RMQ_TEST_CASE"])]
    con = rmq.connect(target_partitions=2)
    other = duckdb.connect()
    for case in cases:
        draw = random.Random(case)
        left, right = random_frames(draw)
        low, high = sorted((draw.randrange(-20, 20), draw.randrange(-20, 20)))
        ends = draw.choice([(">=", "<="), (">", "<"), (">=", "<"), (">", "<=")])
        by = draw.random() < 0.7
        ours = con.sql(
            f"""SELECT l.id, count(r.v) AS n, min(r.v) AS low, max(r.v) AS high, sum(r.v) AS total
                FROM left l LEFT JOIN right r ON {"r.k = l.k AND" if by else ""}
                     r.at {ends[0]} l.ts + $low AND r.at {ends[1]} l.ts + $high GROUP BY l.id ORDER BY l.id""".replace(
                "left l", '"left" l'
            ).replace("right r", '"right" r'),
            {"low": low, "high": high},
        ).fetchall()
        plain_left, plain_right = (f.with_columns(pl.col("k").cast(pl.String)) for f in (left, right))
        if case % 2:
            condition = [
                (pl.col("at") >= pl.col("ts") + low) if ends[0] == ">=" else (pl.col("at") > pl.col("ts") + low),
                (pl.col("at") <= pl.col("ts") + high) if ends[1] == "<=" else (pl.col("at") < pl.col("ts") + high),
            ]
            if by:
                condition.append(pl.col("k") == pl.col("k_right"))
            v = pl.col("v_right")
            found = (
                plain_left.join_where(plain_right, *condition)
                .group_by("id")
                .agg(n=v.count(), low=v.min(), high=v.max(), total=pl.when(v.count() > 0).then(v.sum()))
            )
            theirs = (
                plain_left.select("id").join(found, on="id", how="left").sort("id").with_columns(pl.col("n").fill_null(0))
            ).rows()
        else:
            other.register("l", plain_left.to_arrow())
            other.register("r", plain_right.to_arrow())
            theirs = other.execute(
                f"""SELECT l.id, count(r.v), min(r.v), max(r.v), sum(r.v) FROM l LEFT JOIN r ON
                    {"r.k = l.k AND" if by else ""} r.at {ends[0]} l.ts + {low} AND r.at {ends[1]} l.ts + {high}
                    GROUP BY l.id ORDER BY l.id"""
            ).fetchall()
        assert ours == theirs, f"RMQ_TEST_CASE={case}"
