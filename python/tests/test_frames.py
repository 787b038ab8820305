"""Frames of other libraries as tables, and results as their frames."""

import datetime
import decimal
import gc
import pickle
import weakref

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import datafusion_rmq as rmq

ROWS = {
    "i": [3, None, -1],
    "f": [1.5, float("nan"), None],
    "s": ["x", None, "a b"],
    "t": [datetime.datetime(2026, 3, 2, 9, 30, 0, 1), None, datetime.datetime(1969, 12, 31)],
}


def polars_frame():
    return pl.DataFrame(ROWS)


def same(actual, expected):
    """Whether rows are equal, with NaN equal to itself."""
    return repr(actual) == repr(expected)


EXPECTED = list(zip(*ROWS.values()))

FRAMES = {
    "polars": polars_frame,
    "pyarrow table": lambda: pa.table(ROWS),
    "pyarrow batch": lambda: pa.RecordBatch.from_pydict(ROWS),
    "pyarrow reader": lambda: pa.table(ROWS).to_reader(max_chunksize=2),
    "pyarrow chunks": lambda: pa.concat_tables([pa.table(ROWS).slice(0, 1), pa.table(ROWS).slice(1)]),
    "pyarrow sliced": lambda: pa.concat_tables([pa.table(ROWS)] * 2).slice(3),
    "polars sliced": lambda: pl.concat([polars_frame(), polars_frame()], rechunk=False)[3:],
    "duckdb": lambda: duckdb.from_arrow(pa.table(ROWS)),
    "ours": lambda: rmq.connect().register("t", pa.table(ROWS)).sql("SELECT * FROM t"),
    "ours, streamed": lambda: rmq.connect().register("t", pa.table(ROWS)).sql("SELECT * FROM t").stream(),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_of_each_library(kind):
    con = rmq.connect().register("t", FRAMES[kind]())
    assert same(con.sql("SELECT * FROM t").fetchall(), EXPECTED)
    # A second time: a stream that came was kept.
    assert con.sql("SELECT count(*), count(i) FROM t").fetchall() == [(3, 2)]


def test_pandas():
    frame = pd.DataFrame({"i": [1, 2, 3], "f": [1.5, np.nan, 2.5], "s": ["a", None, "c"]})
    con = rmq.connect().register("t", frame)
    # pandas exports its missing values as NULL.
    assert con.sql("SELECT * FROM t").fetchall() == [(1, 1.5, "a"), (2, None, None), (3, 2.5, "c")]
    assert con.sql("SELECT i, f FROM t").to_pandas()["i"].tolist() == [1, 2, 3]
    # An index that is no plain count is a column.
    named = frame.set_index(pd.Index([7, 9, 8], name="at"))[["i"]]
    assert con.register("n", named).sql("SELECT i, at FROM n").fetchall() == [(1, 7), (2, 9), (3, 8)]
    masked = pd.DataFrame({"i": pd.array([1, None, 3], dtype="Int64"), "c": pd.Categorical(["u", "v", "u"])})
    assert con.register("m", masked).sql("SELECT * FROM m").fetchall() == [(1, "u"), (None, "v"), (3, "u")]


def test_results_in_each_library():
    con = rmq.connect().register("t", polars_frame())
    result = con.sql("SELECT * FROM t")
    assert result.to_polars().equals(polars_frame(), null_equal=True)
    assert result.to_arrow().column("i").to_pylist() == ROWS["i"]
    assert pl.from_arrow(pa.RecordBatchReader.from_stream(result.stream()).read_all()).equals(polars_frame())
    assert duckdb.from_arrow(pa.table(result)).aggregate("count(*), count(i)").fetchall() == [(3, 2)]
    assert pd.isna(result.to_pandas()["f"][2])
    assert len(result) == 3 and result.columns == list(ROWS)


def test_results_that_are_iterated():
    result = rmq.connect().register("t", polars_frame()).sql("SELECT * FROM t")
    assert pd.DataFrame(result).columns.tolist() == list(ROWS)
    assert same(list(result), result.fetchall())
    assert pickle.loads(pickle.dumps(list(result)[0])) == result.fetchall()[0]


def test_what_does_not_pickle_says_why():
    with pytest.raises(TypeError, match="belongs to a session; pickle to_arrow"):
        pickle.dumps(rmq.connect().sql("SELECT 1"))
    with pytest.raises(TypeError, match="a Stream does not pickle, as it belongs to a session"):
        pickle.dumps(rmq.connect().sql("SELECT 1").stream())
    with pytest.raises(TypeError, match=r"a Connection does not pickle, .*connect\(\)"):
        pickle.dumps(rmq.connect())
    with pytest.raises(TypeError, match="pickle the array"):
        pickle.dumps(rmq.RangeIndex([5, 3]))


TYPES = {
    "int8": (pa.int8(), [-128, None, 127]),
    "int16": (pa.int16(), [-(2**15), None, 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), None, 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "uint8": (pa.uint8(), [0, None, 255]),
    "uint16": (pa.uint16(), [0, None, 2**16 - 1]),
    "uint32": (pa.uint32(), [0, None, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, None, 2**64 - 1]),
    "float16": (pa.float16(), [np.float16(0.5), None, np.float16(-2)]),
    "float32": (pa.float32(), [0.5, None, float("inf")]),
    "float64": (pa.float64(), [0.1, None, float("-inf")]),
    "bool": (pa.bool_(), [True, None, False]),
    "string": (pa.string(), ["", None, "é"]),
    "large_string": (pa.large_string(), ["", None, "é"]),
    "string_view": (pa.string_view(), ["", None, "longer than twelve bytes"]),
    "binary": (pa.binary(), [b"", None, b"\x00\xff"]),
    "large binary": (pa.large_binary(), [b"", None, b"\x00\xff"]),
    "binary view": (pa.binary_view(), [b"", None, b"longer than twelve bytes"]),
    "fixed binary": (pa.binary(2), [b"ab", None, b"\x00\xff"]),
    "date32": (pa.date32(), [datetime.date(1969, 1, 1), None, datetime.date(2026, 3, 2)]),
    "date64": (pa.date64(), [datetime.date(1969, 1, 1), None, datetime.date(2026, 3, 2)]),
    "time32": (pa.time32("ms"), [datetime.time(1, 2, 3, 4000), None, datetime.time(0)]),
    "time32 s": (pa.time32("s"), [datetime.time(1, 2, 3), None, datetime.time(0)]),
    "time64": (pa.time64("us"), [datetime.time(1, 2, 3, 4), None, datetime.time(0)]),
    "time64 ns": (pa.time64("ns"), [datetime.time(1, 2, 3, 4), None, datetime.time(0)]),
    "duration s": (pa.duration("s"), [datetime.timedelta(days=-1, seconds=1), None, datetime.timedelta(0)]),
    "duration": (pa.duration("ms"), [datetime.timedelta(days=-1, milliseconds=1), None, datetime.timedelta(0)]),
    "duration us": (pa.duration("us"), [datetime.timedelta(days=-1, microseconds=1), None, datetime.timedelta(0)]),
    "duration ns": (pa.duration("ns"), [datetime.timedelta(days=-1, microseconds=1), None, datetime.timedelta(0)]),
    "timestamp s": (pa.timestamp("s"), [datetime.datetime(1960, 1, 1), None, datetime.datetime(2026, 3, 2)]),
    "timestamp ms": (pa.timestamp("ms"), [datetime.datetime(1960, 1, 1), None, datetime.datetime(2026, 3, 2, 0, 0, 0, 1000)]),
    "timestamp us": (pa.timestamp("us"), [datetime.datetime(1960, 1, 1), None, datetime.datetime(2026, 3, 2, 0, 0, 0, 1)]),
    "timestamp ns": (pa.timestamp("ns"), [datetime.datetime(1960, 1, 1), None, datetime.datetime(2026, 3, 2)]),
    "decimal32": (pa.decimal32(5, 2), [decimal.Decimal("-1.50"), None, decimal.Decimal("999.99")]),
    "decimal64": (pa.decimal64(15, 2), [decimal.Decimal("-1.50"), None, decimal.Decimal("9999999999999.99")]),
    "decimal256": (pa.decimal256(60, 2), [decimal.Decimal("-1.50"), None, decimal.Decimal(10**50)]),
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal("-1.50"), None, decimal.Decimal("99999999.99")]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["u", None, "u"]),
    "dictionary of numbers": (pa.dictionary(pa.uint16(), pa.int64()), [2**40, None, 2**40]),
    "run-end encoded": (pa.run_end_encoded(pa.int32(), pa.int64()), [7, 7, None]),
    "large list": (pa.large_list(pa.string()), [["a", None], None, []]),
    "fixed list": (pa.list_(pa.int16(), 2), [[1, None], None, [3, 4]]),
    "list view": (pa.list_view(pa.int32()), [[1, None], None, []]),
    "large list view": (pa.large_list_view(pa.int32()), [[1, None], None, []]),
    "list of lists": (pa.list_(pa.list_(pa.date32())), [[[datetime.date(2026, 3, 2)], None], None, [[]]]),
    "list of structs": (pa.list_(pa.struct([("a", pa.decimal128(4, 1))])), [[{"a": decimal.Decimal("0.5")}], None, [None]]),
    "list": (pa.list_(pa.int32()), [[1, None], None, []]),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": None}, None, {"a": None, "b": "x"}]),
    "null": (pa.null(), [None, None, None]),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_there_and_back(name):
    kind, values = TYPES[name]
    table = pa.table({"v": pa.array(values, kind)})
    con = rmq.connect().register("t", table)
    result = con.sql("SELECT v FROM t")
    assert result.fetchall() == [(value,) for value in values]
    assert pa.table(result).column("v").to_pylist() == table.column("v").to_pylist()
    assert con.register("empty", table.slice(0, 0)).sql("SELECT v FROM empty").fetchall() == []


# Types that Python lacks are texts of it. Other libraries get them as they are.
TEXTS = {
    "map": (pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())), ["{a: 1}", None, "{}"]),
    "interval": (pa.array([pa.MonthDayNano([1, 2, 3_000_000_000]), None], pa.month_day_nano_interval()), ["1 mons 2 days 3.000000000 secs", None]),
    "dense union": (pa.UnionArray.from_dense(pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([5]), pa.array(["a"])]), ["{0=5}", "{1=a}"]),
    "sparse union": (pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([5, 0]), pa.array(["", "a"])]), ["{0=5}", "{1=a}"]),
}


