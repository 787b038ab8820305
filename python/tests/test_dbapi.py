"""The DB-API 2.0."""

import contextlib
import datetime

import pandas as pd
import polars as pl
import pytest
import sqlalchemy.pool

from datafusion_rmq import dbapi


def test_cursor():
    with dbapi.connect(target_partitions=1) as connection:
        cursor = connection.cursor()
        assert cursor.description is None and cursor.rowcount == -1
        with pytest.raises(dbapi.ProgrammingError, match="no statement"):
            cursor.fetchone()
        cursor.execute("SELECT value AS n, CAST(value AS VARCHAR) AS s FROM generate_series(1, 5)")
        assert [column[:2] for column in cursor.description] == [("n", "Int64"), ("s", "Utf8View")]
        assert all(len(column) == 7 for column in cursor.description)
        assert cursor.description[0][1] == dbapi.NUMBER and cursor.description[1][1] == dbapi.STRING
        assert cursor.description[0][1] != dbapi.STRING and cursor.rowcount == 5
        assert cursor.fetchone() == (1, "1")
        assert cursor.fetchmany() == [(2, "2")]
        assert cursor.fetchmany(2) == [(3, "3"), (4, "4")]
        assert cursor.fetchall() == [(5, "5")]
        assert cursor.fetchone() is None and cursor.fetchall() == []
        assert list(cursor.execute("SELECT $1 AS a, $1 + $2 AS b", [1, 2])) == [(1, 3)]
        assert cursor.execute("SELECT $x AS a", {"x": datetime.date(2026, 3, 2)}).fetch_arrow_table().num_rows == 1


def test_rows_become_python_values_when_they_are_fetched():
    cursor = dbapi.connect().cursor()
    # Python has no such time.
    cursor.execute("SELECT arrow_cast(9000000000000, 'Timestamp(Second, None)') AS t")
    assert cursor.rowcount == 1 and cursor.fetch_arrow_table().num_rows == 1
    with pytest.raises(dbapi.OperationalError, match="beyond the times that Python has"):
        cursor.fetchone()
    with pytest.raises(dbapi.OperationalError, match="[Dd]ivide"):
        cursor.execute("SELECT 1 / v FROM (VALUES (0)) AS t(v)")


def test_question_marks():
    assert dbapi.paramstyle == "qmark"
    cursor = dbapi.connect().cursor()
    cursor.execute("CREATE TABLE t (v BIGINT, s VARCHAR)")
    cursor.executemany("INSERT INTO t VALUES (?, ?)", [(1, "a"), (2, "b"), (3, None)])
    assert cursor.rowcount == 3
    assert cursor.execute("SELECT v FROM t WHERE s = ? OR v > ? ORDER BY v", ("a", 2)).fetchall() == [(1,), (3,)]
    assert cursor.execute("UPDATE t SET s = ? WHERE v = ?", ("c", 3)).rowcount == 1
    assert cursor.execute("SELECT s FROM t WHERE v = $1", [3]).fetchall() == [("c",)]


def test_statements_without_rows():
    connection = dbapi.connect()
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE t AS SELECT 1 AS v")
    assert cursor.description is None and cursor.fetchall() == []
    cursor.executemany("INSERT INTO t VALUES ($1)", [[2], [3]])
    assert cursor.description is None and cursor.rowcount == 2 and cursor.fetchall() == []
    assert cursor.execute("SELECT v FROM t ORDER BY v").fetchall() == [(1,), (2,), (3,)]
    with pytest.raises(dbapi.NotSupportedError):
        connection.rollback()
    connection.commit()
    # Nothing was changed since.
    connection.rollback()


def test_pandas_reads():
    connection = dbapi.connect()
    connection.session.register("t", pl.DataFrame({"v": [1, 2], "s": ["a", None]}))
    with pytest.warns(UserWarning, match="SQLAlchemy"):
        frame = pd.read_sql("SELECT * FROM t ORDER BY v", connection)
    assert frame["v"].tolist() == [1, 2] and frame["s"][0] == "a"


def test_polars_reads():
    connection = dbapi.connect()
    connection.session.register("t", pl.DataFrame({"v": [1, 2], "s": ["a", None]}))
    read = pl.read_database("SELECT * FROM t ORDER BY v", connection)
    assert read.rows() == [(1, "a"), (2, None)]


def test_a_pool_of_sqlalchemy():
    """It hands connections back after a rollback, and drops those whose rollback fails."""
    opened = []

    def connect():
        opened.append(dbapi.connect())
        opened[-1].session.register("t", pl.DataFrame({"v": [1, 2]}))
        return opened[-1]

    pool = sqlalchemy.pool.QueuePool(connect, pool_size=1, max_overflow=0)
    for _ in range(3):
        with contextlib.closing(pool.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT sum(v) FROM t")
            assert cursor.fetchall() == [(3,)]
    assert len(opened) == 1


def test_variables_are_not_seen():
    hidden = pl.DataFrame({"v": [1]})
    assert len(hidden) == 1
    with pytest.raises(dbapi.ProgrammingError, match="hidden"):
        dbapi.connect().cursor().execute("SELECT * FROM hidden")


def test_closed():
    connection = dbapi.connect()
    cursor = connection.cursor()
    cursor.close()
    with pytest.raises(dbapi.InterfaceError, match="cursor is closed"):
        cursor.execute("SELECT 1")
    other = connection.cursor()
    connection.close()
    connection.close()
    for use in (connection.cursor, connection.commit, lambda: other.execute("SELECT 1")):
        with pytest.raises(dbapi.InterfaceError, match="connection is closed"):
            use()


def test_module():
    assert dbapi.apilevel == "2.0" and dbapi.threadsafety == 2
    for error in ("DatabaseError", "ProgrammingError", "OperationalError", "NotSupportedError", "InterfaceError", "DataError"):
        assert issubclass(getattr(dbapi, error), dbapi.Error)
    assert dbapi.DateFromTicks(0).year in (1969, 1970)
    assert isinstance(dbapi.TimestampFromTicks(0), dbapi.Timestamp) and isinstance(dbapi.TimeFromTicks(0), dbapi.Time)
