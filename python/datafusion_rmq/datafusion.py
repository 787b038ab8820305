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

import weakref
from typing import TYPE_CHECKING, Any

from datafusion_rmq import _native
from datafusion_rmq.connection import option_texts
from datafusion_rmq.owner import LogicalCodec, Owner, check_datafusion

check_datafusion("datafusion_rmq.datafusion")

from datafusion import AggregateUDF, ScalarUDF, SessionExtensionComponents, TableFunction, WindowUDF

if TYPE_CHECKING:
    from datafusion import SessionContext

__all__ = ["Extension", "Options"]

_CODEC_ID = "datafusion_rmq"

# DataFusion 55 loses the columns of a relation without rows when a plan crosses. These rules make one; they are applied
# again by the session of the extension.
_RULES = ("eliminate_filter", "eliminate_limit", "eliminate_join", "propagate_empty_relation")


class Extension:
    """What `SessionContext.with_extensions` takes, so that queries of the session use range joins.

    Options are those of `connect`, but for those of DataFusion that the session has itself: `Extension(engine="cpu",
    memory_limit="8G")`. Sorted sides of joins that come from files are kept between queries as long as the extension,
    whose sessions share them.
    """

    def __init__(self, **options: Any) -> None:
        texts = option_texts(options)
        for name in texts:
            if name.startswith("datafusion.") and not name.startswith("datafusion.runtime."):
                raise ValueError(f"{name} is an option of the session: SessionConfig().set({name!r}, …)")
        self._native = _native.Extension(texts)

    def __datafusion_session_components__(self, ctx: "SessionContext") -> SessionExtensionComponents:
        return SessionExtensionComponents(
            logical_extension_codecs=(LogicalCodec(_CODEC_ID, self._native.logical_codec(ctx)),),
            physical_extension_codecs=(_PhysicalCodec(self._native.physical_codec(ctx)),),
        )

    def __datafusion_session_planner__(self, ctx: "SessionContext", fallback: object) -> object:
        for rule in _RULES:
            ctx.remove_optimizer_rule(rule)
        # The session keeps its planner and functions, which must not keep the session.
        owner = Owner(self._native.lender(), weakref.ref(ctx))
        scalars, aggregates, windows, tables = self._native.functions(ctx, owner.lend)
        for _, capsule in scalars:
            ctx.register_udf(ScalarUDF.from_pycapsule(capsule))
        for _, capsule in aggregates:
            ctx.register_udaf(AggregateUDF.from_pycapsule(capsule))
        for _, capsule in windows:
            ctx.register_udwf(WindowUDF.from_pycapsule(capsule))
        for name, capsule in tables:
            ctx.register_udtf(TableFunction(name, _TableFunction(capsule), ctx))
        return self._native.planner(ctx, owner.lend, fallback)


class Options:
    """What `SessionConfig.with_extension` takes, so that `SET rmq.…` works in the session.

    >>> from datafusion import SessionConfig, SessionContext
    >>> config = SessionConfig().with_extension(Options())
    >>> ctx = SessionContext(config).with_extensions(Extension())
    >>> ctx.sql("SET rmq.engine = 'cpu'").collect()
    []
    """

    def __datafusion_extension_options__(self) -> object:
        return _native.Extension.options()


class _TableFunction:
    """A table function as a session takes it."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __datafusion_table_function__(self, session: Any = None) -> object:
        return self._capsule

    def __call__(self) -> None:
        raise TypeError("a table function is called in SQL")


class _PhysicalCodec:
    """A codec as a session takes it."""

    __datafusion_codec_id__ = _CODEC_ID

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __datafusion_physical_extension_codec__(self, session: Any = None) -> object:
        return self._capsule
