"""Statements: parameters, options, variables of the caller as tables, files, errors."""

import datetime
import decimal
import os
import re
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

import datafusion_rmq as rmq
from datafusion_rmq import progress

GLOBAL = pl.DataFrame({"v": [1, 2, 3]})

PARAMETERS = [
    None,
    True,
    -5,
    2**64 - 1,
    1.5,
    "it's",
    b"\x00a",
    datetime.date(1960, 2, 29),
    datetime.time(1, 2, 3, 4),
    datetime.datetime(1960, 2, 29, 23, 59, 59, 999999),
    datetime.datetime(2026, 3, 2, tzinfo=datetime.timezone.utc),
    datetime.timedelta(days=-3, microseconds=1),
    decimal.Decimal("-1.230"),
    decimal.Decimal("1E+3"),
    decimal.Decimal("0.0001"),
    decimal.Decimal(10**50),
]


@pytest.mark.parametrize("value", PARAMETERS, ids=repr)
def test_parameters(value):
    con = rmq.connect()
    assert con.sql("SELECT $1 AS v", [value]).fetchall() == [(value,)]
    assert con.sql("SELECT $x AS v", {"x": value}).fetchall() == [(value,)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int32(7), 7),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.datetime64("2026-03-02T01:02:03.000004"), datetime.datetime(2026, 3, 2, 1, 2, 3, 4)),
        (np.datetime64("NaT"), None),
        (np.timedelta64(-5, "ms"), datetime.timedelta(milliseconds=-5)),
        (pd.Timestamp("2026-03-02 01:02:03"), datetime.datetime(2026, 3, 2, 1, 2, 3)),
        (pd.Timestamp("2026-03-02 01:02:03", tz="Europe/Berlin"), datetime.datetime(2026, 3, 2, 0, 2, 3, tzinfo=datetime.timezone.utc)),
        (pd.NaT, None),
        (pd.Timedelta("-2s"), datetime.timedelta(seconds=-2)),
        (pa.scalar(5, pa.int8()), 5),
        (pa.array(["x"]), "x"),
    ],
    ids=repr,
)
def test_parameters_of_libraries(value, expected):
    assert rmq.connect().sql("SELECT $1 AS v", [value]).fetchall() == [(expected,)]


def test_parameters_that_are_wrong():
    con = rmq.connect()
    with pytest.raises(TypeError, match=r"parameter \$1: a builtins.object|parameter \$1: a object"):
        con.sql("SELECT $1", [object()])
    with pytest.raises(TypeError, match=r"parameter \$x: .*64 bits"):
        con.sql("SELECT $x", {"x": 2**70})
    with pytest.raises(TypeError, match=r"parameter \$1: .*NaN"):
        con.sql("SELECT $1", [decimal.Decimal("NaN")])
    with pytest.raises(TypeError, match="params='abc'"):
        con.sql("SELECT $1", "abc")
    with pytest.raises(rmq.Error, match="param|placeholder|Placeholder"):
        con.sql("SELECT $2 + 1", [1]).fetchall()


def test_parameters_in_statements_that_change_data():
    con = rmq.connect()
    con.sql("CREATE TABLE t AS SELECT $1 AS v", [5])
    assert con.sql("INSERT INTO t VALUES ($1), ($2)", [6, 7]).fetchall() == [(2,)]
    # It ran once, not again with its result.
    assert con.sql("SELECT v FROM t ORDER BY v").fetchall() == [(5,), (6,), (7,)]


def test_parameters_of_inserts_become_values_of_the_columns():
    con = rmq.connect()
    con.sql("CREATE TABLE t (n DOUBLE, word VARCHAR, day DATE)")
    for row in ["$1, $2, $3", "($1), ($2), ($3)"]:
        con.sql(f"INSERT INTO t VALUES ({row})", [1, "a", datetime.date(2024, 2, 29)])
    con.sql("INSERT INTO t VALUES ($n, $word, $day), (3, 'c', NULL)", {"n": 2, "word": "b", "day": "2024-03-01"})
    con.sql("INSERT INTO t (word, n) VALUES ($1, $2)", [None, 4])
    first, second = datetime.date(2024, 2, 29), datetime.date(2024, 3, 1)
    expected = [(1.0, "a", first), (1.0, "a", first), (2.0, "b", second), (3.0, "c", None), (4.0, None, None)]
    assert con.sql("SELECT * FROM t ORDER BY n").fetchall() == expected
    assert con.sql("EXPLAIN INSERT INTO t VALUES ($n, $word, $day)", {"n": 2, "word": "b", "day": None}).fetchall()


