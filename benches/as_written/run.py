#!/usr/bin/env python3
"""Queries as an analyst writes them first (tasks/*.sql), beside their canonical form and DuckDB, on two threads.

    python3 -m venv peers && peers/bin/pip install duckdb
    peers/bin/python benches/as_written/run.py RMQ [--series FILE.csv ...] [--prices FILE.csv ...] [TASK ...]

RMQ is the shell's binary. A task is NAME.sql, with its canonical form in NAME.canonical.sql where that is another, and in NAME.duckdb.sql what DuckDB takes instead.
Tables come from a seed; --series has CSV files with the columns timestamp and value, one sensor each, and --prices with date and close, one symbol each. They are
written as Parquet files. Each run is a process (a connection of DuckDB) of its own, so no index is kept; seconds are the median of the runs, with collecting the rows,
as Arrow in DuckDB, but without printing them. Below the table stand how many are as fast as the canonical form, and which are slower than DuckDB. Rows are compared as sets with repetitions: floats may differ by 1e-9 of the larger one, all else is exact.
"""

import argparse
import csv
import math
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import duckdb

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "range_shapes"))

from peers import symbol, times, unit  # noqa: E402

TASKS = HERE / "tasks"
TOLERANCE = 1e-9
MEMORY = 12 << 30

# Operators that every plan has, or that say nothing about how ranges are searched.
COMMON = {"DataSource", "Repartition", "CoalescePartitions", "CoalesceBatches", "Projection", "Filter", "Aggregate", "Sort", "SortPreservingMerge", "CooperativeExec"}
COMMON |= {"Cooperative", "GlobalLimit", "LocalLimit", "PlaceholderRow", "Unnest", "UniqueGroups", "Union", "Interleave", "PartialSort", "PrepareIndexes"}


def between(low, high, sequence):
    """A random time of whole seconds."""
    return f"date_trunc('second', {low} + to_seconds(floor({unit(sequence)} * epoch({high} - {low}))))"


def wave(time, sequence):
    """A price at a time: an exact sum in any order."""
    return f"round((100 + 2 * sin(epoch({time}) / 9000) + {unit(sequence)}) * 128) / 128"


