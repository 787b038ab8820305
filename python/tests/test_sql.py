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
import pyarrow.dataset
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
        (np.array(7), 7),
        (bytearray(b"ab"), b"ab"),
        ([], []),
        ([1, None, 2.5], [1.0, None, 2.5]),
        (("a", "it's"), ["a", "it's"]),
        ([[1, 2], []], [[1, 2], []]),
        ([decimal.Decimal("1.5"), decimal.Decimal("2.25")], [decimal.Decimal("1.50"), decimal.Decimal("2.25")]),
        ([datetime.date(2026, 3, 2), None], [datetime.date(2026, 3, 2), None]),
        (np.array([1, 2]), [1, 2]),
        (np.array(["2026-03-02", "NaT"], "M8[D]"), [datetime.datetime(2026, 3, 2), None]),
        (pl.Series([1, None, 3], dtype=pl.Int8), [1, None, 3]),
        (pl.Series([], dtype=pl.String), []),
        (pd.Series(["a", None]), ["a", None]),
        (pa.array(["x"]), ["x"]),
        (pa.chunked_array([[1], [2]]), [1, 2]),
        (pa.scalar([1, 2]), [1, 2]),
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
    for value, reason in (([1, "a"], "a list of both Int64 and Utf8"), ([1, object()], "object"), ({"a": 1}, "dict"), (memoryview(b"a"), "memoryview")):
        with pytest.raises(TypeError, match=rf"parameter \$1: .*{reason}"):
            con.sql("SELECT $1", [value])
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


def test_lists_of_parameters_are_arrays():
    con = rmq.connect().register("t", pl.DataFrame({"v": [1, 2, 3, None]}))
    for wanted in ([3, 1], np.array([3, 1]), pl.Series([3, 1]), pd.Series([3, 1])):
        assert con.sql("SELECT v FROM t WHERE array_has($ids, v) ORDER BY v", {"ids": wanted}).fetchall() == [(1,), (3,)]
        assert con.sql("SELECT v FROM t WHERE v = ANY(?) ORDER BY v", [wanted]).fetchall() == [(1,), (3,)]


def test_parameters_of_updates_become_values_of_the_columns():
    con = rmq.connect()
    con.sql("CREATE TABLE t (n DOUBLE, word VARCHAR, day DATE) AS VALUES (1, 'a', NULL), (2, 'b', NULL)")
    assert con.sql("UPDATE t SET word = $1, n = $2 WHERE n = $3", ["new", 7, 1]).fetchall() == [(1,)]
    con.sql("UPDATE t SET word = ($word), day = $day WHERE word = 'b'", {"word": None, "day": "2024-02-29"})
    con.sql("UPDATE t SET n = n + ? WHERE word = ?", [1, "new"])
    assert con.sql("SELECT * FROM t ORDER BY n").fetchall() == [(2.0, None, datetime.date(2024, 2, 29)), (8.0, "new", None)]
    assert con.sql("EXPLAIN UPDATE t SET word = $1", ["x"]).fetchall()
    with pytest.raises(rmq.Error, match="x"):
        con.sql("UPDATE t SET n = $1", ["x"])


def test_question_marks():
    con = rmq.connect()
    # In the order of the text, whatever that of the clauses.
    sql = """WITH a AS (SELECT ? AS first) SELECT ? AS second, '?' AS text, first, (SELECT ? AS third), "?" FROM a,
             (SELECT ? AS "?") AS b WHERE first <> ? /* ? */ ORDER BY first + ? LIMIT ? OFFSET ?"""
    assert con.sql(sql, [1, 2, 3, 4, 5, 6, 7, 0]).fetchall() == [(2, "?", 1, 3, 4)]
    assert "Literal" not in con.sql("EXPLAIN SELECT ? AS a", [5]).fetchall()[0][1]
    con.sql("CREATE TABLE t AS SELECT ? AS a, ? AS b", [1, "x"])
    assert con.sql("INSERT INTO t VALUES (?, ?), (?, ?)", [2, "y", 3, "z"]).fetchall() == [(2,)]
    assert con.sql("SELECT * FROM t WHERE a BETWEEN ? AND ? AND b LIKE ? ORDER BY a", [2, 3, "%"]).fetchall() == [(2, "y"), (3, "z")]
    for text, params, message in (
        ("SELECT ? + $1", [1, 2], "all [?], or all"),
        ("SELECT ? + ?", [1], "2 parameters [?], and 1 values"),
        ("SELECT ?", [1, 2], "1 parameters [?], and 2 values"),
        ("SELECT ?", {"a": 1}, "those of a dict are for [$]name"),
    ):
        with pytest.raises(rmq.ProgrammingError, match=message):
            con.sql(text, params)
    with pytest.raises(rmq.Error, match="[Pp]laceholder"):
        con.sql("SELECT ? + 1").fetchall()