def test_range_joins_with_parameters():
    con = rmq.connect()
    quotes = pl.DataFrame({"ts": range(1000), "bid": [float(i % 17) for i in range(1000)]})
    trades = pl.DataFrame({"id": range(50), "ts": range(0, 1000, 20)})
    sql = """SELECT t.id, (SELECT min(q.bid) FROM quotes q WHERE q.ts BETWEEN t.ts - $back AND t.ts) AS low
             FROM trades t ORDER BY t.id"""
    result = con.sql(sql, {"back": 5})
    expected = [(i, min(float(j % 17) for j in range(max(0, 20 * i - 5), 20 * i + 1))) for i in range(50)]
    assert result.fetchall() == expected
    assert "RangeJoinExec" in result.explain()


def test_variables_of_the_caller():
    con = rmq.connect()
    local = pl.DataFrame({"v": [10]})
    assert con.sql("SELECT * FROM local").fetchall() == [(10,)]
    assert con.sql("SELECT sum(v) FROM GLOBAL").fetchall() == [(6,)]
    assert con.sql('SELECT sum(v) FROM "GLOBAL"').fetchall() == [(6,)]
    assert con.sql("WITH local AS (SELECT 1 AS v) SELECT v FROM local").fetchall() == [(1,)]
    assert con.sql("SELECT * FROM (SELECT v FROM local) AS x WHERE v IN (SELECT v FROM local)").fetchall() == [(10,)]
    assert con.tables() == []
    # A registered table wins.
    con.register("local", pl.DataFrame({"v": [99]}))
    assert con.sql("SELECT * FROM local").fetchall() == [(99,)]


def test_variables_in_arguments_of_range_functions():
    con = rmq.connect()
    prices = pl.DataFrame({"close": [5, 3, 8]})
    windows = pl.DataFrame({"l": [0, 1], "r": [1, 2]})
    trades = pl.DataFrame({"id": [1], "ts": [5]})
    assert con.sql("SELECT range_min('prices.close', l, r) AS m FROM windows").fetchall() == [(3,), (3,)]
    assert con.sql("SELECT * FROM range_max('prices.close', 'windows', 'l', 'r')").fetchall()[0][2] == 5
    joined = con.sql("SELECT * FROM range_join('trades AS t', '(SELECT close AS ts FROM prices) AS p', '', 'p.ts <= t.ts', 'count(*) AS n')")
    assert joined.fetchall() == [(1, 5, 2)]
    assert "RangeJoinExec" in joined.explain()
    assert "RangeJoinExec" in con.sql("EXPLAIN SELECT * FROM range_join('trades', 'prices', '', 'close <= ts', 'count(*) AS n')").to_arrow().column("plan")[1].as_py()


def test_variables_can_be_off():
    hidden = pl.DataFrame({"v": [1]})
    assert len(hidden) == 1
    with pytest.raises(rmq.ProgrammingError, match="hidden"):
        rmq.connect(frames=False).sql("SELECT * FROM hidden")


def test_variables_that_are_no_tables_are_not_used():
    number, kind = 7, pl.DataFrame
    con = rmq.connect()
    for name in ("number", "kind", "nothing"):
        with pytest.raises(rmq.ProgrammingError, match=name):
            con.sql(f"SELECT * FROM {name}")
    assert number and kind


def test_variables_that_differ_in_case():
    Frame, frame = pl.DataFrame({"v": [1]}), pl.DataFrame({"v": [2]})
    con = rmq.connect()
    assert con.sql("SELECT v FROM frame").fetchall() == [(2,)]
    assert con.sql('SELECT v FROM "Frame"').fetchall() == [(1,)]
    FRAME = Frame
    del frame
    with pytest.raises(ValueError, match="differ only in case"):
        con.sql("SELECT v FROM frame")
    assert len(FRAME) == 1


