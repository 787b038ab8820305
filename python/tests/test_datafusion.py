"""Sessions of the package `datafusion`: the extension of such a session, and connections that read from one.

Answers are those of the session without the extension, or of a connection with the same tables where it has none.
"""

import datetime
import gc
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import polars as pl
import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet
import pytest

import datafusion_rmq as rmq
from datafusion_rmq import owner

datafusion = pytest.importorskip("datafusion", reason="pip install datafusion")

from datafusion import SessionConfig, SessionContext, col, lit  # noqa: E402
from datafusion.user_defined import Accumulator, WindowEvaluator  # noqa: E402

from datafusion_rmq.datafusion import Extension, Options  # noqa: E402

START = datetime.datetime(2026, 3, 2, 9, 30)


def tables(seed=5, rows=400):
    """Trades and quotes, with NULLs, equal keys, and a name that has to be quoted."""
    rng = random.Random(seed)

    def some(value):
        return None if rng.random() < 0.05 else value

    def frame(count):
        return pa.table(
            {
                "id": pa.array(range(count), pa.int64()),
                "sym": pa.array([some(rng.choice("ABC")) for _ in range(count)]),
                "ts": pa.array(
                    [some(START + datetime.timedelta(seconds=rng.randrange(count))) for _ in range(count)], pa.timestamp("us")
                ),
                "k": pa.array([some(rng.randrange(count)) for _ in range(count)], pa.int32()),
                "Price": pa.array([some(rng.random()) for _ in range(count)]),
            }
        )

    return {"trades": frame(rows), "quotes": frame(2 * rows)}


class Total(Accumulator):
    def __init__(self):
        self.total = 0

    def update(self, values):
        self.total += pa.compute.sum(values).as_py() or 0

    def merge(self, states):
        self.update(states[0])

    def state(self):
        return [pa.scalar(self.total)]

    def evaluate(self):
        return pa.scalar(self.total)


class Numbers(WindowEvaluator):
    def evaluate_all(self, values, num_rows):
        return pa.array(range(num_rows), pa.int64())


def session(folder, extension=None, seed=5, config=None):
    """A session with `trades` in memory, `quotes` in a file, a view, another schema, and functions in Python."""
    ctx = SessionContext(config or SessionConfig().with_target_partitions(2))
    if extension is not None:
        ctx = ctx.with_extensions(extension)
    made = tables(seed)
    ctx.register_record_batches("trades", [made["trades"].to_batches()])
    file = folder / "quotes.parquet"
    pyarrow.parquet.write_table(made["quotes"], file, row_group_size=100)
    ctx.register_parquet("quotes", str(file))
    ctx.register_dataset("scanned", pyarrow.dataset.dataset(str(file)))
    ctx.register_view("some_quotes", ctx.sql("SELECT id, k, \"Price\" FROM quotes WHERE id % 3 = 0"))
    ctx.register_table("others", ctx.sql("SELECT id, k FROM trades WHERE k > 10").into_view())
    counted = "SELECT sym, count(*) AS n FROM trades GROUP BY sym ORDER BY sym LIMIT 2"
    ctx.register_table("counted", ctx.sql(counted).into_view())
    ctx.sql("CREATE SCHEMA archive").collect()
    ctx.sql("CREATE TABLE archive.trades AS SELECT * FROM trades WHERE id < 50").collect()
    ctx.register_udf(
        datafusion.udf(lambda v: pa.compute.multiply(v, 2), [pa.int64()], pa.int64(), "immutable", name="twice")
    )
    ctx.register_udaf(datafusion.udaf(Total, [pa.int64()], pa.int64(), [pa.int64()], "immutable", name="total"))
    ctx.register_udwf(datafusion.udwf(Numbers, pa.int64(), pa.int64(), "immutable", name="numbers"))
    return ctx


def rows(result):
    """Rows in an order of their own, by their texts."""
    table = result.to_arrow() if isinstance(result, rmq.Result) else result.to_arrow_table()
    if not len(table):
        return table.column_names
    return sorted(map(repr, zip(*(column.to_pylist() for column in table.columns))))


def plan(ctx, sql):
    return "\n".join(row["plan"] for row in ctx.sql(f"EXPLAIN {sql}").to_pylist())