def tables(args):
    """The SQL of each table, which may read the ones before it."""
    files = lambda paths: "[" + ", ".join(f"'{path}'" for path in paths) + "]"
    n = lambda rows: int(rows * args.scale)
    s = args.seed * 100
    at = lambda gap, sequence: f"{times(s + sequence, gap)} + INTERVAL 16436 DAY"
    random_sensor = lambda rows, sequence: f"range({rows}) r(i) JOIN sensors ON k = floor({unit(s + sequence)} * (SELECT count(*) FROM sensors))"
    step = n(4000)
    series = f"""SELECT i AS id, 'S' || i // {step} AS s,
            TIMESTAMP '2015-02-26 21:42:53' + to_minutes(5 * (i % {step} - ({unit(s + 1)} < 0.002)::BIGINT)) AS ts,
            CASE WHEN {unit(s + 2)} > 0.005 THEN sum(floor({unit(s + 3)} * 129) - 64) OVER (PARTITION BY i // {step} ORDER BY i) / 64 END AS v
        FROM range({40 * step}) r(i)"""
    series = f"SELECT id, s, ts, v::DOUBLE AS v FROM ({series}) p(id, s, ts, v), LATERAL (SELECT id AS i) WHERE {unit(s + 4)} > 0.044"
    if args.series:
        series = f"""SELECT row_number() OVER (ORDER BY s, ts, n) - 1 AS id, s, ts, v FROM (
            SELECT parse_filename(filename, true) AS s, timestamp AS ts, value::DOUBLE AS v, row_number() OVER () AS n
            FROM read_csv({files(args.series)}, filename = true))"""
    prices = f"""SELECT 'P' || i // 5000 AS sym, DATE '2000-01-03' + (i % 5000 // 5 * 7 + i % 5)::INTEGER AS day,
            1000 + sum(floor({unit(s + 5)} * 131) - 64) OVER (PARTITION BY i // 5000 ORDER BY i) / 64 AS close
        FROM range(20000) r(i) ORDER BY sym, day"""
    if args.prices:
        prices = f"SELECT parse_filename(filename, true) AS sym, date AS day, close FROM read_csv({files(args.prices)}, filename = true) ORDER BY sym, day"
    return {
        "points": f"{series} ORDER BY s, ts, id",
        "sensors": "SELECT s, min(ts) AS low, max(ts) AS high, row_number() OVER (ORDER BY s) - 1 AS k FROM points GROUP BY s",
        "alarms": f"""SELECT i AS id, s, {between('low', 'high', s + 7)} AS ts, 1 + floor({unit(s + 8)} * 3)::INTEGER AS level
            FROM {random_sensor(n(10000), 6)} ORDER BY id""",
        "sessions": f"""SELECT i AS id, s, started, CASE WHEN {unit(s + 10)} > 0.1 THEN started + to_seconds(floor(-ln({unit(s + 11)} + 1e-17) * 14400)) END AS ended
            FROM (SELECT i, s, {between('low', 'high', s + 12)} AS started FROM {random_sensor(n(5000), 9)}) ORDER BY id""",
        "limits": f"""SELECT s, valid_from, lead(valid_from) OVER (PARTITION BY s ORDER BY valid_from) AS valid_to, floor({unit(s + 13)} * 100) AS top
            FROM (SELECT s, date_trunc('second', low + i * ((high - low) / 20)) AS valid_from, k * 20 + i AS i FROM sensors, range(20) r(i)) ORDER BY s, valid_from""",
        "log": f"""SELECT s, i AS line, strftime({between('low', 'high', s + 15)}, '%Y-%m-%d %H:%M:%S') AS at
            FROM {random_sensor(n(50000), 14)} ORDER BY line""",
        "quotes": f"""SELECT sym, ts, bid, bid + (1 + floor({unit(s + 18)} * 8)) / 128 AS ask
            FROM (SELECT i, {symbol(s + 16, 20)} AS sym, ts, {wave('ts', s + 17)} AS bid FROM (SELECT i, {at(4300000, 19)} AS ts FROM range({n(100000)}) r(i))) ORDER BY ts""",
        "trades": f"""SELECT i AS id, {symbol(s + 20, 20)} AS sym, ts, {wave('ts', s + 21)} AS price, 1 + floor({unit(s + 22)} * 30)::BIGINT AS qty
            FROM (SELECT i, {at(21500000, 23)} AS ts FROM range({n(20000)}) r(i)) ORDER BY id""",
        "orders": "SELECT id, sym, ts AT TIME ZONE 'UTC' AS ts FROM trades WHERE id % 4 = 0 ORDER BY id",
        "levels": f"SELECT i AS id, {symbol(s + 24, 20)} AS sym, 97 + 7 * {unit(s + 25)} AS level FROM range({n(2000)}) r(i) ORDER BY id",
        "days": "SELECT DISTINCT sym, ts::DATE AS day FROM quotes ORDER BY sym, day",
        "prices": prices,
        "rates": f"""SELECT DISTINCT left(digits, 1 + i % 4) AS prefix, 1 + length(left(digits, 1 + i % 4)) AS rate
            FROM (SELECT i, (1000 + floor({unit(s + 26)} * 9000))::BIGINT::VARCHAR AS digits FROM range(2000) r(i)) ORDER BY prefix""",
        "calls": f"SELECT i AS id, (1000000 + floor({unit(s + 27)} * 9000000))::BIGINT::VARCHAR AS number FROM range({n(20000)}) r(i) ORDER BY id",
    }


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


