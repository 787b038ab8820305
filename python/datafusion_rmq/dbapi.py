"""The DB-API 2.0 (PEP 249), for tools that know it, such as pandas' `read_sql`.

>>> from datafusion_rmq import dbapi
>>> with dbapi.connect() as connection, connection.cursor() as cursor:
...     cursor.execute("SELECT ? + value AS n FROM generate_series(1, 3)", [10]).fetchmany(2)
[(11,), (12,)]

Parameters are `?`, or `$1`, `$2` and so on (a sequence), or `$name` (a dict). There are no transactions: `commit` does nothing, and
`rollback` after a change is an error.
"""

import datetime
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import datafusion_rmq
from datafusion_rmq._native import (
    DatabaseError,
    Error,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from datafusion_rmq.result import Result

apilevel = "2.0"
# Threads may share the module and connections.
threadsafety = 2
# Also `$1` and `$name`, for which PEP 249 has no word.
paramstyle = "qmark"


class Warning(Exception):
    """Never raised; the DB-API has it."""


class InterfaceError(Error):
    """A wrong use of a connection or cursor, such as one that is closed."""


class DataError(DatabaseError):
    """Never raised; the DB-API has it."""


class IntegrityError(DatabaseError):
    """Never raised; the DB-API has it."""


class InternalError(DatabaseError):
    """Never raised; the DB-API has it."""


class _TypeObject:
    """A group of types; equal to the type codes of a cursor's description that belong to it."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, str) and other.partition("(")[0] in self._names)

    def __hash__(self) -> int:
        return hash(self._names)


STRING = _TypeObject("Utf8", "LargeUtf8", "Utf8View")
BINARY = _TypeObject("Binary", "LargeBinary", "BinaryView", "FixedSizeBinary")
NUMBER = _TypeObject(
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    *(f"Float{bits}" for bits in (16, 32, 64)),
    *(f"Decimal{bits}" for bits in (32, 64, 128, 256)),
)
DATETIME = _TypeObject("Date32", "Date64", "Time32", "Time64", "Timestamp", "Duration", "Interval")
ROWID = _TypeObject()

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:
    """The local date of a time in seconds since 1970."""
    return Date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:
    """The local time of day of a time in seconds since 1970."""
    return Time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:
    """The local date and time of a time in seconds since 1970."""
    return Timestamp(*time.localtime(ticks)[:6])


def connect(**options: Any) -> "Connection":
    """Opens a session; options are those of `datafusion_rmq.connect`. Statements do not see variables of the caller.

    >>> with connect(target_partitions=2) as connection:
    ...     connection.cursor().execute("SELECT 1 AS one").fetchall()
    [(1,)]
    """
    return Connection(datafusion_rmq.connect(**({"frames": False} | options)))


class Connection:
    """A session as the DB-API has it. `session` is the connection of the other interface, to register tables."""

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, session: datafusion_rmq.Connection) -> None:
        self._session: datafusion_rmq.Connection | None = session
        self._changed = False

    @property
    def session(self) -> datafusion_rmq.Connection:
        """The connection of the package's other interface.

        >>> import pyarrow as pa
        >>> with connect() as connection:
        ...     session = connection.session.register("t", pa.table({"v": [1, 2]}))
        ...     connection.cursor().execute("SELECT sum(v) FROM t").fetchone()
        (3,)
        """
        if self._session is None:
            raise InterfaceError("this connection is closed")
        return self._session

    def cursor(self) -> "Cursor":
        """A new cursor.

        >>> with connect() as connection, connection.cursor() as cursor:
        ...     cursor.execute("SELECT 1 AS one").fetchall()
        [(1,)]
        """
        self.session  # Checks that it is open.
        return Cursor(self)

    def commit(self) -> None:
        """Keeps the changes since the last call, which are final anyway.

        >>> with connect() as connection:
        ...     created = connection.cursor().execute("CREATE TABLE t AS SELECT 1 AS v")
        ...     connection.commit()
        """
        self.session  # Checks that it is open.
        self._changed = False

    def rollback(self) -> None:
        """Does nothing where nothing was changed since the last `commit`, as pools of connections need it; else an error.

        >>> connection = connect()
        >>> connection.rollback()
        >>> created = connection.cursor().execute("CREATE TABLE t AS SELECT 1 AS v")
        >>> connection.rollback()
        Traceback (most recent call last):
        datafusion_rmq.NotSupportedError: there are no transactions, so what was changed cannot be rolled back
        """
        self.session  # Checks that it is open.
        if self._changed:
            raise NotSupportedError("there are no transactions, so what was changed cannot be rolled back")

    def close(self) -> None:
        """Drops the session's tables and indexes.

        >>> connection = connect()
        >>> connection.close()
        >>> connection.cursor()
        Traceback (most recent call last):
        datafusion_rmq.dbapi.InterfaceError: this connection is closed
        """
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Cursor:
    """Runs statements and hands out rows."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._closed = False
        self._result: Result | None = None
        self._rows: Iterator[tuple[Any, ...]] = iter(())
        self.rowcount = -1

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        """Name and Arrow type of each column, and five times None, as PEP 249 has it; None for no query.

        >>> with connect() as connection:
        ...     connection.cursor().execute("SELECT 1 AS one").description
        [('one', 'Int64', None, None, None, None, None)]
        """
        if self._result is None or not self._result.columns or self._result._query.changes:
            return None
        return [(name, kind, *[None] * 5) for name, kind in zip(self._result.columns, self._result.types)]

    def execute(self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> "Cursor":
        """Runs a statement, and returns the cursor. Rows become Python values when they are fetched.

        >>> with connect() as connection, connection.cursor() as cursor:
        ...     cursor.execute("SELECT ? AS a, ? AS b", [1, "x"]).fetchall()
        ...     cursor.execute("SELECT $a AS a", {"a": 1}).fetchall()
        [(1, 'x')]
        [(1,)]
        """
        self._check()
        self._result, self.rowcount = None, -1
        result = self.connection.session._sql(operation, parameters or None, None)
        rows, count = iter(result), len(result)
        if result._query.changes:
            self.connection._changed = True
            # Changes of rows have their number, changes of tables nothing.
            changed = next(rows, ())
            rows, count = iter(()), changed[0] if changed else -1
        self._result, self._rows, self.rowcount = result, rows, count
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> None:
        """Runs a statement once for each item.

        >>> with connect() as connection, connection.cursor() as cursor:
        ...     created = cursor.execute("CREATE TABLE t (v BIGINT)")
        ...     cursor.executemany("INSERT INTO t VALUES (?)", [[1], [2]])
        ...     cursor.rowcount
        2
        """
        counts = [self.execute(operation, parameters).rowcount for parameters in seq_of_parameters]
        self.rowcount = sum(counts) if counts and min(counts) >= 0 else -1

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, or None.

        >>> with connect() as connection:
        ...     connection.cursor().execute("SELECT 1 AS one").fetchone()
        (1,)
        """
        return next(self._fetched(), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows, `arraysize` of them unless a size is given.

        >>> with connect() as connection:
        ...     connection.cursor().execute("SELECT value FROM generate_series(1, 3)").fetchmany(2)
        [(1,), (2,)]
        """
        return list(itertools.islice(self._fetched(), self.arraysize if size is None else size))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that are left.

        >>> with connect() as connection:
        ...     connection.cursor().execute("SELECT value FROM generate_series(1, 2)").fetchall()
        [(1,), (2,)]
        """
        return list(self._fetched())

    def fetch_arrow_table(self) -> Any:
        """All rows of the result as a pyarrow Table.

        >>> with connect() as connection:
        ...     connection.cursor().execute("SELECT 1 AS one").fetch_arrow_table().column_names
        ['one']
        """
        self._fetched()
        return self._result.to_arrow()  # type: ignore[union-attr] # It was checked.

    def _fetched(self) -> Iterator[tuple[Any, ...]]:
        self._check()
        if self._result is None:
            raise ProgrammingError("no statement was executed")
        return self._rows

    def _check(self) -> None:
        if self._closed:
            raise InterfaceError("this cursor is closed")
        self.connection.session  # Checks that it is open.

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._fetched()

    def setinputsizes(self, sizes: object) -> None:
        """Does nothing, as PEP 249 allows."""

    def setoutputsize(self, size: object, column: object = None) -> None:
        """Does nothing, as PEP 249 allows."""

    def close(self) -> None:
        """Drops the result."""
        self._closed, self._result, self._rows = True, None, iter(())

    def __enter__(self) -> "Cursor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