# Queries that DataFusion answers, too, with the operator that the extension's plan has.
JOINS = {
    "grouped": (
        'SELECT t.id, count(*), min(q."Price"), max(q.ts) FROM trades t JOIN quotes q ON q.k BETWEEN t.k - 5 AND t.k GROUP BY t.id',
        "RangeJoinExec: type=Inner",
    ),
    "grouped with keys, left": (
        "SELECT t.id, count(q.id), sum(q.id) FROM trades t LEFT JOIN quotes q ON q.sym = t.sym AND q.ts > t.ts - INTERVAL '9 s'"
        " AND q.ts <= t.ts GROUP BY t.id",
        "RangeJoinExec: type=Left",
    ),
    "in memory on both sides": (
        "SELECT a.id, count(*) FROM trades a JOIN trades b ON b.k BETWEEN a.k AND a.k + 3 GROUP BY a.id",
        "RangeJoinExec",
    ),
    "files on both sides": (
        "SELECT a.id, count(*) FROM quotes a JOIN quotes b ON b.k BETWEEN a.k AND a.k + 3 GROUP BY a.id",
        "RangeJoinExec",
    ),
    "rows": (
        "SELECT t.id, q.id FROM trades t JOIN quotes q ON q.sym = t.sym AND q.k BETWEEN t.k AND t.k + 9",
        "RangeJoinExec",
    ),
    "exists": (
        "SELECT t.id FROM trades t WHERE EXISTS (SELECT 1 FROM quotes q WHERE q.k BETWEEN t.k AND t.k + 1)",
        "RangeJoinExec",
    ),
    "not exists": (
        "SELECT t.id FROM trades t WHERE NOT EXISTS (SELECT 1 FROM quotes q WHERE q.k BETWEEN t.k AND t.k + 1)",
        "RangeJoinExec",
    ),
    "overlaps": (
        "SELECT a.id, b.id FROM trades a JOIN trades b ON a.k < b.k + 7 AND a.k + 7 > b.k",
        "RangeJoinExec",
    ),
    "windows": (
        "SELECT id, min(id) OVER (ORDER BY id ROWS BETWEEN 5 PRECEDING AND 5 FOLLOWING) FROM trades",
        "WindowFrameExec",
    ),
    "a view": ("SELECT t.id, count(*) FROM trades t JOIN some_quotes q ON q.k BETWEEN t.k AND t.k + 9 GROUP BY t.id", "RangeJoinExec"),
    "a frame as a table": ("SELECT t.id, count(*) FROM trades t JOIN others q ON q.k BETWEEN t.k AND t.k + 9 GROUP BY t.id", "RangeJoinExec"),
    "a dataset": ("SELECT t.id, count(*) FROM trades t JOIN scanned q ON q.k BETWEEN t.k AND t.k + 9 GROUP BY t.id", "RangeJoinExec"),
    "a frame with a limit as a table": (
        "SELECT c.sym, sum(t.k) FROM counted c JOIN trades t ON t.k BETWEEN c.n AND c.n + 20 GROUP BY c.sym",
        "RangeJoinExec",
    ),
    "another schema": (
        "SELECT t.id, count(*) FROM archive.trades t JOIN datafusion.public.quotes q ON q.k BETWEEN t.k AND t.k + 9 GROUP BY t.id",
        "RangeJoinExec",
    ),
    "functions in Python": (
        "SELECT t.id, total(q.id), twice(max(q.id)) FROM trades t JOIN quotes q ON q.k BETWEEN t.k AND t.k + 9 AND twice(q.id) > t.id"
        " GROUP BY t.id",
        "RangeJoinExec",
    ),
}

# Queries that gain nothing.
PLAIN = {
    "files": "SELECT sym, count(*) FROM quotes GROUP BY sym",
    "memory": "SELECT sym, max(id) FROM trades GROUP BY sym",
    "no table": "SELECT 1 + 1 AS two, upper('a')",
    "a function of windows": "SELECT numbers(id) OVER (ORDER BY id) FROM trades",
    "recursion": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 4) SELECT * FROM r",
    "a subquery": "SELECT id, (SELECT max(id) FROM quotes) FROM trades",
    "no rows": "SELECT id, sym FROM trades WHERE false",
    "no rows on a side": "SELECT t.id, q.sym FROM trades t LEFT JOIN (SELECT * FROM quotes LIMIT 0) q ON q.id = t.id",
    "no rows in a subquery": "SELECT id, (SELECT max(k) FROM quotes WHERE false), (SELECT k FROM quotes LIMIT 0) FROM trades",
    "no rows in order": "SELECT id FROM trades ORDER BY k LIMIT 0",
    "no rows of files in order": "SELECT id FROM quotes ORDER BY k LIMIT 0",
    "no rows of a join": "SELECT t.id, q.sym FROM trades t JOIN quotes q ON false",
    "no rows counted": "SELECT count(*), max(id) FROM trades WHERE false",
    "a table function": "SELECT * FROM generate_series(1, 5)",
    "dates": "SELECT date_trunc('minute', ts), count(*), median(k), array_agg(id ORDER BY id)[1] FROM trades GROUP BY 1",
}