@pytest.mark.parametrize("name", TEXTS)
def test_types_that_python_lacks(name):
    array, texts = TEXTS[name]
    result = rmq.connect().register("t", pa.table({"v": array})).sql("SELECT v FROM t")
    assert [row[0] for row in result.fetchall()] == texts
    assert result.to_arrow().column("v").to_pylist() == array.to_pylist()


def test_types_of_polars():
    frame = pl.DataFrame(
        {
            "enum": pl.Series(["u", None, "Object"], dtype=pl.Enum(["Object", "u"])),
            "categorical": pl.Series(["u", None, "v"], dtype=pl.Categorical),
            "decimal": pl.Series(["1.50", None, "-2.25"]).cast(pl.Decimal(10, 2)),
            "array": pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int8, 2)),
            "list": pl.Series([["a"], None, []], dtype=pl.List(pl.String)),
            "struct": pl.Series([{"a": 1}, None, {"a": None}], dtype=pl.Struct({"a": pl.Int16})),
            "time": pl.Series([datetime.time(1, 2, 3, 4), None, datetime.time(0)]),
            "span": pl.Series([datetime.timedelta(1), None, datetime.timedelta(0)]),
            "date": pl.Series([datetime.date(1969, 1, 1), None, datetime.date(2026, 3, 2)]),
            "zoned": pl.Series([datetime.datetime(2026, 3, 2), None, None]).dt.replace_time_zone("Europe/Berlin"),
            "binary": pl.Series([b"", None, b"\x00"]),
            "bool": pl.Series([True, None, False]),
        }
    )
    result = rmq.connect().register("t", frame).sql("SELECT * FROM t")
    assert result.fetchall() == frame.rows()
    back = result.to_polars()
    assert back.rows() == frame.rows() and back.columns == frame.columns
    # polars 2.1 exports a buffer for a column of the type Null, which has none.
    with pytest.raises(TypeError, match="t: column 'v' has the polars type Null"):
        rmq.connect().register("t", pl.DataFrame({"v": [None]}))
    for kind in (pl.List(pl.Null), pl.Struct({"a": pl.Int8, "b": pl.List(pl.Null)})):
        with pytest.raises(TypeError, match=r"t: column 'v' has the polars type (List\(Null\)|Struct.*), with Null"):
            rmq.connect().register("t", pl.DataFrame({"v": pl.Series([None], dtype=kind)}))
    # It would export addresses of objects.
    with pytest.raises(TypeError, match="t: column 'v' has the polars type Object"):
        rmq.connect().register("t", pl.DataFrame({"n": [1], "v": pl.Series([object()], dtype=pl.Object)}))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+05:30", "America/New_York"])
