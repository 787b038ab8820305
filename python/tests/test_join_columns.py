"""The columns that join functions take from frames by row number: of all types, in several chunks, and many of them."""

import random
import time

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from test_frames import TEXTS, TYPES

import datafusion_rmq as rmq

ARRAYS = {**{name: pa.array(values, kind) for name, (kind, values) in TYPES.items()}, **{name: array for name, (array, _) in TEXTS.items()}}


def table(keys, array, name, chunks=1):
    """Rows of some keys whose values are those of the array in turn, in some chunks."""
    at = [i % len(array) for i in range(len(keys))]
    made = pa.table({"k": pa.array(keys, pa.int64()), name: pa.concat_arrays([array.slice(i, 1) for i in at])})
    cuts = [len(keys) * i // chunks for i in range(chunks + 1)]
    return pa.concat_tables([made.slice(a, b - a) for a, b in zip(cuts, cuts[1:])]), [array[i].as_py() for i in at]


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("name", ARRAYS)
def test_columns_of_each_type(name, chunks):
    array = ARRAYS[name]
    if "union" in name and chunks == 2:
        # Arrow makes no array of unions out of several.
        pytest.skip("unions in several chunks")
    left, of_left = table(range(5), array, "v", chunks)
    right, of_right = table([1, 3, 3], array, "w", chunks)
    matched = {"backward": [None, 0, 0, 2, 2], "forward": [0, 0, 1, 1, None], "nearest": [0, 0, 0, 2, 2]}
    for direction, rows in matched.items():
        joined = rmq.asof_join(left, right, on="k", direction=direction)
        assert joined.to_arrow()["v"].to_pylist() == of_left
        assert joined.to_arrow()["w"].to_pylist() == [None if row is None else of_right[row] for row in rows]
        read = pa.RecordBatchReader.from_stream(joined.stream()).read_all()
        assert read.schema == joined.schema and read["w"].to_pylist() == joined.to_arrow()["w"].to_pylist()
    spans = (left.append_column("e", left["k"]), right.append_column("e", right["k"]))
    found = rmq.overlap_join(*spans, on=("k", "e"), closed=True).to_arrow()
    assert sorted(map(repr, zip(found["v"].to_pylist(), found["w"].to_pylist()))) == sorted(
        repr((of_left[a], of_right[b])) for a, b in [(1, 0), (3, 1), (3, 2)]
    )
    assert rmq.asof_join(left, right.slice(0, 0), on="k").to_arrow()["w"].to_pylist() == [None] * 5
    assert rmq.window_join(left.slice(0, 0), right, on="k", window=(-1, 0), aggs={"n": "count(*)"}).fetchall() == []


def test_frames_in_many_chunks():
    draw = random.Random(4)
    con = rmq.connect(target_partitions=3)
    for _ in range(10):

        def frame(name, size):
            rows = [{"k": draw.randrange(100), "e": draw.randrange(100), name: draw.randrange(1000), f"{name}s": f"{name}{draw.randrange(50)}"} for _ in range(size)]
            made = pa.Table.from_pylist(rows, pa.schema([("k", pa.int64()), ("e", pa.int64()), (name, pa.int64()), (f"{name}s", pa.string())]))
            cuts = sorted({0, size, *(draw.randrange(size + 1) for _ in range(draw.choice([0, 3, 9])))})
            # Some chunks are empty.
            return pa.concat_tables([made.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, size])]), rows

        left, lefts = frame("l", draw.choice([1, 40, 300]))
        right, rights = frame("r", draw.choice([1, 40, 300]))
        con.register("ltable", left).register("rtable", right)
        expected = sorted(
            (a["k"], a["e"], a["l"], a["ls"], b["k"], b["e"], b["r"], b["rs"])
            for a in lefts
            for b in rights
            if a["k"] < b["e"] and b["k"] < a["e"]
        )
        for one, other in ((left, right), ("ltable", right), (left, "rtable"), ("ltable", "rtable")):
            for ordered in (True, False):
                found = rmq.overlap_join(one, other, on=("k", "e"), maintain_order=ordered, connection=con)
                assert found.columns == ["k", "e", "l", "ls", "k_right", "e_right", "r", "rs"]
                assert sorted(found.fetchall()) == expected
                windows = rmq.window_join(one, other, on="k", window=(-5, 5), aggs={"m": ("r", "max")}, maintain_order=ordered, connection=con)
                best = [max((b["r"] for b in rights if abs(b["k"] - a["k"]) <= 5), default=None) for a in lefts]
                pairs = [(row[2], row[4]) for row in windows.fetchall()]
                assert pairs == list(zip((a["l"] for a in lefts), best)) if ordered else sorted(map(repr, pairs)) == sorted(
                    map(repr, zip((a["l"] for a in lefts), best))
                )


def test_many_columns_take_no_longer_to_plan():
    columns = 2000
    left = pl.DataFrame({"ts": [5, 3], **{f"a{i}": [i, -i] for i in range(columns)}})
    right = pl.DataFrame({"ts": [3, 4], **{f"b{i}": [i, -i] for i in range(columns)}})
    began = time.monotonic()
    joined = rmq.asof_join(left, right, on="ts")
    assert joined.to_polars().row(0) == (5, *range(columns), *(-i for i in range(columns)))
    windows = rmq.window_join(left, right, on="ts", window=(-5, 0), aggs={"low": ("b7", "min")})
    assert windows.to_polars().row(0) == (5, *range(columns), -7)
    # Both took 20 s, as the time grew with the square.
    assert time.monotonic() - began < 3
    assert "a7" not in joined.explain() and len(joined.explain()) < 3000


def test_columns_of_the_left_frame_are_not_copied():
    left = pa.table({"ts": np.arange(100_000), "v": np.arange(100_000.0)})
    joined = rmq.asof_join(left, left.select(["ts"]), on="ts", connection=rmq.connect(target_partitions=2)).to_arrow()
    start = left["v"].chunk(0).buffers()[1].address
    for chunk in joined["v"].chunks:
        assert start <= chunk.buffers()[1].address < start + 800_000


def test_columns_of_one_name():
    frame = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])], names=["k", "a", "a"])
    with pytest.raises(ValueError, match="right: several columns are called 'a'"):
        rmq.asof_join(frame.select([0]), frame, on="k")