# Queries that DataFusion does not answer, with an operator. The extension has them all.
FUNCTIONS = {
    "range_min": ("SELECT id, range_min('trades.id', k, k + 5) FROM trades", "RangeLookupExec"),
    "range_argmax of a file": ("SELECT id, range_argmax('quotes.k', id, id + 5) FROM trades", "RangeLookupExec"),
    "a literal call": (
        "SELECT range_max('quotes.id', 3, 7), range_min('archive.trades.id', 3, 7), range_min('datafusion.archive.trades.id', 1, 2)",
        "RangeLookupExec",
    ),
    "in WHERE": ("SELECT count(*) FROM trades WHERE range_min('quotes.id', k, k + 1) > 10", "RangeLookupExec"),
    "crossings": ("SELECT id, range_first_at_least('trades.id', 0, id, 7) FROM trades", "RangeLookupExec"),
    "range_join": (
        "SELECT * FROM range_join('trades', 'quotes', 'sym', 'quotes.k BETWEEN trades.k AND trades.k + 5', 'count(*) AS n')",
        "RangeJoinExec",
    ),
    "range_min in FROM": ("SELECT * FROM range_min('quotes.id', 'trades', 'id', 'id')", "RangeLookupExec"),
    "frame_min": ("SELECT id, frame_min(k, id - 2, id + 2) OVER (ORDER BY id) FROM trades", "Exec"),
    "arg_min": (
        "SELECT t.id, arg_min(q.id, q.id) FROM trades t JOIN quotes q ON q.k BETWEEN t.k AND t.k + 9 GROUP BY t.id",
        "RangeJoinExec",
    ),
    "a subquery": ("SELECT range_min((SELECT k FROM quotes ORDER BY id), 0, id) FROM trades", "RangeLookupExec"),
    "a subquery without rows": ("SELECT range_min((SELECT k FROM quotes ORDER BY id LIMIT 0), 0, 9)", "RangeLookupExec"),
}

# Queries that only a connection plans.
TEXTS = {
    "correlated": "SELECT id, (SELECT max(q.id) FROM quotes q WHERE q.k BETWEEN t.k - 9 AND t.k) FROM trades t",
    "asof": "SELECT t.id, q.k FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.k >= q.k) ON q.sym = t.sym",
    "lateral": "SELECT t.id, n FROM trades t, LATERAL (SELECT count(*) AS n FROM quotes q WHERE q.k BETWEEN t.k AND t.k + 3)",
}


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    """The session without the extension, that with it, a connection to the first, and one with the same tables."""
    plain = session(tmp_path_factory.mktemp("plain"))
    extended = session(tmp_path_factory.mktemp("extended"), Extension())
    own = rmq.connect(target_partitions=2)
    for name, table in tables().items():
        own.register(name, table)
    return plain, extended, rmq.connect(session=plain, target_partitions=2), own


@pytest.mark.parametrize("name", JOINS)
def test_joins(sessions, name):
    plain, extended, connection, _ = sessions
    sql, operator = JOINS[name]
    expected = rows(plain.sql(sql))
    assert expected
    assert rows(extended.sql(sql)) == expected
    assert rows(connection.sql(sql)) == expected
    assert operator in plan(extended, sql)
    assert operator in connection.sql(sql).explain()
    assert operator not in plan(plain, sql)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_queries(sessions, name):
    plain, extended, connection, _ = sessions
    expected = rows(plain.sql(PLAIN[name]))
    assert rows(extended.sql(PLAIN[name])) == expected
    assert rows(connection.sql(PLAIN[name])) == expected


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(sessions, name):
    plain, extended, connection, own = sessions
    sql, operator = FUNCTIONS[name]
    expected = rows(connection.sql(sql))
    assert expected
    if "archive" not in sql:
        assert rows(own.sql(sql)) == expected
    assert rows(extended.sql(sql)) == expected
    assert operator in plan(extended, sql)
    with pytest.raises(Exception, match="Invalid function|not found"):
        plain.sql(sql).collect()


