"""The order of rows of the join functions, and the index of pandas."""

import os
import random
import time

import numpy as np
import pandas as pd
import polars as pl
import pytest

import datafusion_rmq as rmq

# More than a batch, so that rows are distributed over partitions.
ROWS = 30_000


def frames():
    draw = np.random.default_rng(6)
    left = pl.DataFrame({"ts": draw.integers(0, ROWS, ROWS), "k": draw.integers(0, 9, ROWS), "id": draw.permutation(ROWS)})
    right = pl.DataFrame({"ts": draw.integers(0, ROWS, ROWS), "k": draw.integers(0, 9, ROWS), "v": draw.normal(size=ROWS)})
    return left, right


JOINS = {
    "window": lambda left, right, **more: rmq.window_join(left, right, on="ts", window=(-5, 0), aggs={"n": ("v", "count")}, **more),
    "median": lambda left, right, **more: rmq.window_join(left, right, on="ts", window=(-5, 0), aggs={"n": ("v", "median")}, **more),
    "prevailing": lambda left, right, **more: rmq.window_join(
        left, right, on="ts", window=(-5, 0), aggs={"n": ("v", "min")}, prevailing=True, **more
    ),
    "asof": lambda left, right, **more: rmq.asof_join(left, right, on="ts", **more),
    "nearest": lambda left, right, **more: rmq.asof_join(left, right, on="ts", direction="nearest", **more),
    "offsets": lambda left, right, **more: rmq.asof_join(left, right, on="ts", offsets=[1, 5], **more),
    "overlaps": lambda left, right, **more: rmq.overlap_join(
        left.with_columns(end=pl.col("ts") + 1), right.with_columns(end=pl.col("ts") + 1), on=("ts", "end"), how="left", **more
    ),
    "semi": lambda left, right, **more: rmq.overlap_join(
        left.with_columns(end=pl.col("ts") + 1), right.with_columns(end=pl.col("ts") + 1), on=("ts", "end"), how="semi", **more
    ),
}


@pytest.mark.parametrize("by", [None, "k"])
@pytest.mark.parametrize("join", JOINS)
def test_rows_in_the_order_of_the_left_frame(join, by):
    left, right = frames()
    con = rmq.connect(target_partitions=4)
    joined = JOINS[join](left, right, by=by, connection=con).to_polars()
    ids = joined["id"].to_list()
    firsts = list(dict.fromkeys(ids))
    if join == "semi":
        kept = set(firsts)
        assert firsts == [one for one in left["id"] if one in kept]
    else:
        assert firsts == left["id"].to_list()
    if join == "overlaps":
        # The rows of one left row are together.
        assert all(a == b or b not in ids[:i] for i, (a, b) in enumerate(zip(ids[:2000], ids[1:2000]), 1))
    else:
        assert ids == firsts
    assert not [name for name in joined.columns if name.startswith("__")]
    others = JOINS[join](left, right, by=by, connection=con, maintain_order=False).to_polars()
    assert joined.sort(pl.all()).equals(others.sort(pl.all()), null_equal=True)


def test_rows_in_the_order_of_tables():
    left, right = frames()
    left, right = left.rename({"id": "__row"}), right.with_columns(__row=pl.col("v"))
    con = rmq.connect(target_partitions=4).register("l", left).register("r", right)
    for a, b in (("l", "r"), (left, right), (left.drop("__row").with_columns(n=pl.lit(1)), right)):
        joined = rmq.asof_join(a, b, on="ts", by="k", connection=con)
        assert joined.columns[-1] == ("__row" if "n" in joined.columns else "__row_right")
        assert joined.to_polars()["ts"].to_list() == left["ts"].to_list()
        joined = rmq.window_join(a, b, on="ts", by="k", window=(-5, 0), aggs={"m": ("v", "max")}, connection=con)
        assert joined.to_polars()["ts"].to_list() == left["ts"].to_list()