def test_a_frame_is_read_when_the_statement_is_planned():
    frame = pl.DataFrame({"v": [1]})
    con = rmq.connect()
    result = con.sql("SELECT v FROM frame")
    frame = pl.DataFrame({"v": [2]})
    assert result.fetchall() == [(1,)]
    assert con.sql("SELECT v FROM frame").fetchall() == [(2,)]


def test_variables_are_read_and_not_changed():
    frame = pl.DataFrame({"v": [1, 2, 3]})
    con = rmq.connect()
    for sql in (
        "INSERT INTO frame VALUES (4)",
        "DROP TABLE frame",
        "DELETE FROM frame WHERE v = 1",
        "UPDATE frame SET v = 1 WHERE v = 2",
    ):
        with pytest.raises(rmq.Error, match="frame"):
            con.sql(sql)
    assert con.sql("DESCRIBE frame").fetchall()[0][0] == "v" and con.tables() == []
    # A table or view of the same name can be made of it.
    con.sql("CREATE TABLE frame AS SELECT v FROM frame")
    frame = pl.DataFrame({"v": [9]})
    assert con.sql("SELECT sum(v) FROM frame").fetchall() == [(6,)]
    other = pl.DataFrame({"v": [5, 7]})
    con.sql("CREATE TABLE made AS SELECT range_max('other.v', 0, v) AS highest FROM other WHERE v < 6")
    con.sql("CREATE VIEW other AS SELECT * FROM other")
    assert len(other) + len(frame) == 3
    del other, frame
    assert con.sql("SELECT sum(v) FROM other").fetchall() == [(12,)]
    assert con.sql("SELECT highest FROM made").fetchall() == [(7,)]
    # A variable that is called like a table to be created does not matter.
    created = pl.DataFrame({"v": [1]})
    con.sql("CREATE TABLE created AS SELECT 5 AS five")
    assert len(created) == 1 and con.sql("SELECT * FROM created").fetchall() == [(5,)]
    more = pl.DataFrame({"v": [6]})
    con.sql("INSERT INTO created SELECT v FROM more")
    assert len(more) == 1 and con.sql("SELECT sum(five) FROM created").fetchall() == [(11,)]


def test_options():
    con = rmq.connect(target_partitions=3, engine="cpu", memory_limit="1G", **{"datafusion.execution.batch_size": 100})
    settings = dict(con.sql("SELECT name, value FROM information_schema.df_settings").fetchall())
    assert settings["datafusion.execution.target_partitions"] == "3"
    assert settings["rmq.engine"] == "cpu"
    assert settings["datafusion.execution.batch_size"] == "100"
    with pytest.raises(ValueError, match="no option memory_limits; perhaps datafusion.runtime.memory_limit"):
        rmq.connect(memory_limits="1G")
    with pytest.raises(rmq.Error, match="engine|gpu"):
        rmq.connect(engine="gpu")
    with pytest.raises(rmq.Error):
        rmq.connect(memory_limit="1 elephant")


def test_cuda_answers_or_says_why_not():
    table = pl.DataFrame({"v": range(100)})
    con = rmq.connect(engine="cuda")
    try:
        assert con.sql("SELECT range_max('table.v', 3, 9) AS m").fetchall() == [(9,)]
    except rmq.Error as error:
        assert "RMQ_TEST_CUDA" not in os.environ, error
        assert "cuda" in str(error).lower()
    assert len(table) == 100


def test_files(tmp_path):
    con = rmq.connect()
    for i in range(3):
        pyarrow.parquet.write_table(pa.table({"v": [i, i + 10]}), tmp_path / f"q{i}.parquet")
    con.read_parquet("q", tmp_path / "*.parquet")
    assert con.sql("SELECT count(*), max(v) FROM q").fetchall() == [(6, 12)]
    con.read_parquet("q", [tmp_path / "q0.parquet", tmp_path / "q1.parquet"])
    assert con.sql("SELECT count(*), max(v) FROM q").fetchall() == [(4, 11)]
    con.read_parquet("q", tmp_path)
    assert con.sql("SELECT count(*) FROM q").fetchall() == [(6,)]
    (tmp_path / "a.txt").write_text("x;y\n1;u\n2;\n")
    con.read_csv("c", tmp_path / "a.txt", delimiter=";")
    assert con.sql("SELECT sum(x), min(nullif(y, '')) FROM c").fetchall() == [(3, "u")]
    with pytest.raises(rmq.Error, match="No files found"):
        con.read_parquet("nothing", tmp_path / "none" / "*.parquet")
    with pytest.raises(rmq.Error):
        con.read_parquet("text", tmp_path / "a.txt")
    with pytest.raises(ValueError, match="path=\\[\\]"):
        con.read_parquet("none", [])
    con.sql(f"COPY (SELECT * FROM q) TO '{tmp_path}/out.parquet'")
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").num_rows == 6


