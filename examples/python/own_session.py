# %% [markdown]
# # In a session of the package `datafusion`
#
# Files, views and functions in Python of a `SessionContext` stay where they are. How warm it was in the ten minutes before each
# alarm: asked of the session itself, of one with the extension, and of a connection to the first, which also knows correlated
# subqueries.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datafusion import SessionContext, udf

import datafusion_rmq as rmq
from common import rows, save, timed
from datafusion_rmq.datafusion import Extension

READINGS, ALARMS, DAYS = rows(5_000_000), rows(200_000), 30
draw = np.random.default_rng(11)
folder = tempfile.TemporaryDirectory()


def times(n: int) -> np.ndarray:
    return np.datetime64("2026-03-02", "ms") + np.sort(draw.integers(0, DAYS * 86_400_000, n))


at = times(READINGS)
heat = 20 + 6 * np.sin((at - at[0]) / np.timedelta64(1, "D") * 2 * np.pi) + np.cumsum(draw.normal(0, 3 / READINGS**0.5, READINGS))
pq.write_table(pa.table({"ts": at, "celsius": heat.round(2)}), Path(folder.name, "readings.parquet"))
alarms = pa.table({"id": np.arange(ALARMS), "ts": times(ALARMS)})


def prepared(ctx: SessionContext) -> SessionContext:
    """The session with a file, a table in memory, and a function in Python."""
    ctx.register_parquet("readings", str(Path(folder.name, "readings.parquet")))
    ctx.from_arrow(alarms, name="alarms")
    ctx.register_udf(udf(lambda c: pa.array(c.to_numpy() * 1.8 + 32), [pa.float64()], pa.float64(), "immutable", name="fahrenheit"))
    return ctx


# %%
own = prepared(SessionContext())
extended = prepared(SessionContext().with_extensions(Extension()))
con = rmq.connect(session=own)
FEW = 20
question = """SELECT a.id, fahrenheit(max(r.celsius)) AS warmest, count(*) AS readings FROM alarms a
              JOIN readings r ON r.ts BETWEEN a.ts - INTERVAL '10 minutes' AND a.ts WHERE a.id < {} GROUP BY a.id"""

alone = timed(f"the session, {FEW} alarms", lambda: own.sql(question.format(FEW)).to_arrow_table()).sort_by("id")
found = timed("the session with the extension", lambda: extended.sql(question.format(ALARMS)).to_arrow_table()).sort_by("id")
asked = timed("a connection to the session", lambda: con.sql(question.format(ALARMS)).to_arrow()).sort_by("id")
assert found.equals(asked) and found.slice(0, len(alone)).equals(alone)

# %% [markdown]
# Kept: the second time, the file is found sorted, as long as it stays what it was. A correlated subquery is for the connection.

# %%
timed("a connection to the session, again", lambda: con.sql(question.format(ALARMS)).to_arrow())
before = """SELECT a.id, (SELECT max(r.celsius) FROM readings r WHERE r.ts BETWEEN a.ts - INTERVAL '10 minutes' AND a.ts) AS warmest
            FROM alarms a"""
warmest = timed("the same as a correlated subquery", lambda: con.sql(before).to_arrow()).drop_null().sort_by("id")
assert warmest["id"].equals(found["id"])
np.testing.assert_allclose(warmest["warmest"].to_numpy() * 1.8 + 32, found["warmest"].to_numpy())

# %%
day = np.datetime64("2026-03-04", "ms")
step = max(READINGS // DAYS // 1000, 1)
shown = (at >= day) & (at < day + np.timedelta64(1, "D"))
plt.plot(at[shown][::step], heat[shown][::step] * 1.8 + 32, lw=1, label="temperature, °F")
moments = alarms["ts"].to_numpy()[found["id"].to_numpy()]
chosen = np.flatnonzero((moments >= day) & (moments < day + np.timedelta64(1, "D")))[:: max(ALARMS // DAYS // 60, 1)]
plt.plot(moments[chosen], found["warmest"].to_numpy()[chosen], ".", color="tab:red", label="warmest in the ten minutes before an alarm")
plt.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
save("own_session")
