"""Sessions: tables, options and statements."""

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from datafusion_rmq._native import Frame, Session
from datafusion_rmq.arguments import flag
from datafusion_rmq.frames import is_column, read_frame
from datafusion_rmq.owner import Owner, default_schema
from datafusion_rmq.progress import bar_maker
from datafusion_rmq.result import Result

if TYPE_CHECKING:
    from datafusion import SessionContext

__all__ = ["Connection", "connect"]


def connect(
    *, session: "SessionContext | None" = None, frames: bool = True, progress: bool = False, **options: Any
) -> "Connection":
    """Opens a session with tables and options of its own.

    Options are those of DataFusion and of this extension, by their last word or by their full name:
    `target_partitions=8`, `memory_limit="8G"`, `engine="cpu"`, `**{"datafusion.execution.batch_size": 1024}`. With
    `frames=False`, statements do not see variables of the caller. With `progress=True`, statements that take more than
    half a second show a bar of the rows that their scans have read, by tqdm or else rich: queries, INSERT, UPDATE,
    DELETE, COPY and CREATE TABLE AS. With `session`, a `SessionContext` of the package `datafusion`, statements read
    its tables and views and call its functions, where the connection has none of that name.

    >>> con = connect(target_partitions=2, engine="cpu")
    >>> con.sql("SELECT 1 + 1 AS two").fetchall()
    [(2,)]
    >>> connect(target_partition=2)
    Traceback (most recent call last):
    ValueError: there is no option target_partition; perhaps datafusion.execution.target_partitions
    """
    return Connection(session=session, frames=frames, progress=progress, **options)


