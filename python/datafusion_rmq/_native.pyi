"""The native part of the package. Its users are the package's other modules."""

from collections.abc import Callable, Sequence
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "DATAFUSION_VERSION",
    "DatabaseError",
    "Error",
    "Extension",
    "Frame",
    "Lender",
    "LentTable",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Query",
    "RangeIndex",
    "Session",
    "__version__",
]

__version__: str
DATAFUSION_VERSION: str

class Error(Exception):
    """The base of all exceptions of this package."""

class DatabaseError(Error):
    """The base of all errors of statements."""

class ProgrammingError(DatabaseError):
    """A statement is wrong: its syntax, a name, a type, a parameter."""

class OperationalError(DatabaseError):
    """A statement failed while it ran: memory, files, devices, values."""

class NotSupportedError(DatabaseError):
    """A statement asks for something that is not implemented."""

@final
class Extension:
    def __new__(cls, options: dict[str, str]) -> Self: ...
    def logical_codec(self, owner: object) -> object: ...
    def physical_codec(self, owner: object) -> object: ...
    def lender(self) -> Lender: ...
    def functions(
        self, owner: object, lend: Callable[[list[list[str]]], list[tuple[list[str], LentTable]]]
    ) -> tuple[
        list[tuple[str, object]],
        list[tuple[str, object]],
        list[tuple[str, object]],
        list[tuple[str, object]],
    ]: ...
    def planner(
        self,
        owner: object,
        lend: Callable[[list[list[str]]], list[tuple[list[str], LentTable]]],
        fallback: object,
    ) -> object: ...

@final
class Lender:
    def __new__(cls, session: Session) -> Self: ...
    def logical_codec(self, owner: object) -> object: ...
    def table(self, owner: object, plan: bytes) -> LentTable: ...
    def add_function(self, owner: object, name: str, call: bytes) -> None: ...

@final
class LentTable:
    @property
    def is_definition(self) -> bool: ...

@final
class Frame:
    def __new__(cls, name: str, data: object) -> Self: ...
    def numbered(self, columns: list[int], name: str) -> Frame: ...
    @property
    def columns(self) -> list[str]: ...
    @property
    def types(self) -> list[str]: ...

@final
class Query:
    @property
    def sql(self) -> str: ...
    @property
    def columns(self) -> list[str]: ...
    @property
    def types(self) -> list[str]: ...
    @property
    def changes(self) -> bool: ...
    def __len__(self) -> int: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
    def stream(self, requested_schema: object = None) -> object: ...
    def python_columns(self, start: int, rows: int) -> list[list[Any]]: ...
    def text(self, rows: int) -> tuple[str, bool]: ...
    def cells(self, rows: int) -> tuple[list[list[str]], bool]: ...
    def explain(self, analyze: bool, verbose: bool, format: str) -> str: ...

@final
class Session:
    def __new__(cls, options: dict[str, str], progress: Callable[[], Any] | None) -> Self: ...
    @staticmethod
    def option_names() -> list[str]: ...
    def register(self, name: str, frame: Frame) -> None: ...
    def deregister(self, name: str) -> None: ...
    def read_parquet(self, name: str, paths: list[str]) -> None: ...
    def read_csv(self, name: str, paths: list[str], header: bool, delimiter: int, infer_rows: int) -> None: ...
    def columns(self, name: str) -> list[str]: ...
    def types(self, name: str) -> list[str]: ...
    def tables(self) -> list[str]: ...
    def lend(self) -> int: ...
    def missing_tables(self, sql: str) -> list[list[str]]: ...
    def missing_functions(self, sql: str) -> list[str]: ...
    def sql(
        self,
        sql: str,
        params: dict[str, Any] | Sequence[Any] | None,
        frames: list[tuple[str, Frame]],
        lent: list[tuple[list[str], LentTable]],
        shown: tuple[list[tuple[str, int, int | None]], list[tuple[int, Frame]]] | None,
    ) -> Query: ...

@final
class RangeIndex:
    dtype: str
    arrow_type: str
    index_bytes: int
    def __new__(
        cls, values: object, missing: npt.NDArray[np.bool_] | None, device: str, threads: int
    ) -> Self: ...
    def __len__(self) -> int: ...
    def values(
        self, largest: bool, left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]: ...
    def positions(
        self, largest: bool, left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]: ...
    def crossings(
        self,
        at_least: bool,
        last: bool,
        left: npt.NDArray[np.int64],
        right: npt.NDArray[np.int64],
        thresholds: npt.NDArray[Any],
    ) -> npt.NDArray[np.int64]: ...
