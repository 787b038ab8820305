#!/usr/bin/env python3
"""The lowest quote within a second of each trade, from polars frames to a polars frame: the Python package beside polars, pandas, NumPy, DuckDB and chDB.

    python3 -m venv peers && peers/bin/pip install polars pandas pyarrow duckdb chdb target/wheels/datafusion_rmq-*.whl
    peers/bin/python benches/python_frames.py                 # all forms; names as arguments run only forms that contain one of them
    peers/bin/python benches/python_frames.py --index PROGRAM  # RangeIndex.min beside the program crates/rmq-engine/examples/file_ranges.rs

Each form runs in a process of its own on all cores: first with the import of its library, then again, of which the median is shown. All forms must give
the same count and sum. A form that takes longer than --timeout is stopped.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl

SECOND = 1_000_000


def make(folder, quotes, trades, symbols, per_window):
    """Quotes and trades at random times of ascending order, `per_window` quotes of a symbol within two seconds."""
    draw = np.random.default_rng(29)
    span = int(2 * SECOND * quotes / symbols / per_window)

    def frame(rows):
        times = np.sort(draw.integers(0, span, rows))
        names = pl.Series([f"S{i:03}" for i in range(symbols)])
        return pl.DataFrame({"sym": names.gather(draw.integers(0, symbols, rows)), "ts": pl.Series(times).cast(pl.Datetime("us"))})

    frame(quotes).with_columns(bid=pl.Series(draw.integers(9_000, 11_000, quotes) / 100)).write_parquet(folder / "quotes.parquet")
    frame(trades).with_row_index("id").write_parquet(folder / "trades.parquet")


def ours(trades, quotes):
    import datafusion_rmq as rmq

    return rmq.window_join(trades, quotes, on="ts", by="sym", window=("-1s", "1s"), aggs={"low": ("bid", "min")}, maintain_order=False).to_polars()


def ours_sql(trades, quotes):
    import datafusion_rmq as rmq

    return (
        rmq.connect()
        .sql(
            """SELECT t.id, min(q.bid) AS low FROM trades t LEFT JOIN quotes q ON q.sym = t.sym
               AND q.ts BETWEEN t.ts - INTERVAL '1 second' AND t.ts + INTERVAL '1 second' GROUP BY t.id"""
        )
        .to_polars()
    )


def bounded(trades):
    ts = pl.col("ts")
    return trades.lazy().select("id", "sym", opens=ts - timedelta(seconds=1), closes=ts + timedelta(seconds=1))


def join_where(engine):
    def run(trades, quotes):
        q = quotes.lazy()
        within = pl.col("sym") == pl.col("sym_right"), pl.col("ts") >= pl.col("opens"), pl.col("ts") <= pl.col("closes")
        return bounded(trades).join_where(q, *within).group_by("id").agg(low=pl.col("bid").min()).collect(engine=engine)

    return run


def by_buckets(engine):
    """With buckets as long as a window, a window overlaps one or two of them."""

    def run(trades, quotes):
        def bucket(column):
            return pl.col(column).cast(pl.Int64) // (2 * SECOND)

        q = quotes.lazy().with_columns(bucket=bucket("ts"))
        t = bounded(trades)
        first, last = t.with_columns(bucket=bucket("opens")), t.with_columns(bucket=bucket("closes"))
        both = pl.concat([first, last.filter(bucket("opens") != bucket("closes"))])
        pairs = both.join(q, on=["sym", "bucket"]).filter(pl.col("ts").is_between("opens", "closes"))
        return pairs.group_by("id").agg(low=pl.col("bid").min()).collect(engine=engine)

    return run


def both_tables(trades, quotes):
    """Trades a second later, among quotes, as polars' and pandas' windows end at a row."""
    moved = trades.lazy().with_columns(ts=pl.col("ts") + timedelta(seconds=1), bid=pl.lit(None, pl.Float64))
    return pl.concat([quotes.lazy().with_columns(id=pl.lit(None, pl.UInt32)), moved.select("sym", "ts", "bid", "id")], how="vertical")


def rolling_by(engine):
    def run(trades, quotes):
        low = pl.col("bid").rolling_min_by("ts", window_size=timedelta(seconds=2), closed="both", min_samples=1)
        # Quotes at the same time as a trade count whether they come before or after it, as the windows go by time.
        lows = both_tables(trades, quotes).sort("sym", "ts").with_columns(low=low.over("sym"))
        return lows.filter(pl.col("id").is_not_null()).select("id", "low").collect(engine=engine)

    return run


def pandas_rolling(trades, quotes):
    import pandas as pd

    # Quotes first among rows of one time, since pandas' windows end at the row.
    both = both_tables(trades, quotes).collect().to_pandas()
    both = both.sort_values(["sym", "ts", "id"], na_position="first").set_index("ts")
    low = both.groupby("sym", sort=True)["bid"].rolling(pd.Timedelta(seconds=2), closed="both", min_periods=1).min()
    both["low"] = low.to_numpy()
    return pl.from_pandas(both.loc[both["id"].notna(), ["id", "low"]])


def pandas_buckets(trades, quotes):
    import pandas as pd

    q, t = quotes.to_pandas(), trades.to_pandas()
    second, width = pd.Timedelta(seconds=1), pd.Timedelta(seconds=2)
    epoch = pd.Timestamp(0)
    t["opens"], t["closes"] = t["ts"] - second, t["ts"] + second
    q["bucket"] = (q["ts"] - epoch) // width
    first, last = t.assign(bucket=(t["opens"] - epoch) // width), t.assign(bucket=(t["closes"] - epoch) // width)
    both = pd.concat([first, last[last["bucket"] != first["bucket"]]]).drop(columns="ts")
    pairs = both.merge(q, on=["sym", "bucket"])
    pairs = pairs[(pairs["ts"] >= pairs["opens"]) & (pairs["ts"] <= pairs["closes"])]
    return pl.from_pandas(pairs.groupby("id")["bid"].min().rename("low").reset_index())


def numpy_reduceat(trades, quotes):
    """Symbols become numbers, and number and time one key, whose order is that of symbols and times."""
    names = pl.Enum(quotes["sym"].unique())
    place = pl.col("sym").cast(names).to_physical().cast(pl.Int64) * (1 << 42) + pl.col("ts").cast(pl.Int64)
    key = quotes.select(place).to_series().to_numpy()
    order = np.argsort(key)
    key, bid = key[order], quotes["bid"].to_numpy()[order]
    # In the order of the key, as reduceat also reduces what is between two ranges.
    trades = trades.select("id", at=place).sort("at")
    at = trades["at"].to_numpy()
    left, right = np.searchsorted(key, at - SECOND), np.searchsorted(key, at + SECOND, side="right")
    bounds = np.empty(2 * len(at), np.int64)
    bounds[::2], bounds[1::2] = left, right
    # reduceat needs positions in the array, and gives the value at an empty range's start.
    low = np.minimum.reduceat(np.append(bid, np.inf), bounds)[::2]
    return pl.DataFrame({"id": trades["id"], "low": np.where(left < right, low, np.nan)}).with_columns(pl.col("low").fill_nan(None))


BUCKETS = """SELECT b.id, min(q.bid) AS low FROM
    (SELECT id, sym, ts, unnest(CASE WHEN (epoch_us(ts) - 1000000) // 2000000 = (epoch_us(ts) + 1000000) // 2000000
       THEN [(epoch_us(ts) - 1000000) // 2000000] ELSE [(epoch_us(ts) - 1000000) // 2000000, (epoch_us(ts) + 1000000) // 2000000] END) AS k FROM trades) b
    JOIN quotes q ON q.sym = b.sym AND epoch_us(q.ts) // 2000000 = b.k
      AND q.ts BETWEEN b.ts - INTERVAL 1 SECOND AND b.ts + INTERVAL 1 SECOND GROUP BY b.id"""
RANGE = """SELECT t.id, min(q.bid) AS low FROM trades t LEFT JOIN quotes q ON q.sym = t.sym
    AND q.ts BETWEEN t.ts - INTERVAL 1 SECOND AND t.ts + INTERVAL 1 SECOND GROUP BY t.id"""
WINDOW = """SELECT id, min(bid) OVER (PARTITION BY sym ORDER BY ts RANGE BETWEEN INTERVAL 1 SECOND PRECEDING AND INTERVAL 1 SECOND FOLLOWING) AS low
    FROM (SELECT sym, ts, bid, NULL AS id FROM quotes UNION ALL SELECT sym, ts, NULL, id FROM trades) QUALIFY id IS NOT NULL"""
CHDB = """SELECT id, min(bid) AS low FROM
    (SELECT id, sym, arrayJoin(arrayDistinct([intDiv(toUnixTimestamp64Micro(ts) - 1000000, 2000000), intDiv(toUnixTimestamp64Micro(ts) + 1000000, 2000000)])) AS k,
       toUnixTimestamp64Micro(ts) AS at FROM Python(trades)) AS b
    JOIN (SELECT sym, intDiv(toUnixTimestamp64Micro(ts), 2000000) AS k, toUnixTimestamp64Micro(ts) AS at, bid FROM Python(quotes)) AS q
    ON q.sym = b.sym AND q.k = b.k WHERE q.at BETWEEN b.at - 1000000 AND b.at + 1000000 GROUP BY id"""


def in_duckdb(sql):
    def run(trades, quotes):
        import duckdb

        db = duckdb.connect()
        db.register("trades", trades)
        db.register("quotes", quotes)
        return db.sql(sql).pl()

    return run


def in_chdb(trades, quotes):
    import chdb

    trades, quotes = trades.to_arrow(), quotes.to_arrow()
    return pl.from_arrow(chdb.query(CHDB, "ArrowTable"))


FORMS = {
    "datafusion-rmq, window_join": ("datafusion_rmq", ours),
    "datafusion-rmq, LEFT JOIN … GROUP BY": ("datafusion_rmq", ours_sql),
    "polars, buckets, streaming": (None, by_buckets("streaming")),
    "polars, buckets, in memory": (None, by_buckets("in-memory")),
    "polars, rolling_min_by over both, streaming": (None, rolling_by("streaming")),
    "polars, rolling_min_by over both, in memory": (None, rolling_by("in-memory")),
    "polars, join_where, streaming": (None, join_where("streaming")),
    "polars, join_where, in memory": (None, join_where("in-memory")),
    "pandas, rolling over both": ("pandas", pandas_rolling),
    "pandas, merged by buckets": ("pandas", pandas_buckets),
    "NumPy, searchsorted and reduceat": (None, numpy_reduceat),
    "DuckDB, joined by buckets": ("duckdb", in_duckdb(BUCKETS)),
    "DuckDB, LEFT JOIN … GROUP BY": ("duckdb", in_duckdb(RANGE)),
    "DuckDB, a window over both": ("duckdb", in_duckdb(WINDOW)),
    "chDB, joined by buckets": ("chdb", in_chdb),
}


def child(form, folder, runs):
    """Runs one form, and prints the wall seconds of each run with the count and sum of the answers."""
    library, run = FORMS[form]
    trades, quotes = (pl.read_parquet(Path(folder) / f"{name}.parquet").rechunk() for name in ("trades", "quotes"))
    for _ in range(runs + 1):
        started = time.perf_counter(), time.process_time()
        if library:
            importlib.import_module(library)
        low = run(trades, quotes)["low"].drop_nulls()
        wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
        print(json.dumps([wall, cpu, len(low), round(float((low * 100).round().sum()))]), flush=True)


def measure(form, folder, args):
    command = [sys.executable, __file__, "--child", form, "--folder", str(folder), "--runs", str(args.runs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
        out, error = done.stdout, done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except subprocess.TimeoutExpired as stopped:
        out, error = (stopped.stdout or b"").decode(), [f"stopped after {args.timeout} s"]
    return [json.loads(line) for line in out.splitlines()], error


def frames(args, names):
    for per_window in args.per_window:
        print(f"\n{args.quotes} quotes, {args.trades} trades, {args.symbols} symbols, about {per_window} quotes in a window; {os.cpu_count()} cores\n")
        print("| | first, with import | again, median | CPU, median | trades with a quote, sum |\n|---|---|---|---|---|")
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), args.quotes, args.trades, args.symbols, per_window)
            expected = None
            for form in FORMS:
                if names and not any(name in form for name in names):
                    continue
                runs, error = measure(form, folder, args)
                if not runs:
                    print(f"| {form} | {'; '.join(error)} | | | |", flush=True)
                    continue
                answers = {tuple(run[2:]) for run in runs}
                expected = expected or answers
                wrong = "" if answers == expected else " WRONG"
                again = runs[1:] or runs
                wall, cpu = (statistics.median(run[i] for run in again) for i in (0, 1))
                count, total = min(answers)
                note = f" ({'; '.join(error)})" if error else ""
                print(f"| {form} | {runs[0][0]:.3f} s | {wall:.3f} s{note} | {cpu:.2f} s | {count}, {total}{wrong} |", flush=True)
                if wrong:
                    sys.exit(f"{form}: the answers are {answers}, not {expected}")


def index(program, args):
    """RangeIndex.min on one thread and Rust's engine, by turns, in CPU seconds of a query without the building of the index."""
    from datafusion_rmq import RangeIndex

    draw = np.random.default_rng(6)
    values = draw.random(args.ranges)
    left = draw.integers(0, args.ranges, args.ranges)
    right = np.minimum(left + draw.integers(0, 1000, args.ranges), args.ranges - 1)
    ours = RangeIndex(values, threads=1)
    ours.min(0, 1)
    python, rust = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, array in (("values", values), ("left", left), ("right", right)):
            array.tofile(f"{folder}/{name}")
        for _ in range(args.runs):
            started = time.process_time()
            lows = ours.min(left, right)
            python.append(time.process_time() - started)
            seconds, total = map(float, subprocess.run([program, folder], capture_output=True, text=True, check=True).stdout.split())
            rust.append(seconds)
            if abs(total - lows.sum()) > 1e-6 * total:
                sys.exit(f"the sum is {lows.sum()}, in Rust {total}")
    for name, times in (("RangeIndex.min", python), ("Rust", rust)):
        print(f"{name}: median {statistics.median(times):.3f} s of CPU time, best {min(times):.3f} s of {len(times)}")
    print(f"ratio of medians: {statistics.median(python) / statistics.median(rust):.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quotes", type=int, default=10_000_000)
    parser.add_argument("--trades", type=int, default=1_000_000)
    parser.add_argument("--symbols", type=int, default=1000)
    parser.add_argument("--per-window", type=int, nargs="+", default=[1, 200])
    parser.add_argument("--ranges", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--index", metavar="PROGRAM")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.folder, args.runs)
    elif args.index:
        index(args.index, args)
    else:
        frames(args, args.names)


if __name__ == "__main__":
    main()