@pytest.mark.parametrize("name", TEXTS)
def test_statements_of_connections(sessions, name):
    _, extended, connection, own = sessions
    expected = rows(own.sql(TEXTS[name]))
    assert expected
    assert rows(connection.sql(TEXTS[name])) == expected
    with pytest.raises(Exception, match="outer_ref|not supported|AsOf|ASOF|not yet|Unsupported"):
        extended.sql(TEXTS[name]).collect()


def random_query(rng):
    kind = rng.choice(["JOIN", "LEFT JOIN"])
    key = rng.choice(["k", "id", "ts"])
    step = "INTERVAL '{} seconds'" if key == "ts" else "{}"
    low, high = (step.format(rng.randrange(0, 20)) for _ in range(2))
    bounds = rng.choice(
        [
            f"q.{key} BETWEEN t.{key} - {low} AND t.{key} + {high}",
            f"q.{key} > t.{key} - {low} AND q.{key} <= t.{key}",
            f"q.{key} >= t.{key} - {low} AND q.{key} < t.{key} + {high}",
        ]
    )
    equal = rng.choice(["", "q.sym = t.sym AND ", "(q.sym IS NOT DISTINCT FROM t.sym) AND "])
    aggregates = ["count(*)", "count(q.k)", "sum(q.id)", "min(q.id)", "max(q.ts)", 'min(q."Price")', "max(q.sym)"]
    tables = rng.choice([("trades", "quotes"), ("quotes", "trades"), ("trades", "some_quotes"), ("others", "trades")])
    if "ts" in bounds or "sym" in equal or tables[1] == "some_quotes" or tables[0] == "others":
        tables = ("trades", "quotes") if key == "ts" or equal else tables
    known = {"some_quotes": ("id", "k", "Price")}.get(tables[1])
    usable = [a for a in aggregates if known is None or not ("ts" in a or "sym" in a)]
    chosen = ", ".join(rng.sample(usable, rng.randrange(1, 4)))
    where = rng.choice(["", " WHERE t.id < 200", " WHERE t.k IS NOT NULL"])
    if rng.random() < 0.3:
        return f"SELECT t.id, q.id FROM {tables[0]} t {kind} {tables[1]} q ON {equal}{bounds}{where}"
    return f"SELECT t.id, {chosen} FROM {tables[0]} t {kind} {tables[1]} q ON {equal}{bounds}{where} GROUP BY t.id"


def test_random_queries(sessions):
    plain, extended, connection, _ = sessions
    seed = int(os.environ.get("RMQ_SEED", random.randrange(2**32)))
    print("RMQ_SEED", seed)
    rng = random.Random(seed)
    for _ in range(int(os.environ.get("RMQ_QUERIES", 40))):
        sql = random_query(rng)
        expected = rows(plain.sql(sql))
        assert rows(extended.sql(sql)) == expected, sql
        assert rows(connection.sql(sql)) == expected, sql


def test_statements_that_change_tables(tmp_path):
    ctx = session(tmp_path, Extension())
    ctx.sql("CREATE TABLE made AS SELECT id, range_min('trades.id', id, id) AS low FROM trades").collect()
    assert ctx.sql("SELECT count(*) AS n FROM made WHERE low = id").to_pylist() == [{"n": 400}]
    ctx.sql("INSERT INTO made SELECT t.id, count(*) FROM trades t JOIN quotes q ON q.k BETWEEN t.k AND t.k + 9 GROUP BY t.id").collect()
    ctx.sql("DELETE FROM made WHERE id >= 10").collect()
    ctx.sql("UPDATE made SET low = 7 WHERE id = 3").collect()
    low = {row["low"] for row in ctx.sql("SELECT low FROM made WHERE id = 3").to_pylist()}
    assert low == {7}
    ctx.sql("CREATE VIEW lows AS SELECT id, range_min('trades.id', id, id + 1) AS low FROM trades").collect()
    assert ctx.sql("SELECT sum(low - id) AS s FROM lows WHERE id < 399").to_pylist() == [{"s": 0}]
    ctx.sql("CREATE OR REPLACE TABLE trades AS SELECT 4 AS id").collect()
    assert ctx.sql("SELECT range_max('trades.id', 0, 9) AS m").to_pylist() == [{"m": 4}]