def test_rows_in_the_order_of_files(tmp_path):
    size = 60_000
    draw = random.Random(1)
    table = pl.DataFrame({"id": range(size), "ts": [draw.randrange(1000) for _ in range(size)]})
    for i, name in enumerate(("a", "b", "c")):
        table[i * size // 3 : (i + 1) * size // 3].write_parquet(tmp_path / f"{name}.parquet", row_group_size=1000)
    table.write_parquet(tmp_path.with_suffix(".parquet"), row_group_size=1000)
    right = pl.DataFrame({"ts": [1, 500], "v": [1, 2]})
    for path in (tmp_path, tmp_path.with_suffix(".parquet")):
        for partitions in (2, 8):
            con = rmq.connect(target_partitions=partitions)
            con.read_parquet("l", str(path))
            con.sql("CREATE VIEW filtered AS SELECT * FROM l WHERE ts < 900")
            joined = rmq.asof_join("l", right, on="ts", connection=con).to_polars()
            assert joined["id"].to_list() == table["id"].to_list()
            joined = rmq.window_join("filtered", right, on="ts", window=(-1, 0), aggs={"n": "count(*)"}, connection=con).to_polars()
            assert joined["id"].to_list() == table.filter(pl.col("ts") < 900)["id"].to_list()


def labels(seed):
    draw = random.Random(seed)
    size = 50
    yield pd.RangeIndex(size)
    yield pd.RangeIndex(0, 10 * size, 10)
    yield pd.RangeIndex(size, name="row")
    yield pd.Index([draw.randrange(1000) for _ in range(size)])
    yield pd.Index([f"r{draw.randrange(1000)}" for _ in range(size)], name="name")
    yield pd.date_range("2026-03-02", periods=size, freq="h")
    yield pd.MultiIndex.from_tuples([(i // 3, f"x{i}") for i in range(size)], names=["a", None])
    # A name that a column has, too.
    yield pd.Index(range(7, size + 7), name="ts")


@pytest.mark.parametrize("kind", range(8))
def test_the_index_of_pandas(kind):
    index = list(labels(5))[kind]
    draw = np.random.default_rng(3)
    left = pd.DataFrame({"ts": draw.integers(0, 100, len(index)), "v": draw.normal(size=len(index))}, index=index)
    right = pd.DataFrame({"ts": draw.integers(0, 100, 30), "w": draw.normal(size=30)}, index=pd.Index(range(100, 130)))
    joins = [
        rmq.window_join(left, right, on="ts", window=(-5, 0), aggs={"w": ("w", "max")}),
        rmq.asof_join(left, right, on="ts"),
        rmq.asof_join(left, right, on="ts", direction="nearest"),
    ]
    for joined in joins:
        assert not [name for name in joined.columns if "__index" in name or "level_0__" in name], joined.columns
        frame = joined.to_pandas()
        assert frame.columns.tolist()[:2] == ["ts", "v"] and frame.columns[-1] == "w"
        pd.testing.assert_index_equal(frame.index, index, exact=False, check_freq=False)
        # So a column of the result can be assigned.
        assert (left["v"] == frame["v"]).all()
    con = rmq.connect()
    whole = con.register("l", left).sql("SELECT * FROM l")
    pd.testing.assert_index_equal(whole.to_pandas().index, index, exact=False, check_freq=False)
    some = con.sql("SELECT * FROM l WHERE v > 0 ORDER BY v DESC").to_pandas()
    if kind != 0:
        expected = left[left["v"] > 0].sort_values("v", ascending=False)
        pd.testing.assert_index_equal(some.index, expected.index, exact=False, check_freq=False)
    assert "__index_level_0__" not in whole.columns


def test_names_of_columns_that_are_no_texts():
    frame = pd.DataFrame({1: [5, 6], 2: [0.5, 1.5]})
    # pyarrow would make integers of all names of the result.
    joined = rmq.asof_join(frame, frame.rename(columns={2: "v"}), left_on="1", right_on="1").to_pandas()
    assert joined.columns.tolist() == ["1", "2", "v"] and joined["v"].tolist() == [0.5, 1.5]
    assert rmq.connect().sql('SELECT "1" AS one, "2" FROM frame').to_pandas().columns.tolist() == ["one", "2"]
    pairs = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")]), index=[5])
    assert rmq.connect().sql("SELECT * FROM pairs").to_pandas().columns.tolist() == ["('a', 'b')", "('a', 'c')"]


@pytest.mark.parametrize(
    ("names", "columns", "after"),
    [
        (["x", "x"], ["x", "level_1"], ["x", "x"]),
        ([7, None], ["7", "level_1"], ["7", None]),
        ([("a", "b"), "y"], ["('a', 'b')", "y"], ["('a', 'b')", "y"]),
        ([7, "7"], ["7", "level_1"], ["7", "7"]),
        (["v", "v"], ["level_0", "level_1"], ["v", "v"]),
    ],
)
@pytest.mark.filterwarnings("error")
def test_names_of_the_index(names, columns, after):
    index = pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=names)
    frame = pd.DataFrame({"v": [1, 2]}, index=index)
    for result in (rmq.connect().sql("SELECT * FROM frame"), rmq.asof_join(frame, frame[["v"]].reset_index(drop=True), on="v")):
        assert result.columns == ["v", *columns]
        pd.testing.assert_index_equal(result.to_pandas().index, index.set_names(after))
    assert frame.index.names == names


def test_names_of_the_index_that_pyarrow_takes_for_none():
    for frame in (
        pd.DataFrame({"v": [1]}, index=pd.Index([5], name="__index_level_0__")),
        pd.DataFrame({"v": [1], "__index_level_0__": [2]}, index=[5]),
    ):
        with pytest.raises(ValueError, match="'__index_level_0__' is what pyarrow calls a level of the index without a name; rename it"):
            rmq.connect().register("t", frame)
    frame = pd.DataFrame({"v": [1], "__index_level_0__": [2]})
    assert rmq.connect().sql("SELECT * FROM frame").columns == ["v", "__index_level_0__"]


def test_the_index_of_pandas_is_a_column_of_sql():
    frame = pd.DataFrame({"v": [5, 6, 7]}, index=[0, 10, 20])
    con = rmq.connect().register("t", frame)
    assert con.sql('SELECT "index", v FROM t').fetchall() == [(0, 5), (10, 6), (20, 7)]
    stepped = pd.DataFrame({"v": range(30)})[::10]
    assert con.sql("SELECT * FROM stepped").to_pandas().index.tolist() == [0, 10, 20]
    both = pd.DataFrame({"index": [1, 2], "v": [3, 4]}, index=[8, 9])
    assert con.sql("SELECT level_0, \"index\" FROM both").fetchall() == [(8, 1), (9, 2)]
    by_time = pd.DataFrame({"v": [1.0]}, index=pd.DatetimeIndex(["2026-03-02"], name="ts"))
    joined = rmq.asof_join(by_time, by_time.rename(columns={"v": "w"}), on="ts").to_pandas()
    assert joined.index.equals(by_time.index) and joined["w"].tolist() == [1.0]


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_the_same_as_merge_asof(direction):
    seed = int(os.environ.get("RMQ_TEST_SEED", time.time_ns()))
    print(f"merge_asof: RMQ_TEST_SEED={seed}")
    draw = np.random.default_rng(seed)
    con = rmq.connect(target_partitions=3)
    for _ in range(20):
        size, others, span = draw.integers(1, 80), draw.integers(1, 80), draw.choice([5, 50, 500])
        start = pd.Timestamp("2026-03-02", tz=draw.choice([None, "Europe/Berlin"]))

        def frame(rows, value):
            times = start + pd.to_timedelta(draw.integers(0, span, rows), "s")
            return pd.DataFrame({"ts": times, "k": draw.choice(list("abc"), rows), value: draw.normal(size=rows)}, index=draw.permutation(rows) * 3)

        left, right = frame(size, "x"), frame(others, "y")
        by, exact = draw.choice([None, "k"]), bool(draw.integers(2))
        tolerance = None if draw.integers(2) else pd.Timedelta(int(draw.integers(0, 9)), "s")
        arguments = {"on": "ts", "by": by, "direction": direction, "allow_exact_matches": exact, "tolerance": tolerance}
        ours = rmq.asof_join(left, right, connection=con, suffixes=("_x", "_y"), **arguments).to_pandas()
        ordered = left.reset_index().sort_values("ts", kind="stable")
        theirs = pd.merge_asof(ordered, right.sort_values("ts", kind="stable"), **arguments).set_index("index").loc[left.index]
        assert ours.index.tolist() == left.index.tolist() and ours.columns.tolist() == theirs.columns.tolist()
        assert ours["x"].tolist() == left["x"].tolist()
        np.testing.assert_array_equal(ours["y"], theirs["y"])