class Connection:
    """A session: its tables, options and kept indexes. `connect` opens one. Threads can share it.

    It is closed by `close()`, or at the end of a `with` block; results that are not read yet stay readable.
    """

    def __init__(
        self,
        *,
        session: "SessionContext | None" = None,
        frames: bool = True,
        progress: bool = False,
        **options: Any,
    ) -> None:
        self._frames = flag("frames", frames)
        if session is not None:
            options = {**default_schema(session), **options}
        self._open: Session | None = Session(option_texts(options), bar_maker() if flag("progress", progress) else None)
        self._owner = None if session is None else Owner.of(self._open, session)

    @property
    def _session(self) -> Session:
        if self._open is None:
            raise ValueError("this connection is closed")
        return self._open

    def sql(self, text: str, params: Mapping[str, Any] | Sequence[Any] | None = None) -> Result:
        """Plans a statement. A query runs when its rows are first asked for; any other statement runs at once.

        `params` are the values of `$name` (a dict), or of `?`, or `$1`, `$2`, … (a sequence). A list, a NumPy array or a
        Series is an array of SQL, as in `array_has($ids, id)`. A table that is not registered is
        looked up among the caller's local and global variables, for this statement only and to be read: anything that exports an Arrow
        table, such as a pandas or polars DataFrame. It is read anew by each statement; `register` reads it once and
        keeps its indexes.

        >>> import polars as pl
        >>> prices = pl.DataFrame({"close": [10.2, 9.8, None, 10.6]})
        >>> con = connect()
        >>> con.sql("SELECT close FROM prices WHERE close > $least", {"least": 10}).fetchall()
        [(10.2,), (10.6,)]
        >>> con.sql("SELECT range_min('prices.close', $1, $2) AS lowest", [0, 3]).fetchall()
        [(9.8,)]
        >>> con.sql("SELECT close FROM prices WHERE array_has($wanted, close)", {"wanted": [10.6, 9.8]}).fetchall()
        [(9.8,), (10.6,)]
        """
        return self._sql(text, params, sys._getframe(1))

    def _sql(
        self, text: str, params: Mapping[str, Any] | Sequence[Any] | None, caller: FrameType | None
    ) -> Result:
        """Plans a statement whose tables may be variables of `caller`."""
        if isinstance(params, (str, bytes)):
            raise TypeError(f"params={params!r}: a dict or a sequence of values is needed")
        found, lent = [], []
        if self._owner is not None:
            self._owner.add_functions(self._session.missing_functions(text))
            lent = self._owner.lend(self._session.missing_tables(text, True))
        if self._frames and caller is not None:
            known = [parts for parts, _ in lent]
            for parts in self._session.missing_tables(text, False):
                if len(parts) == 1 and parts not in known:
                    data = _variable(parts[0], caller)
                    if data is not None:
                        found.append((parts[0], read_frame(parts[0], data)))
        params = dict(params) if isinstance(params, Mapping) else params
        return Result(self._session.sql(text, params, found, lent, None))

    def register(self, name: str, data: object) -> "Connection":
        """Makes a table of anything with `__arrow_c_stream__` or `__arrow_c_array__`, and replaces one of this name.

        The name is used as it is. SQL folds names to lower case where they are not quoted.
        The data is read once, without a copy where the library can export it so. The rows are one partition in the
        order in which they come, so positions count as in the frame. Changes of the frame afterwards are not seen
        where the library copies for the export, and must not be made where it does not.

        >>> import pyarrow as pa
        >>> con = connect().register("prices", pa.table({"close": [5, 3, 8]}))
        >>> con.sql("SELECT range_argmin('prices.close', 0, 2) AS at").fetchall()
        [(1,)]
        """
        self._session.register(_table_name(name), data if isinstance(data, Frame) else read_frame(name, data))
        return self

    def deregister(self, name: str) -> "Connection":
        """Removes a table, and with it the kept indexes of its columns. A KeyError says that there is none.

        >>> import pyarrow as pa
        >>> con = connect().register("prices", pa.table({"close": [5, 3, 8]}))
        >>> con.deregister("prices").tables()
        []
        """
        self._session.deregister(_table_name(name))
        return self

    def read_parquet(self, name: str, path: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]") -> "Connection":
        """Makes a table of local Parquet files: a path, a folder, a pattern such as `"q/*.parquet"`, or a list of them.

        The files are found and read by each query, as far as it needs them. Of a folder these are the files that end in
        `.parquet`, also in folders inside it; beside one, other files must end so, too.

        >>> import pathlib, tempfile
        >>> import polars as pl
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> pl.DataFrame({"close": [5, 3]}).write_parquet(folder / "monday.parquet")
        >>> con = connect().read_parquet("prices", folder)
        >>> con.sql("SELECT min(close) AS lowest FROM prices").fetchall()
        [(3,)]
        >>> pl.DataFrame({"close": [1, 8]}).write_parquet(folder / "tuesday.parquet")
        >>> con.sql("SELECT min(close) AS lowest FROM prices").fetchall()
        [(1,)]
        """
        self._session.read_parquet(_table_name(name), _paths(path))
        return self

    def read_csv(
        self,
        name: str,
        path: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]",
        *,
        header: bool = True,
        delimiter: str = ",",
        infer_rows: int = 1000,
    ) -> "Connection":
        """Makes a table of local CSV files, whose types are guessed from the first `infer_rows` rows.

        Of a folder these are the files that end in `.csv`; for paths see `read_parquet`.

        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "prices.txt"
        >>> written = file.write_text("sym;close\\nA;5\\nB;3\\n")
        >>> connect().read_csv("prices", file, delimiter=";").sql("SELECT * FROM prices WHERE close < 4").fetchall()
        [('B', 3)]
        """
        if len(delimiter.encode()) != 1:
            raise ValueError(f"delimiter={delimiter!r}: one ASCII character is needed")
        self._session.read_csv(_table_name(name), _paths(path), flag("header", header), ord(delimiter), infer_rows)
        return self

    def tables(self) -> list[str]:
        """The names of the registered tables and views, sorted.

        >>> con = connect()
        >>> made = con.sql("CREATE TABLE prices (close DOUBLE)")
        >>> con.tables()
        ['prices']
        """
        return self._session.tables()

    def close(self) -> None:
        """Drops the session's tables and indexes. Statements are errors from then on; closing twice is none.

        >>> con = connect()
        >>> con.close()
        >>> con.sql("SELECT 1")
        Traceback (most recent call last):
        ValueError: this connection is closed
        """
        self._open = self._owner = None

    def __reduce__(self) -> Any:
        raise TypeError("a Connection does not pickle, as it is a session of this process; open one in each process by connect()")

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<datafusion_rmq.Connection tables={self.tables()}>" if self._open else "<datafusion_rmq.Connection closed>"


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Options by their full names, with their values as SET has them."""
    known = Session.option_names()
    return {_full_name(name, known): _option_text(value) for name, value in options.items() if value is not None}


def _full_name(name: str, known: list[str]) -> str:
    if name in known:
        return name
    matching = [full for full in known if full.rsplit(".", 1)[-1] == name]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ValueError(f"several options are called {name}; write one of {', '.join(matching)}")
    lasts = {full.rsplit(".", 1)[-1]: full for full in known}
    near = [lasts.get(last, last) for last in difflib.get_close_matches(name, [*lasts, *known], n=1)]
    raise ValueError(f"there is no option {name}" + (f"; perhaps {near[0]}" if near else ""))


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table_name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"name={name!r}: the name of a table is a string that is not empty")
    return name


def _paths(path: Any) -> list[str]:
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not paths:
        raise ValueError("path=[]: at least one path is needed")
    texts = [os.fspath(one) for one in paths]
    for text in texts:
        if "://" in text and not text.startswith("file://"):
            raise ValueError(f"path {text!r}: only local files are read")
    return texts


# What is read when it is asked for, and what asks.
_DEFERRED = {"LazyFrame": "collect()", "Dataset": "to_table()", "Scanner": "to_table()"}


def _variable(name: str, caller: FrameType) -> Any:
    """The table among the caller's variables that SQL calls `name`, in which unquoted names are in lower case."""
    for scope in (caller.f_locals, caller.f_globals):
        spelled = [other for other in scope if name in (other, other.lower())]
        exporting = [other for other in spelled if _exports_arrow(scope[other])]
        # That a Series is no table is an error only where no other variable is one.
        tables = [other for other in exporting if not is_column(scope[other])] or exporting
        if name in tables:
            tables = [name]
        if len(tables) > 1:
            raise ValueError(f"table {name}: variables {', '.join(tables)} differ only in case; quote one, as in FROM \"{tables[0]}\"")
        if tables:
            return scope[tables[0]]
        for other in spelled:
            kinds = [kind.__name__ for kind in type(scope[other]).__mro__ if kind.__name__ in _DEFERRED]
            if kinds:
                what = f"the variable {other} is a {kinds[0]}, which has no rows yet"
                raise TypeError(f"table {name}: {what}; use {other}.{_DEFERRED[kinds[0]]}")
    return None


def _exports_arrow(value: object) -> bool:
    return hasattr(type(value), "__arrow_c_stream__") or hasattr(type(value), "__arrow_c_array__")