def test_time_zones(zone):
    instant = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.timezone.utc)
    times = pa.array([instant, None, instant + datetime.timedelta(days=200)], pa.timestamp("us", zone))
    con = rmq.connect().register("t", pa.table({"ts": times}))
    found = [row[0] for row in con.sql("SELECT ts FROM t").fetchall()]
    assert found == times.to_pylist()
    assert [time and time.utcoffset() for time in found] == [time and time.utcoffset() for time in times.to_pylist()]
    assert con.sql("SELECT count(*) FROM t WHERE ts >= $1", [instant]).fetchall() == [(2,)]


def test_times_beyond_python_are_errors_not_other_times():
    con = rmq.connect()
    with pytest.raises((rmq.Error, ValueError, OverflowError)):
        con.sql("SELECT arrow_cast(9000000000000, 'Timestamp(Second, None)') AS t").fetchall()
    # Nanoseconds are cut off.
    found = con.sql("SELECT arrow_cast(1234567891, 'Timestamp(Nanosecond, None)') AS t").fetchall()
    assert found == [(datetime.datetime(1970, 1, 1, 0, 0, 1, 234567),)]


def test_unaligned_and_strided_data():
    raw = bytes(1) + np.arange(5, dtype=np.int64).tobytes()
    array = pa.Array.from_buffers(pa.int64(), 5, [None, pa.py_buffer(memoryview(raw)[1:])])
    con = rmq.connect().register("t", pa.table({"v": array}))
    assert con.sql("SELECT sum(v), max(v) FROM t").fetchall() == [(10, 4)]
    frame = pd.DataFrame({"v": np.arange(10)[::2]})
    assert con.register("p", frame).sql("SELECT sum(v) FROM p").fetchall() == [(20,)]


