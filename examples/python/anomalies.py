# %% [markdown]
# # How hot did the machine get during each job?
#
# A sensor reports a machine's temperature ten times a second. Jobs run for a minute to several hours, and each has a limit.
# Which jobs exceeded theirs, by how much, and when first? The windows all have different lengths, so rolling aggregates do not
# apply.

# %%
import duckdb
import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import datafusion_rmq as rmq
from common import rows, save, timed

READINGS, JOBS = rows(10_000_000), rows(200_000)
draw = np.random.default_rng(3)
at = np.arange(READINGS) * 100  # Milliseconds.
celsius = 60 + 8 * np.sin(at / 9e6) + np.convolve(draw.normal(0, 6, READINGS), np.ones(50) / 50, "same")
celsius[draw.integers(0, READINGS, READINGS // 3000)] += 12
readings = pl.DataFrame({"at": at, "celsius": celsius})
start = draw.integers(0, READINGS * 100, JOBS)
longest = min(3 * 3_600_000, READINGS * 20)
jobs = pl.DataFrame(
    {"job": np.arange(JOBS), "start": start, "stop": start + draw.integers(longest // 180, longest, JOBS), "limit": draw.uniform(68, 88, JOBS)}
)

# %%
con = rmq.connect()
sql = """SELECT j.job, j."limit", max(r.celsius) AS hottest, arg_max(r.at, r.celsius) AS hottest_at
         FROM jobs j JOIN readings r ON r.at BETWEEN j.start AND j.stop GROUP BY j.job, j."limit" ORDER BY j.job"""
ours = timed("con.sql: JOIN … GROUP BY", lambda: con.sql(sql).to_polars())
exceeded = ours.filter(pl.col("hottest") > pl.col("limit")).join(jobs.select("job", "start", "stop"), on="job", maintain_order="left")
# When each of these did so first: a search in its window.
search = """SELECT e.job, min(r.at) AS first_at FROM exceeded e JOIN readings r
            ON r.at BETWEEN e.start AND e.stop AND r.celsius > e."limit" GROUP BY e.job ORDER BY e.job"""
first = timed("con.sql: the first reading above the limit", lambda: con.sql(search).to_polars())
assert first["job"].equals(exceeded["job"])
after = (first["first_at"] - exceeded["start"]) / 60_000
print(f"{len(exceeded)} of {JOBS} jobs exceeded their limit, half of them within {np.median(after):.0f} minutes")

# %%
# The same in DuckDB, for one job in a hundred: it looks at every reading of every job.
few = jobs[::100]
other = duckdb.connect()
other.register("jobs", few.to_arrow())
other.register("readings", readings.to_arrow())
theirs = timed(f"DuckDB: the same SQL, for {len(few)} of the jobs", lambda: pl.DataFrame(other.sql(sql).to_arrow_table()))
assert ours.filter(pl.col("job").is_in(few["job"].to_list())).select("job", "hottest").equals(theirs.select("job", "hottest"))
# The first reading above the limit, of a few.
for job, at_first in first[:: max(len(first) // 20, 1)].iter_rows():
    began, ended, limit = jobs.filter(pl.col("job") == job).select("start", "stop", "limit").row(0)
    seen = readings.filter(pl.col("at").is_between(began, ended) & (pl.col("celsius") > limit))
    assert seen["at"][0] == at_first

# %%
end = min(READINGS, 40_000)
plt.plot(at[:end] / 60_000, celsius[:end], lw=0.5, color="tab:gray", label="temperature")
begun = exceeded.join(first, on="job").filter((pl.col("stop") < at[end - 1]) & (pl.col("stop") - pl.col("start") < at[end - 1] // 6)).sort("start")[:12]
for i, row in enumerate(begun.iter_rows(named=True)):
    plt.hlines(row["limit"], row["start"] / 60_000, row["stop"] / 60_000, color="tab:blue", lw=2, label="" if i else "limit of a job")
    plt.plot(row["first_at"] / 60_000, row["limit"], "o", ms=4, color="tab:blue", label="" if i else "first above it")
    plt.plot(row["hottest_at"] / 60_000, row["hottest"], "v", color="tab:red", label="" if i else "hottest of that job")
plt.xlabel("minute")
plt.ylabel("°C")
# Beside the data, not over it.
plt.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)
save("anomalies")
