#!/usr/bin/env python3
"""DuckDB and Polars on the workloads of benches/range_join.rs: CPU seconds of the whole query on two threads.

Needs them installed: python3 -m venv peers && peers/bin/pip install duckdb polars pyarrow && peers/bin/python benches/range_join_peers.py
Names as arguments run only those parts: positions, trades.
"""

import os
import sys
import time
from datetime import timedelta

os.environ.setdefault("POLARS_MAX_THREADS", "2")

import duckdb
import polars as pl


def measure(what, run):
    times = []
    for _ in range(2):
        cpu, wall = time.process_time(), time.perf_counter()
        run()
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu, wall = min(times)
    print(f"  {what:<58} {cpu:9.3f} s CPU {wall:9.3f} s", flush=True)


def connect():
    db = duckdb.connect()
    db.execute("SET threads = 2")
    return db


def positions(n, ranges):
    """DuckDB's best form: a window over rows and ranges together, whose frame reaches back to the rows."""
    print(f"positions: {n} floats, {ranges} mixed ranges")
    db = connect()
    db.execute(f"CREATE TABLE vals AS SELECT range AS pos, random()::FLOAT AS v FROM range({n})")
    # Lengths spread evenly over their logarithms, as in the workload 'mixed'.
    db.execute(
        f"""CREATE TABLE queries AS SELECT id, l, least(l + len, {n - 1}) AS r FROM (
              SELECT range AS id, (random() * {n - 1})::BIGINT AS l, pow({n}, random())::BIGINT AS len FROM range({ranges}))"""
    )
    best = f"""WITH w AS (SELECT id - {ranges} AS o, l + {ranges} - id AS a, r + {ranges} - id AS b, NULL::FLOAT AS v, id FROM queries
                 UNION ALL SELECT pos, 0, 0, v, NULL FROM vals),
               d AS (SELECT id, min(v) OVER (ORDER BY o ROWS BETWEEN a FOLLOWING AND b FOLLOWING) AS m FROM w)
               SELECT sum(m) FROM d WHERE id IS NOT NULL"""
    measure("DuckDB, the best form", lambda: db.execute(best).fetchall())


def trades(quotes, count, spread, name):
    print(f"trades ({name}): {quotes} quotes, {count} trades, 1000 symbols")
    db = connect()
    db.execute(
        f"""CREATE TABLE quotes AS SELECT printf('S%04d', (random() * 1000)::INT % 1000) AS sym, make_timestamp(range * {spread}) AS ts,
              (random() * 1000000)::BIGINT AS price FROM range({quotes})"""
    )
    db.execute(
        f"""CREATE TABLE trades AS SELECT row_number() OVER (ORDER BY ts) - 1 AS id, * FROM (
              SELECT printf('S%04d', (random() * 1000)::INT % 1000) AS sym,
                make_timestamp((random() * {quotes * spread})::BIGINT) AS ts FROM range({count})) ORDER BY ts"""
    )
    # A trade's window touches one or two buckets of its length.
    bucketed = """WITH b AS (SELECT id, sym, ts, unnest([epoch_us(ts - INTERVAL 1 SECOND) // 2000000, epoch_us(ts + INTERVAL 1 SECOND) // 2000000]) AS k FROM trades)
                  SELECT sum(m) FROM (SELECT b.id, min(price) AS m FROM (SELECT DISTINCT * FROM b) b
                    JOIN quotes q ON q.sym = b.sym AND epoch_us(q.ts) // 2000000 = b.k
                    AND q.ts BETWEEN b.ts - INTERVAL 1 SECOND AND b.ts + INTERVAL 1 SECOND GROUP BY b.id)"""
    measure("DuckDB, joined by buckets", lambda: db.execute(bucketed).fetchall())
    q, t = db.sql("SELECT * FROM quotes").pl(), db.sql("SELECT * FROM trades").pl()

    def rolling():
        both = pl.concat([q.with_columns(id=pl.lit(None, pl.Int64)), t.select("sym", "ts", price=pl.lit(None, pl.Int64), id="id")], how="diagonal")
        low = pl.col("price").rolling_min_by("ts", window_size=timedelta(seconds=2), closed="both")
        # A window that ends at ts + 1 s: the trades are moved there.
        moved = both.with_columns(ts=pl.when(pl.col("id").is_not_null()).then(pl.col("ts") + timedelta(seconds=1)).otherwise(pl.col("ts")))
        return moved.sort("sym", "ts").with_columns(m=low.over("sym")).filter(pl.col("id").is_not_null()).select(pl.col("m").sum())

    measure("Polars, rolling_min_by over both", rolling)


if __name__ == "__main__":
    asked = sys.argv[1:]
    print(f"DuckDB {duckdb.__version__}, Polars {pl.__version__}")
    if not asked or "positions" in asked:
        positions(1 << 20, 1_000_000)
        positions(1 << 24, 100_000)
    if not asked or "trades" in asked:
        trades(10_000_000, 1_000_000, 2_000, "sparse")
        trades(10_000_000, 1_000_000, 10, "dense")