def test_what_is_no_table():
    con = rmq.connect()
    for value in (7, "t", [1, 2], {"a": [1]}, pl.LazyFrame({"a": [1]})):
        with pytest.raises(TypeError, match="t: .* is no table"):
            con.register("t", value)
    with pytest.raises(TypeError, match="t: a Series of polars is one column"):
        con.register("t", pl.Series([1, 2]))
    with pytest.raises(ValueError, match="no columns"):
        con.register("t", pl.DataFrame())
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(rmq.Error, match="a"):
        con.register("t", twice).sql("SELECT a FROM t").fetchall()
    for name in (None, "", 3):
        with pytest.raises(TypeError, match="name="):
            con.register(name, pl.DataFrame({"a": [1]}))
    assert con.tables() == ["t"]


def test_an_exporter_that_fails_half_way():
    class Failing(Exception):
        pass

    def batches():
        yield pa.record_batch({"v": [1, 2]})
        raise Failing("the disk is gone")

    schema = pa.schema([("v", pa.int64())])
    con = rmq.connect()
    with pytest.raises(rmq.OperationalError, match="t: .*failed while it was read: .*the disk is gone"):
        con.register("t", pa.RecordBatchReader.from_batches(schema, batches()))
    assert con.tables() == []

    class Broken:
        def __arrow_c_stream__(self, requested_schema=None):
            raise Failing("no export today")

    with pytest.raises(Failing, match="no export today"):
        con.register("t", Broken())


def test_a_frame_that_dies_while_registered():
    class Frame:
        def __init__(self):
            self.table = pa.table({"v": np.arange(100_000)})

        def __arrow_c_stream__(self, requested_schema=None):
            return self.table.__arrow_c_stream__(requested_schema)

    frame = Frame()
    died = weakref.ref(frame)
    con = rmq.connect().register("t", frame)
    result = con.sql("SELECT sum(v) AS total FROM t")
    del frame
    gc.collect()
    assert died() is None
    assert result.fetchall() == [(4999950000,)]
    # Rows of a result outlive its connection.
    rows = con.sql("SELECT v FROM t ORDER BY v DESC").to_arrow()
    con.close()
    del con, result
    gc.collect()
    assert pc.sum(rows.column("v")).as_py() == 4999950000