def test_inserts_read_all_partitions(tmp_path):
    config = SessionConfig().with_target_partitions(4)
    ctx = session(tmp_path, Extension(), config=config)
    ctx.sql("CREATE TABLE numbers AS SELECT value AS k FROM generate_series(1, 50000)").collect()
    ctx.sql("CREATE TABLE made AS SELECT k FROM numbers WHERE k % 2 = 0").collect()
    inserted = ctx.sql("INSERT INTO made SELECT k FROM numbers WHERE k % 2 = 1").to_pylist()
    assert inserted == [{"count": 25000}]
    assert ctx.sql("SELECT count(*) AS n, sum(k) AS s FROM made").to_pylist() == [{"n": 50000, "s": 1250025000}]
    joined = "SELECT a.k, count(*) AS n FROM made a JOIN made b ON b.k BETWEEN a.k AND a.k + 3 GROUP BY a.k"
    ctx.sql(f"INSERT INTO made SELECT n FROM ({joined}) WHERE n < 4").collect()
    assert ctx.sql("SELECT count(*) AS n FROM made").to_pylist() == [{"n": 50003}]


def test_default_schemas(tmp_path):
    ctx = session(tmp_path, Extension())
    con = rmq.connect(session=ctx)
    both = "SELECT range_max('trades.id', 0, 999) AS a, range_max('datafusion.public.trades.id', 0, 999) AS b"
    full = both.replace("'trades", "'datafusion.archive.trades")
    assert ctx.sql(both).to_pylist() == con.sql(both).to_arrow().to_pylist() == [{"a": 399, "b": 399}]
    ctx.sql("SET datafusion.catalog.default_schema = 'archive'").collect()
    for run in (lambda sql: ctx.sql(sql).to_pylist(), lambda sql: con.sql(sql).to_arrow().to_pylist()):
        assert run(full) == [{"a": 49, "b": 399}]
        with pytest.raises(Exception, match="names without a catalog and schema are of datafusion.public here, and of datafusion.archive"):
            run(both)
    assert ctx.sql("SELECT count(*) AS n FROM trades").to_pylist() == [{"n": 50}]
    later = rmq.connect(session=ctx)
    assert later.sql(both).fetchall() == [(49, 399)]
    assert later.sql("SELECT count(*) AS n FROM trades").fetchall() == [(50,)]


def test_views_with_range_functions(tmp_path):
    ctx = session(tmp_path, Extension())
    con = rmq.connect(session=ctx)
    ctx.sql("CREATE VIEW lows AS SELECT id, range_min('trades.id', id, id + 1) AS low FROM trades ORDER BY id").collect()
    ctx.sql("CREATE VIEW highs AS SELECT id, range_max('lows.low', 0, id) AS high FROM trades ORDER BY id").collect()
    for sql in ["SELECT sum(high) AS s FROM highs", "SELECT range_max('highs.high', 0, 399) AS m"]:
        assert con.sql(sql).to_arrow().to_pylist() == ctx.sql(sql).to_pylist()
    assert ctx.sql("SELECT range_max('highs.high', 0, 9) AS m").to_pylist() == [{"m": 9}]
    # One that reads itself ends.
    ctx.sql("CREATE VIEW itself AS SELECT id FROM trades ORDER BY id").collect()
    ctx.sql("CREATE OR REPLACE VIEW itself AS SELECT range_min('itself.id', 0, 1) AS id FROM trades ORDER BY id").collect()
    with pytest.raises(Exception, match="nest too deeply|not found|recursion"):
        ctx.sql("SELECT * FROM itself").collect()


def test_views_of_connections_with_range_functions(tmp_path):
    con = rmq.connect(session=session(tmp_path))
    con.sql("CREATE VIEW lows AS SELECT id, range_min('trades.id', id, id + 1) AS low FROM trades ORDER BY id")
    con.sql("CREATE VIEW highs AS SELECT range_max('lows.low', 0, 9) AS high")
    assert con.sql("SELECT count(*), sum(low - id) FROM lows").fetchall() == [(400, 0)]
    assert con.sql("SELECT * FROM highs").fetchall() == [(9,)]


