"""The Python blocks of the pages, as they are pasted: run one after another, with what they print in the text that follows. What
docs/coming-from.md says of other systems is run by these."""

import contextlib
import io
import re
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pytest

import datafusion_rmq as rmq

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "python/README.md", "docs/merge-asof.md", "docs/python-datafusion.md"])
def test_blocks_of_pages(page):
    names = {"__name__": "__main__"}
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        assert printed.getvalue() == expected, code


# What another system writes in docs/coming-from.md, the column of its answer, words of the SQL there, and the column of that answer.
IDIOMS = [
    ("pandas", 'pd.merge_asof(trades, quotes, on="ts", by="sym")', "bid", "ASOF JOIN quotes q MATCH_CONDITION (t.ts >=", "bid"),
    ("polars", 'trades.join_asof(quotes, on="ts", by="sym")', "bid", "ASOF JOIN quotes q MATCH_CONDITION (t.ts >=", "bid"),
    ("duckdb", "SELECT * FROM trades t ASOF LEFT JOIN quotes q USING (sym, ts)", "bid", "ASOF JOIN quotes q MATCH_CONDITION (t.ts >=", "bid"),
    ("duckdb", "DuckDB and Timescale take the SQL below", "high", "max(q.ask)", "high"),
    ("pandas", 'df.set_index("ts").groupby("sym")["bid"].rolling("3s", closed="both").mean()', None, "avg(bid)", "mean"),
    ("polars", 'df.rolling("ts", period="3s", closed="both", group_by="sym").agg(pl.mean("bid"))', "bid", "avg(bid)", "mean"),
    ("pandas", 'df.resample("5s", on="ts").agg(low=("bid", "min"))', "low", "date_bin", "low"),
    ("polars", 'df.group_by_dynamic("ts", every="5s").agg(pl.min("bid"))', "bid", "date_bin", "low"),
    ("duckdb", "SELECT time_bucket('5 seconds', ts), min(bid) FROM quotes GROUP BY 1", "min(bid)", "date_bin", "low"),
    ("pandas", 'df.sort_values("ts").groupby("sym").tail(1)', "bid", "DISTINCT ON", "bid"),
    ("duckdb", "SELECT sym, arg_max(bid, ts) FROM quotes GROUP BY sym", "arg_max(bid, ts)", "arg_max", "last"),
    ("polars", 'left.join_where(right, pl.col("start") < pl.col("end_right"), pl.col("end") > pl.col("start_right"))', "name", "halts h ON", "name"),
    ("numpy", "[prices[l : r + 1].min() for l, r in zip(left, right)]", None, "range_argmax", "low"),
    ("numpy", "(prices[l:] <= 10).argmax()", None, "range_first_at_most", "at"),
]  # fmt: skip


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: f"{idiom[0]}-{idiom[3]}")
def test_idioms_of_other_systems(idiom):
    system, theirs, column, words, ours = idiom
    page = (ROOT / "docs/coming-from.md").read_text()
    assert theirs in page
    con, expected = rmq.connect(), {}
    for block in re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for sql in filter(str.strip, re.split(r";$", block, flags=re.MULTILINE)):
            answer = con.sql(sql)
            if words in sql:
                expected[sql] = answer.to_polars()[ours]
    [(sql, values)] = expected.items()
    # The SQL with buckets is about one symbol.
    of_quotes = "quotes WHERE sym = 'A'" if words == "date_bin" else "quotes"
    quotes, trades, prices = con.sql(f"SELECT * FROM {of_quotes}"), con.sql("SELECT * FROM trades"), con.sql("SELECT * FROM prices")
    if system == "duckdb":
        other = duckdb.connect()
        for name, rows in [("quotes", quotes), ("trades", trades)]:
            other.register("rows", rows.to_arrow())
            other.execute(f"CREATE TABLE {name} AS FROM rows")
        got = other.sql(theirs if theirs.startswith("SELECT") else sql).pl()[column]
    elif system == "pandas":
        frames = {name: rows.to_pandas().sort_values("ts") for name, rows in [("quotes", quotes), ("trades", trades)]}
        got = eval(theirs, {"pd": pd, **frames, "df": frames["quotes"]})
        got = got if column is None else got[column]
    elif system == "polars":
        frames = {name: rows.to_polars().sort("ts") for name, rows in [("quotes", quotes), ("trades", trades)]}
        for name, table in [("left", "orders"), ("right", "halts")]:
            frames[name] = con.sql(f"SELECT *, st AS start, en AS end FROM {table}").to_polars()
        got = eval(theirs, {"pl": pl, **frames, "df": frames["quotes"]})[column]
    else:
        arrays = {"prices": prices.to_polars()["price"].to_numpy(), "left": [0, 2], "right": [2, 4]}
        is_position = theirs.startswith("(")
        got = [l + eval(theirs, {**arrays, "l": l}) for l in arrays["left"]] if is_position else eval(theirs, arrays)
    assert sorted(got) == sorted(values)