def test_copies_take_question_marks(tmp_path):
    con = rmq.connect()
    con.sql(f"COPY (SELECT ? AS a) TO '{tmp_path}/a.parquet'", [5])
    assert con.read_parquet("t", tmp_path / "a.parquet").sql("SELECT a FROM t").fetchall() == [(5,)]


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


def test_variables_in_prepared_statements():
    con = rmq.connect()
    frame = pl.DataFrame({"k": [1, 2, 3]})
    con.sql("PREPARE later (BIGINT) AS SELECT k FROM frame WHERE k >= $1 ORDER BY k")
    del frame
    assert con.sql("EXECUTE later (2)").fetchall() == [(2,), (3,)]


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


def test_variables_that_are_no_tables_hide_none():
    con = rmq.connect()
    R, r = pl.DataFrame({"v": [1]}), 5
    assert con.sql("SELECT v FROM R").fetchall() == con.sql('SELECT v FROM "R"').fetchall() == [(1,)]
    for r in (pl.Series([2]), pd.Series([2]), pl.LazyFrame({"v": [2]}), None):
        assert con.sql("SELECT v FROM r").fetchall() == [(1,)]
    assert len(R) == 1 and r is None


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


def test_variables_that_are_read_later_have_a_hint(tmp_path):
    con = rmq.connect()
    lazy = pl.LazyFrame({"v": [1]})
    pyarrow.parquet.write_table(pa.table({"v": [1]}), tmp_path / "a.parquet")
    Files = pyarrow.dataset.dataset(tmp_path)
    with pytest.raises(TypeError, match="table lazy: the variable lazy is a LazyFrame, .*use lazy.collect()"):
        con.sql("SELECT * FROM lazy")
    with pytest.raises(TypeError, match="table files: the variable Files is a Dataset, .*use Files.to_table()"):
        con.sql("SELECT * FROM files")
    assert lazy is not None and Files is not None
    # A registered table wins.
    assert con.register("lazy", pl.DataFrame({"v": [2]})).sql("SELECT v FROM lazy").fetchall() == [(2,)]


def test_options(tmp_path):
    con = rmq.connect(target_partitions=3, engine="cpu", memory_limit="1G", **{"datafusion.execution.batch_size": 100})
    settings = dict(con.sql("SELECT name, value FROM information_schema.df_settings").fetchall())
    assert settings["datafusion.execution.target_partitions"] == "3"
    assert settings["rmq.engine"] == "cpu"
    assert settings["datafusion.execution.batch_size"] == "100"
    named = {"max_temp_directory_size": "1G", "list_files_cache_limit": "1M", "list_files_cache_ttl": "1m30s", "metadata_cache_limit": "2M"}
    named |= {"file_statistics_cache_limit": "3M", "max_spill_merge_fan_in": "7", "temp_directory": str(tmp_path), "memory_limit": "4G"}
    read = "SELECT substr(name, 20) AS name, value FROM information_schema.df_settings WHERE name LIKE 'datafusion.runtime.%'"
    settings = dict(rmq.connect(**named).sql(read).fetchall())
    assert settings.keys() == named.keys()
    assert settings.pop("temp_directory").startswith(str(tmp_path))
    assert settings.items() <= named.items()
    with pytest.raises(rmq.Error, match="max_spill_merge_fan_in=many: no number"):
        rmq.connect(max_spill_merge_fan_in="many")
    with pytest.raises(ValueError, match="no option memory_limits; perhaps datafusion.runtime.memory_limit"):
        rmq.connect(memory_limits="1G")
    with pytest.raises(rmq.Error, match="engine|gpu"):
        rmq.connect(engine="gpu")
    with pytest.raises(rmq.Error):
        rmq.connect(memory_limit="1 elephant")


