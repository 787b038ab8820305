"""The ADBC driver, by the driver manager's DB-API, pandas and polars."""

import datetime
import decimal
import signal
import subprocess
import sys
import textwrap
import threading
import time

import adbc_driver_manager
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import datafusion_rmq as rmq
from datafusion_rmq import adbc

PRICES = pa.table({"sym": ["A", "B", "A"], "ts": [1, 2, 3], "close": [10.2, None, 9.8]})


@pytest.fixture
def connection():
    with adbc.connect(target_partitions=2) as opened:
        yield opened


def test_queries(connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT value AS n, CAST(value AS VARCHAR) AS s FROM generate_series(1, 100000) ORDER BY 1")
        assert [column[0] for column in cursor.description] == ["n", "s"]
        assert cursor.fetchone() == (1, "1")
        assert len(cursor.fetchall()) == 99_999
        assert cursor.execute("SELECT 1 AS one WHERE false").fetch_arrow_table().schema.names == ["one"]
        assert pl.DataFrame(cursor.execute("SELECT 2 AS two").fetch_record_batch()).item() == 2


@pytest.mark.parametrize(
    "value",
    [None, True, -5, 1.5, "it's", b"\x00a", datetime.date(1960, 2, 29), datetime.datetime(2026, 3, 2, 1, 2, 3, 4), decimal.Decimal("-1.230")],
    ids=repr,
)
def test_parameters(connection, value):
    with connection.cursor() as cursor:
        assert cursor.execute("SELECT $1 AS v", [value]).fetchall() == [(value,)]
        assert cursor.execute("SELECT $x AS v", {"x": value}).fetchall() == [(value,)]
        assert cursor.execute("SELECT ? AS v, 1 AS one", [value]).fetchall() == [(value, 1)]
        # Parameters are used once, and the statement needs them again.
        with pytest.raises(adbc_driver_manager.Error):
            cursor.execute("SELECT $x AS v").fetchall()


def test_several_rows_of_parameters(connection):
    with connection.cursor() as cursor:
        rows = cursor.execute("SELECT $1 + $2 AS total", pa.table({"a": [1, 2, 3], "b": [10, 20, 30]}))
        assert rows.fetchall() == [(11,), (22,), (33,)]
        nothing = cursor.execute("SELECT 1 AS one", pa.table({"a": pa.array([], pa.int64())}))
        assert nothing.fetchall() == [] and nothing.description[0][0] == "one"
        cursor.execute("CREATE TABLE t (v BIGINT)")
        cursor.executemany("INSERT INTO t VALUES ($1)", [[5], [6], [7]])
        assert cursor.rowcount == 3
        cursor.executemany("INSERT INTO t SELECT $v", [{"v": 8}])
        assert cursor.execute("SELECT v FROM t ORDER BY v").fetchall() == [(5,), (6,), (7,), (8,)]


def test_changes_run_once_and_at_once(connection):
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t AS SELECT 1 AS v")
        # Its result is not read.
        cursor.execute("INSERT INTO t VALUES (2)")
        assert cursor.execute("INSERT INTO t VALUES (3)").fetchall() == [(1,)]
        assert cursor.execute("SELECT v FROM t ORDER BY v").fetchall() == [(1,), (2,), (3,)]


def test_ingest(connection):
    with connection.cursor() as cursor:
        assert cursor.adbc_ingest("It's \"t\"", PRICES) == 3
        with pytest.raises(adbc_driver_manager.Error, match="there is a table It's \"t\" already"):
            cursor.adbc_ingest("It's \"t\"", PRICES)
        with pytest.raises(adbc_driver_manager.Error, match="there is no table other"):
            cursor.adbc_ingest("other", PRICES, mode="append")
        # By name, whatever the order of the columns.
        assert cursor.adbc_ingest("It's \"t\"", PRICES.select(["close", "sym", "ts"]).slice(2), mode="append") == 1
        assert cursor.execute('SELECT count(*), sum(close) FROM "It\'s ""t"""').fetchall() == [(4, 10.2 + 9.8 + 9.8)]
        with pytest.raises(adbc_driver_manager.Error, match="nothing"):
            cursor.adbc_ingest("It's \"t\"", pa.table({"nothing": [1]}), mode="append")
        assert cursor.adbc_ingest("other", PRICES.to_reader(max_chunksize=1), mode="create_append") == 3
        assert cursor.adbc_ingest("other", PRICES, mode="create_append") == 3
        assert cursor.execute("SELECT count(*) FROM other").fetchall() == [(6,)]
        assert cursor.adbc_ingest("other", PRICES.slice(1), mode="replace") == 2
        assert cursor.execute("SELECT range_min('other.close', 0, 1) AS low, count(*) FROM other").fetchall() == [(9.8, 2)]
        for wrong in ({"temporary": True}, {"catalog_name": "c"}, {"db_schema_name": "s"}):
            with pytest.raises(adbc_driver_manager.NotSupportedError):
                cursor.adbc_ingest("more", PRICES, **wrong)


def test_a_session_is_shared():
    con = rmq.connect().register("prices", PRICES)
    with adbc.connect(con) as connection, connection.cursor() as cursor:
        joined = cursor.execute("SELECT range_argmin('prices.close', 0, 2) AS at")
        assert joined.fetchall() == [(2,)]
        cursor.adbc_ingest("more", PRICES)
    assert con.tables() == ["more", "prices"]
    assert con.sql("SELECT count(*) FROM more").fetchall() == [(3,)]
    with pytest.raises(ValueError, match="target_partitions: options are those of the session"):
        adbc.connect(con, target_partitions=2)
    con.close()
    with pytest.raises(ValueError, match="closed"):
        adbc.connect(con)


def test_options():
    with adbc.connect(target_partitions=3, memory_limit="1G", engine="cpu") as connection, connection.cursor() as cursor:
        settings = dict(cursor.execute("SELECT name, value FROM information_schema.df_settings").fetchall())
        assert settings["datafusion.execution.target_partitions"] == "3" and settings["rmq.engine"] == "cpu"
        assert connection.adbc_current_catalog == "datafusion" and connection.adbc_current_db_schema == "public"
    with pytest.raises(ValueError, match="no option memory_limits; perhaps"):
        adbc.connect(memory_limits="1G")
    with pytest.raises(adbc_driver_manager.Error, match="engine|gpu"):
        adbc.connect(engine="gpu")
    library, entry = rmq._native.__file__, "AdbcDatafusionRmqInit"
    with pytest.raises(adbc_driver_manager.Error, match="uri"):
        adbc_driver_manager.AdbcDatabase(driver=library, entrypoint=entry, uri="file:t")
    with pytest.raises(adbc_driver_manager.Error, match="datafusion_rmq.session=7000: no such session is lent"):
        adbc_driver_manager.AdbcDatabase(driver=library, entrypoint=entry, **{"datafusion_rmq.session": "7000"})


def test_what_there_is(connection):
    with connection.cursor() as cursor:
        cursor.adbc_ingest("prices", PRICES)
        cursor.execute("CREATE VIEW latest AS SELECT max(ts) AS ts FROM prices")
        cursor.execute("CREATE SCHEMA other")
        cursor.execute("CREATE TABLE other.prices AS SELECT 1 AS one")
    assert connection.adbc_get_table_types() == ["BASE TABLE", "VIEW", "LOCAL TEMPORARY"]
    assert connection.adbc_get_table_schema("prices").names == ["sym", "ts", "close"]
    assert connection.adbc_get_table_schema("prices", db_schema_filter="other").names == ["one"]
    with pytest.raises(adbc_driver_manager.Error, match="no table .*nowhere"):
        connection.adbc_get_table_schema("nowhere")
    info = connection.adbc_get_info()
    assert info["driver_name"] == "datafusion_rmq" and info["driver_version"] == rmq.__version__
    assert info["vendor_name"] == "DataFusion"

    def names(**filters):
        """The names that are listed, with their schema and type, and those of their columns."""
        found = {}
        for catalog in connection.adbc_get_objects(**filters).read_all().to_pylist():
            for schema in catalog["catalog_db_schemas"] or [{"db_schema_name": None, "db_schema_tables": None}]:
                for table in schema["db_schema_tables"] or []:
                    columns = table["table_columns"]
                    shown = columns and [(c["column_name"], c["ordinal_position"], c["xdbc_type_name"]) for c in columns]
                    found[schema["db_schema_name"], table["table_name"], table["table_type"]] = shown
        return found

    columns = [("sym", 1, "Utf8"), ("ts", 2, "Int64"), ("close", 3, "Float64")]
    everything = names()
    assert everything["public", "prices", "BASE TABLE"] == columns and len(everything) == 3
    assert everything["public", "latest", "VIEW"] == [("ts", 1, "Int64")]
    assert names(depth="tables") == {key: None for key in everything}
    assert names(depth="db_schemas") == names(depth="catalogs") == {}
    assert set(names(table_name_filter="pri%")) == {("public", "prices", "BASE TABLE"), ("other", "prices", "BASE TABLE")}
    assert set(names(table_types_filter=["VIEW"])) == {("public", "latest", "VIEW")}
    assert names(db_schema_filter="public", table_name_filter="prices", column_name_filter="_s") == {
        ("public", "prices", "BASE TABLE"): [("ts", 2, "Int64")]
    }
    assert names(catalog_filter="no") == {}


def test_pandas_reads_and_writes(connection):
    frame = pd.DataFrame({"v": [1, 2], "s": ["a", None]})
    assert frame.to_sql("t", connection, index=False) == 2
    with pytest.raises(ValueError, match="already exists"):
        frame.to_sql("t", connection, index=False)
    assert frame.to_sql("t", connection, index=False, if_exists="append") == 2
    read = pd.read_sql("SELECT v, count(*) AS n FROM t WHERE v > 0 GROUP BY v ORDER BY v", connection)
    assert read["v"].tolist() == [1, 2] and read["n"].tolist() == [2, 2]
    with pytest.raises(pd.errors.DatabaseError, match="nowhere"):
        pd.read_sql("SELECT * FROM nowhere", connection)


def test_polars_reads_and_writes(connection):
    frame = pl.DataFrame({"v": [1, 2], "s": ["a", None]})
    frame.write_database("t", connection, engine="adbc")
    assert pl.read_database("SELECT * FROM t ORDER BY v", connection).equals(frame)


def test_errors(connection):
    with connection.cursor() as cursor:
        for sql in ("SELEC 1", "SELECT * FROM nowhere", ""):
            with pytest.raises(adbc_driver_manager.ProgrammingError):
                cursor.execute(sql)
        with pytest.raises(adbc_driver_manager.Error, match="[Dd]ivide"):
            cursor.execute("SELECT 1 / v FROM (VALUES (0)) AS t(v)").fetchall()
        with pytest.raises(adbc_driver_manager.NotSupportedError):
            cursor.execute(b"a plan of Substrait")
        hidden = PRICES
        with pytest.raises(adbc_driver_manager.ProgrammingError, match="hidden"):
            cursor.execute("SELECT * FROM hidden")
        assert len(hidden) == 3
        assert cursor.execute("SELECT 1").fetchall() == [(1,)]


ENDLESS = "SELECT count(*) FROM generate_series(1, 1000000000000) AS t(x) WHERE x % 7 = 3"


def test_cancel(connection):
    with connection.cursor() as cursor:
        for ask in (
            lambda: cursor.execute(ENDLESS),
            lambda: cursor.executemany(f"CREATE TABLE t AS {ENDLESS}", None),
            # Its first rows come at once.
            lambda: cursor.execute("SELECT x FROM generate_series(1, 1000000000000) AS t(x)").fetch_record_batch().read_all(),
        ):
            threading.Timer(0.3, cursor.adbc_cancel).start()
            with pytest.raises((adbc_driver_manager.OperationalError, pa.ArrowInvalid), match="cancelled"):
                ask()
            # It does not run on, and the cursor is usable.
            used = time.process_time()
            time.sleep(0.5)
            assert time.process_time() - used < 0.3
            assert cursor.execute("SELECT 1").fetchall() == [(1,)]


def test_ctrl_c():
    code = f"""
        import adbc_driver_manager
        from datafusion_rmq import adbc
        connection = adbc.connect()
        cursor = connection.cursor()
        print("started", flush=True)
        try:
            cursor.execute({ENDLESS!r}).fetchall()
        except adbc_driver_manager.OperationalError as error:
            # The driver manager cancels the statement, whose error this is.
            print("interrupted" if "cancelled" in str(error) else repr(error))
        print(cursor.execute("SELECT 1").fetchall())
        """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "started\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out.splitlines() == ["interrupted", "[(1,)]"]


def test_20_threads_with_connections_of_one_session():
    con = rmq.connect(target_partitions=2)
    failures = []

    def work(i):
        try:
            with adbc.connect(con) as connection, connection.cursor() as cursor:
                table = pa.table({"v": [i, i + 1]})
                for _ in range(3):
                    cursor.adbc_ingest(f"t{i}", table, mode="replace")
                    assert cursor.execute(f"SELECT sum(v) FROM t{i}").fetchall() == [(2 * i + 1,)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(con.tables()) == 20


def test_the_driver_manager_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "adbc_driver_manager", None)
    with pytest.raises(ImportError, match="pip install adbc-driver-manager"):
        adbc.connect()