def test_a_connection_sees_changes_of_the_session(tmp_path):
    ctx = session(tmp_path)
    con = rmq.connect(session=ctx)
    assert con.sql("SELECT count(*), max(twice(id)) FROM trades").fetchall() == [(400, 798)]
    ctx.sql("CREATE OR REPLACE TABLE trades AS SELECT CAST(4 AS BIGINT) AS id").collect()
    ctx.register_udf(
        datafusion.udf(lambda v: pa.compute.multiply(v, 20), [pa.int64()], pa.int64(), "immutable", name="twice")
    )
    assert con.sql("SELECT count(*), max(twice(id)) FROM trades").fetchall() == [(1, 80)]
    # Its own tables come first, then those of the session, then variables.
    trades = quotes = pl.DataFrame({"id": [1, 2, 3]})
    assert con.sql("SELECT count(*) FROM trades").fetchall() == [(1,)]
    con.register("trades", trades)
    assert con.sql("SELECT count(*) FROM trades").fetchall() == [(3,)]
    ctx.deregister_table("quotes")
    assert con.sql("SELECT count(*) FROM quotes").fetchall() == [(len(quotes),)]
    con.sql("CREATE TABLE copied AS SELECT * FROM archive.trades")
    assert con.sql("SELECT count(*) FROM copied").fetchall() == [(50,)]
    assert con.tables() == ["copied", "trades"]
    con.sql("PREPARE below (BIGINT) AS SELECT count(*) FROM archive.trades WHERE id < $1")
    assert con.sql("EXECUTE below (7)").fetchall() == [(7,)]
    changes = ["INSERT INTO archive.trades SELECT * FROM archive.trades", "INSERT INTO archive.trades (id) VALUES (1)"]
    changes += ["UPDATE archive.trades SET id = 1", "DELETE FROM archive.trades", "CREATE INDEX i ON archive.trades (id)"]
    for sql in changes:
        with pytest.raises(rmq.ProgrammingError, match="archive.trades: the table is read .* change it there"):
            con.sql(sql)
    with pytest.raises(rmq.ProgrammingError, match="table 'datafusion.nowhere.t' not found"):
        con.sql("SELECT * FROM nowhere.t")
    assert ctx.sql("SELECT count(*) AS n FROM archive.trades").to_pylist() == [{"n": 50}]


def test_results_and_frames():
    ctx = SessionContext()
    con = rmq.connect()
    con.register("t", ctx.from_pydict({"k": [1, 2, 3]}))
    variable = ctx.sql("SELECT 2 AS k")
    found = con.sql("SELECT t.k, count(*) AS n FROM t JOIN variable v ON t.k BETWEEN v.k AND v.k + 9 GROUP BY t.k ORDER BY t.k")
    frame = ctx.from_arrow(found, name="counted")
    assert frame.to_pylist() == [{"k": 2, "n": 1}, {"k": 3, "n": 1}]
    assert ctx.sql("SELECT sum(n) AS s FROM counted").to_pylist() == [{"s": 2}]
    assert len(variable.to_pylist()) == 1


def test_data_frames(sessions):
    plain, extended, _, _ = sessions
    functions = datafusion.functions

    def grouped(ctx):
        q = ctx.table("quotes").select(col("k").alias("qk"), col("id").alias("qid"))
        joined = ctx.table("trades").join_on(q, col("qk") >= col("k"), col("qk") <= col("k") + lit(5), how="inner")
        return joined.aggregate([col("id")], [functions.count(col("qid")).alias("n")])

    assert rows(grouped(extended)) == rows(grouped(plain))
    assert "RangeJoinExec" in str(grouped(extended).explain_str()) if hasattr(datafusion.DataFrame, "explain_str") else True
    range_min = extended.udf("range_min")
    lows = extended.table("trades").select(col("id"), range_min(lit("quotes.id"), col("id"), col("id") + lit(2)).alias("low"))
    assert {row["low"] - row["id"] for row in lows.to_pylist()} == {0}


def test_sides_of_files_are_kept(tmp_path):
    ctx = session(tmp_path, Extension())
    con = rmq.connect(session=ctx)
    # A file that has just been written may change within a tick of the clock.
    time.sleep(2.2)
    sql = "SELECT t.id, min(q.id) FROM trades t JOIN quotes q ON q.k BETWEEN t.k AND t.k + 9 GROUP BY t.id"
    for _ in range(2):
        ctx.sql(sql).collect()
        con.sql(sql).to_arrow()
    assert "index=kept" in plan(ctx, sql)
    assert "index=kept" in con.sql(sql).explain()
    con.sql("SELECT range_min('quotes.k', 0, 9)").to_arrow()
    ctx.sql("SELECT range_min('quotes.k', 0, 9)").collect()
    kept = "SELECT count(*) AS n FROM rmq_indexes()"
    assert con.sql(kept).fetchall() == ctx.sql(kept).to_arrow_table().to_pandas().to_records(index=False).tolist()
    made = tables(seed=6)["quotes"]
    pyarrow.parquet.write_table(made, tmp_path / "quotes.parquet")
    expected = rmq.connect().register("quotes", made).register("trades", tables()["trades"])
    assert rows(ctx.sql(sql)) == rows(con.sql(sql)) == rows(expected.sql(sql))


