#!/usr/bin/env python3
"""DuckDB beside benches/range_join_scale: the same queries over tables of the same distributions, by number of threads.

    python3 -m venv peers && peers/bin/pip install duckdb
    peers/bin/python benches/range_join_scale_peers.py --threads 1,4,16

Each query runs in the forms that are known to be fast in DuckDB: joined by buckets of time, as a window over the union of both tables, and without equality
key as a join by inequalities. All forms of a query must return the same row. Prints wall and CPU seconds: the first run, then the median of the others.
"""

import argparse
import math
import resource
import statistics
import time

import duckdb

SYMBOLS = 500
GAP = 400.0  # microseconds between two quotes

# Number i of sequence s, uniform in [0, 1).
UNIT = "(hash({s}::UBIGINT * 281474976710656 + i::UBIGINT) >> 11)::DOUBLE / 9007199254740992"


def unit(sequence):
    return UNIT.format(s=sequence)


def symbol(sequence):
    k = f"least(pow({SYMBOLS + 1}, {unit(sequence)})::DOUBLE, {SYMBOLS})"
    number = f"(floor({k}) - 1)::INTEGER"
    return f"chr(65 + {number} % 8) || lpad({number}::VARCHAR, 3, '0') || '.XNAS'"


def times(sequence, gap):
    """Ascending times whose gaps are distributed exponentially."""
    step = f"floor(-ln({unit(sequence)} + 1e-17) * {gap})::BIGINT"
    return f"make_timestamp((sum({step}) OVER (ORDER BY i ROWS UNBOUNDED PRECEDING))::BIGINT)"


def create_tables(db, args):
    started = time.perf_counter()
    price = f"100 + floor({unit(3)} * 262144) / 262144"
    db.execute(f"CREATE TABLE quotes AS SELECT {symbol(2)} AS sym, {times(1, GAP)} AS ts, {price} AS price FROM range({args.quotes}) r(i)")
    for table, rows in (("trades", args.trades), ("many_trades", args.many_trades)):
        if table == "trades" or "many_trades" in args.queries:
            gap = GAP * args.quotes / rows
            db.execute(f"CREATE TABLE {table} AS SELECT i AS id, {symbol(5)} AS sym, {times(4, gap)} AS ts FROM range({rows}) r(i)")
    print(f"{args.quotes} quotes, {args.trades} trades (generated in {time.perf_counter() - started:.1f} s)", flush=True)


def buckets(aggregates, table, before, after, by_symbol=True):
    """Quotes joined by buckets as long as a window, which overlaps one or two of them."""
    width = before + after
    low = f"epoch_us(ts) - {before}"
    high = f"epoch_us(ts) + {after}"
    symbol = "q.sym = b.sym AND " if by_symbol else ""
    return f"""SELECT b.id, {aggregates} FROM
        (SELECT id, sym, {low} AS a, {high} AS z, unnest(CASE WHEN ({low}) // {width} = ({high}) // {width} THEN [({low}) // {width}]
           ELSE [({low}) // {width}, ({high}) // {width}] END) AS k FROM {table}) b
        {{join}} quotes q ON {symbol}epoch_us(q.ts) // {width} = b.k AND epoch_us(q.ts) BETWEEN b.a AND b.z GROUP BY b.id"""


def window(aggregates, table, before, after, by_symbol=True):
    """A window over the union of both tables, of which the trades are returned."""
    partition = "PARTITION BY sym " if by_symbol else ""
    return f"""SELECT id, {aggregates} FROM (SELECT id, sym, ts, NULL::DOUBLE AS price, NULL::TIMESTAMP AS time FROM {table}
          UNION ALL SELECT NULL, sym, ts, price, ts FROM quotes)
        WINDOW w AS ({partition}ORDER BY ts RANGE BETWEEN INTERVAL {before} MICROSECONDS PRECEDING AND INTERVAL {after} MICROSECONDS FOLLOWING)
        QUALIFY id IS NOT NULL"""


SECOND, MINUTE = 1_000_000, 60_000_000
LOWEST = "SELECT sum(m), min(m), max(m), count(m) FROM ({})"
GROUPED = "SELECT sum(a), sum(b), sum(c), max(d) FROM ({})"
FIRST = "SELECT min(f), max(f), count(f) FROM ({})"


