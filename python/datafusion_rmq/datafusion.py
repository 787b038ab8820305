"""Range joins in sessions of the package `datafusion`.

>>> from datafusion import SessionContext
>>> from datafusion_rmq.datafusion import Extension
>>> ctx = SessionContext().with_extensions(Extension())
>>> quotes = ctx.from_pydict({"ts": [1, 3, 5], "bid": [10.0, 9.8, 10.1]}, name="quotes")
>>> trades = ctx.from_pydict({"id": [1, 2], "ts": [4, 9]}, name="trades")
>>> ctx.sql('''SELECT t.id, min(q.bid) AS lowest FROM trades t
...            LEFT JOIN quotes q ON q.ts BETWEEN t.ts - 2 AND t.ts GROUP BY t.id ORDER BY t.id''').to_pylist()
[{'id': 1, 'lowest': 9.8}, {'id': 2, 'lowest': None}]
"""

from typing import TYPE_CHECKING, Any

from datafusion_rmq import _native
from datafusion_rmq.connection import option_texts

if TYPE_CHECKING:
    from datafusion import SessionContext, SessionExtensionComponents

__all__ = ["Extension"]


class Extension:
    """What `SessionContext.with_extensions` takes: the session's queries then use range joins."""

    def __init__(self, **options: Any) -> None:
        self._native = _native.Extension(option_texts(options))

    def __datafusion_session_components__(self, ctx: "SessionContext") -> "SessionExtensionComponents":
        from datafusion import SessionExtensionComponents

        return SessionExtensionComponents(
            logical_extension_codecs=(_LogicalCodec(self._native, ctx),),
            physical_extension_codecs=(_PhysicalCodec(self._native, ctx),),
        )

    def __datafusion_session_planner__(self, ctx: "SessionContext", fallback: object) -> object:
        return self._native.planner(ctx, fallback)


class _LogicalCodec:
    __datafusion_codec_id__ = "datafusion_rmq"

    def __init__(self, native: Any, ctx: "SessionContext") -> None:
        self._capsule = native.logical_codec(ctx)

    def __datafusion_logical_extension_codec__(self, session: Any = None) -> object:
        return self._capsule


class _PhysicalCodec:
    __datafusion_codec_id__ = "datafusion_rmq"

    def __init__(self, native: Any, ctx: "SessionContext") -> None:
        self._capsule = native.physical_codec(ctx)

    def __datafusion_physical_extension_codec__(self, session: Any = None) -> object:
        return self._capsule