def test_errors_have_classes():
    con = rmq.connect()
    for sql in ("SELEC 1", "SELECT * FROM nowhere", "SELECT nothing FROM (SELECT 1 AS a) AS t"):
        with pytest.raises(rmq.ProgrammingError):
            con.sql(sql)
    with pytest.raises(rmq.OperationalError, match="[Dd]ivide"):
        con.sql("SELECT 1 / v FROM (VALUES (0)) AS t(v)").fetchall()
    assert issubclass(rmq.OperationalError, rmq.DatabaseError) and issubclass(rmq.DatabaseError, rmq.Error)
    with pytest.raises(ValueError, match="closed"):
        con.close()
        con.sql("SELECT 1")
    con.close()


def test_texts_of_results():
    con = rmq.connect()
    result = con.sql("SELECT value AS n, '<b>&' AS text, NULL AS none FROM generate_series(1, 30)")
    html = result._repr_html_()
    assert html.count("<tr>") == 21 and "&lt;b&gt;&amp;" in html and "20 of 30 rows" in html and "<b>" not in html
    assert "(20 of 30 rows)" in repr(result)
    assert "NULL" in repr(result)
    empty = con.sql("SELECT 1 AS one WHERE false")
    assert "one" in repr(empty) and "<td>" not in empty._repr_html_() and bool(empty) and len(empty) == 0
    tree = result.explain(format="tree")
    assert "┌" in tree and "generate_series" in result.explain()
    assert re.search(r"elapsed_compute|output_rows", result.explain(analyze=True))
    with pytest.raises(ValueError, match="format='yaml'"):
        result.explain(format="yaml")


def test_asof_join_and_views():
    con = rmq.connect()
    trades = pl.DataFrame({"ts": [4, 1]})
    quotes = pl.DataFrame({"ts": [1, 3, 5], "bid": [10.0, 10.5, 11.0]})
    sql = "SELECT t.ts, q.bid FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts >= q.ts) ORDER BY t.ts"
    assert con.sql(sql).fetchall() == [(1, 10.0), (4, 10.5)]
    assert len(trades) + len(quotes) == 5
    con.sql("CREATE VIEW one AS SELECT 1 AS v")
    assert con.tables() == ["one"]
    with pytest.raises(KeyError, match="two"):
        con.deregister("two")


def test_missing_libraries_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="to_polars.. needs polars: pip install polars"):
        rmq.connect().sql("SELECT 1 AS one").to_polars()


@pytest.mark.parametrize("library", ["tqdm", "rich"])
def test_progress(library, monkeypatch, capsys):
    if library == "rich":
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        # It shows bars only on terminals.
        monkeypatch.setenv("FORCE_COLOR", "1")
    kind = {"tqdm": progress._Tqdm, "rich": progress._Rich}[library]
    show, seen = kind.update, []

    class Enough(Exception):
        pass

    def update(bar, read, total):
        show(bar, read, total)
        seen.append(read)
        if len(seen) == 5:
            raise Enough

    monkeypatch.setattr(kind, "update", update)
    con = rmq.connect(progress=True)
    # Hours of work. An error of the bar stops it.
    with pytest.raises(Enough):
        con.sql("SELECT count(*) FROM generate_series(1, 1000000000000) AS t(x) WHERE x % 7 = 3").fetchall()
    assert seen == sorted(seen) and seen[-1] > 0
    shown = capsys.readouterr()
    assert "rows" in shown.out + shown.err
    # Short queries have none.
    con.sql("SELECT 1").fetchall()
    assert capsys.readouterr() == ("", "")


def test_progress_without_a_library(monkeypatch):
    for name in ("tqdm", "tqdm.auto", "rich", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="progress=True needs tqdm or rich"):
        rmq.connect(progress=True)
