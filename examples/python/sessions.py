# %% [markdown]
# # Sessions that overlap
#
# Which sessions of a user on different devices overlap, and how many sessions does each see beside it? Intervals that overlap
# are a join over two ranges.

# %%
import duckdb
import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import datafusion_rmq as rmq
from common import rows, save, timed

SESSIONS = rows(400_000)
USERS = max(SESSIONS // 250, 2)
draw = np.random.default_rng(5)


def sessions(device: str) -> pl.DataFrame:
    start = draw.integers(0, 30 * 86_400, SESSIONS)
    return pl.DataFrame(
        {"user": draw.integers(0, USERS, SESSIONS), device: np.arange(SESSIONS), "start": start, "end": start + draw.integers(60, 7200, SESSIONS)}
    )


phone, laptop = sessions("phone"), sessions("laptop")

# %%
pairs = timed("overlap_join", lambda: rmq.overlap_join(phone, laptop, by="user", maintain_order=False).to_polars())
beside = pairs.group_by("phone").len("laptops")
print(f"{len(pairs)} pairs: {len(beside)} of {SESSIONS} sessions on a phone have one on a laptop beside them, at most {max(beside['laptops'])}")

# %%
condition = (pl.col("user") == pl.col("user_right"), pl.col("start") < pl.col("end_right"), pl.col("start_right") < pl.col("end"))
found = timed("polars: join_where", lambda: phone.lazy().join_where(laptop.lazy(), *condition).collect(engine="streaming"))
con = duckdb.connect()
con.register("p", phone.to_arrow())
con.register("l", laptop.to_arrow())
sql = 'SELECT p.phone, l.laptop FROM p JOIN l ON p."user" = l."user" AND p.start < l."end" AND l.start < p."end"'
theirs = timed("DuckDB: JOIN", lambda: pl.DataFrame(con.sql(sql).to_arrow_table()))
keys = ["phone", "laptop"]
assert pairs.select(keys).sort(keys).equals(found.select(keys).sort(keys)) and pairs.select(keys).sort(keys).equals(theirs.sort(keys))

# %%
user = pairs["user"][0]
day = 10 * 86_400
figure, axis = plt.subplots()
for y, (frame, name) in enumerate(((phone, "phone"), (laptop, "laptop"))):
    mine = frame.filter((pl.col("user") == user) & (pl.col("end") > day) & (pl.col("start") < day + 86_400))
    axis.broken_barh([((s - day) / 3600, (e - s) / 3600) for s, e in mine.select("start", "end").iter_rows()], (y, 0.8), alpha=0.4, color=f"C{y}")
both = pairs.filter((pl.col("user") == user) & (pl.col("start") < day + 86_400) & (pl.col("end") > day))
both = both.select(pl.max_horizontal("start", "start_right"), pl.min_horizontal("end", "end_right").alias("end"))
axis.broken_barh([((s - day) / 3600, (e - s) / 3600) for s, e in both.iter_rows()], (2, 0.8), color="C2")
axis.set(xlim=(0, 24), xlabel="hour", yticks=[0.4, 1.4, 2.4], yticklabels=["phone", "laptop", "both"])
save("sessions")
