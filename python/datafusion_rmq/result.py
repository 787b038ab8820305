"""Results of statements."""

import html
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from datafusion_rmq._native import Query
from datafusion_rmq.arguments import flag

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["Result", "Stream"]

# Rows that a terminal and a notebook show.
SHOWN = 20

# Rows that become Python values at a time where they are read one after the other.
STEP = 1000


class Result:
    """The result of a statement, and an Arrow C stream, which polars, pyarrow, pandas and DuckDB read.

    A query runs when its rows are first asked for, and keeps them. `stream()` does not keep them.

    >>> import datafusion_rmq as rmq
    >>> result = rmq.connect().sql("SELECT * FROM (VALUES (1, 'a'), (2, NULL)) AS t(id, name)")
    >>> result.columns
    ['id', 'name']
    >>> len(result)
    2
    >>> result
    +----+------+
    | id | name |
    +----+------+
    | 1  | a    |
    | 2  | NULL |
    +----+------+
    >>> import polars as pl
    >>> pl.DataFrame(result).shape
    (2, 2)
    """

    def __init__(self, query: Query) -> None:
        self._query = query
        # Rows that `fetchone` and `fetchmany` have returned.
        self._fetched = 0

    @property
    def columns(self) -> list[str]:
        """The names of the columns. This does not run the query.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT 1 AS one, 'a' AS letter").columns
        ['one', 'letter']
        """
        return self._query.columns

    @property
    def types(self) -> list[str]:
        """The Arrow types of the columns. This does not run the query.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT 1 AS one, 'a' AS letter").types
        ['Int64', 'Utf8']
        """
        return self._query.types

    @property
    def schema(self) -> "pyarrow.Schema":
        """The names and types of the columns, as a pyarrow Schema. This does not run the query.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT 1 AS one, 'a' AS letter").schema.field("one").type
        DataType(int64)
        """
        return _library("pyarrow", "schema").schema(self)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns. This runs the query.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT value, -value FROM generate_series(1, 5)").shape
        (5, 2)
        """
        return len(self), len(self.columns)

    @property
    def query(self) -> str:
        """The text of the statement.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT $1 AS one", [1]).query
        'SELECT $1 AS one'
        """
        return self._query.sql

    def __len__(self) -> int:
        return len(self._query)

    def __bool__(self) -> bool:
        # A result without rows is one nevertheless, and a truth value should not run a query.
        return True

    def __arrow_c_schema__(self) -> object:
        return self._query.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._query.__arrow_c_stream__(requested_schema)

    def stream(self) -> "Stream":
        """The rows as an Arrow C stream that is computed while it is read, in bounded memory.

        Each reader runs the query anew.

        >>> import pyarrow as pa
        >>> import datafusion_rmq as rmq
        >>> numbers = rmq.connect().sql("SELECT value FROM generate_series(1, 100000)").stream()
        >>> sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(numbers))
        100000
        """
        return Stream(self._query)

    def to_polars(self) -> "polars.DataFrame":
        """The rows as a polars DataFrame. Numbers and times are not copied.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT value AS v FROM generate_series(1, 3)").to_polars()["v"].sum()
        6
        """
        frame: "polars.DataFrame" = _library("polars", "to_polars()").DataFrame(self)
        return frame

    def to_arrow(self) -> "pyarrow.Table":
        """The rows as a pyarrow Table, without a copy.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT value AS v FROM generate_series(1, 3)").to_arrow().num_rows
        3
        """
        return _library("pyarrow", "to_arrow()").table(self)

    def to_pandas(self, **kwargs: Any) -> "pandas.DataFrame":
        """The rows as a pandas DataFrame; arguments are those of `pyarrow.Table.to_pandas`.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT value AS v FROM generate_series(1, 3)").to_pandas()["v"].tolist()
        [1, 2, 3]
        """
        _library("pandas", "to_pandas()")
        return _library("pyarrow", "to_pandas()").table(self).to_pandas(**kwargs)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as tuples of Python values. Times have microseconds, as Python's; finer ones are cut off.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT value, value * 0.5 FROM generate_series(1, 2)").fetchall()
        [(1, 0.5), (2, 1.0)]
        """
        return self._rows(0, len(self))

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, or None. It goes on where `fetchone` and `fetchmany` ended.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT 1 + 1 AS two").fetchone()
        (2,)
        """
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int) -> list[tuple[Any, ...]]:
        """The next rows, at most `size`. It goes on where `fetchone` and `fetchmany` ended.

        >>> import datafusion_rmq as rmq
        >>> result = rmq.connect().sql("SELECT value FROM generate_series(1, 3)")
        >>> result.fetchmany(2), result.fetchmany(2), result.fetchmany(2)
        ([(1,), (2,)], [(3,)], [])
        """
        if size < 0:
            raise ValueError(f"size={size}: a number of rows is needed")
        rows = self._rows(self._fetched, size)
        self._fetched += len(rows)
        return rows

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """The rows as `fetchall` has them, made while they are read. They know the names of the columns, as named tuples do.

        >>> import datafusion_rmq as rmq
        >>> result = rmq.connect().sql("SELECT value AS v FROM generate_series(1, 3)")
        >>> [v * 10 for v, in result]
        [10, 20, 30]
        >>> import pandas as pd
        >>> pd.DataFrame(result).columns.tolist()
        ['v']

        pandas takes no columns from a result without rows; `to_pandas()` has them.
        """
        row = type("Row", (_Row,), {"__slots__": (), "_fields": tuple(self.columns)})
        for at in range(0, len(self), STEP):
            yield from map(row, self._rows(at, STEP))

    def __reduce__(self) -> Any:
        raise TypeError("a Result does not pickle, as it belongs to a session; pickle to_arrow(), to_polars() or to_pandas()")

    def _rows(self, at: int, size: int) -> list[tuple[Any, ...]]:
        columns = self._query.python_columns(at, size)
        return list(zip(*columns)) if columns else [()] * min(size, len(self) - at)

    def show(self, rows: int = SHOWN) -> None:
        """Prints the first rows as a table.

        >>> import datafusion_rmq as rmq
        >>> rmq.connect().sql("SELECT value FROM generate_series(1, 3)").show(2)
        +-------+
        | value |
        +-------+
        | 1     |
        | 2     |
        +-------+
        (2 of 3 rows)
        """
        print(self._text(rows))

    def explain(self, *, analyze: bool = False, verbose: bool = False, format: str = "indent") -> str:
        """The statement and its plan: a range join shows as `RangeJoinExec` or says why it is none.

        With `analyze` the query runs, and the plan has its measurements. `format` is `"indent"` or `"tree"`.

        >>> import datafusion_rmq as rmq
        >>> con = rmq.connect()
        >>> print(con.sql("SELECT 1 AS one").explain())
        SELECT 1 AS one
        ...
        """
        plan = self._query.explain(flag("analyze", analyze), flag("verbose", verbose), format)
        return f"{self.query}\n\n{plan}"

    def _text(self, rows: int) -> str:
        text, more = self._query.text(rows)
        return f"{text}\n({rows} of {len(self)} rows)" if more else text

    def __repr__(self) -> str:
        return self._text(SHOWN)

    def _repr_html_(self) -> str:
        cells, more = self._query.cells(SHOWN)
        head = "".join(
            f"<th>{html.escape(name)}<br><small>{html.escape(kind)}</small></th>"
            for name, kind in zip(self.columns, self.types)
        )
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in cells
        )
        note = f"<p>{SHOWN} of {len(self)} rows</p>" if more else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


class _Row(tuple[Any, ...]):
    """A row of a result. pandas takes the names of columns from `_fields`, as of named tuples."""

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]]

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)


class Stream:
    """An Arrow C stream that runs its query while it is read."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def __reduce__(self) -> Any:
        raise TypeError("a Stream does not pickle, as it belongs to a session; read it, and pickle the rows")

    def __arrow_c_schema__(self) -> object:
        return self._query.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._query.stream(requested_schema)


def _library(name: str, method: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{method} needs {name}: pip install {name}") from error
