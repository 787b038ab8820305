"""Sessions of the package `datafusion`: which versions fit, and what they lend to sessions of this package."""

from typing import TYPE_CHECKING, Any

from datafusion_rmq._native import DATAFUSION_VERSION, LentTable, Lender, Session

if TYPE_CHECKING:
    from datafusion import SessionContext

__all__ = ["LogicalCodec", "Owner", "check_datafusion"]


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


class LogicalCodec:
    """A codec as a session takes it."""

    def __init__(self, codec_id: str, capsule: object) -> None:
        self.__datafusion_codec_id__ = codec_id
        self._capsule = capsule

    def __datafusion_logical_extension_codec__(self, session: Any = None) -> object:
        return self._capsule


class Owner:
    """A session of the package `datafusion` that lends its tables and functions."""

    def __init__(self, session: Session, ctx: "SessionContext") -> None:
        check_datafusion("session=")
        from datafusion import SessionContext

        if not isinstance(ctx, SessionContext):
            raise TypeError(f"session={ctx!r}: a datafusion.SessionContext is needed")
        self._lender = Lender(session)
        # Not that of an extension, which the session may have, too.
        codec = LogicalCodec("datafusion_rmq.lender", self._lender.logical_codec(ctx))
        self._ctx = ctx.with_logical_extension_codec(codec)
        # Tables by name, with the bytes of their definitions. The same object has the same indexes.
        self._known: dict[str, tuple[bytes, LentTable]] = {}

    def table(self, parts: list[str]) -> LentTable | None:
        """The table of a name of these parts, or None."""
        name = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
        try:
            exists = self._ctx.table_exist(name)
        except Exception:
            # It has no such catalog or schema.
            exists = False
        if not exists:
            return None
        plan = self._ctx.table(name).logical_plan().to_bytes(self._ctx)
        known = self._known.get(name)
        if known is not None and known[0] == plan:
            return known[1]
        table = self._lender.table(self._ctx, plan)
        if table.is_definition:
            self._known[name] = (plan, table)
        return table

    def add_functions(self, names: list[str]) -> None:
        """Registers those of these functions that the session has."""
        ctx = self._ctx
        for names_known, function in ((ctx.udfs, ctx.udf), (ctx.udafs, ctx.udaf), (ctx.udwfs, ctx.udwf)):
            for name in set(names_known()).intersection(names):
                self._lender.add_function(ctx, name, function(name)().to_bytes(ctx))