def test_options(tmp_path):
    ctx = session(tmp_path, Extension(rewrite=False))
    sql = JOINS["grouped"][0]
    assert "RangeJoinExec" not in plan(ctx, sql)
    with pytest.raises(ValueError, match="datafusion.execution.target_partitions is an option of the session"):
        Extension(target_partitions=2)
    with pytest.raises(ValueError, match="there is no option engines; perhaps rmq.engine"):
        Extension(engines="cpu")
    config = SessionConfig().with_extension(Options())
    ctx = session(tmp_path, Extension(), config=config)
    assert "RangeJoinExec" in plan(ctx, sql)
    ctx.sql("SET rmq.rewrite = false").collect()
    assert "RangeJoinExec" not in plan(ctx, sql)
    ctx.sql("SET rmq.rewrite = true").collect()
    assert "RangeJoinExec" in plan(ctx, sql)
    # Those of DataFusion are the session's.
    ctx.sql("SET datafusion.execution.target_partitions = 7").collect()
    assert "Hash([id@0], 7)" in plan(ctx, sql)
    with pytest.raises(Exception, match="rmq.engine = 'steam': expected 'auto', 'cpu' or 'cuda'"):
        ctx.sql("SET rmq.engine = 'steam'").collect()
    # What was set stays set, and each statement says so, until an empty value takes its place.
    for name, value in [("engine", "steam"), ("nonsense", "1")]:
        with pytest.raises(Exception, match=f"rmq.{name}"):
            ctx.sql(f"SET rmq.{name} = '{value}'").collect()
        with pytest.raises(Exception, match=f"SET rmq.{name} = '' makes the session usable again"):
            ctx.sql("SELECT 1").collect()
        ctx.sql(f"SET rmq.{name} = ''").collect()
        assert "RangeJoinExec" in plan(ctx, sql)


def test_datafusion_lists_options_twice():
    """datafusion-ffi 55 writes a prefix before names that have it: docs/python-datafusion.md."""
    config = SessionConfig().with_information_schema(True)
    ctx = SessionContext(config).with_extensions(Extension(engine="cpu"))
    listed = ctx.sql("SELECT name, value FROM information_schema.df_settings WHERE name LIKE '%rmq.engine' ORDER BY name")
    assert listed.to_pylist() == [{"name": "rmq.engine", "value": "cpu"}, {"name": "rmq.rmq.engine", "value": "cpu"}]


def test_errors_of_queries(sessions):
    _, extended, connection, _ = sessions
    for sql, text in [
        ("SELECT range_min('nowhere.k', 0, 1)", "range_min: table 'datafusion.public.nowhere' not found"),
        ("SELECT range_min('trades.nowhere', 0, 1)", "range_min: unknown column in 'trades.nowhere'"),
        ("SELECT range_min(3, 0, 1)", "the first argument must be a string that names a column"),
        ("SELECT range_min('trades.k', 'x', 1)", "the bound l is a Utf8"),
        ("SELECT * FROM range_join('trades', 'quotes', '', 'nonsense', 'count(*)')", "argument 4, the window 'nonsense'"),
        (
            "SELECT t.id, sum(1 / (q.id - q.id)) FROM trades t JOIN quotes q ON q.k BETWEEN t.k AND t.k + 9 GROUP BY t.id",
            "Divide by zero",
        ),
    ]:
        with pytest.raises(Exception, match=text.replace("(", r"\(").replace("*", r"\*")):
            extended.sql(sql).collect()
        with pytest.raises(rmq.DatabaseError, match=text.replace("(", r"\(").replace("*", r"\*")):
            connection.sql(sql).to_arrow()


def test_texts_of_the_extension_know_no_information_schema(sessions):
    _, extended, _, _ = sessions
    sql = "SELECT * FROM range_join('trades', 'information_schema.columns', '', 'ordinal_position <= id', 'count(*) AS n')"
    with pytest.raises(Exception, match="information_schema.columns: .* create a table from it"):
        extended.sql(sql).collect()


def test_versions(monkeypatch):
    monkeypatch.setattr(datafusion, "__version__", "54.1.0")
    with pytest.raises(ImportError, match=r"needs the package datafusion 55, .* has DataFusion 55\..*, and datafusion 54.1.0 is installed"):
        rmq.connect(session=SessionContext())
    monkeypatch.setitem(sys.modules, "datafusion", None)
    with pytest.raises(ImportError, match=r"what needs the package datafusion: pip install 'datafusion-rmq\[datafusion\]'"):
        owner.check_datafusion("what")


