# %% [markdown]
# # The lowest price around each trade
#
# The lowest bid and the highest ask from two seconds before each trade to half a second after it, by symbol: a window join.
# pandas has none ([#13959](https://github.com/pandas-dev/pandas/issues/13959)), polars has `join_where`, DuckDB a join over a
# range; both make all pairs first.

# %%
import duckdb
import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import datafusion_rmq as rmq
from common import rows, save, timed

QUOTES, TRADES, SYMBOLS = rows(5_000_000), rows(500_000), 100
draw = np.random.default_rng(2)
SECONDS = QUOTES // SYMBOLS  # One quote a second and symbol.


def times(n: int) -> pl.Series:
    return pl.Series(np.sort(draw.integers(0, SECONDS * 1_000_000, n))).cast(pl.Datetime("us"))


bid = (100 + np.cumsum(draw.normal(0, 0.01, QUOTES))).round(2)
quotes = pl.DataFrame(
    {"sym": draw.integers(0, SYMBOLS, QUOTES).astype(np.int32), "ts": times(QUOTES), "bid": bid, "ask": bid + draw.integers(1, 6, QUOTES) / 100}
)
trades = pl.DataFrame({"sym": draw.integers(0, SYMBOLS, TRADES).astype(np.int32), "ts": times(TRADES)}).with_row_index("id")

# %%
ours = timed(
    "window_join",
    lambda: rmq.window_join(
        trades,
        quotes,
        on="ts",
        by="sym",
        window=("-2s", "500ms"),
        aggs={"lowest": ("bid", "min"), "highest": ("ask", "max")},
        maintain_order=False,
    ).to_polars(),
).sort("id")

# %%
con = duckdb.connect()
con.register("q", quotes.to_arrow())
con.register("t", trades.to_arrow())
theirs = timed(
    "DuckDB: LEFT JOIN … GROUP BY",
    lambda: con.sql(
        """SELECT t.id, min(q.bid) AS lowest, max(q.ask) AS highest FROM t LEFT JOIN q
           ON q.sym = t.sym AND q.ts BETWEEN t.ts - INTERVAL 2 SECOND AND t.ts + INTERVAL 500 MILLISECOND GROUP BY t.id"""
    ).to_arrow_table(),
)
assert ours["lowest"].equals(pl.DataFrame(theirs).sort("id")["lowest"])
matches = timed(
    "polars: join_where(…).group_by(…)",
    lambda: trades.lazy()
    .with_columns(opens=pl.col("ts").dt.offset_by("-2s"), closes=pl.col("ts").dt.offset_by("500ms"))
    .join_where(
        quotes.lazy(),
        pl.col("sym") == pl.col("sym_right"),
        pl.col("ts_right") >= pl.col("opens"),
        pl.col("ts_right") <= pl.col("closes"),
    )
    .group_by("id")
    .agg(lowest=pl.col("bid").min(), highest=pl.col("ask").max())
    .collect(engine="streaming"),
)
assert ours.drop_nulls("lowest").select("id", "lowest").equals(matches.sort("id").select("id", "lowest"))

# %%
one = quotes.filter(pl.col("sym") == 7).head(60)
near = ours.filter((pl.col("sym") == 7) & (pl.col("ts") <= one["ts"].max()))
plt.step(one["ts"], one["bid"], where="post", lw=1, label="bid")
plt.step(one["ts"], one["ask"], where="post", lw=1, label="ask")
plt.vlines(near["ts"], near["lowest"], near["highest"], color="tab:green", lw=5, alpha=0.5, label="lowest bid to highest ask around a trade")
plt.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
plt.ylabel("price")
save("lowest_price")