def over(aggregate):
    return f"{aggregate} OVER w"


def forms():
    """The forms of each query, by name."""
    lowest = "min(price)"
    all_of = ["min(price) {}AS a", "max(price) {}AS b", "count(price) {}AS c", "sum(price) {}AS d"]
    plain, windowed = (", ".join(all_of).replace("{}", text) for text in ("", "OVER w "))
    found = {}
    for name, table in (("subquery", "trades"), ("many_trades", "many_trades")):
        found[name] = {
            "buckets": LOWEST.format(buckets(f"{lowest} AS m", table, SECOND, SECOND).format(join="JOIN")),
            "window": LOWEST.format(window(f"{over(lowest)} AS m", table, SECOND, SECOND)),
        }
    found["grouped"] = {
        "buckets": GROUPED.format(buckets(plain, "trades", MINUTE, 0).format(join="LEFT JOIN")),
        "window": GROUPED.format(window(windowed, "trades", MINUTE, 0)),
    }
    found["first_value"] = {
        "buckets": FIRST.format(buckets("arg_min(q.ts, price) AS f", "trades", MINUTE, 0).format(join="LEFT JOIN")),
        "window": FIRST.format(window(f"{over('arg_min(time, price)')} AS f", "trades", MINUTE, 0)),
    }
    found["no_symbol"] = {
        "buckets": LOWEST.format(buckets(f"{lowest} AS m", "trades", SECOND, 0, by_symbol=False).format(join="JOIN")),
        "window": LOWEST.format(window(f"{over(lowest)} AS m", "trades", SECOND, 0, by_symbol=False)),
        "inequalities": LOWEST.format(
            "SELECT t.id, min(price) AS m FROM trades t JOIN quotes q ON q.ts >= t.ts - INTERVAL 1 SECOND AND q.ts <= t.ts GROUP BY t.id"
        ),
    }
    return found


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(db, sql, runs):
    """The wall time of the first run, median wall and CPU times of the others, and the answer."""
    walls, cpus = [], []
    for _ in range(runs + 1):
        cpu, wall = cpu_seconds(), time.perf_counter()
        answer = db.execute(sql).fetchone()
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_seconds() - cpu)
        if walls[-1] > 60:
            break
    rest = slice(1 if len(walls) > 1 else 0, None)
    return walls[0], statistics.median(walls[rest]), statistics.median(cpus[rest]), answer


def agree(found, expected):
    """Whether two rows are equal; ties of prices may be decided by other rows, which moves times of the first ones little."""
    number = (int, float)
    pairs = zip(found, expected)
    return all(math.isclose(a, b, rel_tol=1e-9) if isinstance(a, number) else True for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("queries", nargs="*", default=[], help="names of queries, and of forms as query/form; all if none is named")
    parser.add_argument("--threads", default="1,4,16")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--quotes", type=int)
    parser.add_argument("--trades", type=int)
    parser.add_argument("--many-trades", type=int)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    args.quotes = args.quotes or int(50_000_000 * args.scale)
    args.trades = args.trades or int(5_000_000 * args.scale)
    args.many_trades = args.many_trades or int(50_000_000 * args.scale)
    known = forms()
    names = {name.split("/")[0] for name in args.queries}
    if unknown := names - known.keys():
        parser.error(f"no query is named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    wanted = args.queries
    args.queries = [name for name in known if not names or name in names]
    db = duckdb.connect()
    create_tables(db, args)
    expected = {}
    for threads in map(int, args.threads.split(",")):
        db.execute(f"SET threads = {threads}")
        print(f"DuckDB {duckdb.__version__}, {threads} threads: wall seconds of the first run, the median of {args.runs}, its CPU seconds")
        for name in args.queries:
            for form, sql in known[name].items():
                if wanted and name not in wanted and f"{name}/{form}" not in wanted:
                    continue
                first, wall, cpu, answer = measure(db, sql, args.runs)
                print(f"  {name:<12} {form:<14} {first:8.3f} {wall:8.3f} {cpu:8.3f}  = {' '.join(map(str, answer))}", flush=True)
                if not agree(answer, expected.setdefault(name, answer)):
                    raise SystemExit(f"{name}: the answer by {form} is {answer}, not {expected[name]}")


if __name__ == "__main__":
    main()