def test_what_is_no_session():
    with pytest.raises(TypeError, match="session=5: a datafusion.SessionContext is needed"):
        rmq.connect(session=5)
    with pytest.raises(TypeError, match="a capsule datafusion_query_planner is needed, not <object"):
        Extension()._native.planner(SessionContext(), print, object())
    with pytest.raises(ValueError, match="datafusion_rmq"):
        SessionContext().with_extensions(Extension(), Extension())


def test_a_session_that_is_gone(tmp_path):
    ctx = session(tmp_path, Extension())
    derived = ctx.with_python_udf_inlining(enabled=False)
    gone = weakref.ref(ctx)
    del ctx
    gc.collect()
    assert gone() is None
    assert derived.sql("SELECT count(*) AS n FROM trades").to_pylist() == [{"n": 400}]
    with pytest.raises(Exception, match="keep the SessionContext that with_extensions has returned"):
        derived.sql("SELECT range_min('trades.k', 0, 1)").collect()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux only")
def test_memory_stays_flat(tmp_path):
    extension = Extension()
    ctx = session(tmp_path, extension)
    con = rmq.connect(session=ctx)

    def work(count):
        for _ in range(count):
            ctx.sql(JOINS["functions in Python"][0]).collect()
            ctx.sql(FUNCTIONS["range_min"][0]).collect()
            con.sql(JOINS["a dataset"][0]).to_arrow()
            # Plans that are never read keep no table.
            with pytest.raises(Exception, match="file_format|not implemented|serde"):
                ctx.sql(f"COPY (SELECT * FROM trades) TO '{tmp_path}/out.parquet'").collect()

    work(20)
    before = resident()
    work(int(os.environ.get("RMQ_QUERIES", 100)))
    assert resident() - before < 48 << 20


def test_sessions_are_freed():
    extension = Extension()
    freed = []
    for _ in range(3):
        ctx = SessionContext().with_extensions(extension)
        ctx.from_pydict({"k": [1]}, name="t")
        assert ctx.sql("SELECT range_min('t.k', 0, 0) AS m").to_pylist() == [{"m": 1}]
        freed.append(weakref.ref(ctx))
        del ctx
    gc.collect()
    assert [reference() for reference in freed] == [None] * 3


def test_threads(sessions):
    plain, extended, connection, _ = sessions
    expected = {name: rows(plain.sql(sql)) for name, (sql, _) in JOINS.items()}
    failures = []

    def work(i):
        try:
            for name, (sql, _) in random.Random(i).sample(list(JOINS.items()), 6):
                assert rows((connection if i % 2 else extended).sql(sql)) == expected[name]
                extended.sql(FUNCTIONS["in WHERE"][0]).collect()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_signals():
    script = """
        import os, signal, threading, time
        from datafusion import SessionContext
        from datafusion_rmq.datafusion import Extension

        ctx = SessionContext().with_extensions(Extension())
        ctx.from_pydict({"k": list(range(300000))}, name="t")
        threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        since = time.monotonic()
        try:
            ctx.sql("SELECT sum(abs(a.k * b.k)) FROM t a JOIN t b ON b.k BETWEEN a.k AND a.k + 200000").collect()
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - since < 20)
        before = time.process_time()
        time.sleep(1.5)
        print("stopped", time.process_time() - before < 1)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["interrupted", "True", "stopped", "True"], ran.stderr


def test_nan_with_the_sign_bit_stays_as_it_is_in_a_session():
    frame = pa.table({"v": [1.0, math.copysign(math.nan, -1), 2.0]})
    for ctx in (SessionContext(), SessionContext().with_extensions(Extension())):
        ctx.from_arrow(frame, name="t")
        con = rmq.connect(session=ctx)
        for sql in ("SELECT min(v) FROM t", "SELECT range_min('t.v', 0, 2)"):
            assert math.isnan(con.sql(sql).fetchone()[0])
        assert math.isnan(ctx.sql("SELECT min(v) AS low FROM t").to_pylist()[0]["low"])
        usual = ctx.table("t")
        assert con.sql("SELECT min(v) FROM usual").fetchall() == [(1.0,)]
        assert con.register("t", ctx.table("t")).sql("SELECT min(v) FROM t").fetchall() == [(1.0,)]