class Rmq:
    def __init__(self, binary, folder, names, args):
        external = [f"CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{folder}/{name}.parquet'" for name in names]
        settings = [f"SET {setting}" for setting in args.set]
        self.setup = [f"SET datafusion.execution.target_partitions = {args.threads}", *settings, *external]
        self.binary, self.timeout = binary, args.timeout

    def run(self, sql, *format):
        """What the shell prints after the statements of the setup, or why it printed nothing."""
        sql = re.sub(r"^--.*\n", "", sql)
        command = [self.binary, *(format or ("--format", "csv", "--maxrows", "inf", "--null", r"\N"))]
        try:
            run = subprocess.run(command + ["-c", "; ".join([*self.setup, sql])], capture_output=True, text=True, timeout=self.timeout, preexec_fn=limit_memory)
        except subprocess.TimeoutExpired:
            return None, f"> {self.timeout:g}"
        if run.returncode != 0:
            return None, "error: " + " ".join((run.stderr or run.stdout).split())[:300]
        lines = run.stdout.splitlines()
        last = max(i for i, line in enumerate(lines[:-4]) if line.startswith("Elapsed")) if len(lines) > 4 else 0
        return [line for line in lines[last + 1 :] if line], None

    def rows(self, sql):
        """Why there is no answer, if there is none, and its rows."""
        lines, failure = self.run(sql)
        return failure, None if failure else list(csv.reader(lines[1:-2]))

    def seconds(self, sql):
        """The seconds of the query, whose rows are collected; one is printed."""
        lines, failure = self.run(sql, "--format", "table", "--maxrows", "1")
        return failure or float(lines[-1].split()[1])

    def operators(self, sql):
        lines, failure = self.run("EXPLAIN FORMAT INDENT " + re.sub(r"^--.*\n", "", sql))
        found = re.findall(r"(\w+)Exec\b", "\n".join(lines or []))
        return ", ".join(name for name in dict.fromkeys(found) if name not in COMMON) or (failure or "")


class DuckDB:
    def __init__(self, folder, names, args):
        self.folder, self.names, self.args = folder, names, args

    def rows(self, sql):
        return self.query(sql)

    def seconds(self, sql):
        return self.query(sql)[0]

    def query(self, sql):
        db = duckdb.connect(config={"threads": self.args.threads, "memory_limit": f"{MEMORY}B"})
        # NULLs are ordered as DataFusion does it.
        db.execute("SET default_null_order = 'nulls_last_on_asc_first_on_desc'; SET TimeZone = 'UTC'")
        for name in self.names:
            db.execute(f"CREATE VIEW {name} AS FROM '{self.folder}/{name}.parquet'")
        timer = threading.Timer(self.args.timeout, db.interrupt)
        timer.start()
        try:
            start = time.perf_counter()
            answer = db.sql(sql).to_arrow_table()
            seconds = time.perf_counter() - start
            return seconds, db.from_arrow(answer).fetchall()
        except duckdb.InterruptException:
            return f"> {self.args.timeout:g}", None
        except duckdb.Error as error:
            return "error: " + " ".join(str(error).split())[:300], None
        finally:
            timer.cancel()
            db.close()


def cell(text):
    """A value of either engine: a number, or text without what only its format adds."""
    if text is None or text == r"\N":
        return None
    if isinstance(text, (int, float)):
        return float(text)
    text = re.sub(r"(\+00:00|Z)$", "", str(text).replace("T", " "))
    try:
        return float(text)
    except ValueError:
        return re.sub(r"(:\d\d)(?:\.0*|(\.\d*[1-9])0*)$", lambda m: m[1] + (m[2] or ""), text)


def same(ours, theirs):
    """The first difference of two sets of rows, if there is one."""
    ours, theirs = ([tuple(map(cell, row)) for row in rows] for rows in (ours, theirs))
    # Sorted by whole numbers and text first, because floats may be a little off.
    inexact = {i for row in ours + theirs for i, value in enumerate(row) if isinstance(value, float) and not value.is_integer()}
    part = lambda value: (value is None, str(type(value)), value or 0)
    key = lambda row: [[part(value) for i, value in enumerate(row) if (i in inexact) == last] for last in (False, True)]
    ours, theirs = sorted(ours, key=key), sorted(theirs, key=key)
    close = lambda a, b: a == b or (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12))
    if len(ours) != len(theirs):
        return f"{len(ours)} rows, not {len(theirs)}"
    for a, b in zip(ours, theirs):
        if len(a) != len(b) or not all(map(close, a, b)):
            return f"{a}, not {b}"
    return None