def test_indexes_give_way_to_other_operators():
    options = {"target_partitions": 1, "datafusion.execution.batch_size": 1024, "engine": "cpu"}
    fixed, later = rmq.connect(memory_limit="450K", **options), rmq.connect(**options)
    later.sql("SET datafusion.runtime.memory_limit = '450K'")
    for con in fixed, later:
        con.sql("CREATE TABLE t AS SELECT value AS v, value % 7 AS w FROM range(0, 20000)")
        assert con.sql("SELECT range_min('t.v', 5, 9), range_max('t.w', 5, 9)").fetchall() == [(5, 6)]
        assert con.sql("SELECT count(*) FROM rmq_indexes()").fetchall() == [(2,)]
        distinct = "SELECT count(*), sum(v) FROM (SELECT DISTINCT v, w FROM t)"
        assert con.sql(distinct).fetchall() == [(20000, 199990000)]


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


def test_files_that_are_added_are_seen(tmp_path):
    def write(i):
        pyarrow.parquet.write_table(pa.table({"v": list(range(i))}), tmp_path / f"q{i}.parquet")
        (tmp_path / f"c{i}.csv").write_text("v\n" + "".join(f"{v}\n" for v in range(i)))

    con = rmq.connect()
    count = {name: f"SELECT count(*) FROM {name}" for name in ("folder", "pattern", "other", "external", "texts")}
    write(1)
    con.read_parquet("folder", tmp_path).read_parquet("pattern", tmp_path / "*.parquet").read_csv("texts", tmp_path)
    con.sql(f"CREATE EXTERNAL TABLE external STORED AS PARQUET LOCATION '{tmp_path}'")
    names = ["folder", "pattern", "texts", "external"]
    assert [con.sql(count[name]).fetchall() for name in names] == [[(1,)]] * 4
    write(2)
    assert [con.sql(count[name]).fetchall() for name in names] == [[(3,)]] * 4
    assert con.read_parquet("other", tmp_path).sql(count["other"]).fetchall() == [(3,)]
    assert con.read_parquet("folder", tmp_path).sql(count["folder"]).fetchall() == [(3,)]
    # Kept indexes and sorted sides are of the same files as scans.
    lowest = "SELECT range_max('folder.v', 0, 99) AS m, (SELECT max(v) FROM folder) AS n"
    assert con.sql(lowest).fetchall() == [(1, 1)]
    write(3)
    assert con.sql(lowest).fetchall() == [(2, 2)]
    for file in tmp_path.glob("*2.*"):
        file.unlink()
    assert [con.sql(count[name]).fetchall() for name in names] == [[(4,)]] * 4
    # The list is kept for a session that asks for it.
    kept = rmq.connect(list_files_cache_limit="1M").read_parquet("folder", tmp_path)
    assert kept.sql(count["folder"]).fetchall() == [(4,)]
    write(5)
    assert kept.sql(count["folder"]).fetchall() == [(4,)] and con.sql(count["folder"]).fetchall() == [(9,)]


