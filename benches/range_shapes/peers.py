#!/usr/bin/env python3
"""benches/range_shapes beside DuckDB on the same tables: CPU seconds of the whole query on two threads, and ratios.

    python3 -m venv peers && peers/bin/pip install duckdb
    peers/bin/python benches/range_shapes/peers.py [--series FOLDER] [QUERY ...]

Timestamps are random, symbols have Zipf frequencies. FOLDER has CSV files with the columns timestamp and value, one series each, such as realTweets of the
Numenta Anomaly Benchmark; without it the queries over series are left out. RMQ_BENCH_BINARY names a benchmark that is already built.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

HERE = Path(__file__).parent

# Number i of sequence s, uniform in [0, 1).
UNIT = "((hash({s}::UBIGINT * 281474976710656 + i::UBIGINT) >> 11)::DOUBLE / 9007199254740992)"

# Each query with the share of its probe rows that DuckDB gets: where it compares pairs, its time is in proportion to them.
QUERIES = {
    "exists": 1.0,
    "pairs": 1.0,
    "many_pairs": 1.0,
    "as_of": 1.0,
    "overlap": 1.0,
    "median": 1.0,
    "threshold": 0.001,
}


def unit(sequence):
    return UNIT.format(s=sequence)


def symbol(sequence, symbols):
    return f"'S' || (pow({symbols + 1}, {unit(sequence)}) - 1)::INTEGER"


def times(sequence, gap):
    """Ascending times in microseconds whose gaps are distributed exponentially."""
    step = f"floor(-ln({unit(sequence)} + 1e-17) * {gap})::BIGINT"
    return f"make_timestamp((sum({step}) OVER (ORDER BY i ROWS UNBOUNDED PRECEDING))::BIGINT)"


def tables(args):
    """The SQL of each table."""
    n = int(1e7 * args.scale)
    q = int(1e6 * args.scale)
    found = {
        "quotes": f"SELECT i AS pos, {symbol(1, 1000)} AS sym, {times(2, 400)} AS ts, 100 + floor({unit(3)} * 262144) / 262144 AS price FROM range({n}) r(i)",
        "trades": f"SELECT i AS id, {symbol(4, 1000)} AS sym, {times(5, 4000)} AS ts FROM range({q}) r(i)",
        "few_trades": f"SELECT i AS id, {symbol(4, 1000)} AS sym, {times(5, 40000)} AS ts FROM range({q // 10}) r(i)",
        "orders": f"""SELECT i AS id, {symbol(6, 1000)} AS sym, make_timestamp((4e9 * {args.scale} * {unit(7)})::BIGINT) AS ts,
            100 + pow(10, -4 + 3 * {unit(8)}) AS price_limit FROM range({q}) r(i)""",
        "windows": f"SELECT a, a + 199 AS b FROM (SELECT floor({unit(9)} * {n - 200})::BIGINT AS a FROM range({q}) r(i))",
    }
    for table, sequence in (("spans", 10), ("stays", 12)):
        start, length = f"(1e9 * {unit(sequence)})::BIGINT", f"(-ln({unit(sequence + 1)} + 1e-17) * 5e9 / {q})::BIGINT"
        found[table] = f"SELECT i AS id, start, start + length AS stop FROM (SELECT i, {start} AS start, {length} AS length FROM range({q}) r(i))"
    if args.series:
        found["series"] = f"""SELECT parse_filename(filename, true) AS name, timestamp AS ts, value::DOUBLE AS value
            FROM read_csv('{args.series}/*.csv', filename = true) ORDER BY name, ts"""
    return found


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def duckdb_times(db, sql, runs):
    """The least CPU time of a few runs, its wall time, and the answer."""
    best = None
    for _ in range(runs):
        cpu, wall = cpu_seconds(), time.perf_counter()
        row = db.execute(sql).fetchone()
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
        if best is None or cpu < best[0]:
            best = cpu, wall, row
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", nargs="*", help=", ".join(QUERIES))
    parser.add_argument("--series", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--copy", action="store_true", help="compare the pairs of pair_rows.sql with a copy of them, without DuckDB")
    args = parser.parse_args()
    names = args.queries or [name for name in QUERIES if args.series or name not in ("exists", "pairs")]
    binary = os.environ.get("RMQ_BENCH_BINARY")
    command = [binary] if binary else "cargo bench -p datafusion-rmq --profile quick --bench range_shapes --".split()
    with tempfile.TemporaryDirectory() as folder:
        db = duckdb.connect()
        db.execute(f"SET threads = {args.threads}")
        for name, sql in tables(args).items():
            db.execute(f"CREATE TABLE {name} AS {sql}")
            db.execute(f"COPY {name} TO '{folder}/{name}.parquet'")
        files = [str(HERE / f"{name}.sql") for name in names]
        threads = ["--threads", str(args.threads), "--runs", str(args.runs)]
        if args.copy:
            subprocess.run(command + [folder, str(HERE / "pair_rows.sql"), "--copy"] + threads, check=True, cwd=HERE.parent.parent)
            return
        run = subprocess.run(command + [folder] + files + threads, capture_output=True, text=True, cwd=HERE.parent.parent)
        if run.returncode != 0:
            sys.exit(run.stdout + run.stderr)
        ours = {}
        for line in run.stdout.splitlines():
            figures, answer = line.split(" = ")
            name, cpu, wall, peak = figures.split()
            ours[name] = float(cpu), float(wall), int(peak), answer
        print("| query | CPU s | wall s | MiB | DuckDB, CPU s | wall s | ratio of CPU |\n|---|---|---|---|---|---|---|")
        for name in names:
            share = QUERIES[name]
            sql = (HERE / f"{name}.duckdb.sql").read_text()
            if share < 1:
                db.execute(f"CREATE OR REPLACE VIEW few_orders AS SELECT * FROM orders WHERE id < {int(1e6 * args.scale * share)}")
                sql = sql.replace("FROM orders", "FROM few_orders")
            cpu, wall, row = duckdb_times(db, sql, args.runs if share == 1 else 1)
            cpu, wall = cpu / share, wall / share
            note = "" if share == 1 else f" (from {share:g} of the probe rows)"
            our_cpu, our_wall, peak, answer = ours[name]
            print(f"| {name} | {our_cpu:.3f} | {our_wall:.3f} | {peak} | {cpu:.3f}{note} | {wall:.3f} | 1/{cpu / our_cpu:.1f} |", flush=True)
            print(f"  ours {answer}; DuckDB {row}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
