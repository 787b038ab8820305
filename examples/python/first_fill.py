# %% [markdown]
# # When would each limit order have been filled?
#
# Orders to buy rest in the book until the price is at most their limit, or until they expire. The first such price is a search
# in a range: `RangeIndex.first_at_most`. As SQL it is a join over a range and a threshold.

# %%
import duckdb
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import polars as pl

import datafusion_rmq as rmq
from common import rows, save, timed

PRICES, ORDERS = rows(10_000_000), rows(1_000_000)
draw = np.random.default_rng(4)
price = (100 + np.cumsum(draw.choice([-0.01, 0, 0.01], PRICES))).round(2)
placed = np.sort(draw.integers(0, PRICES, ORDERS))
expires = placed + draw.integers(PRICES // 100, PRICES // 10, ORDERS)
limit = (price[placed] - draw.exponential(np.sqrt(PRICES) * 0.002, ORDERS)).round(2)

# %%
filled = timed("RangeIndex.first_at_most", lambda: rmq.RangeIndex(price).first_at_most(placed, expires, limit))
print(f"{(filled >= 0).mean():.0%} of the orders were filled")

# %%
some = np.arange(0, ORDERS, max(ORDERS // 100, 1))
con = duckdb.connect()
con.register("p", pl.DataFrame({"at": np.arange(PRICES), "price": price}).to_arrow())
con.register("o", pl.DataFrame({"id": some, "placed": placed[some], "expires": expires[some], "lim": limit[some]}).to_arrow())
theirs = timed(
    f"DuckDB: min(at) over a join, for {len(some)} of the orders",
    lambda: con.sql(
        """SELECT o.id, coalesce(min(p.at), -1) AS filled FROM o LEFT JOIN p
           ON p.at BETWEEN o.placed AND o.expires AND p.price <= o.lim GROUP BY o.id ORDER BY o.id"""
    ).fetchnumpy()["filled"],
)
assert (filled[some] == theirs).all()


def loop() -> npt.NDArray[np.int64]:
    found = []
    for first, last, most in zip(placed[some], expires[some], limit[some]):
        met = price[first : last + 1] <= most
        found.append(first + met.argmax() if met.any() else -1)
    return np.array(found)


assert (timed(f"NumPy: a loop over {len(some)} of the orders", loop) == filled[some]).all()

# %%
end = PRICES // 20
plt.plot(np.arange(end), price[:end], lw=0.6, color="tab:gray", label="price")
shown = np.flatnonzero((placed < end // 2) & (filled > placed) & (filled < end))
shown = shown[:: max(len(shown) // 12, 1)]
plt.hlines(limit[shown], placed[shown], filled[shown], color="tab:blue", lw=1.5, label="an order, from placed to filled")
plt.plot(filled[shown], limit[shown], "o", color="tab:green", ms=5)
plt.xlabel("tick")
plt.ylabel("price")
# Beside the data, not over it.
plt.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
save("first_fill")
