"""Sessions of the package `datafusion`: which versions fit, and what they lend to sessions of this package."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from datafusion_rmq._native import DATAFUSION_VERSION, LentTable, Lender, Session

if TYPE_CHECKING:
    from datafusion import SessionContext

__all__ = ["LogicalCodec", "Owner", "check_datafusion", "default_schema"]


def check_datafusion(what: str) -> None:
    """Raises an ImportError that says what to install, unless the package `datafusion` fits this one.

    `what` needs it. Structures that the libraries exchange differ from one major version to the next.
    """
    try:
        import datafusion
    except ImportError as error:
        raise ImportError(f"{what} needs the package datafusion: pip install 'datafusion-rmq[datafusion]'") from error
    ours = int(DATAFUSION_VERSION.split(".")[0])
    if datafusion.__version__.split(".")[0] != str(ours):
        raise ImportError(
            f"{what} needs the package datafusion {ours}, because this version of datafusion_rmq has DataFusion "
            f"{DATAFUSION_VERSION}, and datafusion {datafusion.__version__} is installed: pip install 'datafusion>={ours},<{ours + 1}'"
        )


def default_schema(ctx: "SessionContext") -> dict[str, str]:
    """The options for a connection whose names without a catalog or schema mean what they mean in `ctx`."""
    check_datafusion("session=")
    from datafusion import SessionContext

    if not isinstance(ctx, SessionContext):
        raise TypeError(f"session={ctx!r}: a datafusion.SessionContext is needed")
    catalog, schema = Lender.defaults(ctx)
    return {"default_catalog": catalog, "default_schema": schema}


class LogicalCodec:
    """A codec as a session takes it."""

    def __init__(self, codec_id: str, capsule: object) -> None:
        self.__datafusion_codec_id__ = codec_id
        self._capsule = capsule

    def __datafusion_logical_extension_codec__(self, session: Any = None) -> object:
        return self._capsule


class Owner:
    """A session of the package `datafusion` that lends its tables and functions."""

    def __init__(
        self, lender: Lender, ctx: "Callable[[], SessionContext | None]", defaults: tuple[str, str] = ("datafusion", "public")
    ) -> None:
        """`ctx` returns the session, which has the lender's codec, or None if it is gone. `defaults` are the catalog and
        the schema of names without one in the session that borrows."""
        self._lender = lender
        self._defaults = defaults
        self._ctx = ctx
        # Tables by name, with the bytes of their definitions. The same object has the same indexes.
        self._known: dict[str, tuple[bytes, LentTable]] = {}

    @classmethod
    def of(cls, session: Session, ctx: "SessionContext") -> "Owner":
        """What lends tables of `ctx` to `session`."""
        lender = session.lender()
        defaults = Lender.defaults(ctx)
        # Not that of an extension, which the session may have, too.
        codec = LogicalCodec("datafusion_rmq.lender", lender.logical_codec(ctx))
        lending = ctx.with_logical_extension_codec(codec)
        return cls(lender, lambda: lending, defaults)

    def lend(self, names: list[list[str]]) -> list[tuple[list[str], LentTable]]:
        """Those of the tables with names of these parts that the session has."""
        tables = ((parts, self.table(parts)) for parts in names)
        return [(parts, table) for parts, table in tables if table is not None]

    def table(self, parts: list[str]) -> LentTable | None:
        """The table of a name of these parts, or None."""
        ctx = self._session()
        defaults = Lender.defaults(ctx)
        if len(parts) < 3 and defaults != self._defaults:
            raise ValueError(
                f"table {'.'.join(parts)}: names without a catalog and schema are of {'.'.join(self._defaults)} here, and of "
                f"{'.'.join(defaults)} in the session; write catalog, schema and table"
            )
        name = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
        try:
            exists = ctx.table_exist(name)
        except Exception as error:
            # It has no such catalog or schema.
            if "failed to resolve" not in str(error):
                raise
            exists = False
        if not exists:
            return None
        plan = ctx.table(name).logical_plan().to_bytes(ctx)
        known = self._known.get(name)
        if known is not None and known[0] == plan:
            return known[1]
        table = self._lender.table(ctx, plan, self.lend)
        if table.is_definition:
            self._known[name] = (plan, table)
        return table

    def add_functions(self, names: list[str]) -> None:
        """Registers those of these functions that the session has."""
        ctx = self._session()
        for known, function in ((ctx.udfs, ctx.udf), (ctx.udafs, ctx.udaf), (ctx.udwfs, ctx.udwf)):
            for name in set(known()).intersection(names):
                self._lender.add_function(ctx, name, function(name)().to_bytes(ctx))

    def _session(self) -> "SessionContext":
        ctx = self._ctx()
        if ctx is None:
            raise RuntimeError("keep the SessionContext that with_extensions has returned: its functions look up tables in it")
        return ctx
