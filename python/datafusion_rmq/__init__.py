"""Range joins and range-minimum queries over pandas, polars and Arrow data.

>>> import datafusion_rmq as rmq
>>> import polars as pl
>>> quotes = pl.DataFrame({"ts": [1, 3, 5], "bid": [10.0, 9.8, 10.1]})
>>> trades = pl.DataFrame({"id": [1, 2], "ts": [4, 9]})
>>> con = rmq.connect()
>>> con.sql('''SELECT t.id, min(q.bid) AS lowest FROM trades t
...            LEFT JOIN quotes q ON q.ts BETWEEN t.ts - 2 AND t.ts GROUP BY t.id ORDER BY t.id''').fetchall()
[(1, 9.8), (2, None)]

`connect` opens a session, `RangeIndex` answers ranges over one array without SQL, and `window_join`, `asof_join` and
`overlap_join` are the commonest joins as functions. `datafusion_rmq.dbapi` is a DB-API 2.0 module, `datafusion_rmq.adbc` an
ADBC driver.
"""

from datafusion_rmq._native import (
    DatabaseError,
    Error,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    __version__,
)
from datafusion_rmq.connection import Connection, connect
from datafusion_rmq.joins import asof_join, overlap_join, window_join
from datafusion_rmq.range_index import RangeIndex
from datafusion_rmq.result import Result

__all__ = [
    "Connection",
    "DatabaseError",
    "Error",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "RangeIndex",
    "Result",
    "__version__",
    "asof_join",
    "connect",
    "overlap_join",
    "window_join",
]