def measure(engine, sql, runs):
    """The median time and the rows; a query that fails is not run again."""
    failure, rows = engine.rows(sql)
    if rows is None:
        return failure, None
    seconds = [engine.seconds(sql) for _ in range(runs)]
    failed = [took for took in seconds if isinstance(took, str)]
    return (failed[0] if failed else statistics.median(seconds)), rows


def shown(seconds):
    return "" if seconds is None else seconds.split(":")[0] if isinstance(seconds, str) else f"{seconds:.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rmq")
    parser.add_argument("tasks", nargs="*", help="names or their beginnings; all by default")
    parser.add_argument("--series", nargs="+", type=Path, default=[])
    parser.add_argument("--prices", nargs="+", type=Path, default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION = VALUE", help="an option of rmq")
    args = parser.parse_intermixed_args()
    tasks = [path for path in sorted(TASKS.glob("*.sql")) if path.stem.count(".") == 0]
    tasks = [path for path in tasks if not args.tasks or any(path.stem.startswith(task) for task in args.tasks)]
    with tempfile.TemporaryDirectory() as folder:
        db = duckdb.connect()
        db.execute("SET TimeZone = 'UTC'")
        names = tables(args)
        for name, sql in names.items():
            db.execute(f"CREATE TABLE {name} AS {sql}")
            db.execute(f"COPY {name} TO '{folder}/{name}.parquet'")
        db.close()
        rmq, peer = Rmq(args.rmq, folder, names, args), DuckDB(folder, names, args)
        print("| task | rmq, s | canonical, s | DuckDB, s | ratio | operators |\n|---|---|---|---|---|---|")
        slower, behind = [], []
        for path in tasks:
            sql = path.read_text()
            other = lambda kind: TASKS / f"{path.stem}.{kind}.sql"
            ours, rows = measure(rmq, sql, args.runs)
            canonical, canonical_answer = measure(rmq, other("canonical").read_text(), args.runs) if other("canonical").exists() else (None, None)
            theirs, answer = measure(peer, other("duckdb").read_text() if other("duckdb").exists() else sql, args.runs)
            are_numbers = isinstance(ours, float) and isinstance(theirs, float)
            ratio = f"{ours / theirs:.2f}" if are_numbers else ""
            if not isinstance(ours, float) or isinstance(canonical, float) and ours > max(1.25 * canonical, canonical + 0.005):
                slower.append(path.stem[:2])
            if are_numbers and ours > 1.5 * theirs:
                behind.append(f"{path.stem[:2]} ({ours / theirs:.2f})")
            print(f"| {path.stem} | {shown(ours)} | {shown(canonical)} | {shown(theirs)} | {ratio} | {rmq.operators(sql)} |", flush=True)
            for name, seconds in (("rmq", ours), ("canonical", canonical), ("DuckDB", theirs)):
                if isinstance(seconds, str) and seconds.startswith("error"):
                    print(f"  {path.stem}: {name}: {seconds}", file=sys.stderr, flush=True)
            for name, found in (("rmq", rows), ("canonical", canonical_answer)):
                difference = found is not None and answer is not None and same(found, answer)
                if difference:
                    print(f"  {path.stem}: {name} and DuckDB differ: {difference}", file=sys.stderr, flush=True)
        print(f"\nAs fast as the canonical form (within a quarter, or 5 ms): {len(tasks) - len(slower)} of {len(tasks)}; slower: {', '.join(slower)}")
        print(f"Slower than DuckDB by more than half: {', '.join(behind)}")


if __name__ == "__main__":
    main()