def test_files_beside_folders(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.csv").write_text("v\n1\n")
    (folder / "b.txt").write_text("v\n2\n")
    (tmp_path / "c.csv").write_text("v\n4\n")
    (tmp_path / "d.txt").write_text("v\n8\n")
    con = rmq.connect()

    def total(*paths):
        return con.read_csv("t", [*paths]).sql("SELECT sum(v) FROM t").fetchall()[0][0]

    assert total(folder) == 1 and total(folder, tmp_path / "c.csv") == 5
    for other in (tmp_path / "d.txt", tmp_path / "*"):
        with pytest.raises(ValueError, match=r"path '.*(d.txt|\*)': beside the folder '.*' only files that end in '.csv'"):
            total(folder, other)
    assert total(folder / "*", tmp_path / "d.txt") == 11
    assert total(tmp_path / "c.csv", tmp_path / "d.txt") == 12


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


def test_rows_one_after_the_other(monkeypatch):
    monkeypatch.setattr(rmq.result, "STEP", 7)
    con = rmq.connect(batch_size=10)
    result = con.sql("SELECT value AS n, CAST(value AS VARCHAR) AS s FROM generate_series(1, 50) ORDER BY 1")
    rows = [(i, str(i)) for i in range(1, 51)]
    assert list(result) == rows and result.shape == (50, 2)
    assert result.fetchone() == rows[0] and result.fetchmany(12) == rows[1:13] and result.fetchmany(0) == []
    assert result.fetchall() == rows and list(result) == rows
    assert result.fetchmany(100) == rows[13:] and result.fetchone() is None and result.fetchmany(1) == []
    assert result.schema.names == ["n", "s"] and result.schema.types == [pa.int64(), pa.string_view()]
    with pytest.raises(ValueError, match="size=-1"):
        result.fetchmany(-1)
    empty = con.sql("SELECT 1 AS one WHERE false")
    assert list(empty) == [] and empty.fetchone() is None and empty.shape == (0, 1)
    con.sql("CREATE TABLE t AS SELECT 1 AS v")
    assert pd.DataFrame(result, columns=result.columns)["n"].sum() == 1275 and pl.DataFrame(result).shape == (50, 2)


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


def test_tables_of_queries():
    con = rmq.connect(target_partitions=3, batch_size=2)
    numbers = pl.DataFrame({"v": [5, 3, None, 8, 1], "s": ["a", "b", None, "c", "d"]})
    con.sql("CREATE TABLE t AS SELECT * FROM numbers ORDER BY v DESC NULLS LAST")
    # In the order of the query.
    lowest = con.sql("SELECT value AS i, range_min('t.v', value, value) AS v FROM generate_series(0, 4) ORDER BY i")
    assert lowest.fetchall() == [(0, 8), (1, 5), (2, 3), (3, 1), (4, None)]
    con.sql("INSERT INTO t VALUES (NULL, NULL)")
    # A table that is there stays, and its query does not run.
    con.sql("CREATE TABLE IF NOT EXISTS t AS SELECT 1 / v AS v FROM (VALUES (0)) AS x(v)")
    with pytest.raises(rmq.Error, match="already exists"):
        con.sql("CREATE TABLE t AS SELECT 1 / v AS v FROM (VALUES (0)) AS x(v)")
    assert con.sql("SELECT count(*) FROM t").fetchall() == [(6,)]
    # The new table is made of the old one, and the old one stays if that fails.
    con.sql("CREATE OR REPLACE TABLE t AS SELECT v * 2 AS v FROM t WHERE v > 2")
    assert sorted(con.sql("SELECT v FROM t")) == [(6,), (10,), (16,)]
    with pytest.raises(rmq.OperationalError, match="[Dd]ivide"):
        con.sql("CREATE OR REPLACE TABLE t AS SELECT 1 / (v - v) AS v FROM t")
    assert len(con.sql("SELECT v FROM t")) == 3
    con.sql("CREATE TABLE typed (n DOUBLE NOT NULL, word VARCHAR DEFAULT 'x') AS SELECT 1, 'a'")
    con.sql("INSERT INTO typed (n) VALUES (2)")
    assert sorted(con.sql("SELECT * FROM typed")) == [(1.0, "a"), (2.0, "x")]
    with pytest.raises(rmq.Error, match="dup"):
        con.sql("CREATE TABLE twice AS SELECT 1 AS dup, 2 AS dup")
    con.sql("CREATE TABLE none AS SELECT v FROM t WHERE false")
    assert con.sql("SELECT v FROM none").fetchall() == [] and len(numbers) == 5


def test_asof_join_and_views():
    con = rmq.connect()
    trades = pl.DataFrame({"ts": [4, 1]})
    quotes = pl.DataFrame({"ts": [1, 3, 5], "bid": [10.0, 10.5, 11.0]})
    sql = "SELECT t.ts, q.bid FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts >= q.ts) ORDER BY t.ts"
    assert con.sql(sql).fetchall() == [(1, 10.0), (4, 10.5)]
    # As DuckDB writes it, with a parameter.
    sql = "SELECT t.ts, q.bid FROM trades t ASOF LEFT JOIN quotes q ON t.ts >= q.ts AND q.bid > ? ORDER BY t.ts"
    assert con.sql(sql, [10.2]).fetchall() == [(1, None), (4, 10.5)]
    assert con.sql("SELECT t.ts FROM trades t ASOF ANTI JOIN quotes q ON t.ts > q.ts").fetchall() == [(1,)]
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
def test_progress(library, monkeypatch, capsys, tmp_path):
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
    endless = "SELECT count(*) AS n FROM generate_series(1, 1000000000000) AS t(x) WHERE x % 7 = 3"
    with pytest.raises(Enough):
        con.sql(endless).fetchall()
    assert seen == sorted(seen) and seen[-1] > 0
    shown = capsys.readouterr()
    assert "rows" in shown.out + shown.err
    # Short queries have none.
    con.sql("SELECT 1").fetchall()
    assert capsys.readouterr() == ("", "")
    # So have statements that run at once.
    con.sql("CREATE TABLE t (n BIGINT) AS VALUES (1)")
    for statement in (
        f"INSERT INTO t {endless}",
        f"COPY ({endless}) TO '{tmp_path}/out.csv'",
        f"CREATE TABLE new AS {endless}",
        f"CREATE OR REPLACE TABLE t AS {endless}",
    ):
        seen.clear()
        with pytest.raises(Enough):
            con.sql(statement)
        assert seen == sorted(seen) and seen[-1] > 0
        assert con.tables() == ["t"] and con.sql("SELECT * FROM t").fetchall() == [(1,)]


def test_progress_without_a_library(monkeypatch):
    for name in ("tqdm", "tqdm.auto", "rich", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="progress=True needs tqdm or rich"):
        rmq.connect(progress=True)


@pytest.mark.parametrize("call", ["sum(true)", "avg(DATE '2026-01-01')"])
def test_wrong_types_of_arguments_are_no_bug(call):
    with pytest.raises(rmq.ProgrammingError, match=r"^Error during planning: No function matches .*\((Boolean|Date32)\)'") as raised:
        rmq.connect().sql(f"SELECT {call}").fetchall()
    assert "bug" not in str(raised.value)


def test_types_are_those_of_the_schema():
    # DataFusion's plan of this union has decimals, and its schema integers.
    con = rmq.connect()
    con.sql("CREATE TABLE o (id BIGINT) AS VALUES (1), (2)")
    con.sql("CREATE TABLE q (id BIGINT, x DOUBLE) AS VALUES (1, 1.5), (2, 2.5)")
    counts = con.sql("SELECT (SELECT regr_count(q.x, q.x) FROM q WHERE q.id <= o.id) AS n FROM o UNION ALL SELECT 7")
    for table in (counts.to_arrow(), pa.table(counts.stream())):
        table.validate(full=True)
        assert sorted(table["n"].to_pylist()) == [1, 2, 7]
    assert sorted(counts.fetchall()) == [(1,), (2,), (7,)]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE EXTERNAL TABLE x STORED AS PARQUET LOCATION 's3://bucket/x.parquet'",
        "SELECT * FROM 's3://bucket/x.parquet'",
        "COPY (SELECT 1) TO 's3://bucket/x.parquet'",
    ],
)
def test_files_elsewhere_are_named(statement):
    with pytest.raises(rmq.DatabaseError, match=r"s3://bucket.*: SQL reads and writes local files only; read others with polars"):
        rmq.connect().sql(statement).fetchall()


def test_refusals_do_not_name_the_rule_that_found_them():
    con = rmq.connect()
    con.sql("CREATE TABLE a AS SELECT 1 AS x").fetchall()
    query = "SELECT x, (SELECT sum(v) FROM (SELECT x + random() AS v UNION ALL SELECT x) AS r) FROM a"
    with pytest.raises(rmq.ProgrammingError, match=r"^Error during planning: a subquery ") as raised:
        con.sql(query).fetchall()
    assert "caused by" not in str(raised.value)