def test_memory_is_freed():
    pool = pa.default_memory_pool()
    gc.collect()
    before = pool.bytes_allocated()
    con = rmq.connect()
    for _ in range(3):
        con.register("t", pa.table({"v": pa.array(range(1_000_000))}))
        assert con.sql("SELECT range_max('t.v', 0, 999999) AS m").fetchall() == [(999_999,)]
    gc.collect()
    # One table is kept, not three.
    assert pool.bytes_allocated() - before < 2 * 8_000_000
    con.deregister("t")
    gc.collect()
    assert pool.bytes_allocated() - before < 1_000_000


def address(array):
    """Where the values of an Arrow array begin."""
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    return array.buffers()[1].address + array.offset * 8


VALUES = np.arange(1000, dtype=np.int64)
UNCOPIED = {
    "polars": lambda: pl.DataFrame({"v": VALUES}),
    "polars sliced": lambda: pl.DataFrame({"v": VALUES})[7:],
    "pyarrow": lambda: pa.table({"v": VALUES}),
    "pyarrow sliced": lambda: pa.table({"v": VALUES}).slice(7),
    "pandas": lambda: pd.DataFrame({"v": VALUES}),
}


@pytest.mark.parametrize("kind", UNCOPIED)
def test_columns_are_not_copied(kind):
    frame = UNCOPIED[kind]()
    known = address(pl.Series(frame["v"]).to_arrow() if kind.startswith("polars") else pa.table(frame).column("v"))
    result = rmq.connect().register("t", frame).sql("SELECT v FROM t")
    assert address(result.to_arrow().column("v")) == known
    assert address(result.to_polars()["v"].to_arrow()) == known
    assert address(pa.table(result).column("v")) == known
    # Each execution has the same memory, not a copy of its own.
    streamed = pa.RecordBatchReader.from_stream(result.stream()).read_next_batch()
    assert address(streamed.column("v")) == known


def addresses(array):
    """Where the buffers of an Arrow array are, those of its children among them."""
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) and array.num_chunks != 1 else array
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    return [buffer and (buffer.address, buffer.size) for buffer in array.buffers()]


@pytest.mark.parametrize("name", [name for name in TYPES if name != "null"])
def test_columns_of_each_type_are_not_copied(name):
    kind, values = TYPES[name]
    table = pa.table({"v": pa.array(values, kind)})
    result = rmq.connect().register("t", table).sql("SELECT v FROM t")
    known = {buffer[0] for buffer in addresses(table.column("v")) if buffer}
    for back in (result.to_arrow(), pa.table(result), pa.RecordBatchReader.from_stream(result.stream()).read_all()):
        found = {buffer[0] for buffer in addresses(back.column("v")) if buffer and buffer[1]}
        assert found and found <= known


# Types that polars keeps as they come. Others it converts when it reads them, such as strings, whose views it makes anew.
KEPT = ["int8", "int32", "int64", "uint16", "uint64", "float32", "float64", "bool", "date32", "timestamp us", "duration ns", "time64 ns"]


@pytest.mark.parametrize("name", KEPT)
def test_columns_of_polars_are_not_copied(name):
    kind, values = TYPES[name]
    frame = pl.from_arrow(pa.table({"v": pa.array(values * 100, kind)}))
    known = addresses(frame["v"].to_arrow())[1]
    result = rmq.connect().register("t", frame).sql("SELECT v FROM t")
    assert addresses(result.to_arrow().column("v"))[1] == known
    assert addresses(result.to_polars()["v"].to_arrow())[1] == known


def test_foreign_byte_order_is_an_error():
    """The libraries cannot export it."""
    for frame in (lambda: pd.DataFrame({"v": np.arange(5, dtype=">i8")}), lambda: pa.table({"v": np.arange(5, dtype=">f8")})):
        with pytest.raises((TypeError, NotImplementedError), match="[Bb]yte-swapped"):
            rmq.connect().register("t", frame())
