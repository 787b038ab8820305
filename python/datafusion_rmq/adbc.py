"""ADBC: a driver in the package's own library, for tools that move Arrow data, such as `pandas.read_sql` and `to_sql`.

>>> from datafusion_rmq import adbc
>>> import pyarrow as pa
>>> with adbc.connect() as connection, connection.cursor() as cursor:
...     cursor.adbc_ingest("prices", pa.table({"close": [10.2, 9.8, 10.6]}))
...     cursor.execute("SELECT range_min('prices.close', $1, $2) AS lowest", [0, 1]).fetch_arrow_table().to_pylist()
3
[{'lowest': 9.8}]

Connections are those of the package `adbc-driver-manager`, which this module needs. Each statement is final: there are no
transactions.
"""

from typing import TYPE_CHECKING, Any

import datafusion_rmq
from datafusion_rmq import _native
from datafusion_rmq.connection import option_texts

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

__all__ = ["connect"]

_ENTRY = "AdbcDatafusionRmqInit"


def connect(session: datafusion_rmq.Connection | None = None, **options: Any) -> "Connection":
    """Opens a connection, over a session of its own or over one of `datafusion_rmq.connect`, whose tables it sees.

    Options of a session of its own are those of `datafusion_rmq.connect`. Statements do not see variables of the caller.

    >>> import datafusion_rmq as rmq
    >>> import pandas as pd
    >>> con = rmq.connect().register("prices", pd.DataFrame({"close": [10.2, 9.8, 10.6]}))
    >>> with connect(con) as connection:
    ...     pd.read_sql("SELECT max(close) AS highest FROM prices", connection)
       highest
    0     10.6
    """
    try:
        import adbc_driver_manager
        from adbc_driver_manager import dbapi
    except ImportError as error:
        raise ImportError("datafusion_rmq.adbc needs adbc-driver-manager: pip install adbc-driver-manager") from error
    if session is None:
        named = option_texts(options)
    elif options:
        raise ValueError(f"{', '.join(options)}: options are those of the session, which is open")
    else:
        named = {"datafusion_rmq.session": str(session._session.lend())}
    library = _native.__file__
    database = adbc_driver_manager.AdbcDatabase(driver=library, entrypoint=_ENTRY, **named)
    try:
        connection = adbc_driver_manager.AdbcConnection(database)
    except BaseException:
        database.close()
        raise
    return dbapi.Connection(database, connection, autocommit=True)
