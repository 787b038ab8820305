#!/usr/bin/env python3
"""benches/range_join.rs beside DuckDB and Polars on the same data: CPU seconds of the whole query on two threads, and ratios.

    python3 -m venv peers && peers/bin/pip install duckdb polars pyarrow
    peers/bin/python benches/range_join_peers.py

Builds and runs the benchmark, which writes its tables as Parquet, runs the same queries in DuckDB and Polars (in memory and
streaming), and checks that all return the same sum. Names as arguments run only those parts: positions, trades. RMQ_BENCH_BINARY names a benchmark that
is already built.
"""

import math
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

os.environ.setdefault("POLARS_MAX_THREADS", "2")

import duckdb
import polars as pl

RUNS = 5


def ours(parts, folder):
    """Runs the benchmark; returns for each case its forms with their CPU seconds and sums, in order."""
    binary = os.environ.get("RMQ_BENCH_BINARY")
    command = [binary] if binary else "cargo bench -p datafusion-rmq --profile quick --bench range_join --".split()
    run = subprocess.Popen(
        command + parts,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"RMQ_BENCH_DATA": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    cases, case = {}, None
    for line in run.stdout:
        print(line, end="", flush=True)
        if title := re.match(r"(\S+): ", line):
            case = cases.setdefault(title[1], {})
        elif row := re.match(r"  (.+?) +([\d.]+) s CPU +([\d.]+) s  = (.+)", line):
            case[row[1]] = (float(row[2]), float(row[4]))
    if run.wait() != 0:
        sys.exit("the benchmark failed")
    return cases


def measure(what, run):
    """Returns the best CPU time of a few runs, and the answer."""
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        answer = run()
        times.append(time.process_time() - start)
    print(f"  {what:<58} {min(times):9.3f} s CPU  = {answer}", flush=True)
    return min(times), float(answer)


def database(folder, tables):
    db = duckdb.connect()
    db.execute("SET threads = 2")
    for table in tables:
        db.execute(f"CREATE TABLE {table} AS SELECT * FROM '{folder}/{table}.parquet'")
    return db


def positions(folder):
    """DuckDB's fastest form: a window over the union of rows and ranges, whose frame covers the rows of a range."""
    db = database(folder, ["vals", "q"])
    (n,) = db.execute("SELECT count(*) FROM q").fetchone()
    best = f"""WITH w AS (SELECT id - {n} AS o, l + {n} - id AS a, r + {n} - id AS b, NULL::FLOAT AS v, id FROM q
                 UNION ALL SELECT pos, 0, 0, v, NULL FROM vals),
               d AS (SELECT id, min(v) OVER (ORDER BY o ROWS BETWEEN a FOLLOWING AND b FOLLOWING) AS m FROM w)
               SELECT sum(m) FROM d WHERE id IS NOT NULL"""
    return {"DuckDB, a window": measure("DuckDB, a window", lambda: db.execute(best).fetchone()[0])}


def trades(folder):
    db = database(folder, ["quotes", "trades"])
    # With buckets as long as a window, a window overlaps one or two of them.
    bucketed = """WITH b AS (SELECT id, sym, ts, unnest([epoch_us(ts - INTERVAL 1 SECOND) // 2000000, epoch_us(ts + INTERVAL 1 SECOND) // 2000000]) AS k FROM trades)
                  SELECT sum(m) FROM (SELECT b.id, min(price) AS m FROM (SELECT DISTINCT * FROM b) b
                    JOIN quotes q ON q.sym = b.sym AND epoch_us(q.ts) // 2000000 = b.k
                    AND q.ts BETWEEN b.ts - INTERVAL 1 SECOND AND b.ts + INTERVAL 1 SECOND GROUP BY b.id)"""
    found = {"DuckDB by buckets": measure("DuckDB, joined by buckets", lambda: db.execute(bucketed).fetchone()[0])}
    db.close()
    q, t = (pl.read_parquet(folder / f"{table}.parquet") for table in ("quotes", "trades"))
    for engine in ("streaming", "in-memory"):
        form = f"Polars by buckets, {engine}"
        found[form] = measure(form, lambda: polars_buckets(q, t).collect(engine=engine).item())
        form = f"Polars rolling, {engine}"
        found[form] = measure(form, lambda: polars_rolling(q, t).collect(engine=engine).item())
    return found


def polars_buckets(q, t):
    """With buckets as long as a window, a window overlaps one or two of them."""

    def bucket(column):
        return pl.col(column).dt.epoch("us") // 2_000_000

    q = q.lazy().with_columns(bucket=bucket("ts"))
    second = timedelta(seconds=1)
    t = t.lazy().select("id", "sym", opens=pl.col("ts") - second, closes=pl.col("ts") + second)
    first, last = t.with_columns(bucket=bucket("opens")), t.with_columns(bucket=bucket("closes"))
    both = pl.concat([first, last.filter(bucket("opens") != bucket("closes"))])
    pairs = both.join(q, on=["sym", "bucket"]).filter(pl.col("ts").is_between("opens", "closes"))
    return pairs.group_by("id").agg(m=pl.col("price").min()).select(pl.col("m").sum())


def polars_rolling(q, t):
    """Polars' windows end at the row, so trades are moved to ts + 1 s."""
    moved = t.lazy().select("sym", ts=pl.col("ts") + timedelta(seconds=1), price=pl.lit(None, pl.Int64), id="id")
    both = pl.concat([q.lazy().with_columns(id=pl.lit(None, pl.Int64)), moved], how="diagonal")
    low = pl.col("price").rolling_min_by("ts", window_size=timedelta(seconds=2), closed="both", min_samples=1)
    lows = both.sort("sym", "ts").with_columns(m=low.over("sym"))
    return lows.filter(pl.col("id").is_not_null()).select(pl.col("m").sum())


def main():
    parts = sys.argv[1:] or ["positions", "trades"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cases = ours(parts, folder)
        print(f"DuckDB {duckdb.__version__}, Polars {pl.__version__}")
        for case, forms in cases.items():
            if not (Path(folder) / case).exists():
                continue
            print(case)
            peers = (positions if case.startswith("positions") else trades)(Path(folder) / case)
            best = min(cpu for cpu, _ in peers.values())
            for what, (cpu, answer) in (forms | peers).items():
                expected = next(iter(forms.values()))[1]
                if not math.isclose(answer, expected, rel_tol=1e-5):
                    sys.exit(f"{case}, {what}: the sum is {answer}, not {expected}")
                rows.append((case, what, cpu, best / cpu))
    print("\n| | | CPU s | the best peer takes |\n|---|---|---|---|")
    for case, what, cpu, times in rows:
        print(f"| {case} | {what} | {cpu:.3f} | {times:.1f} times |")


if __name__ == "__main__":
    main()
